"""Where the noise at the output comes from, measured in the simulated network before any rule speaks."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.measure.models import Models, SimulatedNetwork
from quantmedic.collectors.measure.output_noise import OutputNoise
from quantmedic.collectors.measure.simulation import Simulation
from quantmedic.collectors.metrics.metric import Metric
from quantmedic.collectors.pair.output_parts import recorded_joints
from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.case.loss_budget import (
    ChangesRecord,
    FamilyRecord,
    LossBudget,
    OutputPart,
    PieceRecord,
    SourceKind,
    SourceRecord,
    TaskLossRecord,
    TaskShareRecord,
)
from quantmedic.engine.case.records import Case
from quantmedic.engine.diagnosis.loss_budget import Division, Group, divide
from quantmedic.engine.formulas.change import Change, Targets
from quantmedic.engine.formulas.tensors import grid_of
from quantmedic.engine.metrics.contributions import loss_interval
from quantmedic.engine.metrics.kinds import is_share
from quantmedic.engine.rules.remedy_kinds import change_of
from quantmedic.trials.fallback import Group as LayerGroup
from quantmedic.trials.fallback import groups_of
from quantmedic.trials.sensitivity import units_of
from quantmedic.trials.split import samples_of
from quantmedic.trials.task_loss import TaskLoss

Floats = NDArray[np.float64]
#: Passes over the samples: as many are planned for as the first, and no more are made than the second.
PLANNED_RUNS, MAX_RUNS = 100, 300
#: Samples of a run, and seconds that may be spent in any case: small networks get the same budget in every run.
MIN_SAMPLES, MAX_SAMPLES, LEAST_SECONDS = 8, 64, 8.0
#: Share of the time that divides the noise; the rest asks what heals. So many pieces are asked in any case.
DIVIDING, LEAST_ASKED = 0.6, 3
#: A single source with this share of the noise of an output is asked what heals it.
ASKED = 0.05
_RANGES = ("full-range", "percentile-range", "best-range", "asymmetric-range", "sixteen-bit")
#: Others hide the noise of a source where putting it in float takes away less than this share of what it makes alone.
HIDDEN = 0.5
#: Changes that are tried on a source, by what it quantizes, in the order in which the noise is divided.
HEALING: dict[SourceKind, tuple[str, ...]] = {
    "weight": ("best-weight-range", "per-channel-weights", "eight-bit-weights"),
    "bias": (),
    "input": _RANGES,
    "activation": _RANGES,
}
#: Families of sources that one change heals.
FAMILIES: tuple[tuple[SourceKind, ...], ...] = (("weight",), ("activation", "input"))
#: An end of a range behind which no value lies.
OPEN = float(np.finfo(np.float32).max)


def measure_loss_budget(
    models: Models,
    case: Case,
    facts: CaseFacts,
    simulation: Simulation,
    *,
    metric: Metric | None,
    threads: int,
    seconds: float,
    progress: Callable[[float, float], None],
) -> LossBudget | None:
    """Divide the noise at every output among its sources, and try what heals the loudest.

    Args:
        models: Both models.
        case: What was measured of them.
        facts: The facts of the case.
        simulation: The simulated network, and samples.
        metric: Task metric, where the samples are labelled.
        threads: Processor threads.
        seconds: Time to spend, about: fewer samples are run, and fewer times, where the network is slow. Small networks
            get ``LEAST_SECONDS``, so that their budget is the same in every run.
        progress: Called after every run with the seconds that it took so far, and those that it takes in all, about.

    Returns:
        None where nothing is quantized, or no noise is simulated.

    Raises:
        ModelError: The network fails.
    """
    sources = list(_sources(case, simulation.network))
    if not sources:
        return None
    runs = _Runs(models, case, simulation, metric, threads, max(seconds, LEAST_SECONDS), progress)
    if not (runs.whole > 0).any():
        return None
    every = frozenset(range(len(sources)))

    def in_float(members: Iterable[int]) -> Change:
        return reduce(Change.join, (_off(sources[i]) for i in sorted(members)), Change())

    parts = [[i for i in sorted(every) if sources[i].kind == kind] for kind in HEALING]
    division = divide(
        [part for part in parts if part],
        lambda members: runs.judge(in_float(every - set(members))),
        lambda members: runs.judge(in_float(members)),
        whole=np.concatenate([runs.whole, runs.lost]),
        runs=runs.planned,
        samples=len(runs.lost),
        loss_counts=runs.loss_counts,
    )
    task = _task_loss(runs, division)
    groups, shares = zip(*(_apart(group, runs.lost) for group in division.groups), strict=True)
    families = tuple(_families(groups, sources, case, facts, runs))
    pieces = []
    for k, (group, share) in enumerate(zip(groups, shares, strict=True)):
        piece = _piece(group, [sources[i] for i in group.members], share if task is not None else None)
        if _is_asked(group) and (k < LEAST_ASKED or runs.have_time()):
            piece = _asked(piece, group, case, facts, runs, in_float(every - set(group.members)))
        pieces.append(piece)
    return LossBudget(
        dataset=simulation.record.dataset,
        samples=samples_of(runs.batches),
        runs=runs.done,
        outputs=runs.outputs,
        simulated=tuple(runs.whole.tolist()),
        deployed=tuple(runs.deployed.tolist()),
        task=task,
        pieces=tuple(pieces),
        families=families,
        complete=division.complete,
    )


class _Runs:
    """Runs of the simulated network on some samples.

    Attributes:
        batches: The samples.
        outputs: What is judged by itself.
        whole: Noise of the network with all quantizers, by output, in shares of its signal.
        deployed: The same of the quantized model.
        task: What of the task is measured.
        lost: What each sample loses of it with all quantizers; nothing where it is not measured.
        deployed_lost: The same with the quantized model.
        done: Runs that were made.
        planned: Runs that may divide the noise.
    """

    def __init__(
        self,
        models: Models,
        case: Case,
        simulation: Simulation,
        metric: Metric | None,
        threads: int,
        seconds: float,
        progress: Callable[[float, float], None],
    ) -> None:
        """Measure float, deployed and simulated network on as many samples as the runs of so many seconds can take."""
        self._started = time.perf_counter()
        self._network, self._progress, self.done = simulation.network, progress, 0
        self._limit = seconds
        progress(0.0, seconds)
        self.batches = _samples_within(seconds / PLANNED_RUNS, simulation)
        floats = [self._network.outputs(batch, None) for batch in self.batches]
        run = models.quantized_runner(threads)
        deployed = [run(batch) for batch in self.batches]
        joints = recorded_joints(case.record)
        classes = bool((case.statistics[simulation.record.dataset].samples["class_float"] >= 0).any())
        self._noise = OutputNoise(self.batches, floats, deployed, classes=classes, whole=True, joints=joints)
        self.outputs = tuple(OutputPart(output=o, start=a, stop=b) for o, a, b in self._noise.parts)
        self.deployed = self._noise.by_part(deployed)
        names = [models.float_graph.outputs[i] for i, _ in models.match.outputs]
        self.task = TaskLoss(self.batches, floats, self._noise, metric, names)
        self._is_share = self.task.measure == "agreement" or (metric is not None and is_share(metric.name))
        self.deployed_lost = self.task.lost(deployed)
        started = time.perf_counter()
        self.whole, self.lost = self._judge(Change())
        one = max(time.perf_counter() - started, 1e-6)
        self.planned = int(np.clip(DIVIDING * seconds / one, PLANNED_RUNS / 2, MAX_RUNS))
        self._limit = max(seconds, self.planned * one / DIVIDING)

    @property
    def loss_counts(self) -> bool:
        """The loss is told from none."""
        if not (len(self.lost) and np.isfinite(self.lost).all()):
            return False
        return loss_interval(self.lost, is_share=self._is_share)[1] > 0

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self._started

    def have_time(self) -> bool:
        """More may be asked."""
        return self.spent < self._limit

    def judge(self, change: Change) -> Floats:
        """Under a change, the noise by output in shares of its signal, then what each sample loses."""
        return np.concatenate(self._judge(change))

    def gone(self, change: Change) -> tuple[float, ...]:
        """Share of every output's noise that goes."""
        return self._gone(self._judge(change)[0])

    def gone_of(self, noise: Floats, change: Change) -> tuple[float, ...]:
        """What goes of some noise, which is given in shares of the whole, to what a change leaves."""
        left = self._judge(change)[0] / np.where(self.whole > 0, self.whole, np.inf)
        return tuple((noise - left).tolist())

    def _gone(self, noise: Floats) -> tuple[float, ...]:
        return tuple(((self.whole - noise) / np.where(self.whole > 0, self.whole, np.inf)).tolist())

    def _judge(self, change: Change) -> tuple[Floats, Floats]:
        self.done += 1
        self._progress(self.spent, self._limit)
        outputs = [self._network.outputs(batch, change) for batch in self.batches]
        return self._noise.by_part(outputs), self.task.lost(outputs)


def _samples_within(seconds: float, simulation: Simulation) -> Sequence[Batch]:
    """The first samples, as many within the bounds as a run of so many seconds can take."""
    first = simulation.batches[0]
    simulation.network.outputs(first, Change())
    started = time.perf_counter()
    simulation.network.outputs(first, Change())
    one = max(time.perf_counter() - started, 1e-6) / first.samples
    wanted = int(np.clip(seconds / one, MIN_SAMPLES, MAX_SAMPLES))
    if wanted < first.samples and simulation.unit == 1:
        return [first.take(slice(0, wanted))]
    return simulation.batches[: max(wanted // first.samples, 1)]


def _sources(case: Case, network: SimulatedNetwork) -> Iterator[SourceRecord]:
    """All quantizers that can be turned off, in the order of execution; what rounds twice to one grid is one source."""
    for group in groups_of(case.record, units_of(case.record, network)):
        yield from _sources_of(group, case, network)


def _sources_of(group: LayerGroup, case: Case, network: SimulatedNetwork) -> Iterator[SourceRecord]:
    own = [unit.operator for unit in group.units if unit.operator is not None]
    weighted = tuple(k for k in own if k in network.weighted)
    others = tuple(k for k in own if k in network.with_constants or case.record.operators[k].bias.bits)
    if weighted:
        yield SourceRecord(kind="weight", operators=weighted)
    if others:
        yield SourceRecord(kind="bias", operators=others)
    if group.tensors:
        is_input = any(case.record.tensors[i].is_input for i in group.tensors)
        yield SourceRecord(kind="input" if is_input else "activation", tensors=group.tensors)


def _off(source: SourceRecord) -> Change:
    """The source in float."""
    if source.kind == "weight":
        return Change(weights=dict.fromkeys(source.operators, "float"))
    return Change(dict.fromkeys(source.tensors), biases=frozenset(source.operators))


def _task_loss(runs: _Runs, division: Division) -> TaskLossRecord | None:
    """What the task loses; None where it was not measured in every run."""
    shares = [group.share[-len(runs.lost) :] for group in division.groups]
    measured = [runs.lost, runs.deployed_lost, division.interaction, *shares]
    if runs.task.measure is None or not all(np.isfinite(values).all() for values in measured):
        return None
    return TaskLossRecord(
        measure=runs.task.measure,
        deployed=tuple(runs.deployed_lost.tolist()),
        simulated=tuple(runs.lost.tolist()),
        interaction=tuple(division.interaction.tolist()),
    )


def _apart(group: Group, lost: Floats) -> tuple[Group, TaskShareRecord]:
    """A group by its noise, and by what the task loses; ``lost``: what each sample loses in all."""
    outputs = len(group.share) - len(lost)
    noise = Group(group.members, group.alone[:outputs], group.without[:outputs], group.share[:outputs])
    return noise, TaskShareRecord(
        share=tuple(group.share[outputs:].tolist()),
        alone=tuple(group.alone[outputs:].tolist()),
        last=tuple((lost - group.without[outputs:]).tolist()),
    )


def _piece(group: Group, sources: Sequence[SourceRecord], task: TaskShareRecord | None) -> PieceRecord:
    return PieceRecord(
        sources=tuple(sources),
        shares=tuple(group.share.tolist()),
        alone=tuple(group.alone.tolist()),
        last=tuple((1.0 - group.without).tolist()),
        task=task,
    )


def _is_asked(group: Group) -> bool:
    """A single source that makes enough noise to ask what heals it."""
    return len(group.members) == 1 and bool(np.abs(group.share).max() >= ASKED)


def _asked(
    piece: PieceRecord, group: Group, case: Case, facts: CaseFacts, runs: _Runs, others_in_float: Change
) -> PieceRecord:
    """The piece with what its single source does under changes."""
    source = piece.sources[0]
    seen = _changes(source, case, facts, runs.gone)
    hidden = None
    loudest = int(np.argmax(group.share))
    if 1.0 - group.without[loudest] < HIDDEN * group.alone[loudest]:
        hidden = _changes(source, case, facts, lambda change: runs.gone_of(group.alone, others_in_float.join(change)))
    return piece.model_copy(update={**dict(seen), "hidden": hidden})


def _changes(
    source: SourceRecord, case: Case, facts: CaseFacts, gone: Callable[[Change], tuple[float, ...]]
) -> ChangesRecord:
    """What changes of one quantizer take away."""
    targets = Targets(source.tensors, source.operators)
    changes = {kind: change_of(kind, case, facts, targets) for kind in HEALING[source.kind]}
    return ChangesRecord(
        clipped_low=gone(_opened(case, source, "low")) if source.tensors else None,
        clipped_high=gone(_opened(case, source, "high")) if source.tensors else None,
        heals={kind: gone(change) for kind, change in changes.items() if change},
    )


def _families(
    groups: Sequence[Group], sources: Sequence[SourceRecord], case: Case, facts: CaseFacts, runs: _Runs
) -> Iterator[FamilyRecord]:
    """What heals all sources of a family together, where it matters and has several."""
    for kinds in FAMILIES:
        own = [source for source in sources if source.kind in kinds]
        share = sum(group.share for group in groups if sources[group.members[0]].kind in kinds)
        if len(own) < 2 or np.abs(share).max() < ASKED:
            continue
        targets = Targets(tuple(i for s in own for i in s.tensors), tuple(k for s in own for k in s.operators))
        changes = {kind: change_of(kind, case, facts, targets) for kind in HEALING[kinds[0]]}
        yield FamilyRecord(
            kind=kinds[0],
            sources=len(own),
            last=runs.gone(reduce(Change.join, map(_off, own))),
            heals={kind: runs.gone(change) for kind, change in changes.items() if change},
        )


def _opened(case: Case, source: SourceRecord, end: str) -> Change:
    """The same steps without an end of the range."""
    grids = {i: grid_of(case.record.tensors[i].quantizer) for i in source.tensors}
    open_end = {"low": -OPEN} if end == "low" else {"high": OPEN}
    return Change({i: replace(grid, **open_end) for i, grid in grids.items() if grid is not None})
