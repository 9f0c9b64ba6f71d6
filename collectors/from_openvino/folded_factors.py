"""Factors and batch norms that OpenVINO folded into the weights of the float model alone when it converted both.

In the quantized model a quantizer stands between the operator and the factor, and keeps it from being folded. So the
float model has no twin of it, and its weights before or behind are larger by as much. They are found by structure; the
weights decide which of the two it was, and that the factor is not one that only the quantized model has.

In the translation of the float model they are taken out of the weights again, so that what it computes stays the same.
The tensor between a layer and its factor is none of OpenVINO's: its values are those of its neighbour, which OpenVINO
has, times the factor or divided by it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from quantmedic.collectors.from_onnx.onnx_graph import unique_name
from quantmedic.collectors.from_openvino.dropped_bounds import base_of, kept_operators
from quantmedic.collectors.from_openvino.openvino_site import Place
from quantmedic.collectors.pair.constants import Constant
from quantmedic.collectors.pair.graph import Graph, Operator
from quantmedic.collectors.pair.match import Match

Float32 = NDArray[np.float32]
Floats = NDArray[np.float64]
Side = Literal["before", "behind"]

#: Layers into which factors are folded.
_LAYERS = frozenset({"Conv", "Gemm", "MatMul"})
#: Cosine from which on the weights of a channel tell its factor: codes of 4 bits keep more than that of a float row.
_TELLING = 0.95
#: Share by which a factor may differ from what the weights tell: of so few codes, one channel has rarely more noise.
_APART = 0.25


class Factor(NamedTuple):
    """What was folded into the weights of a layer of the float model.

    Attributes:
        layer: Name of that layer's output.
        side: The layer stands before the factor or behind it.
        name: Name of the quantized model's operator, for the tensor between the two.
        gain: Of each channel, or one for all.
        shift: What a batch norm adds to each channel; None for a factor alone.
    """

    layer: str
    side: Side
    name: str
    gain: Float32
    shift: Float32 | None


class _Gain(NamedTuple):
    """What a factor or batch norm does to each channel, and by how much its gain may be rounded."""

    gain: Float32
    shift: Float32 | None
    step: Floats


def folded_factors(float_graph: Graph, quantized: Graph, matched: Match) -> list[Factor]:
    """Factors of the quantized model that the float model holds in its weights; at most one for each layer."""
    finder = _Finder(float_graph, quantized, matched)
    found: dict[tuple[str, Side], Factor] = {}
    for op in quantized.operators:
        twin = matched.operators.get(op.index)
        is_kept = twin is not None and twin.op_type == op.op_type
        if is_kept or op.op_type not in ("Mul", "BatchNormalization"):
            continue
        candidates = list(finder.candidates(op))
        if candidates:
            _, factor = max(candidates, key=lambda each: each[0])
            found.setdefault((factor.layer, factor.side), factor)
    return list(found.values())


class _Finder:
    """Looks for the factors of a quantized model in the weights of the float model."""

    def __init__(self, float_graph: Graph, quantized: Graph, matched: Match) -> None:
        self._floats, self._quantized, self._matched = float_graph, quantized, matched
        self._kept = kept_operators(quantized, matched)

    def candidates(self, op: Operator) -> Iterator[tuple[int, Factor]]:
        """The layers around a factor that have it in their weights, or at least do not speak against it.

        Each comes with the number of channels whose weights tell a factor.
        """
        quantized = self._quantized
        sources = [name for name in op.inputs if name not in quantized.constants]
        held = _gain_of(op, quantized)
        if len(sources) != 1 or held is None:
            return
        layer = quantized.producers.get(sources[0])
        if layer is not None and len(quantized.consumers.get(sources[0], [])) == 1:
            twin = self._matched.operators.get(layer.index)
            found = self._find_gain(layer, twin, "before", held)
            # What a batch norm adds is in the bias of the layer.
            if found is not None and twin is not None and (held.shift is None or len(twin.inputs) > 2):
                yield found[1], Factor(twin.outputs[0], "before", sources[0], found[0], held.shift)
        readers = quantized.consumers.get(op.outputs[0], [])
        twin = self._matched.operators.get(readers[0].index) if len(readers) == 1 else None
        if twin is None or held.shift is not None or not self._reads(twin, sources[0]):
            return
        found = self._find_gain(readers[0], twin, "behind", held)
        if found is not None:
            yield found[1], Factor(twin.outputs[0], "behind", op.outputs[0], found[0], None)

    def _reads(self, twin: Operator, source: str) -> bool:
        """A layer of the float model reads what the factor reads in the other, so that nothing else stands between."""
        before = self._matched.tensors.get(source)
        return before is not None and self._base(twin.inputs[0]) == self._base(before)

    def _base(self, tensor: str) -> str:
        return base_of(tensor, self._floats, self._kept)

    def _find_gain(self, op: Operator, twin: Operator | None, side: Side, held: _Gain) -> tuple[Float32, int] | None:
        """The gain as the weights of a layer have it, and of how many channels; None where they do not have it."""
        if twin is None or op.op_type not in _LAYERS or min(len(op.inputs), len(twin.inputs)) < 2:
            return None
        constants = self._quantized.constants.get(op.inputs[1]), self._floats.constants.get(twin.inputs[1])
        mine, theirs = (None if each is None else each.values for each in constants)
        if mine is None or theirs is None or mine.shape != theirs.shape or not np.isfinite(theirs).all():
            return None
        places = channel_places(twin.op_type, mine.shape, side, twin.attributes.integer("group", 1))
        count, gain = int(places.max()) + 1, held.gain
        if gain.size not in (1, count) or (gain == 0).any():
            return None
        ratio, known = _ratios(mine, theirs, places, count)
        if gain.size == 1:
            ratio = np.median(ratio[known], keepdims=True) if known.any() else ratio[:1]
            known = np.asarray([known.any()])
        slack = _APART * np.abs(gain) + held.step
        if (np.abs(ratio - gain) > slack)[known].any():
            return None
        # What codes of the gain round is no fault of the float model: its weights tell it better.
        told = np.where(known & (held.step > 0), ratio, gain)
        return np.asarray(told, np.float32), int(known.sum())


def _gain_of(op: Operator, graph: Graph) -> _Gain | None:
    """What a factor or batch norm does; None where that is not known."""
    constants = [graph.constants[name] for name in op.inputs if name in graph.constants]
    values = [each.values for each in constants if each.values is not None]
    if len(values) < len(constants) or not all(np.isfinite(each).all() for each in values):
        return None
    numbers = [np.asarray(each, np.float32).ravel() for each in values]
    if op.op_type == "Mul":
        shape = np.shape(values[0]) if len(values) == 1 else ()
        if len(values) != 1 or sum(side > 1 for side in shape) > 1:
            return None
        return _Gain(numbers[0], None, _half_steps(constants[0], numbers[0].size))
    if len(numbers) != 4:
        return None
    factor, added, mean, variance = numbers
    gain = factor / np.sqrt(variance + np.float32(op.attributes.number("epsilon", 1e-5)))
    return _Gain(gain, added - mean * gain, np.zeros(gain.size))


def _half_steps(constant: Constant, size: int) -> Floats:
    """Half a step of each number that is stored as a code, 0 of others."""
    if constant.quantizer is None:
        return np.zeros(size)
    return np.broadcast_to(np.asarray(constant.quantizer.scale, np.float64).ravel() / 2, (size,))


def _ratios(mine: Float32, theirs: Float32, places: NDArray[np.int64], count: int) -> tuple[Floats, NDArray[np.bool_]]:
    """By how much the weights of each channel are larger in the float model, and which channels tell it."""

    def total(values: Floats) -> Floats:
        return np.asarray(np.bincount(places.ravel(), values.ravel(), count), np.float64)

    a, b = mine.astype(np.float64), theirs.astype(np.float64)
    both, own, other = total(a * b), total(a * a), total(b * b)
    with np.errstate(divide="ignore", invalid="ignore"):
        cosine, ratio = both / np.sqrt(own * other), both / own
    return np.nan_to_num(ratio), np.nan_to_num(np.abs(cosine)) >= _TELLING


def channel_places(kind: str, shape: tuple[int, ...], side: Side, groups: int = 1) -> NDArray[np.int64]:
    """Which channel each weight of a layer belongs to, in the shape of the weights.

    Args:
        kind: Conv, with weights ``[out, in / groups, …]``, or a product of matrices, with ``[…, in, out]``.
        shape: Of the weights.
        side: ``before`` a factor the channels are those that the layer writes, ``behind`` it those that it reads.
        groups: Of a convolution.
    """
    if kind != "Conv":
        axis = len(shape) - (1 if side == "before" else 2)
        return np.broadcast_to(np.arange(shape[axis]).reshape(-1, *[1] * (len(shape) - axis - 1)), shape)
    out, width, *kernel = shape
    if side == "before":
        return np.broadcast_to(np.arange(out).reshape(-1, *[1] * (len(shape) - 1)), shape)
    read = np.arange(groups * width).reshape(groups, 1, width)
    rows = np.broadcast_to(read, (groups, out // groups, width)).reshape(out, width, *[1] * len(kernel))
    return np.broadcast_to(rows, shape)


class Rescaled(NamedTuple):
    """How the values of a tensor follow from those of another that OpenVINO has.

    Attributes:
        gain: Factor of each channel, with as many axes as lie from the channels on.
        shift: What is added to each channel then, of the same shape.
    """

    gain: Float32
    shift: Float32

    def apply(self, values: NDArray[np.generic]) -> Float32:
        """Values of the tensor."""
        return np.asarray(np.asarray(values, np.float32) * self.gain + self.shift, np.float32)


def unfold(
    folded: onnx.ModelProto, known: Mapping[str, Place], factors: Sequence[Factor]
) -> tuple[onnx.ModelProto, dict[str, Place], dict[str, Rescaled]]:
    """The same model with these factors as operators of their own, and values of the new tensors, by their names."""
    model = onnx.ModelProto()
    model.CopyFrom(folded)
    places, rescaled = dict(known), {}
    unfolding = _Unfolding(model.graph)
    for factor in factors:
        name, neighbour, values = unfolding.take_out(factor)
        if neighbour in places:
            places[name], rescaled[name] = places[neighbour], values
    unfolding.drop_unread()
    return model, places, rescaled


class _Unfolding:
    """A graph out of whose weights factors are taken."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._taken = {name for each in graph.node for name in (*each.input, *each.output)}
        self._taken |= {each.name for each in graph.initializer}

    def take_out(self, factor: Factor) -> tuple[str, str, Rescaled]:
        """Divide weights by a factor and write it as an operator; the new tensor, its neighbour, what relates both."""
        graph = self._graph
        place, node = next((k, each) for k, each in enumerate(graph.node) if factor.layer in each.output)
        name = unique_name(factor.name, self._taken)
        shape = self._divide_weights(node, factor)
        gain = factor.gain.reshape(shape) if factor.gain.size > 1 else factor.gain.reshape(())
        shift = np.zeros_like(gain) if factor.shift is None else factor.shift.reshape(shape)
        if factor.side == "before":
            neighbour, node.output[0] = node.output[0], name
            graph.node.insert(place + 1, self._factor_node(name, neighbour, factor, gain))
            values = Rescaled((1 / gain).astype(np.float32), (-shift / gain).astype(np.float32))
        else:
            neighbour, node.input[0] = node.input[0], name
            graph.node.insert(place, self._factor_node(neighbour, name, factor, gain))
            values = Rescaled(gain, shift)
        types = {each.name: each for each in (*graph.value_info, *graph.input, *graph.output)}
        if neighbour in types:
            made = graph.value_info.add()
            made.CopyFrom(types[neighbour])
            made.name = name
        return name, neighbour, values

    def drop_unread(self) -> None:
        """Drop constants that were divided."""
        graph = self._graph
        read = {name for node in graph.node for name in node.input} | {each.name for each in graph.output}
        kept = [each for each in graph.initializer if each.name in read]
        del graph.initializer[:]
        graph.initializer.extend(kept)

    def _store(self, base: str, values: Floats | Float32) -> str:
        """Name of a new constant."""
        name = unique_name(base, self._taken)
        self._graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values, np.float32), name))
        return name

    def _factor_node(self, source: str, target: str, factor: Factor, gain: Float32) -> onnx.NodeProto:
        """The factor, or the batch norm, as a node."""
        if factor.shift is None:
            return helper.make_node("Mul", [source, self._store(f"{target}:factor", gain)], [target], target)
        count = factor.shift.size
        parts: Mapping[str, Float32] = {
            "factor": np.broadcast_to(factor.gain, (count,)),
            "shift": factor.shift,
            "mean": np.zeros(count, np.float32),
            "variance": np.ones(count, np.float32),
        }
        inputs = [source, *(self._store(f"{target}:{what}", values) for what, values in parts.items())]
        return helper.make_node("BatchNormalization", inputs, [target], target, epsilon=0.0)

    def _divide_weights(self, node: onnx.NodeProto, factor: Factor) -> tuple[int, ...]:
        """Divide the weights of a layer by a factor, and its bias; the shape in which channels are multiplied."""
        held = {each.name: each for each in self._graph.initializer}
        groups = next((each.i for each in node.attribute if each.name == "group"), 1)
        weights = numpy_helper.to_array(held[node.input[1]])
        places = channel_places(node.op_type, weights.shape, factor.side, groups)
        gain = np.broadcast_to(factor.gain, (int(places.max()) + 1,)) if factor.gain.size == 1 else factor.gain
        changed = {1: weights / gain[places]}
        if factor.side == "before" and len(node.input) > 2 and node.input[2]:
            shift = 0 if factor.shift is None else factor.shift
            changed[2] = (numpy_helper.to_array(held[node.input[2]]).ravel() - shift) / gain
        for place, values in changed.items():
            node.input[place] = self._store(node.input[place], values)
        return (-1, *[1] * (weights.ndim - 2)) if node.op_type == "Conv" else (-1,)
