"""Facts of the activation tensors: formulas only, over all tensors of a data set at once.

A number that is not measured, or undefined, is NaN in a column and None in a fact.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.facts import (
    ClippingFacts,
    DistributionFacts,
    ErrorFacts,
    QuantizerFacts,
    RecordedFacts,
    Role,
    SettingsFacts,
    TensorDataFacts,
    TensorFacts,
    WeightErrorFacts,
)
from quantmedic.engine.case.histogram import Bins, BinTable
from quantmedic.engine.case.records import Case, OperatorRecord, TensorRecord
from quantmedic.engine.case.statistics import ERROR_KINDS, EXTREME_SAMPLES, LATTICE_POINTS, SetStatistics
from quantmedic.engine.decibels import sqnr_of_nmse, to_decibels
from quantmedic.engine.formulas.self_gating import product_error
from quantmedic.engine.formulas.simulate import Grid, best_grids, grid_columns, predict_sqnr, predict_sqnrs

#: Channels with less than this share of the loudest channel's power are not judged for their own error.
AUDIBLE = 1e-4
#: Of weights all channels count but dead ones, for what is behind may amplify them: 1e-6 of the largest magnitude.
ALIVE = 1e-12
#: A channel whose noise power exceeds this share of its own power is lost, however quiet it is.
LOST = 0.5
#: Tensors whose histograms are worked on together: few enough for the processor's cache.
_TOGETHER = 128
#: What is known of an error that was not measured.
NO_ERROR = ErrorFacts()
NO_CLIPPING = ClippingFacts()
_QUANTILES = {"p0_01": 0.0001, "p1": 0.01, "p50": 0.5, "p99": 0.99, "p99_99": 0.9999}
#: Facts that rest on the smallest and largest values.
_EXTREME = (
    "zscore_max",
    "tail_share",
    "tail_body_ratio",
    "range_inflation_bits",
    "channel_absmax_ratio",
    "channel_shape_ratio",
    "absmax_over_median",
    "sample_range_ratio",
    "range_growth",
    "halves_disagreement",
)
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def main_role(case: Case) -> Role:
    """The data set that the facts under ``data`` come from: validation where there is one."""
    return "validation" if "validation" in case.statistics else "representative"


def grid_of(quantizer: QuantizerFacts) -> Grid | None:
    """The per-tensor grid of a quantizer; None for per-channel, dynamic and missing ones."""
    if quantizer.low is None or quantizer.high is None or not quantizer.scale:
        return None
    return Grid(quantizer.low, quantizer.high, quantizer.scale)


def tensor_bins(case: Case, role: Role, index: int) -> Bins | None:
    """Histogram of a float tensor on one data set; None where nothing finite was seen."""
    statistics = case.statistics.get(role)
    if statistics is None or index not in statistics.histograms:
        return None
    view = statistics.tensor(index)
    if not view.count.sum():
        return None
    bins = Bins.of(view.histogram, float(view.min.min()), float(view.max.max()))
    points = input_points(case, role)
    return bins.on_points({0: points}) if points is not None and index == case.record.input_tensor else bins


def bin_tables(case: Case, role: Role, indices: Sequence[int]) -> Iterator[tuple[list[int], BinTable]]:
    """Histograms of the given tensors, of which something finite was seen, some tensors at a time."""
    statistics = case.statistics[role]
    lowest, highest = extremes(statistics)
    points = input_points(case, role)
    for start in range(0, len(indices), _TOGETHER):
        part = list(indices[start : start + _TOGETHER])
        bins = BinTable.of_many([statistics.histograms[i] for i in part], lowest[part], highest[part])
        if points is not None and case.record.input_tensor in part:
            bins = bins.on_points({part.index(case.record.input_tensor): points})
        yield part, bins


def input_points(case: Case, role: Role) -> Floats | None:
    """The distinct values of an input that takes few, such as 8-bit images; None where there are many."""
    known = case.statistics[role].lattice
    if not known or not all(0 < len(values) <= LATTICE_POINTS for values in known):
        return None
    return np.unique(np.concatenate(known)).astype(np.float64)


def extremes(statistics: SetStatistics) -> tuple[Floats, Floats]:
    """Smallest and largest finite value of every tensor; infinite where none was seen."""
    columns, offsets = statistics.columns, statistics.offsets
    return per_tensor(np.minimum, columns["min"], offsets), per_tensor(np.maximum, columns["max"], offsets)


def seen_tensors(statistics: SetStatistics) -> list[int]:
    """Indices of the tensors of which something finite was seen."""
    count = per_tensor(np.add, statistics.columns["count"], statistics.offsets)
    return [
        i for i in np.flatnonzero(count > 0).tolist() if i in statistics.histograms and statistics.histograms[i].any()
    ]


def tensor_facts(case: Case) -> tuple[TensorFacts, ...]:
    """Facts of all tensors, as measured."""
    found = {role: _data_facts(case, role) for role in case.statistics}
    best = found[main_role(case)][1] if found else {}
    return tuple(
        _tensor_facts(case, i, {role: data[i] for role, (data, _) in found.items()}, best.get(i))
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


def error_facts(columns: Mapping[str, NDArray[Any]], scale: float | None, *, audible: float = AUDIBLE) -> ErrorFacts:
    """Errors of one tensor from the sums of one kind, a value per channel: see ``all_error_facts``."""
    return all_error_facts(columns, np.array([0, len(columns["count"])]), [scale], audible=audible)[0]


def all_error_facts(
    columns: Mapping[str, NDArray[Any]],
    offsets: Integers,
    scales: Sequence[float | None],
    *,
    audible: float = AUDIBLE,
) -> list[ErrorFacts]:
    """Errors from the sums of one kind: ``count``, ``sum`` Σd, ``square`` Σd², ``cross`` Σx·d, ``power`` Σx².

    Channels with less than the share ``audible`` of the loudest one's power do not count for the worst one.
    """
    count = per_tensor(np.add, columns["count"], offsets)
    total, square, cross, power = (
        per_tensor(np.add, columns[name], offsets) for name in ("sum", "square", "cross", "power")
    )
    with np.errstate(all="ignore"):
        mse, mean = square / count, total / count
        nmse = np.where(power > 0, square / power, np.nan)
        norm = np.sqrt(power * np.maximum(power + 2 * cross + square, 0.0))
        cosine = np.where(norm > 0, np.minimum((power + cross) / norm, 1.0), np.nan)
        std = np.sqrt(np.maximum(mse - mean * mean, 0.0))
        steps = np.sqrt(mse) / np.array([scale or np.nan for scale in scales])
        worst, channel = _worst_channel(columns, offsets, power, audible)
    fields = {
        "mse": mse,
        "nmse": nmse,
        "sqnr_db": -to_decibels(nmse),
        "cosine": cosine,
        "mean": mean,
        "std": std,
        "max": per_tensor(np.maximum, columns["max"], offsets),
        "rmse_over_scale": steps,
        "bias_over_std": _bias_over_std(columns, offsets),
        "worst_channel_sqnr_db": -to_decibels(worst),
        "worst_channel": channel,
        "lost_channels": _lost_channels(columns, offsets),
        "median_channel_sqnr_db": -to_decibels(_median_channel(columns, offsets)),
    }
    rows = _rows(fields)
    return [ErrorFacts(**row) if n else NO_ERROR for n, row in zip(count.tolist(), rows, strict=True)]


def weight_error_facts(case: Case, op: OperatorRecord, tensors: Sequence[TensorFacts]) -> WeightErrorFacts:
    """What the error of an operator's weights does to its output, on the data set that the facts come from.

    Unknown where the weights, or what arrives at the output, are not as measured.
    """
    index = next((i for i in op.outputs if i is not None), None)
    if index is None or op.weight.rounding.mse is None or tensors[index].data.accumulated.mse is None:
        return WeightErrorFacts()
    role = main_role(case)
    statistics = case.statistics[role]
    rows = slice(int(statistics.offsets[index]), int(statistics.offsets[index + 1]))
    columns = {name: column[rows] for name, column in statistics.columns.items()}
    seen, measured = columns["weights.count"], columns["accumulated.count"]
    if not len(seen) or not (seen > 0).all() or not (measured > 0).all():
        return WeightErrorFacts()
    shift, noise = columns["weights.sum"] / seen, columns["weights.square"] / seen
    mean, mse = columns["accumulated.sum"] / measured, columns["accumulated.square"] / measured
    power = columns["accumulated.power"] / measured
    # What the prediction and the measurement agree on.
    agreed = np.where(shift * mean > 0, np.minimum(np.abs(shift), np.abs(mean)), 0.0)
    std = np.sqrt(np.maximum(mse - mean * mean, 0.0))
    loud = (power > AUDIBLE * power.max()) & (noise > 0)
    return WeightErrorFacts(
        dataset=role,
        sqnr_db=sqnr_of_nmse(ratio(float(noise.sum()), float(power.sum()))),
        worst_channel_sqnr_db=sqnr_of_nmse(float((noise[loud] / power[loud]).max())) if loud.any() else None,
        noise_share=ratio(float(noise.sum()), float(mse.sum())),
        shift=float(np.abs(shift).max()),
        shift_over_std=float((agreed[std > 0] / std[std > 0]).max()) if (std > 0).any() else None,
        shift_share=ratio(float((agreed * agreed).sum()), float(mse.sum())),
    )


def per_tensor(reduce: np.ufunc, column: NDArray[Any], offsets: Integers) -> NDArray[Any]:
    """A column reduced over the channels of every tensor; NaN, or 0 of a count, for a tensor without channels."""
    filled = offsets[:-1] < offsets[1:]
    reduced = np.full(len(filled), np.nan if column.dtype.kind == "f" else 0, column.dtype)
    if filled.any():
        reduced[filled] = reduce.reduceat(column, offsets[:-1][filled])
    return reduced


def _rows(fields: Mapping[str, NDArray[Any]]) -> Iterator[dict[str, Any]]:
    """Columns as one mapping per tensor; NaN becomes None."""
    columns = [[None if v != v else v for v in column.tolist()] for column in fields.values()]
    for values in zip(*columns, strict=True):
        yield dict(zip(fields, values, strict=True))


def _owners(offsets: Integers) -> Integers:
    """The tensor that each row belongs to."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def _lost_channels(columns: Mapping[str, NDArray[Any]], offsets: Integers) -> Integers:
    """Channels with a signal that is less than twice the noise."""
    power, square = columns["power"], columns["square"]
    alive = power > ALIVE * per_tensor(np.maximum, power, offsets)[_owners(offsets)]
    return per_tensor(np.add, (alive & (square > LOST * power)).astype(np.int64), offsets)


def _worst_channel(
    columns: Mapping[str, NDArray[Any]], offsets: Integers, total: Floats, share: float
) -> tuple[Floats, NDArray[Any]]:
    """Largest noise-to-signal ratio of a channel that is loud enough, and which it is."""
    power, square, owner = columns["power"], columns["square"], _owners(offsets)
    top = per_tensor(np.maximum, power, offsets)
    audible = power > share * top[owner]
    nmse = np.where(audible, square / np.where(power > 0, power, 1.0), -1.0)
    judged = (np.diff(offsets) > 1) & (top > 0) & (top < np.inf)
    worst = np.where(judged, per_tensor(np.maximum, nmse, offsets), np.nan)
    places = np.flatnonzero(nmse == worst[owner])
    tensors, first = np.unique(owner[places], return_index=True)
    channel = np.full(len(worst), None)
    channel[tensors] = places[first] - offsets[tensors]
    return worst, channel


def _median_channel(columns: Mapping[str, NDArray[Any]], offsets: Integers) -> Floats:
    """Median noise-to-signal ratio of the channels that carry any signal."""
    power, square, owner = columns["power"], columns["square"], _owners(offsets)
    heard = (power > 0) & np.isfinite(power) & np.isfinite(square)
    return _medians(square[heard] / power[heard], owner[heard], np.diff(offsets))


def _medians(values: Floats, owner: Integers, channels: Integers) -> Floats:
    """Median of the values of each tensor with more than one channel; ``owner`` is in ascending order."""
    medians = np.full(len(channels), np.nan)
    size = np.bincount(owner, minlength=len(channels))
    start = np.cumsum(size) - size
    judged = np.flatnonzero((size > 0) & (channels > 1))
    if not judged.size:
        return medians
    ordered = values[np.lexsort((values, owner))]
    first, n = start[judged], size[judged]
    medians[judged] = (ordered[first + (n - 1) // 2] + ordered[first + n // 2]) / 2
    return medians


def _bias_over_std(columns: Mapping[str, NDArray[Any]], offsets: Integers) -> Floats:
    count = np.maximum(columns["count"], 1)
    with np.errstate(all="ignore"):
        mean = columns["sum"] / count
        variance = columns["square"] / count - mean * mean
        ratio = np.where(variance > 0, np.abs(mean) / np.sqrt(variance), -1.0)
    largest = per_tensor(np.maximum, ratio, offsets)
    return np.where(largest < 0, np.nan, largest)


def _data_facts(case: Case, role: Role) -> tuple[list[TensorDataFacts], dict[int, tuple[float, float | None]]]:
    """What one data set showed of all tensors, and by index what ``_predictions`` tells of their best range."""
    statistics, records = case.statistics[role], case.record.tensors
    scales = [record.quantizer.scale for record in records]
    rounding, accumulated, operator, step = (
        all_error_facts(_kind(statistics, kind), statistics.offsets, scales) for kind in ERROR_KINDS
    )
    shapes: list[dict[str, Floats]] = []
    gains: dict[int, tuple[float, float, float]] = {}
    best: dict[int, tuple[float, float | None]] = {}
    seen = seen_tensors(statistics)
    for part, bins in bin_tables(case, role, seen):
        shapes.append(_shape(bins))
        found = _predictions(case, part, bins)
        gains |= found[0]
        best |= found[1]
    values = dict(zip(seen, _distributions(statistics, records, seen, shapes), strict=True))
    clipping = _clipping(statistics, records)
    carried = _input_nmse(case, [error.nmse for error in accumulated])
    nonfinite = per_tensor(np.add, statistics.columns["nonfinite"], statistics.offsets).tolist()
    facts = []
    for i in range(len(records)):
        if i not in values:
            facts.append(TensorDataFacts(dataset=role, values=DistributionFacts(nonfinite_count=nonfinite[i])))
            continue
        gain, low, high = gains.get(i, (None, None, None))
        facts.append(
            TensorDataFacts(
                dataset=role,
                values=values[i],
                rounding=rounding[i],
                accumulated=accumulated[i],
                operator=operator[i],
                step=step[i],
                clipping=clipping[i],
                predicted_best_gain_db=gain,
                predicted_best_low=low,
                predicted_best_high=high,
                amplification=ratio(accumulated[i].nmse, carried[i]),
                input_sqnr_db=sqnr_of_nmse(carried[i]),
                rounding_share=ratio(rounding[i].mse, accumulated[i].mse),
            )
        )
    return facts, best


def _kind(statistics: SetStatistics, kind: str) -> dict[str, NDArray[Any]]:
    """The columns of one kind of error."""
    return {n.removeprefix(f"{kind}."): c for n, c in statistics.columns.items() if n.startswith(f"{kind}.")}


def _distributions(
    statistics: SetStatistics,
    records: Sequence[TensorRecord],
    seen: Sequence[int],
    shapes: Sequence[Mapping[str, Floats]],
) -> list[DistributionFacts]:
    """Distributions of the tensors that were seen; ``shapes`` is what their histograms tell, some tensors at a time."""
    if not shapes:
        return []
    columns, offsets, owner = statistics.columns, statistics.offsets, _owners(statistics.offsets)
    count = per_tensor(np.add, columns["count"], offsets)
    low, high = (per_tensor(f, columns[n], offsets) for f, n in ((np.minimum, "min"), (np.maximum, "max")))
    with np.errstate(all="ignore"):
        mean = per_tensor(np.add, columns["count"] * columns["mean"], offsets) / count
        away = columns["mean"] - mean[owner]
        std = np.sqrt(per_tensor(np.add, columns["m2"] + columns["count"] * away * away, offsets) / count)
        zscore = np.where(std > 0, np.maximum(high - mean, mean - low) / std, np.nan)
    growth, disagreement = _halves(statistics, records)
    absmax = np.maximum(np.abs(low), np.abs(high))
    fields: dict[str, NDArray[Any]] = {
        "count": count,
        "samples": statistics.tensor_samples,
        "nonfinite_count": per_tensor(np.add, columns["nonfinite"], offsets),
        "min": low,
        "max": high,
        "absmax": absmax,
        "mean": mean,
        "std": std,
        "zscore_max": zscore,
        "channel_absmax_ratio": _channel_ratio(statistics),
        "channel_rms_ratio": _channel_rms_ratio(statistics),
        "sample_range_ratio": _sample_range_ratio(statistics, records, high - low),
        "range_growth": growth,
        "halves_disagreement": disagreement,
    }
    fields = {name: column[seen] for name, column in fields.items()}
    fields |= {name: np.concatenate([shape[name] for shape in shapes]) for name in shapes[0]}
    reach, bulk, median = fields["absmax"], fields["abs_p99_99"], fields.pop("abs_p50")
    with np.errstate(all="ignore"):
        fields["channel_shape_ratio"] = fields["channel_rms_ratio"] / fields["channel_absmax_ratio"]
        fields["absmax_over_median"] = np.where(median > 0, reach / median, np.nan)
        fields["range_inflation_bits"] = np.where((reach > 0) & (bulk > 0), np.log2(reach / bulk), np.nan)
    known = knows_extremes(statistics)[seen]
    fields |= {name: np.where(known, fields[name], np.nan) for name in _EXTREME}
    return [DistributionFacts(**row) for row in _rows(fields)]


def knows_extremes(statistics: SetStatistics) -> NDArray[np.bool_]:
    """Tensors that were seen on all samples of a set, or on enough of them to say something of its extremes."""
    seen = statistics.tensor_samples
    return (seen >= EXTREME_SAMPLES) | (seen >= len(statistics.samples))


def _shape(bins: BinTable) -> dict[str, Floats]:
    """What the histograms alone tell of a distribution."""
    magnitudes = bins.magnitudes()
    top = magnitudes.highest
    quantiles = bins.quantiles(list(_QUANTILES.values()))
    tail = magnitudes.shares_above(top / 2)
    zeros = bins.sum_by_tensor(np.where((bins.low == 0) & (bins.high == 0), bins.count, 0.0)) / bins.totals
    return {
        **dict(zip(_QUANTILES, quantiles.T, strict=True)),
        "abs_p50": magnitudes.quantiles(zeros[:, None] + (1 - zeros[:, None]) / 2)[:, 0],
        "abs_p99_99": magnitudes.quantiles([0.9999])[:, 0],
        "tail_share": np.where(top > 0, tail, np.nan),
        "tail_body_ratio": np.where(
            tail > 0, magnitudes.shares_above(top / 16) / np.maximum(tail, np.finfo(np.float64).tiny) - 1, np.nan
        ),
        "zero_share": zeros,
        "negative_share": bins.sum_by_tensor(np.where(bins.low < 0, bins.count, 0.0)) / bins.totals,
    }


def _channel_ratio(statistics: SetStatistics) -> Floats:
    """Largest over median channel absmax; channels of which nothing was seen do not count."""
    offsets, owner = statistics.offsets, _owners(statistics.offsets)
    tops = np.maximum(np.abs(statistics.columns["min"]), np.abs(statistics.columns["max"])).astype(np.float32)
    finite = np.isfinite(tops)
    # Extremes are float32, and those that are not negative sort as their bits do: one sort serves all tensors.
    keys = np.sort(owner[finite] << 32 | tops[finite].view(np.uint32))
    tops = keys.astype(np.uint32).view(np.float32).astype(np.float64)
    size = np.bincount(keys >> 32, minlength=len(offsets) - 1)
    start = np.cumsum(size) - size
    judged = np.flatnonzero((size > 0) & (np.diff(offsets) > 1))
    first, n = start[judged], size[judged]
    middle = (tops[first + (n - 1) // 2] + tops[first + n // 2]) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(middle > 0, tops[first + n - 1] / middle, np.nan)
    ratios = np.full(len(size), np.nan)
    ratios[judged] = found
    return ratios


def _channel_rms_ratio(statistics: SetStatistics) -> Floats:
    """Largest over median root mean square of a channel; channels of which nothing was seen do not count."""
    columns, owner = statistics.columns, _owners(statistics.offsets)
    seen = columns["count"] > 0
    with np.errstate(all="ignore"):
        mean = columns["mean"][seen]
        rms = np.sqrt(columns["m2"][seen] / columns["count"][seen] + mean * mean)
        medians = _medians(rms, owner[seen], np.diff(statistics.offsets))
        top = np.full(len(medians), -np.inf)
        np.maximum.at(top, owner[seen], rms)
        return np.where(medians > 0, top / medians, np.nan)


def _sample_range_ratio(statistics: SetStatistics, records: Sequence[TensorRecord], width: Floats) -> Floats:
    """Mean range width of a sample over that of all; unknown where the first axis holds no samples."""
    bucketed = np.array([record.bucketed for record in records], bool)
    known = bucketed & (statistics.sample_count > 0) & (width > 0) & np.isfinite(width)
    with np.errstate(all="ignore"):
        return np.where(known, statistics.sample_width / statistics.sample_count / width, np.nan)


def _halves(statistics: SetStatistics, records: Sequence[TensorRecord]) -> tuple[Floats, Floats]:
    """Growth and disagreement of the range between even and odd buckets."""
    low, high = statistics.bucket_min, statistics.bucket_max
    even, odd = (high[:, half::2].max(axis=1) - low[:, half::2].min(axis=1) for half in (0, 1))
    whole = high.max(axis=1) - low.min(axis=1)
    known = np.array([record.bucketed for record in records], bool) & np.isfinite(even) & np.isfinite(odd) & (whole > 0)
    with np.errstate(all="ignore"):
        growth, disagreement = 1.0 - (even + odd) / 2 / whole, np.abs(even - odd) / whole
    return np.where(known, growth, np.nan), np.where(known, disagreement, np.nan)


def _clipping(statistics: SetStatistics, records: Sequence[TensorRecord]) -> list[ClippingFacts]:
    columns, offsets = statistics.columns, statistics.offsets
    low, high = (_optional(getattr(record.quantizer, end) for record in records) for end in ("low", "high"))
    smallest = per_tensor(np.minimum, columns["min"], offsets)
    largest = per_tensor(np.maximum, columns["max"], offsets)
    count = per_tensor(np.add, columns["rounding.count"], offsets)
    square = per_tensor(np.add, columns["rounding.square"], offsets)
    energy = per_tensor(np.add, columns["clipped_energy"], offsets)
    with np.errstate(all="ignore"):
        width = high - low
        fields = {
            "share": per_tensor(np.add, columns["clipped"], offsets) / count,
            "energy_share": np.where(square > 0, energy / square, 0.0),
            "overshoot": np.maximum(np.maximum(largest - high, low - smallest), 0.0) / width,
            "utilisation": np.maximum(np.minimum(largest, high) - np.maximum(smallest, low), 0.0) / width,
        }
        extremes = knows_extremes(statistics)
        fields |= {name: np.where(extremes, fields[name], np.nan) for name in ("overshoot", "utilisation")}
        known = ((width > 0) & (count > 0)).tolist()
    return [ClippingFacts(**row) if k else NO_CLIPPING for k, row in zip(known, _rows(fields), strict=True)]


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
            freed[signed] = free - best[signed]
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
    case: Case, index: int, data: Mapping[Role, TensorDataFacts], best: tuple[float, float | None] | None
) -> TensorFacts:
    record, main_set = case.record.tensors[index], main_role(case)
    main, quantizer = data.get(main_set, TensorDataFacts()), record.quantizer
    best_sqnr_db, zero_point_gain_db = best or (None, None)
    return TensorFacts(
        name=record.name,
        float_name=record.float_name,
        producer=record.producer,
        producer_name=record.producer_name,
        consumers=record.consumers,
        readers=record.readers,
        channels=record.channels if record.axis is not None else None,
        is_half=record.is_half,
        is_squared=record.is_squared,
        quantizer=quantizer,
        representative=data.get("representative", TensorDataFacts()),
        validation=data.get("validation", TensorDataFacts()),
        data=main,
        best_sqnr_db=best_sqnr_db,
        zero_point_gain_db=zero_point_gain_db,
        pattern=record.pattern,
        asymmetry_waste=_asymmetry_waste(main.values),
        clip_low=record.clip_low,
        clip_high=record.clip_high,
        clip_lost=record.clip_lost,
        recorded=recorded_facts(record.recorded, data.values(), quantizer),
        shift_excess=_shift_excess(main.values, quantizer, case.record.model.settings),
        **grid_facts(main.values, quantizer),
        **_unmasked(case, index, main.values),
        **_inner(case, record, main),
    )


def grid_facts(values: DistributionFacts, quantizer: QuantizerFacts) -> dict[str, Any]:
    """Fields of ``TensorFacts`` that set a distribution against the grid of a quantizer."""
    reach = None if quantizer.low is None or quantizer.high is None else max(-quantizer.low, quantizer.high)
    negative = None if values.min is None else max(-values.min, 0.0)
    width = None if values.min is None or values.max is None else values.max - values.min
    typical = ratio(values.absmax, values.absmax_over_median)
    sample = None if values.sample_range_ratio is None or width is None else values.sample_range_ratio * width
    return {
        "negative_levels": ratio(negative, quantizer.scale),
        "negative_ratio": ratio(negative, quantizer.high),
        "range_excess_bits": bits_between(values.abs_p99_99, reach),
        "range_slack": ratio(reach, values.absmax),
        "sample_levels": ratio(sample, quantizer.scale),
        "median_levels": ratio(typical, quantizer.scale),
    }


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


def _unmasked(case: Case, index: int, values: DistributionFacts) -> dict[str, Any]:
    """Fields of ``TensorFacts`` about the values of a softmax's input that no mask has moved far below zero."""
    record = case.record.tensors[index]
    grid, bins = grid_of(record.quantizer), None
    if record.pattern == "softmax-input" and grid is not None and values.min is not None and values.min < 0:
        bins = tensor_bins(case, main_role(case), index)
    beside = bins.part(values.min / 2, math.inf) if bins is not None and values.min is not None else None
    if beside is None or grid is None:
        return {}
    width = max(float(beside.high[-1]), 0.0) - min(float(beside.low[0]), 0.0)
    found = float(predict_sqnr(beside, [grid])[0]) if beside.power() > 0 else None
    return {"unmasked_levels": width / grid.step, "unmasked_sqnr_db": found}


def _inner(case: Case, record: TensorRecord, main: TensorDataFacts) -> dict[str, Any]:
    """Fields of ``TensorFacts`` about the noise inside a product of a tensor with a function of itself."""
    if record.gate is None:
        return {}
    bins = tensor_bins(case, main_role(case), record.gate.source)
    if bins is None:
        return {}
    noise, power = product_error(bins, record.gate, grid_of(case.record.tensors[record.gate.source].quantizer))
    return {"inner_sqnr_db": sqnr_of_nmse(ratio(noise, power)), "inner_share": ratio(noise, main.accumulated.mse)}


def _optional(values: Iterable[float | None]) -> Floats:
    """A column with NaN for None."""
    return np.array([np.nan if value is None else value for value in values], np.float64)


def ratio(a: float | None, b: float | None) -> float | None:
    """a / b, None where either is unknown or b is not positive."""
    return None if a is None or b is None or b <= 0 else a / b


def bits_between(bulk: float | None, reach: float | None) -> float | None:
    """Bits that a range spends beyond the bulk of the values."""
    return None if reach is None or bulk is None or reach <= 0 or bulk <= 0 else math.log2(reach / bulk)
