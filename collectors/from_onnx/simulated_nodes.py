"""Nodes of a simulated network: quantizers whose grid, and layers whose weights, change from run to run.

The common cases take kernels that are several times as fast as general ones, by branches that only run where chosen:
values on a grid of eight bits, and convolutions with weights that are constants (which onnxruntime stores in blocks).
"""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from quantmedic.engine.formulas.simulate import ChannelGrid, Grid

Float32 = NDArray[np.float32]
T = TypeVar("T")
#: Round and Clip take these arguments from here on; QuantizeLinear is there from the second on.
ROUND_AND_CLIP_OPSET, QUANTIZER_OPSET = 11, 10
#: Adding and subtracting this rounds a float32 to the nearest integer, half to even, as QuantizeLinear does.
ROUNDER = 1.5 * 2**23
#: The last code of eight bits, and how far from whole codes the ends of a grid may lie.
LAST, WHOLE = 255, 1e-3


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


def quantizer_node(source: str, target: str, row: Row[str], rounder: str, opset: int) -> onnx.NodeProto:
    """clip(round(x / step) · step, low, high); x where it is off, which costs one copy and no arithmetic.

    Args:
        source: Tensor to quantize.
        target: Where the result goes.
        row: Scalars of ``grid_row``.
        rounder: The scalar ``ROUNDER``.
        opset: Opset of the model.
    """
    general = _branch(*_rounding_nodes(source, target, row, rounder, opset, is_scalar=True))
    off = _branch(helper.make_node("Identity", [source], [f"{target}:off"]))
    if opset < QUANTIZER_OPSET:
        return choice(row.is_on, general, off, target)
    codes = _branch(
        helper.make_node("QuantizeLinear", [source, row.step, row.zero], [f"{target}:codes"]),
        helper.make_node("DequantizeLinear", [f"{target}:codes", row.step, row.zero], [f"{target}:coded"]),
    )
    # Of branches within branches those cost most that are deepest: most grids are of eight bits.
    other = _branch(choice(row.is_on, general, off, f"{target}:other"))
    return choice(row.is_coded, codes, other, target)


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


def channel_row(grid: ChannelGrid, shape: Sequence[int]) -> ChannelRow[Float32 | bool]:
    """Grids of channels as the quantizer reads them, in a ``shape`` that broadcasts; a grid without width holds 0."""
    columns = np.array([(g.low, g.high, g.step) if np.float32(g.step) > 0 else (0.0, 0.0, 1.0) for g in grid.grids])
    low, high, step = columns.T.astype(np.float32).reshape(3, *shape)
    return ChannelRow(low, high, step, True)


def channel_quantizer_node(source: str, target: str, row: ChannelRow[str], rounder: str, opset: int) -> onnx.NodeProto:
    """``quantizer_node`` with a grid for each channel."""
    rounded = _rounding_nodes(source, target, row, rounder, opset, is_scalar=False)
    off = _branch(helper.make_node("Identity", [source], [f"{target}:off"]))
    return choice(row.is_on, _branch(*rounded), off, target)


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
        found = choice(condition, branch, other, f"{target}:from:{k}" if k else target)
        other = _branch(found)
    return found


def _with(node: onnx.NodeProto, weights: str, target: str) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[1], copy.output[0] = weights, target
    return copy


def choice(condition: str, then: onnx.GraphProto, other: onnx.GraphProto, target: str) -> onnx.NodeProto:
    """One of two branches."""
    return helper.make_node("If", [condition], [target], then_branch=then, else_branch=other)


def _branch(*nodes: onnx.NodeProto, constants: Sequence[onnx.TensorProto] = ()) -> onnx.GraphProto:
    """Nodes of which the last one makes the result."""
    name = nodes[-1].output[0]
    return helper.make_graph(nodes, name, [], [helper.make_empty_tensor_value_info(name)], constants)
