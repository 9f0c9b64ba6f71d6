"""What a network loses of its task, sample by sample: of the metric, or where there is none, of the float classes."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.measure.output_noise import OutputNoise
from quantmedic.collectors.metrics.metric import Metric
from quantmedic.engine.case.loss_budget import TaskMeasure
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.metrics.contributions import contributions

Floats = NDArray[np.float64]
Outputs = Sequence[Sequence[NDArray[np.float32]]]


class TaskLoss:
    """The task on some samples.

    Attributes:
        measure: What of it is measured; None for nothing.
    """

    def __init__(
        self, batches: Sequence[Batch], floats: Outputs, noise: OutputNoise, metric: Metric | None, names: Sequence[str]
    ) -> None:
        """Measure the float network.

        Args:
            batches: The samples.
            floats: Outputs of the float network.
            noise: Compares classes with those of the float network.
            metric: Task metric; read only where all samples are labelled.
            names: Names of the outputs, by which the metric knows them.
        """
        self._batches, self._noise, self._metric, self._names = batches, noise, metric, names
        labelled = metric is not None and all(batch.labels is not None for batch in batches)
        self.measure: TaskMeasure | None = "metric" if labelled else "agreement"
        self._best = self._numbers(floats)
        if not (len(self._best) and np.isfinite(self._best).all()):
            self.measure = None

    def lost(self, outputs: Outputs) -> Floats:
        """What each sample loses against the float network; positive means worse, and nothing is empty."""
        if self.measure is None:
            return np.zeros(0)
        lost = self._best - self._numbers(outputs)
        return lost if self.measure == "agreement" or self._higher_is_better else -lost

    @property
    def _higher_is_better(self) -> bool:
        return self._metric is not None and self._metric.higher_is_better

    def _numbers(self, outputs: Outputs) -> Floats:
        if self.measure == "agreement" or self._metric is None:
            same = self._noise.same_classes(outputs)
            return same if same is not None else np.zeros(0)
        parts = [
            self._metric.tally(dict(zip(self._names, found, strict=True)), batch.labels)
            for found, batch in zip(outputs, self._batches, strict=True)
            if batch.labels is not None
        ]
        return contributions(self._metric.kind, Tally.join(parts))
