"""Parsing an ONNX model: quantizers, identities and constants are folded away, the operators are kept."""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np
import onnx

from quantmedic.collectors.from_onnx.codes import carry_codes
from quantmedic.collectors.from_onnx.constants import SMALL_FLOATS, fold, read_constant, read_constant_node
from quantmedic.collectors.from_onnx.float_codes import (
    add_float_dequantize,
    add_float_quantize,
    float_code_type,
    note_float_codes,
    note_float_constant,
)
from quantmedic.collectors.from_onnx.graph import OnnxGraph, attributes_of, spec_of
from quantmedic.collectors.from_onnx.input_gains import join_input_gains
from quantmedic.collectors.from_onnx.integer import INTEGER_OPS, add_integer, join_dynamic
from quantmedic.collectors.from_onnx.traits import older_than_its_quantizers
from quantmedic.collectors.from_onnx.trt_domain import with_standard_quantizers
from quantmedic.collectors.pair.constants import Constant, type_bits
from quantmedic.collectors.pair.graph import Tap, consumers_of
from quantmedic.collectors.pair.quantizer import Quantizer
from quantmedic.engine.errors import ModelError

_ALIASES = frozenset({"Identity", "Dropout"})
_SUBGRAPH = frozenset({"If", "Loop", "Scan"})
#: Errors that a damaged graph causes: bytes that do not fit, names and inputs that are missing.
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)


_QUANTIZERS = {"QuantizeLinear": add_float_quantize, "DequantizeLinear": add_float_dequantize}


def parse(path: Path, model: onnx.ModelProto) -> OnnxGraph:
    """Fold quantizers, identities and constants away and keep the operators.

    Raises:
        ModelError: The graph is damaged; names the file and what was found.
    """
    model, notices = with_standard_quantizers(model, path)
    graph = OnnxGraph(path, model=model, notices=notices)
    place = "its constants"
    try:
        _add_constants(graph)
        graph.input_specs = [spec_of(value) for value in model.graph.input if value.name not in graph.constants]
        graph.output_specs = [spec_of(value) for value in model.graph.output]
        for node in _topological(model.graph.node, [*graph.inputs, *graph.constants], path):
            place = f"{node.op_type} {node.name or ', '.join(node.output)}"
            _add_node(graph, node)
        join_dynamic(graph)
        join_input_gains(graph)
        note_float_codes(graph)
    except _DAMAGE as error:
        raise ModelError(
            "the model is damaged",
            where=f"{path}: {place}: {error or type(error).__name__}",
            help=older_than_its_quantizers(model)
            or "export or quantize the model again, and check it with: python -m onnx.checker",
        ) from error
    for index, op in enumerate(graph.operators):
        op.index = index
    graph.producers = {name: op for op in graph.operators for name in op.outputs}
    graph.consumers = consumers_of(graph.operators)
    return graph


def _add_constants(graph: OnnxGraph) -> None:
    for tensor in graph.model.graph.initializer:
        graph.constants[tensor.name] = read_constant(tensor)
        if tensor.data_type in SMALL_FLOATS:
            graph.float_codes[tensor.name] = tensor.data_type
    for sparse in graph.model.graph.sparse_initializer:
        graph.constants[sparse.values.name] = Constant(sparse.values.name, None)


def _topological(nodes: Sequence[onnx.NodeProto], known: Iterable[str], path: Path) -> list[onnx.NodeProto]:
    """The nodes with each behind those that it reads, in the order of the file as far as that order is valid."""
    given = {"", *known}
    _refuse_written_twice(nodes, given, path)
    rounds = _reading_rounds(nodes, given)
    ready = given.union(*(nodes[place].output for place in rounds))
    for place, node in enumerate(nodes):
        if place not in rounds:
            raise ModelError(
                "the graph reads a tensor that nothing writes",
                where=f"{path}: {next(name for name in node.input if name not in ready)}",
                help="export the model again; was a part of it cut out?",
            )
    return [nodes[place] for place in sorted(rounds, key=lambda place: (rounds[place], place))]


def _reading_rounds(nodes: Sequence[onnx.NodeProto], given: Collection[str]) -> dict[int, int]:
    """How often the file must be read from its top before all inputs of a node are known, by the node's place.

    A file in a valid order takes one round; one node before its writer takes one more. Nodes in a cycle, or behind a
    tensor that nothing writes, are missing. Every edge is followed once (Kahn 1962).
    """
    readers: dict[str, list[int]] = {}
    waiting = []
    for place, node in enumerate(nodes):
        unknown = {name for name in node.input if name not in given}
        waiting.append(len(unknown))
        for name in unknown:
            readers.setdefault(name, []).append(place)
    rounds = {place: 0 for place, count in enumerate(waiting) if not count}
    least = [0] * len(nodes)
    frontier = list(rounds)
    while frontier:
        writer = frontier.pop()
        for reader in (reader for name in nodes[writer].output for reader in readers.get(name, ())):
            least[reader] = max(least[reader], rounds[writer] + (reader < writer))
            waiting[reader] -= 1
            if not waiting[reader]:
                rounds[reader] = least[reader]
                frontier.append(reader)
    return rounds


def _refuse_written_twice(nodes: Iterable[onnx.NodeProto], known: Iterable[str], path: Path) -> None:
    written = set(known)
    for name in (name for node in nodes for name in node.output if name):
        if name in written:
            raise ModelError(
                "the graph writes a tensor twice", where=f"{path}: {name}", help="export or quantize the model again"
            )
        written.add(name)


def _add_node(graph: OnnxGraph, node: onnx.NodeProto) -> None:
    kind = node.op_type
    if kind == "Constant":
        graph.constants[node.output[0]] = read_constant_node(node)
        note_float_constant(graph, node)
    elif kind in _QUANTIZERS and (small := float_code_type(graph, node)) is not None:
        _QUANTIZERS[kind](graph, node, small)
    elif kind == "QuantizeLinear":
        _add_quantize(graph, node)
    elif kind == "DequantizeLinear":
        _add_dequantize(graph, node)
    elif kind == "DynamicQuantizeLinear":
        _add_dynamic(graph, node)
    elif kind in INTEGER_OPS:
        add_integer(graph, node)
    elif kind in _SUBGRAPH:
        graph.notices.append(f"subgraphs of {kind} {node.name or node.output[0]} are not measured")
        graph.append(node, kind, [graph.root(name) for name in node.input if name])
    elif node.input and all(graph.root(name) in graph.constants for name in node.input if name):
        _add_folded(graph, node)
    elif kind in _ALIASES:
        graph.roots[node.output[0]] = node.input[0]
        if node.input[0] in graph.codes:
            graph.codes[node.output[0]] = graph.codes[node.input[0]]
    else:
        graph.append(node, kind, [graph.root(name) for name in node.input if name])
        carry_codes(graph, node)


def _add_folded(graph: OnnxGraph, node: onnx.NodeProto) -> None:
    inputs = [graph.constants[graph.root(name)] if name else None for name in node.input]
    first, *others = node.output
    graph.constants[first] = fold(node, inputs)
    graph.constants |= {name: Constant(name, None) for name in others if name}
    if node.input[0] in graph.codes:
        graph.codes[first] = graph.constants[first].quantizer


def _add_quantize(graph: OnnxGraph, node: onnx.NodeProto) -> None:
    graph.qdq_nodes += 1
    quantizer = _quantizer_of_node(graph, node, node.output[0])
    source, target = graph.root(node.input[0]), node.output[0]
    graph.codes[target] = quantizer
    if source in graph.constants:
        constant = graph.constants[source]
        values = None if constant.values is None or quantizer is None else quantizer.quantize(constant.values)
        graph.constants[target] = Constant(source, values, quantizer)
        return
    graph.roots[target] = source
    if quantizer is not None:
        graph.quantizers.setdefault(source, []).append(Tap(target, quantizer))


def _add_dequantize(graph: OnnxGraph, node: onnx.NodeProto) -> None:
    graph.qdq_nodes += 1
    source, target = node.input[0], node.output[0]
    constant = graph.constants.get(source)
    quantizer = _quantizer_of_node(graph, node, source)
    if constant is None:
        graph.roots[target] = graph.root(source)
        graph.decoded.setdefault(source, target)
        graph.encoded[target] = source
        graph.read_codes(source, quantizer)
    elif constant.quantizer is not None:
        graph.constants[target] = constant
    elif constant.codes is None or quantizer is None:
        graph.constants[target] = Constant(constant.name, None, quantizer, constant.codes)
    else:
        values = quantizer.dequantize(constant.codes)
        graph.constants[target] = Constant(constant.name, values, quantizer, constant.codes)


def _add_dynamic(graph: OnnxGraph, node: onnx.NodeProto) -> None:
    graph.dynamic_nodes += 1
    root, codes = graph.root(node.input[0]), node.output[0]
    graph.roots[codes] = root
    graph.codes[codes] = Quantizer.at_run_time()
    graph.quantizers.setdefault(root, []).append(Tap("", graph.codes[codes]))


def _quantizer_of_node(graph: OnnxGraph, node: onnx.NodeProto, coded: str) -> Quantizer | None:
    """Quantizer of a Q or DQ node; None where it is computed at run time, or its codes are no integers."""
    scale = graph.constants.get(node.input[1])
    if scale is None or scale.values is None:
        return None
    attributes = attributes_of(node)
    zero_name = node.input[2] if len(node.input) > 2 else ""
    zero = np.zeros(scale.values.shape, np.int64)
    if zero_name:
        codes = graph.constants[zero_name].codes if zero_name in graph.constants else None
        if codes is None:
            graph.notices.append(f"the quantizer {node.name or node.output[0]} is left out: its codes are no integers")
            return None
        zero = np.asarray(codes, np.int64).reshape(scale.values.shape)
    bits, signed = _code_type(graph, zero_name, attributes.integer("output_dtype"), coded)
    per_channel = scale.values.size > 1
    axis = attributes.integer("axis", 1) if per_channel else None
    shape = scale.values.shape if per_channel else ()
    block = attributes.integer("block_size") or None
    return Quantizer(scale.values.reshape(shape), zero.reshape(shape), bits, signed, axis, block)


def _code_type(graph: OnnxGraph, zero_name: str, stated: int, coded: str) -> tuple[int, bool]:
    """Bits and sign of the codes: the zero point's, else what the node states, else as they are stored, else uint8."""
    if zero_name:
        return graph.constants[zero_name].bits
    if stated:
        return type_bits(onnx.TensorProto.DataType.Name(stated))
    return graph.constants[coded].bits if coded in graph.constants else (8, False)
