"""What can be changed from run to run in the simulated network: the inputs that it is fed by, and what reads them.

The common cases take kernels that are several times as fast as general ones, by branches that only run where chosen:
values on a grid of eight bits, and convolutions with weights that are constants (which onnxruntime stores in blocks).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from quantmedic.collectors.from_onnx.scalars import SCALAR
from quantmedic.collectors.pair.weight_forms import WeightForms
from quantmedic.engine.formulas.change import Change, WeightForm
from quantmedic.engine.formulas.simulate import AnyGrid, ChannelGrid, Grid

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
T = TypeVar("T")
#: What is fed, by input.
Fed = dict[str, Array | float]
#: What is in force at one place, so that equal settings do the same.
Setting = Hashable
#: Round and Clip take these arguments from here on; QuantizeLinear is there from the second on.
ROUND_AND_CLIP_OPSET, QUANTIZER_OPSET = 11, 10
#: DynamicQuantizeLinear is there from here on.
RUN_TIME_OPSET = 11
#: Adding and subtracting this rounds a float32 to the nearest integer, half to even, as QuantizeLinear does.
ROUNDER = 1.5 * 2**23
#: The last code of eight bits, and how far from whole codes the ends of a grid may lie.
LAST, WHOLE = 255, 1e-3


@dataclass(frozen=True)
class Layer:
    """The weights of one operator, and the inputs by which its twin gets them and its bias.

    ``is_stored`` and ``is_float`` are inputs that choose constant weights, where the twin has such.
    """

    forms: WeightForms
    weight_input: str
    bias_input: str | None
    bias_shape: tuple[int, ...]
    has_constants: bool
    operator: int

    def setting(self, change: Change | None) -> tuple[WeightForm | None, bool]:
        """The form of the weights, and whether the bias is in float, where that makes a difference."""
        if change is None:
            return "float", self.rounds_bias
        return change.weights.get(self.operator), self.rounds_bias and self.operator in change.biases

    @cached_property
    def rounds_bias(self) -> bool:
        """The stored bias is another than that of the float model."""
        forms = self.forms
        return self.bias_input is not None and not np.array_equal(forms.bias(False), forms.bias(True))

    @property
    def inputs(self) -> list[str]:
        """All inputs."""
        return [name for name in (self.weight_input, self.bias_input, self.is_stored, self.is_float) if name]

    @property
    def is_stored(self) -> str:
        return f"{SCALAR}{self.operator}:is-stored"

    @property
    def is_float(self) -> str:
        return f"{SCALAR}{self.operator}:is-float"

    def feed(self, change: Change | None) -> Fed:
        """What to feed under a change."""
        form, float_bias = self.setting(change)
        float_bias = float_bias or not self.rounds_bias
        found: Fed = {self.weight_input: self.forms.weight(form)}
        if self.bias_input is not None:
            found[self.bias_input] = self.forms.bias(float_bias).reshape(self.bias_shape)
        if self.has_constants:
            found |= {self.is_stored: form is None, self.is_float: form == "float"}
        return found


@dataclass(frozen=True)
class Operand:
    """A small constant operand that the deployed model holds as codes, such as the gain of a normalization."""

    operator: int
    input: str
    stored: Float32
    original: Float32

    def setting(self, change: Change | None) -> bool:
        """Whether it is in float."""
        return change is None or self.operator in change.biases

    @property
    def inputs(self) -> list[str]:
        """All inputs."""
        return [self.input]

    def feed(self, change: Change | None) -> Fed:
        """What to feed under a change."""
        return {self.input: self.original if self.setting(change) else self.stored}


class Row(NamedTuple, Generic[T]):
    """What a quantizer reads, each a scalar.

    Attributes:
        low: Lowest value of the grid.
        high: Highest value.
        step: Between two values.
        zero: The code of 0 where codes are eight bits.
        is_coded: Whether this and 255 make the ends of the grid.
        is_on: Whether anything is quantized.
    """

    low: T
    high: T
    step: T
    zero: T
    is_coded: T
    is_on: T


_FLOAT, _BOOL = int(onnx.TensorProto.FLOAT), int(onnx.TensorProto.BOOL)
#: Types of these scalars.
ROW_TYPES = Row[int](_FLOAT, _FLOAT, _FLOAT, int(onnx.TensorProto.UINT8), _BOOL, _BOOL)
#: A quantizer that is turned off.
OFF = Row[float](0.0, 0.0, 0.0, 0, False, False)


def grid_row(grid: Grid) -> Row[float]:
    """A grid as the quantizer reads it."""
    zero, last = -grid.low / grid.step, (grid.high - grid.low) / grid.step
    is_on = bool(np.float32(grid.step) > 0)
    is_coded = is_on and abs(last - LAST) < WHOLE and 0 <= round(zero) <= LAST and abs(zero - round(zero)) < WHOLE
    return Row(grid.low, grid.high, grid.step, round(zero) if is_coded else 0, is_coded, is_on)


@dataclass(frozen=True)
class Quantizer:
    """The quantizer of an activation, by the index of its tensor, and its deployed grid."""

    tensor: int
    grid: Grid

    @cached_property
    def _row(self) -> Row[str]:
        return Row(*(f"{SCALAR}{self.tensor}:{field}" for field in Row._fields))

    def declare(self) -> list[onnx.ValueInfoProto]:
        """The inputs as a graph declares them."""
        pairs = zip(self._row, ROW_TYPES, strict=True)
        return [helper.make_tensor_value_info(name, kind, [1]) for name, kind in pairs]

    def make_node(self, source: str, target: str, rounder: str, opset: int) -> onnx.NodeProto:
        """clip(round(x / step) · step, low, high); x where it is off, which costs one copy and no arithmetic.

        Args:
            source: Tensor to quantize.
            target: Where the result goes.
            rounder: The scalar ``ROUNDER``.
            opset: Opset of the model.
        """
        row = self._row
        general = _branch(*_rounding_nodes(source, target, row, rounder, opset, is_scalar=True))
        off = _branch(helper.make_node("Identity", [source], [f"{target}:off"]))
        if opset < QUANTIZER_OPSET:
            return _choice(row.is_on, general, off, target)
        codes = _branch(
            helper.make_node("QuantizeLinear", [source, row.step, row.zero], [f"{target}:codes"]),
            helper.make_node("DequantizeLinear", [f"{target}:codes", row.step, row.zero], [f"{target}:coded"]),
        )
        # Of branches within branches those cost most that are deepest: most grids are of eight bits.
        other = _branch(_choice(row.is_on, general, off, f"{target}:other"))
        return _choice(row.is_coded, codes, other, target)

    def setting(self, change: Change | None) -> AnyGrid | None:
        """The grid; None where it is off."""
        return None if change is None else change.grids.get(self.tensor, self.grid)

    @property
    def inputs(self) -> list[str]:
        """All inputs."""
        return list(self._row)

    def feed(self, change: Change | None) -> Fed:
        """What to feed under a change."""
        grid = self.setting(change)
        assert not isinstance(grid, ChannelGrid)
        return dict(zip(self._row, OFF if grid is None else grid_row(grid), strict=True))


class ChannelRow(NamedTuple, Generic[T]):
    """What a quantizer with a grid for each channel reads; the first three hold one number per channel.

    Attributes:
        low: Lowest value of the grid.
        high: Highest value.
        step: Between two values.
        is_on: Whether anything is quantized.
    """

    low: T
    high: T
    step: T
    is_on: T


#: Types of these.
CHANNEL_ROW_TYPES = ChannelRow[int](_FLOAT, _FLOAT, _FLOAT, _BOOL)


@dataclass(frozen=True)
class ChannelQuantizer:
    """The quantizer of an activation that has a grid for each channel; ``axes`` follow that of the channels."""

    tensor: int
    grid: ChannelGrid
    axes: int

    @cached_property
    def _row(self) -> ChannelRow[str]:
        own = f"quantmedic:channels:{self.tensor}"
        return ChannelRow(f"{own}:low", f"{own}:high", f"{own}:step", f"{SCALAR}{self.tensor}:is_on")

    @property
    def _shape(self) -> tuple[int, ...]:
        """The channels, so that they broadcast."""
        return len(self.grid.grids), *[1] * self.axes

    def declare(self) -> list[onnx.ValueInfoProto]:
        """The inputs as a graph declares them."""
        shapes = ChannelRow(self._shape, self._shape, self._shape, (1,))
        parts = zip(self._row, CHANNEL_ROW_TYPES, shapes, strict=True)
        return [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in parts]

    def make_node(self, source: str, target: str, rounder: str, opset: int) -> onnx.NodeProto:
        """What ``Quantizer.make_node`` makes, with a grid for each channel."""
        rounded = _rounding_nodes(source, target, self._row, rounder, opset, is_scalar=False)
        off = _branch(helper.make_node("Identity", [source], [f"{target}:off"]))
        return _choice(self._row.is_on, _branch(*rounded), off, target)

    def setting(self, change: Change | None) -> AnyGrid | None:
        """The grid; None where it is off."""
        return None if change is None else change.grids.get(self.tensor, self.grid)

    @property
    def inputs(self) -> list[str]:
        """All inputs."""
        return list(self._row)

    def feed(self, change: Change | None) -> Fed:
        """What to feed under a change; one grid for all values is that of every channel. One without width holds 0."""
        grid = self.setting(change)
        if isinstance(grid, Grid):
            grid = replace(self.grid, grids=(grid,) * len(self.grid.grids))
        grids = (self.grid if grid is None else grid).grids
        columns = np.array([(g.low, g.high, g.step) if np.float32(g.step) > 0 else (0.0, 0.0, 1.0) for g in grids])
        low, high, step = columns.T.astype(np.float32).reshape(3, *self._shape)
        return dict(zip(self._row, (low, high, step, grid is not None), strict=True))


@dataclass(frozen=True)
class RunTimeQuantizer:
    """The quantizer of an activation whose grid of 8 bits is found at every run, from all values of the batch."""

    tensor: int

    @property
    def _is_on(self) -> str:
        return f"{SCALAR}{self.tensor}:is_on"

    def declare(self) -> list[onnx.ValueInfoProto]:
        """The input as a graph declares it."""
        return [helper.make_tensor_value_info(self._is_on, _BOOL, [1])]

    def make_node(self, source: str, target: str, rounder: str, opset: int) -> onnx.NodeProto:
        """The values on the grid that spans them; x where it is off."""
        found = [f"{target}:codes", f"{target}:step", f"{target}:zero"]
        on = _branch(
            helper.make_node("DynamicQuantizeLinear", [source], found),
            helper.make_node("DequantizeLinear", found, [f"{target}:on"]),
        )
        off = _branch(helper.make_node("Identity", [source], [f"{target}:off"]))
        return _choice(self._is_on, on, off, target)

    def setting(self, change: Change | None) -> bool:
        """Whether it is on; no change gives it a fixed grid."""
        return change is not None and change.grids.get(self.tensor, ...) is not None

    @property
    def inputs(self) -> list[str]:
        """All inputs."""
        return [self._is_on]

    def feed(self, change: Change | None) -> Fed:
        """What to feed under a change."""
        return {self._is_on: self.setting(change)}


#: The quantizer of an activation.
ActivationQuantizer = Quantizer | ChannelQuantizer | RunTimeQuantizer
#: What can be changed from run to run.
Settable = ActivationQuantizer | Layer | Operand


def _rounding_nodes(
    source: str, target: str, row: Row[str] | ChannelRow[str], rounder: str, opset: int, *, is_scalar: bool
) -> list[onnx.NodeProto]:
    """clip(round(x / step) · step, low, high); Round is not in older opsets."""

    def node(kind: str, *inputs: str, to: str | None = None) -> onnx.NodeProto:
        return helper.make_node(kind, list(inputs), [to or f"{target}:{kind}"])

    rounded, is_old = [node("Round", f"{target}:Div")], opset < ROUND_AND_CLIP_OPSET
    if is_old:
        rounded = [
            node("Add", f"{target}:Div", rounder),
            node("Sub", f"{target}:Add", rounder, to=f"{target}:Round"),
        ]
    # Clip takes one pass where Max and Min take two; it is not in older opsets, and takes scalars alone.
    clipped = [node("Clip", f"{target}:Mul", row.low, row.high)]
    if is_old or not is_scalar:
        clipped = [node("Max", f"{target}:Mul", row.low), node("Min", f"{target}:Max", row.high)]
    return [node("Div", source, row.step), *rounded, node("Mul", f"{target}:Round", row.step), *clipped]


def with_constant_weights(node: onnx.NodeProto, forms: Sequence[Float32], chosen: Sequence[str]) -> onnx.NodeProto:
    """The node with its weights chosen among constants, or taken from its input where none is chosen.

    Args:
        node: A node whose second input are its weights.
        forms: The constants.
        chosen: For each the boolean scalar that chooses it; the first one that is true counts.
    """
    target = node.output[0]
    other = _branch(_with(node, node.input[1], f"{target}:given"))
    for k, (values, condition) in reversed(list(enumerate(zip(forms, chosen, strict=True)))):
        constant = numpy_helper.from_array(values, f"{target}:weights:{k}")
        branch = _branch(_with(node, constant.name, f"{target}:{k}"), constants=[constant])
        found = _choice(condition, branch, other, f"{target}:from:{k}" if k else target)
        other = _branch(found)
    return found


def _with(node: onnx.NodeProto, weights: str, target: str) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[1], copy.output[0] = weights, target
    return copy


def _choice(condition: str, then: onnx.GraphProto, other: onnx.GraphProto, target: str) -> onnx.NodeProto:
    """One of two branches."""
    return helper.make_node("If", [condition], [target], then_branch=then, else_branch=other)


def _branch(*nodes: onnx.NodeProto, constants: Sequence[onnx.TensorProto] = ()) -> onnx.GraphProto:
    """Nodes of which the last one makes the result."""
    name = nodes[-1].output[0]
    return helper.make_graph(nodes, name, [], [helper.make_empty_tensor_value_info(name)], constants)
