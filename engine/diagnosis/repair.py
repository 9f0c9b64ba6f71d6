"""Facts as they would be after a change: what vanishes then was explained by what the change repairs."""

import math
from collections.abc import Iterable, Mapping
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.budget_record import ChangesRecord, LossBudget, PieceRecord, SourceRecord
from quantmedic.engine.case.facts import (
    BiasFacts,
    CaseFacts,
    ClippingFacts,
    ConstantFacts,
    DatasetFacts,
    ErrorFacts,
    ModelFacts,
    QuantizerFacts,
    RecordedFacts,
    Role,
    SourceFacts,
    TensorDataFacts,
    TensorFacts,
    WeightFacts,
)
from quantmedic.engine.case.records import Case, OperatorRecord
from quantmedic.engine.diagnosis.prediction import Prediction
from quantmedic.engine.formulas.change import Change, WeightForm
from quantmedic.engine.formulas.datasets import clipped_shares
from quantmedic.engine.formulas.derive import assemble
from quantmedic.engine.formulas.distributions import NO_CLIPPING
from quantmedic.engine.formulas.domain import clipped_ratio
from quantmedic.engine.formulas.error_facts import NO_ERROR
from quantmedic.engine.formulas.simulate import (
    AnyGrid,
    ChannelGrid,
    Grid,
    best_grids,
    grid_columns,
    noises,
    predict_sqnrs,
)
from quantmedic.engine.formulas.stored_bins import bin_tables, extremes, main_role, seen_tensors
from quantmedic.engine.formulas.tensors import grid_facts, is_signed_grid
from quantmedic.engine.rules.rulebase import RuleBase

#: Shares of less noise than this are not known: that is what pieces are not exact by.
LEAST_LEFT = 0.01
#: Facts of a tensor that rest on its grid, or on that of others, and are not simulated.
_UNKNOWN_ON_NEW_GRIDS = (
    "zero_point_gain_db",
    "unmasked_levels",
    "unmasked_sqnr_db",
    "inner_sqnr_db",
    "inner_share",
    "clip_lost",
    "floor_lost",
)
#: Facts of weights as they are stored now; what they are predicted to be on other grids stays.
_NOT_AS_STORED = dict.fromkeys(
    (
        "rounding_mean_steps",
        "shift_error_share",
        "coarse_share",
        "misplaced_share",
        "misplaced_error_share",
        "disordered_share",
        "gain_error_share",
        "similarity",
        "found_as",
        "axis_gain_db",
        "scale_axis",
        "distinct_codes",
        "effective_bits",
        "predicted_best_gain_db",
    )
)


def facts_after(case: Case, facts: CaseFacts, base: RuleBase, change: Change, outcome: Prediction | None) -> CaseFacts:
    """Facts after a change.

    Rounding errors are simulated on the stored histograms. Accumulated errors depend on the whole network and become
    unknown, the harm too unless a simulated run predicts it; facts about the inputs of a data set stay as they are.

    Args:
        case: What was measured.
        facts: Facts of the case as it is.
        base: Supplies thresholds.
        change: What is altered.
        outcome: What a simulated run of the change recovers.
    """
    tensors = _regridded_tensors(case, facts, change.grids)
    operators = _changed_operators(case.record.operators, change)
    left = _without_changed(case.record.loss_budget, change)
    altered = case.with_record(operators=operators, loss_budget=left)
    after = assemble(altered, base, tensors, _with_new_clipping(case, facts, tensors))
    return after.model_copy(update={"model": _with_outcome(after.model, facts.model, base, outcome)})


def _without_changed(budget: LossBudget | None, change: Change) -> LossBudget | None:
    """The budget without what a change alters, of which nothing is known: the others make what noise is left."""
    if budget is None:
        return None
    kept = [piece for piece in budget.pieces if not any(_is_changed(source, change) for source in piece.sources)]
    changed = {source.kind for piece in budget.pieces if piece not in kept for source in piece.sources}
    families = tuple(family for family in budget.families if family.kind not in changed)
    left = np.sum([piece.shares for piece in kept], axis=0) if kept else np.ones(len(budget.outputs))
    left = np.where((left > LEAST_LEFT) & (left < 1.0), left, 1.0)
    simulated, deployed = np.array(budget.simulated), np.array(budget.deployed)
    rest = deployed - simulated * (1.0 - left)
    share = np.divide(rest, deployed, out=np.ones_like(rest), where=(rest > 0) & (deployed > 0))
    departures = budget.departures and tuple(
        each.model_copy(update={"shares": tuple((np.array(each.shares) / share).tolist())})
        for each in budget.departures
    )
    return budget.model_copy(
        update={
            "departures": departures,
            "pieces": tuple(_of_less(piece, left) for piece in kept),
            "families": families,
            "simulated": tuple((simulated * left).tolist()),
            "deployed": tuple((deployed * share).tolist()),
        }
    )


def _of_less(piece: PieceRecord, left: NDArray[np.float64]) -> PieceRecord:
    """A piece with its shares of the noise that is left, a share of the whole for each output."""

    def scale(shares: tuple[float, ...]) -> tuple[float, ...]:
        return tuple((np.array(shares) / left).tolist())

    def scale_changes(record: ChangesRecord) -> dict[str, object]:
        ends = {"clipped_low": record.clipped_low, "clipped_high": record.clipped_high}
        return {name: own and scale(own) for name, own in ends.items()} | {
            "heals": {kind: scale(own) for kind, own in record.heals.items()}
        }

    hidden = piece.hidden and piece.hidden.model_copy(update=scale_changes(piece.hidden))
    own = {name: scale(getattr(piece, name)) for name in ("shares", "alone", "last")}
    return piece.model_copy(update={**scale_changes(piece), **own, "hidden": hidden})


def _is_changed(source: SourceRecord, change: Change) -> bool:
    if source.kind == "weight":
        return not change.weights.keys().isdisjoint(source.operators)
    return not (change.grids.keys().isdisjoint(source.tensors) and change.biases.isdisjoint(source.operators))


def _changed_operators(operators: Iterable[OperatorRecord], change: Change) -> tuple[OperatorRecord, ...]:
    return tuple(
        op.model_copy(
            update={
                "weight": _weights_in_form(op.weight, change.weights[k]) if k in change.weights else op.weight,
                "bias": BiasFacts(bits=0) if k in change.biases else op.bias,
                "constant": ConstantFacts() if k in change.biases else op.constant,
            }
        )
        for k, op in enumerate(operators)
    )


def _weights_in_form(weight: WeightFacts, form: WeightForm) -> WeightFacts:
    """Weights stored in another form; how well they are rounded there was not measured."""
    quantizer = weight.quantizer
    match form:
        case "float":
            quantizer = QuantizerFacts()
        case "per-channel":
            quantizer = QuantizerFacts(bits=quantizer.bits, signed=True, symmetric=True, granularity="per_channel")
        case "eight-bit":
            quantizer = QuantizerFacts(bits=8, signed=True, symmetric=True, granularity="per_channel")
        case "best-range":
            pass  # the same grid with other limits
        case _:
            assert_never(form)
    return weight.model_copy(update={"quantizer": quantizer, "rounding": NO_ERROR} | _NOT_AS_STORED)


def _regridded_tensors(case: Case, facts: CaseFacts, grids: Mapping[int, AnyGrid | None]) -> tuple[TensorFacts, ...]:
    role = main_role(case)
    statistics = case.statistics[role]
    tensors = facts.tensors
    changed = {i: _with_quantizer(tensors[i], role, QuantizerFacts()) for i, grid in grids.items() if grid is None}
    changed |= {i: _on_channel_grid(tensors[i], role, g) for i, g in grids.items() if isinstance(g, ChannelGrid)}
    _, highest = extremes(statistics)
    for part, bins in bin_tables(
        case, main_role(case), [i for i in seen_tensors(statistics) if isinstance(grids.get(i), Grid)]
    ):
        rows = np.arange(len(part))
        chosen = [grid for i in part if isinstance(grid := grids[i], Grid)]
        bits = np.array([_grid_bits(grid) for grid in chosen], np.int64)
        # Where the codes are shared out freely between the signs, the best range is known unless the bits change.
        same = [tensors[i].quantizer.bits == b for i, b in zip(part, bits.tolist(), strict=True)]
        best = np.array([math.inf if (db := tensors[i].best_sqnr_db) is None else db for i in part])
        signed = np.array([is_signed_grid(tensors[i].quantizer) for i in part], bool)
        if signed.any():
            best[signed] = best_grids(bins, rows[signed], bits[signed], signed[signed])[1]
        columns = grid_columns(chosen)
        numbers = np.column_stack(
            [noises(bins, rows, columns), bins.powers(), predict_sqnrs(bins, rows, columns), best]
        )
        for i, grid, known, (mse, power, now, most) in zip(part, chosen, same, numbers.tolist(), strict=True):
            gain = max(most - now, 0.0) if known and math.isfinite(most - now) else None
            changed[i] = _tensor_on_grid(tensors[i], role, grid, mse, power, now, gain, float(highest[i]))
    # Of a tensor whose own range stays, what arrives there is unknown.
    return tuple(
        changed.get(i) or tensor.model_copy(update={"data": _unknown_arrival(tensor.data)})
        for i, tensor in enumerate(tensors)
    )


def _grid_bits(grid: AnyGrid) -> int:
    return math.ceil(math.log2(grid.codes))


def _unknown_arrival(data: TensorDataFacts) -> TensorDataFacts:
    errors = {"accumulated": NO_ERROR, "step": NO_ERROR, "local_sqnr_db": data.rounding.sqnr_db}
    gone = ("amplification", "input_sqnr_db", "rounding_share", "normalized_mse")
    return data.model_copy(update={**errors, **dict.fromkeys(gone)})


def _on_channel_grid(tensor: TensorFacts, role: Role, grid: ChannelGrid) -> TensorFacts:
    """A tensor with another grid for every channel: histograms, which are of all channels, tell no error of it."""
    update = {"scale": max(each.step for each in grid.grids), "bits": _grid_bits(grid)}
    return _with_quantizer(tensor, role, tensor.quantizer.model_copy(update=update))


def _with_quantizer(tensor: TensorFacts, role: Role, quantizer: QuantizerFacts) -> TensorFacts:
    """A tensor with a quantizer of whose errors nothing is known."""
    nothing = {"rounding": NO_ERROR, "clipping": NO_CLIPPING, "predicted_best_gain_db": None, "local_sqnr_db": None}
    data = _unknown_arrival(tensor.data).model_copy(update=nothing)
    gone = dict.fromkeys(("best_sqnr_db", *_UNKNOWN_ON_NEW_GRIDS)) | grid_facts(
        tensor.data.values, quantizer, tensor.producer
    )
    # The values that a file records for it are no longer those of the model.
    gone |= {"recorded": RecordedFacts(), "source": SourceFacts()}
    return tensor.model_copy(update={"quantizer": quantizer, "data": data, role: data, **gone})


def _tensor_on_grid(
    tensor: TensorFacts, role: Role, grid: Grid, mse: float, power: float, now: float, gain: float | None, top: float
) -> TensorFacts:
    """A tensor on another grid, where it has ``now`` dB and the best grid for its bits would gain ``gain``."""
    values = tensor.data.values
    rounding = ErrorFacts(
        mse=mse,
        nmse=mse / power if power > 0 else None,
        sqnr_db=now,
        cosine=1.0 / math.sqrt(1.0 + mse / power) if power > 0 else None,
        rmse_over_scale=math.sqrt(mse) / grid.step,
    )
    covered = grid.low - grid.step <= (values.min or 0.0) and top <= grid.high + grid.step
    clipping = ClippingFacts(share=0.0, energy_share=0.0, overshoot=0.0, utilisation=1.0) if covered else NO_CLIPPING
    predicted = gain if tensor.data.predicted_best_gain_db is not None else None
    update = {"rounding": rounding, "clipping": clipping, "predicted_best_gain_db": predicted, "local_sqnr_db": now}
    data = _unknown_arrival(tensor.data).model_copy(update=update)
    quantizer = _quantizer_on_grid(tensor.quantizer, grid)
    known = {"quantizer": quantizer, "recorded": RecordedFacts(), "source": SourceFacts(), "data": data, role: data}
    on_grid = grid_facts(values, quantizer, tensor.producer, predicted)
    return tensor.model_copy(update={**known, **dict.fromkeys(_UNKNOWN_ON_NEW_GRIDS), **on_grid})


def _quantizer_on_grid(quantizer: QuantizerFacts, grid: Grid) -> QuantizerFacts:
    bits = _grid_bits(grid)
    symmetric = math.isclose(-grid.low, grid.high, rel_tol=0.02)
    signed = bool(quantizer.signed)
    lowest = -(2 ** (bits - 1)) if signed else 0
    return quantizer.model_copy(
        update={
            "scale": grid.step,
            "low": grid.low,
            "high": grid.high,
            "bits": bits,
            "power_of_two": math.frexp(grid.step)[0] == 0.5,
            "symmetric": symmetric if signed else grid.low == 0.0,
            "zero_point": 0 if symmetric and signed else lowest - round(grid.low / grid.step),
        }
    )


def _with_new_clipping(case: Case, facts: CaseFacts, tensors: tuple[TensorFacts, ...]) -> tuple[DatasetFacts, ...]:
    """The inputs are what they were; only what the new ranges clip has changed."""
    shares = clipped_shares(case, tensors)
    ratio = clipped_ratio(shares)
    return tuple(
        view.model_copy(update={"clipped_share": view.role and shares.get(view.role), "clipped_share_ratio": ratio})
        for view in facts.datasets
    )


def _with_outcome(after: ModelFacts, before: ModelFacts, base: RuleBase, outcome: Prediction | None) -> ModelFacts:
    """The model's own facts; facts that need a new run are unknown, unless a simulated run predicts them."""
    unknown = (
        "degraded_layers",
        "degraded_share",
        "output_sqnr_db",
        "output_worst_sqnr_db",
        "output_agreement",
        "sqnr_slope_db",
        "sqnr_worst_step_db",
        "dead_output",
        "harmed",
    )
    if outcome is None:
        return after.model_copy(update=dict.fromkeys(unknown))
    predicted = {
        "output_sqnr_db": outcome.sqnr_db,
        "output_agreement": outcome.agreement,
        "harmed": bool(before.harmed) and not outcome.heals(base),
    }
    return after.model_copy(update=dict.fromkeys(unknown) | predicted)
