"""Remedies of ONNX models, as the core finds them."""

from collections.abc import Iterable
from pathlib import Path

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_file import save_model
from quantmedic.collectors.from_onnx.onnx_models import open_models
from quantmedic.collectors.measure.models import Models
from quantmedic.trials.edit import ReadSamples, Remedies, Repairable
from quantmedic.trials.execute import Maker
from quantmedic.trials.from_onnx.onnx_remedies import EXECUTORS, ONNX_RUNTIME, edit


def open_repairable(float_path: Path, quantized_path: Path, data: object, read: ReadSamples) -> Repairable:
    """Two files to be repaired on samples; see ``OpenRepairable``."""
    models = open_models(float_path, quantized_path)
    return Repairable(models, read(data, models.input_specs), save_model)


def _open_maker(models: Models, batches: Iterable[Batch], folder: Path) -> Maker:
    # The toolchain takes half a second to import.
    from quantmedic.trials.from_onnx.shared_calibration import open_maker

    return open_maker(models, batches, folder)


REMEDIES = Remedies(
    edit,
    learns=True,
    executors=EXECUTORS,
    makers={ONNX_RUNTIME.toolchain: _open_maker},
    open_repairable=open_repairable,
)
