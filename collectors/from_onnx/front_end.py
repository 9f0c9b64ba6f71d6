"""ONNX models as a front end."""

from pathlib import Path
from typing import ClassVar

from quantmedic.collectors.from_onnx.float_model import read_onnx_float
from quantmedic.collectors.from_onnx.onnx_models import OnnxModels, open_models, open_network
from quantmedic.collectors.measure.float_model import FloatModel
from quantmedic.collectors.measure.front_end import FileFrontEnd, FrontEnd
from quantmedic.collectors.measure.models import Network


class _OnnxFrontEnd(FileFrontEnd):
    """Reads ``.onnx`` files, and every file that no front end recognizes: the ONNX format has no mark."""

    name: ClassVar[str] = "onnx"
    title: ClassVar[str] = "ONNX"
    writes_models: ClassVar[bool] = True

    def recognizes(self, model: object) -> bool:
        """By suffix."""
        return isinstance(model, str | Path) and Path(model).suffix.lower() == ".onnx"

    def takes_rest(self, model: object) -> bool:
        """Any path."""
        return isinstance(model, str | Path)

    def open_paths(self, float_path: Path, quantized_path: Path) -> OnnxModels:
        """Open two files; neither is run."""
        return open_models(float_path, quantized_path)

    def open_network(self, path: Path) -> Network:
        """Open one file."""
        return open_network(path)

    def read_float_path(self, path: Path) -> FloatModel:
        """What the file of a float model tells by itself."""
        return read_onnx_float(path)


FRONT_END: FrontEnd = _OnnxFrontEnd()
