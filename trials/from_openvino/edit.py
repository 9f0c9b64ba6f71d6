"""Carry out a change on the ONNX translation of a quantized OpenVINO model."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quantmedic.collectors.from_openvino.translated import TranslatedModels
from quantmedic.collectors.measure.models import Fitting, Runner
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.change import Change
from quantmedic.trials.from_onnx import edit as onnx_edit

#: What is learned on samples can be carried out.
LEARNS = True


@dataclass(frozen=True)
class Edited:
    """A translation with a change carried out; see ``measure.models.Edited``."""

    translation: onnx_edit.Edited

    @property
    def unedited(self) -> tuple[str, ...]:
        """What of the change could not be carried out, in words."""
        return self.translation.unedited

    def runner(self, threads: int) -> Runner:
        """Runs the changed translation."""
        return self.translation.runner(threads)

    def left_integer(self, case: Case, change: Change) -> tuple[str, ...]:
        """None: the translation does not show which kernels OpenVINO would choose."""
        return ()

    @property
    def save(self) -> Callable[[Path], None] | None:
        """None: a translation is not an IR."""
        return None


def edit(models: TranslatedModels, case: Case, change: Change, fitting: Fitting | None = None) -> Edited:
    """The translation as a remedy would leave it; see ``from_onnx.edit``.

    Raises:
        ModelError: Nothing of the change can be carried out.
    """
    return Edited(onnx_edit.edit(models, case, change, fitting, runtime="OpenVINO"))
