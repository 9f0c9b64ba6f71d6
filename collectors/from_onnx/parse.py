"""Parsing an ONNX model: quantizers, identities and constants are folded away, the operators are kept.

What NVIDIA ModelOpt writes is read as standard ONNX: ``trt::TRT_FP8QuantizeLinear`` and its like take what
QuantizeLinear and DequantizeLinear take, and their name tells the type of the codes; others, such as
TRT_FP4DynamicQuantize, have no equal. Its AWQ divides float weights by a vector before it quantizes them, and
multiplies what the layer reads by it (``pre_quant_scale``): both together are the layer, so that its weights are held
against the float ones as one.
"""

import re
from collections import Counter
from collections.abc import Iterable, MutableSequence, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import version_converter

from quantmedic.collectors.from_onnx.codes import carry_codes
from quantmedic.collectors.from_onnx.float_codes import (
    add_float_dequantize,
    add_float_quantize,
    float_code_type,
    note_float_codes,
    note_float_constant,
)
from quantmedic.collectors.from_onnx.integer import INTEGER_OPS, add_integer, join_dynamic
from quantmedic.collectors.from_onnx.onnx_constants import SMALL_FLOATS, fold, read_constant, read_constant_node
from quantmedic.collectors.from_onnx.onnx_graph import OnnxGraph, attributes_of, opset_of, spec_of
from quantmedic.collectors.from_onnx.onnx_session import TRANSLATED
from quantmedic.collectors.from_onnx.traits import older_than_its_quantizers
from quantmedic.collectors.pair.constants import Constant, type_bits
from quantmedic.collectors.pair.graph import Operator, Tap, consumers_of
from quantmedic.collectors.pair.quantizer import Quantizer
from quantmedic.engine.errors import ModelError

_ALIASES = frozenset({"Identity", "Dropout"})
_SUBGRAPH = frozenset({"If", "Loop", "Scan"})
#: Errors that a damaged graph causes: bytes that do not fit, names and inputs that are missing.
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
_QUANTIZERS = {"QuantizeLinear": add_float_quantize, "DequantizeLinear": add_float_dequantize}
#: Part of the name of the multiplication that AWQ puts in front of a layer, or of its vector.
_GAIN_MARK = "pre_quant_scale"
Values = NDArray[np.float32]
M = TypeVar("M")
_TENSORRT_NAME = re.compile(r"TRT_(?P<type>INT8|INT4|FP8)(?P<kind>QuantizeLinear|DequantizeLinear)")
_TENSORRT_TYPES = {"INT8": onnx.TensorProto.INT8, "INT4": onnx.TensorProto.INT4, "FP8": onnx.TensorProto.FLOAT8E4M3FN}
#: QuantizeLinear states the type of its codes, and both know blocks, from this opset on; and what needs it.
_TENSORRT_OPSET, _TENSORRT_IR_VERSION = 21, 10
_TENSORRT_DOMAIN = "trt"


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
    unknown = [{name for name in node.input if name not in given} for node in nodes]
    readers: dict[str, list[int]] = {}
    for place, names in enumerate(unknown):
        for name in names:
            readers.setdefault(name, []).append(place)
    ready = [place for place, names in enumerate(unknown) if not names]
    ordered = []
    while ready:
        ordered.append(nodes[heappop(ready)])
        for name in ordered[-1].output:
            for reader in readers.get(name, ()):
                unknown[reader].discard(name)
                if not unknown[reader]:
                    heappush(ready, reader)
    for node, names in zip(nodes, unknown, strict=True):
        if names:
            raise ModelError(
                "the graph reads a tensor that nothing writes",
                where=f"{path}: {next(name for name in node.input if name in names)}",
                help="export the model again; was a part of it cut out?",
            )
    return ordered


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


def join_input_gains(graph: OnnxGraph) -> None:
    """Move such gains into the weights behind them; the multiplication is no operator of its own then."""
    joined: set[int] = set()
    for op in graph.operators:
        gains = _gains_of(op, graph)
        readers = [reader for reader in graph.operators if op.outputs[0] in reader.inputs] if gains is not None else []
        if gains is None or not readers or not all(_can_take(reader, op, gains, graph) for reader in readers):
            continue
        for name in dict.fromkeys(reader.inputs[1] for reader in readers):
            graph.constants[name] = _with_gains(graph.constants[name], gains)
            graph.input_gains[graph.constants[name].name] = gains
        source = next(name for name in op.inputs if name not in graph.constants)
        graph.roots[op.outputs[0]] = source
        for reader in readers:
            reader.inputs[0] = source
        joined.add(id(op))
    if joined:
        graph.operators = [op for op in graph.operators if id(op) not in joined]


def _gains_of(op: Operator, graph: OnnxGraph) -> Values | None:
    if op.op_type != "Mul" or not any(_GAIN_MARK in name for name in (op.name, *op.node.inputs)):
        return None
    constants = [own for name in op.inputs if (own := graph.constants.get(name)) is not None]
    values = constants[0].values if len(constants) == 1 else None
    if values is None or not values.ndim or values.size != values.shape[-1] or op.outputs[0] in graph.outputs:
        return None
    return values.reshape(-1) if (values > 0).all() and np.isfinite(values).all() else None


def _can_take(reader: Operator, op: Operator, gains: Values, graph: OnnxGraph) -> bool:
    """A product with stored weights ``[inputs, outputs]`` that no other operator reads without these gains."""
    if reader.op_type != "MatMul" or reader.inputs[0] != op.outputs[0] or len(reader.inputs) != 2:
        return False
    weight = graph.constants.get(reader.inputs[1])
    if weight is None or weight.values is None or weight.values.ndim != 2 or weight.values.shape[0] != gains.size:
        return False
    others = [each for each in graph.operators if reader.inputs[1] in each.inputs]
    return weight.quantizer is not None and all(each.inputs[0] == op.outputs[0] for each in others)


def _with_gains(weight: Constant, gains: Values) -> Constant:
    """The weights times the gain of each input channel: the same codes, on a grid with one scale per weight."""
    assert weight.quantizer is not None and weight.values is not None  # asked for by the caller
    values = np.asarray(weight.values * gains[:, None], np.float32)
    return replace(weight, values=values, quantizer=weight.quantizer.with_factors(gains[:, None], values.shape))


def with_standard_quantizers(model: onnx.ModelProto, path: Path) -> tuple[onnx.ModelProto, list[str]]:
    """The model with standard quantizers in place of TensorRT's, and what to say of that; itself where it has none.

    Raises:
        ModelError: It holds operators of TensorRT that have no equal, or cannot be brought to the opset of the others.
    """
    own = [node for node in model.graph.node if node.domain == _TENSORRT_DOMAIN or node.op_type.startswith("TRT_")]
    if not own:
        return model, []
    for node in own:
        if _TENSORRT_NAME.fullmatch(node.op_type) is None:
            raise ModelError(
                "an operator of TensorRT has no equal in standard ONNX, and onnxruntime does not know it",
                where=f"{path}: {node.domain or 'trt'}::{node.op_type} {node.name or ', '.join(node.output)}",
                help="give the model with static int8, FP8 or INT4 quantizers instead, or one whose weights alone are "
                "quantized; quantmedic diagnose --weights-only compares checkpoints without running them",
            )
    standard = onnx.ModelProto()
    standard.CopyFrom(model)
    standard.producer_name = TRANSLATED
    for node in standard.graph.node:
        if node.op_type.startswith("TRT_"):
            _rename(node)
    _replace(standard.opset_import, [entry for entry in standard.opset_import if entry.domain != _TENSORRT_DOMAIN])
    standard = _with_opset(standard, path)
    # Types that the file or the converter states of codes are those of quantizers without a type.
    names = {name for node in own for name in node.output}
    _replace(standard.graph.value_info, [value for value in standard.graph.value_info if value.name not in names])
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(node.op_type for node in own).items()))
    return standard, [f"operators of TensorRT are run as those of standard ONNX: {kinds}"]


def _replace(field: MutableSequence[M], kept: list[M]) -> None:
    """Let a repeated field of a message hold these alone."""
    del field[:]
    field.extend(kept)


def _rename(node: onnx.NodeProto) -> None:
    match = _TENSORRT_NAME.fullmatch(node.op_type)
    assert match is not None  # others were refused
    node.domain, node.op_type = "", match["kind"]
    states_type = len(node.input) > 2 and bool(node.input[2])
    if node.op_type == "QuantizeLinear" and not states_type:
        node.attribute.append(onnx.helper.make_attribute("output_dtype", _TENSORRT_TYPES[match["type"]]))


def _with_opset(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    stated = opset_of(model)
    if stated < _TENSORRT_OPSET:
        try:
            model = version_converter.convert_version(model, _TENSORRT_OPSET)
        except Exception as error:  # The converter is C++ and says what is wrong in many types.
            raise ModelError(
                "the model cannot be brought to the opset that its quantizers need",
                where=f"{path}: opset {stated}: {str(error).splitlines()[0]}",
                help=f"export it with opset {_TENSORRT_OPSET}",
            ) from error
    model.ir_version = max(model.ir_version, _TENSORRT_IR_VERSION)
    return model
