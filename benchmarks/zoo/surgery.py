"""Cuts at float ONNX graphs, most of which keep the function: a channel larger here, its readers' weights smaller."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import dedent
from typing import Any, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, shape_inference

Array = NDArray[np.float32]
Found = TypeVar("Found")

#: Operators through which a positive factor of a channel passes unchanged.
_HOMOGENEOUS = frozenset({"Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "ReduceMean", "Identity"})
_WHOLE = frozenset({TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL})


def _read_lines(text: str) -> list[tuple[str, Any]]:
    """Results and calls of lines such as ``scaled = Mul(x, gain)``."""
    return [(line.targets[0].id, line.value) for line in ast.parse(dedent(text)).body]  # type: ignore[attr-defined]


class Inapplicable(Exception):
    """The network has no place for this cut."""


def require(found: Found, why: str) -> Found:
    """What was found.

    Raises:
        Inapplicable: It is nothing.
    """
    if not found:
        raise Inapplicable(why)
    return found


def shaped(values: NDArray, rank: int, axis: int) -> NDArray:
    """A vector along one axis; numbers as they are."""
    shape = [1] * rank
    shape[axis] = -1
    return values.reshape(shape) if values.size > 1 else values.reshape(())


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """An attribute of an operator."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def with_attributes(node: onnx.NodeProto, *dropped: str, **attributes: object) -> None:
    """An operator with other attributes; ``dropped`` ones are left to their defaults."""
    others = [a for a in node.attribute if a.name not in {*dropped, *attributes}]
    del node.attribute[:]
    node.attribute.extend([*others, *(helper.make_attribute(name, value) for name, value in attributes.items())])


@dataclass(eq=False)
class Linear:
    """An operator with constant weights: ``out`` and ``into`` are the axes of its output and input channels."""

    node: onnx.NodeProto
    weight: str
    bias: str | None
    out: int
    into: int
    depthwise: bool


class Surgeon:
    """A model with its constants at hand; works on a copy.

    Attributes:
        marks: Tensors where the fault sits, in the order in which they were made.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.graph = self.model.graph
        self._shapes: dict[str, list[int | None]] | None = None
        self._whole: frozenset[str] = frozenset()
        self.marks: list[str] = []

    # --- looking -----------------------------------------------------------------------------------------------------

    def constant(self, name: str) -> NDArray | None:
        for tensor in self.graph.initializer:
            if tensor.name == name:
                return numpy_helper.to_array(tensor)
        return None

    def put(self, name: str, value: NDArray | float | Sequence[int]) -> str:
        """Set or add a constant; real numbers are kept as float32."""
        array = np.asarray(value, order="C")
        tensor = numpy_helper.from_array(array.astype(np.float32) if array.dtype == np.float64 else array, name)
        for old in self.graph.initializer:
            if old.name == name:
                old.CopyFrom(tensor)
                return name
        self.graph.initializer.append(tensor)
        return name

    def drop(self, name: str) -> None:
        """Remove a constant that nobody reads any more."""
        if not self.consumers(name):
            for tensor in [tensor for tensor in self.graph.initializer if tensor.name == name]:
                self.graph.initializer.remove(tensor)

    def producer(self, tensor: str) -> onnx.NodeProto | None:
        return next((node for node in self.graph.node if tensor in node.output), None)

    def consumers(self, tensor: str) -> list[onnx.NodeProto]:
        return [node for node in self.graph.node if tensor in node.input]

    def shape(self, tensor: str) -> list[int | None]:
        if self._shapes is None:
            inferred = shape_inference.infer_shapes(self.model).graph
            values = [*inferred.value_info, *inferred.input, *inferred.output]
            self._shapes = {
                v.name: [d.dim_value if d.HasField("dim_value") else None for d in v.type.tensor_type.shape.dim]
                for v in values
            }
            kinds = {v.name: v.type.tensor_type.elem_type for v in values}
            self._whole = frozenset(name for name, kind in kinds.items() if kind in _WHOLE)
        return self._shapes.get(tensor, [])

    def is_whole(self, tensor: str) -> bool:
        """Whether it holds shapes, indexes or tokens."""
        self.shape(tensor)
        return tensor in self._whole

    def nodes(self, *kinds: str) -> list[onnx.NodeProto]:
        return [node for node in self.graph.node if node.op_type in kinds]

    def linear(self, node: onnx.NodeProto) -> Linear | None:
        """The weights of a Conv, Gemm or MatMul; None for anything else."""
        if node.op_type not in ("Conv", "Gemm", "MatMul") or len(node.input) < 2:
            return None
        weight = self.constant(node.input[1])
        if weight is None:
            return None
        bias = node.input[2] if len(node.input) > 2 else None
        if node.op_type == "Conv":
            group = attribute(node, "group", 1)
            return Linear(node, node.input[1], bias, 0, 0 if group > 1 else 1, group > 1)
        turned = node.op_type == "Gemm" and attribute(node, "transB", 0)
        return Linear(node, node.input[1], bias, 0 if turned else 1, 1 if turned else 0, False)

    def linears(self) -> list[Linear]:
        return [found for node in self.graph.node if (found := self.linear(node))]

    def inputs(self, linear: Linear) -> int:
        """How many input channels the weights have."""
        return int(self.constant(linear.weight).shape[linear.into])

    def outputs(self, linear: Linear) -> int:
        return int(self.constant(linear.weight).shape[linear.out])

    @property
    def output(self) -> str:
        return self.graph.output[0].name

    @property
    def input(self) -> str:
        return self.graph.input[0].name

    # --- cutting -----------------------------------------------------------------------------------------------------

    def add(
        self, op: str, inputs: Sequence[str], output: str, after: onnx.NodeProto | None = None, **attributes
    ) -> str:
        place = self.place_of(after) + 1 if after is not None else len(self.graph.node)
        return self._add_at(place, op, inputs, output, attributes)

    def _add_at(self, place: int, op: str, inputs: Sequence[str], output: str, attributes: dict[str, Any]) -> str:
        taken = {node.name for node in self.graph.node}
        name = next(n for n in (output, *(f"{output}_{i}" for i in range(9))) if n not in taken)
        self.graph.node.insert(place, helper.make_node(op, list(inputs), [output], name=name, **attributes))
        self._shapes = None
        return output

    def wire(self, after: str, text: str, marks: str = "", *, name: str, **given: Any) -> dict[str, str]:
        """Add operators behind the one that makes a tensor, one after the other.

        Args:
            after: The tensor.
            text: A line for each operator, such as ``scaled = Mul(x, gain, axis=1)``.
            marks: Which of their results are places of the fault.
            name: How the names of all results and constants begin; nothing for names as they are.
            given: What lines may read besides each other: the name of a tensor, or a constant to put into the model. An
                underscore at the end is not part of the name.

        Returns:
            Tensors by the names that they have in ``text``.
        """
        prefix = f"{name}_" if name else ""
        names = {k: v if isinstance(v, str) else self.put(f"{prefix}{k.rstrip('_')}", v) for k, v in given.items()}
        before = self.producer(after)
        place = self.place_of(before) + 1 if before is not None else 0
        for i, (result, call) in enumerate(_read_lines(text)):
            inputs = [names[each.id] for each in call.args]
            attributes = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
            names[result] = self._add_at(place + i, call.func.id, inputs, f"{prefix}{result}", attributes)
        self.marks += [names[mark] for mark in marks.split()]
        return names

    def splice(
        self, tensor: str, text: str, marks: str = "", *, name: str | None = None, **given: Any
    ) -> dict[str, str]:
        """``wire`` behind a tensor, ``x``, whose readers then read what the last operator makes."""
        name = tensor if name is None else name
        self.reroute(tensor, "_".join(filter(None, (name, _read_lines(text)[-1][0]))))
        return self.wire(tensor, text, marks, name=name, x=tensor, **given)

    def _unused(self, name: str) -> str:
        taken = {output for node in self.graph.node for output in node.output}
        return next(n for n in (name, *(f"{name}_{i}" for i in range(9))) if n not in taken)

    def reroute(self, old: str, new: str) -> None:
        """Let the readers of one tensor read another."""
        for node in self.graph.node:
            for i, name in enumerate(node.input):
                if node.output and name == old:
                    node.input[i] = new
        self._shapes = None

    def insert_after(self, tensor: str, op: str, extra: Sequence[str] = (), name: str = "", **attributes) -> str:
        """Put an operator behind a tensor; all its readers, the graph's output included, see the result.

        A graph output keeps its name: the tensor before it gets a new one.
        """
        producer = self.producer(tensor)
        new = name or f"{tensor}_{op.lower()}"
        if tensor in [value.name for value in self.graph.output]:
            inner = self._unused(f"{tensor}_inner")
            producer.output[list(producer.output).index(tensor)] = inner
            self.reroute(tensor, inner)
            return self.add(op, [inner, *extra], tensor, producer, **attributes)
        self.reroute(tensor, new)
        if producer is None:
            node = helper.make_node(op, [tensor, *extra], [new], name=new, **attributes)
            self.graph.node.insert(0, node)
            return new
        return self.add(op, [tensor, *extra], new, producer, **attributes)

    def place_of(self, node: onnx.NodeProto) -> int:
        return list(self.graph.node).index(node)

    def copy_of(self, node: onnx.NodeProto, name: str, output: str, place: int) -> onnx.NodeProto:
        """The same operator once more, at another place."""
        self.graph.node.insert(place, node)
        copy = self.graph.node[place]
        copy.name, copy.output[0] = name, output
        return copy

    def axes_of_mean(self, name: str, axes: list[int]) -> tuple[str, dict[str, list[int]]]:
        """How ``wire`` tells a ReduceMean its axes, and what that reads: an attribute until opset 18, then an input."""
        opset = next(entry.version for entry in self.model.opset_import if entry.domain in ("", "ai.onnx"))
        return (f", axes={axes}", {}) if opset < 18 else (f", {name}", {name: axes})

    def writer(self, tensor: str) -> onnx.NodeProto:
        """The operator of a quantized model that makes codes of a tensor.

        Raises:
            Inapplicable: It is not quantized.
        """
        found = [node for node in self.consumers(tensor) if node.op_type == "QuantizeLinear"]
        return require(found, f"{tensor} is not quantized")[0]

    def read_back(self, tensor: str) -> str:
        """What readers see of a quantized tensor."""
        return str(self.consumers(self.writer(tensor).output[0])[0].output[0])

    def scale_weights(self, linear: Linear, axis: int, factor: Array, *, bias: bool) -> None:
        weight = self.constant(linear.weight)
        self.put(self.own(linear, 1), (weight * shaped(factor, weight.ndim, axis)).astype(np.float32))
        linear.weight = linear.node.input[1]
        if bias and linear.bias:
            self.put(self.own(linear, 2), (self.constant(linear.bias) * factor).astype(np.float32))

    def own(self, linear: Linear, place: int) -> str:
        """Name of a constant that this node alone reads: shared ones are copied first."""
        name = linear.node.input[place]
        if len(self.consumers(name)) > 1:
            copy = f"{linear.node.name}_{place}_own"
            self.put(copy, self.constant(name))
            linear.node.input[place] = name = copy
        return name

    def channel_axis(self, tensor: str) -> int:
        rank = len(self.shape(tensor))
        if rank not in (2, 3, 4):
            raise Inapplicable(f"{tensor} has rank {rank}")
        return 1 if rank == 4 else rank - 1

    def channels(self, tensor: str) -> int:
        size = self.shape(tensor)[self.channel_axis(tensor)] if self.shape(tensor) else None
        if not size:
            raise Inapplicable(f"channels of {tensor} are unknown")
        return size

    def amplify(self, tensor: str, factor: Array) -> None:
        """Make each channel of a tensor ``factor`` times as large, and its readers' weights smaller by as much.

        Raises:
            Inapplicable: A reader is not linear, so that the function would change.
        """
        self._divide_in_readers(tensor, factor.astype(np.float32))
        self.multiply_at_source(tensor, factor.astype(np.float32))

    def _divide_in_readers(self, tensor: str, factor: Array) -> None:
        if tensor in [value.name for value in self.graph.output]:
            raise Inapplicable(f"{tensor} is an output")
        for node in self.consumers(tensor):
            linear = self.linear(node)
            if linear and node.input[0] == tensor:
                self._check_size(linear, factor)
                self.scale_weights(linear, linear.into, 1 / factor, bias=False)
            elif node.op_type in _HOMOGENEOUS or (node.op_type == "Flatten" and self._one_pixel(tensor)):
                self._divide_in_readers(node.output[0], factor)
            elif node.op_type == "Concat":
                self._divide_in_readers(node.output[0], self._joined(node, tensor, factor))
            else:
                raise Inapplicable(f"{node.op_type} reads {tensor}")

    def _check_size(self, linear: Linear, factor: Array) -> None:
        if self.constant(linear.weight).shape[linear.into] != len(factor):
            raise Inapplicable(f"channels of {linear.node.name} do not match")

    def _one_pixel(self, tensor: str) -> bool:
        return all(size == 1 for size in self.shape(tensor)[2:])

    def _joined(self, node: onnx.NodeProto, tensor: str, factor: Array) -> Array:
        if list(node.input).count(tensor) != 1:
            raise Inapplicable("an operand occurs twice")
        parts = [factor if name == tensor else np.ones(self.channels(name)) for name in node.input]
        return np.concatenate(parts).astype(np.float32)

    def multiply_at_source(self, tensor: str, factor: Array) -> None:
        """Multiply the channels of a tensor, in the weights that make it where there are any."""
        node = self.producer(tensor)
        linear = self.linear(node) if node is not None else None
        if linear:
            self.scale_weights(linear, linear.out, factor, bias=True)
        elif node is not None and node.op_type == "LayerNormalization":
            for name in node.input[1:]:
                self.put(name, (self.constant(name) * factor).astype(np.float32))
        elif node is not None and node.op_type == "Relu" and len(self.consumers(node.input[0])) == 1:
            self.multiply_at_source(node.input[0], factor)
        elif node is not None and node.op_type == "Add" and self._constant_operand(node):
            constant, other = self._constant_operand(node)
            self.put(constant, (self.constant(constant) * factor).astype(np.float32))
            self.multiply_at_source(other, factor)
        else:
            self.insert_scale(tensor, factor)

    def _constant_operand(self, node: onnx.NodeProto) -> tuple[str, str] | None:
        for constant, other in (node.input, reversed(node.input)):
            value = self.constant(constant)
            if value is not None and value.ndim == 1 and len(self.consumers(other)) == 1:
                return constant, other
        return None

    def insert_scale(self, tensor: str, factor: Array) -> str:
        """A Mul by a constant per channel."""
        rank, axis = len(self.shape(tensor)), self.channel_axis(tensor)
        shape = [1] * rank
        shape[axis] = -1
        name = self.put(f"{tensor}_factor", factor.reshape(shape))
        return self.insert_after(tensor, "Mul", [name], f"{tensor}_scaled")

    def amplifiable(self) -> list[str]:
        """Tensors whose channels can be made larger without changing the function, in order."""
        found = []
        for node in self.graph.node:
            tensor = node.output[0]
            try:
                Surgeon(self.model).amplify(tensor, np.full(self.channels(tensor), 2.0, np.float32))
            except Inapplicable:
                continue
            found.append(tensor)
        return found
