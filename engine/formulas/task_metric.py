"""Facts of the task metric, from what was kept of the samples."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.facts import DatasetFacts, MetricFacts, Role
from quantmedic.engine.case.output_comparison import ORDER
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.statistics import SetStatistics
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.formulas.power import SampleSizes, sizes_of_counts, sizes_of_interval
from quantmedic.engine.metrics.detection import BOX_METRICS, LITTLE
from quantmedic.engine.metrics.kinds import Interval, kind_of
from quantmedic.engine.metrics.labels import AS_GIVEN, fit_of_labels
from quantmedic.engine.metrics.paired import discordant, is_binary
from quantmedic.engine.thresholds import Thresholds

#: Facts that are not given where the labels do not fit.
_OF_THE_DROP = ("drop", "drop_low", "drop_high", "relative_drop", "gain_share")
#: Coverage of the interval that an expected metric is held against.
EXPECTED_CONFIDENCE = 0.99


#: Coverage of the interval of the drop.
_CONFIDENCE = 0.95
#: Samples from which on labels are held against the predicted classes.
_LABELS_JUDGED = 32
#: Rates of errors in texts, and what they are where nothing at all is read.
TEXT_METRICS, NOTHING_READ = ("cer", "wer"), 1.0
#: Faults of labels that the quantized model must not have less of.
_NEAR_CHANCE = ("chance", "weak")


def metric_facts(case: Case) -> MetricFacts:
    """The task metric on the labelled set (validation first), or that of language models; empty without either."""
    name = case.record.metric
    if name is None:
        return case.record.model.metric
    for role in ("validation", "representative"):
        statistics = case.statistics.get(role)
        if statistics is None:
            continue
        pairs = metric_pairs(statistics)
        if len(pairs[0]):
            return _facts_of_pairs(case, name, role, *pairs)
    return MetricFacts(name=name, higher_is_better=case.record.metric_higher_is_better)


def with_label_fit(metric: MetricFacts, case: Case, thresholds: Thresholds) -> MetricFacts:
    """A metric of classes or boxes, with how the labels fit the classes of the first output, or the boxes found.

    Where they do not, no drop is given: it would say nothing. A weak float model may lose what it has. It is as good as
    it can be where it reaches what the user expects of it.
    """
    if (turn := _better_order(metric, case, thresholds)) is not None:
        name, value = turn
        found = {"label_fault": "turned", "label_turn": name, "turned_value": value}
        return metric.model_copy(update={**found, **dict.fromkeys(_OF_THE_DROP)})
    if metric.name in BOX_METRICS:
        few = _finds_few_boxes(metric)
        unjudged = dict.fromkeys(_OF_THE_DROP) if few else {}
        return metric.model_copy(update={"label_fault": "few" if few else "none", **unjudged})
    if metric.name in TEXT_METRICS:
        if metric.float_value is None or metric.float_value < NOTHING_READ:
            return metric
        unread = dict.fromkeys(_OF_THE_DROP)
        return metric.model_copy(update={"label_fault": "chance", "chance": NOTHING_READ, **unread})
    outputs, read = case.record.outputs, case.record.run.get("metric_output")
    is_first = read is None or (bool(outputs) and read == outputs[0].name)
    if metric.dataset is None or not kind_of(metric.name).of_classes or not is_first:
        return metric
    samples = case.statistics[metric.dataset].samples
    classified = samples[(samples["label"] >= 0) & (samples["class_float"] >= 0)]
    if len(classified) < _LABELS_JUDGED:
        return metric
    labels, predicted = (classified[name].astype(np.int64) for name in ("label", "class_float"))
    margin, slight = thresholds.threshold("label_margin"), thresholds.threshold("slight_kappa")
    fit = fit_of_labels(labels, predicted, classified["hash"] % 2 == 0, margin, slight)
    if fit is None:
        return metric
    if fit.fault in _NEAR_CHANCE and metric.drop_high is not None and metric.drop_high < -margin:
        return metric  # The labels fit the quantized model: it is the float one that is another.
    shortfall, allowed = metric.expected_shortfall, thresholds.threshold("float_metric_shortfall")
    if fit.fault == "weak" and shortfall is not None and shortfall <= allowed:
        fit = fit._replace(fault="none")
    found = {"label_fault": fit.fault, "chance": fit.chance, "relabelled_value": fit.share, "label_shift": fit.shift}
    found |= {"kappa": fit.kappa}
    unknown = dict.fromkeys(_OF_THE_DROP) if fit.fault not in ("none", "weak") else {}
    return metric.model_copy(update={**found, **unknown})


def _better_order(metric: MetricFacts, case: Case, thresholds: Thresholds) -> tuple[str, float] | None:
    """The order of the labels in which the float model is far better than as they were given, and its metric there."""
    statistics = case.statistics.get(metric.dataset) if metric.dataset is not None else None
    kept = statistics.comparisons if statistics is not None else {}
    means = {key[len(ORDER) : -2]: own.mean_metric for key, own in kept.items() if key.startswith(ORDER)}
    values = {name: kind_of(metric.name).mean_of(mean) for name, mean in means.items() if mean is not None}
    given = values.pop(AS_GIVEN, None)
    if given is None or not values:
        return None
    best = (max if metric.higher_is_better is not False else min)(values, key=values.__getitem__)
    gain = (values[best] - given) * (1.0 if metric.higher_is_better is not False else -1.0)
    far = thresholds.threshold("quarter_share") * max(abs(given), abs(values[best]))
    return (best, values[best]) if gain > far else None


def odd_set_reading(metric: MetricFacts, thresholds: Thresholds) -> str:
    """Which of two sets that were prepared differently is to be changed, in words, by the float model's kappa."""
    if metric.kappa is None or metric.dataset != "validation":
        return "one of both sets is prepared wrongly, and labels of the validation set would tell which"
    if metric.kappa > thresholds.threshold("substantial_kappa"):
        return "the representative set is prepared wrongly"
    if metric.kappa <= thresholds.threshold("slight_kappa"):
        return "the validation set is prepared wrongly, if not both"
    return "one of both sets is prepared wrongly"


def with_odd_set(view: DatasetFacts, reading: str) -> DatasetFacts:
    """A set that was held against the other one, with what `odd_set_reading` says of both, and of which input."""
    if not view.relation.kind:
        return view
    where = f" at input {view.relation.input}" if view.relation.input else ""
    return view.model_copy(update={"odd_set_reading": f"{reading}{where}"})


def _finds_few_boxes(metric: MetricFacts) -> bool:
    """The float model finds so few of the labelled boxes that no loss means nothing, and nobody expects it to be so."""
    if metric.float_value is None or metric.expected is not None:
        return False
    is_told = (
        metric.drop_low is not None and metric.drop_high is not None and (metric.drop_low > 0 or metric.drop_high < 0)
    )
    return metric.float_value < LITTLE and not is_told


def metric_tallies(statistics: SetStatistics) -> tuple[Tally, Tally]:
    """What the task metric keeps of each sample in the table, of the float and of the quantized model."""
    if statistics.tallies:
        return statistics.tallies["float"], statistics.tallies["quantized"]
    samples = statistics.samples
    return Tally.of_numbers(samples["metric_float"]), Tally.of_numbers(samples["metric_quantized"])


def metric_pairs(statistics: SetStatistics) -> tuple[Tally, Tally]:
    """What the task metric keeps of both models, on the samples where it is known of both.

    In the order of the samples' content, so that what is resampled depends neither on the order of the data nor on its
    shards.
    """
    return _sort_samples(*metric_tallies(statistics), statistics.samples["hash"].tobytes())


@lru_cache(maxsize=2)
def _sort_samples(floats: Tally, quantized: Tally, hashes: bytes) -> tuple[Tally, Tally]:
    """Kept, as is the drop: what is simulated of a repair leaves the metric as it was measured."""
    usable = np.flatnonzero(floats.known & quantized.known)
    floats, quantized = floats.take(usable), quantized.take(usable)
    order = np.lexsort((quantized.sums()[:, 0], floats.sums()[:, 0], np.frombuffer(hashes, np.uint64)[usable]))
    return floats.take(order), quantized.take(order)


@lru_cache(maxsize=2)
def _drop(name: str, floats: Tally, quantized: Tally, higher: bool, seed: int) -> Interval:
    return kind_of(name).drop_interval(floats, quantized, higher_is_better=higher, seed=seed)


def sizes_to_tell(case: Case, metric: MetricFacts, drop: float) -> SampleSizes | None:
    """Samples whose interval would end at a drop, in the unit of the metric, if the metric drops as measured.

    Of zeros and ones by their discordant counts (`sizes_of_counts`: the score interval of Tango 1998, turned around);
    of others by their interval, whose width falls with the square root of the samples. None without an interval.
    """
    if metric.dataset is None or metric.drop is None or metric.drop_low is None or metric.drop_high is None:
        return None
    if metric.dataset not in case.statistics:  # of language models, nothing is kept of each text
        samples = metric.samples or 0
        return sizes_of_interval(metric.drop, metric.drop_low, metric.drop_high, samples, drop, _CONFIDENCE)
    floats, quantized = metric_pairs(case.statistics[metric.dataset])
    kind = kind_of(metric.name)
    numbers = kind.defined_numbers(floats, quantized)
    if numbers and not kind.root and is_binary(*numbers):
        losses, gains = discordant(*numbers if metric.higher_is_better else reversed(numbers))
        return sizes_of_counts(losses, gains, len(numbers[0]), drop, _CONFIDENCE)
    return sizes_of_interval(metric.drop, metric.drop_low, metric.drop_high, len(floats), drop, _CONFIDENCE)


def samples_lost(statistics: SetStatistics) -> NDArray[np.bool_]:
    """Samples that only the float model has a metric of."""
    floats, quantized = metric_tallies(statistics)
    lost: NDArray[np.bool_] = floats.known & ~quantized.known
    return lost


def _facts_of_pairs(case: Case, name: str, role: Role, floats: Tally, quantized: Tally) -> MetricFacts:
    higher, kind = bool(case.record.metric_higher_is_better), kind_of(name)
    before, after = kind.value(floats), kind.value(quantized)
    if math.isnan(before) or math.isnan(after):
        return MetricFacts(name=name, higher_is_better=higher)
    seed = int(case.record.run.get("seed", 0))
    scale = 1.0 if kind.is_share else max(abs(before), abs(after))
    expected = case.record.expected_float_metric if scale else None
    elsewhere = case.record.expected_quantized_metric if scale else None
    shortfall = None if expected is None else max(_excess(expected, floats, name, higher, seed), 0.0) / scale
    distance = None if elsewhere is None else abs(_excess(elsewhere, quantized, name, higher, seed)) / scale
    drop, low, high = _drop(name, floats, quantized, higher, seed)
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
        expected_shortfall=shortfall,
        expected_quantized=elsewhere,
        expected_quantized_distance=distance,
    )


def _excess(expected: float, measured: Tally, name: str, higher: bool, seed: int) -> float:
    """How much better than measured an expected metric is, beyond what chance explains; negative where it is worse."""
    low, high = kind_of(name).value_interval(measured, confidence=EXPECTED_CONFIDENCE, seed=seed)
    beyond = min(expected - low, 0.0) + max(expected - high, 0.0)
    return beyond if higher else -beyond
