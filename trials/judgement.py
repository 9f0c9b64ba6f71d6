"""Networks measured on one set of samples, and what one of them recovers over another."""

from collections.abc import Sequence

import numpy as np

from quantmedic.collectors.metrics.metric import Metric
from quantmedic.engine.case.gains import gain_of
from quantmedic.engine.case.proof import MetricTrial, TrialRecord
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.decibels import sqnr_db
from quantmedic.trials.bench import Bench, Measured


class Judgement:
    """What was measured on some samples: of the quantized model, and of models by the keys of their changes.

    Attributes:
        samples: Number of samples.
        known: What was measured, by the keys of what was changed, one after the other.
    """

    def __init__(self, benches: Sequence[Bench], samples: int, metric: Metric | None, seed: int) -> None:
        """Judge on the samples of these benches."""
        self.samples, self._metric, self._seed = samples, metric, seed
        self.known: dict[tuple[str, ...], Measured] = {(): _over_benches([bench.before for bench in benches])}
        self._power = float(np.concatenate([bench.power for bench in benches]).sum())
        self._float_metric = _together([bench.float_metric for bench in benches])

    @property
    def sqnr_db(self) -> float:
        """Output SQNR of the unchanged model."""
        return self._sqnr_db(self.known[()])

    def share(self, keys: tuple[str, ...]) -> float:
        """Share of the noise power that these changes together take away."""
        before, now = self.known[()].noise.sum(), self.known[keys].noise.sum()
        return float(1.0 - now / before) if before > 0 else 1.0

    def add(self, keys: tuple[str, ...], found: Sequence[Measured]) -> None:
        """Keep what was measured on each bench."""
        self.known[keys] = _over_benches(found)

    def trial(self, key: str, kind: str, keys: tuple[str, ...], after: tuple[str, ...]) -> TrialRecord:
        """What the model of these keys recovers over that of others."""
        before, now = self.known[after], self.known[keys]
        return TrialRecord(
            key=key,
            kind=kind,
            after=after,
            samples=self.samples,
            sqnr_before=self._sqnr_db(before),
            sqnr_after=self._sqnr_db(now),
            **gain_of(before.noise, now.noise, self._seed)._asdict(),
            agreement_before=before.agreement,
            agreement_after=now.agreement,
            metric=self._metric_trial(before, now),
        )

    def _sqnr_db(self, measured: Measured) -> float:
        return sqnr_db(self._power, float(measured.noise.sum()))

    def _metric_trial(self, before: Measured, now: Measured) -> MetricTrial | None:
        metric = self._metric
        if metric is None or self._float_metric is None or before.metric is None or now.metric is None:
            return None
        # A gain is what the changed model would lose if the remedy were taken back.
        (gain, low, high), (left, left_low, left_high) = (
            metric.drop_interval(*pair, self._seed)
            for pair in ((now.metric, before.metric), (self._float_metric, now.metric))
        )
        return MetricTrial(
            name=metric.name,
            float_model=metric.aggregate(self._float_metric),
            before=metric.aggregate(before.metric),
            after=metric.aggregate(now.metric),
            gain=gain,
            low=low,
            high=high,
            left=left,
            left_low=left_low,
            left_high=left_high,
        )


def _over_benches(found: Sequence[Measured]) -> Measured:
    """What was measured on all benches."""
    agreements = [measured.agreement for measured in found if measured.agreement is not None]
    return Measured(
        np.concatenate([measured.noise for measured in found]),
        float(np.mean(agreements)) if agreements else None,
        _together([measured.metric for measured in found]),
    )


def _together(tallies: Sequence[Tally | None]) -> Tally | None:
    known = [own for own in tallies if own is not None]
    return Tally.join(known) if len(known) == len(tallies) else None
