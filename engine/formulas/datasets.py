"""Facts of the data sets and of the task metric, from the sample tables and the first input's statistics."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.facts import (
    ROLES,
    DatasetFacts,
    DistributionFacts,
    QuantizerFacts,
    RelationFacts,
    Role,
    TensorFacts,
)
from quantmedic.engine.case.histogram import Bins
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.statistics import SampleTable, SetStatistics
from quantmedic.engine.formulas.columns import ratio
from quantmedic.engine.formulas.domain import domain_facts, with_other_set
from quantmedic.engine.formulas.first_input import channel_moments, feature_covariance, lattices_of, trace_of
from quantmedic.engine.formulas.images import image_facts
from quantmedic.engine.formulas.input_relation import (
    CERTAIN,
    KNOWN_RANGE,
    feature_excursion,
    input_range_facts,
    relation_facts,
)
from quantmedic.engine.formulas.methods import RangeEnd, Side, find_method
from quantmedic.engine.formulas.noise_sources import misfit_share, odd_range_share
from quantmedic.engine.formulas.stored_bins import bins_of_view, extremes
from quantmedic.engine.formulas.strays import Strays, strays_by_role, words_of
from quantmedic.engine.special_functions import entropy

#: Samples whose deviation is under this share of the set's are blank.
BLANK = 5e-3
#: A range that ends this close to the largest magnitude was set by it.
EXACT = 0.01
#: A range that ends this far from the largest magnitude was not set by it.
AWRY = 0.05
#: Percentiles that keep nearly all values end within this of the largest magnitude, as ranges of all values do.
CUT = 0.1
#: Fewer quantizers may share a grid by chance, as operators that hand values on do.
SEVERAL = 6
#: Share of negative values that a range which begins at zero was not taken from: the usual tails are cut off by a
#: hundredth at most.
FEW_NEGATIVE = 0.01


def dataset_facts(case: Case, tensors: tuple[TensorFacts, ...]) -> tuple[DatasetFacts, ...]:
    """Facts of each data set, by `ROLES`; all but the role are None of one that was not given."""
    clipped, strays = clipped_shares(case, tensors), _strays(case)
    shares = {"misfit_share": misfit_share(case, tensors), "odd_range_share": odd_range_share(case, tensors)}
    shared = {**domain_facts(case, clipped), **shares} if clipped else {}
    views = [DatasetFacts(role=role) for role in ROLES]
    for place, role in enumerate(ROLES):
        if role in clipped:
            of_both = {**shared, "clipped_share": clipped[role]}
            views[place] = _facts_of_set(case, role, tensors, strays, of_both)
    return with_other_set(views)


def _facts_of_set(
    case: Case,
    role: Role,
    tensors: tuple[TensorFacts, ...],
    strays: Mapping[Role, Strays | None],
    of_both: Mapping[str, Any],
) -> DatasetFacts:
    """Facts of one set, with those that both sets share."""
    statistics, validation = case.statistics[role], case.statistics.get("validation")
    samples = statistics.samples
    mean, std, low, high = _input_moments(case, statistics)
    lattices = lattices_of(statistics)
    index = case.record.input_tensor
    relation = relation_facts(case) if role == "representative" else RelationFacts()
    whole = _usual_deviation(case, role, relation, strays)
    return DatasetFacts(
        role=role,
        input=case.record.tensors[index].float_name if index is not None else None,
        channel_axis=case.record.tensors[index].axis if index is not None else None,
        samples=len(samples),
        read_in_part=case.record.run.get("samples") == len(samples),
        labelled=case.record.datasets[role].labelled,
        unique_share=len(np.unique(samples["hash"])) / len(samples) if len(samples) else None,
        blank_share=_blank_share(samples, whole) if std is not None else None,
        kept_deviation_ratio=_kept_deviation_ratio(samples, validation.samples, whole) if std and validation else None,
        saturated_share=float(samples["saturated"].mean()) if std is not None and len(samples) else None,
        nonfinite_samples=len(broken := np.flatnonzero(samples["nonfinite"] > 0).tolist()),
        nonfinite_reading=words_of(broken) if broken else None,
        min=low,
        max=high,
        mean=mean,
        std=std,
        lattice_step=tuple(step for step, _, _ in lattices) or None,
        lattice_low=tuple(low for _, low, _ in lattices) or None,
        range_growth=_median_fact(tensors, role, "range_growth"),
        halves_disagreement=_median_fact(tensors, role, "halves_disagreement"),
        classes=len(_classes(statistics)) or None,
        **of_both,
        **(_facts_against(case, statistics, validation) if validation is not None else {}),
        **(_constant_inputs(case, tensors) if validation is not None and role == "representative" else {}),
        **_range_facts(case, tensors, role),
        **image_facts(case, statistics),
        **_stray_facts(strays[role] if std is not None else None),
        relation=relation,
    )


def _constant_inputs(case: Case, tensors: tuple[TensorFacts, ...]) -> dict[str, Any]:
    """Inputs of one value in the whole representative set that vary in the validation set."""
    found = [
        f"{tensor.name} is {there.min:g}"
        for tensor, record in zip(tensors, case.record.tensors, strict=False)
        if record.is_input
        and (there := tensor.representative.values).min is not None
        and there.min == there.max
        and tensor.validation.values.width
    ]
    return {"constant_inputs": len(found), "constant_input_reading": ", ".join(found) or None}


def _facts_against(case: Case, statistics: SetStatistics, validation: SetStatistics) -> dict[str, Any]:
    """Fields of ``DatasetFacts`` that set a set against the validation set."""
    covariance, reference = feature_covariance(statistics), feature_covariance(validation)
    classes, expected = _classes(statistics), _classes(validation)
    return {
        "level_spread": ratio(_level_share(statistics.samples), _level_share(validation.samples)),
        "feature_spread": ratio(trace_of(covariance), trace_of(reference)),
        "feature_excursion": feature_excursion(case.statistics.get("representative"), validation),
        "effective_rank_ratio": ratio(_effective_rank(covariance), _effective_rank(reference)),
        "class_coverage": len(classes & expected) / len(expected) if classes and expected else None,
        "class_coverage_ratio": _coverage_ratio(statistics, validation),
        "saturation_excess": _saturation_excess(case, statistics, validation),
        "unseen_channel_share": _unseen_channels(case, statistics, validation),
    }


def _input_moments(
    case: Case, statistics: SetStatistics
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None, float | None, float | None]:
    index = case.record.input_tensor
    if index is None or not statistics.tensor(index).count.sum():
        return None, None, None, None
    view = statistics.tensor(index)
    mean, std = channel_moments(view)
    return tuple(mean.tolist()), tuple(std.tolist()), float(view.min.min()), float(view.max.max())


def _effective_rank(covariance: NDArray[np.float64] | None) -> float | None:
    """exp(entropy) of the normalized spectrum (Roy and Vetterli 2007)."""
    if covariance is None:
        return None
    spectrum = np.clip(np.linalg.eigvalsh(covariance), 0.0, None)
    if spectrum.sum() <= 0:
        return None
    return math.exp(entropy(spectrum / spectrum.sum()))


def _classes(statistics: SetStatistics) -> set[int]:
    predicted = statistics.samples["class_float"]
    return set(np.unique(predicted[predicted >= 0]).tolist())


def _coverage_ratio(statistics: SetStatistics, validation: SetStatistics) -> float | None:
    """Classes that are seen / that are expected of as many distinct samples of the validation set."""
    predicted = validation.samples["class_float"]
    classes, counts = np.unique(predicted[predicted >= 0], return_counts=True)
    seen = _classes(statistics)
    if not len(classes) or not seen:
        return None
    rate = counts / counts.sum()
    expected = float((1.0 - (1.0 - rate) ** len(np.unique(statistics.samples["hash"]))).sum())
    return len(seen & set(classes.tolist())) / expected


def _unseen_channels(case: Case, statistics: SetStatistics, validation: SetStatistics) -> float | None:
    """Share of the channels of activations that vary on the validation set and not on this one."""
    inner = [i for i, t in enumerate(case.record.tensors) if not t.is_input and t.axis is not None]
    rows = [np.arange(statistics.offsets[i], statistics.offsets[i + 1]) for i in inner]
    if not rows:
        return None
    columns = [s.columns["max"] > s.columns["min"] for s in (statistics, validation)]
    here, there = (varies[np.concatenate(rows)] for varies in columns)
    return float((there & ~here).sum() / there.sum()) if there.any() else None


def _common_range(tensors: Sequence[TensorFacts]) -> dict[str, Any]:
    """How many of several quantizers share one grid, and which: where data set them, they differ."""
    grids = Counter((t.quantizer.scale, t.quantizer.low, t.quantizer.high) for t in tensors)
    if len(tensors) < SEVERAL:
        return {}
    (scale, low, high), count = grids.most_common(1)[0]
    which = f"{low:.4g} to {high:.4g} (scale {scale:.4g})"
    reading = f"{count} of {len(tensors)} ranges of activations are one and the same, {which}"
    return {"common_range_share": count / len(tensors), "common_range_reading": reading}


def _range_facts(case: Case, tensors: tuple[TensorFacts, ...], role: Role) -> dict[str, Any]:
    """How the quantizers' ranges fit what a data set shows; fixed ranges do not come from data."""
    set_by_data = {
        i: t for i, t in enumerate(tensors) if t.quantizer.high is not None and t.producer not in KNOWN_RANGE
    }
    # What begins at zero in front of negative values lacks the sign; no other data would have shown that.
    places = {i: t for i, t in set_by_data.items() if not _lacks_sign(t.quantizer, getattr(t, role).values)}
    own = list(places.values())
    shares = [share for t in own if (share := getattr(t, role).clipping.share) is not None]
    # A calibrator saw the samples that are not measured, too: against the others, any range looks too wide.
    whole = _seen_whole(case.statistics[role])
    reaches = [reach for t in own if whole and (reach := _reach(t.quantizer, getattr(t, role).values)) is not None]
    exact = [abs(reach - 1.0) < EXACT for reach in reaches]
    usual = float(np.median(shares)) if shares else None
    beyond, short = sum(r > 1.0 + AWRY for r in reaches), sum(r < 1.0 - AWRY for r in reaches)
    own_input = input_range_facts(case, tensors, role)
    method = find_method(_awry_ends(case, places, role)) if whole else None
    return {
        **own_input,
        "range_method": method.name if method is not None else None,
        "range_method_setting": method.setting if method is not None else None,
        "range_method_error": method.miss if method is not None else None,
        "input_clipped_ratio": ratio(own_input.get("input_clipped_share"), _at_least(usual, 1e-3)),
        "clipped_share_max": max(shares, default=None),
        "clipped_share_median": usual,
        "clipped_share_peak": ratio(max(shares, default=None), _at_least(usual, 1e-3)),
        "ranges_both_ways": min(beyond, short) / len(reaches) if reaches else None,
        "exact_range_share": sum(exact) / len(exact) if exact else None,
        **_common_range(list(set_by_data.values())),
        "range_reach": float(np.median(reaches)) if reaches else None,
    }


def _seen_whole(statistics: SetStatistics) -> bool:
    """What was measured of tensors at all was measured on every sample of the set."""
    measured = statistics.tensor_samples[statistics.tensor_samples > 0]
    return bool((measured >= len(statistics.samples)).all())


def _awry_ends(case: Case, tensors: Mapping[int, TensorFacts], role: Role) -> list[RangeEnd]:
    """Ranges that the extremes of this set did not set; what only hands values on has the range of what it reads."""
    found: dict[tuple[float, float], RangeEnd] = {}
    for place, tensor in tensors.items():
        values = getattr(tensor, role).values
        reach = _reach(tensor.quantizer, values)
        if not reach or reach < 0.0 or abs(reach - 1.0) <= CUT or values.mean is None or values.std is None:
            continue
        value, sign = max((values.max, 1), (-values.min, -1))
        bins = Bins.of(case.statistics[role].tensor(place).histogram, values.min, values.max)
        end = RangeEnd(reach * value, Side(value, sign, values.mean, values.std, bins))
        found.setdefault((end.end, value), end)
    return list(found.values())


def _lacks_sign(quantizer: QuantizerFacts, values: DistributionFacts) -> bool:
    """The range begins at zero although more than a few values are negative."""
    negative = values.negative_share
    return quantizer.low == 0 and negative is not None and negative > FEW_NEGATIVE


def _reach(quantizer: QuantizerFacts, values: DistributionFacts) -> float | None:
    """End of the range over the largest magnitude, on its side."""
    if values.min is None or values.max is None or quantizer.low is None or quantizer.high is None:
        return None
    end, value = (quantizer.high, values.max) if values.max >= -values.min else (-quantizer.low, -values.min)
    return ratio(end, value)


def _saturation_excess(case: Case, statistics: SetStatistics, validation: SetStatistics) -> float | None:
    """No more than lies at the set's largest value: even surfaces repeat the largest value of their own sample.

    None where that value is below the mean of the validation values: dark images of few levels are not over-exposed.
    """
    mine, other = (_saturation(s.samples) for s in (statistics, validation))
    if mine is None or other is None or _is_dark(case, statistics, validation):
        return None
    blank = _blank_share(statistics.samples, _whole_deviation(statistics.samples)) or 0.0
    return min(mine - other, _top_share(case, statistics) / (1.0 - blank) if blank < 1.0 else 1.0)


def _is_dark(case: Case, statistics: SetStatistics, validation: SetStatistics) -> bool:
    """The largest value of the first input lies below the mean of another set."""
    index = case.record.input_tensor
    return index is not None and bool(extremes(statistics)[1][index] < validation.samples["mean"].mean())


def _top_share(case: Case, statistics: SetStatistics) -> float:
    """Share of the first input's values in its uppermost bin; 1 where it has no histogram."""
    index = case.record.input_tensor
    if index is None or index not in statistics.histograms:
        return 1.0
    bins = bins_of_view(statistics.tensor(index))
    return 1.0 if bins is None else float(bins.count[-1] / bins.count.sum())


def _saturation(samples: SampleTable) -> float | None:
    """Mean share of elements at the largest value, of the samples that are not blank."""
    if not len(samples):
        return None
    saturated = samples["saturated"][~_blank(samples, _whole_deviation(samples))]
    return float(saturated.mean()) if saturated.size else None


def _strays(case: Case) -> dict[Role, Strays | None]:
    return strays_by_role({role: statistics.samples for role, statistics in case.statistics.items()})


def _stray_facts(strays: Strays | None) -> dict[str, Any]:
    """Samples far above all others; all None where the set is too small to tell."""
    if strays is None:
        return {}
    found: dict[str, Any] = {"stray_samples": strays.places, "stray_factor": strays.factor}
    if not strays.places:
        return found
    times = "are at least" if len(strays.places) > 1 else "is"
    factor = f"{strays.factor:.0f}" if strays.factor > 100 else f"{strays.factor:.3g}"
    reading = f"{words_of(strays.places)} {times} {factor} times as large as the middle one"
    return {**found, "stray_limit": strays.limit, "stray_reading": reading}


def _usual_deviation(case: Case, role: Role, relation: RelationFacts, strays: Mapping[Role, Strays | None]) -> float:
    """Deviation of a whole set, or what the validation set's would be in its units where that is larger."""
    own = _deviation_without_strays(case, role, strays)
    if role == "validation" or "validation" not in case.statistics:
        return own
    return max(own, min(_certain_slope(relation), 1.0) * _deviation_without_strays(case, "validation", strays))


def _certain_slope(relation: RelationFacts) -> float:
    """Factor between both sets where it is beyond doubt, else 1."""
    if relation.input_std is not None:  # of another input than that which tells blank samples
        return 1.0
    if relation.slope is None or relation.method == "lattice":
        return relation.slope or 1.0
    if relation.certainty is None or relation.slope_low is None or relation.slope_high is None:
        return 1.0
    sure = relation.certainty > CERTAIN and not relation.slope_low <= 1 <= relation.slope_high
    return relation.slope if sure else 1.0


def _deviation_without_strays(case: Case, role: Role, strays: Mapping[Role, Strays | None]) -> float:
    """What a whole set deviates: one sample of huge values would make all others look blank."""
    samples, own = case.statistics[role].samples, strays[role]
    return _whole_deviation(np.delete(samples, own.places) if own is not None and own.places else samples)


def _blank_share(samples: SampleTable, whole: float) -> float | None:
    """Share of blank samples."""
    return float(_blank(samples, whole).mean()) if len(samples) else None


def _kept_deviation_ratio(samples: SampleTable, others: SampleTable, whole: float) -> float | None:
    """How far the samples that are not blank vary within themselves, against those of the validation set."""
    if not len(samples) or not len(others):
        return None
    kept = samples["deviation"][~_blank(samples, whole)]
    reference = math.sqrt(np.square(others["deviation"]).mean())
    return math.sqrt(np.square(kept).mean()) / reference if len(kept) and reference > 0 else None


def blank_limit(case: Case, role: Role) -> float:
    """Deviation under which a sample of this set counts as blank; infinite where all samples do."""
    relation = relation_facts(case) if role == "representative" else RelationFacts()
    whole = _usual_deviation(case, role, relation, _strays(case))
    return BLANK * whole if whole > 0 else math.inf


def _blank(samples: SampleTable, whole: float) -> NDArray[np.bool_]:
    """Samples whose deviation is next to nothing against that of a whole set."""
    return samples["deviation"] < BLANK * whole if whole > 0 else np.ones(len(samples), np.bool_)


def _whole_deviation(samples: SampleTable) -> float:
    """Standard deviation over all elements of a set, from the moments of its samples; 0 without samples."""
    if not len(samples):
        return 0.0
    deviation = samples["deviation"].astype(np.float64)
    return math.sqrt(float((deviation**2).mean()) + float(samples["mean"].astype(np.float64).var()))


def _level_share(samples: SampleTable) -> float | None:
    """Deviation of the samples' means / that of all their values."""
    return ratio(float(samples["mean"].astype(np.float64).std()), _whole_deviation(samples)) if len(samples) else None


def clipped_shares(case: Case, tensors: tuple[TensorFacts, ...]) -> dict[Role, float | None]:
    """Share of the activations' values outside of their quantizers' ranges, by data set."""
    return {role: _clipped_share(tensors, role) for role in case.statistics}


def _clipped_share(tensors: tuple[TensorFacts, ...], role: Role) -> float | None:
    rows = [getattr(tensor, role) for tensor in tensors]
    known = [(r.clipping.share, r.rounding, r.values.count) for r in rows if r.clipping.share is not None]
    total = sum(count for _, _, count in known if count)
    return sum(share * count for share, _, count in known if count) / total if total else None


def _median_fact(tensors: tuple[TensorFacts, ...], role: Role, name: str) -> float | None:
    values = [getattr(getattr(t, role).values, name) for t in tensors if t.producer != "Input"]
    known = [v for v in values if v is not None]
    return float(np.median(known)) if known else None


def _at_least(value: float | None, floor: float) -> float | None:
    return None if value is None else max(value, floor)
