"""Prescriptions for ONNX models, run in a process of their own: those of ONNX Runtime, and of other toolchains."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.measure.models import Models
from quantmedic.trials.from_onnx import other_toolchains
from quantmedic.trials.from_onnx.made import Made, make

#: The user's calibration data reader: the stored batches, one after the other.
READER = """
import pathlib as _pathlib
import numpy as _numpy
from onnxruntime.quantization import CalibrationDataReader as _CalibrationDataReader

class _StoredBatches(_CalibrationDataReader):
    def __init__(self):
        self.rewind()

    def rewind(self):
        self.paths = iter(sorted(_pathlib.Path("calibration").glob("*.npz")))

    def get_next(self):
        path = next(self.paths, None)
        if path is None:
            return None
        with _numpy.load(path) as stored:
            return {name.removeprefix("input "): stored[name] for name in stored.files}

reader = _StoredBatches()
"""


@dataclass(frozen=True)
class OnnxRuntime:
    """``onnxruntime.quantization``; see ``trials.execute.Executor``."""

    toolchain: str = "onnxruntime"
    supplies: frozenset[str] = frozenset({"reader"})

    def version(self) -> str | None:
        """Version of onnxruntime."""
        try:
            return version("onnxruntime")
        except PackageNotFoundError:
            return None  # A build under another name, such as onnxruntime-gpu.

    def missing(self) -> str | None:
        """Nothing: quantmedic itself needs it."""
        return None

    def execute(self, models: Models, code: str, calibration: Iterable[Batch], deadline: float | None) -> Made:
        """Run the text in an empty folder, beside the float model and the reader's batches."""
        return make(models, code, READER, calibration, deadline)


EXECUTORS = (OnnxRuntime(), *other_toolchains.EXECUTORS)
