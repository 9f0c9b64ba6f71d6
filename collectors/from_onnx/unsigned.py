"""Signed activations rewritten as unsigned ones, the way onnxruntime does it before it chooses integer kernels.

Its integer convolutions take uint8 activations on x86, so it first turns each int8 pair of QuantizeLinear and
DequantizeLinear into a uint8 pair: codes and zero point move up by 128, the values stay. It leaves alone what else
reads the codes, and an observer is such a reader: exposing int8 codes would take the integer kernels away. Rewriting
the same pairs before they are exposed keeps them.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
from onnx import numpy_helper

from quantmedic.collectors.pair.graph import Tap

OFFSET = 128


def with_unsigned_pairs(model: onnx.ModelProto) -> tuple[onnx.ModelProto, frozenset[str]]:
    """Copy of a model whose int8 pairs are uint8, and the code tensors that changed.

    Only pairs that nothing else reads are rewritten: onnxruntime gives every reader of a DequantizeLinear a copy of
    its own, and codes with several readers stay signed.
    """
    rewritten = onnx.ModelProto()
    rewritten.CopyFrom(model)
    graph = rewritten.graph
    zeros = {t.name: t for t in graph.initializer if t.data_type == onnx.TensorProto.INT8}
    readers = Counter(name for node in graph.node for name in node.input)
    readers.update(value.name for value in graph.output)
    dequantizers = {node.input[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    changed: dict[str, str] = {}
    for node in graph.node:
        codes = node.output[0] if node.output else ""
        partner = dequantizers.get(codes)
        if node.op_type != "QuantizeLinear" or partner is None or len(node.input) < 3 or node.input[2] not in zeros:
            continue
        if readers[codes] != 1 or readers[partner.output[0]] != 1 or list(partner.input[1:]) != list(node.input[1:]):
            continue
        name = f"{codes}_unsigned_zero_point"
        zero = numpy_helper.to_array(zeros[node.input[2]]).astype(np.int16) + OFFSET
        graph.initializer.append(numpy_helper.from_array(zero.astype(np.uint8), name))
        node.input[2] = partner.input[2] = changed[codes] = name
    return rewritten, frozenset(changed)


def unsigned_tap(tap: Tap) -> Tap:
    """The tap of a tensor whose codes were moved."""
    assert tap.quantizer is not None
    return Tap(tap.tensor, replace(tap.quantizer, zero_point=tap.quantizer.zero_point + OFFSET, signed=False))
