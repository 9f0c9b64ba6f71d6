"""The task metric of both models, and what lies between."""

from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.case.facts import MetricFacts
from quantmedic.engine.metrics.kinds import is_share
from quantmedic.reports.text import NOT_MEASURED, loss_word, metric_change, metric_label, metric_value, number


@dataclass(frozen=True)
class Drop:
    """The task metric of both models and what lies between."""

    metric: Annotated[str, "name of the metric"]
    float_value: Annotated[str, "metric of the float model"]
    quantized_value: Annotated[str, "metric of the quantized model"]
    word: Annotated[str, "drop, or rise where less of the metric is better"]
    change: Annotated[str, "size of the drop or rise, worse is positive"]
    low: Annotated[str, "lower end of its 95 % interval"]
    high: Annotated[str, "upper end of its 95 % interval"]
    interval: Annotated[str, "both ends with one unit"]
    samples: Annotated[str, "samples that it was measured on"]
    dataset: Annotated[str, "data set that it was measured on"]


def metric_drop(metrics: MetricFacts) -> Drop | None:
    """Of what was measured; None where that is not both models' metric."""
    if metrics.drop is None:
        return None
    low, high = (metric_change(value, metrics.name) for value in (metrics.drop_low, metrics.drop_high))
    unit = " points" if is_share(metrics.name) else ""
    return Drop(
        metric=metric_label(metrics.name),
        float_value=metric_value(metrics.float_value, metrics.name),
        quantized_value=metric_value(metrics.quantized_value, metrics.name),
        word=loss_word(metrics.higher_is_better),
        change=f"{metric_change(metrics.drop, metrics.name)}{_relative_change(metrics)}",
        low=low,
        high=high,
        interval=NOT_MEASURED if NOT_MEASURED in (low, high) else f"{low.removesuffix(unit)} … {high}",
        samples=number(metrics.samples),
        dataset=metrics.dataset or NOT_MEASURED,
    )


def _relative_change(metrics: MetricFacts) -> str:
    """The change of what is no share, in percent of the float model's value; nobody knows by heart how much 0.2 is."""
    if is_share(metrics.name) or metrics.relative_drop is None:
        return ""
    return f" ({number(100 * metrics.relative_drop)} %)"
