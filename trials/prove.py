"""Proof: which remedies are tried, in which order, until the loss is explained or the time is spent.

The causes are tried in the order of the diagnosis, each alone; then, on top of the best one, what the others still add.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quantmedic.collectors.data.progress import Progress, no_progress
from quantmedic.collectors.measure.models import Edited
from quantmedic.engine.case.proof import ProofRecord, Stopped, TrialRecord
from quantmedic.engine.diagnosis.input_repair import input_repair
from quantmedic.engine.diagnosis.inspection import Inspection
from quantmedic.engine.diagnosis.prediction import ENOUGH_DB
from quantmedic.engine.diagnosis.repair_runs import PREFERENCE_DB, first_about_best
from quantmedic.engine.diagnosis.suspects import Repair, Suspect, general_repairs
from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.rules.remedy_kinds import BOUNDS, HALVES, kinds_everywhere
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.trials.allowance import Allowance
from quantmedic.trials.bench import OutOfTimeError
from quantmedic.trials.prescriptions import Executed
from quantmedic.trials.tasks import OpenElsewhere
from quantmedic.trials.trial import Trials, leaves_nothing
from quantmedic.trials.workbench import Subject


@dataclass(frozen=True)
class Proven:
    """What was tried, and what makes the quantized model with all proven remedies, if there are any."""

    record: ProofRecord
    fix: Callable[[], Edited] | None


#: Runs printed prescriptions with what is left of the budget, once the edits have shown what heals.
Execute = Callable[[Trials, ProofRecord], Executed]
#: Share of the budget that is kept for that.
FOR_EXECUTION = 0.5


def prove(
    subject: Subject,
    opened: Inspection,
    suspects: Sequence[Suspect],
    *,
    allowance: Allowance,
    progress: Progress = no_progress,
    execute: Execute | None = None,
    first: bool = False,
    pair: Sequence[Repair] = (),
    everywhere: Sequence[str] = (),
    elsewhere: OpenElsewhere | None = None,
) -> Proven:
    """Try the remedies of the suspects on copies, then run the prescriptions that follow from it.

    Ctrl-C ends the trials; what was measured until then is returned.

    Args:
        subject: Both models and their data; neither model is changed.
        opened: What was measured of them, under the rules in force, whose thresholds decide when a loss is explained.
        suspects: Suspected causes, the likeliest first.
        allowance: What all trials may take, the preparation included.
        progress: Called with ``trials``, the seconds spent and those that may be.
        execute: Runs prescriptions; None: none can be run.
        first: Only the remedies of the cause that leads are tried, and the first prescription is run.
        pair: Two repairs that a simulation shows to be needed together, the better one first.
        everywhere: Kinds of repairs that heal most of the noise in a simulation, of which no cause is known.
        elsewhere: Opens other machines, which carry the trials out.

    Raises:
        QuantmedicError: The models cannot be run on these data, or a machine elsewhere cannot work.
    """
    trials = Trials(subject, opened, allowance, progress, elsewhere)
    trials.keep_back(FOR_EXECUTION if execute is not None else 0.0)
    try:
        search = _Search(trials, opened.base)
        stopped = search.run_first(suspects, pair, everywhere) if first else search.run(suspects, pair)
    except OutOfTimeError:
        stopped = "budget"
    except KeyboardInterrupt:
        stopped = "interrupted"
    trials.expect(())
    record = trials.record(stopped)
    if execute is None or stopped == "interrupted":
        return Proven(record, trials.edit_chain if trials.chain else None)
    trials.keep_back(0.0)
    executed = execute(trials, record)
    changes = {
        "executions": executed.records,
        "best": executed.best,
        "baseline": executed.baseline,
        "unexecuted": executed.reason,
    }
    record = trials.record(stopped).model_copy(update=changes)
    return Proven(record, executed.make or (trials.edit_chain if trials.chain else None))


class _Search:
    """The order of the trials."""

    def __init__(self, trials: Trials, base: RuleBase) -> None:
        self._trials, self._base = trials, base

    def run(self, suspects: Sequence[Suspect], pair: Sequence[Repair] = ()) -> Stopped:
        """All trials; where no cause explains the loss, a pair is tried before what is general.

        Raises:
            OutOfTimeError: The budget has come to its end.
        """
        trials = self._trials
        halves = general_repairs(HALVES, trials.case, trials.facts)
        general = trials.general(kinds_everywhere("early"))
        trials.expect((repair, ()) for repair in [*halves, *_repairs_of(suspects), *general])
        for half in halves:
            trials.alone(half)
        best = self._best_of_causes(suspects)
        if not any(self._explains(trials.alone(repair)) for repair in best):
            if self._try_pair(pair):
                return "explained"
            trials.chain.clear()
            best += self._proven(general)
        trials.chain += sorted(best, key=self._standing, reverse=True)[:1]
        added = [*pair, *best, *_repairs_of(suspects), *general]
        for place, repair in enumerate(added):
            if self._is_explained():
                return "explained"
            chain = tuple(trials.chain)
            trials.expect((next_one, chain) for next_one in added[place:] if not self._holds(next_one))
            self._put_on_top(repair)
        late = trials.general(kinds_everywhere("late"))
        bounds = [r for suspect in suspects for r in suspect.repairs if r.kind in BOUNDS]
        trials.expect((repair, ()) for repair in [*late, *bounds])
        if not self._is_explained():
            self._put_instead(trials.fewest_in_float())
        for repair in late:
            if not self._is_explained():
                self._put_instead(repair)
        for bound in bounds:
            trials.alone(bound)
        return "explained" if self._is_explained() else "tried-all"

    def run_first(self, suspects: Sequence[Suspect], pair: Sequence[Repair], everywhere: Sequence[str]) -> Stopped:
        """The remedies of the cause that leads, and the pair that leads where none of these explains the loss.

        Where all of that is in vain, what heals in a simulation without a cause is next.

        Raises:
            OutOfTimeError: The budget has come to its end.
        """
        general = self._trials.general(everywhere)
        alone = [(repair, ()) for repair in [*_repairs_of(suspects[:1]), *pair[:1]]]
        self._trials.expect([*alone, *[(repair, pair[:1]) for repair in pair[1:]], *[(r, ()) for r in general]])
        best = next((found for suspect in suspects[:1] if (found := self._best_of(suspect)) is not None), None)
        self._trials.chain += [best] if best is not None else []
        if self._is_explained() or self._try_pair(pair):
            return "explained"
        if not self._trials.chain:
            self._trials.chain += self._proven(general)[:1]
        return "explained" if self._is_explained() else "first"

    def _best_of_causes(self, suspects: Sequence[Suspect]) -> list[Repair]:
        """The best proven remedy of each cause, until one explains the whole loss."""
        best = []
        for suspect in suspects:
            repair = self._best_of(suspect)
            if repair is None:
                continue
            best.append(repair)
            self._try_repaired_data(suspect)
            if self._explains(self._trials.alone(repair)):
                break
        return best

    def _best_of(self, suspect: Suspect) -> Repair | None:
        """The first proven remedy that recovers about as much as the best one of a cause.

        One that brings back more of the task metric, beyond chance, comes before it: noise does not tell that.
        """
        proven = self._proven(_repairs_of([suspect]))
        gains = [(min(self._trials.alone(r).gain_db or 0.0, ENOUGH_DB), r) for r in proven]
        first = first_about_best(gains)
        most = max((gain for gain, _ in gains), default=0.0) - PREFERENCE_DB
        return self._better_by_metric(first, [r for gain, r in gains if gain >= most]) if first is not None else None

    def _better_by_metric(self, first: Repair, others: Sequence[Repair]) -> Repair:
        """Of remedies that recover about as much noise, one whose whole interval of the metric lies above the first."""
        found = self._trials.alone(first).metric
        if found is None:
            return first
        measured = [(metric.low, r) for r in others if (metric := self._trials.alone(r).metric) is not None]
        low, best = max(measured, key=lambda own: own[0])
        return best if low > found.gain else first

    def _proven(self, repairs: Sequence[Repair]) -> list[Repair]:
        """Those that are proven by themselves, until one explains the whole loss."""
        found = []
        for repair in repairs:
            trial = self._trials.alone(repair)
            if trial.proven:
                found.append(repair)
            if self._explains(trial):
                break
        return found

    def _try_pair(self, pair: Sequence[Repair]) -> bool:
        """Put the second of a pair on top of the first, instead of a chain that reaches less; whether that heals."""
        trials, before = self._trials, list(self._trials.chain)
        reached = trials.chain_share()
        trials.chain.clear()
        for repair in pair:
            self._put_on_top(repair)
        if trials.chain_share() <= reached:
            trials.chain[:] = before
        return self._is_explained()

    def _try_repaired_data(self, suspect: Suspect) -> None:
        """The proof of a mistake in the representative inputs: the same inputs without it."""
        trials = self._trials
        data = input_repair(suspect.cause, {dataset.role: dataset for dataset in trials.facts.datasets})
        if data is None:
            return
        try:
            repair = trials.calibrate_on(suspect.cause, data)
        except QuantmedicError:
            return
        trials.alone(repair)

    def _standing(self, repair: Repair) -> float:
        """What a proven repair is worth by itself; gains of about the same size leave the order of the causes."""
        return round(min(self._trials.alone(repair).gain_db or 0.0, ENOUGH_DB) / PREFERENCE_DB)

    def _put_on_top(self, repair: Repair) -> None:
        """The repair joins the chain where it adds something to what is not in the chain already."""
        if self._holds(repair):
            return
        trial = self._trials.on_top(repair)
        if trial.proven and (trial.gain_db or 0.0) >= self._base.threshold("negligible_gain_db"):
            self._trials.chain.append(repair)

    def _holds(self, repair: Repair) -> bool:
        """The chain does the same already."""
        return any(link.kind == repair.kind and link.change == repair.change for link in self._trials.chain)

    def _put_instead(self, repair: Repair | None) -> None:
        """An expensive repair replaces the whole chain where it is clearly better."""
        if repair is None:
            return
        trials = self._trials
        trial, last = trials.alone(repair), trials.last()
        reached = last.sqnr_after if last is not None else None
        if trial.proven and (reached is None or (trial.sqnr_after or 0.0) > reached + PREFERENCE_DB):
            trials.chain[:] = [repair]

    def _is_explained(self) -> bool:
        last = self._trials.last()
        return last is not None and leaves_nothing(last, self._trials.chain_share(), self._base)

    def _explains(self, trial: TrialRecord) -> bool:
        return trial.proven and leaves_nothing(trial, trial.share or 0.0, self._base)


def _repairs_of(suspects: Sequence[Suspect]) -> list[Repair]:
    """All that may prove something."""
    return [repair for suspect in suspects for repair in suspect.repairs if repair.kind not in BOUNDS]
