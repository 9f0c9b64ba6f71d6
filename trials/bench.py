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
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.errors import ModelError
from quantmedic.trials.split import samples_of

Float32 = NDArray[np.float32]
Floats = NDArray[np.float64]


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
        classes: bool,
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
            classes: The first output holds class scores along its last axis.
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
        floats, deployed = self._run(runners.floats, None), self._run(runners.deployed, None)
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
        outputs = self._run(run, deadline)
        for found in outputs:
            for name, array in zip(self._names, found, strict=True):
                if not np.isfinite(array).all():
                    raise ModelError(f"the changed model gives NaN or infinite values at {name}")
        return self.judge_outputs(outputs)

    def _run(self, run: Runner, deadline: float | None) -> list[list[Float32]]:
        """Outputs per batch."""
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

    def _metric_tally(self, outputs: Sequence[Sequence[Float32]]) -> Tally | None:
        """As everywhere, outputs go by the names of the float model."""
        if self._metric is None:
            return None
        parts = []
        for found, batch in zip(outputs, self._batches, strict=True):
            assert batch.labels is not None
            parts.append(self._metric.tally(dict(zip(self._float_names, found, strict=True)), batch.labels))
        return Tally.join(parts)
