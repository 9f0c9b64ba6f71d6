"""A float LiteRT model by itself: what its file tells about why no quantized model could be made of it."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.inputs import InputSpec
from quantmedic.collectors.data.messages import shape_text
from quantmedic.collectors.from_litert.file import read_litert
from quantmedic.collectors.measure.float_model import FloatModel
from quantmedic.engine.case.facts import FloatFacts, ModelFacts

#: Types of inputs that data sets can hold.
_NUMPY_TYPES = ("float32", "float16", "int8", "uint8", "int16", "int32", "int64", "bool")


def read_litert_float(path: Path) -> FloatModel:
    """Read a LiteRT file.

    Raises:
        ModelError: It cannot be read.
    """
    model = read_litert(path)
    inputs = [model.tensors[index] for index in model.inputs]
    constants = [tensor.data for tensor in model.tensors if tensor.data is not None]
    broken = [t.name for t in model.tensors if t.data is not None and not _is_finite(t.data)]
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


def _is_finite(data: NDArray[np.generic]) -> bool:
    return data.dtype.kind != "f" or bool(np.isfinite(data).all())
