"""Facts of the activation tensors: formulas only, over all tensors of a data set at once.

A number that is not measured, or undefined, is NaN in a column and None in a fact.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from quantmedic.engine.case.facts import (
    ClippingFacts,
    DistributionFacts,
    QuantizerFacts,
    RecordedFacts,
    Role,
    SettingsFacts,
    TensorDataFacts,
    TensorFacts,
)
from quantmedic.engine.case.histogram import BinTable
from quantmedic.engine.case.records import Case, OperatorRecord, TensorRecord
from quantmedic.engine.case.statistics import ERROR_KINDS, Column, SetStatistics
from quantmedic.engine.decibels import DB_PER_BIT, sqnr_of_nmse
from quantmedic.engine.formulas.columns import Floats, bits_between, per_tensor, ratio, recorded_fields
from quantmedic.engine.formulas.distributions import clipping_of, distributions_of, shape_of
from quantmedic.engine.formulas.error_facts import all_error_facts, deployed_facts
from quantmedic.engine.formulas.fills import beside_fill, end_beside, fill_of, range_of
from quantmedic.engine.formulas.simulate import (
    Grid,
    best_grids,
    grid_columns,
    predict_sqnr,
    predict_sqnrs,
    product_error,
)
from quantmedic.engine.formulas.stored_bins import bin_tables, extremes, main_role, seen_tensors, tensor_bins
from quantmedic.engine.thresholds import Thresholds

#: Clipping that costs nothing.
HARMLESS = ClippingFacts(share=0.0, energy_share=0.0, overshoot=0.0)
#: Operators whose values have long tails by nature.
LONG_TAILED = frozenset({"Exp", "Softmax", "Sigmoid", "Pow", "Div", "Reciprocal", "Sqrt", "ReduceMean"})


def grid_of(quantizer: QuantizerFacts) -> Grid | None:
    """The per-tensor grid of a quantizer; None for per-channel, dynamic and missing ones."""
    if quantizer.low is None or quantizer.high is None or not quantizer.scale:
        return None
    return Grid(quantizer.low, quantizer.high, quantizer.scale)


def tensor_facts(case: Case, thresholds: Thresholds) -> tuple[TensorFacts, ...]:
    """Facts of all tensors, as measured."""
    carried_in = thresholds.threshold("notable_share")
    found = {role: _data_facts(case, role, carried_in) for role in case.statistics}
    best, mask = found[main_role(case)][1] if found else {}, thresholds.threshold("mask_constant")
    return tuple(
        _tensor_facts(case, i, {role: data[i] for role, (data, _) in found.items()}, best.get(i), mask)
        for i in range(len(case.record.tensors))
    )


def predicted_sqnr(case: Case, role: Role, pairs: Sequence[tuple[int, Grid]]) -> list[float | None]:
    """Predicted SQNR in dB of pairs of a tensor's index and a grid; None where nothing finite was seen of a tensor."""
    statistics = case.statistics[role]
    wanted: dict[int, list[int]] = {index: [] for index in seen_tensors(statistics)}
    for place, (index, _) in enumerate(pairs):
        if index in wanted:
            wanted[index].append(place)
    found: list[float | None] = [None] * len(pairs)
    for indices, bins in bin_tables(case, role, [index for index, places in wanted.items() if places]):
        places = [place for index in indices for place in wanted[index]]
        rows = np.repeat(np.arange(len(indices)), [len(wanted[index]) for index in indices])
        for place, value in zip(
            places, predict_sqnrs(bins, rows, grid_columns([pairs[p][1] for p in places])), strict=True
        ):
            found[place] = float(value)
    return found


def _data_facts(
    case: Case, role: Role, carried_in: float
) -> tuple[list[TensorDataFacts], dict[int, tuple[float, float | None]]]:
    """What one data set showed of all tensors, and by index what ``_predictions`` finds about their best range.

    Up to a rounding_share of ``carried_in``, noise is not the tensor's own.
    """
    statistics, records = case.statistics[role], case.record.tensors
    scales = [record.quantizer.scale for record in records]
    rounding, accumulated, step = (
        all_error_facts(_columns_of_kind(statistics, kind), statistics.offsets, scales) for kind in ERROR_KINDS
    )
    shapes: list[dict[str, Floats]] = []
    gains: dict[int, tuple[float, float, float]] = {}
    best: dict[int, tuple[float, float | None]] = {}
    seen = seen_tensors(statistics)
    for part, bins in bin_tables(case, role, seen):
        shapes.append(shape_of(bins))
        found = _predictions(case, part, bins)
        gains |= found[0]
        best |= found[1]
    values = dict(zip(seen, distributions_of(statistics, records, seen, shapes), strict=True))
    clipping, cut = clipping_of(statistics, records), _cut_behind(case, statistics)
    deployed = deployed_facts(statistics.columns, statistics.offsets)
    carried = _input_nmse(case, [error.nmse for error in accumulated])
    nonfinite = per_tensor(np.add, statistics.columns["nonfinite"], statistics.offsets).tolist()
    facts = []
    for i in range(len(records)):
        if i not in values:
            facts.append(TensorDataFacts(dataset=role, values=DistributionFacts(nonfinite_count=nonfinite[i])))
            continue
        gain, low, high = gains.get(i, (None, None, None)) if i not in cut else (None, None, None)
        own = ratio(rounding[i].mse, accumulated[i].mse)
        local = math.inf if own is not None and own <= carried_in else rounding[i].sqnr_db
        facts.append(
            TensorDataFacts(
                dataset=role,
                values=values[i],
                rounding=rounding[i],
                accumulated=accumulated[i],
                step=step[i],
                clipping=clipping[i] if i not in cut else HARMLESS,
                **deployed[i],
                predicted_best_gain_db=gain,
                local_sqnr_db=None if i in cut else local,
                predicted_best_low=low,
                predicted_best_high=high,
                amplification=ratio(_passed_on(accumulated[i].nmse, rounding[i].nmse), carried[i]),
                input_sqnr_db=sqnr_of_nmse(carried[i]),
                rounding_share=own,
            )
        )
    return facts, best


def _cut_behind(case: Case, statistics: SetStatistics) -> set[int]:
    """Tensors whose quantizer cuts off nothing but what a ReLU or Clip behind it does: that costs nothing."""
    low, high = extremes(statistics)
    found = set[int]()
    for operator in case.record.operators:
        before, behind = next(iter(operator.inputs), None), operator.outputs[0]
        if operator.op_type not in ("Relu", "Clip") or before is None or behind is None:
            continue
        record = case.record.tensors[before]
        ends, slack = (record.quantizer.low, record.quantizer.high), record.quantizer.scale or 0.0
        if ends[0] is None or ends[1] is None or len(record.readers) != 1:
            continue
        if low[behind] >= ends[0] - slack and high[behind] <= ends[1] + slack:
            found.add(before)
    return found


def _passed_on(nmse: float | None, own: float | None) -> float | None:
    """Noise without that of the tensor's own quantizer."""
    return nmse if nmse is None or own is None else max(nmse - own, 0.0)


def _columns_of_kind(statistics: SetStatistics, kind: str) -> dict[str, Column]:
    """The columns of one kind of error."""
    return {n.removeprefix(f"{kind}."): c for n, c in statistics.columns.items() if n.startswith(f"{kind}.")}


def is_signed_grid(quantizer: QuantizerFacts) -> bool:
    """Symmetric around 0.0, with codes of either sign."""
    return bool(quantizer.symmetric and (quantizer.low or 0.0) < 0)


def _predictions(
    case: Case, part: Sequence[int], bins: BinTable
) -> tuple[dict[int, tuple[float, float, float]], dict[int, tuple[float, float | None]]]:
    """What other ranges would bring, by the tensor's index.

    Returns:
        Decibels that the best range gains over the one in force, with its ends; SQNR in dB of the best range where the
        codes may be shared out freely between the signs, with what this freedom gains on a symmetric grid.
    """
    known_grids = [case.record.tensors[i].quantizer for i in part]
    rows = np.array([k for k, q in enumerate(known_grids) if grid_of(q) is not None and q.bits is not None], np.int64)
    quantizers = [known_grids[k] for k in rows]
    bits = np.array([quantizer.bits for quantizer in quantizers], np.int64)
    signed = np.array([is_signed_grid(quantizer) for quantizer in quantizers], bool)
    grids, best = best_grids(bins, rows, bits, signed)
    now = predict_sqnrs(bins, rows, grid_columns([grid for q in quantizers if (grid := grid_of(q)) is not None]))
    known = np.isfinite(best) & np.isfinite(now)
    best_gain = np.maximum(np.subtract(best, now, where=known, out=np.zeros(len(best))), 0.0)
    found = np.stack([best_gain, grids[0], grids[1]], axis=1).tolist()
    gains = {part[row]: (*entry,) for row, entry, k in zip(rows, found, known, strict=True) if k}
    freed = np.full(len(rows), np.nan)
    if signed.any():
        free = best_grids(bins, rows[signed], bits[signed], np.zeros(signed.sum(), bool))[1]
        with np.errstate(invalid="ignore"):
            gain = free - best[signed]
            freed[signed] = np.where(gain <= best_gain[signed], 0.0, gain)
        best[signed] = free
    gained = [value if math.isfinite(value) else None for value in freed.tolist()]
    return gains, {part[row]: (b, f) for row, b, f in zip(rows, best.tolist(), gained, strict=True)}


def _input_nmse(case: Case, nmse: Sequence[float | None]) -> list[float | None]:
    """Per tensor the largest accumulated nmse among the inputs of the operator that writes it."""
    writers: dict[int | None, OperatorRecord] = {}
    for op in case.record.operators:
        for index in op.outputs:
            writers.setdefault(index, op)
    carried: list[float | None] = []
    for index in range(len(nmse)):
        inputs = writers[index].inputs if index in writers else ()
        known = [value for i in inputs if i is not None and (value := nmse[i]) is not None]
        carried.append(max(known, default=None))
    return carried


def _tensor_facts(
    case: Case, index: int, data: Mapping[Role, TensorDataFacts], best: tuple[float, float | None] | None, mask: float
) -> TensorFacts:
    record, main_set = case.record.tensors[index], main_role(case)
    main, quantizer = data.get(main_set, TensorDataFacts()), record.quantizer
    best_sqnr_db, zero_point_gain_db = best or (None, None)
    found: dict[str, Any] = {
        **recorded_fields(record, TensorFacts),
        **{str(role): own for role, own in data.items()},
        "data": main,
        "read_by_relu": set(record.consumers) == {"Relu"} if record.consumers else None,
        "channels": record.channels if record.axis is not None else None,
        "best_sqnr_db": best_sqnr_db,
        "zero_point_gain_db": zero_point_gain_db,
        "asymmetry_waste": _asymmetry_waste(main.values),
        "recorded": recorded_facts(record.recorded, data.values(), quantizer),
        "shift_excess": _shift_excess(main.values, quantizer, case.record.model.settings),
        **grid_facts(main.values, quantizer, record.producer, main.predicted_best_gain_db),
        **_facts_beside_fill(case, index, main.values, mask),
        **_inner_noise_facts(case, record, main),
    }
    return TensorFacts(**found)


def grid_facts(
    values: DistributionFacts, quantizer: QuantizerFacts, producer: str | None = None, gain_db: float | None = None
) -> dict[str, Any]:
    """Fields of ``TensorFacts`` that set a distribution against the grid of a quantizer.

    Args:
        values: The distribution.
        quantizer: The quantizer.
        producer: Operator type that makes the values.
        gain_db: What the best range gains.
    """
    reach = None if quantizer.low is None or quantizer.high is None else max(-quantizer.low, quantizer.high)
    negative = None if values.min is None else max(-values.min, 0.0)
    held = None if negative is None or quantizer.low is None else min(negative, max(0.0, -quantizer.low))
    typical, slack = ratio(values.absmax, values.absmax_over_median), ratio(reach, values.absmax)
    excess, is_long_tailed = bits_between(values.abs_p99_99, reach), producer in LONG_TAILED
    regained = (gain_db or 0.0) / DB_PER_BIT
    share, width = values.sample_range_ratio, values.width
    sample = None if share is None or width is None else share * width
    return {
        "negative_levels": _on_fitting_range(ratio(held, quantizer.scale), slack),
        "negative_ratio": ratio(negative, quantizer.high),
        "range_excess_bits": excess,
        "outlier_bits": min(excess, regained) if is_long_tailed and excess is not None else excess,
        "outlier_ratio": 0.0 if is_long_tailed else values.absmax_over_median,
        "overflow_ratio": ratio(values.absmax, quantizer.reach),
        "range_slack": slack,
        "power_of_two_excess": ratio(reach, _next_power_of_two(values.absmax)) if quantizer.power_of_two else None,
        "sample_levels": _on_fitting_range(ratio(sample, quantizer.scale), slack),
        "median_levels": ratio(typical, quantizer.scale),
    }


def _on_fitting_range(levels: float | None, slack: float | None) -> float | None:
    """Levels on a grid that reaches no further than the values, where the grid reaches ``slack`` times as far."""
    return None if levels is None else levels * max(slack or 1.0, 1.0)


def _next_power_of_two(value: float | None) -> float | None:
    """The least power of two that reaches it; None of what is none, zero or infinite."""
    if value is None or value <= 0 or not math.isfinite(value):
        return None
    fraction, exponent = math.frexp(value)
    return math.ldexp(1.0, exponent - 1 if fraction == 0.5 else exponent)


def recorded_facts(
    recorded: RecordedFacts, data: Iterable[TensorDataFacts], quantizer: QuantizerFacts
) -> RecordedFacts:
    """What a file records of a tensor, held against the values of all data sets and the quantizer of the model."""
    if recorded.low is None or recorded.high is None or recorded.high <= recorded.low:
        return recorded
    low, high = recorded.low, recorded.high
    values = [found.values for found in data]
    reach, seen = max(abs(low), abs(high)), max((v.absmax for v in values if v.absmax is not None), default=None)
    deployed = None
    if quantizer.low is not None and quantizer.high is not None:
        deployed = ratio(high - low, quantizer.high - quantizer.low)
    return recorded.model_copy(
        update={
            "overshoot": _overshoot([(v.min, v.max) for v in values], low, high),
            "bulk_overshoot": _overshoot([(v.p1, v.p99) for v in values], low, high),
            "slack": ratio(reach, seen),
            "deployed_ratio": None if not deployed else max(deployed, 1 / deployed),
        }
    )


def _overshoot(ends: Iterable[tuple[float | None, float | None]], low: float, high: float) -> float | None:
    """How far the ends reach beyond a range, over its width; the farthest."""
    known = [(a, b) for a, b in ends if a is not None and b is not None]
    beyond = [max(b - high, low - a, 0.0) for a, b in known]
    return max(beyond) / (high - low) if beyond else None


def _shift_excess(values: DistributionFacts, quantizer: QuantizerFacts, settings: SettingsFacts) -> float | None:
    if not settings.shift_negative or values.min is None or quantizer.low is None or quantizer.high is None:
        return None
    reach = max(-quantizer.low, quantizer.high)
    return ratio(ratio(max(-values.min, 0.0), reach), settings.shift_negative_ratio)


def _asymmetry_waste(values: DistributionFacts) -> float | None:
    if values.min is None or values.max is None:
        return None
    share = ratio(max(values.max, 0.0) - min(values.min, 0.0), 2 * max(values.max, -values.min))
    return None if share is None else 1.0 - share


def _facts_beside_fill(case: Case, index: int, values: DistributionFacts, mask: float) -> dict[str, Any]:
    """Fields of ``TensorFacts`` about a constant at which a range ends, and about the values beside it."""
    record = case.record.tensors[index]
    grid, fill = grid_of(record.quantizer), fill_of(record, values.min, values.max, mask)
    bins = tensor_bins(case, main_role(case), index) if fill is not None and grid is not None else None
    beside = beside_fill(bins, fill) if bins is not None and fill is not None else None
    if beside is None or grid is None or fill is None:
        return {"fill": fill}
    low, high = range_of(beside)
    return {
        "fill": fill,
        "unmasked_end": end_beside(beside, fill, reads_softmax=record.pattern == "softmax-input"),
        "unmasked_levels": (high - low) / grid.step,
        "unmasked_sqnr_db": float(predict_sqnr(beside, [grid])[0]) if beside.power() > 0 else None,
    }


def _inner_noise_facts(case: Case, record: TensorRecord, main: TensorDataFacts) -> dict[str, Any]:
    """Fields of ``TensorFacts`` about the noise inside a product of a tensor with a function of itself."""
    if record.gate is None:
        return {}
    bins = tensor_bins(case, main_role(case), record.gate.source)
    if bins is None:
        return {}
    noise, power = product_error(bins, record.gate, grid_of(case.record.tensors[record.gate.source].quantizer))
    return {"inner_sqnr_db": sqnr_of_nmse(ratio(noise, power)), "inner_share": ratio(noise, main.accumulated.mse)}


def with_neighbour_bits(case: Case, tensors: tuple[TensorFacts, ...]) -> tuple[TensorFacts, ...]:
    """The tensors with ``bits_below_neighbours``, which is None where all grids of a network have as many bits."""
    bits = [None if tensor.quantizer.dynamic else tensor.quantizer.bits for tensor in tensors]
    if len({own for own in bits if own is not None}) < 2:
        return tensors
    read: dict[int, list[int]] = {}
    written: dict[int, list[int]] = {}
    for op in case.record.operators:
        inputs, outputs = ([i for i in ends if i is not None] for ends in (op.inputs, op.outputs))
        for i in outputs:
            read.setdefault(i, []).extend(inputs)
        for i in inputs:
            written.setdefault(i, []).extend(outputs)
    found = list(tensors)
    for i, own in enumerate(bits):
        sides = [_fewest(bits, places.get(i, ())) for places in (read, written)]
        known = [side for side in sides if side is not None]
        if own is not None and len(known) == len(sides):
            found[i] = tensors[i].model_copy(update={"bits_below_neighbours": min(known) - own})
    return tuple(found)


def _fewest(bits: Sequence[int | None], places: Iterable[int]) -> int | None:
    return min((own for place in places if (own := bits[place]) is not None), default=None)


def quantized_for(op: OperatorRecord, tensors: Sequence[TensorFacts]) -> Iterator[int]:
    """What an operator writes, and what a product reads on a grid that is found at run time: that is its own."""
    yield from (i for i in op.outputs if i is not None and not tensors[i].quantizer.dynamic)
    if op.is_compute:
        yield from (i for i in op.inputs if i is not None and tensors[i].quantizer.dynamic)


def run_time_bits(op: OperatorRecord, tensors: Sequence[TensorFacts]) -> int | None:
    """Bits of an input that a product quantizes anew at every run, on one grid; other operators read its values."""
    if not op.is_compute:
        return None
    grids = (tensors[i].quantizer for i in op.inputs if i is not None)
    return min((grid.bits for grid in grids if grid.dynamic and grid.bits is not None), default=None)
