"""What can be prescribed: the remedies of the proof, of the causes, and those for the whole network, best first."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from quantmedic.engine.case.proof import TrialRecord
from quantmedic.engine.contract.advised_remedies import Advice, PairedRemedy, TrialRow
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.advice import general_advice
from quantmedic.engine.diagnosis.prediction import ENOUGH_DB
from quantmedic.engine.diagnosis.suspects import PREFERENCE_DB
from quantmedic.engine.rules.remedies import Remedy, Snippet
from quantmedic.engine.rules.remedy_kinds import AT_MOST, BOUNDS, REMEDY_KINDS, kinds_everywhere
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.rules.toolchain import Toolchain

#: Remedies that quantize once more with the settings in force and the representative data.
NOTHING_CHANGED = ("requantize-this-model", "calibrate-again")


class Choice(NamedTuple):
    """A remedy with the causes that advise it; None where it is for the whole network, whatever the cause.

    Attributes:
        id: The same for the same case under the same rules: what was executed is recognized by it.
        instead: Title of the better remedy that the toolchain has no option for.
    """

    id: str
    advised: tuple[tuple[CauseReport | None, Advice], ...]
    title: str
    measured: TrialRecord | None
    instead: str | None = None

    @property
    def lead(self) -> Advice | None:
        """The remedy as its first cause advises it; None where it belongs to no remedy of the rules."""
        return self.advised[0][1] if self.advised else None

    @property
    def is_bound(self) -> bool:
        """Its gain is the most that it could bring: what it would repair was taken away."""
        kinds = AT_MOST if self.measured is None else BOUNDS
        return self.lead is not None and self.lead.simulate in kinds

    def snippets(self, toolchain: Toolchain | None) -> list["Part"]:
        """The toolchain's snippet of every cause that advises it; one for the layers' types goes before others."""
        found = []
        for cause, advice in self.advised:
            own = [s for s in advice.snippets if toolchain is not None and s.toolchain == toolchain.name]
            if own:
                best = min(own, key=lambda snippet: (not snippet.formats, not snippet.types))
                rules = ", ".join(cause.rules) if cause is not None else "proof"
                found.append(Part(best, advice, f"{rules}: {advice.id}"))
        return found


class Part(NamedTuple):
    """One snippet, the advice that fills it, and rule and remedy for errors."""

    snippet: Snippet
    advice: Advice
    origin: str


def reads_anew(parts: Iterable[Part]) -> bool:
    """Other data are prescribed than those that the quantized model was made with."""
    return any(part.snippet.reads == "application" for part in parts)


def chosen_remedies(diagnosis: Diagnosis, base: RuleBase, toolchain: Toolchain | None) -> tuple[Choice, ...]:
    """What is prescribed where nothing was executed.

    The remedies of the proven chain; else the two that are needed together; else the first that was not disproven, or
    what stands in for it where the toolchain has no option; a bound only where there is nothing else.
    """
    if diagnosis.proof is not None and diagnosis.proof.chain:
        rows = [_of_row(row, diagnosis, base) for row in diagnosis.proof.chain]
        return tuple(_replace_unsupported(choice, toolchain) for choice in rows)
    pair = _of_pair(diagnosis, base)
    if pair and not any(choice.lead is not None and choice.lead.is_disproven for choice in pair):
        return tuple(_replace_unsupported(choice, toolchain) for choice in pair)
    found = next(_of_causes(diagnosis), None)
    return (_replace_unsupported(found, toolchain),) if found is not None else ()


def baseline(diagnosis: Diagnosis, base: RuleBase, toolchain: Toolchain) -> Choice | None:
    """Quantizing again with nothing changed, as a cause advises it where one does; None without a text for it.

    New ranges alone that are predicted to recover nothing do not lend it their name: weights are made anew as well.
    """
    general = (_general_choice(base.remedies[name], diagnosis) for name in NOTHING_CHANGED if name in base.remedies)
    advised = (choice for choice in _of_causes(diagnosis) if not is_predicted_useless(choice, base))
    choices = chain((choice for choice in advised if _changes_nothing(choice, toolchain)), general)
    return next((choice for choice in choices if choice.snippets(toolchain)), None)


def is_predicted_useless(choice: Choice, base: RuleBase) -> bool:
    """A simulation shows that it recovers next to nothing, and nothing else was measured of it."""
    predicted = choice.lead.predicted if choice.lead is not None and choice.measured is None else None
    return predicted is not None and predicted.gain_db < base.threshold("negligible_gain_db")


def _changes_nothing(choice: Choice, toolchain: Toolchain) -> bool:
    """Its text is that of quantizing again: it sets no option, and the data are those of the quantized model."""
    if choice.lead is not None and choice.lead.id in NOTHING_CHANGED:
        return True
    parts = choice.snippets(toolchain)
    snippets = [part.snippet for part in parts]
    changed = any(each.code or each.after or any(each.options.values()) for each in snippets)
    return bool(parts) and not changed and not reads_anew(parts)


def candidates(diagnosis: Diagnosis, base: RuleBase, toolchain: Toolchain) -> Iterator[tuple[Choice, ...]]:
    """Prescriptions to execute, in their order: what the edits proved, then each cause's remedies."""
    yield from _executable(_all_candidates(diagnosis, base, toolchain), toolchain)


def general_candidates(diagnosis: Diagnosis, base: RuleBase, toolchain: Toolchain) -> Iterator[tuple[Choice, ...]]:
    """Remedies for the whole network of which nothing is known, the cheapest first."""
    tried = {row.trial.kind for row in _general_rows(diagnosis)}
    yield from _executable(((choice,) for choice in _of_network(diagnosis, base, tried)), toolchain)


def _executable(found: Iterable[tuple[Choice, ...]], toolchain: Toolchain) -> Iterator[tuple[Choice, ...]]:
    """Each prescription once, where the toolchain has options for all of it."""
    seen = set[tuple[str, ...]]()
    for choices in found:
        ids = tuple(choice.id for choice in choices)
        if ids and ids not in seen and all(choice.snippets(toolchain) for choice in choices):
            seen.add(ids)
            yield choices


def choices_by_id(diagnosis: Diagnosis, base: RuleBase, toolchain: Toolchain) -> dict[str, Choice]:
    """All that can be prescribed, by the names that executions are kept under."""
    again = baseline(diagnosis, base, toolchain)
    every = chain(candidates(diagnosis, base, toolchain), general_candidates(diagnosis, base, toolchain))
    return {choice.id: choice for choices in ((again,) if again is not None else (), *every) for choice in choices}


def _all_candidates(diagnosis: Diagnosis, base: RuleBase, toolchain: Toolchain) -> Iterator[tuple[Choice, ...]]:
    yield chosen_remedies(diagnosis, base, toolchain)
    yield _of_pair(diagnosis, base)
    proof = diagnosis.proof
    for row in proof.chain if proof is not None else ():
        yield (_of_row(row, diagnosis, base),)
    yield from ((choice,) for choice in sorted(_of_causes(diagnosis), key=_standing, reverse=True))
    proven = [_of_row(row, diagnosis, base) for row in _general_rows(diagnosis) if row.trial.proven]
    yield from ((choice,) for choice in sorted(proven, key=_standing, reverse=True))


def _general_rows(diagnosis: Diagnosis) -> list[TrialRow]:
    """Trials of the whole network, for no cause."""
    return [row for row in diagnosis.proof.trials if not row.causes] if diagnosis.proof is not None else []


def _standing(choice: Choice) -> int:
    """What a remedy is worth by what is known of it; about the same gains leave the order of the causes."""
    lead = choice.lead
    known = choice.measured or (lead.predicted if lead is not None else None)
    gain = known.gain_db if known is not None and not choice.is_bound else None
    return round(min(gain or 0.0, ENOUGH_DB) / PREFERENCE_DB)


def _of_causes(diagnosis: Diagnosis) -> Iterator[Choice]:
    """Every remedy of every cause that was not disproven; what only shows the most that could be gained comes last."""
    choices = [
        Choice(f"{cause.cause}:{advice.id}", ((cause, advice),), advice.title, advice.measured)
        for cause in diagnosis.causes
        for advice in cause.remedies
        if not advice.is_disproven
    ]
    yield from sorted(choices, key=lambda choice: choice.is_bound)


def _of_network(diagnosis: Diagnosis, base: RuleBase, tried: Collection[str]) -> Iterator[Choice]:
    """The remedies that make sense for the whole network, the cheapest first, unless their kind was tried."""
    for name in (*kinds_everywhere("early"), *kinds_everywhere("late")):
        if name in tried:
            continue
        everywhere = REMEDY_KINDS[name].everywhere
        if everywhere is not None and everywhere.remedy in base.remedies:
            yield _general_choice(base.remedies[everywhere.remedy], diagnosis)


def _general_choice(remedy: Remedy, diagnosis: Diagnosis) -> Choice:
    types = [layer.op_type for layer in diagnosis.layers]
    return Choice(
        f"everywhere:{remedy.id}",
        ((None, general_advice(remedy, types, form=diagnosis.model.format)),),
        remedy.title,
        None,
    )


def choice_of_trial(trial: TrialRecord, diagnosis: Diagnosis, base: RuleBase) -> Choice:
    """The remedy for the whole network that a trial carried out."""
    return _of_row(TrialRow(causes=(), remedy=trial.detail or trial.kind, trial=trial), diagnosis, base)


def _of_pair(diagnosis: Diagnosis, base: RuleBase) -> tuple[Choice, ...]:
    """The two remedies that are needed together; none where one suffices."""
    return tuple(_of_paired(own, diagnosis, base) for own in (diagnosis.pair.remedies if diagnosis.pair else ()))


def _of_paired(own: PairedRemedy, diagnosis: Diagnosis, base: RuleBase) -> Choice:
    row = TrialRow(causes=own.causes, remedy=own.title, trial=TrialRecord(key=own.key, kind=own.kind))
    found = _of_row(row, diagnosis, base)
    advised = tuple((cause, advice.model_copy(update={"predicted": own.predicted})) for cause, advice in found.advised)
    return found._replace(id=f"pair:{own.key}", advised=advised, measured=None)


def _of_row(row: TrialRow, diagnosis: Diagnosis, base: RuleBase) -> Choice:
    """What the rules advise for a link of the chain: of every cause the remedy that it was a trial of."""
    kind = REMEDY_KINDS.get(row.trial.kind)
    if kind is not None and kind.advised_as is not None:
        kind = REMEDY_KINDS[kind.advised_as]
    advised: list[tuple[CauseReport | None, Advice]] = []
    for cause in (each for each in diagnosis.causes if each.cause in row.causes):
        same = [advice for advice in cause.remedies if advice.title == row.remedy]
        same += [advice for advice in cause.remedies if kind is not None and advice.simulate == kind.name]
        advised += [(cause, advice) for advice in same[:1]]
    general = kind.everywhere.remedy if kind is not None and kind.everywhere is not None else None
    if not advised and general is not None and general in base.remedies:
        types = [layer.op_type for layer in diagnosis.layers]
        advised = [(None, general_advice(base.remedies[general], types, row.trial.nodes, diagnosis.model.format))]
    return Choice(f"trial:{row.trial.key}", tuple(advised), row.remedy, row.trial)


def _replace_unsupported(choice: Choice, toolchain: Toolchain | None) -> Choice:
    """The choice, or the next remedy of its cause where the toolchain can do that but not this."""
    if toolchain is None or choice.lead is None or choice.snippets(toolchain):
        return choice
    if not choice.lead.snippets:  # an edit, which every toolchain leaves to the user
        return choice
    cause = choice.advised[0][0]
    return next(_stand_ins(cause, choice, toolchain), choice) if cause is not None else choice


def _stand_ins(cause: CauseReport, better: Choice, toolchain: Toolchain) -> Iterator[Choice]:
    remedies: Sequence[Advice] = [advice for advice in cause.remedies if advice is not better.lead]
    for advice in remedies:
        other = Choice(f"{cause.cause}:{advice.id}", ((cause, advice),), advice.title, advice.measured, better.title)
        if not advice.is_disproven and other.snippets(toolchain):
            yield other
