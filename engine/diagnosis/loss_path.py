"""The path to the loss: from the whole noise to the smallest part that still makes most of it, and what heals it."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from quantmedic.engine.case.budget_record import SourceKind
from quantmedic.engine.case.proof import PRESCRIPTION, Grade
from quantmedic.engine.contract.budget_report import BudgetFamily, BudgetLine, LossBudgetReport, LossPath, PathStep
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.budget_lines import ABOUT, NOTABLE
from quantmedic.engine.rules.remedy_kinds import REMEDY_KINDS
from quantmedic.engine.rules.rulebase import RuleBase

#: What is put in float together, and last what makes noise without a quantizer.
_KINDS: Mapping[str, tuple[SourceKind, ...]] = {
    "activations": ("activation", "input"),
    "weights": ("weight",),
    "biases and constants": ("bias",),
    "what no quantizer makes": ("kernel",),
}


class _Descent(NamedTuple):
    """The last part that makes most of the noise: its steps, its largest part, and where changes of it were run."""

    steps: tuple[PathStep, ...]
    largest: PathStep | None = None
    changed: BudgetLine | BudgetFamily | None = None


def with_loss_path(diagnosis: Diagnosis, base: RuleBase) -> Diagnosis:
    """The diagnosis, which has its prescription, with the path to the loss, where the loss budget was measured."""
    budget = diagnosis.loss_budget
    if budget is None:
        return diagnosis
    most, vain = base.threshold("dominant_share"), _kinds_in_vain(diagnosis)
    found = _descend(budget, most)
    change = None if found.changed is None else _change_of(found.changed, vain)
    path = LossPath(
        steps=(*found.steps, change) if change is not None and change.share > most else found.steps,
        largest=found.largest,
        remedy=_executed_remedy(diagnosis, most) or _simulated_remedy(budget, vain),
    )
    return diagnosis.model_copy(update={"loss_path": path})


def _descend(budget: LossBudgetReport, most: float) -> _Descent:
    """To the deepest part that makes more than ``most`` of the noise: of parts that add up, only one can."""
    kinds = sorted((_kind_step(words, budget) for words in _KINDS), key=lambda step: -step.share)
    places = sorted((line for line in budget.lines if _is_tried(line)), key=lambda line: -_share_gone(line))
    if places and _share_gone(places[0]) > most:
        kind = next(step for step in kinds if places[0].source in _KINDS[step.words])
        return _Descent((kind, _place_step(places[0], budget)), changed=places[0])
    if kinds[0].share > most:
        own = [line for line in places if line.source in _KINDS[kinds[0].words]]
        largest = _place_step(own[0], budget) if own else None
        return _Descent((kinds[0],), largest, _family_of(_KINDS[kinds[0].words], budget))
    every = PathStep(level="all", words="all quantizers", share=1.0 - budget.unsimulated, basis="simulated")
    return _Descent((every,), kinds[0])


def _kind_step(words: str, budget: LossBudgetReport) -> PathStep:
    kinds = _KINDS[words]
    share = _share_of_kind(kinds, budget)
    return PathStep(level="kind", words=words, share=share, basis=_basis_of(kinds[0]), source=kinds[0])


def _share_of_kind(kinds: tuple[SourceKind, ...], budget: LossBudgetReport) -> float:
    """What goes with all of a kind in float; where no run put all there, what the division gives them or one did."""
    if "kernel" in kinds:
        return budget.unsimulated
    if (family := _family_of(kinds, budget)) is not None:
        return family.last
    divided = min(sum(budget.by_source.get(kind, 0.0) for kind in kinds), 1.0)
    return max([divided, *(_share_gone(line) for line in budget.lines if line.source in kinds)])


def _family_of(kinds: Collection[SourceKind], budget: LossBudgetReport) -> BudgetFamily | None:
    return next((family for family in budget.families if family.source in kinds), None)


def _is_tried(line: BudgetLine) -> bool:
    """What goes with this line alone is known: it is one part, and not the sum of several."""
    return line.last is not None or line.source == "kernel"


def _share_gone(line: BudgetLine) -> float:
    """At most all of it: what was inferred from the other half of a group may come to more."""
    return min(line.last if line.last is not None else line.share, 1.0)


def _place_step(line: BudgetLine, budget: LossBudgetReport) -> PathStep:
    return PathStep(
        level="place",
        words=line.words,
        share=_share_gone(line),
        basis=_basis_of(line.source),
        source=line.source,
        places=line.places,
        mechanism=line.mechanism,
        lost=_share_of_task_loss(line, budget),
    )


def _basis_of(source: SourceKind) -> Grade:
    """What no quantizer makes was seen in the deployed model; all else is simulated."""
    return "executed" if source == "kernel" else "simulated"


def _share_of_task_loss(line: BudgetLine, budget: LossBudgetReport) -> float | None:
    """None where the samples do not tell it from none."""
    if budget.task is None or line.task is None:
        return None
    part = line.task.share
    return part.lost / budget.task.whole.lost if part.judged and part.low > 0 else None


def _change_of(part: BudgetLine | BudgetFamily, vain: Collection[str]) -> PathStep | None:
    """What takes most of the noise of a part away; None where nothing does, or it was tried in vain."""
    if part.healed_by is None or part.healed is None or part.healed_by in vain:
        return None
    kind = REMEDY_KINDS.get(part.healed_by)
    title = kind.title if kind is not None and kind.title else part.healed_by
    return PathStep(
        level="change",
        words=title if isinstance(part, BudgetLine) else f"{title} everywhere",
        share=part.healed,
        basis="simulated",
        source=part.source,
        places=part.places if isinstance(part, BudgetLine) else (),
        change=part.healed_by,
    )


def _kinds_in_vain(diagnosis: Diagnosis) -> frozenset[str]:
    """Kinds of changes that were carried out and recovered nothing for sure."""
    trials = diagnosis.proof.trials if diagnosis.proof is not None else ()
    return frozenset(row.trial.kind for row in trials if not row.trial.proven)


def _executed_remedy(diagnosis: Diagnosis, most: float) -> PathStep | None:
    """The prescription, where it was run as it is printed and takes most of the noise away."""
    given = diagnosis.prescription
    share = given.executed.trial.share if given is not None and given.executed is not None else None
    if given is None or given.grade != "executed" or share is None or share <= most:
        return None
    words = ", and ".join(step.title for step in given.steps)
    return PathStep(level="change", words=words, share=share, basis="executed", change=PRESCRIPTION)


def _simulated_remedy(budget: LossBudgetReport, vain: Collection[str]) -> PathStep | None:
    """What takes about the most noise away in simulated runs; a single place before a whole kind."""
    parts: Sequence[BudgetLine | BudgetFamily] = (*budget.lines, *budget.families)
    changes = [change for change in (_change_of(part, vain) for part in parts) if change is not None]
    best = max((change.share for change in changes), default=0.0)
    return None if best < NOTABLE else next(change for change in changes if change.share >= ABOUT * best)
