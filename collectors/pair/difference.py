"""What an operator of the quantized model does otherwise than its float twin, by their attributes and constants."""

import math
from collections.abc import Iterator

import numpy as np

from quantmedic.collectors.pair.constants import Constant
from quantmedic.collectors.pair.graph import Attribute, Graph, Operator

#: Attributes that say how an operator is stored, or what the runtime ignores, and not what it computes.
_OF_STORAGE = frozenset({"axis", "kernel_shape", "momentum", "perm", "saturate", "spatial", "to", "transA", "transB"})
#: Weights, biases and gains of these are compared as such, and tools fold factors into them.
_WEIGHTED = frozenset(
    {"BatchNormalization", "Conv", "ConvTranspose", "Gemm", "LayerNormalization", "LSTM", "GRU", "MatMul", "RNN"}
)
#: What an attribute is where it is left out, of operators whose converters are known to lose some (ONNX operators).
_USUAL: dict[str, dict[str, Attribute]] = {
    "AveragePool": {"ceil_mode": 0, "count_include_pad": 0},
    "Celu": {"alpha": 1.0},
    "DepthToSpace": {"mode": "DCR"},
    "Elu": {"alpha": 1.0},
    "Gelu": {"approximate": "none"},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "LeakyRelu": {"alpha": 0.01},
    "MaxPool": {"ceil_mode": 0},
    "Pad": {"mode": "constant"},
    "Resize": {
        "coordinate_transformation_mode": "half_pixel",
        "cubic_coeff_a": -0.75,
        "mode": "nearest",
        "nearest_mode": "round_prefer_floor",
    },
    "ThresholdedRelu": {"alpha": 1.0},
}
#: The order of their operands counts.
_ORDERED = frozenset({"Sub", "Div", "Pow"})
#: Beyond it float16 has no finite values: what is written as infinite there masks as well.
LARGEST_HALF = 65504.0
#: Numbers that differ by less, relative to the larger, are the same one as stored.
SAME_NUMBER = 1e-3
#: Longer lists are tables, and no settings.
MAX_ENTRIES = 16


def difference_of(op: Operator, twin: Operator, quantized: Graph, floats: Graph) -> str | None:
    """In words what differs, at most three settings; None where nothing is known to.

    Args:
        op: The operator of the quantized model.
        twin: That of the float model which does the same work.
        quantized: Holds the constants of the one.
        floats: Holds the constants of the other.
    """
    if op.op_type != twin.op_type:
        return None
    found = [
        *_exchanged_operands(op, twin, quantized, floats),
        *_changed_attributes(op, twin),
        *_changed_bounds(op, twin),
        *_changed_constants(op, twin, quantized, floats),
    ]
    return "; ".join(found[:3]) or None


def _exchanged_operands(op: Operator, twin: Operator, quantized: Graph, floats: Graph) -> Iterator[str]:
    """A constant that is subtracted, or divides, where it is subtracted from, or divided."""
    if op.op_type not in _ORDERED or len(op.inputs) != 2 or len(twin.inputs) != 2:
        return
    now = [name in quantized.constants for name in op.inputs]
    was = [name in floats.constants for name in twin.inputs]
    if now != was and sorted(now) == sorted(was) == [False, True]:
        yield "operands exchanged"


def _changed_attributes(op: Operator, twin: Operator) -> Iterator[str]:
    usual = _USUAL.get(op.op_type, {})
    for name in dict.fromkeys((*twin.attributes, *op.attributes)):
        old, new = (each.attributes.get(name, usual.get(name)) for each in (twin, op))
        known = old is not None and new is not None and name not in _OF_STORAGE
        if known and not (op.op_type in _WEIGHTED and name in ("alpha", "beta")) and not _is_same(old, new):
            yield f"{name} {_text(old)} → {_text(new)}"


def _changed_bounds(op: Operator, twin: Operator) -> Iterator[str]:
    if op.bounds is not None and twin.bounds is not None and not _is_same(twin.bounds, op.bounds):
        yield f"bounds {_text(twin.bounds)} → {_text(op.bounds)}"


def _changed_constants(op: Operator, twin: Operator, quantized: Graph, floats: Graph) -> Iterator[str]:
    if op.op_type in _WEIGHTED or len(op.inputs) != len(twin.inputs):
        return
    for place, (name, float_name) in enumerate(zip(op.inputs, twin.inputs, strict=True), 1):
        new, old = quantized.constants.get(name), floats.constants.get(float_name)
        if new is None or old is None or new.small_floats is not None:
            continue
        was, now = _setting_of(old), _setting_of(new)
        # A code of so many bits is up to a step off: the zero point is rounded, too.
        within = SAME_NUMBER if new.codes is None else 2.0 ** (1 - new.bits[0])
        if was is None or now is None or len(was) != len(now) or _is_same(was, now, within):
            continue
        # Sides that depend on the samples are written in many ways; the same ones in another order are not.
        if op.op_type != "Reshape" or sorted(was) == sorted(now):
            yield f"input {place} {_text(was)} → {_text(now)}"


def _setting_of(constant: Constant) -> tuple[float, ...] | None:
    """A short list of whole numbers, or a single number."""
    if constant.integers is not None and 0 < constant.integers.size <= MAX_ENTRIES:
        return tuple(constant.integers.ravel().tolist())
    if constant.values is not None and constant.values.size == 1:
        return (float(constant.values.ravel()[0]),)
    return None


def _is_same(old: object, new: object, within: float = SAME_NUMBER) -> bool:
    if isinstance(old, tuple) and isinstance(new, tuple):
        return len(old) == len(new) and all(_is_same(*each, within) for each in zip(old, new, strict=True))
    if isinstance(old, int | float) and isinstance(new, int | float):
        old, new = (min(max(value, -LARGEST_HALF), LARGEST_HALF) for value in (old, new))
        return math.isclose(old, new, rel_tol=within, abs_tol=np.finfo(np.float32).tiny)
    return type(old) is not type(new) or old == new


def _text(value: object) -> str:
    match value:
        case tuple() if len(value) == 1:
            return _text(value[0])
        case tuple():
            return f"[{', '.join(map(_text, value[:MAX_ENTRIES]))}]"
        case float():
            return f"{value:.6g}"
        case bytes():
            return value.hex()[:8]
        case _:
            return str(value)
