"""Variants of a quantized model, measured against one float model on the same samples."""

from collections.abc import Sequence

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.measure.models import Models
from quantmedic.collectors.metrics.metric import Metric
from quantmedic.collectors.pair.output_parts import recorded_joints
from quantmedic.engine.case.proof import TrialRecord
from quantmedic.engine.case.records import Case
from quantmedic.trials.bench import Bench
from quantmedic.trials.judgement import Judgement
from quantmedic.trials.split import samples_of

#: What a row is called in ``TrialRecord.kind``.
KIND = "what-if"


class Variants:
    """The first variant, which the others are compared with, and the samples that judge all of them."""

    def __init__(self, batches: Sequence[Batch], metric: Metric | None, threads: int, seed: int) -> None:
        """Judge on these samples; they stay in memory."""
        self._batches, self._threads, self._seed = batches, threads, seed
        self._metric = metric if all(batch.labels is not None for batch in batches) else None
        self._judgement: Judgement | None = None

    def measure(self, name: str, models: Models, case: Case) -> TrialRecord:
        """What a variant recovers over the first one, which is measured first and recovers nothing.

        Args:
            name: What the variant is called.
            models: The float model and the variant.
            case: A few samples measured with them.

        Raises:
            ModelError: A model fails.
            DataError: The metric does not fit.
        """
        bench = Bench(
            models,
            self._batches,
            metric=self._metric,
            classes=case.has_classes,
            threads=self._threads,
            whole=True,
            joints=recorded_joints(case.record),
        )
        if self._judgement is None:
            self._judgement = Judgement([bench], samples_of(self._batches), self._metric, self._seed)
        self._judgement.add((name,), [bench.before])
        return self._judgement.trial(name, KIND, (name,), ())
