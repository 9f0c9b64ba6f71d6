"""A network's graph without its quantizers: operators, constants, and where each tensor's codes can be read.

Operator types and attributes are those of ONNX, whatever framework the network comes from.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from quantmedic.collectors.pair.constants import Constant
from quantmedic.collectors.pair.quantizer import Quantizer, SmallFloats

#: Operators with weights or a matrix product.
COMPUTE = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "Einsum", "Attention"})
#: Operators that toolchains fold into a neighbour, so that they may be missing on one side.
FOLDABLE = frozenset({"Relu", "Clip", "BatchNormalization", "Identity", "Dropout", "Cast", "Add", "Mul", "Sub", "Div"})


Shape = tuple[int | None, ...]
#: Value of an attribute. What is neither a number, a text, nor a list of them, such as a tensor or a subgraph, is known
#: by a digest in bytes, so that it can be compared.
Attribute = int | float | str | bytes | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]


class Attributes(dict[str, Attribute]):
    """Attributes of an operator by name."""

    def integer(self, name: str, default: int = 0) -> int:
        """Value of an attribute that is a whole number."""
        value = self.get(name)
        return value if isinstance(value, int) else default

    def number(self, name: str, default: float) -> float:
        """Value of an attribute that is a number."""
        value = self.get(name)
        return float(value) if isinstance(value, int | float) else default

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Value of an attribute that lists whole numbers; None without it."""
        value = self.get(name)
        return tuple(entry for entry in value if isinstance(entry, int)) if isinstance(value, tuple) else None


class TensorSpec(NamedTuple):
    """What a network states about one of its inputs or outputs.

    Attributes:
        name: Its name.
        shape: Its sides, None for one that depends on the data; None where the rank is not known.
        dtype: Type of its elements; None where that is not known.
    """

    name: str
    shape: Shape | None
    dtype: np.dtype[np.generic] | None


@dataclass
class Node:
    """An operator as its framework holds it: names of tensors include their quantized copies.

    Attributes:
        op_type: Its own type, such as QLinearConv.
        inputs: Tensors that it reads, by place; empty for one that is left out.
        outputs: Tensors that it writes, by place; empty for one that is left out.
        name: Its name; empty where it has none.
        domain: Namespace of its type; empty for ONNX's own.
    """

    op_type: str
    inputs: list[str]
    outputs: list[str]
    name: str = ""
    domain: str = ""


@dataclass
class Operator:
    """One operator after quantizers were folded into their tensors.

    Attributes:
        index: Its position in the graph.
        name: Its name, or that of its first output.
        op_type: The operator that it stands for, such as Conv for QLinearConv.
        inputs: Roots or constants that it reads; inputs that are left out are missing.
        outputs: Roots that it writes.
        attributes: Its attributes by name.
        node: What the framework holds of it.
        hints: Further arguments to show beside the attributes.
        channels_last: Its tensors have their channels last, where ONNX would have them second.
        bounds: Lowest and highest value of a Clip that is built in; None without one.
    """

    index: int
    name: str
    op_type: str
    inputs: list[str]
    outputs: list[str]
    attributes: Attributes
    node: Node
    hints: dict[str, Attribute] = field(default_factory=dict)
    channels_last: bool = False
    bounds: tuple[float, float] | None = None


@dataclass
class Tap:
    """Where a tensor can be read: its codes and their quantizer, or, without one, its float values.

    ``decoded``: the tensor holds the values after the round trip through the quantizer, since the runtime has no arrays
    of such codes. ``small_floats``: the codes are no integers, and have no even grid; the quantizer is None then.
    """

    tensor: str
    quantizer: Quantizer | None
    decoded: bool = False
    small_floats: SmallFloats | None = None


@dataclass
class Graph:
    """A model as operators over *roots*: each root stands for a tensor and all its quantized copies.

    Attributes:
        path: Its file, or what stands for it in messages.
        operators: Its operators, each behind those that it reads.
        constants: Constants by name.
        quantizers: Taps of each root that is quantized; one without a quantizer shows codes on an unknown grid.
        codes: Every tensor that holds codes, with the grid on which they lie where it is known.
        input_specs: What the network takes, in order.
        output_specs: What it returns, in order.
        roots: What each quantized copy or other name of a tensor stands for; may take several steps, see ``root``.
        decoded: What a DequantizeLinear makes of a tensor of codes.
        encoded: The codes of which each tensor is decoded.
        notices: What the user should know of this network.
        producers: Operator that writes each root, once the graph is parsed.
        consumers: Operators that read each root, in topological order, once the graph is parsed.
        integer_nodes: Number of integer operators.
        qdq_nodes: Number of nodes that quantize or dequantize on a grid that is stored.
        dynamic_nodes: Number of nodes that quantize on a grid that is computed at run time.
    """

    path: Path
    operators: list[Operator] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)
    quantizers: dict[str, list[Tap]] = field(default_factory=dict)
    codes: dict[str, Quantizer | None] = field(default_factory=dict)
    input_specs: list[TensorSpec] = field(default_factory=list)
    output_specs: list[TensorSpec] = field(default_factory=list)
    roots: dict[str, str] = field(default_factory=dict)
    decoded: dict[str, str] = field(default_factory=dict)
    encoded: dict[str, str] = field(default_factory=dict)
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
    def names(self) -> frozenset[str] | None:
        """Names of all operators and tensors as the file has them, folded ones included; None where not known."""
        return None

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs, in order."""
        return [spec.name for spec in self.input_specs]

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs, in order; those of quantized copies where codes are returned."""
        return [spec.name for spec in self.output_specs]

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

    def write_codes(self, tensor: str, quantizer: Quantizer | None) -> None:
        """An operator writes codes on this grid; None where the grid is not known."""
        self.codes[tensor] = quantizer
        self.quantizers[tensor] = [Tap(tensor, quantizer)]

    def read_codes(self, tensor: str, quantizer: Quantizer | None) -> None:
        """An operator reads codes on this grid, which counts where the writer's grid is not known."""
        root = self.root(tensor)
        is_known = any(tap.quantizer is not None for tap in self.quantizers.get(root, []))
        if not is_known and root not in self.constants and (root == tensor or root in self.codes):
            self.write_codes(root, quantizer)

    def forget_codes(self, tensor: str) -> None:
        """The codes in a tensor are an intermediate result of one operator, which nothing else sees."""
        self.codes.pop(tensor, None)
        self.quantizers.pop(tensor, None)


def consumers_of(operators: Sequence[Operator]) -> dict[str, list[Operator]]:
    """Operators that read each root, in order."""
    found: dict[str, list[Operator]] = {}
    for op in operators:
        for name in dict.fromkeys(op.inputs):
            found.setdefault(name, []).append(op)
    return found
