"""Translations of LiteRT operators that slide a window, multiply or resize: convolutions, pools, products."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quantmedic.collectors.from_litert.site import (
    FLOATS,
    Node,
    Site,
    Untranslatable,
    Value,
    activation_bounds,
    fixed_sides,
    flag,
    function_node,
    integer_operand,
    node_without_activation,
)

#: Values of the schema's enumerations of paddings and of layouts of weights.
_SAME, _SHUFFLED = 0, 1
#: Orders of weights: LiteRT's to ONNX's.
_OHWI_TO_OIHW, _OHWI_TO_IOHW, _1HWO_TO_O1HW, _DHWIO_TO_OIDHW = (0, 3, 1, 2), (3, 0, 1, 2), (3, 0, 1, 2), (4, 3, 0, 1, 2)


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


def _window(site: Site, sides: Sequence[int | None], axes: str = "HW") -> _Window:
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


def conv(site: Site) -> Node:
    _, height, width, depth = site.shape(1)
    channels = site.shape(0)[-1]
    if not depth or channels is None or channels % depth:
        raise Untranslatable
    window = _window(site, (height, width))
    return _convolution(site, window, _OHWI_TO_OIHW, channels // depth)


def depthwise_conv(site: Site) -> Node:
    _, height, width, outputs = site.shape(1)
    channels = site.shape(0)[-1]
    if not channels or outputs is None or outputs % channels:
        raise Untranslatable
    return _convolution(site, _window(site, (height, width)), _1HWO_TO_O1HW, channels)


def _convolution(site: Site, window: _Window, order: Sequence[int], group: int) -> Node:
    attributes = {**window.attributes(site), "dilations": window.dilations, "group": group, **activation_bounds(site)}
    return Node("Conv", _operands(site, order), attributes, is_function=True)


def conv_3d(site: Site) -> Node:
    depth, height, width, inputs, _ = site.shape(1)
    if inputs is None or site.shape(0)[-1] != inputs:
        raise Untranslatable
    window = _window(site, (depth, height, width), "DHW")
    node = _convolution(site, window, _DHWIO_TO_OIDHW, 1)
    return replace(node, attributes={**node.attributes, "first": [0, 4, 1, 2, 3], "last": [0, 2, 3, 4, 1]})


def transpose_conv(site: Site) -> Node:
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
        **activation_bounds(site, 2),
    }
    return Node("ConvTranspose", operands, attributes, is_function=True)


def fully_connected(site: Site) -> Node:
    if site.op.options.integer("weightsFormat") == _SHUFFLED:
        raise Untranslatable
    rank, inputs, bounds = len(site.shape(0)), site.shape(1)[-1], activation_bounds(site)
    kept = rank - 2 if flag(site, "keepNumDims") else 0
    if kept < 0 or len(site.shape(1)) != 2:
        raise Untranslatable
    operands = _operands(site, None)
    if rank == 2 and not bounds and inputs is not None and site.shape(0)[-1] == inputs:
        return Node("Gemm", operands, {"transB": 1})
    attributes: dict[str, Value] = {"transB": 1, **({"kept": [kept]} if kept else {}), **bounds}
    return Node("Gemm", operands, attributes, is_function=True)


def batch_matmul(site: Site) -> Node:
    """Constants are stored transposed, computed operands are transposed when they are read."""
    if site.kind(0) not in FLOATS or site.kind(1) not in FLOATS:
        raise Untranslatable
    names, orders = [], []
    for place, option in enumerate(("adjX", "adjY")):
        plain = list(range(len(site.shape(place))))
        turned = [*plain[:-2], plain[-1], plain[-2]] if flag(site, option) else plain
        try:
            names.append(site.value(place, turned))
            orders.append(plain)
        except Untranslatable:
            names.append(site.value(place))
            orders.append(turned)
    if all(order == sorted(order) for order in orders):
        return Node("MatMul", names)
    return Node("MatMul", names, {"perm_a": orders[0], "perm_b": orders[1]}, is_function=True)


def pool(kind: str, site: Site) -> Node:
    sides = [site.op.options.integer(name) for name in ("filterHeight", "filterWidth")]
    attributes = {**_window(site, sides).attributes(site), "kernel_shape": sides, **activation_bounds(site)}
    return Node(kind, [site.value(0)], attributes, is_function=True)


def resize(mode: str, site: Site) -> Node:
    """LiteRT rounds the nearest place half up where it aligns corners or centres, else down."""
    aligned, centred = (flag(site, name) for name in ("alignCorners", "halfPixelCenters"))
    attributes = {
        "mode": mode,
        "coordinate_transformation_mode": "align_corners" if aligned else "half_pixel" if centred else "asymmetric",
        "nearest_mode": "round_prefer_ceil" if aligned or centred else "floor",
    }
    return Node("Resize", [site.value(0), integer_operand(site, 1)], attributes, is_function=True)


def l2_normalization(site: Site) -> Node:
    return node_without_activation("LpNormalization", site, axis=-1, p=2)


def local_response(site: Site) -> Node:
    """ONNX divides alpha by the number of neighbours, LiteRT does not."""
    size = 2 * site.op.options.integer("radius") + 1
    alpha, beta, bias = (site.op.options.number(name, 0.0) for name in ("alpha", "beta", "bias"))
    return function_node("LRN", site, size=size, alpha=alpha * size, beta=beta, bias=bias)
