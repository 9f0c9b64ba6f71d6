"""Factors per channel that move through a float ONNX model: what writes a tensor is divided, what reads it multiplied.

The function of the network stays the same: between the two stand only operators for which f(x / s) = f(x) / s.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from quantmedic.trials.from_onnx.draft import Array, Draft

Floats = NDArray[np.float64]
LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
#: Operators of one input that commute with a positive factor per channel.
_HOMOGENEOUS = frozenset(
    {"Relu", "LeakyRelu", "PRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Identity"}
)
_BINARY = frozenset({"Add", "Sub", "Mul", "Div"})
#: Normalizations along the last axis, whose gain and bias take up any factor.
_NORMALIZATIONS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})


class Slot(NamedTuple):
    """A constant input of a node: a vector per channel, or the weights of a layer.

    Attributes:
        node: The node.
        place: Number of the input.
        trailing: Axes behind that of the channels, of a vector.
    """

    node: onnx.NodeProto
    place: int
    trailing: int = 0


@dataclass
class Group:
    """Tensors whose channels can be divided by factors that nothing else sees.

    Attributes:
        size: Channels.
        tensors: The tensors.
        writers: Weights of the layers that write them: divided by output channel.
        readers: Weights of the layers that read them: multiplied by input channel.
        vectors: Biases, gains and added constants: divided.
        clips: Clips between them, whose bounds are divided.
    """

    size: int
    tensors: dict[str, int] = field(default_factory=dict)
    writers: list[Slot] = field(default_factory=list)
    readers: list[Slot] = field(default_factory=list)
    vectors: list[Slot] = field(default_factory=list)
    clips: list[Slot] = field(default_factory=list)


class _StuckError(Exception):
    """A factor cannot pass."""


class WeightView(NamedTuple):
    """Weights of a layer with their groups apart.

    Attributes:
        shape: Shape in which output and input channels have axes of their own.
        outputs: Axes of the output channels.
        inputs: Axes of the input channels.
    """

    shape: tuple[int, ...]
    outputs: tuple[int, ...]
    inputs: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of output and input channels."""
        return (
            int(np.prod([self.shape[i] for i in self.outputs])),
            int(np.prod([self.shape[i] for i in self.inputs])),
        )

    def spread(self, factors: Floats, axes: tuple[int, ...]) -> Floats:
        """Factors per channel in a shape that broadcasts to ``shape``."""
        return factors.reshape([size if i in axes else 1 for i, size in enumerate(self.shape)])

    def largest(self, weights: Array, axes: tuple[int, ...]) -> Floats:
        """Largest magnitude of each channel."""
        others = tuple(i for i in range(len(self.shape)) if i not in axes)
        found: Floats = np.abs(weights.reshape(self.shape)).max(axis=others, initial=0.0).astype(np.float64).ravel()
        return found


def view_of(node: onnx.NodeProto, shape: Sequence[int]) -> WeightView:
    """How the weights of a layer lie."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    groups, (first, second, *taps) = int(attributes.get("group", 1)), shape
    match node.op_type:
        case "Conv":
            return WeightView((groups, first // groups, second, *taps), (0, 1), (0, 2))
        case "ConvTranspose":
            return WeightView((groups, first // groups, second, *taps), (0, 2), (0, 1))
        case "Gemm" if attributes.get("transB", 0):
            return WeightView((first, second), (0,), (1,))
    return WeightView((first, second), (1,), (0,))


def weights_of(draft: Draft, node: onnx.NodeProto) -> Array | None:
    """Constant float weights of a layer that reads its data first; None without."""
    if node.op_type not in LAYERS or len(node.input) < 2:
        return None
    values = draft.value_of(node.input[1])
    return values if values is not None and values.dtype.kind == "f" and values.ndim >= 2 else None


class Layout(NamedTuple):
    """Channels of a layer with constant weights.

    Attributes:
        outputs: Output channels.
        inputs: Input channels.
        trailing: Axes of its tensors behind that of the channels.
    """

    outputs: int
    inputs: int
    trailing: int


def layout_of(draft: Draft, node: onnx.NodeProto) -> Layout | None:
    """Channels of a layer; None where its weights are not constant, or not two-dimensional in a product."""
    weights = weights_of(draft, node)
    is_product = node.op_type in ("Gemm", "MatMul")
    if weights is None or (is_product and weights.ndim != 2):
        return None
    return Layout(*view_of(node, weights.shape).sizes, 0 if is_product else weights.ndim - 2)


def find_group(draft: Draft, tensor: str, size: int, trailing: int) -> Group | None:
    """The tensors that have to be divided along with this one; None where a factor would be seen.

    Args:
        draft: The float model.
        tensor: Where to begin.
        size: Its channels.
        trailing: Axes behind that of the channels.
    """
    try:
        return _Walk(draft, size).run(tensor, trailing)
    except _StuckError:
        return None


def groups_between_layers(draft: Draft) -> list[Group]:
    """Every group of tensors that layers write and layers read, once."""
    found: dict[frozenset[str], Group] = {}
    for node in draft.nodes:
        layout = layout_of(draft, node) if node.op_type in LAYERS else None
        group = find_group(draft, node.output[0], layout.outputs, layout.trailing) if layout is not None else None
        if group is not None and group.readers:
            found.setdefault(frozenset(group.tensors), group)
    return list(found.values())


class _Walk:
    """Follows a factor from tensor to tensor, up to what writes it and down to what reads it."""

    def __init__(self, draft: Draft, size: int) -> None:
        self._draft, self._group = draft, Group(size)
        self._exposed = {name for output in draft.outputs for name in (output, draft.source(output))}
        self._pending: list[tuple[str, bool, bool]] = []

    def run(self, tensor: str, trailing: int) -> Group:
        self._visit(tensor, trailing)
        while self._pending:
            name, above, flat = self._pending.pop()
            if not above:
                self._write(self._draft.writers.get(name), name)
            for node in self._draft.readers_of(name):
                self._scale_reader(node, name, flat)
        return self._group

    def _visit(self, name: str, trailing: int, *, above: bool = False, flat: bool = False) -> None:
        """A tensor has the factor; ``above``: through what writes it; ``flat``: several values for each channel."""
        name = self._draft.source(name)
        if name in self._exposed:
            raise _StuckError
        if name not in self._group.tensors:
            self._group.tensors[name] = trailing
            self._pending.append((name, above, flat))

    def _write(self, node: onnx.NodeProto | None, name: str) -> None:
        trailing = self._group.tensors[name]
        if node is None or node.output[0] != name:
            raise _StuckError
        kind = node.op_type
        if kind in LAYERS:
            self._write_layer(node, trailing)
        elif kind == "BatchNormalization" or (kind in _NORMALIZATIONS and trailing == 0):
            self._add_vectors(node, (1, 2))
        elif kind in _HOMOGENEOUS or kind == "Clip":
            self._visit(node.input[0], trailing)
        elif kind in _BINARY:
            self._write_binary(node, trailing)
        else:
            raise _StuckError

    def _write_layer(self, node: onnx.NodeProto, trailing: int) -> None:
        layout = layout_of(self._draft, node)
        if layout is None or layout.outputs != self._group.size or layout.trailing != trailing:
            raise _StuckError
        self._group.writers.append(Slot(node, 1))
        self._add_vectors(node, (2,))

    def _add_vectors(self, node: onnx.NodeProto, places: Sequence[int]) -> None:
        for place in places:
            if len(node.input) > place and node.input[place]:
                self._add_vector(Slot(node, place))

    def _add_vector(self, slot: Slot) -> None:
        values = self._draft.value_of(slot.node.input[slot.place])
        if values is None or values.dtype.kind != "f":
            raise _StuckError
        axis = values.ndim - 1 - slot.trailing
        if axis >= 0 and values.shape[axis] not in (1, self._group.size):
            raise _StuckError
        self._group.vectors.append(slot)

    def _write_binary(self, node: onnx.NodeProto, trailing: int) -> None:
        constant = self._constant_place(node)
        if node.op_type == "Mul" and constant is not None:
            self._add_vector(Slot(node, constant, trailing))
        elif node.op_type in ("Add", "Sub") and constant is not None:
            self._add_vector(Slot(node, constant, trailing))
            self._visit(node.input[1 - constant], trailing)
        elif node.op_type == "Div" and constant == 1:
            self._visit(node.input[0], trailing)
        else:
            raise _StuckError

    def _constant_place(self, node: onnx.NodeProto) -> int | None:
        return next((k for k, name in enumerate(node.input) if self._draft.value_of(name) is not None), None)

    def _scale_reader(self, node: onnx.NodeProto, name: str, flat: bool) -> None:
        kind, trailing = node.op_type, self._group.tensors[name]
        place = next((k for k, each in enumerate(node.input) if self._draft.source(each) == name), None)
        if place is None:  # read by a subgraph
            raise _StuckError
        if kind in _BINARY and not flat:
            self._read_binary(node, place, trailing)
        elif place != 0:
            raise _StuckError
        elif kind in LAYERS:
            self._read_layer(node, trailing, flat)
        elif kind in _HOMOGENEOUS:
            self._visit(node.output[0], trailing, above=True, flat=flat)
        elif kind == "Clip" and not flat:
            self._read_clip(node, trailing)
        elif trailing and self._flattens(node):
            self._visit(node.output[0], 0, above=True, flat=True)
        elif trailing and kind == "ReduceMean":
            self._visit(node.output[0], self._axes_left(node, trailing), above=True)
        else:
            raise _StuckError

    def _read_clip(self, node: onnx.NodeProto, trailing: int) -> None:
        # Before opset 11 the bounds are attributes.
        if len(node.input) < 2 or any(name and self._draft.value_of(name) is None for name in node.input[1:]):
            raise _StuckError
        self._group.clips.append(Slot(node, 1, trailing))
        self._visit(node.output[0], trailing, above=True)

    def _read_layer(self, node: onnx.NodeProto, trailing: int, flat: bool) -> None:
        layout = layout_of(self._draft, node)
        is_turned = any(a.name == "transA" and a.i for a in node.attribute)
        if layout is None or is_turned or layout.trailing != trailing:
            raise _StuckError
        if layout.inputs != self._group.size and not (flat and layout.inputs % self._group.size == 0):
            raise _StuckError
        self._group.readers.append(Slot(node, 1))

    def _read_binary(self, node: onnx.NodeProto, place: int, trailing: int) -> None:
        constant = self._constant_place(node)
        if node.op_type in ("Add", "Sub"):
            if constant is None:
                raise _StuckError
            if node.output[0] not in self._group.tensors:
                self._add_vector(Slot(node, constant, trailing))
        elif node.op_type == "Div" and place == 1:
            raise _StuckError
        elif node.op_type == "Mul" and node.output[0] in self._group.tensors:
            raise _StuckError  # The other operand has the factor already.
        self._visit(node.output[0], trailing, above=True)

    def _flattens(self, node: onnx.NodeProto) -> bool:
        """All axes from that of the channels on become one."""
        if node.op_type == "Flatten":
            return all(a.i == 1 for a in node.attribute if a.name == "axis")
        shape = self._draft.value_of(node.input[1]) if node.op_type == "Reshape" else None
        return shape is not None and shape.size == 2 and int(shape[0]) in (0, -1)

    def _axes_left(self, node: onnx.NodeProto, trailing: int) -> int:
        """Axes behind the channels after a mean over all of them."""
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        axes = attributes.get("axes")
        if axes is None and len(node.input) > 1:
            axes = self._draft.value_of(node.input[1])
        if axes is None or {int(axis) % (trailing + 2) for axis in axes} != set(range(2, trailing + 2)):
            raise _StuckError
        return trailing if attributes.get("keepdims", 1) else 0


class Scales:
    """New values of the constants of a draft, as factors are put on them."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._values: dict[tuple[int, int], tuple[Slot, Floats]] = {}
        self._clips: dict[int, tuple[Slot, Floats]] = {}

    def largest_written(self, group: Group) -> Floats:
        """Largest weight of each channel, over the layers that write the group."""
        return np.max([self._largest(slot, 0, group.size) for slot in group.writers], axis=0)

    def largest_read(self, group: Group) -> Floats:
        """Largest weight of each channel, over the layers that read the group."""
        return np.max([self._largest(slot, 1, group.size) for slot in group.readers], axis=0)

    def divide(self, group: Group, factors: Floats) -> None:
        """Divide the channels of a group's tensors, float64[size], and multiply the weights that read them."""
        for slot in group.writers:
            self._scale_weights(slot, 0, 1.0 / factors)
        for slot in group.readers:
            self._scale_weights(slot, 1, factors)
        for slot in group.vectors:
            values = self._value(slot)
            self._keep(slot, values / factors.reshape([-1] + [1] * slot.trailing))
        for slot in group.clips:
            known = self._clips.get(id(slot.node))
            self._clips[id(slot.node)] = (slot, factors if known is None else known[1] * factors)

    def store(self) -> None:
        """Put the new values into the draft."""
        for slot, values in self._values.values():
            self._draft.change_constant(slot.node, slot.place, values)
        for slot, factors in self._clips.values():
            self._spread_clip(slot, factors)
        self._draft.index()

    def _spread_clip(self, slot: Slot, factors: Floats) -> None:
        """A Clip with bounds of its own for every channel: a Relu or Max, and a Min."""
        node, draft = slot.node, self._draft
        bounds = [draft.value_of(name) if name else None for name in (*node.input[1:], "")[:2]]
        target, source = node.output[0], node.input[0]
        steps = [(kind, value) for kind, value in zip(("Max", "Min"), bounds, strict=True) if value is not None]
        made = []
        for number, (kind, value) in enumerate(steps):
            written = target if number == len(steps) - 1 else draft.fresh(f"{target}_{kind}")
            vector = (float(value) / factors).reshape([-1] + [1] * slot.trailing).astype(value.dtype)
            name = draft.fresh(f"{node.name}_{kind}")
            if kind == "Max" and not vector.any():
                made.append(helper.make_node("Relu", [source], [written], name=name))
            else:
                bound = draft.add_constant(f"{target}_{kind}_bound", vector)
                made.append(helper.make_node(kind, [source, bound], [written], name=name))
            source = written
        draft.nodes.remove(node)
        draft.nodes += made

    def _value(self, slot: Slot) -> Floats:
        known = self._values.get((id(slot.node), slot.place))
        if known is not None:
            return known[1]
        values = self._draft.value_of(slot.node.input[slot.place])
        assert values is not None
        return values.astype(np.float64)

    def _keep(self, slot: Slot, values: Floats) -> None:
        self._values[id(slot.node), slot.place] = (slot, values)

    def _largest(self, slot: Slot, side: int, size: int) -> Floats:
        weights = self._value(slot)
        view = view_of(slot.node, weights.shape)
        return view.largest(weights, (view.outputs, view.inputs)[side]).reshape(size, -1).max(axis=1)

    def _scale_weights(self, slot: Slot, side: int, factors: Floats) -> None:
        weights = self._value(slot)
        view = view_of(slot.node, weights.shape)
        spread = np.repeat(factors, view.sizes[side] // factors.size)
        scaled = weights.reshape(view.shape) * view.spread(spread, (view.outputs, view.inputs)[side])
        self._keep(slot, scaled.reshape(weights.shape))
