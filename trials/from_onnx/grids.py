"""New grids of activations in a draft of the quantized model, and quantizers taken out of it."""

from collections.abc import Iterable, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from quantmedic.collectors.pair.graph import Operator, Tap
from quantmedic.collectors.pair.patterns import Bounds, clip_bounds
from quantmedic.collectors.pair.quantizer import Quantizer
from quantmedic.collectors.pair.tensor_pairs import PairedGraphs
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.simulate import AnyGrid, ChannelGrid, Grid
from quantmedic.trials.from_onnx.draft import Attributes, Draft
from quantmedic.trials.from_onnx.qdq import MOVERS

#: First opset in which the ends of a Clip are inputs.
CLIP_INPUTS_OPSET = 11
#: So many operators between a product and its activation are looked at.
_HOPS = 4


def settle_grids(draft: Draft, models: PairedGraphs, case: Case, grids: Mapping[int, AnyGrid | None]) -> list[str]:
    """Put new grids on tensors, by their place in the case, or take their quantizers out (None).

    Every quantizer of a tensor gets the grid, and so does a tensor that an operator of ``MOVERS`` makes of
    it, where both had one grid before: else that operator would no longer run on codes.

    Returns:
        What could not be done.
    """
    known = {case.record.tensors[i].name: grid for i, grid in grids.items()}
    float_names = {tensor.name: tensor.float_name for tensor in case.record.tensors}
    found = []
    for root, grid in _hand_on_grids(known, models).items():
        taps = [tap for tap in models.quantized.quantizers.get(root, []) if tap.tensor in draft.writers]
        taps = [tap for tap in taps if draft.writers[tap.tensor].op_type == "QuantizeLinear"]
        if not taps:
            found.append(f"the quantizer of {root}: the graph holds none that could be changed")
            continue
        coded = [tap for tap in taps if tap.tensor in draft.outputs]
        if coded:
            found.append(f"the quantizer of {root}: the network hands out its codes")
            continue
        bound = next((node for tap in taps for node in draft.readers_of(tap.tensor)), None)
        if bound is not None:
            found.append(f"the quantizer of {root}: {bound.op_type} {bound.name} reads its codes")
            continue
        lost = _lost_bounds(root, float_names.get(root), models)
        if lost is not None and _reaches_beyond(grid, lost):
            _put_back(draft, taps, lost)
        for tap in taps:
            _settle(draft, root, tap, grid)
    return found


def _hand_on_grids(grids: Mapping[str, AnyGrid | None], models: PairedGraphs) -> dict[str, AnyGrid | None]:
    """The grids by root, handed on through operators that only move values."""
    graph = models.quantized
    found = dict(grids)
    for op in graph.operators:
        source = op.inputs[0] if op.inputs else ""
        grid, before = found.get(source), _quantizer_of_taps(graph.quantizers.get(source, []))
        if op.op_type not in MOVERS or grid is None or before is None or code_bits(grid, before) != before.bits:
            continue
        for target in op.outputs:
            own = _quantizer_of_taps(graph.quantizers.get(target, []))
            asked = found.get(target, grid)
            if own is not None and own.same_grid(before) and asked and code_bits(asked, own) == own.bits:
                found[target] = grid
    return found


def _quantizer_of_taps(taps: Iterable[Tap]) -> Quantizer | None:
    return next((tap.quantizer for tap in taps if tap.quantizer is not None), None)


def code_bits(grid: AnyGrid, before: Quantizer) -> int:
    """Bits of the codes of a grid: as many as before where they suit, else 8 or 16."""
    # A symmetric grid leaves the lowest code out.
    if 2 ** (before.bits - 1) < grid.codes <= 2**before.bits:
        return before.bits
    return 8 if grid.codes <= 256 else 16


def _settle(draft: Draft, root: str, tap: Tap, grid: AnyGrid | None) -> None:
    node = draft.writers[tap.tensor]
    readers = draft.dequantizers.get(tap.tensor, [])
    if grid is None:
        for reader in readers:
            draft.take_out(reader, node.input[0])
        return
    assert tap.quantizer is not None
    scale, zero = _grid_constants(draft, root, node, tap.quantizer, grid)
    for part in (node, *readers):
        draft.set_grid(part, scale, zero, axis=grid.axis if isinstance(grid, ChannelGrid) else None)
    draft.forget_type(tap.tensor)


def _grid_constants(draft: Draft, root: str, node: onnx.NodeProto, before: Quantizer, grid: AnyGrid) -> tuple[str, str]:
    """New constants: scale and zero point of a grid, of the types in force, uint8 or uint16 where those do not do."""
    bits = code_bits(grid, before)
    present = (
        draft.type_of(node.input[2]) if len(node.input) > 2 and node.input[2] else _type(before.bits, before.signed)
    )
    kind = present if bits == before.bits else _type(bits, signed=False)
    signed = kind == _type(bits, signed=True)
    top = 2 ** (bits - 1) - 1 if signed else 2**bits - 1
    steps, zeros = (
        ([each.step for each in grid.grids], [_zero_point(each, top, bits) for each in grid.grids])
        if isinstance(grid, ChannelGrid)
        else (grid.step, _zero_point(grid, top, bits))
    )
    real = helper.tensor_dtype_to_np_dtype(draft.type_of(node.input[1]))
    scale = draft.add_constant(f"{root}_scale", np.asarray(steps, np.float64).astype(real))
    return scale, draft.add_constant(f"{root}_zero_point", np.asarray(zeros), kind)


def _zero_point(grid: Grid, top: int, bits: int) -> int:
    """Code of 0 where the highest value of the grid has the highest code."""
    return int(np.clip(top - round(grid.high / grid.step), top - 2**bits + 1, top))


def _type(bits: int, signed: bool) -> int:
    return int(TensorProto.DataType.Value(f"{'' if signed else 'U'}INT{bits}"))


def _reaches_beyond(grid: AnyGrid | None, bounds: Bounds) -> bool:
    """A quantizer with this grid no longer does the work of the activation that was folded into it."""
    if grid is None:
        return True
    if isinstance(grid, ChannelGrid):
        return any(_reaches_beyond(each, bounds) for each in grid.grids)
    slack = grid.step / 2
    return grid.low < bounds.low - slack or grid.high > bounds.high + slack


def _lost_bounds(root: str, twin: str | None, models: PairedGraphs) -> Bounds | None:
    """Ends of the Relu or Clip of the float model that the quantized model leaves to a tensor's quantizer."""
    producer = models.quantized.producers.get(root)
    first = models.match.operators.get(producer.index) if producer is not None else None
    if twin is None or first is None:
        return None
    low, high = -np.inf, np.inf
    name = twin
    for _ in range(_HOPS):
        op = models.float_graph.producers.get(name)
        if op is None or op is first:
            break
        bounds = _bounds(op, models)
        low, high = max(low, bounds.low), min(high, bounds.high)
        name = op.inputs[0]
    else:
        return None
    if op is None or (low, high) == (-np.inf, np.inf):
        return None
    return Bounds(low, high)


def _bounds(op: Operator, models: PairedGraphs) -> Bounds:
    if op.op_type == "Relu":
        return Bounds(0.0, np.inf)
    bounds = clip_bounds(op, models.float_graph) if op.op_type == "Clip" else None
    return bounds or Bounds(-np.inf, np.inf)


def _put_back(draft: Draft, taps: Iterable[Tap], bounds: Bounds) -> None:
    """Put an activation behind the operator that writes a tensor, for all that read it."""
    for quantizer in [draft.writers[tap.tensor] for tap in taps]:
        source = draft.source(quantizer.input[0])
        writer = draft.writers.get(source)
        if writer is None or writer.op_type in ("Relu", "Clip"):
            continue
        raw = draft.fresh(f"{source}_before_activation")
        writer.output[:] = [raw if name == source else name for name in writer.output]
        node = _activation(draft, raw, source, bounds, draft.type_of(quantizer.input[1]))
        draft.nodes.append(node)
        draft.writers |= {raw: writer, source: node}


def _activation(draft: Draft, raw: str, target: str, bounds: Bounds, kind: int) -> onnx.NodeProto:
    if bounds == Bounds(0.0, np.inf):
        return helper.make_node("Relu", [raw], [target], name=draft.fresh(f"{target}_Relu"))
    ends = {"min": bounds.low, "max": bounds.high}
    name = draft.fresh(f"{target}_Clip")
    if draft.opset < CLIP_INPUTS_OPSET:
        stated: Attributes = {end: float(value) for end, value in ends.items() if np.isfinite(value)}
        return helper.make_node("Clip", [raw], [target], name=name, **stated)
    limits = [
        draft.add_constant(f"{target}_{end}", np.asarray(value), kind) if np.isfinite(value) else ""
        for end, value in ends.items()
    ]
    return helper.make_node("Clip", [raw, *limits], [target], name=name)
