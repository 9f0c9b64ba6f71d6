"""What the remedies of each suspected cause recover: simulated, and measured where they were carried out."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.case.proof import ProofRecord, TrialRecord
from quantmedic.engine.case.records import SimulationRecord
from quantmedic.engine.contract.advised_remedies import Advice, Withheld
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.diagnosis.prediction import Prediction, beside, is_faithful, predict
from quantmedic.engine.diagnosis.suspects import Repair, Suspect, chosen_repairs, last_gain
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.rules.remedy_kinds import BOUNDS
from quantmedic.engine.rules.rulebase import RuleBase


class RemedyOutcomes(NamedTuple):
    """Simulated and measured results of a suspect's remedies by kind, and which repair was chosen for it.

    ``last`` is what that recovers simulated after the other causes' repairs, ``added`` measured on a copy on top of
    proven ones. ``reach`` is the share of the network's quantizers that a kind of remedy alters. ``executed`` holds
    what prescriptions of a single remedy gave, by cause and remedy.
    """

    remedies: Mapping[str, Prediction]
    trials: Mapping[str, TrialRecord]
    repair: Repair | None = None
    last: Prediction | None = None
    added: TrialRecord | None = None
    reach: Mapping[str, float] = {}
    executed: Mapping[str, TrialRecord] = {}

    def beside(self, stays: float) -> "RemedyOutcomes":
        """The outcomes where operators that compute something else make this share of the noise: that stays."""
        if stays <= 0:
            return self
        return self._replace(
            remedies={kind: beside(known, stays) for kind, known in self.remedies.items()},
            last=beside(self.last, stays) if self.last is not None else None,
        )

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
    def _gains(self) -> list[float]:
        """Measured, else simulated: first and last."""
        pairs = ((self.trial, self.alone), (self.added, self.last))
        best = [measured if measured is not None else simulated for measured, simulated in pairs]
        return [found.gain_db for found in best if found is not None and found.gain_db is not None]


def remedy_outcomes(
    suspects: Sequence[Suspect],
    simulation: SimulationRecord | None,
    proof: ProofRecord | None,
    base: RuleBase,
    facts: CaseFacts,
) -> dict[str, RemedyOutcomes]:
    """The outcome of each suspect, by its cause.

    Args:
        suspects: Suspected causes.
        simulation: Simulated runs; not used where the simulated network is not about as noisy as the deployed one.
        proof: Trials on copies of the model.
        base: Holds the thresholds.
        facts: The measured facts.
    """
    quantizers = sum(t.quantizer.bits is not None for t in facts.tensors)
    quantizers += sum(layer.weight.quantizer.bits is not None for layer in facts.layers)
    if simulation is not None and not is_faithful(simulation):
        simulation = None
    every = chosen_repairs(suspects, simulation) if simulation is not None else []
    stays = min(facts.model.departures_share or 0.0, 1.0)
    runs = proof.executions if proof is not None else ()
    executed = {run.choices[0]: run.trial for run in runs if len(run.choices) == 1 and run.trial.failed is None}
    found = ((s, _outcomes_of(s, every, simulation, proof, base).beside(stays)) for s in suspects)
    return {s.cause: own._replace(reach=_reach_of(s, quantizers), executed=executed) for s, own in found}


def _reach_of(suspect: Suspect, quantizers: int) -> dict[str, float]:
    altered = {r.kind: len(r.change.grids) + len(r.change.weights) for r in suspect.repairs}
    return {kind: min(size / max(quantizers, 1), 1.0) for kind, size in altered.items()}


def _outcomes_of(
    suspect: Suspect,
    every: Sequence[Repair],
    simulation: SimulationRecord | None,
    proof: ProofRecord | None,
    base: RuleBase,
) -> RemedyOutcomes:
    remedies = {r.kind: p for r in suspect.repairs if (p := predict(simulation, r.key)) is not None}
    trials = {r.kind: t for r in suspect.repairs if proof is not None and (t := proof.trial(r.key)) is not None}
    repair = suspect.choose_repair(simulation, proof)
    return RemedyOutcomes(
        remedies,
        trials,
        repair,
        last=last_gain(repair, every, simulation, base) if repair and simulation is not None else None,
        added=proof.last_addition(repair.key) if repair and proof is not None else None,
    )


def with_recoveries(cause: CauseReport, outcome: RemedyOutcomes, base: RuleBase) -> CauseReport:
    """A cause with what its remedies recover."""
    if outcome.gain_db is None:
        return cause
    remedies, harmful = _sort_remedies(cause, outcome, base)
    return cause.model_copy(
        update={
            **_predicted_gains(outcome),
            **_measured_gains(outcome, remedies),
            "remedies": remedies,
            "withheld": (*cause.withheld, *harmful),
        }
    )


def _predicted_gains(outcome: RemedyOutcomes) -> dict[str, float | bool | None]:
    alone = outcome.alone
    if alone is None:
        return {}
    return {
        "predicted_gain_db": alone.gain_db,
        "predicted_low_db": alone.low_db,
        "predicted_high_db": alone.high_db,
        "predicted_last_gain_db": outcome.last.gain_db if outcome.last is not None else None,
        "share_of_loss": alone.share,
    }


def _measured_gains(outcome: RemedyOutcomes, remedies: Sequence[Advice]) -> dict[str, float | bool | None]:
    """What the first remedy recovers where nothing is proven: its text may give less than the edit that was chosen."""
    trial = outcome.shown
    if trial is not None and not trial.proven and remedies and remedies[0].measured is not None:
        trial = remedies[0].measured
    if trial is None or trial.failed is not None or trial.bound:
        return {}
    return {**gains_of(trial), "proven": outcome.proven}


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


def _sort_remedies(
    cause: CauseReport, outcome: RemedyOutcomes, base: RuleBase
) -> tuple[tuple[Advice, ...], tuple[Withheld, ...]]:
    """Remedies with what they recover, the chosen one first; one that makes the output noisier is held back."""
    kept: list[Advice] = []
    held: list[Withheld] = []
    for advice in cause.remedies:
        known, trial = outcome.remedies.get(advice.simulate or ""), _trial_of(cause, advice, outcome)
        tried = trial is not None and trial.gain_db is not None
        gain = trial.gain_db if trial is not None and tried else known.gain_db if known is not None else None
        if gain is None or gain >= -base.threshold("negligible_gain_db"):
            predicted = known.recovery(advice.simulate) if known is not None else None
            measured = trial if advice.simulate not in BOUNDS else None  # The remedy itself was not tried.
            kept.append(advice.model_copy(update={"predicted": predicted, "measured": measured}))
        else:
            because = f"{'tried' if tried else 'simulated'}, it makes the output {-gain:.1f} dB noisier"
            held.append(Withheld(id=advice.id, title=advice.title, because=because, layers=advice.layers))
    return tuple(sorted(kept, key=outcome.is_chosen, reverse=True)), tuple(held)


def _trial_of(cause: CauseReport, advice: Advice, outcome: RemedyOutcomes) -> TrialRecord | None:
    """The trial that speaks for a remedy; where it proves nothing, what the printed text gave counts more."""
    of_chosen = outcome.shown if outcome.repair is not None and advice.simulate == outcome.repair.kind else None
    trial = of_chosen or outcome.trials.get(advice.simulate or "")
    return trial if trial is None or trial.proven else _as_printed(cause, advice, outcome) or trial


def _as_printed(cause: CauseReport, advice: Advice, outcome: RemedyOutcomes) -> TrialRecord | None:
    """What its printed text gave; None where it was not run, or not with the data that it is for."""
    if any(snippet.reads == "application" for snippet in advice.snippets):
        return None
    return outcome.executed.get(f"{cause.cause}:{advice.id}")
