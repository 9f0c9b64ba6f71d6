"""An ONNX model as a graph: protobuf on one side, plain values on the other."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import numpy as np
import onnx
from numpy.typing import NDArray

from quantmedic.collectors.from_onnx.onnx_file import external_files
from quantmedic.collectors.pair.graph import Attribute, Attributes, Graph, Node, Operator, TensorSpec
from quantmedic.collectors.pair.tensor_pairs import PairedGraphs

#: Domains of ONNX's own operators.
DEFAULT_DOMAINS = ("", "ai.onnx")
_DIGEST_BYTES = 16
#: Types of attributes that hold graphs; of older files some have no type.
_WITH_GRAPHS = (onnx.AttributeProto.UNDEFINED, onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


@dataclass
class OnnxGraph(Graph):
    """The graph of an ONNX model, with the model that it was read from."""

    model: onnx.ModelProto = field(kw_only=True)
    float_codes: dict[str, int] = field(default_factory=dict, kw_only=True)
    """Tensors and constants that hold small floats as codes, with the number of their type."""
    input_gains: dict[str, NDArray[np.float32]] = field(default_factory=dict, kw_only=True)
    """By the name of stored weights, per input channel: what they were joined with and the file keeps elsewhere."""

    @property
    def opset(self) -> int:
        """Opset of the default domain."""
        return opset_of(self.model)

    @property
    def files(self) -> list[Path]:
        """The files that it consists of."""
        return [self.path, *external_files(self.path)]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(_list_names(self.model.graph))

    def can_store(self, name: str) -> bool:
        """Other values can be kept in the constant of this name; of an empty name: in a new constant."""
        return name not in self.input_gains

    def decode_output(self, name: str, array: NDArray[np.generic]) -> NDArray[np.float32]:
        """Real values of an output."""
        return np.asarray(array, np.float32)

    def append(self, node: onnx.NodeProto, op_type: str, inputs: list[str]) -> None:
        """Add an operator of this type at the end; ``inputs`` are roots and constants."""
        outputs = [name for name in node.output if name]
        name, attributes = node.name or node.output[0], attributes_of(node)
        self.operators.append(Operator(0, name, op_type, inputs, outputs, attributes, node_of(node)))


def _list_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Names of nodes and tensors, those of subgraphs included."""
    waiting = [graph]
    while waiting:
        own = waiting.pop()
        yield from (value.name for value in (*own.input, *own.initializer))
        yield from (sparse.values.name for sparse in own.sparse_initializer)
        for node in own.node:
            yield from (node.name, *node.input, *node.output)
            waiting += subgraphs_of(node)


def subgraphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Graphs that a node holds, such as the branches of an If."""
    for attribute in node.attribute:
        yield from _graphs_in(attribute)


def _graphs_in(attribute: onnx.AttributeProto) -> tuple[onnx.GraphProto, ...]:
    if attribute.type not in _WITH_GRAPHS:
        return ()
    return (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs)


class PairedOnnxGraphs(PairedGraphs, Protocol):
    """Two matched graphs, both with the ONNX models that they were read from."""

    @property
    def float_graph(self) -> OnnxGraph:
        """The float model."""

    @property
    def quantized(self) -> OnnxGraph:
        """The quantized model."""


def opset_of(model: onnx.ModelProto) -> int:
    """Opset of the default domain; 0 where the model states none."""
    return max((entry.version for entry in model.opset_import if entry.domain in DEFAULT_DOMAINS), default=0)


def node_of(node: onnx.NodeProto) -> Node:
    """Names and type of a node."""
    return Node(node.op_type, list(node.input), list(node.output), node.name, node.domain)


def attributes_of(node: onnx.NodeProto) -> Attributes:
    """Attributes of a node by name; not the graphs that it holds, which quantizers may change inside."""
    values = (attribute for attribute in node.attribute if not _graphs_in(attribute))
    return Attributes({attribute.name: _value_of(attribute) for attribute in values})


def _value_of(attribute: onnx.AttributeProto) -> Attribute:
    kinds = onnx.AttributeProto
    match attribute.type:
        case kinds.INT:
            return attribute.i
        case kinds.FLOAT:
            return attribute.f
        case kinds.STRING:
            return attribute.s.decode(errors="replace")
        case kinds.INTS:
            return tuple(attribute.ints)
        case kinds.FLOATS:
            return tuple(attribute.floats)
        case kinds.STRINGS:
            return tuple(text.decode(errors="replace") for text in attribute.strings)
    content = attribute.SerializeToString(deterministic=True)
    return blake2b(content, digest_size=_DIGEST_BYTES).digest()


def spec_of(value: onnx.ValueInfoProto) -> TensorSpec:
    """Name, shape and type that a model states of a tensor; shape and type of a sequence or a map are not known."""
    tensor = value.type.tensor_type
    shape = tuple(side.dim_value if side.dim_value > 0 else None for side in tensor.shape.dim)
    return TensorSpec(value.name, shape if tensor.HasField("shape") else None, _dtype_of(tensor.elem_type))


def _dtype_of(kind: int) -> np.dtype[np.generic] | None:
    """numpy's type of a number of ONNX's; None where it is not known."""
    known = kind != onnx.TensorProto.UNDEFINED and kind in onnx.TensorProto.DataType.values()
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind)) if known else None


def unique_name(base: str, taken: set[str]) -> str:
    """A name that nothing has yet, the base itself where it is free; it is taken then."""
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    taken.add(name)
    return name
