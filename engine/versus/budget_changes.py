"""Two loss budgets side by side: which noise went, which came, which stayed; matched by source and place."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pydantic import Field

from quantmedic.engine.case.budget_record import (
    LossBudget,
    Mechanism,
    PieceRecord,
    SourceKind,
    SourceRecord,
    TaskMeasure,
)
from quantmedic.engine.case.fact_base import Role
from quantmedic.engine.case.facts import OutputFacts
from quantmedic.engine.case.records import Case, CaseRecord
from quantmedic.engine.contract.budget_report import LossPart
from quantmedic.engine.decibels import sqnr_db
from quantmedic.engine.diagnosis.budget_lines import (
    OWN_LINE,
    SMALLEST,
    TaskView,
    main_kind,
    output_part_name,
    source_words,
)
from quantmedic.engine.formulas.noise_sources import mechanism_of
from quantmedic.engine.json_record import Contract

Fate = Literal["went", "less", "stayed", "more", "came"]
#: What is left of noise that went, at most.
LEFT = 0.1
#: Small sources of these kinds are told together: neighbours of several kinds may not have been taken apart.
FAMILIES: Mapping[tuple[SourceKind, ...], str] = {
    ("weight", "bias"): "all other weights, biases and constants",
    ("activation", "input"): "all other activations and inputs",
}
#: A kind of source and the name of its place in the second case.
Key = tuple[SourceKind, str]


class NoisePart(Contract):
    """A part of an output's noise in both cases. None: not known, or no quantizer is there."""

    fate: Fate | None = Field(description="went and came: by a factor of ten or more; None where that is not known")
    share_before: float | None = Field(description="share of the noise of the first case")
    share_after: float | None = Field(description="share of the noise of the second case")
    noise_before: float | None = Field(description="the same as a share of the output's signal")
    noise_after: float | None = Field(description="the same after")
    gain_db: float | None = Field(default=None, description="how much less noise it makes; None where one has none")


class SourceChange(NoisePart):
    """A quantizer at one place that is loud in either case, or the other ones of its family together."""

    source: SourceKind = Field(description="what makes the noise")
    places: tuple[str, ...] = Field(description="layers or tensors by their name in the second case, else in the first")
    words: str = Field(description="what and where, to be read")
    among_before: int | None = Field(
        default=None, description="sources that it was not told apart from in the first case; its share is among theirs"
    )
    among_after: int | None = Field(default=None, description="the same in the second case")
    mechanism_before: Mechanism | None = Field(default=None, description="how it made noise")
    mechanism_after: Mechanism | None = Field(default=None, description="how it makes noise now")
    lost_before: LossPart | None = Field(
        default=None, description="what it took of what the task lost, where that was told from none"
    )
    lost_after: LossPart | None = Field(default=None, description="what it takes now")


class BudgetSide(Contract):
    """The noise at the output in one case."""

    sqnr_db: float
    dataset: Role | None = Field(description="None: the case has no loss budget")
    samples: int | None
    complete: bool | None = Field(description="all that matters was taken apart")
    measure: TaskMeasure | None = Field(default=None, description="what is lost; None where it was not measured")
    metric: str | None = Field(default=None, description="name of the task metric")
    lost: LossPart | None = Field(default=None, description="what the quantized model loses on these samples")


class BudgetChange(Contract):
    """The noise of one output in both cases, divided among what makes it. Shares sum up to 1 in each case."""

    output: str = Field(description="the noisiest output of both cases")
    before: BudgetSide
    after: BudgetSide
    whole: NoisePart = Field(description="all of the noise")
    sources: tuple[SourceChange, ...] = Field(description="the loudest of both cases first, then the small ones")
    unsimulated: NoisePart = Field(description="what no quantizer makes")


@dataclass(frozen=True)
class _Budget:
    """One case: its budget, the noise of the output that both are compared by, and its names in the second case."""

    record: CaseRecord
    budget: LossBudget | None
    output: int
    noise: float
    names: Callable[[SourceRecord], list[str]]

    @property
    def scale(self) -> float:
        """Share of the noise that the simulated network makes too."""
        if self.budget is None:
            return 1.0
        return min(self.budget.simulated[self.output] / self.noise, 1.0) if self.noise > 0 else 0.0

    @property
    def pieces(self) -> tuple[PieceRecord, ...]:
        return self.budget.pieces if self.budget is not None else ()

    def share(self, piece: PieceRecord) -> float:
        return piece.shares[self.output] * self.scale

    @cached_property
    def task(self) -> TaskView | None:
        """What the task loses; None where it was not measured."""
        return TaskView.of(self.budget, self.record) if self.budget is not None else None

    def lost(self, pieces: Sequence[PieceRecord]) -> LossPart | None:
        """What pieces take of it; None where it is not told from none."""
        if self.task is None or not self.task.whole.judged:
            return None
        found = self.task.share(pieces)
        return found.share if found is not None else None

    def keys(self, piece: PieceRecord) -> set[Key]:
        return {(source.kind, name) for source in piece.sources for name in self.names(source)}

    @cached_property
    def _places(self) -> dict[Key, PieceRecord]:
        return {key: piece for piece in reversed(self.pieces) for key in self.keys(piece)}

    def piece(self, key: Key) -> PieceRecord | None:
        """The piece that has a source."""
        return self._places.get(key)

    def loud(self) -> Iterator[Key]:
        """One name of every source that has a line of its own, the loudest first."""
        own = [piece for piece in self.pieces if len(piece.sources) == 1 and abs(self.share(piece)) >= OWN_LINE]
        for piece in sorted(own, key=self.share, reverse=True):
            yield piece.sources[0].kind, self.names(piece.sources[0])[0]


def budget_change(
    before: Case,
    after: Case,
    outputs: tuple[Sequence[OutputFacts], Sequence[OutputFacts]],
    renamed: Callable[[str], str],
    *,
    margin_db: float,
) -> BudgetChange | None:
    """Both loss budgets side by side; None where neither case has one, or they have no output in common.

    Where one case has none, as an older one, the level of its output still tells what is left of the other's noise.

    Args:
        before: The first case.
        after: The second.
        outputs: Facts of the outputs of both.
        renamed: Gives the name in the second case of a layer of the first.
        margin_db: Least change that counts.
    """
    levels = [_levels(case, facts) for case, facts in zip((before, after), outputs, strict=True)]
    common = _common_outputs(*levels)
    if not common or (before.record.loss_budget is None and after.record.loss_budget is None):
        return None
    pair = max(common, key=lambda pair: max(level.noise for level in pair))
    tensors = {tensor.producer_name: tensor.float_name for tensor in after.record.tensors}
    namings = (_names_after(before.record, renamed, tensors), _names_after(after.record, lambda same: same, {}))
    old, new = (
        _Budget(case.record, case.record.loss_budget, level.place, level.noise, names)
        for case, level, names in zip((before, after), pair, namings, strict=True)
    )
    return _change(pair[1].name, old, new, margin_db)


def _change(name: str, before: _Budget, after: _Budget, margin_db: float) -> BudgetChange:
    judge = _Judge(before, after, margin_db)
    loud = dict.fromkeys(key for side in (before, after) for key in side.loud())
    rows = [judge.row(key) for key in loud]
    unsimulated = [1.0 - side.scale if side.budget is not None else None for side in (before, after)]
    return BudgetChange(
        output=name,
        before=_side(before),
        after=_side(after),
        whole=judge.part(1.0, 1.0),
        sources=(*sorted(rows, key=_quietness), *sorted(judge.others(set(loud)), key=_quietness)),
        unsimulated=judge.part(*unsimulated),
    )


def _quietness(part: NoisePart) -> float:
    return -max(part.noise_before or 0.0, part.noise_after or 0.0)


def _side(side: _Budget) -> BudgetSide:
    budget, task = side.budget, side.task
    return BudgetSide(
        sqnr_db=sqnr_db(1.0, side.noise),
        dataset=budget.dataset if budget is not None else None,
        samples=budget.samples if budget is not None else None,
        complete=budget.complete if budget is not None else None,
        measure=task.record.measure if task is not None else None,
        metric=side.record.metric,
        lost=task.whole if task is not None else None,
    )


# --- Outputs and names -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Level:
    """An output that is judged by itself, its place in the budget, and its noise as a share of its signal."""

    name: str
    place: int
    noise: float


def _levels(case: Case, outputs: Sequence[OutputFacts]) -> list[_Level]:
    """Every output: on the samples of the budget where there is one, else on all."""
    budget = case.record.loss_budget
    if budget is not None:
        parts = enumerate(budget.outputs)
        return [_Level(output_part_name(part, case.record), k, budget.deployed[k]) for k, part in parts]
    known = ((o.tensor.float_name or o.name, o.tensor.data.accumulated.sqnr_db) for o in outputs)
    return [_Level(name, 0, 10.0 ** (-level / 10.0)) for name, level in known if name is not None and level is not None]


def _common_outputs(before: Sequence[_Level], after: Sequence[_Level]) -> list[tuple[_Level, _Level]]:
    """Outputs by name, or one by one where all names differ and their number does not."""
    names = {level.name: level for level in reversed(before)}
    if len(before) == len(after) and not any(level.name in names for level in after):
        return list(zip(before, after, strict=True))
    return [(names[level.name], level) for level in after if level.name in names]


def _names_after(
    record: CaseRecord, renamed: Callable[[str], str], tensors: Mapping[str | None, str]
) -> Callable[[SourceRecord], list[str]]:
    """Names of a source's places as the second case has them."""

    def of_tensor(index: int) -> str:
        tensor = record.tensors[index]
        producer = tensor.producer_name
        if producer is None or renamed(producer) == producer:
            return tensor.float_name
        return tensors.get(renamed(producer), tensor.float_name)

    def names(source: SourceRecord) -> list[str]:
        if source.operators:
            own = (record.operators[k] for k in source.operators)
            return [renamed(operator.float_name or operator.name) for operator in own]
        return [of_tensor(index) for index in source.tensors]

    return names


# --- Figures ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Judge:
    before: _Budget
    after: _Budget
    margin_db: float

    def part(self, share_before: float | None, share_after: float | None) -> NoisePart:
        shares = (share_before, share_after)
        return NoisePart.model_validate(self._figures(shares, shares))

    def row(self, key: Key) -> SourceChange:
        """A source that is loud in either case."""
        sides = (self.before, self.after)
        found = [side.piece(key) for side in sides]
        alone = [piece if piece is not None and len(piece.sources) == 1 else None for piece in found]
        # The second case has the names of now; what stands alone in the first only is told by its names.
        record, single = next((s.record, p) for s, p in zip(sides[::-1], alone[::-1], strict=True) if p is not None)
        shares = [side.share(piece) if piece is not None else None for side, piece in zip(sides, alone, strict=True)]
        bounds = [self._bound_share(side, piece) for side, piece in zip(sides, found, strict=True)]
        among = [len(piece.sources) if piece is not None and len(piece.sources) > 1 else None for piece in found]
        how = [mechanism_of(p, side.output) if p is not None else None for side, p in zip(sides, alone, strict=True)]
        return SourceChange.model_validate(
            {
                **self._figures(shares, bounds),
                "source": key[0],
                "places": (key[1],),
                "words": source_words(key[0], single.sources, record),
                "among_before": among[0],
                "among_after": among[1],
                "mechanism_before": how[0],
                "mechanism_after": how[1],
                **self._lost_parts([[piece] if piece is not None else [] for piece in alone]),
            }
        )

    def others(self, loud: set[Key]) -> list[SourceChange]:
        """What has no row of its own, in families."""
        left = [
            [piece for piece in side.pieces if len(piece.sources) > 1 or not side.keys(piece) & loud]
            for side in (self.before, self.after)
        ]
        return [
            self._other(family, *([p for p in own if main_kind(p.sources) in family] for own in left))
            for family in FAMILIES
            if any(main_kind(piece.sources) in family for own in left for piece in own)
        ]

    def _other(
        self, family: tuple[SourceKind, ...], before: Sequence[PieceRecord], after: Sequence[PieceRecord]
    ) -> SourceChange:
        pairs = ((self.before, before), (self.after, after))
        shares = [sum(map(side.share, own)) if own else None for side, own in pairs]
        bounds = [None if side.budget is None else share or 0.0 for (side, _), share in zip(pairs, shares, strict=True)]
        places = {name for side, own in pairs for piece in own for _, name in side.keys(piece)}
        figures = self._figures(shares, bounds)
        return SourceChange.model_validate(
            {
                **figures,
                **self._lost_parts([before, after]),
                "source": family[0],
                "places": tuple(sorted(places)),
                "words": FAMILIES[family],
            }
        )

    def _lost_parts(self, pieces: Sequence[Sequence[PieceRecord]]) -> dict[str, LossPart | None]:
        sides = zip((self.before, self.after), pieces, strict=True)
        found = [side.lost(own) for side, own in sides]
        return {"lost_before": found[0], "lost_after": found[1]}

    def _bound_share(self, side: _Budget, piece: PieceRecord | None) -> float | None:
        """Share of a source: that of all that it was not told apart from; None where there is no budget."""
        if side.budget is None:
            return None
        return abs(side.share(piece)) if piece is not None else 0.0

    def _figures(self, shares: Sequence[float | None], bounds: Sequence[float | None]) -> dict[str, object]:
        sides = (self.before, self.after)
        noises = [None if share is None else share * side.noise for share, side in zip(shares, sides, strict=True)]
        old, new = noises
        return {
            "fate": self._fate(shares, bounds),
            "share_before": shares[0],
            "share_after": shares[1],
            "noise_before": old,
            "noise_after": new,
            "gain_db": sqnr_db(old, new) if old is not None and new is not None and old > 0 and new > 0 else None,
        }

    def _fate(self, shares: Sequence[float | None], bounds: Sequence[float | None]) -> Fate | None:
        """What became of a part: by its noise, not by its share.

        A bound tells that something got less from a known level, or more up to one, and nothing else. Without a budget,
        a part is at most all of the noise.
        """
        old, new = (
            (1.0 if bound is None else max(bound, 0.0)) * side.noise
            for bound, side in zip(bounds, (self.before, self.after), strict=True)
        )
        known = [share is not None or bound == 0.0 for share, bound in zip(shares, bounds, strict=True)]
        if all(known) and max(abs(share or 0.0) for share in shares) < SMALLEST:
            return "stayed"
        # The larger over the smaller, so that swapped cases lie on the same side of a limit.
        gain = 0.0 if old == new else sqnr_db(old, new) if old > new else -sqnr_db(new, old)
        if known[0] and gain >= self.margin_db:
            return "went" if new <= LEFT * old else "less"
        if known[1] and gain <= -self.margin_db:
            return "came" if old <= LEFT * new else "more"
        return "stayed" if all(known) else None
