"""Factors that OpenVINO folded into the weights of the float model, taken out of them again in its translation.

What the translation computes stays the same. The tensor between a layer and its factor is none of OpenVINO's: its
values are those of its neighbour, which OpenVINO has, times the factor or divided by it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from quantmedic.collectors.from_onnx.onnx_graph import unique_name
from quantmedic.collectors.from_openvino.folded_factors import Factor, channel_places
from quantmedic.collectors.from_openvino.openvino_site import Place

Float32 = NDArray[np.float32]


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
    for factor in factors:
        name, neighbour, values = _take_out(model.graph, factor)
        if neighbour in places:
            places[name], rescaled[name] = places[neighbour], values
    _drop_unread(model.graph)
    return model, places, rescaled


def _take_out(graph: onnx.GraphProto, factor: Factor) -> tuple[str, str, Rescaled]:
    """Divide weights by a factor and write it as an operator; the new tensor, its neighbour, and what relates them."""
    place, node = next((k, each) for k, each in enumerate(graph.node) if factor.layer in each.output)
    taken = {name for each in graph.node for name in (*each.input, *each.output)}
    taken |= {each.name for each in graph.initializer}
    name = unique_name(factor.name, taken)
    shape = _divide_weights(graph, node, factor, taken)
    gain = factor.gain.reshape(shape) if factor.gain.size > 1 else factor.gain.reshape(())
    shift = np.zeros_like(gain) if factor.shift is None else factor.shift.reshape(shape)
    if factor.side == "before":
        neighbour, node.output[0] = node.output[0], name
        graph.node.insert(place + 1, _factor_node(graph, name, neighbour, factor, gain, taken))
        values = Rescaled((1 / gain).astype(np.float32), (-shift / gain).astype(np.float32))
    else:
        neighbour, node.input[0] = node.input[0], name
        graph.node.insert(place, _factor_node(graph, neighbour, name, factor, gain, taken))
        values = Rescaled(gain, shift)
    types = {each.name: each for each in (*graph.value_info, *graph.input, *graph.output)}
    if neighbour in types:
        made = graph.value_info.add()
        made.CopyFrom(types[neighbour])
        made.name = name
    return name, neighbour, values


def _drop_unread(graph: onnx.GraphProto) -> None:
    """Drop constants that were divided."""
    read = {name for node in graph.node for name in node.input} | {each.name for each in graph.output}
    kept = [each for each in graph.initializer if each.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _factor_node(
    graph: onnx.GraphProto, source: str, target: str, factor: Factor, gain: Float32, taken: set[str]
) -> onnx.NodeProto:
    """The factor, or the batch norm, as a node."""

    def store(values: Float32, what: str) -> str:
        name = unique_name(f"{target}:{what}", taken)
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values, np.float32), name))
        return name

    if factor.shift is None:
        return helper.make_node("Mul", [source, store(gain, "factor")], [target], target)
    count = factor.shift.size
    parts: Mapping[str, Float32] = {
        "factor": np.broadcast_to(factor.gain, (count,)),
        "shift": factor.shift,
        "mean": np.zeros(count, np.float32),
        "variance": np.ones(count, np.float32),
    }
    inputs = [source, *(store(values, what) for what, values in parts.items())]
    return helper.make_node("BatchNormalization", inputs, [target], target, epsilon=0.0)


def _divide_weights(graph: onnx.GraphProto, node: onnx.NodeProto, factor: Factor, taken: set[str]) -> tuple[int, ...]:
    """Divide the weights of a layer by a factor, and its bias; returns the shape in which channels are multiplied."""
    held = {each.name: each for each in graph.initializer}
    groups = next((each.i for each in node.attribute if each.name == "group"), 1)
    weights = numpy_helper.to_array(held[node.input[1]])
    places = channel_places(node.op_type, weights.shape, factor.side, groups)
    gain = np.broadcast_to(factor.gain, (int(places.max()) + 1,)) if factor.gain.size == 1 else factor.gain
    changed = {1: weights / gain[places]}
    if factor.side == "before" and len(node.input) > 2 and node.input[2]:
        shift = 0 if factor.shift is None else factor.shift
        changed[2] = (numpy_helper.to_array(held[node.input[2]]).ravel() - shift) / gain
    for place, values in changed.items():
        name = unique_name(node.input[place], taken)
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values, np.float32), name))
        node.input[place] = name
    return (-1, *[1] * (weights.ndim - 2)) if node.op_type == "Conv" else (-1,)
