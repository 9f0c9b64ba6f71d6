"""An ONNX graph without its quantizers: operators, constants, and where each tensor's integer codes can be read."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from quantmedic.collectors.pair.constants import Constant
from quantmedic.collectors.pair.quantizer import Quantizer

#: Operators with weights or a matrix product.
COMPUTE = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "Einsum", "Attention"})
#: Operators that toolchains fold into a neighbour, so that they may be missing on one side.
FOLDABLE = frozenset({"Relu", "Clip", "BatchNormalization", "Identity", "Dropout", "Cast", "Add", "Mul", "Sub", "Div"})


@dataclass
class Operator:
    """One operator after quantizers were folded into their tensors; names are roots or constants.

    ``hints`` are what a reader wants to know beside the attributes.
    """

    index: int
    name: str
    op_type: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, onnx.AttributeProto]
    node: onnx.NodeProto
    hints: dict[str, Any] = field(default_factory=dict)


@dataclass
class Tap:
    """Where a tensor can be read: its codes and their quantizer, or, without one, its float values.

    ``decoded``: the tensor holds the values after the round trip through the quantizer, since the runtime has no arrays
    of such codes.
    """

    tensor: str
    quantizer: Quantizer | None
    decoded: bool = False


@dataclass
class Graph:
    """A model as operators over *roots*: each root stands for a tensor and all its quantized copies.

    Attributes:
        quantizers: Taps of each root that is quantized; one without a quantizer shows codes on an unknown grid.
        codes: Every tensor that holds codes, with the grid on which they lie where it is known.
        decoded: What a DequantizeLinear makes of a tensor of codes.
        producers: Operator that writes each root, once the graph is parsed.
        consumers: Operators that read each root, in topological order, once the graph is parsed.
    """

    path: Path
    model: onnx.ModelProto
    operators: list[Operator] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)
    quantizers: dict[str, list[Tap]] = field(default_factory=dict)
    codes: dict[str, Quantizer | None] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    roots: dict[str, str] = field(default_factory=dict)
    decoded: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    producers: dict[str, Operator] = field(default_factory=dict)
    consumers: dict[str, list[Operator]] = field(default_factory=dict)
    integer_nodes: int = 0
    qdq_nodes: int = 0
    dynamic_nodes: int = 0

    def root(self, tensor: str) -> str:
        """The tensor that a name stands for."""
        while tensor in self.roots:
            tensor = self.roots[tensor]
        return tensor

    @property
    def output_roots(self) -> list[str]:
        """Roots of the network's outputs, in order."""
        return [self.root(name) for name in self.outputs]

    @property
    def coded_inputs(self) -> set[str]:
        """Inputs that the model takes as codes: the application quantizes them."""
        return {name for name in self.inputs if name in self.codes}

    @property
    def is_quantized(self) -> bool:
        """The graph holds any quantizer or integer operator."""
        return bool(self.integer_nodes or self.qdq_nodes or self.dynamic_nodes)

    @property
    def format(self) -> str:
        """QDQ, QOperator, dynamic or none."""
        if self.dynamic_nodes:
            return "dynamic"
        if self.integer_nodes:
            return "QOperator"
        return "QDQ" if self.qdq_nodes else "none"

    @property
    def opset(self) -> int:
        """Opset of the default domain."""
        return max((o.version for o in self.model.opset_import if o.domain in ("", "ai.onnx")), default=0)

    def append(self, node: onnx.NodeProto, kind: str, inputs: list[str]) -> None:
        """Add an operator at the end."""
        attributes = {a.name: a for a in node.attribute}
        outputs = [name for name in node.output if name]
        self.operators.append(Operator(0, node.name or node.output[0], kind, inputs, outputs, attributes, node))

    def write_codes(self, tensor: str, quantizer: Quantizer | None) -> None:
        """An operator writes codes: on this grid, or on one that is not known."""
        self.codes[tensor] = quantizer
        self.quantizers[tensor] = [Tap(tensor, quantizer)]

    def read_codes(self, tensor: str, quantizer: Quantizer | None) -> None:
        """A reader tells the grid of the codes in a tensor: believed where nothing else does."""
        root = self.root(tensor)
        told = any(tap.quantizer is not None for tap in self.quantizers.get(root, []))
        if not told and root not in self.constants and (root == tensor or root in self.codes):
            self.write_codes(root, quantizer)

    def forget_codes(self, tensor: str) -> None:
        """What was taken for codes is an intermediate result of one operator."""
        self.codes.pop(tensor, None)
        self.quantizers.pop(tensor, None)


def consumers_of(operators: Sequence[Operator]) -> dict[str, list[Operator]]:
    """Operators that read each root, in order."""
    found: dict[str, list[Operator]] = {}
    for op in operators:
        for name in dict.fromkeys(op.inputs):
            found.setdefault(name, []).append(op)
    return found
