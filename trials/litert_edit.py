"""Carry out a change on the ONNX translation of a quantized LiteRT model."""

from dataclasses import replace
from typing import Any

from quantmedic.collectors.from_onnx.models import Models
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.change import Change
from quantmedic.trials import onnx_edit
from quantmedic.trials.onnx_edit import Edited


def edit(models: Models, case: Case, change: Change) -> Edited:
    """The translation as a remedy would leave it; see ``onnx_edit.edit``.

    Raises:
        ModelError: Nothing of the change can be carried out.
    """
    edited = onnx_edit.edit(models, case, change)
    # What it says of float inputs that meet codes of weights holds for LiteRT's kernels, too.
    return replace(edited, unedited=tuple(said.replace("onnxruntime", "LiteRT") for said in edited.unedited))


def left_integer(models: Models, case: Case, after: Any, change: Change) -> tuple[str, ...]:
    """Nothing is known of it: which kernels LiteRT would choose, the translation does not tell."""
    return ()
