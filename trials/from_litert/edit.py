"""Carry out a change on the ONNX translation of a quantized LiteRT model, and what is learned on its file too."""

from dataclasses import replace
from pathlib import Path

from quantmedic.collectors.from_litert.graph import LiteRTGraph, parse_translation
from quantmedic.collectors.from_onnx.file import save_content
from quantmedic.collectors.from_translation.translated_models import TranslatedPair
from quantmedic.collectors.measure.models import Fitting
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.change import Change
from quantmedic.trials.from_litert import execute
from quantmedic.trials.from_onnx import edit as onnx_edit
from quantmedic.trials.from_onnx.edit import EditedTranslation

#: What is learned on samples can be carried out.
LEARNS = True
#: Toolchains whose prescriptions run here.
EXECUTORS = execute.EXECUTORS


def edit(
    models: TranslatedPair[LiteRTGraph], case: Case, change: Change, fitting: Fitting | None = None
) -> EditedTranslation:
    """The translation as a remedy would leave it; see ``from_onnx.edit``.

    What is learned without any other change is learned only where the file has a place for it, and is written there.

    Raises:
        ModelError: Nothing of the change can be carried out.
    """
    in_place = bool(change.learned) and not replace(change, learned=frozenset())
    graph = models.quantized
    # A learner that sees the file leaves out what this has no place for.
    read: onnx_edit.Reader = (lambda _, model: graph.with_model(model)) if in_place else parse_translation
    # The messages about float inputs of layers with coded weights hold for LiteRT's kernels, too.
    edited = onnx_edit.edit(models, case, change, fitting, runtime="LiteRT", read=read)

    def save(path: Path) -> None:
        save_content(graph.content_with(edited.model), path)

    return EditedTranslation(edited, save if in_place else None)
