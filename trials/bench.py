"""How good a network is on the samples of a trial: noise at its output, and the task metric."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.measure.models import Edited, Models, Runner
from quantmedic.collectors.measure.output_noise import ColumnNoise, OutputNoise, Worst
from quantmedic.collectors.metrics.metric import Metric
from quantmedic.collectors.pair.output_parts import Joint
from quantmedic.collectors.statistics.accumulate import class_scores
from quantmedic.engine.case.records import RunRecord
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.contract.searches import Outcome, WorstOutcome
from quantmedic.engine.decibels import sqnr_db
from quantmedic.engine.diagnosis.prediction import output_sqnr_db
from quantmedic.engine.errors import ModelError
from quantmedic.trials.split import samples_of

Float32 = NDArray[np.float32]
Floats = NDArray[np.float64]
#: Samples of the bootstrap that give an interval.
RESAMPLES = 1000


class OutOfTimeError(Exception):
    """The budget ended in the middle of a measurement."""


@dataclass(frozen=True)
class Measured:
    """One network on all judged samples.

    Attributes:
        noise: Noise power at the output per sample, in shares of the whole signal; of models that mix samples, per
            batch.
        agreement: Share of samples with the float network's class; None without classes.
        metric: What the task metric keeps of each sample; None without labels.
        worst: The worst column, operand or output; None where whole outputs were not asked for.
    """

    noise: Floats
    agreement: float | None
    metric: Tally | None
    worst: Worst | None = None


class Runners(NamedTuple):
    """Both models as they are, opened once for several benches."""

    floats: Runner
    deployed: Runner

    @classmethod
    def open(cls, models: Models, threads: int) -> "Runners":
        """Open both.

        Raises:
            ModelError: A model cannot be run.
        """
        return cls(models.float_runner(threads), models.quantized_runner(threads))


class Bench:
    """Samples on which networks are judged, with what the float network makes of them.

    Attributes:
        threads: Processor threads.
    """

    def __init__(
        self,
        models: Models,
        batches: Sequence[Batch],
        *,
        metric: Metric | None,
        classes: bool | None,
        threads: int,
        whole: bool = False,
        joints: Sequence[Joint] = (),
        runners: Runners | None = None,
    ) -> None:
        """Run the float and the deployed network once.

        Args:
            models: Both models.
            batches: The samples; they and the float outputs stay in memory.
            metric: Task metric, where the samples are labelled.
            classes: The first output holds class scores along its last axis; None: where it looks like them.
            threads: Processor threads.
            whole: Judge the whole outputs even where the noise hides in few columns, and find the worst column.
            joints: What the outputs are joined of.
            runners: Both models, where they are open already.

        Raises:
            ModelError: A model fails.
            DataError: The metric does not fit.
        """
        self._batches, self.threads = batches, threads
        labelled = all(batch.labels is not None for batch in batches)
        self._metric = metric if labelled else None
        self._float_names = [models.float_graph.outputs[i] for i, _ in models.match.outputs]
        self._names = [models.quantized.outputs[j] for _, j in models.match.outputs]
        runners = runners or Runners.open(models, threads)
        floats = self.run_all(runners.floats)
        deployed = floats if runners.deployed is runners.floats else self.run_all(runners.deployed)
        if classes is None:
            classes = class_scores(floats[0][0], batches[0].samples) is not None
        self._noise = OutputNoise(batches, floats, deployed, classes=classes, whole=whole, joints=joints)
        self._columns = ColumnNoise(floats, joints, classes=classes) if whole else None
        self.float_metric = self._metric_tally(floats)
        self.columns = self._noise.columns
        self._deployed = deployed

    @staticmethod
    def share_signal(benches: Sequence["Bench"]) -> None:
        """Have the samples of several benches judged as if they were of one; see ``OutputNoise.share_signal``."""
        OutputNoise.share_signal([bench._noise for bench in benches])

    @property
    def power(self) -> Floats:
        """Signal per sample."""
        return self._noise.power

    @property
    def samples(self) -> int:
        """Number of samples."""
        return samples_of(self._batches)

    @property
    def before(self) -> Measured:
        """The deployed network."""
        return self.judge_outputs(self._deployed)

    def measure(self, edited: Edited, deadline: float | None = None) -> Measured:
        """The quantized model with a change carried out; see ``measure_run``."""
        return self.measure_run(edited.runner(self.threads), deadline)

    def measure_run(self, run: Runner, deadline: float | None = None) -> Measured:
        """What a changed model makes of the samples.

        Args:
            run: Runs the changed model.
            deadline: ``time.monotonic()`` at which to give up.

        Raises:
            ModelError: It cannot be loaded, fails, or gives NaN or infinite values.
            OutOfTimeError: The deadline has passed.
        """
        return self.judge_outputs(self.run_all(require_finite(run, self._names, "the changed model"), deadline))

    def same_classes(self, outputs: Sequence[Sequence[Float32]]) -> Floats | None:
        """See ``OutputNoise.same_classes``."""
        return self._noise.same_classes(outputs)

    def run_all(self, run: Runner, deadline: float | None = None) -> list[list[Float32]]:
        """Outputs per batch.

        Raises:
            OutOfTimeError: The deadline has passed.
        """
        found = []
        for batch in self._batches:
            if deadline is not None and time.monotonic() > deadline:
                raise OutOfTimeError
            found.append(run(batch))
        return found

    def judge_outputs(self, outputs: Sequence[Sequence[Float32]]) -> Measured:
        """Matched outputs per batch, wherever they come from, against the float network's."""
        found = self._noise.compare(outputs)
        worst = self._columns.worst(outputs) if self._columns is not None else None
        return Measured(np.array(found.noise), found.agreement, self._metric_tally(outputs), worst)

    @property
    def float_value(self) -> float | None:
        """The float network's metric; None without labels."""
        return self._value(self.float_metric)

    def outcome(self, measured: Measured, seed: int) -> Outcome:
        """What is kept of a network, by the noise of all that is judged; ``seed`` is that of intervals."""
        noise = RunRecord(noise=tuple(measured.noise.tolist()))
        return Outcome(sqnr_db=output_sqnr_db(self.power, noise), **self._task(measured, seed))

    def worst_outcome(self, measured: Measured, seed: int) -> WorstOutcome:
        """The same by the worst column, operand or output."""
        worst = measured.worst
        assert worst is not None
        low, high = _sqnr_interval(worst.power, worst.noise, seed)
        return WorstOutcome(
            sqnr_db=worst.sqnr_db,
            sqnr_low=low,
            sqnr_high=high,
            worst=worst.words,
            whole_sqnr_db=worst.whole_sqnr_db,
            **self._task(measured, seed),
        )

    def _task(self, measured: Measured, seed: int) -> dict[str, float | None]:
        """Agreement, metric, and its drop with the interval."""
        known = {"agreement": measured.agreement}
        if self._metric is None or measured.metric is None or self.float_metric is None:
            return known
        drop, low, high = self._metric.drop_interval(self.float_metric, measured.metric, seed)
        return {**known, "metric": self._value(measured.metric), "drop": drop, "drop_low": low, "drop_high": high}

    def _value(self, tally: Tally | None) -> float | None:
        return None if self._metric is None or tally is None else self._metric.aggregate(tally)

    def _metric_tally(self, outputs: Sequence[Sequence[Float32]]) -> Tally | None:
        """As everywhere, outputs go by the names of the float model."""
        if self._metric is None:
            return None
        parts = []
        for found, batch in zip(outputs, self._batches, strict=True):
            assert batch.labels is not None
            parts.append(self._metric.tally(dict(zip(self._float_names, found, strict=True)), batch.labels))
        return Tally.join(parts)


def require_finite(run: Runner, names: Sequence[str], model: str) -> Runner:
    """A runner of a model that raises a ``ModelError`` where it gives NaN or infinite values."""

    def run_checked(batch: Batch) -> list[Float32]:
        found = run(batch)
        for name, array in zip(names, found, strict=True):
            if not np.isfinite(array).all():
                raise ModelError(f"{model} gives NaN or infinite values at output {name}")
        return found

    return run_checked


def _sqnr_interval(power: Floats, noise: Floats, seed: int) -> tuple[float, float]:
    """95 % interval of the SQNR in dB: percentiles of a seeded bootstrap over samples."""
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(power), (RESAMPLES, len(power)))
    ratios = noise[picks].sum(axis=1) / np.maximum(power[picks].sum(axis=1), np.finfo(float).tiny)
    high, low = np.quantile(ratios, [0.025, 0.975])
    return sqnr_db(1.0, float(low)), sqnr_db(1.0, float(high))
