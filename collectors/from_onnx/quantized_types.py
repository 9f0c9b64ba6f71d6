"""Which nodes onnxruntime's quantizer left in float: by the quantizers of the file, not by what was measured.

A node counts as quantized where its quantization would write what the file holds. How each type of operator is
quantized is told by ``onnxruntime/quantization/operators``, version 1.31.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from quantmedic.collectors.from_onnx.traits import toolchain_marks
from quantmedic.collectors.from_onnx.types import static_types

#: Types that are quantized unless others are named: ``QLinearOpsRegistry`` and ``QDQRegistry``.
USUAL = frozenset(
    {"Add", "ArgMax", "AveragePool", "BatchNormalization", "Clip", "Concat", "Conv"}
    | {"ConvTranspose", "CumSum", "EmbedLayerNormalization", "Flatten", "Gather", "GatherElements", "Gemm"}
    | {"GlobalAveragePool", "InstanceNormalization", "LayerNormalization", "LeakyRelu", "MatMul", "MaxPool", "Mul"}
    | {"Pad", "Relu", "Reshape", "Resize", "Sigmoid", "Slice", "Softmax"}
    | {"Split", "Squeeze", "TopK", "Transpose", "Unsqueeze", "Where"}
)
#: Activations that a quantizer takes over.
_REMOVABLE = frozenset({"Relu", "Clip"})
#: They take over the grid of their input where it has one, and are left alone where it has none.
_FOLLOWERS = frozenset(
    {"AveragePool", "Flatten", "Gather", "GatherElements", "MaxPool", "Reshape", "Resize"}
    | {"Slice", "Squeeze", "TopK", "Transpose", "Unsqueeze"}
)
#: Input that is the stored weights, and the one that is the bias.
_WEIGHT = dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "LayerNormalization", "InstanceNormalization"), 1)
_BIASED = frozenset(_WEIGHT) | {"BatchNormalization"}
#: Operators of the QOperator form that are not called QLinear and the type.
_OWN_NAMES = {"QGemm": "Gemm", "QEmbedLayerNormalization": "EmbedLayerNormalization"}
#: Types that the QOperator form leaves as they are, or as followers.
_NO_OPERATOR = frozenset({"Where", "Slice", "TopK", "GatherElements", "CumSum", "ConvTranspose"}) | {
    name for name in USUAL if name.endswith("Normalization")
}
#: Steps from 0 to 1 of a grid of 8 or 16 bits, and of a symmetric one.
_STEPS = (255, 65535, 127, 127.5, 32767, 32767.5)
_MARKS = ("onnx.quantize", "onnx.infer")


@dataclass(frozen=True)
class QuantizedNodes:
    """What a quantizer was told to quantize.

    Attributes:
        in_float: Names of nodes that it left in float, by operator type.
        types: Operator types that have to be named for it; None: leaving out those nodes says as much, and is shorter.
    """

    in_float: Mapping[str, tuple[str, ...]]
    types: tuple[str, ...] | None


def quantized_nodes(floats: onnx.ModelProto, model: onnx.ModelProto, form: str) -> QuantizedNodes | None:
    """Nodes that onnxruntime's static quantization left in float; None for models of others, and of other forms."""
    marks = (model.producer_name, *toolchain_marks(model))
    if form not in ("QDQ", "QOperator") or not any(each.endswith(_MARKS) for each in marks):
        return None
    known: dict[str, list[tuple[onnx.NodeProto, bool]]] = defaultdict(list)
    grids = _Grids(model)
    judged = grids.operators() if form == "QOperator" else grids.pairs()
    for kind, node, quantized in judged:
        known[kind].append((node, quantized))
    left = {node.name for node in model.graph.node}
    removed = {node.op_type for node in floats.graph.node if node.op_type in _REMOVABLE and node.name not in left}
    found = {kind for kind, nodes in known.items() if any(quantized for _, quantized in nodes)} | removed
    unusual = grids.unusual(known) if form == "QDQ" else frozenset()
    types = (found & USUAL) | unusual
    in_float = {
        kind: [node.name for node, quantized in nodes if not quantized]
        for kind, nodes in known.items()
        if kind in USUAL or kind in unusual
    }
    others = [name for kind, names in in_float.items() if kind not in types for name in names]
    told = bool(types) and (bool(unusual) or len(others) > len(types) or "" in others)
    names = {kind: tuple(filter(None, names)) for kind, names in in_float.items() if any(names)}
    return QuantizedNodes(names, tuple(sorted(types)) if told else None)


class _Grids:
    """The quantizers of a model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._nodes = [node for node in model.graph.node if not _is_quantizer(node)]
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}
        quantizers = [node for node in model.graph.node if _is_quantizer(node) and len(node.input) > 1]
        self._scales = {node.input[0]: node.input[1] for node in quantizers if node.op_type == "QuantizeLinear"}
        restored = {node.output[0]: node for node in quantizers if node.op_type == "DequantizeLinear"}
        self._scales |= {name: node.input[1] for name, node in restored.items()}
        self._codes = {node.output[0] for node in quantizers if node.op_type == "QuantizeLinear"}
        passed = {each.output[0]: each.input[0] for each in quantizers}
        # What a DequantizeLinear reads is stored as codes, or as floats that pass a quantizer.
        self._stored = {
            name for name, node in restored.items() if passed.get(node.input[0], node.input[0]) in self._constants
        }
        self._restored = frozenset(restored)
        self._readers = Counter(name for node in self._nodes for name in node.input)
        self._types = static_types(model)

    def pairs(self) -> Iterator[tuple[str, onnx.NodeProto, bool]]:
        """Nodes of a QDQ model, and whether they were quantized; without those that make no difference."""
        for node in self._nodes:
            quantized = self._is_quantized(node)
            if quantized is not None:
                yield node.op_type, node, quantized

    def operators(self) -> Iterator[tuple[str, onnx.NodeProto, bool]]:
        """The same of a model in QOperator form."""
        for node in self._nodes:
            kind = _OWN_NAMES.get(node.op_type, node.op_type.removeprefix("QLinear"))
            if kind != node.op_type:
                self._codes.update(node.output)
                yield kind, node, True
            elif node.input and node.input[0] in self._codes:
                self._codes.add(node.output[0])
                yield kind, node, True
            elif node.op_type in USUAL - _NO_OPERATOR:
                waits = node.op_type in (_FOLLOWERS - {"AveragePool", "Gather"}) | _REMOVABLE
                if not waits or node.input[0] in self._restored:
                    yield kind, node, False

    def unusual(self, known: Mapping[str, list[tuple[onnx.NodeProto, bool]]]) -> frozenset[str]:
        """Other types than the usual ones without which some activation would have no grid."""
        asked = {kind: [node for node, quantized in nodes if quantized] for kind, nodes in known.items()}
        usual = {name for kind in asked.keys() & USUAL for node in asked[kind] for name in (*node.input, *node.output)}
        return frozenset(
            kind
            for kind in asked.keys() - USUAL
            for node in asked[kind]
            if any(name in self._scales and self._same(name).isdisjoint(usual) for name in (*node.input, *node.output))
        )

    def _same(self, name: str) -> set[str]:
        """Names of a tensor before and behind its quantizers."""
        scale = self._scales[name]
        return {each for each, own in self._scales.items() if own == scale}

    def _is_quantized(self, node: onnx.NodeProto) -> bool | None:
        kind, result = str(node.op_type), str(node.output[0])
        first = str(node.input[0]) if node.input else ""
        weight = _WEIGHT.get(kind)
        if weight is not None and (self._is_constant(node.input[weight])):
            return node.input[weight] in self._stored
        if kind in _REMOVABLE:
            return self._is_taken_over(first, result)
        if kind == "Softmax" and result in self._scales and not self._is_fixed(result):
            return False
        if kind in _FOLLOWERS:
            if first not in self._scales:
                return False if self._is_constant(first) and self._is_float(first) else None
            return bool(self._scales.get(result) == self._scales[first])
        if kind == "Split":  # gives its grid on, but quantizes its input itself
            return first in self._scales and self._scales.get(result) == self._scales[first]
        if kind == "Where":
            return result in self._scales if all(name in self._scales for name in node.input[1:]) else None
        read = node.input[: 2 if kind in _BIASED else 1 if kind == "Pad" else None]
        floats = [name for name in (*read, *node.output) if name and self._is_float(name)]
        return all(name in self._scales for name in floats) if floats else None

    def _is_taken_over(self, first: str, result: str) -> bool | None:
        """Whether an activation that still stands would, without its quantization, stand between other grids."""
        if first not in self._scales:
            return None
        if result not in self._scales:
            return False
        return self._readers[first] > 1 or self._value(self._scales[first]) == self._value(self._scales[result])

    def _is_fixed(self, result: str) -> bool:
        """A grid of 0 … 1, or of -1 … 1, as a quantized Softmax gets it whatever calibration saw."""
        levels = 1 / self._value(self._scales[result])
        return any(np.isclose(levels, steps, rtol=1e-5) for steps in _STEPS)

    def _value(self, scale: str) -> float:
        tensor = self._constants.get(scale)
        return float(onnx.numpy_helper.to_array(tensor).max()) if tensor is not None else np.nan

    def _is_constant(self, name: str) -> bool:
        return name in self._constants or name in self._stored

    def _is_float(self, name: str) -> bool:
        if name in self._scales:
            return True
        if name in self._constants:
            return bool(self._constants[name].data_type == onnx.TensorProto.FLOAT)
        return name in self._types and self._types[name].dtype == np.float32


def _is_quantizer(node: onnx.NodeProto) -> bool:
    return node.op_type in ("QuantizeLinear", "DequantizeLinear")
