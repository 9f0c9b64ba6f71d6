"""Where the noise at the output comes from, measured in the simulated network before any rule speaks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import count

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.measure.models import Models, SimulatedNetwork
from quantmedic.collectors.measure.simulation import Simulation
from quantmedic.collectors.metrics.metric import Metric
from quantmedic.engine.case.budget_record import (
    ChangesRecord,
    FamilyRecord,
    LossBudget,
    PieceRecord,
    SourceKind,
    SourceRecord,
    TaskLossRecord,
    TaskShareRecord,
)
from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.diagnosis.budget_lines import ABOUT
from quantmedic.engine.diagnosis.noise_division import Division, Group, divide
from quantmedic.engine.formulas.change import Change, Targets
from quantmedic.engine.formulas.tensors import grid_of
from quantmedic.engine.rules.remedy_kinds import change_of
from quantmedic.trials.budget_runs import BudgetRuns
from quantmedic.trials.departures import find_departures
from quantmedic.trials.places import Group as LayerGroup
from quantmedic.trials.places import groups_of, units_of
from quantmedic.trials.split import samples_of

Floats = NDArray[np.float64]
#: So many pieces are asked what heals them, however many runs there were.
LEAST_ASKED = 3
#: Groups with less of the noise are not run where what is left of their group tells them.
NOTHING = 0.01
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
    progress: Callable[[int, int], None],
    brief: bool = False,
) -> LossBudget | None:
    """Divide the noise at every output among its sources, and try what heals the loudest.

    Args:
        models: Both models.
        case: What was measured of them.
        facts: The facts of the case.
        simulation: The simulated network, and samples.
        metric: Task metric, where the samples are labelled.
        threads: Processor threads.
        progress: Called before every run with the number of those that were made, and of all, about.
        brief: Make fewer runs on fewer samples.

    Returns:
        None where nothing is quantized, or no noise is simulated.

    Raises:
        ModelError: The network fails.
    """
    sources = list(_sources(case, simulation.network))
    if not sources:
        return None
    runs = BudgetRuns(models, case, simulation, metric, threads, progress, brief=brief)
    if not (runs.whole > 0).any():
        return None
    division = _divide_noise(sources, facts, runs)
    task = _task_loss(runs, division)
    groups, shares = zip(*(_apart(group, runs.lost) for group in division.groups), strict=True)
    families = tuple(_families(groups, sources, case, facts, runs))

    def piece_of(k: int, group: Group, share: TaskShareRecord) -> PieceRecord:
        piece = _piece(group, [sources[i] for i in group.members], share if task is not None else None)
        if not _is_asked(group) or (k >= LEAST_ASKED and not runs.are_left()):
            return piece
        others = set(range(len(sources))) - set(group.members)
        return _ask_changes(piece, group, case, facts, runs, _in_float(sources, others))

    pieces = tuple(map(piece_of, count(), groups, shares))  # The runs are counted behind it.
    return LossBudget(
        dataset=simulation.record.dataset,
        samples=samples_of(runs.batches),
        runs=runs.done,
        outputs=runs.outputs,
        simulated=tuple(runs.whole.tolist()),
        deployed=tuple(runs.deployed.tolist()),
        task=task,
        pieces=pieces,
        families=families,
        departures=find_departures(models, case, runs, simulation.unit),
        complete=division.complete,
    )


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


def _divide_noise(sources: Sequence[SourceRecord], facts: CaseFacts, runs: BudgetRuns) -> Division:
    """The noise at the outputs, and what the task loses, divided among the sources, kind by kind."""
    every = set(range(len(sources)))
    parts = [[i for i in sorted(every) if sources[i].kind == kind] for kind in HEALING]
    return divide(
        [part for part in parts if part],
        lambda members: runs.judge(_in_float(sources, every - set(members))),
        lambda members: runs.judge(_in_float(sources, members)),
        whole=np.concatenate([runs.whole, runs.lost]),
        runs=runs.dividing,
        samples=len(runs.lost),
        loss_counts=runs.loss_counts,
        expected=[_expected_noise(source, facts) for source in sources],
        nothing=NOTHING,
    )


def _in_float(sources: Sequence[SourceRecord], members: Iterable[int]) -> Change:
    """These sources, by their number, in float."""
    return reduce(Change.join, (_off(sources[i]) for i in sorted(members)), Change())


def _expected_noise(source: SourceRecord, facts: CaseFacts) -> float:
    """Noise over signal where the source is; it decides what is run first, and no more."""
    if source.kind == "weight":
        found = [facts.layers[k].weight.rounding.nmse for k in source.operators]
    else:
        found = [facts.tensors[i].data.rounding.nmse for i in source.tensors]
    known = [nmse for nmse in found if nmse is not None and np.isfinite(nmse)]
    return min(max(known, default=0.0), 1.0)


def _off(source: SourceRecord) -> Change:
    """The source in float."""
    if source.kind == "weight":
        return Change(weights=dict.fromkeys(source.operators, "float"))
    return Change(dict.fromkeys(source.tensors), biases=frozenset(source.operators))


def _task_loss(runs: BudgetRuns, division: Division) -> TaskLossRecord | None:
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


def _ask_changes(
    piece: PieceRecord, group: Group, case: Case, facts: CaseFacts, runs: BudgetRuns, others_in_float: Change
) -> PieceRecord:
    """The piece with what its single source does under changes.

    Where others hide its noise, they are in float for this; the deployed network only has what heals it best then.
    """
    source = piece.sources[0]
    loudest = int(np.argmax(group.share))
    if 1.0 - group.without[loudest] >= HIDDEN * group.alone[loudest]:
        return piece.model_copy(update=dict(_changes(source, case, facts, runs.gone)))
    hidden = _changes(source, case, facts, lambda change: runs.gone_of(group.alone, others_in_float.join(change)))
    enough = ABOUT * max((gone[loudest] for gone in hidden.heals.values()), default=0.0)
    best = [kind for kind, gone in hidden.heals.items() if gone[loudest] >= enough > 0][:1]
    heals = {kind: runs.gone(change_of(kind, case, facts, _targets_of(source))) for kind in best}
    return piece.model_copy(update={"hidden": hidden, "heals": heals})


def _targets_of(source: SourceRecord) -> Targets:
    return Targets(source.tensors, source.operators)


def _changes(
    source: SourceRecord, case: Case, facts: CaseFacts, gone: Callable[[Change], tuple[float, ...]]
) -> ChangesRecord:
    """What changes of one quantizer take away."""
    changes = {kind: change_of(kind, case, facts, _targets_of(source)) for kind in HEALING[source.kind]}
    ends = (gone(_open_range(case, source, end, facts)) if source.tensors else None for end in ("low", "high"))
    return ChangesRecord(
        clipped_low=next(ends),
        clipped_high=next(ends),
        heals={kind: gone(change) for kind, change in changes.items() if change},
    )


def _families(
    groups: Sequence[Group], sources: Sequence[SourceRecord], case: Case, facts: CaseFacts, runs: BudgetRuns
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


def _open_range(case: Case, source: SourceRecord, end: str, facts: CaseFacts) -> Change:
    """The same steps without an end of the range, where values of the float network lie behind it."""
    found = {}
    for i in source.tensors:
        grid, values = grid_of(case.record.tensors[i].quantizer), facts.tensors[i].data.values
        if grid is None:
            continue
        if end == "low" and (values.min is None or values.min < grid.low):
            found[i] = replace(grid, low=-OPEN)
        if end == "high" and (values.max is None or values.max > grid.high):
            found[i] = replace(grid, high=OPEN)
    return Change(found)
