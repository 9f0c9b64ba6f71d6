"""What each LiteRT operator is in ONNX: one node, of ONNX itself or of ``functions``.

Sources: LiteRT's schema and reference kernels for what an operator does, ONNX's operator documentation for its nodes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from quantmedic.collectors.from_litert.functions import pack_function, unpack_function
from quantmedic.collectors.from_litert.litert_site import (
    FLOATS,
    Node,
    Site,
    Translate,
    fixed_sides,
    function_node,
    node_with_activation,
    node_without_activation,
    onnx_node,
)
from quantmedic.collectors.from_translation.onnx_writer import BEYOND, Untranslatable, Value, slice_rows

#: Value of the schema's enumeration of mirrorings.
_REFLECT = 0
#: Values of the schema's enumerations of paddings and of layouts of weights.
_SAME, _SHUFFLED = 0, 1
#: Orders of weights: LiteRT's to ONNX's.
_OHWI_TO_OIHW, _OHWI_TO_IOHW, _1HWO_TO_O1HW, _DHWIO_TO_OIDHW = (0, 3, 1, 2), (3, 0, 1, 2), (3, 0, 1, 2), (4, 3, 0, 1, 2)


def _reshape(site: Site) -> Node:
    shape = site.integers(1) if site.has(1) else np.asarray(site.op.options.integers("newShape") or (), np.int64)
    if shape is None:
        return function_node("Reshape", site)
    return Node("Reshape", [site.value(0), site.constant(shape.ravel())])


def _with_sides(kind: str, data: int, sides: int, site: Site) -> Node:
    """Data and int64 sides or counts, which a function casts where they are computed."""
    return Node(kind, [site.value(data), site.integer_operand(sides)], is_function=site.integers(sides) is None)


def _axis_of(site: Site, place: int) -> int:
    """The one axis that a constant operand names."""
    return int(site.constant_integers(place).item())


def _squeeze(site: Site) -> Node:
    axes = list(site.op.options.integers("squeezeDims") or ())
    axes = axes or [axis for axis, side in enumerate(site.shape(0)) if side == 1]
    return Node("Squeeze", [site.value(0), site.constant(axes)])


def _pack_or_unpack(name_of: Callable[[int], str], parts: Sequence[int], site: Site) -> Node:
    """Tensors side by side on a new axis, or one taken apart along one, by the function for so many parts."""
    axis = site.op.options.integer("axis")
    if not parts:
        raise Untranslatable
    return function_node(name_of(len(parts)), site, axis=axis, axes=[axis])


def _split_v(site: Site) -> Node:
    axis, sizes = _axis_of(site, 2), site.constant_integers(1).ravel().copy()
    if (sizes < 0).any():
        whole = site.shape(0)[axis]
        if whole is None:
            raise Untranslatable
        sizes[sizes < 0] = whole - sizes[sizes >= 0].sum()
    return Node("Split", [site.value(0), site.constant(sizes)], {"axis": axis})


def _slice(site: Site) -> Node:
    begin, size = site.integers(1), site.integers(2)
    if begin is None or size is None:
        return function_node("SliceOfSize", site)
    ends = np.where(size < 0, BEYOND, begin + size)
    return Node("Slice", [site.value(0), site.constant(begin.ravel()), site.constant(ends.ravel())])


def _strided_slice(site: Site) -> Node:
    """Masks are bits by axis; an axis that is shrunk is dropped with the one entry that was taken of it."""
    ends = [site.constant_integers(place).ravel().tolist() for place in (1, 2, 3)]
    if any(site.op.options.integer(name) for name in ("ellipsisMask", "newAxisMask")) or site.flag("offset"):
        raise Untranslatable
    bits = [site.op.options.integer(name) for name in ("beginMask", "endMask", "shrinkAxisMask")]
    masks = [tuple(bool(own & 1 << axis) for own in bits) for axis in range(len(ends[0]))]
    parts = [site.constant(values) for values in slice_rows(zip(*ends, strict=True), masks)]
    squeezed = [axis for axis, (_, _, single) in enumerate(masks) if single]
    if not squeezed:
        return Node("Slice", [site.value(0), *parts])
    return Node("Slice", [site.value(0), *parts], {"squeezed": squeezed}, is_function=True)


def _reverse(site: Site) -> Node:
    axes = site.constant_integers(1).ravel()
    last, before_first = np.full(axes.size, -1), np.full(axes.size, -BEYOND)
    ends = [site.constant(values) for values in (last, before_first, axes, last)]
    return Node("Slice", [site.value(0), *ends])


def _reverse_sequence(site: Site) -> Node:
    batch, time = (site.op.options.integer(name) for name in ("batchDim", "seqDim"))
    if sorted((batch, time)) != [0, 1]:
        raise Untranslatable
    return Node(
        "ReverseSequence", [site.value(0), site.integer_operand(1)], {"batch_axis": batch, "time_axis": time}, True
    )


def _pad(site: Site) -> Node:
    value = [site.value(2)] if site.has(2) else []
    paddings = site.integers(1)
    if paddings is None:
        return Node("Pad", [site.value(0), site.value(1), *value], is_function=True)
    return Node("Pad", [site.value(0), site.constant(paddings.T.ravel()), *value])


def _mirror_pad(site: Site) -> Node:
    if site.op.options.integer("mode") != _REFLECT:
        raise Untranslatable
    return Node("Pad", [site.value(0), site.constant(site.constant_integers(1).T.ravel())], {"mode": "reflect"})


def _space_to_batch(site: Site) -> Node:
    block, pads = site.constant_integers(1).ravel(), site.constant_integers(2)
    _, height, width, channels = (*site.shape(0), None)[:4]
    if len(site.shape(0)) != 4 or block.size != 2:
        raise Untranslatable
    sides = np.asarray(fixed_sides((height, width))) + pads.sum(axis=1)
    (rows, columns), (high, wide) = sides // block, block
    (depth,) = fixed_sides((channels,))
    around = [0, *pads[:, 0], 0, 0, *pads[:, 1], 0]
    parted, joined = [-1, rows, high, columns, wide, depth], [-1, rows, columns, depth]
    names = [site.constant(values) for values in (around, parted, joined)]
    return Node("SpaceToBatch", [site.value(0), *names], is_function=True)


def _batch_to_space(site: Site) -> Node:
    block, crops = site.constant_integers(1).ravel(), site.constant_integers(2)
    if len(site.shape(0)) != 4 or block.size != 2:
        raise Untranslatable
    high, wide = block
    rows, columns, depth = fixed_sides(site.shape(0)[1:])
    parted, joined = [high, wide, -1, rows, columns, depth], [-1, rows * high, columns * wide, depth]
    ends = [rows * high - crops[0, 1], columns * wide - crops[1, 1]]
    names = [site.constant(np.asarray(values)) for values in (parted, joined, crops[:, 0], ends)]
    return Node("BatchToSpace", [site.value(0), *names], is_function=True)


def _gather(site: Site) -> Node:
    if site.op.options.integer("batchDims"):
        raise Untranslatable
    return onnx_node("Gather", site, axis=site.op.options.integer("axis"))


@dataclass(frozen=True)
class _Window:
    """Sides, strides and dilations of a window, one for each axis that it slides along."""

    sides: list[int]
    strides: list[int]
    dilations: list[int]

    def attributes(self, site: Site) -> dict[str, Value]:
        """Strides and padding: SAME leaves ceil(size / stride) places, the odd row of zeros behind."""
        found: dict[str, Value] = {"strides": self.strides}
        if site.op.options.integer("padding") != _SAME:
            return found | {"pads": [0] * (2 * len(self.sides))}
        sizes = site.shape(0)[1:-1]
        if len(sizes) != len(self.sides):
            raise Untranslatable
        totals = [self._padding(axis, size) for axis, size in enumerate(sizes)]
        if any(total is None for total in totals):
            if any(dilation > 1 for dilation in self.dilations):
                raise Untranslatable
            return found | {"auto_pad": "SAME_UPPER"}
        pads = fixed_sides(totals)
        return found | {"pads": [p // 2 for p in pads] + [p - p // 2 for p in pads]}

    def _padding(self, axis: int, size: int | None) -> int | None:
        stride, reach = self.strides[axis], (self.sides[axis] - 1) * self.dilations[axis] + 1
        if size is None:
            return reach - 1 if stride == 1 else None
        return max((-(-size // stride) - 1) * stride + reach - size, 0)


def _window_of(site: Site, sides: Sequence[int | None], axes: str = "HW") -> _Window:
    strides = [site.op.options.integer(f"stride{axis}", 1) for axis in axes]
    dilations = [site.op.options.integer(f"dilation{axis}Factor", 1) for axis in axes]
    if min([*strides, *dilations]) < 1:
        raise Untranslatable
    return _Window(fixed_sides(sides), strides, dilations)


def _operands(site: Site, order: Sequence[int] | None) -> list[str]:
    """Data, weights in this order, and the bias where there is one."""
    if site.kind(0) not in FLOATS or site.kind(1) not in FLOATS:
        raise Untranslatable
    return [site.value(0), site.value(1, order), *([site.bias(2)] if site.has(2) else [])]


def _conv(site: Site) -> Node:
    _, height, width, depth = site.shape(1)
    channels = site.shape(0)[-1]
    if not depth or channels is None or channels % depth:
        raise Untranslatable
    window = _window_of(site, (height, width))
    return _conv_with_channels_last(site, window, _OHWI_TO_OIHW, channels // depth)


def _depthwise_conv(site: Site) -> Node:
    _, height, width, outputs = site.shape(1)
    channels = site.shape(0)[-1]
    if not channels or outputs is None or outputs % channels:
        raise Untranslatable
    return _conv_with_channels_last(site, _window_of(site, (height, width)), _1HWO_TO_O1HW, channels)


def _conv_with_channels_last(site: Site, window: _Window, order: Sequence[int], group: int) -> Node:
    attributes = {**window.attributes(site), "dilations": window.dilations, "group": group, **site.activation_bounds()}
    return Node("Conv", _operands(site, order), attributes, is_function=True)


def _conv_3d(site: Site) -> Node:
    depth, height, width, inputs, _ = site.shape(1)
    if inputs is None or site.shape(0)[-1] != inputs:
        raise Untranslatable
    window = _window_of(site, (depth, height, width), "DHW")
    node = _conv_with_channels_last(site, window, _DHWIO_TO_OIDHW, 1)
    return replace(node, attributes={**node.attributes, "first": [0, 4, 1, 2, 3], "last": [0, 2, 3, 4, 1]})


def _transpose_conv(site: Site) -> Node:
    """The padding is that of the convolution that makes the input's size of the output's."""
    _, height, width, _ = site.shape(1)
    sides = fixed_sides((height, width))
    inputs, outputs = (fixed_sides(shape[1:3]) for shape in (site.shape(2), site.result(0)))
    strides = [site.op.options.integer(f"stride{axis}", 1) for axis in "HW"]
    begins, ends, more = [], [], []
    for size, target, side, stride in zip(inputs, outputs, sides, strides, strict=True):
        same = site.op.options.integer("padding") == _SAME
        total = max((size - 1) * stride + side - target, 0) if same else 0
        begins.append(total // 2)
        behind = (size - 1) * stride + side - total // 2 - target
        ends.append(max(behind, 0))
        more.append(max(-behind, 0))
    if any(extra >= stride for extra, stride in zip(more, strides, strict=True)) or site.kind(2) not in FLOATS:
        raise Untranslatable
    operands = [site.value(2), site.value(1, _OHWI_TO_IOHW), *([site.bias(3)] if site.has(3) else [])]
    attributes: dict[str, Value] = {
        "strides": strides,
        "pads": begins + ends,
        "output_padding": more,
        **site.activation_bounds(2),
    }
    return Node("ConvTranspose", operands, attributes, is_function=True)


def _fully_connected(site: Site) -> Node:
    if site.op.options.integer("weightsFormat") == _SHUFFLED:
        raise Untranslatable
    rank, inputs, bounds = len(site.shape(0)), site.shape(1)[-1], site.activation_bounds()
    kept = rank - 2 if site.flag("keepNumDims") else 0
    if kept < 0 or len(site.shape(1)) != 2:
        raise Untranslatable
    operands = _operands(site, None)
    if rank == 2 and not bounds and inputs is not None and site.shape(0)[-1] == inputs:
        return Node("Gemm", operands, {"transB": 1})
    attributes: dict[str, Value] = {"transB": 1, **({"kept": [kept]} if kept else {}), **bounds}
    return Node("Gemm", operands, attributes, is_function=True)


def _batch_matmul(site: Site) -> Node:
    """Constants are stored transposed, computed operands are transposed when they are read."""
    if site.kind(0) not in FLOATS or site.kind(1) not in FLOATS:
        raise Untranslatable
    names, orders = [], []
    for place, option in enumerate(("adjX", "adjY")):
        plain = list(range(len(site.shape(place))))
        turned = [*plain[:-2], plain[-1], plain[-2]] if site.flag(option) else plain
        try:
            names.append(site.value(place, turned))
            orders.append(plain)
        except Untranslatable:
            names.append(site.value(place))
            orders.append(turned)
    if all(order == sorted(order) for order in orders):
        return Node("MatMul", names)
    return Node("MatMul", names, {"perm_a": orders[0], "perm_b": orders[1]}, is_function=True)


def _pool_2d(kind: str, site: Site) -> Node:
    sides = [site.op.options.integer(name) for name in ("filterHeight", "filterWidth")]
    attributes = {**_window_of(site, sides).attributes(site), "kernel_shape": sides, **site.activation_bounds()}
    return Node(kind, [site.value(0)], attributes, is_function=True)


def _resize(mode: str, site: Site) -> Node:
    """LiteRT rounds the nearest place half up where it aligns corners or centres, else down."""
    aligned, centred = (site.flag(name) for name in ("alignCorners", "halfPixelCenters"))
    attributes = {
        "mode": mode,
        "coordinate_transformation_mode": "align_corners" if aligned else "half_pixel" if centred else "asymmetric",
        "nearest_mode": "round_prefer_ceil" if aligned or centred else "floor",
    }
    return Node("Resize", [site.value(0), site.integer_operand(1)], attributes, is_function=True)


def _local_response(site: Site) -> Node:
    """ONNX divides alpha by the number of neighbours, LiteRT does not."""
    size = 2 * site.op.options.integer("radius") + 1
    alpha, beta, bias = (site.op.options.number(name, 0.0) for name in ("alpha", "beta", "bias"))
    return function_node("LRN", site, size=size, alpha=alpha * size, beta=beta, bias=bias)


def _clip_between(low: float, high: float, site: Site) -> Node:
    if site.kind(0) not in FLOATS:
        raise Untranslatable
    return Node("Clip", [site.value(0), *(site.constant(end, np.float32) for end in (low, high))])


def _softmax_with_beta(site: Site) -> Node:
    beta = site.op.options.number("beta", 1.0)
    return onnx_node("Softmax", site, axis=-1) if beta == 1.0 else function_node("Softmax", site, beta=beta)


def _fake_quant(site: Site) -> Node:
    """The range is moved so that 0.0 lies on the grid, as TensorFlow does it."""
    low, high = (site.op.options.number(name, 0.0) for name in ("min", "max"))
    first, bits = int(site.flag("narrowRange")), site.op.options.integer("numBits", 8)
    if not low < high or not 2 <= bits <= 16:
        raise Untranslatable
    last = 2**bits - 1
    step = (high - low) / (last - first)
    zero = min(max(round(first - low / step), first), last)
    return function_node("FakeQuant", site, low=(first - zero) * step, high=(last - zero) * step, step=step)


def _reduce_over_axes(kind: str, site: Site, *, is_function: bool = False) -> Node:
    axes = site.constant(site.constant_integers(1).ravel())
    keepdims = int(site.flag("keepDims"))
    return Node(kind, [site.value(0), axes], {"keepdims": keepdims}, is_function)


def _arg(kind: str, site: Site) -> Node:
    return Node(kind, [site.value(0)], {"axis": _axis_of(site, 1), "to": site.onnx_kind(0)}, is_function=True)


def _cumsum(site: Site) -> Node:
    flags = {name: int(site.flag(name)) for name in ("exclusive", "reverse")}
    return Node("CumSum", [site.value(0), site.constant(site.constant_integers(1).reshape(()))], flags)


def _floor_div(site: Site) -> Node:
    if site.kind(0) not in FLOATS:
        raise Untranslatable
    return function_node("FloorDiv", site)


def _plainly(**kinds: str) -> dict[str, Translate]:
    return {kind: partial(onnx_node, name) for kind, name in kinds.items()}


#: Translations by the schema's names. QUANTIZE and DEQUANTIZE are not among them: they are grids, not operators.
OPERATORS: dict[str, Translate] = {
    **_plainly(RELU="Relu", TANH="Tanh", LOGISTIC="Sigmoid", HARD_SWISH="HardSwish", ELU="Elu"),
    **_plainly(EXP="Exp", LOG="Log", SQRT="Sqrt", SIN="Sin", COS="Cos", ABS="Abs", NEG="Neg", SIGN="Sign"),
    **_plainly(FLOOR="Floor", CEIL="Ceil", ROUND="Round", POW="Pow", MAXIMUM="Max", MINIMUM="Min", ADD_N="Sum"),
    **_plainly(EQUAL="Equal", GREATER="Greater", LESS="Less", LESS_EQUAL="LessOrEqual"),
    **_plainly(GREATER_EQUAL="GreaterOrEqual", LOGICAL_AND="And", LOGICAL_OR="Or", LOGICAL_NOT="Not"),
    **_plainly(SELECT="Where", SELECT_V2="Where", RANGE="Range"),
    **{name.upper(): partial(node_with_activation, name) for name in ("Add", "Sub", "Mul", "Div")},
    "RELU6": partial(_clip_between, 0.0, 6.0),
    "RELU_N1_TO_1": partial(_clip_between, -1.0, 1.0),
    "RELU_0_TO_1": partial(_clip_between, 0.0, 1.0),
    "LEAKY_RELU": lambda site: onnx_node("LeakyRelu", site, alpha=site.op.options.number("alpha", 0.0)),
    "PRELU": partial(function_node, "PRelu"),
    "GELU": lambda site: onnx_node("Gelu", site, approximate="tanh" if site.flag("approximate") else "none"),
    "SOFTMAX": _softmax_with_beta,
    "LOG_SOFTMAX": lambda site: onnx_node("LogSoftmax", site, axis=-1),
    "L2_NORMALIZATION": lambda site: node_without_activation("LpNormalization", site, axis=-1, p=2),
    "LOCAL_RESPONSE_NORMALIZATION": _local_response,
    "FAKE_QUANT": _fake_quant,
    "RSQRT": partial(function_node, "Rsqrt"),
    "SQUARE": lambda site: Node("Mul", [site.value(0)] * 2),
    "SQUARED_DIFFERENCE": partial(function_node, "SquaredDifference"),
    "NOT_EQUAL": partial(function_node, "NotEqual"),
    "FLOOR_DIV": _floor_div,
    "FLOOR_MOD": lambda site: function_node("FloorMod", site) if site.kind(0) in FLOATS else onnx_node("Mod", site),
    "ZEROS_LIKE": partial(function_node, "ZerosLike"),
    "CONV_2D": _conv,
    "DEPTHWISE_CONV_2D": _depthwise_conv,
    "CONV_3D": _conv_3d,
    "TRANSPOSE_CONV": _transpose_conv,
    "FULLY_CONNECTED": _fully_connected,
    "BATCH_MATMUL": _batch_matmul,
    "AVERAGE_POOL_2D": partial(_pool_2d, "AveragePool"),
    "MAX_POOL_2D": partial(_pool_2d, "MaxPool"),
    "L2_POOL_2D": partial(_pool_2d, "L2Pool"),
    "RESIZE_BILINEAR": partial(_resize, "linear"),
    "RESIZE_NEAREST_NEIGHBOR": partial(_resize, "nearest"),
    "MEAN": partial(_reduce_over_axes, "ReduceMean"),
    "SUM": partial(_reduce_over_axes, "ReduceSum"),
    "REDUCE_MAX": partial(_reduce_over_axes, "ReduceMax"),
    "REDUCE_MIN": partial(_reduce_over_axes, "ReduceMin"),
    "REDUCE_PROD": partial(_reduce_over_axes, "ReduceProd"),
    "REDUCE_ANY": partial(_reduce_over_axes, "ReduceAny", is_function=True),
    "REDUCE_ALL": partial(_reduce_over_axes, "ReduceAll", is_function=True),
    "ARG_MAX": partial(_arg, "ArgMax"),
    "ARG_MIN": partial(_arg, "ArgMin"),
    "CUMSUM": _cumsum,
    "RESHAPE": _reshape,
    "SQUEEZE": _squeeze,
    "EXPAND_DIMS": lambda site: Node("Unsqueeze", [site.value(0), site.constant(site.constant_integers(1).ravel())]),
    "TRANSPOSE": lambda site: Node("Transpose", [site.value(0)], {"perm": site.constant_integers(1).ravel().tolist()}),
    "CONCATENATION": lambda site: node_without_activation("Concat", site, axis=site.op.options.integer("axis")),
    "PACK": lambda site: _pack_or_unpack(pack_function, site.op.inputs, site),
    "UNPACK": lambda site: _pack_or_unpack(unpack_function, site.op.outputs, site),
    "SPLIT": lambda site: Node(
        "Split", [site.value(1)], {"axis": _axis_of(site, 0), "num_outputs": len(site.op.outputs)}
    ),
    "SPLIT_V": _split_v,
    "SLICE": _slice,
    "STRIDED_SLICE": _strided_slice,
    "REVERSE_V2": _reverse,
    "REVERSE_SEQUENCE": _reverse_sequence,
    "PAD": _pad,
    "PADV2": _pad,
    "MIRROR_PAD": _mirror_pad,
    "DEPTH_TO_SPACE": lambda site: function_node("DepthToSpace", site, blocksize=site.op.options.integer("blockSize")),
    "SPACE_TO_DEPTH": lambda site: function_node("SpaceToDepth", site, blocksize=site.op.options.integer("blockSize")),
    "SPACE_TO_BATCH_ND": _space_to_batch,
    "BATCH_TO_SPACE_ND": _batch_to_space,
    "TILE": partial(_with_sides, "Tile", 0, 1),
    "BROADCAST_TO": partial(_with_sides, "Expand", 0, 1),
    "FILL": partial(_with_sides, "Expand", 1, 0),
    "SHAPE": lambda site: function_node("Shape", site, to=site.onnx_kind(0)),
    "RANK": partial(function_node, "Rank"),
    "CAST": lambda site: onnx_node("Cast", site, to=site.onnx_kind(0)),
    "GATHER": _gather,
    "GATHER_ND": lambda site: Node("GatherND", [site.value(0), site.integer_operand(1)], {"batch_dims": 0}, True),
    "SCATTER_ND": lambda site: Node(
        "ScatterND", [site.integer_operand(0), site.value(1), site.integer_operand(2)], is_function=True
    ),
    "EMBEDDING_LOOKUP": lambda site: Node("Gather", [site.value(1), site.value(0)], {"axis": 0}),
    "ONE_HOT": lambda site: function_node("OneHot", site, axis=site.op.options.integer("axis", -1)),
    "TOPK_V2": partial(function_node, "TopK"),
    "WHERE": partial(function_node, "NonZero"),
}
