"""Runs of the simulated network that divide its noise; how many there are follows from counts, never from a clock."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch, cut, rows_alike
from quantmedic.collectors.measure.models import Models, SimulatedNetwork
from quantmedic.collectors.measure.output_noise import OutputNoise
from quantmedic.collectors.measure.simulation import (
    Simulation,
    batch_size_of,
    samples_within,
    simulated_samples,
    values_per_sample,
)
from quantmedic.collectors.metrics.metric import Metric
from quantmedic.collectors.pair.output_parts import recorded_joints
from quantmedic.engine.case.budget_record import OutputPart, TaskMeasure
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.formulas.simulate import AnyGrid
from quantmedic.engine.formulas.stored_bins import main_role
from quantmedic.engine.formulas.tensors import grid_of
from quantmedic.engine.metrics.contributions import contributions, loss_interval
from quantmedic.engine.metrics.kinds import loses_shares
from quantmedic.trials.split import samples_of, take_samples

Float32 = NDArray[np.float32]
Floats = NDArray[np.float64]
#: What a change does to one network, whatever else it names that has no effect there.
Effect = tuple[frozenset[tuple[int, AnyGrid | None]], frozenset[tuple[int, str]], frozenset[int]]
#: Samples of a run: between these, as many as make so many values.
MIN_SAMPLES, MAX_SAMPLES, RUN_VALUES = 4, 32, 8e6
#: Labelled samples of a run at least: what the task loses is told by samples, where noise is told by values too.
MIN_LABELLED = 8
#: Runs: between these, as many as pass so often over the samples that were measured.
MIN_RUNS, MAX_RUNS, PASSES = 64, 100, 10.0
#: A network whose outputs are clean gets this share of the samples and of the runs: what matters there is loud.
BRIEF = 0.5
#: Batches that hold no more than this share of the noise of any output together are run once: what changes take away
#: is elsewhere. A detector may find something in one sample of four.
IDLE = 0.002
#: Dividing the noise takes at most about so many runs for each source: two at every halving, and what heals it.
RUNS_PER_SOURCE = 6
#: Runs of a network of very many tensors: as many as compute so many of them, and enough to divide the noise roughly.
RUN_TENSORS, LEAST_RUNS = 100_000, 16
#: Runs in which remedies are simulated, about; more causes take more.
REMEDY_RUNS = 10
#: Measuring a sample, which runs both models and counts every value, takes about as long as so many simulated runs.
RUNS_PER_MEASURED = 3
#: So many values in all runs are no long wait on any machine: the demo's 0.9e9 take a second on two cores.
MOMENT = 1e10
#: Share of the runs that divide the noise; the rest asks what heals.
DIVIDING = 0.75


class TaskLoss:
    """The task on some samples.

    Attributes:
        measure: What of it is measured; None for nothing.
    """

    def __init__(
        self,
        batches: Sequence[Batch],
        floats: Sequence[Sequence[Float32]],
        noise: OutputNoise,
        metric: Metric | None,
        names: Sequence[str],
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

    def losses_of(self, outputs: Sequence[Sequence[Float32]]) -> Floats:
        """What each sample loses against the float network; positive means worse, and nothing is empty."""
        if self.measure is None:
            return np.zeros(0)
        lost = self._best - self._numbers(outputs)
        rises = self.measure == "agreement" or self._metric is None or self._metric.higher_is_better
        return lost if rises else -lost

    def _numbers(self, outputs: Sequence[Sequence[Float32]]) -> Floats:
        if self.measure == "agreement" or self._metric is None:
            same = self._noise.same_classes(outputs)
            return same if same is not None else np.zeros(0)
        parts = [
            self._metric.tally(dict(zip(self._names, found, strict=True)), batch.labels)
            for found, batch in zip(outputs, self._batches, strict=True)
            if batch.labels is not None
        ]
        return contributions(self._metric.kind, Tally.join(parts))


class BudgetRuns:
    """Runs of the simulated network on some samples; one that was made is not made again.

    Attributes:
        batches: The samples.
        outputs: What is judged by itself.
        whole: Noise of the network with all quantizers, by output, in shares of its signal.
        deployed: The same of the quantized model.
        threads: Processor threads.
        task: What of the task is measured.
        lost: What each sample loses of it with all quantizers; nothing where it is not measured.
        deployed_lost: The same with the quantized model.
        done: Runs that were made.
        planned: Runs that may be made, but for those that are made in any case.
    """

    def __init__(
        self,
        models: Models,
        case: Case,
        simulation: Simulation,
        metric: Metric | None,
        threads: int,
        progress: Callable[[int, int], None],
        *,
        brief: bool = False,
    ) -> None:
        """Measure float, deployed and simulated network."""
        self._network, self._progress, self.done = simulation.network, progress, 0
        self._deployed = simulation.deployed
        self.threads, self._joints = threads, recorded_joints(case)
        share = BRIEF if brief else 1.0
        self.batches = _sample_evenly(simulation.batches, simulation.unit, case, share)
        self.planned = _planned_runs(case, samples_of(self.batches), share)
        self._known = _Known(case, self._network)
        self._found: dict[Effect, tuple[Floats, Floats]] = {}
        floats = [self._network.outputs(batch, None) for batch in self.batches]
        deployed = self._deployed_outputs(self.batches)
        classes = case.statistics[simulation.record.dataset].has_classes
        self._noise = OutputNoise(self.batches, floats, deployed, classes=classes, whole=True, joints=self._joints)
        self.outputs = tuple(OutputPart(output=o, start=a, stop=b) for o, a, b in self._noise.parts)
        self.deployed = self._noise.by_part(deployed)
        names = [models.float_graph.outputs[i] for i, _ in models.match.outputs]
        self.task = TaskLoss(self.batches, floats, self._noise, metric, names)
        self._is_share = loses_shares(self.task.measure, metric.name if metric is not None else None)
        self.deployed_lost = self.task.losses_of(deployed)
        self._idle: dict[int, list[Float32]] = {}
        self.whole, self.lost = self._judge(Change())
        if self.task.measure is None:
            self._idle = self._find_idle()

    @property
    def dividing(self) -> int:
        """Runs that may divide the noise."""
        return int(DIVIDING * self.planned)

    @property
    def loss_counts(self) -> bool:
        """The loss is told from none."""
        if not (len(self.lost) and np.isfinite(self.lost).all()):
            return False
        return loss_interval(self.lost, is_share=self._is_share)[1] > 0

    def are_left(self) -> bool:
        """More may be asked."""
        return self.done < self.planned

    def judge(self, change: Change) -> Floats:
        """Under a change, the noise by output in shares of its signal, then what each sample loses."""
        return np.concatenate(self._judge(change))

    def gone(self, change: Change) -> tuple[float, ...]:
        """Share of every output's noise that goes."""
        return self.gone_of(self.whole / self._scale, change)

    def gone_of(self, noise: Floats, change: Change) -> tuple[float, ...]:
        """What goes of some noise, which is given in shares of the whole, to what a change leaves."""
        return tuple((noise - self._judge(change)[0] / self._scale).tolist())

    def judge_of(self, batches: Sequence[Batch]) -> Callable[[Sequence[Sequence[Float32]]], Floats]:
        """What outputs for these batches have more of noise than those of the simulated network.

        In shares of the noise of the quantized model there, by output.
        """
        floats = [self._network.outputs(batch, None) for batch in batches]
        whole = [self._network.outputs(batch, Change()) for batch in batches]
        deployed = self._deployed_outputs(batches)
        noise = OutputNoise(batches, floats, deployed, classes=False, whole=True, joints=self._joints)
        before, all_of_it = noise.by_part(whole), noise.by_part(deployed)
        return lambda outputs: (noise.by_part(outputs) - before) / np.where(all_of_it > 0, all_of_it, np.inf)

    def _deployed_outputs(self, batches: Sequence[Batch]) -> list[list[Float32]]:
        return [self._deployed(batch) for batch in batches]

    @property
    def _scale(self) -> Floats:
        scale: Floats = np.where(self.whole > 0, self.whole, np.inf)
        return scale

    def _find_idle(self) -> dict[int, list[Float32]]:
        """Outputs with all quantizers of the batches that hold next to none of the noise, by their place."""
        outputs = [self._network.outputs(batch, Change()) for batch in self.batches]
        largest = (self._noise.by_batch(outputs) / self._scale).max(axis=1)
        return {k: outputs[k] for k in np.flatnonzero(largest <= IDLE / len(outputs)).tolist()}

    def _judge(self, change: Change) -> tuple[Floats, Floats]:
        effect = self._known.effect_of(change)
        if effect not in self._found:
            self._progress(self.done, max(self.planned, self.done))
            self.done += 1
            outputs = [
                self._idle[k] if k in self._idle else self._network.outputs(batch, change)
                for k, batch in enumerate(self.batches)
            ]
            self._found[effect] = self._noise.by_part(outputs), self.task.losses_of(outputs)
        return self._found[effect]


@dataclass(frozen=True)
class _Known:
    """What a simulated network can change."""

    case: Case
    network: SimulatedNetwork

    def effect_of(self, change: Change) -> Effect:
        """What of a change is not in force anyway."""
        tensors = self.case.record.tensors
        own = ((i, grid, grid_of(tensors[i].quantizer)) for i, grid in change.grids.items())
        return (
            # Of a grid for each channel the case holds none: whatever is put there is another one.
            frozenset((i, new) for i, new, old in own if i in self.network.tensors and (old is None or new != old)),
            frozenset((k, form) for k, form in change.weights.items() if k in self.network.weighted),
            frozenset(change.biases),
        )


@dataclass(frozen=True)
class Cost:
    """What attribution is expected to take, from counts, so that every machine says the same.

    Attributes:
        runs: Runs that divide the noise, about.
        samples: Samples of such a run.
        simulated: Samples on which remedies are simulated afterwards.
        measured: Samples that were measured.
        values: Values that the measured tensors have in a sample.
    """

    runs: int
    samples: int
    simulated: int
    measured: int
    values: float

    @property
    def is_large(self) -> bool:
        """It takes longer than measuring did, and more than a moment."""
        passes = self.runs * self.samples + REMEDY_RUNS * self.simulated
        return passes > RUNS_PER_MEASURED * self.measured and passes * self.values > MOMENT


def expected_cost(case: Case, *, brief: bool = False) -> Cost:
    """What dividing the noise and simulating remedies is expected to take.

    Args:
        case: What was measured.
        brief: See `BudgetRuns`.
    """
    share = BRIEF if brief else 1.0
    seen = case.record.datasets[main_role(case)].seen
    simulated = min(simulated_samples(case), seen)
    samples = min(_wanted_samples(case, share), simulated)
    quantized = sum(tensor.quantizer.bits is not None for tensor in case.record.tensors)
    for operator in case.record.operators:
        quantized += operator.weight.quantizer.bits is not None
        quantized += operator.bias.bits is not None
    return Cost(
        runs=min(_planned_runs(case, samples, share), RUNS_PER_SOURCE * quantized),
        samples=samples,
        simulated=simulated,
        measured=_measured_samples(case),
        values=values_per_sample(case),
    )


def _planned_runs(case: Case, samples: int, share: float) -> int:
    # What has so many values that a run takes few samples gets no more runs for it.
    passes = PASSES * _measured_samples(case) / max(samples, MIN_LABELLED)
    few = max(RUN_TENSORS // max(len(case.record.tensors), 1), LEAST_RUNS)
    return int(share * min(np.clip(passes, MIN_RUNS, MAX_RUNS), few))


def _measured_samples(case: Case) -> int:
    return sum(dataset.seen for dataset in case.record.datasets.values())


def _wanted_samples(case: Case, share: float) -> int:
    labelled = case.record.datasets[main_role(case)].labelled
    least = max(int(share * (MIN_LABELLED if labelled else MIN_SAMPLES)), MIN_SAMPLES)
    return samples_within(share * RUN_VALUES, least, int(share * MAX_SAMPLES), case)


def _sample_evenly(batches: Sequence[Batch], unit: int, case: Case, share: float) -> list[Batch]:
    """Some of the samples, evenly out of all of them; ``unit`` of them stay together.

    ``share``: so much of what others get.
    """
    wanted = _wanted_samples(case, share)
    total = samples_of(batches)
    if wanted >= total:
        return list(batches)
    if unit > 1:
        count = max(wanted // unit, 1)
        return [batches[k] for k in np.unique(np.linspace(0, len(batches) - 1, count).astype(int))]
    kept = np.unique(np.linspace(0, total - 1, wanted).astype(int))
    # Models that take exactly one sample at a time give batches of one.
    size = 1 if all(batch.samples == 1 for batch in batches) else batch_size_of(case)
    alike = groupby(take_samples(batches, kept), rows_alike)
    return [batch for _, group in alike for batch in cut(group, size)]
