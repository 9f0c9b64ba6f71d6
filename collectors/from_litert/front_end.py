"""LiteRT models as a front end."""

from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.messages import shape_text
from quantmedic.collectors.data.model_inputs import InputSpec
from quantmedic.collectors.from_litert.litert_file import read_litert
from quantmedic.collectors.from_litert.litert_models import LiteRTModels, open_models
from quantmedic.collectors.measure.float_model import FloatModel
from quantmedic.collectors.measure.front_end import FileFrontEnd, FrontEnd
from quantmedic.engine.case.facts import FloatFacts, ModelFacts
from quantmedic.engine.input_files import require_regular

#: What every LiteRT file has at byte 4, and how such files are named.
_IDENTIFIER, _SUFFIXES = b"TFL3", (".tflite", ".lite")
#: Types of inputs that data sets can hold.
_NUMPY_TYPES = ("float32", "float16", "int8", "uint8", "int16", "int32", "int64", "bool")


class _LiteRTFrontEnd(FileFrontEnd):
    """Reads files that say of themselves that they are LiteRT models, or whose name does."""

    name: ClassVar[str] = "litert"
    title: ClassVar[str] = "LiteRT"

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
        """What the file of a float model tells by itself.

        Raises:
            ModelError: It cannot be read.
        """
        model = read_litert(path)
        inputs = [model.tensors[index] for index in model.inputs]
        constants = [tensor.data for tensor in model.tensors if tensor.data is not None]
        broken = [t.name for t in model.tensors if t.data is not None and not _has_finite_values(t.data)]
        facts = FloatFacts(
            format="litert",
            operators=len(model.operators),
            inputs=tuple(f"{t.name} {shape_text(t.shape)} {t.kind.lower()}" for t in inputs),
            dynamic_inputs=tuple(t.name for t in inputs if None in t.shape[1:]),
            foreign_types=tuple(sorted({op.kind for op in model.operators if op.is_custom})),
            constant_bytes=sum(data.nbytes for data in constants),
            nonfinite_constants=len(broken),
            first_nonfinite_constant=broken[0] if broken else None,
        )
        changes = {
            "float_model": facts,
            "bytes_float": path.stat().st_size,
            "float_is_quantized": any(t.quantizer is not None for t in model.tensors),
        }
        # LiteRT models state a batch of one and take any.
        known = all(t.kind.lower() in _NUMPY_TYPES for t in inputs)
        specs = [InputSpec(t.name, (None, *t.shape[1:]), np.dtype(t.kind.lower())) for t in inputs] if known else []
        described = ModelFacts(name=path.name).model_copy(update=changes)
        return FloatModel(described, tuple(specs), (path,), model.notices)


def _has_finite_values(data: NDArray[np.generic]) -> bool:
    return data.dtype.kind != "f" or bool(np.isfinite(data).all())


FRONT_END: FrontEnd = _LiteRTFrontEnd()
