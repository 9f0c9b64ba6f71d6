"""Simulated runs of repairs: which are made, what each recovers, and which of a cause's repairs is chosen by that."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain, pairwise
from typing import NamedTuple, TypeVar

from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.case.proof import ProofRecord
from quantmedic.engine.case.records import Case, RunRecord, SimulationRecord
from quantmedic.engine.contract.advised_remedies import PairedRemedy, RemedyPair
from quantmedic.engine.contract.budget_report import LossOrigin
from quantmedic.engine.diagnosis.prediction import ENOUGH_DB, Prediction, is_faithful, is_grave, predict
from quantmedic.engine.diagnosis.suspects import Repair, Suspect, digest, general_repairs, places_of
from quantmedic.engine.formulas.change import Change, requantize_weights
from quantmedic.engine.formulas.noise_sources import leading_output
from quantmedic.engine.rules.remedy_kinds import AT_MOST, BOUNDS, MORE_BITS, REMEDY_KINDS
from quantmedic.engine.rules.rulebase import RuleBase

T = TypeVar("T")
#: Suspected causes that are simulated, the most severe first.
MAX_SUSPECTS = 12
#: A remedy named earlier in a rule costs less: it stands unless a later one recovers this much more, in dB.
PREFERENCE_DB = 3.0
#: A single repair that takes away so much suffices: half of the dB that count.
SUFFICIENT_DB = ENOUGH_DB / 2
#: Of repairs that take away about this share of what the best one does, the first is taken into a pair.
ABOUT = 0.9
#: The whole network made anew as it was set, and as well as its bits allow: what of the loss the file costs, and what
#: the settings.
ROOTS = ("requantized", "quantized-well")
ANEW = ROOTS[0]
#: Runs the simulated network under a change.
Run = Callable[[Change], RunRecord]


class Lead(NamedTuple):
    """The repair that recovers most.

    Attributes:
        suspect: Whose it is.
        repair: As it is advised.
        part: As much of it as leaves other faults there to be seen.
    """

    suspect: Suspect
    repair: Repair
    part: Repair


@dataclass(frozen=True)
class Simulated:
    """Simulated runs, judged by the thresholds in force; without a record nothing is known of any repair."""

    record: SimulationRecord | None
    base: RuleBase

    @classmethod
    def faithful(cls, record: SimulationRecord | None, base: RuleBase) -> "Simulated":
        """Without a record where the simulated network is not about as noisy as the deployed one."""
        return cls(record if record is not None and is_faithful(record) else None, base)

    def predict(self, key: str, before: str | None = None) -> Prediction | None:
        """What a run recovers, over the unchanged network or another run; None where it was not run."""
        return predict(self.record, key, before)

    def with_runs(self, changes: Iterable[tuple[str, Change]], run: Run) -> "Simulated":
        """The same with these runs, each made once; what is learned cannot be simulated."""
        assert self.record is not None
        runs = dict(self.record.runs)
        for key, change in changes:
            if key not in runs and not change.learned:
                runs[key] = run(change)
        return replace(self, record=self.record.model_copy(update={"runs": runs}))

    # What is chosen

    def settle(self, suspects: Iterable[Suspect]) -> list[Suspect]:
        """The suspects with one repair of each kind: the spread one where that recovers clearly more for sure."""
        return [replace(suspect, repairs=tuple(self._settle_one(suspect))) for suspect in suspects]

    def _settle_one(self, suspect: Suspect) -> Iterable[Repair]:
        kinds: dict[str, Repair] = {}
        for repair in suspect.repairs:
            narrow = kinds.setdefault(repair.kind, repair)
            if repair.spread and self._is_clearly_better(repair, narrow):
                kinds[repair.kind] = repair
        return kinds.values()

    def _is_clearly_better(self, spread: Repair, narrow: Repair) -> bool:
        far, near = self.predict(spread.key), self.predict(narrow.key)
        if far is None or near is None or far.low_db <= 0 or not self._may_be_spread(narrow):
            return False
        return min(far.gain_db, ENOUGH_DB) >= near.gain_db + PREFERENCE_DB

    def _may_be_spread(self, narrow: Repair) -> bool:
        """Where rules fired, a repair recovers something, else what heals is not what they saw; and not nearly all.

        Errors of biases are constant and may cancel each other, so that mending a single one may recover nothing.
        """
        near = self.predict(narrow.key)
        if near is None or near.gain_db > ENOUGH_DB - PREFERENCE_DB:
            return False
        return bool(narrow.change.biases) or near.gain_db >= self.base.threshold("negligible_gain_db")

    def choose_repair(self, suspect: Suspect, proof: ProofRecord | None = None) -> Repair | None:
        """The first remedy that recovers about as much as the best one: of the proven, else of the simulated ones.

        The first of all where nothing is known.
        """
        repairs = suspect.repairs
        trials = [(proof.trial(repair.key), repair) for repair in repairs] if proof is not None else []
        gains = [(min(t.gain_db or 0.0, ENOUGH_DB), repair) for t, repair in trials if t is not None and t.proven]
        if gains:
            return first_about_best(gains)
        known = [(self.predict(repair.key), repair) for repair in repairs]
        gains = [(found.gain_db, repair) for found, repair in known if found is not None]
        return first_about_best(gains, last=AT_MOST) or (repairs[0] if repairs else None)

    def chosen_repairs(self, suspects: Sequence[Suspect]) -> list[Repair]:
        """The repair of each suspect that was simulated; suspects that share one count once."""
        found: dict[str, Repair] = {}
        for suspect in suspects[:MAX_SUSPECTS]:
            repair = self.choose_repair(suspect)
            if repair is not None and not repair.change.learned:
                found.setdefault(repair.key, repair)
        return list(found.values())

    # What is known

    def lead(self, suspects: Sequence[Suspect], facts: CaseFacts) -> "Lead | None":
        """The repair that recovers most; None where none recovers most of the noise.

        What makes the whole network anew would mend hidden ranges, too: only weights and biases are made anew.
        """
        chosen = ((suspect, self.choose_repair(suspect)) for suspect in suspects)
        known = [(suspect, own, self.predict(own.key)) for suspect, own in chosen if own is not None]
        gains = [(found.gain_db, suspect, own) for suspect, own, found in known if found is not None]
        gain_db, suspect, repair = max(gains, key=lambda each: each[0], default=(0.0, None, None))
        if suspect is None or repair is None or not is_grave(gain_db, self.base):
            return None
        if repair.kind != ANEW:
            return Lead(suspect, repair, repair)
        change = requantize_weights(facts)
        return Lead(suspect, repair, replace(repair, key=f"{repair.kind}:{digest([change])}", change=change))

    def last_gain(self, repair: Repair, every: Sequence[Repair], lead: "Lead | None") -> Prediction | None:
        """What a repair recovers where what hides it is repaired already; None where that alone heals.

        Of the little noise that is left then, any repair would seem to recover much.
        """
        before, joint = _around(repair, every, lead)
        if not before:
            return self.predict(repair.key)
        left = self.predict(join_repairs(before)[0])
        if left is not None and left.heals(self.base):
            return None
        return self.predict(join_repairs(joint)[0], before=join_repairs(before)[0])

    @property
    def gain_of_whole_db(self) -> float | None:
        """What a new quantization as it is set recovers for sure, whatever rules have a name for."""
        found = self.predict(f"{ANEW}:everywhere")
        return found.gain_db if found is not None and found.low_db > 0 else None

    @property
    def may_gain_anew(self) -> bool:
        """Quantizing again with nothing changed may recover something, as far as the simulation can tell."""
        found = self.predict(f"{ANEW}:everywhere")
        return found is None or found.high_db >= self.base.threshold("negligible_gain_db")

    def origin(self) -> LossOrigin | None:
        """What of the noise of quantizers goes as more of the network is made anew; None where that was not run."""
        anew, well = (self.predict(f"{kind}:everywhere") for kind in ROOTS)
        if anew is None or well is None:
            return None
        file = max(anew.share, 0.0)
        whole = max(well.share, file)
        return LossOrigin(file=file, settings=whole - file, bits=1.0 - whole)

    # Runs

    def run_repairs(
        self, suspects: Sequence[Suspect], halves: Iterable[Repair], facts: CaseFacts, run: Run
    ) -> "Simulated":
        """Run halves, every remedy alone, and every suspect's repair where what hides it is repaired already."""
        wanted = [repair for suspect in suspects[:MAX_SUSPECTS] for repair in suspect.repairs]
        known = self.with_runs(((half.kind, half.change) for half in halves), run)
        known = known.with_runs(((repair.key, repair.change) for repair in wanted if not repair.spread), run)
        spread = [own for narrow, own in pairwise(wanted) if own.spread and known._may_be_spread(narrow)]
        known = known.with_runs(((repair.key, repair.change) for repair in spread), run)
        settled = known.settle(suspects)
        every, lead = known.chosen_repairs(settled), known.lead(settled, facts)
        steps = chain.from_iterable(_around(repair, every, lead) for repair in every)
        # Also where all others are at its places: what it leaves is judged once more.
        first = [[lead.part]] if lead is not None else []
        return known.with_runs((join_repairs(step) for step in [*first, *steps] if step), run)

    def run_pairs(self, suspects: Sequence[Suspect], case: Case, facts: CaseFacts, run: Run) -> "Simulated":
        """Run what heals a whole family of sources, and pairs of repairs, where no single repair suffices.

        A loss may need two remedies: neither recovers much while the noise of the other's source stays.
        """
        if self.record is None or not is_faithful(self.record):
            return self
        singles = _single_repairs(self.settle(suspects))
        if not self._is_wanting(singles):
            return self
        general = general_repairs(_family_kinds(case), case, facts)
        known = found = self.with_runs(((repair.key, repair.change) for repair in general), run)
        for pair in known._likely_pairs(singles + general):
            found = found.with_runs([join_repairs(pair)], run)
            both = found.predict(join_repairs(pair)[0])
            if both is not None and both.gain_db >= ENOUGH_DB - PREFERENCE_DB:
                break
        return found

    # Pairs

    def find_pairs(
        self, suspects: Sequence[Suspect], case: Case, facts: CaseFacts
    ) -> list[tuple[RemedyPair, tuple[Repair, Repair]]]:
        """Pairs of repairs that recover clearly more than any single one, the best first; none where none was run.

        Of about equal ones those come first that stay within the bits in force. Each has all causes that ask for it,
        and the title of the remedy for the whole network if there is one.
        """
        if self.record is None or not facts.model.harmed:
            return []
        ran = [kind for kind in _family_kinds(case) if f"{kind}:everywhere" in self.record.runs]
        singles = _single_repairs(suspects) + general_repairs(ran, case, facts)
        reached = max((known.gain_db for repair in singles if (known := self.predict(repair.key))), default=0.0)
        pairs = []
        for pair in self._likely_pairs(singles):
            together = self.predict(join_repairs(pair)[0])
            if together is None or together.low_db <= 0:
                continue
            if min(together.gain_db, ENOUGH_DB) >= reached + PREFERENCE_DB:
                first, second = (self._paired_remedy(repair, suspects) for repair in pair)
                pairs.append((RemedyPair(remedies=(first, second), predicted=together.recovery(None)), pair))
        return sorted(pairs, key=lambda pair: -round(min(pair[0].predicted.gain_db, ENOUGH_DB) / PREFERENCE_DB))

    def _paired_remedy(self, repair: Repair, suspects: Iterable[Suspect]) -> PairedRemedy:
        alone, everywhere = self.predict(repair.key), REMEDY_KINDS[repair.kind].everywhere
        assert alone is not None
        return PairedRemedy(
            key=repair.key,
            kind=repair.kind,
            title=everywhere.title if everywhere is not None else "",
            causes=tuple(s.cause for s in suspects if any(own.key == repair.key for own in s.repairs)),
            predicted=alone.recovery(repair.kind),
        )

    def _is_wanting(self, singles: Iterable[Repair]) -> bool:
        """No single repair suffices."""
        known = (self.predict(repair.key) for repair in singles)
        return not any(found and (found.gain_db >= SUFFICIENT_DB or found.heals(self.base)) for found in known)

    def _likely_pairs(self, singles: Sequence[Repair]) -> Iterator[tuple[Repair, Repair]]:
        """What takes away most, with what takes away most elsewhere; those that keep the bits in force come first."""
        if not self._is_wanting(singles):
            return
        shares = [(found.share, repair) for repair in singles if (found := self.predict(repair.key)) is not None]
        seen: list[tuple[Repair, Repair]] = []
        for barred in (MORE_BITS, ()):
            own = [(share, repair) for share, repair in shares if repair.kind not in barred]
            first = _most_of(own)
            if first is None:
                continue
            elsewhere = [each for each in own if not places_of(each[1].change) & places_of(first.change)]
            second = _most_of(elsewhere)
            if second is not None and (first, second) not in seen:
                seen.append((first, second))
                yield first, second


def _around(repair: Repair, every: Sequence[Repair], lead: Lead | None) -> tuple[list[Repair], list[Repair]]:
    """What is repaired before a repair is seen, and the same with it.

    A fault that makes most of the noise hides those elsewhere; where none does, each is hidden by all others together.
    """
    if lead is not None:
        is_there = repair.key == lead.repair.key or bool(places_of(repair.change) & places_of(lead.part.change))
        return ([], []) if is_there else ([lead.part], [lead.part, repair])
    return [other for other in every if other.key != repair.key], [*every]


def first_about_best(gains: Sequence[tuple[float, Repair]], last: Collection[str] = BOUNDS) -> Repair | None:
    """The first repair whose gain in dB is about that of the best one; kinds whose gain is a most come last."""
    ordered = sorted(gains, key=lambda found: found[1].kind in last)
    enough = max((gain for gain, _ in gains), default=0.0) - PREFERENCE_DB
    return next((repair for gain, repair in ordered if gain >= enough), None)


def join_repairs(repairs: Sequence[Repair]) -> tuple[str, Change]:
    """Several repairs as one, and the name of its run."""
    if len(repairs) == 1:
        return repairs[0].key, repairs[0].change
    changes = [repair.change for repair in repairs]
    return f"together:{digest(changes)}", reduce(Change.join, changes, Change())


def _single_repairs(suspects: Iterable[Suspect]) -> list[Repair]:
    """Repairs that can be carried out, each once; what a bound recovers is no repair's."""
    own = (repair for suspect in suspects for repair in suspect.repairs if repair.kind not in AT_MOST)
    return list({repair.key: repair for repair in own}.values())


def _family_kinds(case: Case) -> list[str]:
    """Kinds that heal most of a family of sources as a whole: in the bits in force, and whatever the bits."""
    budget = case.record.loss_budget
    if budget is None:
        return []
    kinds: dict[str, None] = {}
    output = leading_output(budget)
    for family in budget.families:
        gone = {kind: shares[output] for kind, shares in family.heals.items() if REMEDY_KINDS[kind].everywhere}
        for barred in (MORE_BITS, ()):
            kind = _most_of([(share, kind) for kind, share in gone.items() if kind not in barred])
            kinds |= {kind: None} if kind is not None else {}
    return list(kinds)


def _most_of(shares: Sequence[tuple[float, T]]) -> T | None:
    """The first that takes away about as much of the noise as the best one; what others hide may recover nothing."""
    most = max((share for share, _ in shares), default=0.0)
    return next((each for share, each in shares if share >= min(ABOUT * most, most)), None)
