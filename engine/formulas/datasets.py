"""Facts of the data sets and of the task metric, from the sample tables and the first input's statistics."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

from quantmedic.engine.case.facts import (
    DatasetFacts,
    DistributionFacts,
    MetricFacts,
    QuantizerFacts,
    RelationFacts,
    Role,
    TensorFacts,
)
from quantmedic.engine.case.histogram import Bins
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.statistics import LATTICE_POINTS, SetStatistics, TensorStatistics
from quantmedic.engine.formulas.images import image_facts, image_relation
from quantmedic.engine.formulas.paired import drop_interval, mean_interval

#: Coverage of the interval that an expected metric is held against.
EXPECTED_CONFIDENCE = 0.99
#: Samples whose deviation is under this share of the set's are blank.
BLANK = 5e-3
_BOOTSTRAP = 400
#: Operators whose results have a range by definition, which no calibration sets.
FIXED_RANGE = ("Softmax", "Sigmoid", "HardSigmoid", "Tanh", "LogSoftmax")
#: A range that ends this close to the largest magnitude was set by it.
EXACT = 0.01
#: (step, lowest point, steps spanned) of an even grid.
Lattice = tuple[float, float, int]
#: Steps that a lattice spans from the pixel 0 to 255.
FULL_SPAN = 255
#: Steps by which two grids may differ before one counts as shifted against the other.
_SHIFT_STEPS = 16
#: Share by which slope and offset of a line through quantiles may miss those of a second normalization.
_TWICE = 0.1
#: Mean and standard deviation per channel.
ChannelMoments = tuple[NDArray[np.float64], NDArray[np.float64]]


def dataset_facts(case: Case, role: Role, tensors: tuple[TensorFacts, ...]) -> DatasetFacts:
    """Facts of one data set; all but its role are None where it was not given."""
    statistics = case.statistics.get(role)
    if statistics is None:
        return DatasetFacts(role=role)
    validation = case.statistics.get("validation")
    samples = statistics.samples
    mean, std, low, high = _input_moments(case, statistics)
    step, start, span = _lattices(statistics)
    clipped = {r: _clipped_share(tensors, r) for r in case.statistics}
    covariance = _covariance(statistics)
    reference = _covariance(validation) if validation is not None else None
    rank, reference_rank = _effective_rank(covariance), _effective_rank(reference)
    classes, reference_classes = _classes(statistics), _classes(validation)
    return DatasetFacts(
        role=role,
        samples=len(samples),
        labelled=case.record.datasets[role].labelled,
        unique_share=len(np.unique(samples["hash"])) / len(samples) if len(samples) else None,
        blank_share=_blank_share(samples, validation) if std is not None else None,
        saturated_share=float(samples["saturated"].mean()) if std is not None and len(samples) else None,
        nonfinite_samples=int((samples["nonfinite"] > 0).sum()),
        min=low,
        max=high,
        mean=mean,
        std=std,
        lattice_step=step,
        lattice_low=start,
        lattice_span=span,
        range_growth=_median_fact(tensors, role, "range_growth"),
        halves_disagreement=_median_fact(tensors, role, "halves_disagreement"),
        input_spread=_spread_ratio(case, statistics, validation),
        feature_spread=_quotient(_trace(covariance), _trace(reference)),
        effective_rank=rank,
        effective_rank_ratio=_quotient(rank, reference_rank),
        classes=len(classes) if classes else None,
        class_coverage=len(classes & reference_classes) / len(reference_classes)
        if classes and reference_classes
        else None,
        clipped_share=clipped[role],
        clipped_share_ratio=_quotient(clipped.get("validation"), clipped.get("representative"), floor=1e-6),
        saturation_excess=_saturation_excess(statistics, validation),
        class_coverage_ratio=_coverage_ratio(statistics, validation),
        unseen_channel_share=_unseen_channels(case, statistics, validation),
        **_range_facts(tensors, role),
        **image_facts(case, statistics),
        relation=_relation(case) if role == "representative" else RelationFacts(),
    )


def metric_facts(case: Case) -> MetricFacts:
    """The task metric on the labelled set (validation first); empty without labels."""
    name = case.record.metric
    if name is None:
        return MetricFacts()
    for role in ("validation", "representative"):
        statistics = case.statistics.get(role)
        if statistics is None:
            continue
        pairs = metric_pairs(statistics)
        if len(pairs[0]):
            return _metric(case, name, role, *pairs)
    return MetricFacts(name=name, higher_is_better=case.record.metric_higher_is_better)


def metric_pairs(statistics: SetStatistics) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The task metric of both models on the samples where both have one.

    In the order of the samples' content, so that what is resampled depends neither on the order of the data nor on its
    shards.
    """
    samples = statistics.samples
    samples = samples[np.isfinite(samples["metric_float"]) & np.isfinite(samples["metric_quantized"])]
    samples = samples[np.lexsort((samples["metric_quantized"], samples["metric_float"], samples["hash"]))]
    return samples["metric_float"], samples["metric_quantized"]


def _metric(
    case: Case, name: str, role: Role, floats: NDArray[np.float64], quantized: NDArray[np.float64]
) -> MetricFacts:
    higher = bool(case.record.metric_higher_is_better)
    combine = np.sqrt if name == "rmse" else lambda value: value
    before, after = float(combine(floats.mean())), float(combine(quantized.mean()))
    seed = int(case.record.run.get("seed", 0))
    scale = 1.0 if name in ("top1", "top5") else max(abs(before), abs(after))
    expected = case.record.expected_float_metric if scale else None
    drop, low, high = drop_interval(floats, quantized, higher_is_better=higher, root=name == "rmse", seed=seed)
    return MetricFacts(
        name=name,
        higher_is_better=higher,
        dataset=role,
        samples=len(floats),
        float_value=before,
        quantized_value=after,
        drop=drop,
        drop_low=low,
        drop_high=high,
        relative_drop=drop / abs(before) if before else None,
        gain_share=-high / scale if scale else None,
        expected=expected,
        expected_shortfall=_shortfall(expected, floats, name, higher, seed) / scale if expected is not None else None,
    )


def _shortfall(expected: float, floats: NDArray[np.float64], name: str, higher: bool, seed: int) -> float:
    """How much worse than expected the float model is, beyond what chance explains."""
    low, high = mean_interval(floats, root=name == "rmse", confidence=EXPECTED_CONFIDENCE, seed=seed)
    return max(expected - high if higher else low - expected, 0.0)


def _input_moments(
    case: Case, statistics: SetStatistics
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None, float | None, float | None]:
    index = case.record.input_tensor
    if index is None or not statistics.tensor(index).count.sum():
        return None, None, None, None
    view = statistics.tensor(index)
    std = np.sqrt(view.m2 / np.maximum(view.count, 1))
    return tuple(view.mean.tolist()), tuple(std.tolist()), float(view.min.min()), float(view.max.max())


def _lattices(
    statistics: SetStatistics,
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None, tuple[int, ...] | None]:
    found = [_lattice(values) for values in statistics.lattice]
    if not found or any(lattice is None for lattice in found):
        return None, None, None
    steps, lows, spans = zip(*(lattice for lattice in found if lattice is not None), strict=True)
    return steps, lows, spans


def _lattice(values: NDArray[np.float32]) -> Lattice | None:
    """The even grid of at most 256 points that distinct values lie on, else None."""
    if not 8 <= values.size <= LATTICE_POINTS:
        return None
    points = values.astype(np.float64)
    gaps = np.diff(points)
    span = round(float((points[-1] - points[0]) / gaps.min()))
    if span >= LATTICE_POINTS:
        return None
    step = float((points[-1] - points[0]) / span)
    away = (points - points[0]) / step
    return (step, float(points[0]), span) if np.abs(away - np.round(away)).max() < 0.02 else None


def _relation(case: Case) -> RelationFacts:
    mine, other = case.statistics.get("representative"), case.statistics.get("validation")
    if mine is None or other is None or case.record.input_tensor is None:
        return RelationFacts()
    fit = _lattice_fit(case, mine, other) or _quantile_fit(case, mine, other)
    flips = _flip_facts(case, mine, other)
    distance = _feature_distance(mine.feature_sum, mine.feature_count, other)
    trace = _trace(_covariance(other))
    feature = distance / math.sqrt(trace) if distance is not None and trace else None
    return RelationFacts(**fit, **flips, **image_relation(mine, other), feature_distance=feature)


def _lattice_fit(case: Case, mine: SetStatistics, other: SetStatistics) -> dict[str, Any] | None:
    pairs = [(_lattice(a), _lattice(b)) for a, b in zip(mine.lattice, other.lattice, strict=True)]
    if not pairs or any(a is None or b is None for a, b in pairs):
        return None
    deviation = _std(case, other)
    grids = [(a, b) for a, b in pairs if a is not None and b is not None]
    slopes = [a[0] / b[0] for a, b in grids]
    offsets = [_offset(a, b) for a, b in grids]
    # Where the channels agree in slope, they differ by their offset alone.
    deviations = offsets if max(slopes) < 1.01 * min(slopes) else [math.log(slope) for slope in slopes]
    worst = max(range(len(slopes)), key=lambda c: abs(deviations[c]))
    mismatch = max(slopes[worst], 1 / slopes[worst])
    shifted = [
        abs(o) / deviation if abs(o) > _SHIFT_STEPS * a[0] else 0.0 for o, (a, _) in zip(offsets, grids, strict=True)
    ]
    return {
        "method": "lattice",
        "slope": slopes[worst],
        "slope_low": slopes[worst],
        "slope_high": slopes[worst],
        "scale_mismatch": mismatch,
        "offset": offsets[worst],
        "offset_over_std": max(shifted),
        "kind": _lattice_kind(grids, slopes, max(shifted)),
        "reading": _reading(grids),
        "certainty": 1.0,
    }


def _offset(mine: Lattice, other: Lattice) -> float:
    """Offset of the lattice ``mine`` against ``other`` after scaling.

    A set that never shows the darkest or brightest pixels spans less of the same grid: where the points coincide, only
    what sticks out at one end counts.
    """
    step, low, span = mine
    at_low = low - step / other[0] * other[1]
    at_high = at_low + step * (span - other[2])
    steps = at_low / step
    if abs(steps - round(steps)) > 0.1:
        return at_low
    if at_low * at_high <= 0:
        return 0.0
    return min(at_low, at_high, key=abs)


def _reading(grids: list[Any]) -> str | None:
    """Both sets' preprocessing in words, where their lattices span all of a pixel's 256 values."""
    if any(span < FULL_SPAN for pair in grids for _, _, span in pair):
        return None
    mine, other = ([pair[i][:2] for pair in grids] for i in (0, 1))
    return f"representative = {_formula(mine)}, validation = {_formula(other)}"


def _formula(grids: list[tuple[float, float]]) -> str:
    """(x / 255 - mean) / std, or shorter, of lattices given as (step, lowest point) per channel."""
    if all(abs(low) < step / 2 for step, low in grids):
        divisors = [1.0 / step for step, _ in grids]
        return "x" if all(abs(d - 1) < 0.005 for d in divisors) else f"x / {_numbers(divisors)}"
    if all(abs(low + 1) < step / 2 for step, low in grids):
        return f"x / {_numbers([1.0 / step for step, _ in grids])} - 1"
    deviations = [1.0 / (255.0 * step) for step, _ in grids]
    means = [-low * std for (_, low), std in zip(grids, deviations, strict=True)]
    return f"(x / 255 - {_numbers(means)}) / {_numbers(deviations)}"


def _numbers(values: list[float]) -> str:
    texts = [f"{value:.4g}" for value in values]
    return texts[0] if len(set(texts)) == 1 else f"[{', '.join(texts)}]"


def _lattice_kind(grids: list[Any], slopes: list[float], shift: float) -> str:
    same_scale = all(abs(slope - 1) < 0.01 for slope in slopes)
    if same_scale:
        return "offset" if shift > 0.1 else "same"
    mine, other = zip(*grids, strict=True)
    if _are_pixels(mine, 1.0):
        return "not-normalized"
    if _are_pixels(mine, 1 / 255) and not _are_pixels(other, 1.0):
        return "partly-normalized"
    twice = all(any(abs(a[0] / (b[0] * b[0] * k) - 1) < 0.01 for k in (1.0, 255.0)) for a, b in grids)
    return "normalized-twice" if twice else "scale"


def _are_pixels(lattices: Iterable[Lattice], step: float) -> bool:
    """All channels lie on the grid of the pixels 0 … 255 times ``step``."""
    return all(
        abs(mine / step - 1) < 0.005 and low / step > -0.5 and low / step + span < FULL_SPAN + 0.5
        for mine, low, span in lattices
    )


def _quantile_fit(case: Case, mine: SetStatistics, other: SetStatistics) -> dict[str, Any]:
    """Line through 99 quantiles of the two inputs; the sets are not paired, only alike."""
    index = case.record.input_tensor
    assert index is not None
    curves = []
    for statistics in (mine, other):
        view = statistics.tensor(index)
        if not view.count.sum():
            return {}
        bins = Bins.of(view.histogram, float(view.min.min()), float(view.max.max()))
        curves.append(np.array([bins.quantile(q) for q in np.arange(0.01, 1.0, 0.01)]))
    y, x = curves
    spread = float(((x - x.mean()) ** 2).sum())
    if spread <= 0 or float(y.std()) <= 0:
        return {}
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread
    offset = float(y.mean() - slope * x.mean())
    residual = float(((y - slope * x - offset) ** 2).sum())
    certainty = 1.0 - residual / float(((y - y.mean()) ** 2).sum())
    low, high = _slope_interval(mine.samples, other.samples)
    if slope <= 0:
        return {}
    shift = abs(offset) / _std(case, other)
    off_scale = (slope > 1.5 or slope < 1 / 1.5) and not low <= 1 <= high
    kind = "offset" if shift > 0.5 else "same"
    if off_scale:
        kind = _quantile_kind(mine.tensor(index), other.tensor(index), slope, offset)
    return {
        "method": "quantiles",
        "slope": slope,
        "slope_low": low,
        "slope_high": high,
        "scale_mismatch": max(slope, 1 / slope),
        "offset": offset,
        "offset_over_std": shift,
        "kind": kind if certainty > 0.9 or kind == "same" else "unexplained",
        "certainty": certainty,
    }


def _quantile_kind(mine: TensorStatistics, other: TensorStatistics, slope: float, offset: float) -> str:
    """Name of a relation between inputs of different scale: known when one side holds pixels, or twice the same map."""
    low, high = float(mine.min.min()), float(mine.max.max())
    other_low, other_high = float(other.min.min()), float(other.max.max())
    if low >= 0.0 and 1.1 * FULL_SPAN > high > 0.4 * FULL_SPAN and other_high < 0.1 * FULL_SPAN:
        return "not-normalized"
    if low >= 0.0 and 1.1 > high > 0.4 and other_low < 0.0:
        return "partly-normalized"
    # Pixels of 0 … 1 mapped by x / s - m / s span 1 / s from -m / s on; once more, this is slope and offset.
    span = other_high - other_low
    twice = abs(slope / span - 1.0) < _TWICE
    # Without an offset, a mere factor looks the same.
    shifted = abs(other_low) > 2 * _TWICE * span
    return "normalized-twice" if twice and shifted and abs(offset - other_low) < _TWICE * span else "scale"


def _in_order(samples: NDArray[Any]) -> NDArray[Any]:
    """Samples by content hash, so that what is resampled does not depend on the order of the data."""
    return samples[np.argsort(samples["hash"], kind="stable")]


def _slope_interval(mine: NDArray[Any], other: NDArray[Any]) -> tuple[float, float]:
    """95 % interval of the ratio of the sets' deviations, by a seeded bootstrap over samples."""
    rng = np.random.default_rng(0)

    def deviations(rows: NDArray[Any]) -> NDArray[np.float64]:
        picks = rng.integers(0, len(rows), (_BOOTSTRAP, min(len(rows), 1024)))
        means, squares = rows["mean"].astype(np.float64)[picks], rows["deviation"].astype(np.float64)[picks] ** 2
        return np.sqrt(squares.mean(axis=1) + means.var(axis=1))

    bottom = deviations(_in_order(other))
    ratios = deviations(_in_order(mine)) / np.where(bottom > 0, bottom, np.nan)
    ratios = ratios[np.isfinite(ratios)]
    if not ratios.size:
        return 0.0, math.inf
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


def _flip_facts(case: Case, mine: SetStatistics, other: SetStatistics) -> dict[str, Any]:
    index = case.record.input_tensor
    assert index is not None
    a, b = mine.tensor(index), other.tensor(index)
    if not case.record.image_input or len(a.mean) != 3 or not a.count.all() or not b.count.all():
        return {}
    moments = [(s.mean, np.sqrt(s.m2 / s.count)) for s in (a, b)]
    if not (moments[1][1] > 0).all():
        return {}
    lattices = [_lattices(s) for s in (mine, other)]
    pixels = [
        ((mean - low) / step, std / step)
        for (mean, std), (step, low, _) in zip(moments, lattices, strict=True)
        if step is not None and low is not None and len(step) == 3
    ]
    straight = _feature_distance(mine.feature_sum, mine.feature_count, other)
    flipped = _feature_distance(mine.flipped_sum, mine.flipped_count, other)
    return {
        "flipped_distance_ratio": _flip_ratio(*moments),
        "flipped_pixel_ratio": _flip_ratio(*pixels) if len(pixels) == 2 else None,
        "flipped_feature_ratio": _quotient(straight, flipped),
    }


def _flip_ratio(mine: ChannelMoments, other: ChannelMoments) -> float | None:
    """Distance of mean and deviation per channel, as they are over that with the channels reversed."""
    (mean, std), (other_mean, scale) = mine, other
    y = np.concatenate([other_mean / scale, np.ones(len(scale))])
    straight = np.concatenate([mean / scale, std / scale])
    flipped = np.concatenate([mean[::-1] / scale, std[::-1] / scale])
    return _quotient(float(np.linalg.norm(straight - y)), float(np.linalg.norm(flipped - y)))


def _feature_distance(total: NDArray[np.float64], count: int, other: SetStatistics) -> float | None:
    if not count or not other.feature_count:
        return None
    return float(np.linalg.norm(total / count - other.feature_sum / other.feature_count))


def _covariance(statistics: SetStatistics | None) -> NDArray[np.float64] | None:
    if statistics is None or statistics.feature_count < 2:
        return None
    mean = statistics.feature_sum / statistics.feature_count
    return statistics.feature_outer / statistics.feature_count - np.outer(mean, mean)


def _trace(covariance: NDArray[np.float64] | None) -> float | None:
    return None if covariance is None else float(np.trace(covariance))


def _effective_rank(covariance: NDArray[np.float64] | None) -> float | None:
    """exp(entropy) of the normalized spectrum (Roy and Vetterli 2007)."""
    if covariance is None:
        return None
    spectrum = np.clip(np.linalg.eigvalsh(covariance), 0.0, None)
    if spectrum.sum() <= 0:
        return None
    return float(np.exp(entr(spectrum / spectrum.sum()).sum()))


def _classes(statistics: SetStatistics | None) -> set[int]:
    if statistics is None:
        return set()
    predicted = statistics.samples["class_float"]
    return set(np.unique(predicted[predicted >= 0]).tolist())


def _coverage_ratio(statistics: SetStatistics, validation: SetStatistics | None) -> float | None:
    """Classes that are seen / that are expected of as many distinct samples of the validation set."""
    if validation is None:
        return None
    predicted = validation.samples["class_float"]
    classes, counts = np.unique(predicted[predicted >= 0], return_counts=True)
    seen = _classes(statistics)
    if not len(classes) or not seen:
        return None
    rate = counts / counts.sum()
    expected = float((1.0 - (1.0 - rate) ** len(np.unique(statistics.samples["hash"]))).sum())
    return len(seen & set(classes.tolist())) / expected


def _unseen_channels(case: Case, statistics: SetStatistics, validation: SetStatistics | None) -> float | None:
    """Share of the channels of activations that vary on the validation set and not on this one."""
    if validation is None:
        return None
    inner = [i for i, t in enumerate(case.record.tensors) if not t.is_input and t.axis is not None]
    rows = [np.arange(statistics.offsets[i], statistics.offsets[i + 1]) for i in inner]
    if not rows:
        return None
    columns = [s.columns["max"] > s.columns["min"] for s in (statistics, validation)]
    here, there = (varies[np.concatenate(rows)] for varies in columns)
    return float((there & ~here).sum() / there.sum()) if there.any() else None


def _range_facts(tensors: tuple[TensorFacts, ...], role: Role) -> dict[str, Any]:
    """How the quantizers' ranges fit what a data set shows; fixed ranges do not come from data."""
    own = [t for t in tensors if t.quantizer.high is not None and t.producer not in FIXED_RANGE]
    shares = [share for t in own if (share := getattr(t, role).clipping.share) is not None]
    reaches = [reach for t in own if (reach := _reach(t.quantizer, getattr(t, role).values)) is not None]
    exact = [abs(reach - 1.0) < EXACT for reach in reaches]
    return {
        "clipped_share_max": max(shares, default=None),
        "clipped_share_median": float(np.median(shares)) if shares else None,
        "exact_range_share": sum(exact) / len(exact) if exact else None,
        "range_reach": float(np.median(reaches)) if reaches else None,
    }


def _reach(quantizer: QuantizerFacts, values: DistributionFacts) -> float | None:
    """End of the range over the largest magnitude, on its side."""
    if values.min is None or values.max is None or quantizer.low is None or quantizer.high is None:
        return None
    end, value = (quantizer.high, values.max) if values.max >= -values.min else (-quantizer.low, -values.min)
    return _quotient(end, value)


def _saturation_excess(statistics: SetStatistics, validation: SetStatistics | None) -> float | None:
    if validation is None:
        return None
    mine, other = (_saturation(s.samples) for s in (statistics, validation))
    return None if mine is None or other is None else mine - other


def _saturation(samples: NDArray[Any]) -> float | None:
    """Mean share of elements at the largest value, of the samples that are not blank."""
    if not len(samples):
        return None
    saturated = samples["saturated"][~_blank(samples, _whole_deviation(samples))]
    return float(saturated.mean()) if saturated.size else None


def _blank_share(samples: NDArray[Any], validation: SetStatistics | None) -> float | None:
    """Share of blank samples; a set of little else is held against the validation set."""
    if not len(samples):
        return None
    whole = max(_whole_deviation(s) for s in (samples, *([validation.samples] if validation is not None else [])))
    return float(_blank(samples, whole).mean())


def blank_limit(case: Case, role: Role) -> float:
    """Deviation under which a sample of this set counts as blank; infinite where all samples do."""
    found = {role: case.statistics[role], "validation": case.statistics.get("validation")}
    whole = max(_whole_deviation(statistics.samples) for statistics in found.values() if statistics is not None)
    return BLANK * whole if whole > 0 else math.inf


def _blank(samples: NDArray[Any], whole: float) -> NDArray[np.bool_]:
    """Samples whose deviation is next to nothing against that of a whole set."""
    return samples["deviation"] < BLANK * whole if whole > 0 else np.ones(len(samples), np.bool_)


def _whole_deviation(samples: NDArray[Any]) -> float:
    """Standard deviation over all elements of a set, from the moments of its samples; 0 without samples."""
    if not len(samples):
        return 0.0
    deviation = samples["deviation"].astype(np.float64)
    return math.sqrt(float((deviation**2).mean()) + float(samples["mean"].astype(np.float64).var()))


def _clipped_share(tensors: tuple[TensorFacts, ...], role: Role) -> float | None:
    rows = [getattr(tensor, role) for tensor in tensors]
    known = [(r.clipping.share, r.rounding, r.values.count) for r in rows if r.clipping.share is not None]
    total = sum(count for _, _, count in known if count)
    return sum(share * count for share, _, count in known if count) / total if total else None


def _median_fact(tensors: tuple[TensorFacts, ...], role: Role, name: str) -> float | None:
    values = [getattr(getattr(t, role).values, name) for t in tensors if t.producer != "Input"]
    known = [v for v in values if v is not None]
    return float(np.median(known)) if known else None


def _spread_ratio(case: Case, statistics: SetStatistics, validation: SetStatistics | None) -> float | None:
    if validation is None or case.record.input_tensor is None:
        return None
    return _quotient(_std(case, statistics), _std(case, validation))


def _std(case: Case, statistics: SetStatistics) -> float:
    assert case.record.input_tensor is not None
    view = statistics.tensor(case.record.input_tensor)
    count = max(int(view.count.sum()), 1)
    mean = float((view.count * view.mean).sum()) / count
    return math.sqrt(float((view.m2 + view.count * (view.mean - mean) ** 2).sum()) / count)


def _quotient(a: float | None, b: float | None, floor: float = 0.0) -> float | None:
    if a is None or b is None:
        return None
    bottom = max(b, floor)
    return a / bottom if bottom > 0 else None
