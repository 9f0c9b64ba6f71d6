"""Carry out a change on the ONNX translation of a quantized LiteRT model, and what is learned on its file too."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from quantmedic.collectors.from_litert.graph import parse_translation
from quantmedic.collectors.from_litert.translated import TranslatedModels
from quantmedic.collectors.from_onnx.file import save_content
from quantmedic.collectors.measure.models import Fitting, Runner
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.change import Change
from quantmedic.trials.from_onnx import edit as onnx_edit

#: What is learned on samples can be carried out.
LEARNS = True


@dataclass(frozen=True)
class Edited:
    """A translation with a change carried out; see ``measure.models.Edited``.

    Attributes:
        models: The translations that were edited.
        translation: The changed copy.
        is_in_place: Other values in the constants of the file are all that was changed.
    """

    models: TranslatedModels
    translation: onnx_edit.Edited
    is_in_place: bool

    @property
    def unedited(self) -> tuple[str, ...]:
        """What of the change could not be carried out, or LiteRT undoes by itself, in words."""
        return self.translation.unedited

    def runner(self, threads: int) -> Runner:
        """Runs the changed translation."""
        return self.translation.runner(threads)

    def left_integer(self, case: Case, change: Change) -> tuple[str, ...]:
        """None: the translation does not show which kernels LiteRT would choose."""
        return ()

    @property
    def save(self) -> Callable[[Path], None] | None:
        """Writes the file with learned values in its constants; None: a translation is not a LiteRT file."""
        if not self.is_in_place:
            return None
        return lambda path: save_content(self.models.quantized.content_with(self.translation.model), path)


def edit(models: TranslatedModels, case: Case, change: Change, fitting: Fitting | None = None) -> Edited:
    """The translation as a remedy would leave it; see ``from_onnx.edit``.

    What is learned without any other change is learned only where the file has a place for it.

    Raises:
        ModelError: Nothing of the change can be carried out.
    """
    in_place = bool(change.learned) and not replace(change, learned=frozenset())
    # A learner that sees the file leaves out what this has no place for.
    read: onnx_edit.Reader = (lambda _, model: models.quantized.with_model(model)) if in_place else parse_translation
    # The messages about float inputs of layers with coded weights hold for LiteRT's kernels, too.
    return Edited(models, onnx_edit.edit(models, case, change, fitting, runtime="LiteRT", read=read), in_place)
