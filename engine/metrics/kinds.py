"""Task metrics by name: how what was kept of the samples becomes a number, a drop and an interval."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.budget_record import TaskMeasure
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.metrics import paired
from quantmedic.engine.metrics.counts import Estimate, class_ratio, exponential_ratio, neighbour_hits, ratio
from quantmedic.engine.metrics.detection import OVERLAPS, mean_average_precision
from quantmedic.engine.metrics.paired import resampled_interval

Floats = NDArray[np.float64]
Interval = tuple[float, float, float]
_UNDEFINED = (float("nan"), float("nan"), float("nan"))


@dataclass(frozen=True)
class MetricKind:
    """A task metric, as a function of what was kept of the samples.

    Attributes:
        label: How reports call it.
        higher_is_better: Its direction; None where the user says it.
        is_share: It is a share: shown in percent, and its changes in points.
        of_classes: It reads class scores and class labels.
        root: It is the square root of the mean of its numbers (rmse).
        numbers: One number per sample, where the metric is their mean; NaN for a sample that has none.
        estimate: Gives the metric for any choice of the samples, where it is no mean.
    """

    label: str
    higher_is_better: bool | None = None
    is_share: bool = False
    of_classes: bool = False
    root: bool = False
    numbers: Callable[[Tally], Floats] = lambda tally: tally.values[:, 0]
    estimate: Callable[[Tally], Estimate] | None = None

    @property
    def is_mean(self) -> bool:
        """The metric is the mean of one number that was kept of each sample."""
        return self.estimate is None and self.numbers is MetricKind.numbers

    def value(self, tally: Tally) -> float:
        """The metric over all samples, in any order or grouping; NaN without any."""
        if not len(tally):
            return float("nan")
        if self.estimate is not None:
            with np.errstate(divide="ignore", invalid="ignore"):
                return float(self.estimate(tally)(np.ones((1, len(tally))))[0])
        (numbers,) = self.defined_numbers(tally)
        return self.mean_of(float(np.mean(numbers))) if len(numbers) else float("nan")

    def mean_of(self, mean: float) -> float:
        """The metric, of the mean of its numbers."""
        return float(np.sqrt(mean)) if self.root else mean

    def defined_numbers(self, *tallies: Tally) -> tuple[Floats, ...]:
        """One number per sample of each tally, of the samples that have one in all; none where it is no mean."""
        if self.estimate is not None:
            return ()
        found = [self.numbers(tally) for tally in tallies]
        known = np.logical_and.reduce([np.isfinite(own) for own in found])
        return tuple(own[known] for own in found)

    def drop_interval(
        self,
        floats: Tally,
        quantized: Tally,
        *,
        higher_is_better: bool,
        relative: bool = False,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> Interval:
        """Drop of the metric and its confidence interval; positive means worse.

        Means follow `paired.drop_interval`. For all others the same samples are drawn for both models
        (`resampled_interval`). Where the two models do not differ on any sample, a share has the interval that top1
        has then: samples that differ may be among those that were not seen.

        Args:
            floats: What was kept of the float model, at least one sample.
            quantized: The same of the quantized model on the same samples.
            higher_is_better: Direction of the metric.
            relative: The drop over the magnitude of the float model's metric.
            confidence: Coverage of the interval.
            seed: Seed of the bootstrap.
        """
        if pair := self.defined_numbers(floats, quantized):
            if not len(pair[0]):
                return _UNDEFINED
            return paired.drop_interval(
                *pair,
                higher_is_better=higher_is_better,
                relative=relative,
                root=self.root,
                confidence=confidence,
                seed=seed,
            )
        if self.is_share and floats.equals(quantized):
            low, high = paired.score_interval(0, 0, len(floats), confidence)
            level = abs(self.value(floats)) if relative else 1.0
            return 0.0, float(low) / level, float(high) / level
        found = self._resample(_relative if relative else np.subtract, (floats, quantized), confidence, seed)
        return paired.worse_is_positive(found, higher_is_better)

    def value_interval(self, tally: Tally, *, confidence: float = 0.95, seed: int = 0) -> tuple[float, float]:
        """Confidence interval of the metric itself."""
        if pair := self.defined_numbers(tally):
            return paired.mean_interval(pair[0], root=self.root, confidence=confidence, seed=seed)
        _, low, high = self._resample(lambda a: a, (tally,), confidence, seed)
        return low, high

    def _resample(
        self, statistic: Callable[..., Floats], tallies: tuple[Tally, ...], confidence: float, seed: int
    ) -> Interval:
        assert self.estimate is not None
        return resampled_interval(
            tuple(self.estimate(tally) for tally in tallies),
            statistic,
            samples=len(tallies[0]),
            rows=max(len(tally.values) for tally in tallies),
            confidence=confidence,
            seed=seed,
        )


def _relative(floats: Floats, quantized: Floats) -> Floats:
    return (floats - quantized) / np.abs(floats)


KINDS = {
    "top1": MetricKind("top-1", True, is_share=True, of_classes=True),
    "top5": MetricKind("top-5", True, is_share=True, of_classes=True),
    "mae": MetricKind("MAE", False),
    "rmse": MetricKind("RMSE", False, root=True),
    "map": MetricKind("mAP", True, is_share=True, estimate=mean_average_precision(range(len(OVERLAPS)))),
    "map50": MetricKind("mAP50", True, is_share=True, estimate=mean_average_precision([0])),
    "miou": MetricKind("mIoU", True, is_share=True, estimate=class_ratio),
    "f1": MetricKind("macro F1", True, is_share=True, of_classes=True, estimate=class_ratio),
    "f1-binary": MetricKind("F1", True, is_share=True, estimate=ratio),
    "cer": MetricKind("character error rate", False, is_share=True, estimate=ratio),
    "wer": MetricKind("word error rate", False, is_share=True, estimate=ratio),
    "recall@1": MetricKind("recall@1", True, is_share=True, numbers=partial(neighbour_hits, k=1)),
    "perplexity": MetricKind("perplexity", False, estimate=exponential_ratio),
}
_RECALL = re.compile(r"recall@([1-9]\d{0,3})")


def built_in_kind(name: str) -> MetricKind | None:
    """The metric of this name; None for a function of the user, and for a name that is not known."""
    if match := _RECALL.fullmatch(name):
        k = int(match[1])
        return MetricKind(name, True, is_share=True, numbers=partial(neighbour_hits, k=k))
    return KINDS.get(name)


def kind_of(name: str | None) -> MetricKind:
    """The metric of this name; what is not built in is the mean of one number per sample."""
    return built_in_kind(name or "") or MetricKind(name or "")


def is_share(name: str | None) -> bool:
    """The metric is a share: shown in percent, and its changes in points."""
    return kind_of(name).is_share


def loses_shares(measure: TaskMeasure | None, metric: str | None) -> bool:
    """What is lost of the task is a share: of the classes that agree, or of a metric that is one."""
    return measure == "agreement" or is_share(metric)
