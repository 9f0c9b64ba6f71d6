"""What each operator of an IR is in ONNX.

Sources: OpenVINO's operation specifications for what an operator does (https://docs.openvino.ai, Available Operation
Sets), ONNX's operator documentation for its nodes.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from onnx.helper import tensor_dtype_to_np_dtype

from quantmedic.collectors.from_openvino import normalization, shapes, windows
from quantmedic.collectors.from_openvino.constants import Held
from quantmedic.collectors.from_openvino.site import (
    Site,
    Translate,
    constant_integers,
    constant_of,
    flag_of,
    integer_of,
    number_of,
    operands,
    rank_of,
    shape_of,
    text_of,
)

if TYPE_CHECKING:
    import openvino


def _plainly(kind: str, site: Site) -> None:
    site.finish(kind, operands(site))


def _first(kind: str, site: Site) -> None:
    site.finish(kind, [site.value(0)])


def _clamp(site: Site) -> None:
    low, high = (number_of(site, name, 0.0) for name in ("min", "max"))
    if site.is_float(0):
        ends = [site.constant(end, np.float32) for end in (low, high)]
    else:
        kind = tensor_dtype_to_np_dtype(site.onnx_type(0)).type
        # Of whole numbers, the ends are rounded inwards.
        ends = [site.constant(_nearest_held(end, np.iinfo(kind)), kind) for end in (np.ceil(low), np.floor(high))]
    site.finish("Clip", [site.value(0), *ends])


def _nearest_held(end: float, held: "np.iinfo[np.signedinteger]") -> int:
    """A whole number, or the end of what its type holds where it lies beyond."""
    if held.min < end < held.max:
        return int(end)
    return int(held.min if end <= held.min else held.max)


def _divide(site: Site) -> None:
    """Div, or Reciprocal of what one is divided by: OpenVINO converts that to a division."""
    divided = site.held(0)
    if divided is not None and site.is_float(0) and bool((divided.values == 1).all()) and divided.data.size == 1:
        site.finish("Reciprocal", [site.value(1)])
        return
    site.finish("Div", operands(site))


def _swish(site: Site) -> None:
    """x · sigmoid(beta · x)."""
    scaled = site.step("Mul", [site.value(0), site.value(1)]) if site.has(1) else site.value(0)
    site.finish("Mul", [site.value(0), site.step("Sigmoid", [scaled])])


def _hard_sigmoid(site: Site) -> None:
    alpha, beta = (1 / 6, 0.5)
    if site.kind == "HardSigmoid":
        alpha, beta = (float(constant_of(site, place).item()) for place in (1, 2))
    site.finish("HardSigmoid", [site.value(0)], alpha=alpha, beta=beta)


def _gelu(site: Site) -> None:
    tanh = "tanh" in text_of(site, "approximation_mode", "erf")
    site.finish("Gelu", [site.value(0)], approximate="tanh" if tanh else "none")


def _elu(site: Site) -> None:
    site.finish("Elu", [site.value(0)], alpha=number_of(site, "alpha", 1.0))


def _prelu(site: Site) -> None:
    """PRelu; one slope for all is LeakyRelu, one for each channel lies along axis 1."""
    slope = constant_of(site, 1)
    if slope.size == 1:
        site.finish("LeakyRelu", [site.value(0)], alpha=float(slope.item()))
        return
    if slope.ndim == 1:
        slope = slope.reshape(-1, *([1] * (rank_of(site, 0) - 2)))
    site.finish("PRelu", [site.value(0), site.constant(slope, np.float32)])


def _reduce(kind: str, site: Site) -> None:
    keep = int(flag_of(site, "keep_dims", default=False))
    axes = constant_integers(site, 1)
    if not axes:
        site.finish("Identity", [site.value(0)])
        return
    site.finish(kind, [site.value(0), site.constant(np.array(axes))], keepdims=keep)


def _softmax(kind: str, site: Site) -> None:
    site.finish(kind, [site.value(0)], axis=integer_of(site, "axis", 1))


def _squared_difference(site: Site) -> None:
    difference = site.step("Sub", operands(site))
    site.finish("Mul", [difference, difference])


def _not_equal(site: Site) -> None:
    site.finish("Not", [site.step("Equal", operands(site))])


def _normalize_variance(site: Site) -> None:
    """MVN over the last axes is LayerNormalization with gain 1; over others it is taken apart."""
    axes = sorted(axis % rank_of(site, 0) for axis in constant_integers(site, 1))
    rank, eps = rank_of(site, 0), number_of(site, "eps", 1e-6)
    inside = "inside" in text_of(site, "eps_mode", "inside_sqrt")
    is_scaled = flag_of(site, "normalize_variance", default=True)
    shape = site.shape(0) or ()
    sides = [shape[axis] for axis in axes]
    if is_scaled and inside and axes == list(range(rank - len(axes), rank)) and None not in sides:
        gain = site.constant(np.ones([side or 1 for side in sides]), np.float32)
        site.finish("LayerNormalization", [site.value(0), gain], axis=axes[0], epsilon=eps)
        return
    over = site.constant(np.array(axes))
    centred = site.step("Sub", [site.value(0), site.step("ReduceMean", [site.value(0), over])])
    if not is_scaled:
        site.finish("Identity", [centred])
        return
    variance, small = (
        site.step("ReduceMean", [site.step("Mul", [centred, centred]), over]),
        site.constant(eps, np.float32),
    )
    root = (
        site.step("Sqrt", [site.step("Add", [variance, small])])
        if inside
        else site.step("Add", [site.step("Sqrt", [variance]), small])
    )
    site.finish("Div", [centred, root])


def _batch_normalization(site: Site) -> None:
    """BatchNormalization: data, gain, bias, mean, variance."""
    site.finish("BatchNormalization", operands(site), epsilon=number_of(site, "epsilon", 1e-5))


def _normalize_length(site: Site) -> None:
    """x / sqrt(max(sum of squares, eps)), or with the sum of both under the root."""
    over = site.constant(np.array(constant_integers(site, 1)))
    eps = site.constant(number_of(site, "eps", 1e-12), np.float32)
    total = site.step("ReduceSumSquare", [site.value(0), over])
    kept = site.step("Max" if "max" in text_of(site, "eps_mode", "max") else "Add", [total, eps])
    site.finish("Div", [site.value(0), site.step("Sqrt", [kept])])


_PLAIN = {
    "Relu": "Relu",
    "Sigmoid": "Sigmoid",
    "Tanh": "Tanh",
    "Exp": "Exp",
    "Log": "Log",
    "Sqrt": "Sqrt",
    "Abs": "Abs",
    "Negative": "Neg",
    "Sign": "Sign",
    "Floor": "Floor",
    "Ceiling": "Ceil",
    "Erf": "Erf",
    "Sin": "Sin",
    "Cos": "Cos",
    "HSwish": "HardSwish",
    "Mish": "Mish",
    "SoftPlus": "Softplus",
    "SoftSign": "Softsign",
    "LogicalNot": "Not",
    "Add": "Add",
    "Subtract": "Sub",
    "Multiply": "Mul",
    "Power": "Pow",
    "Maximum": "Max",
    "Minimum": "Min",
    "Equal": "Equal",
    "Greater": "Greater",
    "GreaterEqual": "GreaterOrEqual",
    "Less": "Less",
    "LessEqual": "LessOrEqual",
    "LogicalAnd": "And",
    "LogicalOr": "Or",
    "LogicalXor": "Xor",
    "Select": "Where",
}
OPERATORS: dict[str, Translate] = {
    **{kind: partial(_plainly, name) for kind, name in _PLAIN.items()},
    **{
        f"Reduce{kind}": partial(_reduce, f"Reduce{kind}") for kind in ("Mean", "Sum", "Max", "Min", "Prod", "L1", "L2")
    },
    "Divide": _divide,
    "Gelu": _gelu,
    "Elu": _elu,
    "PRelu": _prelu,
    "Clamp": _clamp,
    "Swish": _swish,
    "HSigmoid": _hard_sigmoid,
    "HardSigmoid": _hard_sigmoid,
    "Softmax": partial(_softmax, "Softmax"),
    "LogSoftmax": partial(_softmax, "LogSoftmax"),
    "SquaredDifference": _squared_difference,
    "NotEqual": _not_equal,
    "MVN": _normalize_variance,
    "BatchNormInference": _batch_normalization,
    "NormalizeL2": _normalize_length,
    "Convolution": windows.convolution,
    "GroupConvolution": windows.group_convolution,
    "ConvolutionBackpropData": windows.transposed_convolution,
    "GroupConvolutionBackpropData": windows.transposed_convolution,
    "MatMul": windows.matrix_product,
    "ScaledDotProductAttention": windows.attention,
    "MaxPool": partial(windows.pool, "MaxPool"),
    "AvgPool": partial(windows.pool, "AveragePool"),
    "Interpolate": windows.interpolate,
    "DepthToSpace": partial(windows.space_depth, "DepthToSpace"),
    "SpaceToDepth": partial(windows.space_depth, "SpaceToDepth"),
    "Reshape": shapes.reshape,
    "Transpose": shapes.transpose,
    "Squeeze": shapes.squeeze,
    "Unsqueeze": shapes.unsqueeze,
    "Split": shapes.split,
    "VariadicSplit": shapes.split,
    "Slice": shapes.slice_,
    "StridedSlice": shapes.strided_slice,
    "Pad": shapes.pad,
    "Gather": shapes.gather,
    "GatherElements": shapes.gather_elements,
    "ShapeOf": shapes.shape_of_tensor,
    "Convert": shapes.convert,
    "Broadcast": shapes.broadcast,
    "Tile": shapes.tile,
    "Concat": shapes.concat,
    "Range": shapes.range_,
    "TopK": shapes.top_k,
}
#: Operators that take the Add behind them as their bias.
BIASED = {
    "Convolution": windows.convolution,
    "GroupConvolution": windows.group_convolution,
    "ConvolutionBackpropData": windows.transposed_convolution,
    "GroupConvolutionBackpropData": windows.transposed_convolution,
    "MatMul": windows.matrix_product,
}


def translator_of(op: "openvino.Node") -> Translate | None:
    """What writes an operator in ONNX by itself; None for one without a counterpart."""
    if normalization.is_normalization(op):
        return normalization.normalization
    return OPERATORS.get(op.get_type_name())


def biased_translator_of(op: "openvino.Node") -> Callable[[Site, Held | None], None] | None:
    """What writes an operator together with the Add behind it; None for one that takes none."""
    if normalization.is_normalization(op):
        return normalization.normalization
    return BIASED.get(op.get_type_name())


def fits_as_bias(source: "openvino.Output", op: "openvino.Node") -> bool:
    """It has one number for each channel of a convolution, or each column of a product of matrices."""
    shape, written = source.get_partial_shape(), shape_of(op.output(0))
    if shape.is_dynamic or written is None:
        return False
    sides = [side.get_length() for side in shape]
    if op.get_type_name() == "MatMul":
        return len(written) == 2 and written[1] is not None and sides in ([written[1]], [1, written[1]])
    channels = written[1]
    rank = len(written)
    return channels is not None and sides in ([1, channels, *([1] * (rank - 2))], [channels, *([1] * (rank - 2))])
