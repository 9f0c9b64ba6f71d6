"""Carry out a change on the ONNX translation of a quantized OpenVINO model."""

from quantmedic.collectors.from_openvino.graph import OpenVINOGraph
from quantmedic.collectors.from_translation.translated_models import TranslatedPair
from quantmedic.collectors.measure.models import Fitting
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.change import Change
from quantmedic.trials.from_onnx import edit as onnx_edit
from quantmedic.trials.from_onnx.edit import EditedTranslation
from quantmedic.trials.from_openvino import execute

#: What is learned on samples can be carried out.
LEARNS = True
#: Toolchains whose prescriptions run here.
EXECUTORS = execute.EXECUTORS


def edit(
    models: TranslatedPair[OpenVINOGraph], case: Case, change: Change, fitting: Fitting | None = None
) -> EditedTranslation:
    """The translation as a remedy would leave it; see ``from_onnx.edit``.

    Raises:
        ModelError: Nothing of the change can be carried out.
    """
    return EditedTranslation(onnx_edit.edit(models, case, change, fitting, runtime="OpenVINO"))
