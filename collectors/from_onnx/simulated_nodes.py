"""Nodes of a simulated network: quantizers whose grid, and layers whose weights, change from run to run.

The common cases take kernels that are several times as fast as general ones, by branches that only run where chosen:
values on a grid of eight bits, and convolutions with weights that are constants (which onnxruntime stores in blocks).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from quantmedic.engine.formulas.simulate import Grid

Float32 = NDArray[np.float32]
#: Low, high and step of a grid, the code of 0, and whether this and 255 make its ends.
ROW = 5
#: A quantizer that is turned off.
OFF = (0.0,) * ROW
#: Round and Clip take these arguments from here on; QuantizeLinear is there from the second on.
ROUND_AND_CLIP_OPSET, QUANTIZER_OPSET = 11, 10
#: Adding and subtracting this rounds a float32 to the nearest integer, half to even, as QuantizeLinear does.
ROUNDER = 1.5 * 2**23
#: The last code of eight bits, and how far from whole codes the ends of a grid may lie.
LAST, WHOLE = 255, 1e-3


def grid_row(grid: Grid) -> tuple[float, ...]:
    """A grid as the quantizer reads it."""
    zero, last = -grid.low / grid.step, (grid.high - grid.low) / grid.step
    is_coded = abs(last - LAST) < WHOLE and 0 <= round(zero) <= LAST and abs(zero - round(zero)) < WHOLE
    return grid.low, grid.high, grid.step, float(round(zero)) if is_coded else 0.0, float(is_coded)


def quantizer_nodes(
    source: str, target: str, row: Sequence[str], *, nought: str, rounder: str, opset: int
) -> Iterator[onnx.NodeProto]:
    """clip(round(x / step) · step, low, high); x where the step is 0, which costs one copy and no arithmetic.

    Args:
        source: Tensor to quantize.
        target: Where the result goes.
        row: Scalars of ``grid_row``.
        nought: A scalar 0.
        rounder: The scalar ``ROUNDER``.
        opset: Opset of the model.
    """
    low, high, step, zero, coded = row
    general = _branch(*_round_and_clip(source, target, low, high, step, rounder, opset))
    on = general
    if opset >= QUANTIZER_OPSET:
        codes = _branch(
            helper.make_node("Cast", [zero], [f"{target}:zero"], to=onnx.TensorProto.UINT8),
            helper.make_node("QuantizeLinear", [source, step, f"{target}:zero"], [f"{target}:codes"]),
            helper.make_node("DequantizeLinear", [f"{target}:codes", step, f"{target}:zero"], [f"{target}:coded"]),
        )
        is_coded = helper.make_node("Greater", [coded, nought], [f"{target}:is-coded"])
        on = _branch(is_coded, choice(f"{target}:is-coded", codes, general, f"{target}:on"))
    yield helper.make_node("Greater", [step, nought], [f"{target}:is-on"])
    off = _branch(helper.make_node("Identity", [source], [f"{target}:off"]))
    yield choice(f"{target}:is-on", on, off, target)


def _round_and_clip(
    source: str, target: str, low: str, high: str, step: str, rounder: str, opset: int
) -> list[onnx.NodeProto]:
    def node(kind: str, *inputs: str, to: str | None = None) -> onnx.NodeProto:
        return helper.make_node(kind, list(inputs), [to or f"{target}:{kind}"])

    # Clip takes scalars, and one pass where Max and Min take two; it and Round are not in older opsets.
    rounded = [node("Round", f"{target}:Div")]
    clipped = [
        node("Squeeze", low, to=f"{target}:low"),
        node("Squeeze", high, to=f"{target}:high"),
        node("Clip", f"{target}:Mul", f"{target}:low", f"{target}:high"),
    ]
    if opset < ROUND_AND_CLIP_OPSET:
        rounded = [
            node("Add", f"{target}:Div", rounder),
            node("Sub", f"{target}:Add", rounder, to=f"{target}:Round"),
        ]
        clipped = [node("Max", f"{target}:Mul", low), node("Min", f"{target}:Max", high)]
    return [node("Div", source, step), *rounded, node("Mul", f"{target}:Round", step), *clipped]


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
