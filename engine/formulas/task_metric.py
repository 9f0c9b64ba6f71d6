"""Facts of the task metric, from the table of samples."""

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.facts import (
    MetricFacts,
    Role,
)
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.statistics import SetStatistics
from quantmedic.engine.formulas.paired import drop_interval, mean_interval

#: Coverage of the interval that an expected metric is held against.
EXPECTED_CONFIDENCE = 0.99


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
            return _facts_of_pairs(case, name, role, *pairs)
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


def _facts_of_pairs(
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
