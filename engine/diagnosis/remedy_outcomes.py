"""What the remedies of each suspected cause recover: simulated, and measured where they were carried out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.case.gains import gain_without_share
from quantmedic.engine.case.proof import ProofRecord, TrialRecord
from quantmedic.engine.contract.advised_remedies import Advice, Withheld
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.decibels import to_decibels
from quantmedic.engine.diagnosis.prediction import ENOUGH_DB, Prediction
from quantmedic.engine.diagnosis.repair_runs import Simulated
from quantmedic.engine.diagnosis.suspects import Repair, Suspect
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.rules.remedy_kinds import AT_MOST, BOUNDS, MORE_BITS
from quantmedic.engine.rules.rulebase import RuleBase

#: Choices of a prescription that stand for what was tried on a copy are called so.
TRIED = "trial"
#: Kinds whose gain says that few places make most of the noise only where it exceeds what even noise would give.
_WIDER = (*MORE_BITS, *AT_MOST)


class RemedyOutcome(NamedTuple):
    """What one kind of remedy recovers.

    Attributes:
        simulated: By a simulated run; None where none was made.
        trial: By a trial on a copy; None where it was not tried.
        reach: Share of the network's quantizers that it alters.
        leaves_none: Of several layers none stays quantized: what comes out is about the float model.
    """

    simulated: Prediction | None = None
    trial: TrialRecord | None = None
    reach: float = 1.0
    leaves_none: bool = False


_UNKNOWN = RemedyOutcome()
#: A finding that shows it is about data that differ.
_MISFIT = "misfit_share"


@dataclass(frozen=True)
class RemedyOutcomes:
    """What a suspect's remedies recover, and which repair was chosen for it.

    Attributes:
        base: Holds the thresholds.
        by_kind: What each kind of remedy recovers by itself.
        repair: The one that was chosen.
        last: What that recovers simulated where what hides it is repaired already.
        added: What it recovered on a copy on top of proven ones.
        executed: What prescriptions of a single remedy of the suspect gave, by cause and remedy or by kind of repair.
        most_db: What it recovers at most: new ranges may mend what the suspect did not make.
        is_led: Another repair recovers most of the noise.
    """

    base: RuleBase
    by_kind: Mapping[str, RemedyOutcome] = field(default_factory=dict)
    repair: Repair | None = None
    last: Prediction | None = None
    added: TrialRecord | None = None
    executed: Mapping[str, TrialRecord] = field(default_factory=dict)
    most_db: float = math.inf
    is_led: bool = False

    def of(self, kind: str | None) -> RemedyOutcome:
        """What a kind of remedy recovers, as far as that is known."""
        return self.by_kind.get(kind or "", _UNKNOWN)

    def gain_of(self, kind: str) -> float | None:
        """What a kind of remedy recovers alone: measured, else simulated."""
        found = self.of(kind)
        best = found.trial if found.trial is not None else found.simulated
        return best.gain_db if best is not None else None

    @property
    def alone(self) -> Prediction | None:
        """What the chosen repair recovers simulated, on the model as it is."""
        return self.of(self.repair.kind).simulated if self.repair is not None else None

    @property
    def trial(self) -> TrialRecord | None:
        """The same measured on a copy."""
        return self.of(self.repair.kind).trial if self.repair is not None else None

    @property
    def change(self) -> Change | None:
        """What the repair changes."""
        learned = self.repair is not None and self.repair.change.learned
        return self.repair.change if self.repair is not None and not learned else None

    @property
    def proven(self) -> bool | None:
        """Whether a gain was proven; None where nothing was measured, or the most that could be gained alone was."""
        found = [trial.proven for trial in (self.trial, self.added) if trial is not None and not trial.bound]
        return any(found) and not self._was_executed_in_vain if found else None

    @property
    def _was_executed_in_vain(self) -> bool:
        """What the toolchain made of its remedies recovered nothing, whatever an edited copy gave."""
        return bool(self.executed) and all(map(self._is_vain, self.executed.values()))

    def _is_vain(self, executed: TrialRecord) -> bool:
        least = self.base.threshold("negligible_gain_db")
        return not executed.proven and executed.gain_db is not None and executed.gain_db < least

    @property
    def shown(self) -> TrialRecord | None:
        """The trial that speaks for the repair: by itself, or on top of others where only that one is proven."""
        if self.added is not None and self.added.proven and not (self.trial is not None and self.trial.proven):
            return self.added
        return self.trial

    def is_chosen(self, advice: Advice) -> bool:
        """The advice is of the kind of the chosen repair."""
        is_known = self.alone is not None or self.trial is not None
        return self.repair is not None and is_known and advice.simulate == self.repair.kind

    @property
    def mean_gain_db(self) -> float | None:
        """The mean of what the repair recovers first and last: what it is worth whatever else is repaired.

        What another fault hides recovers nothing yet, and does not come before that one.
        """
        if not self._gains:
            return None
        is_hidden = self.is_led and self._gains[0] < self.base.threshold("negligible_gain_db")
        return self._gains[0] if is_hidden else sum(self._gains) / len(self._gains)

    @property
    def gain_db(self) -> float | None:
        """What the repair recovers, alone or, where other faults hide it, after theirs."""
        return max(self._gains, default=None)

    @property
    def counted_db(self) -> float:
        """The same up to what counts as all; 0 where nothing is known."""
        return min(self.gain_db or 0.0, ENOUGH_DB)

    @property
    def is_negligible(self) -> bool:
        """The repair recovers next to nothing; False where that is not known."""
        return self.gain_db is not None and self.gain_db < self.base.threshold("negligible_gain_db")

    @property
    def explains_nothing(self) -> bool:
        """Whatever its repair may mend, next to nothing of that is what the suspect made."""
        return math.isfinite(self.most_db) and self.most_db < self.base.threshold("negligible_gain_db")

    @property
    def _gains(self) -> list[float]:
        """Measured, else simulated: first and last."""
        pairs = ((self.trial, self.alone), (self.added, self.last))
        best = [measured if measured is not None else simulated for measured, simulated in pairs]
        known = [found.gain_db for found in best if found is not None and found.gain_db is not None]
        return [min(gain, self.most_db) for gain in known]

    @property
    def recoverable_db(self) -> float | None:
        """The most that a repair recovers: proven, else simulated with its whole interval and not refuted by a trial.

        More bits, or taking quantizers away, helps any network: of noise that is divided evenly, changing a share s of
        the quantizers takes away 10·log10(1 / (1 - s)) dB. Such a change counts only where what it recovers beyond that
        is worth a word: then few places make most of the noise. What other repairs leave to the chosen one counts too:
        of layers that all make noise, no single one recovers much.
        """
        repairs = [self._most_of(kind, own) for kind, own in self.by_kind.items()]
        last, chosen = self.last, self.repair.kind if self.repair is not None else None
        if last is not None and last.low_db > 0 and self.added is None and chosen not in _WIDER:
            repairs.append(last.gain_db)
        return max((min(gain, self.most_db) for gain in repairs if gain is not None), default=None)

    def _most_of(self, kind: str, own: RemedyOutcome) -> float | None:
        trial, found = own.trial, own.simulated
        if trial is not None and trial.proven and trial.gain_db is not None:
            gain, is_wider = trial.gain_db, kind in MORE_BITS
        elif found is not None and found.low_db > 0:
            upper = trial.high_db if trial is not None and trial.high_db is not None else math.inf
            gain, is_wider = min(found.gain_db, upper), kind in _WIDER
        else:
            return None
        left = 1.0 - own.reach
        beyond = gain + to_decibels(left) if left > 0 else -math.inf
        return gain if not is_wider or beyond >= self.base.threshold("assumed_harm_gain_db") else None

    @property
    def is_recoverable(self) -> bool:
        """A repair recovers enough to be worth a word, although no loss is proven."""
        gain = self.recoverable_db
        return gain is not None and gain >= self.base.threshold("assumed_harm_gain_db")

    # What the report says

    def report(self, cause: CauseReport) -> CauseReport:
        """The cause with what its remedies recover."""
        if self.gain_db is None:
            return cause
        remedies, harmful = self._sort_remedies(cause)
        changes = {"remedies": remedies, "withheld": (*cause.withheld, *harmful)}
        return cause.model_copy(update={**self._predicted_gains(), **self._measured_gains(remedies), **changes})

    def _predicted_gains(self) -> dict[str, float | bool | None]:
        alone = self.alone
        if alone is None:
            return {}
        return {
            "predicted_gain_db": alone.gain_db,
            "predicted_low_db": alone.low_db,
            "predicted_high_db": alone.high_db,
            "predicted_last_gain_db": self.last.gain_db if self.last is not None else None,
            "share_of_loss": alone.share,
        }

    def _measured_gains(self, remedies: Sequence[Advice]) -> dict[str, float | bool | None]:
        """What the first remedy recovers where nothing is proven: its text may give less than the chosen edit."""
        trial = self.shown
        if trial is not None and not trial.proven and remedies and remedies[0].measured is not None:
            trial = remedies[0].measured
        if trial is None or trial.failed is not None or trial.bound:
            return {}
        return {**gains_of(trial), "proven": self.proven}

    def _sort_remedies(self, cause: CauseReport) -> tuple[tuple[Advice, ...], tuple[Withheld, ...]]:
        """Remedies with what they recover, the chosen one first; one that makes the output noisier is held back."""
        kept: list[Advice] = []
        held: list[Withheld] = []
        for advice in cause.remedies:
            known, trial = self.of(advice.simulate).simulated, self._trial_of(cause, advice)
            tried = trial is not None and trial.gain_db is not None
            gain = trial.gain_db if trial is not None and tried else known.gain_db if known is not None else None
            if self.of(advice.simulate).leaves_none:
                because = "no weights would stay quantized: what comes out is about the float model"
                held.append(Withheld(id=advice.id, title=advice.title, because=because, layers=advice.layers))
            elif gain is None or not is_harmful(gain, self.base):
                predicted = known.recovery(advice.simulate) if known is not None else None
                measured = trial if advice.simulate not in BOUNDS else None  # The remedy itself was not tried.
                kept.append(advice.model_copy(update={"predicted": predicted, "measured": measured}))
            else:
                because = f"{'tried' if tried else 'simulated'}, it makes the output {-gain:.1f} dB noisier"
                held.append(Withheld(id=advice.id, title=advice.title, because=because, layers=advice.layers))
        return tuple(sorted(kept, key=self.is_chosen, reverse=True)), tuple(held)

    def _trial_of(self, cause: CauseReport, advice: Advice) -> TrialRecord | None:
        """The trial that speaks for a remedy; where it proves nothing, what the printed text gave counts more.

        So it does where that recovered nothing, or made the output noisier.
        """
        executed = self.executed.get(f"{cause.cause}:{advice.id}", self.executed.get(advice.simulate or ""))
        if executed is not None and (is_harmful(executed.gain_db, self.base) or self._is_vain(executed)):
            return executed
        of_chosen = self.shown if self.repair is not None and advice.simulate == self.repair.kind else None
        trial = of_chosen or self.of(advice.simulate).trial
        return trial if trial is None or trial.proven else executed or trial


def remedy_outcomes(
    suspects: Sequence[Suspect], simulated: Simulated, proof: ProofRecord | None, facts: CaseFacts
) -> dict[str, RemedyOutcomes]:
    """The outcome of each suspect, by its cause.

    Args:
        suspects: Suspected causes.
        simulated: Simulated runs, where these are faithful.
        proof: Trials on copies of the model.
        facts: The measured facts.
    """
    weighted = {k for k, layer in enumerate(facts.layers) if layer.weight.quantizer.bits is not None}
    activations = sum(t.quantizer.bits is not None for t in facts.tensors)
    quantizers = activations + len(weighted)
    every, lead = simulated.chosen_repairs(suspects), simulated.lead(suspects, facts)
    # Noise of operators that compute something else stays, whatever is quantized otherwise.
    stays = min(facts.model.departures_share or 0.0, 1.0)
    runs = proof.executions if proof is not None else ()
    single = (run for run in runs if len(run.choices) == 1 and run.trial.failed is None and not run.is_of_data)
    executed = {run.choices[0]: run.trial for run in single}

    def outcome_of(repair: Repair) -> RemedyOutcome:
        known = simulated.predict(repair.key)
        # Finer steps for all activations show nothing of single places, whatever the weights are.
        is_everywhere = len(repair.change.grids) >= activations > 1
        altered = quantizers if is_everywhere else len(repair.change.grids) + len(repair.change.weights)
        in_float = {k for k, form in repair.change.weights.items() if form == "float"}
        return RemedyOutcome(
            known.beside(stays) if known is not None else None,
            proof.trial(repair.key) if proof is not None else None,
            min(altered / max(quantizers, 1), 1.0),
            len(weighted) > 1 and weighted <= in_float,
        )

    outcomes = {}
    for suspect in suspects:
        repair = simulated.choose_repair(suspect, proof)
        last = simulated.last_gain(repair, every, lead) if repair is not None else None
        outcomes[suspect.cause] = RemedyOutcomes(
            simulated.base,
            {each.kind: outcome_of(each) for each in suspect.repairs},
            repair,
            last.beside(stays) if last is not None else None,
            proof.last_addition(repair.key) if repair is not None and proof is not None else None,
            _executed_for(suspect, executed),
            _most_of_data(suspect, simulated.base),
            lead is not None and suspect.cause != lead.suspect.cause,
        )
    return outcomes


def _most_of_data(suspect: Suspect, base: RuleBase) -> float:
    """Where ranges that suit one set of data only make little of the noise, data that differ recover no more than that.

    No limit where not all findings are about such data.
    """
    shown = [e.value for found in suspect.findings for e in found.evidence if e.fact == _MISFIT]
    shares = [share for share in shown if isinstance(share, float)]
    is_known = len(shares) >= len(suspect.findings) > 0
    return gain_without_share(max(shares)) if is_known and max(shares) <= base.threshold("carried_share") else math.inf


def gains_of(trial: TrialRecord) -> dict[str, float | bool | None]:
    """What a cause says of the trial that speaks for its repair."""
    return {
        "measured_gain_db": trial.gain_db,
        "measured_low_db": trial.low_db,
        "measured_high_db": trial.high_db,
        "measured_gain_metric": trial.metric.gain if trial.metric is not None else None,
        "share_of_loss": trial.share,
    }


def _executed_for(suspect: Suspect, executed: Mapping[str, TrialRecord]) -> dict[str, TrialRecord]:
    """Of prescriptions of one remedy those of a suspect: by its name and the remedy's, or by the kind of its repair."""
    named = {key: trial for key, trial in executed.items() if key.startswith(f"{suspect.cause}:")}
    tried = ((repair.kind, executed.get(f"{TRIED}:{repair.key}")) for repair in suspect.repairs)
    return named | {kind: trial for kind, trial in tried if trial is not None}


def is_harmful(gain_db: float | None, base: RuleBase) -> bool:
    """What was tried makes the output noisier; where nothing is known of it, it does not."""
    return gain_db is not None and gain_db < -base.threshold("negligible_gain_db")
