"""What the remedies of each suspected cause recover: simulated, and measured where they were carried out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quantmedic.engine.case.facts import CaseFacts
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

#: Kinds whose gain says that few places make most of the noise only where it exceeds what even noise would give.
_WIDER = (*MORE_BITS, *AT_MOST)


@dataclass(frozen=True)
class RemedyOutcomes:
    """Simulated and measured results of a suspect's remedies by kind, and which repair was chosen for it.

    Attributes:
        base: Holds the thresholds.
        remedies: What each kind recovers by a simulated run.
        trials: The same by a trial on a copy.
        repair: The one that was chosen.
        last: What that recovers simulated after the other causes' repairs.
        added: What it recovered on a copy on top of proven ones.
        reach: Share of the network's quantizers that a kind of remedy alters.
        executed: What prescriptions of a single remedy gave, by cause and remedy.
    """

    base: RuleBase
    remedies: Mapping[str, Prediction] = field(default_factory=dict)
    trials: Mapping[str, TrialRecord] = field(default_factory=dict)
    repair: Repair | None = None
    last: Prediction | None = None
    added: TrialRecord | None = None
    reach: Mapping[str, float] = field(default_factory=dict)
    executed: Mapping[str, TrialRecord] = field(default_factory=dict)

    @property
    def alone(self) -> Prediction | None:
        """What the chosen repair recovers simulated, on the model as it is."""
        return self.remedies.get(self.repair.kind) if self.repair is not None else None

    @property
    def trial(self) -> TrialRecord | None:
        """The same measured on a copy."""
        return self.trials.get(self.repair.kind) if self.repair is not None else None

    @property
    def change(self) -> Change | None:
        """What the repair changes."""
        learned = self.repair is not None and self.repair.change.learned
        return self.repair.change if self.repair is not None and not learned else None

    @property
    def proven(self) -> bool | None:
        """Whether a gain was proven; None where nothing was measured, or the most that could be gained alone was."""
        found = [trial.proven for trial in (self.trial, self.added) if trial is not None and not trial.bound]
        return any(found) if found else None

    @property
    def shown(self) -> TrialRecord | None:
        """The trial that speaks for the repair: by itself, or on top of others where only that one is proven."""
        if self.added is not None and self.added.proven and not (self.trial is not None and self.trial.proven):
            return self.added
        return self.trial

    def is_chosen(self, advice: Advice) -> bool:
        """The advice is of the kind of the chosen repair."""
        known = advice.simulate in self.remedies or advice.simulate in self.trials
        return self.repair is not None and known and advice.simulate == self.repair.kind

    @property
    def mean_gain_db(self) -> float | None:
        """The mean of what the repair recovers first and last: what it is worth whatever else is repaired."""
        return sum(self._gains) / len(self._gains) if self._gains else None

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
    def _gains(self) -> list[float]:
        """Measured, else simulated: first and last."""
        pairs = ((self.trial, self.alone), (self.added, self.last))
        best = [measured if measured is not None else simulated for measured, simulated in pairs]
        return [found.gain_db for found in best if found is not None and found.gain_db is not None]

    @property
    def recoverable_db(self) -> float | None:
        """The most that a repair recovers: proven, else simulated with its whole interval and not refuted by a trial.

        More bits, or taking quantizers away, helps any network: of noise that is divided evenly, changing a share s of
        the quantizers takes away 10·log10(1 / (1 - s)) dB. Such a change counts only where what it recovers beyond that
        is worth a word: then few places make most of the noise. What other repairs leave to the chosen one counts too:
        of layers that all make noise, no single one recovers much.
        """
        proven = {kind: t.gain_db for kind, t in self.trials.items() if t.proven and t.gain_db is not None}
        simulated = {
            kind: min(found.gain_db, _upper_end(self.trials.get(kind)))
            for kind, found in self.remedies.items()
            if found.low_db > 0 and kind not in proven
        }
        repairs = [g for kind, g in proven.items() if kind not in MORE_BITS or self._is_of_few_places(kind, g)]
        repairs += [g for kind, g in simulated.items() if kind not in _WIDER or self._is_of_few_places(kind, g)]
        last, chosen = self.last, self.repair.kind if self.repair is not None else None
        if last is not None and last.low_db > 0 and self.added is None and chosen not in _WIDER:
            repairs.append(last.gain_db)
        return max(repairs, default=None)

    @property
    def is_recoverable(self) -> bool:
        """A repair recovers enough to be worth a word, although no loss is proven."""
        gain = self.recoverable_db
        return gain is not None and gain >= self.base.threshold("assumed_harm_gain_db")

    def _is_of_few_places(self, kind: str, gain_db: float) -> bool:
        """Beyond what so many quantizers make of evenly divided noise, it recovers enough to be worth a word."""
        left = 1.0 - self.reach.get(kind, 1.0)
        return left > 0 and gain_db + to_decibels(left) >= self.base.threshold("assumed_harm_gain_db")

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
            known, trial = self.remedies.get(advice.simulate or ""), self._trial_of(cause, advice)
            tried = trial is not None and trial.gain_db is not None
            gain = trial.gain_db if trial is not None and tried else known.gain_db if known is not None else None
            if gain is None or gain >= -self.base.threshold("negligible_gain_db"):
                predicted = known.recovery(advice.simulate) if known is not None else None
                measured = trial if advice.simulate not in BOUNDS else None  # The remedy itself was not tried.
                kept.append(advice.model_copy(update={"predicted": predicted, "measured": measured}))
            else:
                because = f"{'tried' if tried else 'simulated'}, it makes the output {-gain:.1f} dB noisier"
                held.append(Withheld(id=advice.id, title=advice.title, because=because, layers=advice.layers))
        return tuple(sorted(kept, key=self.is_chosen, reverse=True)), tuple(held)

    def _trial_of(self, cause: CauseReport, advice: Advice) -> TrialRecord | None:
        """The trial that speaks for a remedy; where it proves nothing, what the printed text gave counts more.

        That is not known where the text is for other data than those that it was run with.
        """
        of_chosen = self.shown if self.repair is not None and advice.simulate == self.repair.kind else None
        trial = of_chosen or self.trials.get(advice.simulate or "")
        if trial is None or trial.proven or any(snippet.reads == "application" for snippet in advice.snippets):
            return trial
        return self.executed.get(f"{cause.cause}:{advice.id}", trial)


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
    quantizers = sum(t.quantizer.bits is not None for t in facts.tensors)
    quantizers += sum(layer.weight.quantizer.bits is not None for layer in facts.layers)
    every = simulated.chosen_repairs(suspects)
    # Noise of operators that compute something else stays, whatever is quantized otherwise.
    stays = min(facts.model.departures_share or 0.0, 1.0)
    runs = proof.executions if proof is not None else ()
    executed = {run.choices[0]: run.trial for run in runs if len(run.choices) == 1 and run.trial.failed is None}
    outcomes = {}
    for suspect in suspects:
        repairs, repair = suspect.repairs, simulated.choose_repair(suspect, proof)
        altered = {r.kind: len(r.change.grids) + len(r.change.weights) for r in repairs}
        found = {r.kind: p for r in repairs if (p := simulated.predict(r.key)) is not None}
        last = simulated.last_gain(repair, every) if repair is not None else None
        outcomes[suspect.cause] = RemedyOutcomes(
            simulated.base,
            {kind: each.beside(stays) for kind, each in found.items()} if stays > 0 else found,
            {r.kind: t for r in repairs if proof is not None and (t := proof.trial(r.key)) is not None},
            repair,
            last.beside(stays) if last is not None and stays > 0 else last,
            proof.last_addition(repair.key) if repair is not None and proof is not None else None,
            {kind: min(size / max(quantizers, 1), 1.0) for kind, size in altered.items()},
            executed,
        )
    return outcomes


def _upper_end(trial: TrialRecord | None) -> float:
    """The most that a trial leaves open; inf where there is none."""
    return trial.high_db if trial is not None and trial.high_db is not None else math.inf


def gains_of(trial: TrialRecord) -> dict[str, float | bool | None]:
    """What a cause says of the trial that speaks for its repair."""
    return {
        "measured_gain_db": trial.gain_db,
        "measured_low_db": trial.low_db,
        "measured_high_db": trial.high_db,
        "measured_gain_metric": trial.metric.gain if trial.metric is not None else None,
        "share_of_loss": trial.share,
    }


def is_grave(gain_db: float, base: RuleBase) -> bool:
    """A repair that recovers so much at the output is one of a grave cause."""
    return bool(1.0 - 10.0 ** (-gain_db / 10.0) > base.threshold("grave_share"))
