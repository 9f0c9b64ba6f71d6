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
    FamilyRecord,
    LossBudget,
    OutputPart,
    PieceRecord,
    SourceKind,
    SourceRecord,
)
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.diagnosis.loss_budget import Group, divide
from quantmedic.engine.formulas.change import Change, Targets
from quantmedic.engine.formulas.tensors import grid_of
from quantmedic.engine.rules.remedy_kinds import change_of
from quantmedic.trials.fallback import Group as LayerGroup
from quantmedic.trials.fallback import groups_of
from quantmedic.trials.sensitivity import units_of
from quantmedic.trials.split import samples_of

Floats = NDArray[np.float64]
#: Passes over the samples: as many are planned for as the first, and no more are made than the second.
PLANNED_RUNS, MAX_RUNS = 100, 300
#: Batches of samples, and seconds that may be spent in any case: small networks get the same budget in every run.
MIN_BATCHES, MAX_BATCHES, LEAST_SECONDS = 2, 4, 8.0
#: A single source with this share of the noise of an output is asked what heals it.
ASKED = 0.05
_RANGES = ("full-range", "percentile-range", "best-range", "asymmetric-range", "sixteen-bit")
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
    progress: Callable[[], None],
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
        progress: Called after every run.

    Returns:
        None where nothing is quantized, or no noise is simulated.

    Raises:
        ModelError: The network fails.
    """
    sources = list(_sources(case, simulation.network))
    if not sources:
        return None
    seconds = max(seconds, LEAST_SECONDS)
    runs = _Runs(models, case, simulation, metric, threads, seconds / PLANNED_RUNS, progress)
    if not (runs.whole > 0).any():
        return None
    every = frozenset(range(len(sources)))

    def in_float(members: Iterable[int]) -> Change:
        return reduce(Change.join, (_off(sources[i]) for i in sorted(members)), Change())

    parts = [[i for i in sorted(every) if sources[i].kind == kind] for kind in HEALING]
    division = divide(
        [part for part in parts if part],
        lambda members: runs.noise(in_float(every - set(members))),
        lambda members: runs.noise(in_float(members)),
        whole=runs.whole,
        runs=int(np.clip(seconds / runs.seconds, PLANNED_RUNS / 2, MAX_RUNS)),
    )
    pieces = [_piece(group, [sources[i] for i in group.members], case, facts, runs) for group in division.groups]
    return LossBudget(
        dataset=simulation.record.dataset,
        samples=samples_of(runs.batches),
        runs=runs.done,
        outputs=runs.outputs,
        simulated=tuple(runs.whole.tolist()),
        deployed=tuple(runs.deployed.tolist()),
        metric_lost=runs.metric_lost,
        pieces=tuple(pieces),
        families=tuple(_families(division.groups, sources, case, facts, runs)),
        complete=division.complete,
    )


class _Runs:
    """Runs of the simulated network on some samples.

    Attributes:
        batches: The samples.
        outputs: What is judged by itself.
        whole: Noise of the network with all quantizers, by output, in shares of its signal.
        deployed: The same of the quantized model.
        metric_lost: What the network with all quantizers loses of the task metric.
        seconds: Time of a run.
        done: Runs that were made.
    """

    def __init__(
        self,
        models: Models,
        case: Case,
        simulation: Simulation,
        metric: Metric | None,
        threads: int,
        seconds: float,
        progress: Callable[[], None],
    ) -> None:
        """Measure float, deployed and simulated network on as many samples as a run of so many seconds can take."""
        self._network, self._progress, self.done = simulation.network, progress, 0
        self.batches = _batches_within(seconds, simulation)
        floats = [self._network.outputs(batch, None) for batch in self.batches]
        run = models.quantized_runner(threads)
        deployed = [run(batch) for batch in self.batches]
        joints = recorded_joints(case.record)
        self._noise = OutputNoise(self.batches, floats, deployed, classes=False, whole=True, joints=joints)
        self.outputs = tuple(OutputPart(output=o, start=a, stop=b) for o, a, b in self._noise.parts)
        self.deployed = self._noise.by_part(deployed)
        labelled = all(batch.labels is not None for batch in self.batches)
        self._metric = metric if labelled else None
        self._names = [models.float_graph.outputs[i] for i, _ in models.match.outputs]
        self._metric_before: float | None = None
        started = time.perf_counter()
        self.whole, self._metric_before = self._judge(Change())
        self.seconds = max(time.perf_counter() - started, 1e-6)
        good = self._metric_of(floats)
        self.metric_lost = None if good is None else self._better(good)

    def noise(self, change: Change) -> Floats:
        """Noise by output under a change, in shares of its signal."""
        return self._judge(change)[0]

    def gone(self, change: Change) -> tuple[float, ...]:
        """Share of every output's noise that goes."""
        return self._gone(self.noise(change))

    def gone_with_metric(self, change: Change) -> tuple[tuple[float, ...], float | None]:
        """Share of every output's noise that goes, and what the task metric regains."""
        noise, metric = self._judge(change)
        return self._gone(noise), None if metric is None else self._better(metric)

    def _gone(self, noise: Floats) -> tuple[float, ...]:
        return tuple(((self.whole - noise) / np.where(self.whole > 0, self.whole, np.inf)).tolist())

    def _judge(self, change: Change) -> tuple[Floats, float | None]:
        self.done += 1
        self._progress()
        outputs = [self._network.outputs(batch, change) for batch in self.batches]
        return self._noise.by_part(outputs), self._metric_of(outputs)

    def _metric_of(self, outputs: Sequence[Sequence[NDArray[np.float32]]]) -> float | None:
        if self._metric is None:
            return None
        parts = [
            self._metric.tally(dict(zip(self._names, found, strict=True)), batch.labels)
            for found, batch in zip(outputs, self.batches, strict=True)
            if batch.labels is not None
        ]
        return self._metric.aggregate(Tally.join(parts))

    def _better(self, metric: float) -> float:
        """How much better than with all quantizers."""
        assert self._metric is not None and self._metric_before is not None
        gain = metric - self._metric_before
        return gain if self._metric.higher_is_better else -gain


def _batches_within(seconds: float, simulation: Simulation) -> Sequence[Batch]:
    """The first samples, as many batches within the bounds as a run of so many seconds can take."""
    batches = simulation.batches
    simulation.network.outputs(batches[0], Change())
    started = time.perf_counter()
    simulation.network.outputs(batches[0], Change())
    one = max(time.perf_counter() - started, 1e-6)
    return batches[: min(max(int(seconds / one), MIN_BATCHES), MAX_BATCHES)]


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


def _piece(group: Group, sources: Sequence[SourceRecord], case: Case, facts: CaseFacts, runs: _Runs) -> PieceRecord:
    piece = PieceRecord(
        sources=tuple(sources),
        shares=tuple(group.share.tolist()),
        alone=tuple(group.alone.tolist()),
        last=tuple((1.0 - group.without).tolist()),
    )
    if len(sources) > 1 or np.abs(group.share).max() < ASKED:
        return piece
    source = sources[0]
    targets = Targets(source.tensors, source.operators)
    changes = {kind: change_of(kind, case, facts, targets) for kind in HEALING[source.kind]}
    ends: dict[str, object] = {}
    if source.tensors:
        ends = {
            name: runs.gone(_opened(case, source, end))
            for name, end in (("clipped_low", "low"), ("clipped_high", "high"))
        }
    _, metric = runs.gone_with_metric(_off(source))
    heals = {kind: runs.gone(change) for kind, change in changes.items() if change}
    return piece.model_copy(update={"heals": heals, "metric": metric, **ends})


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
