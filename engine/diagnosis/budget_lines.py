"""The loss budget in words: pieces of the noise by place, how each makes noise, what heals it, and what names it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.budget_record import (
    DepartureRecord,
    FamilyRecord,
    LossBudget,
    Mechanism,
    OutputPart,
    PieceRecord,
    SourceKind,
    SourceRecord,
    TaskLossRecord,
)
from quantmedic.engine.case.output_columns import column_places, part_words
from quantmedic.engine.case.records import CaseRecord, TensorRecord
from quantmedic.engine.contract.budget_report import (
    BudgetFamily,
    BudgetLine,
    BudgetOutput,
    LossBudgetReport,
    LossPart,
    TaskLoss,
    TaskShare,
)
from quantmedic.engine.decibels import sqnr_db
from quantmedic.engine.diagnosis.suspects import Suspect
from quantmedic.engine.formulas.change import Targets
from quantmedic.engine.formulas.noise_sources import MOST, leading_output, mechanism_of, simulated_share
from quantmedic.engine.metrics.contributions import loss_interval
from quantmedic.engine.metrics.kinds import loses_shares
from quantmedic.engine.rules.evaluate import Finding
from quantmedic.engine.rules.rule import GLOBAL_SCOPES

Floats = NDArray[np.float64]
#: A line with this share is worth a sentence where no rule has a name for it.
NOTABLE = 0.2
#: A single source with this share of the noise, or of what the task loses, has a line of its own; smaller ones of one
#: kind and operator type share a line.
OWN_LINE = 0.08
#: Lines below this share are left to the rest.
SMALLEST = 0.02
#: The first change that heals about as well as the best one is named.
ABOUT = 0.9
NAMED = 3
#: What the rules of a family are about.
_SOURCES: Mapping[str, tuple[SourceKind, ...]] = {
    "weights": ("weight", "bias"),
    "activations": ("input", "activation"),
    "graph": ("input", "activation"),
    "data": ("input", "activation"),
    "precision": ("input", "activation", "weight", "bias"),
    "sanity": ("kernel",),
    "runtime": ("kernel",),
}
_WORDS: Mapping[SourceKind, str] = {
    "input": "quantizing inputs",
    "activation": "quantizing activations",
    "weight": "weights",
    "bias": "biases and constants",
    "kernel": "kernels",
}
_SINGLE: Mapping[SourceKind, str] = {
    "input": "quantizing",
    "activation": "quantizing",
    "weight": "weights of",
    "bias": "bias of",
    "kernel": "computing",
}
MECHANISMS: Mapping[Mechanism, str] = {
    "clipped-low": "values below its range are cut off",
    "clipped-high": "values above its range are cut off",
    "clipped": "values outside its range are cut off",
    "range-too-wide": "its range is wider than the values",
    "grid": "its grid does not fit the sign of the values",
    "step": "its steps are too coarse for the values",
}


@dataclass(frozen=True)
class NamedBy:
    """A cause and what its findings are about."""

    cause: str
    findings: Sequence[Finding]
    targets: Targets

    @cached_property
    def kinds(self) -> tuple[tuple[str, bool], ...]:
        """Families of its rules, in the order of the findings, and whether they are about the whole model or data."""
        return tuple(dict.fromkeys((f.rule.family, f.rule.scope in GLOBAL_SCOPES) for f in self.findings))

    @cached_property
    def tensors(self) -> frozenset[int]:
        """Tensors that its findings are about, each found at once however many there are."""
        return frozenset(self.targets.tensors)

    @cached_property
    def operators(self) -> frozenset[int]:
        """The same of operators."""
        return frozenset(self.targets.operators)


@dataclass(frozen=True)
class Attribution:
    """Where the noise comes from, and which suspects name it.

    Attributes:
        budget: What was measured.
        record: Has the names of layers and tensors.
        targets: Gives the tensors and operators that findings are about.
    """

    budget: LossBudget
    record: CaseRecord
    targets: Callable[[Sequence[Finding]], Targets]

    def report(self, suspects: Iterable[Suspect]) -> LossBudgetReport:
        """The budget by place, named by suspects in the order of their causes."""
        return budget_report(self.budget, self.record, [self._name_targets(s.cause, s.findings) for s in suspects])

    def share_of_suspects(self, suspects: Iterable[Suspect]) -> dict[str, float]:
        """Share of the leading output's noise that the layers and tensors make which each suspect names.

        A suspect that is about a data set or the whole model names none, and is left out.
        """
        budget = self.budget
        leading = leading_output(budget)
        scale = simulated_share(budget, leading)
        found = {}
        for suspect in suspects:
            named = self._name_targets(
                suspect.cause, [f for f in suspect.findings if f.rule.scope not in GLOBAL_SCOPES]
            )
            if named.findings:
                own = [p.shares[leading] for p in budget.pieces if all(names_it(named, s) for s in p.sources)]
                departed = [d.shares[leading] for d in budget.departures or () if names_it(named, _kernel_of(d))]
                found[suspect.cause] = scale * sum(own) + sum(departed)
        return found

    def _name_targets(self, cause: str, findings: Sequence[Finding]) -> NamedBy:
        return NamedBy(cause, findings, self.targets(findings))


def budget_report(budget: LossBudget, record: CaseRecord, causes: Sequence[NamedBy]) -> LossBudgetReport:
    """The budget by place.

    Args:
        budget: What was measured.
        record: Has the names.
        causes: The causes found, in their order.
    """
    deployed, simulated = np.array(budget.deployed), np.array(budget.simulated)
    # Of a simulated network that is noisier than the real one, the parts still make up all of it.
    scale = np.minimum(simulated / np.where(deployed > 0, deployed, np.inf), 1.0)
    noisiest, leading = np.argsort(-deployed, kind="stable"), leading_output(budget)
    order = np.concatenate([[leading], noisiest[noisiest != leading]])
    view = _View(record, scale[order], order, causes, TaskView.of(budget, record))
    own: list[PieceRecord] = []
    others: list[PieceRecord] = []
    for piece in budget.pieces:
        (own if view.stands_alone(piece) else others).append(piece)
    groups = [[piece] for piece in own] + _alike(others, record)
    found = [(pieces, line) for pieces in groups if _matters(line := view.line(pieces))]
    found.sort(key=lambda pair: -pair[1].share)
    kernels = [line for d in budget.departures or () if _matters(line := view.departure_line(d))]
    made = sum(line.share for _, line in found)
    lines = sorted([*(line for _, line in found), *kernels], key=lambda line: -line.share)
    kinds: dict[SourceKind, float] = {}
    for piece in budget.pieces:
        kind = main_kind(piece.sources)
        kinds[kind] = kinds.get(kind, 0.0) + view.share(piece)
    return LossBudgetReport(
        dataset=budget.dataset,
        samples=budget.samples,
        runs=budget.runs,
        outputs=tuple(
            BudgetOutput(
                name=output_part_name(budget.outputs[k], record),
                sqnr_db=sqnr_db(1.0, float(deployed[k])),
                unsimulated=float(1.0 - scale[k]),
            )
            for k in order.tolist()
        ),
        by_source=kinds,
        task=view.task.report([pieces for pieces, _ in found]) if view.task is not None else None,
        lines=tuple(lines),
        families=tuple(view.family(family, kinds) for family in budget.families),
        rest=float(scale[order][0]) - made,
        complete=budget.complete,
    )


@dataclass(frozen=True)
class TaskView:
    """How the loss is shown: by parts with intervals.

    A part is judged where the whole loss is told from none, and the part's interval excludes 0 or is no wider than that
    loss. Other parts are given with their interval, and say nothing.
    """

    record: TaskLossRecord
    pieces: Sequence[PieceRecord]
    is_share: bool
    seed: int

    @classmethod
    def of(cls, budget: LossBudget, record: CaseRecord) -> Self | None:
        """None where nothing of the task was measured."""
        if budget.task is None:
            return None
        is_share = loses_shares(budget.task.measure, record.metric)
        return cls(budget.task, budget.pieces, is_share, int(record.run.get("seed", 0)))

    def share(self, pieces: Sequence[PieceRecord]) -> TaskShare | None:
        """What pieces take together; alone and last of a single one."""
        records = [piece.task for piece in pieces if piece.task is not None]
        if not records:
            return None
        single = records[0] if len(pieces) == 1 else None
        return TaskShare(
            share=self._part(_sum_of(record.share for record in records)),
            alone=self._part(np.array(single.alone)) if single is not None else None,
            last=self._part(np.array(single.last)) if single is not None else None,
        )

    def is_told(self, piece: PieceRecord) -> bool:
        """What the piece takes is a good part of the loss, and told from none."""
        if piece.task is None or np.mean(piece.task.share) < OWN_LINE * self.whole.lost:
            return False
        found = self._part(np.array(piece.task.share))
        return found.judged and found.low > 0

    def report(self, lines: Iterable[Sequence[PieceRecord]]) -> TaskLoss:
        """The whole loss, given the pieces of every line that is shown."""
        shown = [piece.task.share for pieces in lines for piece in pieces if piece.task is not None]
        simulated, interaction = np.array(self.record.simulated), np.array(self.record.interaction)
        return TaskLoss(
            measure=self.record.measure,
            whole=self.whole,
            interaction=self._part(interaction),
            rest=self._part(simulated - interaction - _sum_of([np.zeros_like(simulated), *map(np.array, shown)])),
            unassigned=self._part(np.array(self.record.deployed) - simulated),
        )

    @cached_property
    def whole(self) -> LossPart:
        """What the quantized model loses."""
        lost, low, high = self._interval(np.array(self.record.deployed))
        return LossPart(lost=lost, low=low, high=high, judged=low > 0)

    def _part(self, losses: Floats) -> LossPart:
        whole = self.whole
        lost, low, high = self._interval(losses)
        told = not low <= 0 <= high or high - low <= whole.lost
        return LossPart(lost=lost, low=low, high=high, judged=whole.judged and told)

    def _interval(self, losses: Floats) -> tuple[float, float, float]:
        return loss_interval(losses, is_share=self.is_share, seed=self.seed)


def _sum_of(losses: Iterable[Sequence[float] | Floats]) -> Floats:
    found: Floats = np.sum([np.asarray(values) for values in losses], axis=0)
    return found


@dataclass(frozen=True)
class _View:
    """How pieces are shown: names, the leading output first, shares of the quantized model's noise."""

    record: CaseRecord
    scale: Floats
    order: NDArray[np.intp]
    causes: Sequence[NamedBy]
    task: TaskView | None

    def shares(self, values: Sequence[float]) -> Floats:
        found: Floats = np.array(values)[self.order] * self.scale
        return found

    def share(self, piece: PieceRecord) -> float:
        return self.first(piece.shares)

    def stands_alone(self, piece: PieceRecord) -> bool:
        """It is a single source, and has a line of its own."""
        if len(piece.sources) > 1:
            return False
        return self.share(piece) >= OWN_LINE or (self.task is not None and self.task.is_told(piece))

    def first(self, values: Sequence[float]) -> float:
        return float(self.shares(values)[0])

    def healing(self, found: PieceRecord | FamilyRecord) -> tuple[str | None, float | None]:
        """The first kind of change that takes away about as much as the best one, and most of what there is."""
        gone = {kind: self.first(values) for kind, values in found.heals.items()}
        enough = max(ABOUT * max(gone.values(), default=0.0), MOST * self.first(found.last), SMALLEST)
        return next(((kind, share) for kind, share in gone.items() if share >= enough), (None, None))

    def family(self, family: FamilyRecord, by_kind: Mapping[SourceKind, float]) -> BudgetFamily:
        """All sources of a family together."""
        kinds: tuple[SourceKind, ...] = ("weight",) if family.kind == "weight" else ("activation", "input")
        healed_by, healed = self.healing(family)
        return BudgetFamily(
            source=family.kind,
            places=family.sources,
            share=sum(by_kind.get(kind, 0.0) for kind in kinds),
            last=self.first(family.last),
            healed_by=healed_by,
            healed=healed,
        )

    def line(self, pieces: Sequence[PieceRecord]) -> BudgetLine:
        """One line for pieces of one kind."""
        pieces = sorted(pieces, key=self.share, reverse=True)
        sources = [source for piece in pieces for source in piece.sources]
        kind = main_kind(sources)
        names = list(dict.fromkeys(name for source in sources for name in _names(source, self.record)))
        types = {kind for source in sources for kind in _op_types(source, self.record)}
        shares = np.sum([self.shares(piece.shares) for piece in pieces], axis=0)
        single = pieces[0] if len(sources) == 1 else None
        mechanism = mechanism_of(single, int(self.order[0])) if single is not None else None
        healed_by, healed = self.healing(single) if single is not None else (None, None)
        return BudgetLine(
            source=kind,
            places=tuple(names),
            layers=tuple(dict.fromkeys(name for source in sources for name in _layers(source, self.record))),
            op_type=types.pop() if len(types) == 1 else None,
            words=source_words(kind, sources, self.record, mechanism),
            share=float(shares[0]),
            shares=tuple(shares.tolist()),
            alone=self.first(pieces[0].alone) if len(pieces) == 1 else None,
            last=self.first(pieces[0].last) if len(pieces) == 1 else None,
            mechanism=mechanism,
            healed_by=healed_by,
            healed=healed,
            task=self.task.share(pieces) if self.task is not None else None,
            causes=self._causes(sources),
        )

    def departure_line(self, departure: DepartureRecord) -> BudgetLine:
        """One line for a place where noise begins that no quantizer makes."""
        makers = [k for k, op in enumerate(self.record.operators) if departure.tensor in op.outputs]
        source = SourceRecord(kind="kernel", tensors=(departure.tensor,), operators=tuple(makers))
        shares = np.array(departure.shares)[self.order]
        tensor = _kernel_of(departure)
        return BudgetLine(
            source="kernel",
            places=tuple(_names(tensor, self.record)),
            layers=tuple(_layers(tensor, self.record)),
            op_type=next(iter(_op_types(tensor, self.record))),
            words=f"what {_maker(tensor, self.record)} computes: not what its float twin makes of the same input",
            share=float(shares[0]),
            shares=tuple(shares.tolist()),
            causes=self._causes([source]),
        )

    def _causes(self, sources: Sequence[SourceRecord]) -> tuple[str, ...]:
        """Causes that name one of the sources."""
        return tuple(dict.fromkeys(c.cause for c in self.causes if any(names_it(c, s) for s in sources)))


def _matters(line: BudgetLine) -> bool:
    """It makes noise, or takes a part of the loss that is told from none."""
    lost = line.task.share if line.task is not None else None
    return abs(line.share) >= SMALLEST or (lost is not None and lost.judged and (lost.low > 0 or lost.high < 0))


def main_kind(sources: Sequence[SourceRecord]) -> SourceKind:
    """What neighbours are that were not taken apart: what most of them are."""
    kinds = [source.kind for source in sources]
    return max(dict.fromkeys(kinds), key=kinds.count)


def _alike(pieces: Iterable[PieceRecord], record: CaseRecord) -> list[list[PieceRecord]]:
    """Pieces of one kind and operator type together."""
    found: dict[tuple[object, ...], list[PieceRecord]] = {}
    for piece in pieces:
        types = {kind for source in piece.sources for kind in _op_types(source, record)}
        key = (main_kind(piece.sources), types.pop() if len(types) == 1 else None)
        found.setdefault(key, []).append(piece)
    return list(found.values())


def _kernel_of(departure: DepartureRecord) -> SourceRecord:
    return SourceRecord(kind="kernel", tensors=(departure.tensor,))


def names_it(named: NamedBy, source: SourceRecord) -> bool:
    """A finding of the cause is about this source, and its rule about sources of this kind."""
    for family, is_global in named.kinds:
        if source.kind not in _SOURCES.get(family, ()):
            continue
        if is_global:
            return source.kind != "kernel"
        if not (named.tensors.isdisjoint(source.tensors) and named.operators.isdisjoint(source.operators)):
            return True
    return False


def _names(source: SourceRecord, record: CaseRecord) -> list[str]:
    if source.operators:
        return [record.operators[k].name for k in source.operators]
    return [record.tensors[source.tensors[0]].float_name]


def _layers(source: SourceRecord, record: CaseRecord) -> list[str]:
    """Layers that have the weights, or that make the values; none of a network input."""
    own = [record.operators[k] for k in source.operators]
    makers = [record.tensors[i].producer_name for i in source.tensors]
    return [operator.float_name or operator.name for operator in own] + [maker for maker in makers if maker]


def _op_types(source: SourceRecord, record: CaseRecord) -> set[str]:
    if source.operators:
        return {record.operators[k].op_type for k in source.operators}
    return {record.tensors[source.tensors[0]].producer}


def output_part_name(part: OutputPart, record: CaseRecord) -> str:
    output = record.outputs[part.output]
    name = output.name if output.tensor is None else record.tensors[output.tensor].float_name
    if part.start is None:
        return name
    joined = next((own.tensor for own in output.parts if own.start == part.start), None)
    return f"{name}, {joined or part_words(column_places(range(part.start, part.stop or 0)), None)}"


def source_words(
    kind: SourceKind, sources: Sequence[SourceRecord], record: CaseRecord, mechanism: Mechanism | None = None
) -> str:
    """What makes the noise, where and how: by layers, as people know their network, not by names of tensors."""
    how = f": {MECHANISMS[mechanism]}" if mechanism is not None else ""
    if len(sources) == 1:
        what = _SINGLE[kind]
        return f"{what} {_place(sources[0], record)}{how}"
    if all(source.tensors and _is_made(record.tensors[source.tensors[0]]) for source in sources):
        places = list(dict.fromkeys(layer for source in sources for layer in _layers(source, record)))
        size, what = len(places), f"quantizing the outputs of {len(places)} layers"
    else:
        places = [_place(source, record) for source in sources[:NAMED]]
        size, what = len(sources), f"{_WORDS[kind]} of {len(sources)} places"
    listed = ", ".join(places[:NAMED])
    more = f" and {size - NAMED} more" if size > NAMED else ""
    return f"{what} ({listed}{more})"


def _place(source: SourceRecord, record: CaseRecord) -> str:
    """Where a source is: layers that share it, the layer that makes the values, or the network's input."""
    if source.operators:
        return " and ".join(_names(source, record))
    tensor = record.tensors[source.tensors[0]]
    if not _is_made(tensor):
        return f"the input {tensor.float_name}" if tensor.is_input else tensor.float_name
    several = sum(other.producer_name == tensor.producer_name for other in record.tensors) > 1
    return f"the output of {tensor.producer_name}{f', {tensor.float_name}' if several else ''}"


def _maker(source: SourceRecord, record: CaseRecord) -> str:
    """The layer that makes the values, or their name."""
    tensor = record.tensors[source.tensors[0]]
    return tensor.producer_name or tensor.float_name


def _is_made(tensor: TensorRecord) -> bool:
    """A layer makes the values."""
    return not tensor.is_input and tensor.producer_name is not None
