"""What each operator of an IR is in ONNX.

Sources: OpenVINO's operation specifications for what an operator does (https://docs.openvino.ai, Available Operation
Sets), ONNX's operator documentation for its nodes.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto
from onnx.helper import tensor_dtype_to_np_dtype

from quantmedic.collectors.from_openvino.openvino_constants import REAL, Held, shape_of
from quantmedic.collectors.from_openvino.openvino_site import Site, Translate
from quantmedic.collectors.from_translation.onnx_writer import Untranslatable, Value, slice_rows

if TYPE_CHECKING:
    import openvino

_CONVOLUTIONS = ("Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData")
_PADDING = frozenset({"constant", "reflect", "edge"})
_AUTO = {"same_upper": "SAME_UPPER", "same_lower": "SAME_LOWER", "valid": "VALID"}


def _is_normalization(op: "openvino.Node") -> bool:
    """A factor for each channel of what a convolution wrote, held as numbers: toolchains store others as codes."""
    shape = shape_of(op.output(0))
    if op.get_type_name() != "Multiply" or shape is None or len(shape) < 3:
        return False
    factor = op.input_value(1)
    sides = [1, shape[1], *([1] * (len(shape) - 2))]
    if factor.get_node().get_type_name() != "Constant" or shape_of(factor) != tuple(sides) or shape[1] == 1:
        return False
    return factor.get_element_type().get_type_name() in REAL and _is_of_convolution(op.input_value(0).get_node())


def _is_of_convolution(op: "openvino.Node") -> bool:
    """A convolution, with or without its bias, and behind a quantizer or not."""
    if op.get_type_name() == "FakeQuantize":
        op = op.input_value(0).get_node()
    if op.get_type_name() == "Add":
        op = op.input_value(0).get_node()
    return op.get_type_name() in _CONVOLUTIONS


def _normalization(site: Site, shift: Held | None = None) -> None:
    """BatchNormalization of mean 0 and variance 1; ``shift`` is what the Add behind it adds to each channel."""
    gain = np.asarray(site.constant_values(1), np.float32).ravel()
    added = np.zeros_like(gain) if shift is None else np.asarray(shift.values, np.float32).ravel()
    values = (gain, added, np.zeros_like(gain), np.ones_like(gain))
    site.finish(
        "BatchNormalization", [site.value(0), *(site.constant(each, np.float32) for each in values)], epsilon=0.0
    )


def _reshape(site: Site) -> None:
    """Reshape; without ``special_zero`` a 0 is a side of length 0."""
    allow = {} if site.flag("special_zero", default=False) else {"allowzero": 1}
    held = site.find_constant(1)
    if allow and held is not None and 0 not in held.values:
        allow = {}
    site.finish("Reshape", [site.value(0), site.integer_operand(1)], **allow)


def _transpose(site: Site) -> None:
    """Transpose; an empty order reverses the axes."""
    order = site.constant_integers(1) or list(reversed(range(site.rank(0))))
    site.finish("Transpose", [site.value(0)], perm=order)


def _with_integers(kind: str, site: Site) -> None:
    """Data, and whole numbers as ONNX wants axes and counts."""
    site.finish(kind, [site.value(0), site.integer_operand(1)])


def _squeeze(site: Site) -> None:
    """Squeeze; without axes all sides of length 1 go."""
    site.finish("Squeeze", [site.value(0), *([site.integer_operand(1)] if site.has(1) else [])])


def _split(site: Site) -> None:
    """Split into equal parts, or into parts of given lengths."""
    axis = site.constant_integers(1)[0]
    if site.kind == "VariadicSplit":
        site.finish("Split", [site.value(0), site.integer_operand(2)], axis=axis)
    else:
        site.finish("Split", [site.value(0)], axis=axis, num_outputs=site.attributes.integer("num_splits", 1))


def _slice(site: Site) -> None:
    """Slice: start, stop, step, and axes where they are given."""
    start, stop, step = (site.integer_operand(place) for place in (1, 2, 3))
    held = site.find_constant(1)
    axes = site.integer_operand(4) if site.has(4) else None
    if axes is None:
        if held is None:
            raise Untranslatable
        axes = site.constant(np.arange(held.data.size))
    site.finish("Slice", [site.value(0), start, stop, axes, step])


def _strided_slice(site: Site) -> None:
    """Slice, then Squeeze where single entries are taken; masks leave ends open."""
    if any(site.integers("ellipsis_mask")) or any(site.integers("new_axis_mask")):
        raise Untranslatable
    starts, ends = site.constant_integers(1), site.constant_integers(2)
    steps = site.constant_integers(3) if site.has(3) else [1] * len(starts)
    begin, end, shrink = (
        [*site.integers(name), *([0] * len(starts))][: len(starts)]
        for name in ("begin_mask", "end_mask", "shrink_axis_mask")
    )
    slices = slice_rows(zip(starts, ends, steps, strict=True), zip(begin, end, shrink, strict=True))
    rows = [site.constant(np.array(row)) for row in slices]
    if not any(shrink):
        site.finish("Slice", [site.value(0), *rows])
        return
    cut = site.step("Slice", [site.value(0), *rows])
    site.finish("Squeeze", [cut, site.constant(np.flatnonzero(shrink))])


def _pad(site: Site) -> None:
    """Pad; how much may be computed."""
    mode = site.text("pad_mode", "constant")
    if mode not in _PADDING:
        raise Untranslatable
    pads = site.step("Concat", [site.integer_operand(place) for place in (1, 2)], axis=0)
    value = [site.value(3)] if site.has(3) and mode == "constant" else []
    site.finish("Pad", [site.value(0), pads, *value], mode=mode)


def _gather(site: Site) -> None:
    """Gather along one axis."""
    if site.attributes.integer("batch_dims", 0):
        raise Untranslatable
    site.finish("Gather", [site.value(0), site.value(1)], axis=site.constant_integers(2)[0])


def _shape_of_tensor(site: Site) -> None:
    """Shape, in the type that the IR has."""
    if site.onnx_type(0) == TensorProto.INT64:
        site.finish("Shape", [site.value(0)])
    else:
        site.finish("Cast", [site.step("Shape", [site.value(0)])], to=site.onnx_type(0))


def _broadcast(site: Site) -> None:
    """Expand: by numpy's rule, or to the larger of both."""
    if site.text("mode", "numpy") not in ("numpy", "bidirectional") or site.has(2):
        raise Untranslatable
    site.finish("Expand", [site.value(0), site.integer_operand(1)])


def _range(site: Site) -> None:
    """Range, its ends in the type of what it writes."""
    inputs = [site.step("Cast", [site.value(place)], to=site.onnx_type(0)) for place in range(3)]
    site.finish("Range", inputs)


def _top_k(site: Site) -> None:
    """TopK of a fixed number."""
    held = site.find_constant(1)
    if held is None or site.text("sort", "value") == "index":
        raise Untranslatable
    count = site.constant(np.asarray(site.constant_values(1)).reshape(1))
    largest = int(site.text("mode", "max") == "max")
    site.finish("TopK", [site.value(0), count], axis=site.attributes.integer("axis", -1), largest=largest)


def _convolution(site: Site, bias: Held | None = None) -> None:
    """Conv or ConvTranspose; ``bias`` is what the Add behind it adds to each channel.

    Weights of groups, ``[groups, out, in, …]`` or transposed ``[groups, in, out, …]``, become ``[groups · out, in, …]``
    or ``[groups · in, out, …]``.
    """
    is_grouped, is_transposed = site.kind.startswith("Group"), site.kind.endswith("BackpropData")
    held, group, attributes = site.find_constant(1), 1, _window(site)
    if (held is None and (is_grouped or is_transposed)) or (is_transposed and site.has(2)):
        raise Untranslatable
    if held is not None and is_grouped:
        group, first, *rest = held.data.shape
        held = held.reshape((group * first, *rest))
    if is_grouped or is_transposed:
        attributes["group"] = group
    if is_transposed and any(more := site.integers("output_padding")):
        attributes["output_padding"] = more
    if held is not None:
        attributes["kernel_shape"] = list(held.data.shape[2:])
    weights = site.value(1) if held is None else site.store(held)
    inputs = [site.value(0), weights, *([] if bias is None else [site.store(bias.reshape((-1,)))])]
    site.finish("ConvTranspose" if is_transposed else "Conv", inputs, **attributes)


def _window(site: Site) -> dict[str, Value]:
    found: dict[str, Value] = {"strides": site.integers("strides")}
    if dilations := site.integers("dilations"):
        found["dilations"] = dilations
    return found | _padding(site)


def _padding(site: Site) -> dict[str, Value]:
    automatic = _AUTO.get(site.text("auto_pad", "explicit"))
    if automatic is not None:
        return {"auto_pad": automatic}
    return {"pads": [*site.integers("pads_begin"), *site.integers("pads_end")]}


def _pool(kind: str, site: Site) -> None:
    """MaxPool or AveragePool; indices that only the former writes are left out."""
    rounding = site.text("rounding_type", "floor")
    if rounding not in ("floor", "ceil", "ceil_torch"):
        raise Untranslatable
    found = _window(site) | {"kernel_shape": site.integers("kernel")}
    if rounding != "floor":
        found["ceil_mode"] = 1
    if kind == "AveragePool":
        found["count_include_pad"] = int(not site.flag("exclude-pad", default=True))
    site.finish(kind, [site.value(0)], **found)


def _matrix_product(site: Site, bias: Held | None = None) -> None:
    """MatMul, or Gemm where a bias follows and both operands are matrices; constants are stored as ONNX reads them."""
    inputs = [_transposed_operand(site, place, name) for place, name in enumerate(("transpose_a", "transpose_b"))]
    if bias is None:
        site.finish("MatMul", inputs)
    else:
        site.finish("Gemm", [*inputs, site.store(bias.reshape((-1,)))])


def _transposed_operand(site: Site, place: int, flag: str) -> str:
    held = site.find_constant(place)
    if not site.flag(flag, default=False) or site.rank(place) < 2:
        return site.value(place)
    order = [*range(site.rank(place))]
    order[-2:] = order[-1], order[-2]
    return (
        site.step("Transpose", [site.value(place)], perm=order) if held is None else site.store(held.transpose(order))
    )


def _attention(site: Site) -> None:
    """softmax(scale · Q · Kᵀ + mask) · V, without the mask of what comes later and without masks of truth values."""
    shape = site.shape(0)
    if site.flag("causal", default=False) or (site.has(3) and not site.is_float(3)) or site.has(5):
        raise Untranslatable
    if not site.has(4) and (shape is None or shape[-1] is None):
        raise Untranslatable
    width = shape[-1] if shape is not None else None
    scale = site.value(4) if site.has(4) else site.constant(1.0 / np.sqrt(width or 1), np.float32)
    order = [*range(site.rank(1))]
    order[-2:] = order[-1], order[-2]
    product = site.step("MatMul", [site.value(0), site.step("Transpose", [site.value(1)], perm=order)])
    scores = site.step("Mul", [product, scale])
    if site.has(3):
        scores = site.step("Add", [scores, site.value(3)])
    site.finish("MatMul", [site.step("Softmax", [scores], axis=-1), site.value(2)])


_COORDINATES = frozenset({"half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"})
_MODES = {"nearest": "nearest", "linear": "linear", "linear_onnx": "linear", "cubic": "cubic"}
_NEAREST = frozenset({"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"})


def _interpolate(site: Site) -> None:
    """Resize: by sizes or by scales, along the axes that are named."""
    mode = _MODES.get(site.text("mode", ""))
    coordinates = site.text("coordinate_transformation_mode", "half_pixel")
    nearest = site.text("nearest_mode", "round_prefer_floor")
    padded = any((*site.integers("pads_begin"), *site.integers("pads_end")))
    if mode is None or padded or site.flag("antialias", default=False):
        raise Untranslatable
    if coordinates not in _COORDINATES or nearest not in _NEAREST:
        raise Untranslatable
    rank = site.rank(0)
    options: dict[str, Value] = {
        "mode": mode,
        "coordinate_transformation_mode": coordinates,
        "nearest_mode": nearest,
        "cubic_coeff_a": site.attributes.number("cube_coeff", -0.75),
    }
    # Version 4 has sizes and scales, which are real values and of which an attribute chooses one; version 11 has one
    # input for either.
    by_scales = site.text("shape_calculation_mode", "sizes") == "scales"
    versioned = site.has(2) and site.is_float(2)
    place, axes_place = (2 if versioned and by_scales else 1), (3 if versioned else 2)
    axes = site.constant_integers(axes_place) if site.has(axes_place) else list(range(rank))
    options["axes"] = axes
    given = site.constant_values(place) if site.find_constant(place) is not None else None
    if by_scales:
        if given is None:
            raise Untranslatable
        site.finish("Resize", [site.value(0), "", site.constant(given.ravel(), np.float32)], **options)
    else:
        sizes = (
            site.constant(given.ravel())
            if given is not None
            else site.step("Cast", [site.value(place)], to=TensorProto.INT64)
        )
        site.finish("Resize", [site.value(0), "", "", sizes], **options)


def _space_depth(kind: str, site: Site) -> None:
    """DepthToSpace or SpaceToDepth."""
    mode = site.text("mode", "blocks_first")
    size: dict[str, Value] = {"blocksize": int(site.attributes.number("block_size", 1))}
    if kind == "DepthToSpace":
        size["mode"] = "DCR" if mode == "blocks_first" else "CRD"
    elif mode != "blocks_first":
        raise Untranslatable
    site.finish(kind, [site.value(0)], **size)


def _plainly(kind: str, site: Site) -> None:
    site.finish(kind, site.operands())


def _clamp(site: Site) -> None:
    low, high = (site.attributes.number(name, 0.0) for name in ("min", "max"))
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


def _divide_or_invert(site: Site) -> None:
    """Div, or Reciprocal of what one is divided by: OpenVINO converts that to a division."""
    divided = site.find_constant(0)
    if divided is not None and site.is_float(0) and bool((divided.values == 1).all()) and divided.data.size == 1:
        site.finish("Reciprocal", [site.value(1)])
        return
    site.finish("Div", site.operands())


def _swish(site: Site) -> None:
    """x · sigmoid(beta · x)."""
    scaled = site.step("Mul", [site.value(0), site.value(1)]) if site.has(1) else site.value(0)
    site.finish("Mul", [site.value(0), site.step("Sigmoid", [scaled])])


def _hard_sigmoid(site: Site) -> None:
    alpha, beta = (1 / 6, 0.5)
    if site.kind == "HardSigmoid":
        alpha, beta = (float(site.constant_values(place).item()) for place in (1, 2))
    site.finish("HardSigmoid", [site.value(0)], alpha=alpha, beta=beta)


def _gelu(site: Site) -> None:
    tanh = "tanh" in site.text("approximation_mode", "erf")
    site.finish("Gelu", [site.value(0)], approximate="tanh" if tanh else "none")


def _prelu(site: Site) -> None:
    """PRelu; one slope for all is LeakyRelu, one for each channel lies along axis 1."""
    slope = site.constant_values(1)
    if slope.size == 1:
        site.finish("LeakyRelu", [site.value(0)], alpha=float(slope.item()))
        return
    if slope.ndim == 1:
        slope = slope.reshape(-1, *([1] * (site.rank(0) - 2)))
    site.finish("PRelu", [site.value(0), site.constant(slope, np.float32)])


def _reduce(kind: str, site: Site) -> None:
    keep = int(site.flag("keep_dims", default=False))
    axes = site.constant_integers(1)
    if not axes:
        site.finish("Identity", [site.value(0)])
        return
    site.finish(kind, [site.value(0), site.constant(np.array(axes))], keepdims=keep)


def _squared_difference(site: Site) -> None:
    difference = site.step("Sub", site.operands())
    site.finish("Mul", [difference, difference])


def _normalize_variance(site: Site) -> None:
    """MVN over the last axes is LayerNormalization with gain 1; over others it is taken apart."""
    axes = sorted(axis % site.rank(0) for axis in site.constant_integers(1))
    rank, eps = site.rank(0), site.attributes.number("eps", 1e-6)
    inside = "inside" in site.text("eps_mode", "inside_sqrt")
    is_scaled = site.flag("normalize_variance", default=True)
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


def _normalize_length(site: Site) -> None:
    """x / sqrt(max(sum of squares, eps)), or with the sum of both under the root."""
    over = site.constant(np.array(site.constant_integers(1)))
    eps = site.constant(site.attributes.number("eps", 1e-12), np.float32)
    total = site.step("ReduceSumSquare", [site.value(0), over])
    kept = site.step("Max" if "max" in site.text("eps_mode", "max") else "Add", [total, eps])
    site.finish("Div", [site.value(0), site.step("Sqrt", [kept])])


#: Operators that need nothing but their operands: under another name in ONNX, and under the same.
_PLAIN = {
    **{"Negative": "Neg", "Ceiling": "Ceil", "HSwish": "HardSwish", "SoftPlus": "Softplus", "SoftSign": "Softsign"},
    **{"Subtract": "Sub", "Multiply": "Mul", "Power": "Pow", "Maximum": "Max", "Minimum": "Min", "Select": "Where"},
    **{"GreaterEqual": "GreaterOrEqual", "LessEqual": "LessOrEqual"},
    **{f"Logical{kind}": kind for kind in ("Not", "And", "Or", "Xor")},
    **{kind: kind for kind in ("Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Abs", "Sign", "Floor", "Erf")},
    **{kind: kind for kind in ("Sin", "Cos", "Mish", "Add", "Equal", "Greater", "Less")},
}


#: Operators that take the Add behind them as their bias.
BIASED = {
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    "MatMul": _matrix_product,
}

OPERATORS: dict[str, Translate] = {
    **{kind: partial(_plainly, name) for kind, name in _PLAIN.items()},
    **{
        f"Reduce{kind}": partial(_reduce, f"Reduce{kind}") for kind in ("Mean", "Sum", "Max", "Min", "Prod", "L1", "L2")
    },
    "Divide": _divide_or_invert,
    "Gelu": _gelu,
    "Elu": lambda site: site.finish("Elu", [site.value(0)], alpha=site.attributes.number("alpha", 1.0)),
    "PRelu": _prelu,
    "Clamp": _clamp,
    "Swish": _swish,
    "HSigmoid": _hard_sigmoid,
    "HardSigmoid": _hard_sigmoid,
    **dict.fromkeys(
        ("Softmax", "LogSoftmax"),
        lambda site: site.finish(site.kind, [site.value(0)], axis=site.attributes.integer("axis", 1)),
    ),
    "SquaredDifference": _squared_difference,
    "NotEqual": lambda site: site.finish("Not", [site.step("Equal", site.operands())]),
    "MVN": _normalize_variance,
    "BatchNormInference": lambda site: site.finish(
        "BatchNormalization", site.operands(), epsilon=site.attributes.number("epsilon", 1e-5)
    ),
    "NormalizeL2": _normalize_length,
    **BIASED,
    "ScaledDotProductAttention": _attention,
    "MaxPool": partial(_pool, "MaxPool"),
    "AvgPool": partial(_pool, "AveragePool"),
    "Interpolate": _interpolate,
    "DepthToSpace": partial(_space_depth, "DepthToSpace"),
    "SpaceToDepth": partial(_space_depth, "SpaceToDepth"),
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": partial(_with_integers, "Unsqueeze"),
    "Split": _split,
    "VariadicSplit": _split,
    "Slice": _slice,
    "StridedSlice": _strided_slice,
    "Pad": _pad,
    "Gather": _gather,
    "GatherElements": lambda site: site.finish(
        "GatherElements", site.operands(), axis=site.attributes.integer("axis", 0)
    ),
    "ShapeOf": _shape_of_tensor,
    "Convert": lambda site: site.finish("Cast", [site.value(0)], to=site.onnx_type(0)),
    "Broadcast": _broadcast,
    "Tile": partial(_with_integers, "Tile"),
    "Concat": lambda site: site.finish("Concat", site.operands(), axis=site.attributes.integer("axis", 0)),
    "Range": _range,
    "TopK": _top_k,
}


def translator_of(op: "openvino.Node") -> Translate | None:
    """What writes an operator in ONNX by itself; None for one without a counterpart."""
    if _is_normalization(op):
        return _normalization
    return OPERATORS.get(op.get_type_name())


def biased_translator_of(op: "openvino.Node") -> Callable[[Site, Held | None], None] | None:
    """What writes an operator together with the Add behind it; None for one that takes none."""
    if _is_normalization(op):
        return _normalization
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
