"""LiteRT models as a front end."""

from pathlib import Path
from typing import ClassVar

from quantmedic.collectors.from_litert.float_model import read_litert_float
from quantmedic.collectors.from_litert.models import LiteRTModels, open_models
from quantmedic.collectors.measure.float_model import FloatModel
from quantmedic.collectors.measure.front_end import FileFrontEnd, FrontEnd
from quantmedic.engine.files import require_regular

#: What every LiteRT file has at byte 4, and how such files are named.
_IDENTIFIER, _SUFFIXES = b"TFL3", (".tflite", ".lite")


class _LiteRTFrontEnd(FileFrontEnd):
    """Reads files that say of themselves that they are LiteRT models, or whose name does."""

    name: ClassVar[str] = "litert"
    title: ClassVar[str] = "LiteRT"
    editor: ClassVar[str] = "quantmedic.trials.from_litert.edit"

    def recognizes(self, model: object) -> bool:
        """By suffix, or by the identifier in the file."""
        if not isinstance(model, str | Path):
            return False
        path = Path(model)
        if path.suffix.lower() in _SUFFIXES:
            return True
        try:
            require_regular(path)
            with path.open("rb") as stream:
                return stream.read(8)[4:] == _IDENTIFIER
        except OSError:
            return False

    def open_paths(self, float_path: Path, quantized_path: Path) -> LiteRTModels:
        """Open two files; neither is run."""
        return open_models(float_path, quantized_path)

    def read_float_path(self, path: Path) -> FloatModel:
        """What the file of a float model tells by itself."""
        return read_litert_float(path)


FRONT_END: FrontEnd = _LiteRTFrontEnd()
