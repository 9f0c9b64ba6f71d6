"""What each LiteRT operator is in ONNX: one node, of ONNX itself or of ``functions``.

Sources: LiteRT's schema and reference kernels for what an operator does, ONNX's operator documentation for its nodes.
"""

from functools import partial

import numpy as np

from quantmedic.collectors.from_litert import shapes, windows
from quantmedic.collectors.from_litert.site import (
    FLOATS,
    Node,
    Site,
    Translate,
    Untranslatable,
    constant_integers,
    flag,
    function_node,
    node_with_activation,
    onnx_node,
)


def _clip_between(low: float, high: float, site: Site) -> Node:
    if site.kind(0) not in FLOATS:
        raise Untranslatable
    return Node("Clip", [site.value(0), *(site.constant(end, np.float32) for end in (low, high))])


def _softmax(site: Site) -> Node:
    beta = site.op.options.number("beta", 1.0)
    return onnx_node("Softmax", site, axis=-1) if beta == 1.0 else function_node("Softmax", site, beta=beta)


def _gelu(site: Site) -> Node:
    return onnx_node("Gelu", site, approximate="tanh" if flag(site, "approximate") else "none")


def _fake_quant(site: Site) -> Node:
    """The range is moved so that 0.0 lies on the grid, as TensorFlow does it."""
    low, high = (site.op.options.number(name, 0.0) for name in ("min", "max"))
    first, bits = int(flag(site, "narrowRange")), site.op.options.integer("numBits", 8)
    if not low < high or not 2 <= bits <= 16:
        raise Untranslatable
    last = 2**bits - 1
    step = (high - low) / (last - first)
    zero = min(max(round(first - low / step), first), last)
    return function_node("FakeQuant", site, low=(first - zero) * step, high=(last - zero) * step, step=step)


def _reduce(kind: str, site: Site, *, is_function: bool = False) -> Node:
    axes = site.constant(constant_integers(site, 1).ravel())
    keepdims = int(flag(site, "keepDims"))
    return Node(kind, [site.value(0), axes], {"keepdims": keepdims}, is_function)


def _arg(kind: str, site: Site) -> Node:
    axis = int(constant_integers(site, 1).item())
    return Node(kind, [site.value(0)], {"axis": axis, "to": site.onnx_kind(0)}, is_function=True)


def _cumsum(site: Site) -> Node:
    flags = {name: int(flag(site, name)) for name in ("exclusive", "reverse")}
    return Node("CumSum", [site.value(0), site.constant(constant_integers(site, 1).reshape(()))], flags)


def _cast(site: Site) -> Node:
    return onnx_node("Cast", site, to=site.onnx_kind(0))


def _shape(site: Site) -> Node:
    return function_node("Shape", site, to=site.onnx_kind(0))


def _mod(site: Site) -> Node:
    return function_node("FloorMod", site) if site.kind(0) in FLOATS else onnx_node("Mod", site)


def _floor_div(site: Site) -> Node:
    if site.kind(0) not in FLOATS:
        raise Untranslatable
    return function_node("FloorDiv", site)


def _square(site: Site) -> Node:
    return Node("Mul", [site.value(0)] * 2)


def _leaky_relu(site: Site) -> Node:
    return onnx_node("LeakyRelu", site, alpha=site.op.options.number("alpha", 0.0))


def _log_softmax(site: Site) -> Node:
    return onnx_node("LogSoftmax", site, axis=-1)


def _plainly(**kinds: str) -> dict[str, Translate]:
    return {kind: partial(onnx_node, name) for kind, name in kinds.items()}


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
    "LEAKY_RELU": _leaky_relu,
    "PRELU": partial(function_node, "PRelu"),
    "GELU": _gelu,
    "SOFTMAX": _softmax,
    "LOG_SOFTMAX": _log_softmax,
    "L2_NORMALIZATION": windows.l2_normalization,
    "LOCAL_RESPONSE_NORMALIZATION": windows.local_response,
    "FAKE_QUANT": _fake_quant,
    "RSQRT": partial(function_node, "Rsqrt"),
    "SQUARE": _square,
    "SQUARED_DIFFERENCE": partial(function_node, "SquaredDifference"),
    "NOT_EQUAL": partial(function_node, "NotEqual"),
    "FLOOR_DIV": _floor_div,
    "FLOOR_MOD": _mod,
    "ZEROS_LIKE": partial(function_node, "ZerosLike"),
    "CONV_2D": windows.conv,
    "DEPTHWISE_CONV_2D": windows.depthwise_conv,
    "CONV_3D": windows.conv_3d,
    "TRANSPOSE_CONV": windows.transpose_conv,
    "FULLY_CONNECTED": windows.fully_connected,
    "BATCH_MATMUL": windows.batch_matmul,
    "AVERAGE_POOL_2D": partial(windows.pool, "AveragePool"),
    "MAX_POOL_2D": partial(windows.pool, "MaxPool"),
    "L2_POOL_2D": partial(windows.pool, "L2Pool"),
    "RESIZE_BILINEAR": partial(windows.resize, "linear"),
    "RESIZE_NEAREST_NEIGHBOR": partial(windows.resize, "nearest"),
    "MEAN": partial(_reduce, "ReduceMean"),
    "SUM": partial(_reduce, "ReduceSum"),
    "REDUCE_MAX": partial(_reduce, "ReduceMax"),
    "REDUCE_MIN": partial(_reduce, "ReduceMin"),
    "REDUCE_PROD": partial(_reduce, "ReduceProd"),
    "REDUCE_ANY": partial(_reduce, "ReduceAny", is_function=True),
    "REDUCE_ALL": partial(_reduce, "ReduceAll", is_function=True),
    "ARG_MAX": partial(_arg, "ArgMax"),
    "ARG_MIN": partial(_arg, "ArgMin"),
    "CUMSUM": _cumsum,
    "RESHAPE": shapes.reshape,
    "SQUEEZE": shapes.squeeze,
    "EXPAND_DIMS": shapes.expand_dims,
    "TRANSPOSE": shapes.transpose,
    "CONCATENATION": shapes.concat,
    "PACK": shapes.pack,
    "UNPACK": shapes.unpack,
    "SPLIT": shapes.split,
    "SPLIT_V": shapes.split_v,
    "SLICE": shapes.slice_,
    "STRIDED_SLICE": shapes.strided_slice,
    "REVERSE_V2": shapes.reverse,
    "REVERSE_SEQUENCE": shapes.reverse_sequence,
    "PAD": shapes.pad,
    "PADV2": shapes.pad,
    "MIRROR_PAD": shapes.mirror_pad,
    "DEPTH_TO_SPACE": partial(shapes.blocks, "DepthToSpace"),
    "SPACE_TO_DEPTH": partial(shapes.blocks, "SpaceToDepth"),
    "SPACE_TO_BATCH_ND": shapes.space_to_batch,
    "BATCH_TO_SPACE_ND": shapes.batch_to_space,
    "TILE": partial(shapes.with_sides, "Tile"),
    "BROADCAST_TO": partial(shapes.with_sides, "Expand"),
    "FILL": shapes.fill,
    "SHAPE": _shape,
    "RANK": partial(function_node, "Rank"),
    "CAST": _cast,
    "GATHER": shapes.gather,
    "GATHER_ND": shapes.gather_nd,
    "SCATTER_ND": shapes.scatter_nd,
    "EMBEDDING_LOOKUP": shapes.embedding_lookup,
    "ONE_HOT": shapes.one_hot,
    "TOPK_V2": shapes.top_k,
    "WHERE": partial(function_node, "NonZero"),
}
"""Translations by the schema's names. QUANTIZE and DEQUANTIZE are not among them: they are grids, not operators."""
