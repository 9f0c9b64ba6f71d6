"""What can be prescribed: the remedies of the proof, of the causes, and those for the whole network, best first."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from quantmedic.engine.case.proof import TrialRecord
from quantmedic.engine.contract.advised_remedies import Advice, PairedRemedy, TrialRow
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.advice import general_advice
from quantmedic.engine.diagnosis.input_repair import TURNS
from quantmedic.engine.diagnosis.prediction import ENOUGH_DB
from quantmedic.engine.diagnosis.remedy_outcomes import TRIED
from quantmedic.engine.diagnosis.repair_runs import PREFERENCE_DB
from quantmedic.engine.rules.remedies import Remedy, Snippet
from quantmedic.engine.rules.remedy_kinds import AT_MOST, BOUNDS, REMEDY_KINDS, kinds_everywhere
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.rules.toolchain import Toolchain

#: Remedies that quantize once more with the settings in force and the representative data.
NOTHING_CHANGED = ("requantize-this-model", "calibrate-again")


#: Causes with the advice that each gives; None for a remedy of the whole network.
Advised = tuple[tuple[CauseReport | None, Advice], ...]


class Choice(NamedTuple):
    """A remedy with the causes that advise it; None where it is for the whole network, whatever the cause.

    Attributes:
        id: The same for the same case under the same rules: what was executed is recognized by it.
        instead: Title of the better remedy that the toolchain has no option for.
    """

    id: str
    advised: Advised
    title: str
    measured: TrialRecord | None
    instead: str | None = None

    @property
    def lead(self) -> Advice | None:
        """The remedy as its first cause advises it; None where it belongs to no remedy of the rules."""
        return self.advised[0][1] if self.advised else None

    @property
    def is_of_data(self) -> bool:
        """Its causes say what is wrong with the data: the user is to prepare them in another way."""
        is_named = any(cause is not None for cause, _ in self.advised)
        return self.lead is not None and self.lead.scope == "dataset" and is_named

    @property
    def is_bound(self) -> bool:
        """Its gain is the most that it could bring: what it would repair was taken away."""
        kinds = AT_MOST if self.measured is None else BOUNDS
        return self.lead is not None and self.lead.simulate in kinds

    def snippets(self, toolchain: Toolchain | None) -> list["Part"]:
        """The toolchain's snippet of every cause that advises it; one for the layers' types goes before others.

        Where one repairs the data, none asks for others.
        """
        found = []
        for cause, advice in self.advised:
            own = [s for s in advice.snippets if toolchain is not None and s.toolchain == toolchain.name]
            if own:
                best = min(own, key=lambda snippet: (not snippet.formats, not snippet.types))
                rules = ", ".join(cause.rules) if cause is not None else "proof"
                found.append(Part(best, advice, f"{rules}: {advice.id}"))
        repairs = any("repair" in part.snippet.fields for part in found)
        return [part for part in found if not (repairs and part.snippet.reads == "application")]


class Part(NamedTuple):
    """One snippet, the advice that fills it, and rule and remedy for errors."""

    snippet: Snippet
    advice: Advice
    origin: str


def reads_anew(parts: Iterable[Part]) -> bool:
    """Other data are prescribed than those that the quantized model was made with."""
    return any(part.snippet.reads == "application" for part in parts)


@dataclass(frozen=True)
class Candidates:
    """What can be prescribed.

    Attributes:
        diagnosis: What is to be healed.
        base: Remedies in force.
        toolchain: Whose options the remedies become; None: not known.
    """

    diagnosis: Diagnosis
    base: RuleBase
    toolchain: Toolchain | None

    def choose(self) -> tuple[Choice, ...]:
        """What is prescribed where nothing was executed.

        The remedies of the proven chain; else the two that are needed together; else the first that was not disproven,
        or what stands in for it where the toolchain has no option; a bound only where there is nothing else.
        """
        found = tuple(map(self._of_row, self._chain))
        if not found:
            pair = self._pair
            is_vain = any(choice.lead is not None and choice.lead.is_disproven for choice in pair)
            found = pair if pair and not is_vain else self._of_causes[:1]
        return tuple(map(self._replace_unsupported, found))

    @property
    def baseline(self) -> Choice | None:
        """Quantizing again with nothing changed, as a cause advises it where one does; None without a text for it.

        New ranges alone that are predicted to recover nothing do not lend it their name: weights are made anew as well.
        """
        advised = (choice for choice in self._of_causes if not is_known_useless(choice, self.base))
        general = (self._general(self.base.remedies[name]) for name in NOTHING_CHANGED if name in self.base.remedies)
        choices = chain((choice for choice in advised if self._changes_nothing(choice)), general)
        return next((choice for choice in choices if choice.snippets(self.toolchain)), None)

    def leading(self) -> Iterator[tuple[Choice, ...]]:
        """Prescriptions to execute, in their order: what the edits proved, then each cause's remedies."""
        rows = [self._of_row(row) for row in self._general_rows if row.trial.proven]
        singles = [
            *map(self._of_row, self._chain),
            *sorted(self._of_causes, key=_standing, reverse=True),
            *sorted(rows, key=_standing, reverse=True),
        ]
        yield from self._executable([self.choose(), self._pair, *((choice,) for choice in singles)])

    def hidden(self) -> Iterator[Choice]:
        """Remedies of causes that another one hides, which are for when that one is repaired: the first of each."""
        for cause in self.diagnosis.causes:
            own = [_choice_of(cause, advice) for advice in cause.remedies] if cause.behind is not None else []
            choice = next((each for each in own if each.snippets(self.toolchain)), None)
            if choice is not None:
                yield choice

    def general(self) -> Iterator[tuple[Choice, ...]]:
        """Remedies for the whole network of which nothing is known, the cheapest first, unless their kind was tried."""
        tried = {row.trial.kind for row in self._general_rows}
        kinds = (name for name in (*kinds_everywhere("early"), *kinds_everywhere("late")) if name not in tried)
        remedies = (each.remedy for name in kinds if (each := REMEDY_KINDS[name].everywhere) is not None)
        known = (self.base.remedies[remedy] for remedy in remedies if remedy in self.base.remedies)
        yield from self._executable((self._general(remedy),) for remedy in known)

    def by_id(self) -> dict[str, Choice]:
        """All that can be prescribed, by the names that executions are kept under."""
        again = self.baseline
        every = chain(((again,) if again is not None else (),), self.leading(), self.general())
        return {choice.id: choice for choices in every for choice in choices}

    def of_trial(self, trial: TrialRecord) -> Choice:
        """The remedy for the whole network that a trial carried out."""
        return self._of_row(TrialRow(causes=(), remedy=trial.detail or trial.kind, trial=trial))

    def _executable(self, found: Iterable[tuple[Choice, ...]]) -> Iterator[tuple[Choice, ...]]:
        """Each prescription once, where the toolchain has options for all of it."""
        seen = set[tuple[str, ...]]()
        for choices in found:
            ids = tuple(choice.id for choice in choices)
            if ids and ids not in seen and all(choice.snippets(self.toolchain) for choice in choices):
                seen.add(ids)
                yield choices

    def _changes_nothing(self, choice: Choice) -> bool:
        """Its text is that of quantizing again: it sets no option, and the data are those of the quantized model."""
        if choice.lead is not None and choice.lead.id in NOTHING_CHANGED:
            return True
        parts = choice.snippets(self.toolchain)
        snippets = [part.snippet for part in parts]
        changed = any(each.code or each.after or any(each.options.values()) for each in snippets)
        return bool(parts) and not changed and not reads_anew(parts)

    @property
    def _chain(self) -> tuple[TrialRow, ...]:
        return self.diagnosis.proof.chain if self.diagnosis.proof is not None else ()

    @property
    def _general_rows(self) -> list[TrialRow]:
        """Trials of the whole network, for no cause."""
        proof = self.diagnosis.proof
        return [row for row in proof.trials if not row.causes] if proof is not None else []

    @property
    def _of_causes(self) -> tuple[Choice, ...]:
        """Every remedy of every cause that was not disproven; what only shows the most that could be gained is last."""
        choices = [
            self._with_other_repairs(_choice_of(cause, advice))
            for cause in self.diagnosis.causes
            for advice in cause.remedies
            if not advice.is_disproven
        ]
        return tuple(sorted(choices, key=lambda choice: choice.is_bound))

    def _with_other_repairs(self, choice: Choice) -> Choice:
        """What repairs the data undoes every mistake that they show, each by its own text."""
        if choice.lead is None or not choice.lead.fields.get("repair"):
            return choice
        others = [
            (cause, advice)
            for cause in self.diagnosis.causes
            for advice in cause.remedies
            if advice.id == choice.lead.id and advice.fields.get("repair") and cause is not choice.advised[0][0]
        ]
        return choice._replace(advised=_in_order_of_repair([*choice.advised, *others]))

    @property
    def _pair(self) -> tuple[Choice, ...]:
        """The two remedies that are needed together; none where one suffices."""
        pair = self.diagnosis.pair
        return tuple(map(self._of_paired, pair.remedies)) if pair is not None else ()

    def _of_paired(self, own: PairedRemedy) -> Choice:
        trial = TrialRecord(key=own.key, kind=own.kind)
        found = self._of_row(TrialRow(causes=own.causes, remedy=own.title, trial=trial))
        changes = {"predicted": own.predicted}
        advised = tuple((cause, advice.model_copy(update=changes)) for cause, advice in found.advised)
        return found._replace(id=f"pair:{own.key}", advised=advised, measured=None)

    def _of_row(self, row: TrialRow) -> Choice:
        """What the rules advise for a link of the chain: of every cause the remedy that it was a trial of."""
        kind = REMEDY_KINDS.get(row.trial.kind)
        if kind is not None and kind.advised_as is not None:
            kind = REMEDY_KINDS[kind.advised_as]
        advised: list[tuple[CauseReport | None, Advice]] = []
        for cause in (each for each in self.diagnosis.causes if each.cause in row.causes):
            same = [advice for advice in cause.remedies if advice.title == row.remedy]
            same += [advice for advice in cause.remedies if kind is not None and advice.simulate == kind.name]
            advised += [(cause, advice) for advice in same[:1]]
        general = kind.everywhere.remedy if kind is not None and kind.everywhere is not None else None
        if not advised and general is not None and general in self.base.remedies:
            advised = [(None, self._advice_everywhere(self.base.remedies[general], row.trial.nodes))]
        return Choice(f"{TRIED}:{row.trial.key}", _in_order_of_repair(advised), row.remedy, row.trial)

    def _general(self, remedy: Remedy) -> Choice:
        return Choice(f"everywhere:{remedy.id}", ((None, self._advice_everywhere(remedy)),), remedy.title, None)

    def _advice_everywhere(self, remedy: Remedy, nodes: tuple[str, ...] = ()) -> Advice:
        types = [layer.op_type for layer in self.diagnosis.layers]
        return general_advice(remedy, types, nodes, self.diagnosis.model.format)

    def _replace_unsupported(self, choice: Choice) -> Choice:
        """The choice, or the next remedy of its cause where the toolchain can do that but not this."""
        lead = choice.lead
        # An edit has no snippets: every toolchain leaves it to the user.
        if self.toolchain is None or lead is None or not lead.snippets or choice.snippets(self.toolchain):
            return choice
        cause = choice.advised[0][0]
        if cause is None:
            return choice
        others = (advice for advice in cause.remedies if advice is not lead and not advice.is_disproven)
        found = (_choice_of(cause, advice, choice.title) for advice in others)
        return next((other for other in found if other.snippets(self.toolchain)), choice)


def _choice_of(cause: CauseReport, advice: Advice, instead: str | None = None) -> Choice:
    return Choice(f"{cause.cause}:{advice.id}", ((cause, advice),), advice.title, advice.measured, instead)


def _in_order_of_repair(advised: Iterable[tuple[CauseReport | None, Advice]]) -> Advised:
    """Advice of causes whose repair of the data needs another one's first comes behind that."""
    turn = {cause: place for place, cause in enumerate(TURNS)}
    return tuple(sorted(advised, key=lambda own: turn.get(own[0].cause, -1) if own[0] is not None else -1))


def is_known_useless(choice: Choice, base: RuleBase) -> bool:
    """A trial shows that it recovers next to nothing, or where none was made a simulation does."""
    known = choice.measured or (choice.lead.predicted if choice.lead is not None else None)
    return known is not None and known.gain_db is not None and known.gain_db < base.threshold("negligible_gain_db")


def _standing(choice: Choice) -> int:
    """What a remedy is worth by what is known of it; about the same gains leave the order of the causes."""
    lead = choice.lead
    known = choice.measured or (lead.predicted if lead is not None else None)
    gain = known.gain_db if known is not None and not choice.is_bound else None
    return round(min(gain or 0.0, ENOUGH_DB) / PREFERENCE_DB)
