"""What is found once the repair that recovers most was made: a fault that makes most of the noise hides others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter

from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.diagnosis.competition import cause_report, is_universal
from quantmedic.engine.diagnosis.harm import as_if_harmed, stands_out, unsimulated_gain_db
from quantmedic.engine.diagnosis.prediction import ENOUGH_DB, is_grave
from quantmedic.engine.diagnosis.repair import facts_after
from quantmedic.engine.diagnosis.repair_runs import Lead, Run, Simulated, join_repairs
from quantmedic.engine.diagnosis.suspects import (
    Repair,
    Repairer,
    Suspect,
    places_of,
    suspects_of,
)
from quantmedic.engine.rules.evaluate import evaluate
from quantmedic.engine.rules.rule import SERIOUS

#: A rule no surer than this has a name for anything, such as for any range that is poor.
VAGUE = 0.5
#: Hidden causes that are simulated, the most severe first, and that are listed, the surest first.
MAX_HIDDEN, MAX_LISTED = 6, 3


@dataclass(frozen=True)
class SecondLook:
    """The facts that remain after the repair that recovers most.

    Attributes:
        simulated: Simulated runs of every suspect's repairs.
        case: What was measured.
        facts: Its facts.
        suspects: What is suspected at first sight, settled.
    """

    simulated: Simulated
    case: Case
    facts: CaseFacts
    suspects: Sequence[Suspect]

    @property
    def lead(self) -> Lead | None:
        """The repair that recovers most of the noise."""
        return self.simulated.lead(self.suspects, self.facts)

    def run(self, run: Run) -> Simulated:
        """The simulated runs, with one more for every cause that may be hidden."""
        if (lead := self.lead) is None:
            return self.simulated
        hidden = (own for _, own in self._candidates(lead.part) if own is not None)
        return self.simulated.with_runs([join_repairs((lead.part, own)) for own in islice(hidden, MAX_HIDDEN)], run)

    def find(self) -> Iterator[CauseReport]:
        """Causes that recover a good part of the noise that the leading repair leaves."""
        lead, base = self.lead, self.simulated.base
        left = self.simulated.predict(lead.part.key) if lead is not None else None
        if lead is None or left is None:
            return
        # Where the output is clean by then, nobody is told of trifles.
        is_worth_a_word = stands_out if left.sqnr_db >= base.threshold("clean_output_sqnr_db") else is_grave
        found = []
        for suspect, repair in self._candidates(lead.part):
            gain_db = self._gain_behind(lead.part, suspect, repair)
            if suspect.cause != lead.suspect.cause and gain_db is not None and is_worth_a_word(gain_db, base):
                report = self._report(suspect, lead.suspect.cause, gain_db)
                found.append((-report.confidence * min(gain_db, ENOUGH_DB), report))
        yield from (report for _, report in sorted(found, key=itemgetter(0))[:MAX_LISTED])

    def _gain_behind(self, lead: Repair, suspect: Suspect, repair: Repair | None) -> float | None:
        """What a repair recovers for sure on top of the leading one; of noise that no quantizer makes, all of it."""
        if repair is None:
            return unsimulated_gain_db(suspect.findings)
        found = self.simulated.predict(join_repairs((lead, repair))[0], before=lead.key)
        return found.gain_db if found is not None and found.low_db > 0 else None

    def _candidates(self, lead: Repair) -> Iterator[tuple[Suspect, Repair | None]]:
        """Suspects of the facts after the leading repair, and what would repair them elsewhere."""
        base, world = self.simulated.base, as_if_harmed(self.facts)
        after = as_if_harmed(facts_after(self.case, world, base, lead.change, self.simulated.predict(lead.key)))
        changed = places_of(lead.change)
        for suspect in suspects_of(evaluate(base, after), Repairer(base, self.case, after)):
            own = [each for each in suspect.repairs if not is_universal(each) and places_of(each.change) - changed]
            # Of a kind that spreads the wider repair: no other cause is to be told from this one by what it leaves.
            widest = next((each for each in own if each.spread), next(iter(own), None))
            is_named = any(f.rule.severity in SERIOUS and f.rule.confidence > VAGUE for f in suspect.findings)
            if is_named and (widest is not None or unsimulated_gain_db(suspect.findings) is not None):
                yield suspect, widest

    def _report(self, suspect: Suspect, behind: str, gain_db: float) -> CauseReport:
        cause = cause_report(suspect.findings, self.simulated.base, self.facts, {})
        return cause.model_copy(update={"severity": "low", "behind": behind, "predicted_gain_db": gain_db})
