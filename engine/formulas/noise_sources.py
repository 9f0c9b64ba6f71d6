"""What each quantizer does to the noise at the output, as facts of tensors and layers, from the loss budget."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.budget_record import (
    ChangesRecord,
    FamilyRecord,
    LossBudget,
    Mechanism,
    PieceRecord,
    SourceKind,
    SourceRecord,
)
from quantmedic.engine.case.facts import LayerFacts, OutcomeFacts, SourceFacts, TensorFacts
from quantmedic.engine.case.gains import share_of_gain
from quantmedic.engine.case.model_facts import FamilyFacts
from quantmedic.engine.case.records import Case, OperatorRecord
from quantmedic.engine.decibels import sqnr_db
from quantmedic.engine.formulas.columns import FieldsByPlace
from quantmedic.engine.formulas.stored_bins import main_role
from quantmedic.engine.operator_types import LAYOUTS
from quantmedic.engine.thresholds import Thresholds

#: Operators that join operands on one grid.
JOINING = ("Concat", "Add")
#: Operators that hand on values, or a part of them.
MOVING = LAYOUTS | {"Gather", "Slice", "Split", "Cast"}
#: Operators that take one operand from another.
CANCELLING = ("Add", "Sub")
#: Steps upstream that still belong to the group around an operator, such as the pieces of a layer norm.
FEEDER_STEPS = 3
#: A change mends a source where it takes away this share of what taking the source away does.
MOST = 0.5
#: Standard errors above 0 from which on a loss is none of chance.
SURE = 2.0
#: Quantizers that make so much of the noise have to be known before anything is said of all.
UNKNOWN = 0.1
#: A range so many times as wide costs half a bit.
HALF_A_BIT = 2**0.5
#: Usual samples of two sets are alike where those of one are less than so many times as wide.
ALIKE = 1.25
_CLIPPED: tuple[tuple[Mechanism, str], ...] = (("clipped-low", "clipped_low"), ("clipped-high", "clipped_high"))
#: What shows how a quantizer makes noise that clips nothing, in the order in which it is asked.
_SHOWN_BY: tuple[tuple[Mechanism, str], ...] = (
    ("range-too-wide", "full-range"),
    ("range-too-wide", "percentile-range"),
    ("range-too-wide", "best-range"),
    ("grid", "asymmetric-range"),
    ("step", "sixteen-bit"),
)
#: A wrong range: 8 bits are enough for what another one mends, and the rules about ranges tell of it.
_RANGES = ("full-range", "best-range")


def tensors_with_sources(case: Case, tensors: tuple[TensorFacts, ...]) -> tuple[TensorFacts, ...]:
    """The tensors with what their quantizers do to the noise at the output, where the loss budget was measured."""
    if case.record.loss_budget is None:
        return tensors
    sources = source_facts(case.record.loss_budget)
    arriving = alone_sqnr_db(case.record.loss_budget)
    found = [sources.get(("activation", i)) or sources.get(("input", i)) for i in range(len(tensors))]
    departing = departure_facts(case.record.loss_budget)
    known = (tensor.model_copy(update=departing[i]) if i in departing else tensor for i, tensor in enumerate(tensors))
    return tuple(
        tensor if source is None else _with_source(tensor, source, arriving[i])
        for i, (tensor, source) in enumerate(zip(known, found, strict=True))
    )


def departure_facts(budget: LossBudget) -> dict[int, dict[str, float]]:
    """Facts of the tensors that the deployed model computes otherwise than its weights and grids say, by index."""
    leading = leading_output(budget)
    return {
        d.tensor: {"departure_share": d.shares[leading], "departure_sqnr_db": sqnr_db(1.0, d.nmse)}
        for d in budget.departures or ()
    }


def _with_source(tensor: TensorFacts, source: SourceFacts, arriving_db: float) -> TensorFacts:
    """The tensor with its part of the noise, which alone leaves the output ``arriving_db``."""
    own = tensor.data.rounding.sqnr_db
    amplified = None if own is None or not math.isfinite(own - arriving_db) else own - arriving_db
    known = source.model_copy(update={"amplification_db": amplified})
    return tensor.model_copy(update={"source": known})


def layer_source_fields(layers: tuple[LayerFacts, ...], case: Case) -> FieldsByPlace:
    """What stored weights and biases do to the noise at the output."""
    if case.record.loss_budget is None:
        return {}
    sources, nothing = source_facts(case.record.loss_budget), SourceFacts()
    strangers = _strangers(case, [layer.output for layer in layers])
    return {
        k: {
            "weight_source": sources.get(("weight", k), nothing),
            "bias_source": sources.get(("bias", k), nothing),
            "run_time_share": _run_time_share(case, k, sources),
            **strangers.get(k, {"stranger": False}),
        }
        for k in range(len(layers))
    }


def _run_time_share(case: Case, k: int, sources: Mapping[tuple[SourceKind, int], SourceFacts]) -> float | None:
    """What the grids make that an operator's inputs get at every run; None where that was not measured of any."""
    read = [i for i in case.record.operators[k].inputs if i is not None and case.record.tensors[i].quantizer.dynamic]
    shares = (sources.get((kind, i), SourceFacts()).share for i in read for kind in ("activation", "input"))
    return max((share for share in shares if share is not None), default=None)


def _strangers(case: Case, made: Sequence[TensorFacts]) -> dict[int, dict[str, object]]:
    """Facts of the operators that only the quantized model has, by their place; ``made`` by each operator.

    Fused and renamed operators are none: their results have counterparts.
    """
    operators = case.record.operators
    alone = {
        k
        for k, op in enumerate(operators)
        if op.float_name is None and op.op_type not in MOVING and not any(i is not None for i in op.outputs)
    }
    place = {op.index: k for k, op in enumerate(operators)}
    readers: dict[int, list[int]] = {}
    for k, op in enumerate(operators):
        for source in op.sources:
            readers.setdefault(place.get(source, -1), []).append(k)
    found: dict[int, dict[str, object]] = {}
    for k in sorted(alone):
        seen, behind = {k}, [k]
        for each in behind:  # grows: through what was not compared
            nearest = [r for r in readers.get(each, []) if r not in seen]
            seen.update(nearest)
            behind += [r for r in nearest if made[r].data.accumulated.sqnr_db is None]
        compared = [r for r in sorted(seen) if made[r].data.accumulated.sqnr_db is not None]
        if compared:
            first = operators[compared[0]].outputs
            found[k] = {"stranger": True, **_behind(case, made[compared[0]], next(i for i in first if i is not None))}
    return found


def _behind(case: Case, tensor: TensorFacts, index: int) -> dict[str, object]:
    """The error of the first compared tensor, and how much of it is a line per channel."""
    error = tensor.data.accumulated
    statistics = case.statistics[main_role(case)]
    rows = statistics.rows(index)
    columns = {name: column[rows].astype(np.float64) for name, column in statistics.columns.items()}
    count, total = np.maximum(columns["accumulated.count"], 1.0), columns["accumulated.sum"]
    square, values = columns["accumulated.square"], columns["mean"] * count
    along = columns["accumulated.cross"] - values * total / count
    spread = columns["accumulated.power"] - values * values / count
    line = total * total / count + np.divide(along * along, spread, out=np.zeros_like(along), where=spread > 0)
    left = float(np.maximum(square - line, 0.0).sum())
    return {"behind_sqnr_db": error.sqnr_db, "behind_line_gain_db": sqnr_db(float(square.sum()), left)}


def half_fields(
    layers: tuple[LayerFacts, ...], case: Case, tensors: tuple[TensorFacts, ...], thresholds: Thresholds
) -> FieldsByPlace:
    """Layers that cancel against others: both operands are much wider than the result."""
    writers = {i: case.record.operators[k] for i, k in case.record.writers().items()}
    ratio = 10.0 ** (thresholds.threshold("noise_amplification_db") / 20.0)
    halves: dict[str, dict[str, None]] = {}
    for op in case.record.operators:
        if op.op_type not in CANCELLING or not _cancels(op, tensors, ratio):
            continue
        members = [op.name, *dict.fromkeys(writer.name for writer in upstream(op, writers))]
        for name in members:
            halves.setdefault(name, {}).update(dict.fromkeys(other for other in members if other != name))
    return {k: {"halves": tuple(halves[layer.name])} for k, layer in enumerate(layers) if layer.name in halves}


def _cancels(op: OperatorRecord, tensors: tuple[TensorFacts, ...], ratio: float) -> bool:
    """Each operand is more than so many times as wide as the result."""
    operands, results = (
        [tensors[i].data.values.width for i in ends if i is not None] for ends in (op.inputs, op.outputs)
    )
    known, made = ([width for width in widths if width is not None] for widths in (operands, results))
    return len(known) == len(operands) > 1 and bool(made) and min(known) > ratio * max(made)


def upstream(op: OperatorRecord, writers: Mapping[int, OperatorRecord]) -> Iterator[OperatorRecord]:
    """What feeds an operator, the nearest first: up to three steps, and no further than the first with weights."""
    frontier = [op]
    for _ in range(FEEDER_STEPS):
        read = [writers[i] for reader in frontier for i in reader.inputs if i is not None and i in writers]
        yield from read
        frontier = [writer for writer in read if not writer.is_compute]


def budget_of_model(case: Case) -> dict[str, object]:
    """Facts of the model from the loss budget: what no quantizer makes, and what families of quantizers do."""
    budget = case.record.loss_budget
    if budget is None:
        return {}
    leading = leading_output(budget)
    share = simulated_share(budget, leading)
    families = {"weights" if f.kind == "weight" else "activations": f for f in budget.families}
    return {
        "unsimulated_share": 1.0 - share,
        "departures_share": None if budget.departures is None else sum(d.shares[leading] for d in budget.departures),
        **{name: _facts_of_family(family, budget, leading, share) for name, family in families.items()},
    }


def _facts_of_family(family: FamilyRecord, budget: LossBudget, output: int, share: float) -> FamilyFacts:
    kinds = ("weight",) if family.kind == "weight" else ("activation", "input")
    own = [piece.shares[output] for piece in budget.pieces if piece.sources[0].kind in kinds]
    return FamilyFacts(share=share * sum(own), outcome=_outcomes(family.heals, family.last[output], output))


def _outcomes(heals: Mapping[str, tuple[float, ...]], made: float, output: int) -> OutcomeFacts:
    """What each kind of change takes away of the noise that is made."""
    if not heals:
        return OutcomeFacts()
    gone = {kind.replace("-", "_"): values[output] / made if made > 0 else 0.0 for kind, values in heals.items()}
    found = {name: gone.get(name, 0.0) for name in OutcomeFacts.model_fields}
    symmetric = max(found["full_range"], found["best_range"])
    return OutcomeFacts(**found | {"zero_point": found["asymmetric_range"] - symmetric})


def misfit_share(case: Case, tensors: Sequence[TensorFacts]) -> float | None:
    """Share of the noise at the output that would not be there if ranges suited both sets of data alike.

    A quantizer that rounds the representative values so many dB better than the validation values was fitted to other
    data: clipped where those reach further, and too wide where they do not reach as far. None without both sets or a
    loss budget, or where it is not known of quantizers that make `UNKNOWN` of the noise how well they hold both.
    """
    budget = case.record.loss_budget
    if budget is None or not {"representative", "validation"} <= case.statistics.keys():
        return None
    leading = leading_output(budget)
    share = simulated_share(budget, leading)
    found = unknown = 0.0
    for piece in budget.pieces:
        gaps = [_gap_db(tensors[i]) for source in piece.sources for i in source.tensors]
        if len(piece.sources) != 1 or not gaps:
            continue
        made, known = max(piece.shares[leading], 0.0), [gap for gap in gaps if gap is not None]
        if len(known) < len(gaps):
            unknown += made
        else:
            found += made * min(share_of_gain(max(min(known), 0.0)), _mended_by_data(piece, leading))
    return min(found * share, 1.0) if unknown < UNKNOWN else None


def odd_range_share(case: Case, tensors: Sequence[TensorFacts]) -> float | None:
    """Share of the noise at the output that ranges make which a few odd values of the representative set have set.

    Counted is what goes with the range of the judged values, of quantizers whose usual samples are as wide in both sets
    while the whole representative set is half a bit wider. None without both sets or a loss budget.
    """
    budget = case.record.loss_budget
    if budget is None or not {"representative", "validation"} <= case.statistics.keys():
        return None
    leading = leading_output(budget)
    found = sum(
        max(piece.shares[leading], 0.0) * _mended_by_data(piece, leading)
        for piece in budget.pieces
        if len(piece.sources) == 1 and (read := piece.sources[0].tensors) and all(_is_odd(tensors[i]) for i in read)
    )
    return min(found * simulated_share(budget, leading), 1.0)


def _is_odd(tensor: TensorFacts) -> bool:
    """The usual representative sample is as wide as the usual validation sample, the whole set much wider."""
    there, here = tensor.representative.values, tensor.validation.values
    if not (there.width and here.width and there.sample_range_ratio and here.sample_range_ratio):
        return False
    wider = there.width / here.width
    return wider > HALF_A_BIT and wider * there.sample_range_ratio / here.sample_range_ratio < ALIKE


def _mended_by_data(piece: PieceRecord, output: int) -> float:
    """Share of the noise of a piece that goes with the range of the validation values; 1 where that was not tried."""
    made, changes = _experiment_on(piece, output)
    gone = changes.heals.get("full-range")
    return 1.0 if gone is None or made <= 0 else min(max(gone[output] / made, 0.0), 1.0)


def _gap_db(tensor: TensorFacts) -> float | None:
    """How much better the tensor's grid holds the representative values than the validation values."""
    if tensor.quantizer.dynamic:
        return 0.0
    there, here = tensor.representative.rounding.sqnr_db, tensor.validation.rounding.sqnr_db
    if there is None or here is None:
        return None
    return there - here if math.isfinite(here) else 0.0


def source_facts(budget: LossBudget) -> dict[tuple[SourceKind, int], SourceFacts]:
    """What every quantizer does that was measured by itself, by its kind and the index of its tensor or operator."""
    leading = leading_output(budget)
    share = simulated_share(budget, leading)
    found: dict[tuple[SourceKind, int], SourceFacts] = {}
    for piece in budget.pieces:
        if len(piece.sources) == 1:
            source = piece.sources[0]
            facts = _facts_of_piece(piece, leading, share)
            found |= dict.fromkeys([(source.kind, i) for i in (*source.tensors, *source.operators)], facts)
    return found


def alone_sqnr_db(budget: LossBudget) -> dict[int, float]:
    """SQNR of the leading output where only one tensor is quantized, by the index of the tensor."""
    leading = leading_output(budget)
    return {
        i: sqnr_db(1.0, piece.alone[leading] * budget.simulated[leading])
        for piece in budget.pieces
        if len(piece.sources) == 1
        for i in piece.sources[0].tensors
    }


def leading_output(budget: LossBudget) -> int:
    """The judged output by which sources are ranked: that of the source which loses most of the task, or the noisiest.

    Of boxes and scores the task may be lost in the one, and the other be noisier.
    """
    loser = _loser_of_the_task(budget)
    if loser is not None and max(loser.shares) >= MOST:
        return int(np.argmax(loser.shares))
    return int(np.argmax(budget.deployed))


def _loser_of_the_task(budget: LossBudget) -> PieceRecord | None:
    """The piece that loses most of the task, where chance does not explain that; None where there is none."""
    lost = float(np.mean(budget.task.simulated)) if budget.task is not None else 0.0
    for piece in budget.pieces:
        own = np.array(piece.task.share if piece.task is not None else ())
        if lost > 0 and len(own) > 1 and own.mean() >= MOST * lost:
            return piece if own.mean() > SURE * own.std(ddof=1) / math.sqrt(len(own)) else None
    return None


def simulated_share(budget: LossBudget, output: int) -> float:
    """Share of a quantized model's noise at an output that its quantizers make; all where the simulated has more."""
    return float(simulated_shares(np.array(budget.simulated), np.array(budget.deployed))[output])


def simulated_shares(simulated: NDArray[np.float64], deployed: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same for all outputs, by the noise of the simulated network and of the quantized model there."""
    found: NDArray[np.float64] = np.divide(simulated, deployed, out=np.ones_like(deployed), where=deployed > 0)
    return np.minimum(found, 1.0)


def _facts_of_piece(piece: PieceRecord, output: int, share: float) -> SourceFacts:
    made, changes = _experiment_on(piece, output)
    return SourceFacts(
        share=piece.shares[output] * share,
        last=piece.last[output] * share,
        mechanism=mechanism_of(piece, output),
        outcome=_outcomes(changes.heals, made, output),
    )


def _experiment_on(piece: PieceRecord, output: int) -> tuple[float, ChangesRecord]:
    """The noise that the changes of a piece were tried on, and what they take of it."""
    if piece.hidden is not None:
        return piece.alone[output], piece.hidden
    return piece.last[output], piece


def is_mended(piece: PieceRecord, kind: str, output: int) -> bool:
    """A kind of change takes away most of the noise that a piece makes at an output; False where it was not tried."""
    made, changes = _experiment_on(piece, output)
    gone = changes.heals.get(kind)
    return gone is not None and made > 0 and gone[output] >= MOST * made


def mechanism_of(piece: PieceRecord, output: int) -> Mechanism | None:
    """How the quantizer of an activation makes noise at an output, by what takes most of it away."""
    made, changes = _experiment_on(piece, output)
    if changes.clipped_low is None or changes.clipped_high is None or made <= 0:
        return None
    ends = {name: getattr(changes, field)[output] for name, field in _CLIPPED}
    cut = [name for name, gone in ends.items() if gone >= MOST * made]
    if len(cut) == 1:
        return cut[0]
    if cut or sum(max(gone, 0.0) for gone in ends.values()) >= MOST * made:
        return "clipped"
    gone = {kind: values[output] for kind, values in changes.heals.items()}
    return next((name for name, kind in _SHOWN_BY if gone.get(kind, 0.0) >= MOST * made), None)


# --- What decodes the boxes and scores of a detector ------------------------------------------------------------------


def decoder_fields(layers: tuple[LayerFacts, ...], case: Case) -> FieldsByPlace:
    """Of layers that decode the head of a detector, how much of the noise all of them make.

    What joins boxes and scores knows the others. What it rounds on its one grid, the rules about joints tell of (G001,
    G002).
    """
    found = {layer.float_name: k for k, layer in enumerate(layers) if layer.float_name}
    changed: dict[int, dict[str, object]] = {}
    for output in case.record.outputs:
        places = sorted({found[name] for name in output.decoder if name in found})
        made = {i for k in places for i in case.record.operators[k].outputs if i is not None}
        share = _share_of(case.record.loss_budget, made - set(output.carriers), places)
        names = [name for k in places if (name := layers[k].name)]
        for k in places:
            changed[k] = _decoder_facts(layers[k], names, share)
    return changed


def _share_of(budget: LossBudget | None, tensors: Collection[int], operators: Collection[int]) -> float | None:
    """Share of the noise at the leading output that quantizing these makes; None where nothing of them was measured.

    Of sources that no run took apart all must be among them.
    """
    if budget is None:
        return None
    leading = leading_output(budget)
    own = [
        piece.shares[leading]
        for piece in budget.pieces
        if all(_is_among(source, tensors, operators) for source in piece.sources)
        and not any(is_mended(piece, kind, leading) for kind in _RANGES)
    ]
    return min(sum(own) * simulated_share(budget, leading), 1.0) if own else None


def _is_among(source: SourceRecord, tensors: Collection[int], operators: Collection[int]) -> bool:
    if source.kind in ("weight", "bias"):
        return all(k in operators for k in source.operators)
    return all(i in tensors for i in source.tensors)


def _decoder_facts(layer: LayerFacts, names: list[str], share: float | None) -> dict[str, object]:
    if layer.op_type != "Concat":
        return {"decoder_share": share}
    others = tuple(name for name in names if name != layer.name)
    return {"decoder_share": share, "decoder": others, "decoder_layers": len(others) or None}
