"""Prescriptions are run as they are printed, the likeliest first, until one heals or the time is spent."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

from quantmedic.collectors.measure.models import Edited
from quantmedic.engine.case.proof import FLOAT_SET, PRESCRIPTION, ExecutionRecord, TrialRecord
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.candidates import Candidates, Choice, Part, is_known_useless, reads_anew
from quantmedic.engine.diagnosis.prescription import code_of, write_prescription
from quantmedic.engine.diagnosis.repair_runs import PREFERENCE_DB, Simulated
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.rules.toolchain import Toolchain
from quantmedic.engine.rules.toolchain_options import CHANGED, without_comments
from quantmedic.trials.bench import OutOfTimeError
from quantmedic.trials.execute import Executor
from quantmedic.trials.judgement import Judgement
from quantmedic.trials.split import Pool, samples_of
from quantmedic.trials.tasks import Outcome, TextTask
from quantmedic.trials.trial import Trials, leaves_nothing

#: Seconds that a toolchain takes to start, and its time per sample against one run of both networks, about.
START, PER_SAMPLE = 2.0, 3.0
#: Remedies of one prescription at most.
MAX_STEPS = 3


@dataclass(frozen=True)
class Executed:
    """What became of the prescriptions.

    Attributes:
        records: Those that were run, in order.
        best: Place of the one to prescribe; None: none is proven.
        baseline: Place of the one that changed nothing; None: it was not run.
        reason: Why none, or no further one, was run; None: one heals, or nothing was left to run.
        make: Makes the model of the best one here: another machine may have measured it, and models do not travel.
    """

    records: tuple[ExecutionRecord, ...] = ()
    best: int | None = None
    baseline: int | None = None
    reason: str | None = None
    make: Callable[[], Edited] | None = None


@dataclass(frozen=True)
class Workshop:
    """Everything that is needed to run prescriptions.

    Attributes:
        base: Rules in force.
        trusted: The built-in rules: code of others is not run.
        toolchain: Whose prescriptions are run.
        executor: Runs them.
    """

    base: RuleBase
    trusted: RuleBase
    toolchain: Toolchain
    executor: Executor

    def execute(self, trials: Trials, diagnosis: Diagnosis, most: int | None = None) -> Executed:
        """Run prescriptions of a diagnosis that holds what the edits proved, ``most`` of them; Ctrl-C ends them."""
        search = _Executions(self, trials, diagnosis)
        reason: str | None
        try:
            reason = search.run_leading(most) if most is not None else search.run()
            search.run_hidden()
            if most is None or search.recovers():
                search.run_baseline()
            with suppress(OutOfTimeError):
                search.judge_on_all()
        except OutOfTimeError:
            reason = "what may be tried was spent; --budget gives more time"
        except KeyboardInterrupt:
            reason = "it was interrupted"
        return search.result(reason)


class _Run(NamedTuple):
    """A prescription that was run.

    Attributes:
        choices: What it prescribes.
        record: What came of it.
        task: What made the model; of one per fold the first.
        judgement: On what the model was measured.
    """

    choices: tuple[Choice, ...]
    record: ExecutionRecord
    task: TextTask
    judgement: Judgement

    @property
    def trial(self) -> TrialRecord:
        return self.record.trial


class _Executions:
    """The prescriptions that were run so far."""

    def __init__(self, workshop: Workshop, trials: Trials, diagnosis: Diagnosis) -> None:
        self._workshop, self._trials, self._diagnosis = workshop, trials, diagnosis
        self._candidates = Candidates(diagnosis, workshop.base, workshop.toolchain)
        self._runs: list[_Run] = []
        self._baseline_at: int | None = None
        self._longest, self._untrusted = 0.0, False
        self._expected: Iterable[tuple[Choice, ...]] = ()
        self._codes: dict[tuple[str, ...], str | None] = {}

    def run(self) -> str | None:
        """All of them; gives why it ended early."""
        leading, general = list(self._candidates.leading()), list(self._candidates.general())
        self._expected = [*self._baseline_choices, *leading, *general]
        if self._heals(self.run_baseline(others=1)):
            return None
        for choices in leading:
            if self._heals(self._execute(choices)):
                return None
        if self._heals(self._execute_fewest_in_float()):
            return None
        for choices in general:
            if self._heals(self._execute(choices)):
                return None
        best = self._best()
        while best is not None and len(best.choices) < MAX_STEPS:
            added = self._add_to(best)
            if added is None or self._heals(added):
                break
            best = self._best()
        if not self._runs and self._untrusted:
            return "its code comes from rules of your own, which is not run"
        return None if self._runs else "the toolchain has no option for any remedy"

    def run_leading(self, most: int) -> str | None:
        """Those that lead, at most so many beside the baseline; none that is known to recover nothing.

        A toolchain takes long to quantize a large network, even to no effect.
        """
        workshop = self._workshop
        may_gain = Simulated.faithful(self._trials.case.record.simulation, workshop.base).may_gain_anew
        leading = [
            choices
            for choices in self._candidates.leading()
            if not all(is_known_useless(choice, workshop.base) for choice in choices)
        ]
        again = self._baseline_choices
        self._expected = [*again, *leading[:most]] if may_gain else [*leading[:most], *again]
        if may_gain and self._heals(self.run_baseline(others=1)):
            return None
        most += len(self._runs)
        for choices in leading:
            if self._heals(self._execute(choices)):
                return None
            if len(self._runs) == most:
                break
        return "only what leads was run; --prove goes on"

    def run_hidden(self) -> None:
        """On top of what heals, once, what heals a fault that the noise of the first one hides."""
        best = self._best()
        joint = [(*best.choices, choice) for choice in self._candidates.hidden()] if best is not None else []
        runnable = next((choices for choices in joint if self._text_to_run(choices) is not None), None)
        if runnable is not None:
            self._execute(runnable)

    def recovers(self) -> bool:
        """Something that was run recovers something for sure."""
        return any(run.trial.proven for run in self._runs)

    def run_baseline(self, others: int = 0) -> TrialRecord | None:
        """Quantize again with nothing changed, once: what that recovers is no merit of a remedy.

        None where there is no text for it, or no time for it and so many others.
        """
        seconds = (1 + others) * max(self._longest, self._expected_seconds())
        choices = next(iter(self._baseline_choices), None)
        if self._baseline_at is not None or choices is None or not self._trials.have_left(seconds):
            return None
        trial = self._execute(choices)
        if trial is not None and trial.failed is None:
            self._baseline_at = len(self._runs) - 1
        return trial

    @cached_property
    def _baseline_choices(self) -> list[tuple[Choice, ...]]:
        """The one prescription that changes nothing; empty where there is no text for it."""
        choice = self._candidates.baseline
        return [] if choice is None else [(choice,)]

    @property
    def _baseline(self) -> _Run | None:
        return self._runs[self._baseline_at] if self._baseline_at is not None else None

    def judge_on_all(self) -> None:
        """Measure what is prescribed on all samples, and the baseline too: a part of them misses what is rare."""
        found = self._trials.judge_all(models=2) if self._best() is not None else None
        if found is None:
            return
        judgement, pool = found
        while (best := self._best()) is not None and best.judgement is not judgement:
            if self._reads_fitted(best.choices):
                return  # Its model was made with some of them.
            both = {id(each): each for each in (self._baseline, best) if each is not None}.values()
            for run in both:
                if run.judgement is not judgement:
                    ahead = [each.task for each in both if each.judgement is not judgement]
                    self._judge_again(run, judgement, pool, ahead)

    def _judge_again(self, run: _Run, judgement: Judgement, pool: Pool, ahead: Sequence[TextTask]) -> None:
        tasks = (replace(task, pool=pool) for task in ahead)
        outcomes = self._carry_out([replace(run.task, pool=pool)], tasks)
        trial = _judge_outcomes(run.trial.key, outcomes, judgement)
        record = run.record.model_copy(update={"trial": trial.model_copy(update={"seconds": run.trial.seconds})})
        self._runs[self._runs.index(run)] = run._replace(record=record, judgement=judgement)

    def result(self, reason: str | None) -> Executed:
        best = self._best()
        return Executed(
            tuple(run.record.model_copy(update={"own": self._own_trial(run)}) for run in self._runs),
            self._runs.index(best) if best is not None else None,
            self._baseline_at,
            reason,
            partial(self._make, best.task) if best is not None else None,
        )

    def _make(self, task: TextTask) -> Edited:
        return self._trials.workbench.make(task, self._workshop.executor, None)

    def _add_to(self, run: _Run) -> TrialRecord | None:
        """The first other proven remedy that recovers more on top of these; None: there is none."""
        ids = {choice.id for choice in run.choices}
        enough = (run.trial.gain_db or 0.0) + self._workshop.base.threshold("negligible_gain_db")
        others = [r for r in self._runs if len(r.choices) == 1 and r.choices[0].id not in ids and self._counts(r)]
        self._expected = [(*run.choices, *other.choices) for other in others]
        for other in others:
            trial = self._execute((*run.choices, *other.choices))
            if trial is not None and trial.proven and (trial.gain_db or 0.0) >= enough:
                return trial
        return None

    def _execute_fewest_in_float(self) -> TrialRecord | None:
        """As few layers as possible leave the integers; None where that was prescribed already, or cannot be."""
        proof = self._diagnosis.proof
        if proof is not None and any(row.trial.kind == FLOAT_SET for row in proof.trials):
            return None
        repair = self._trials.fewest_in_float()
        if repair is None:
            return None
        return self._execute((self._candidates.of_trial(self._trials.alone(repair)),))

    def _execute(self, choices: tuple[Choice, ...]) -> TrialRecord | None:
        """Run these remedies as one prescription; None where its text cannot be run or ran already."""
        workshop, code = self._workshop, self._text_to_run(choices)
        if code is None:
            return None
        tasks, expected = self._tasks(choices, code), self._expected_seconds()
        key = f"{PRESCRIPTION}:{'+'.join(choice.id for choice in choices)}"

        def run() -> tuple[TrialRecord, float]:
            outcomes = self._carry_out(tasks, self._ahead())
            trial = _judge_outcomes(key, outcomes, self._trials.judgement)
            return trial, sum(each.seconds for each in outcomes)

        spent = self._trials.spend(run, max(self._longest, expected), expected)
        self._longest = max(self._longest, spent.seconds)
        record = ExecutionRecord(
            toolchain=workshop.toolchain.name,
            version=workshop.executor.version(),
            choices=tuple(choice.id for choice in choices),
            titles=tuple(choice.title for choice in choices),
            code=code,
            reads=self._reads_in_words(choices),
            is_of_data=any(choice.is_of_data for choice in choices),
            trial=spent.trial,
        )
        self._runs.append(_Run(choices, record, tasks[0], self._trials.judgement))
        return record.trial

    def _text_to_run(self, choices: tuple[Choice, ...]) -> str | None:
        """The text of these remedies; None where it cannot be run, must not be or ran already."""
        key = tuple(choice.id for choice in choices)
        if key not in self._codes:  # it is written once
            given = write_prescription(self._diagnosis, choices, self._workshop.toolchain)
            self._codes[key] = self._text_if_runnable(choices, code_of(given), given.given)
        code = self._codes[key]
        return None if code is None or self._ran(choices, code) else code

    def _text_if_runnable(self, choices: tuple[Choice, ...], code: str | None, given: Iterable[str]) -> str | None:
        if code is None:
            return None
        if not self._is_trusted(choices):
            self._untrusted = True
            return None
        supplied = set(given) <= self._workshop.executor.supplies
        return code if supplied and self._changes_anything(choices, code) else None

    def _ahead(self) -> Iterator[TextTask]:
        for choices in self._expected:
            code = self._text_to_run(choices)
            if code is not None:
                yield from self._tasks(choices, code)

    def _ran(self, choices: Sequence[Choice], code: str) -> bool:
        """The same text ran already on the same data; comments make no difference."""
        body, reads = without_comments(code), self._reads_in_words(choices)
        return any(without_comments(run.record.code) == body and run.record.reads == reads for run in self._runs)

    def _own_trial(self, run: _Run) -> TrialRecord | None:
        """What an execution recovers beyond the baseline; None where that is not known, or is what it is."""
        if self._baseline is None or run is self._baseline or run.trial.failed is not None:
            return None
        before, key = self._baseline.trial.key, run.trial.key
        if (before,) not in run.judgement.known:
            return None
        return run.judgement.trial(key, PRESCRIPTION, (key,), (before,))

    def _tasks(self, choices: Sequence[Choice], code: str) -> list[TextTask]:
        """One for the representative set, or one per fold."""
        name = self._workshop.toolchain.name
        if not self._reads_fitted(choices):
            return [TextTask(name, code, None)]
        return [TextTask(name, code, fold) for fold in range(len(self._trials.workbench.folds))]

    def _carry_out(self, tasks: Sequence[TextTask], ahead: Iterator[TextTask]) -> list[Outcome]:
        return self._trials.carry_out(tasks, ahead, partial(self._trials.workbench.run_text, self._workshop.executor))

    def _reads_fitted(self, choices: Iterable[Choice]) -> bool:
        """The reader gives fitted samples: where the judged set calibrates, or other data are prescribed."""
        return self._trials.role == "representative" or reads_anew(self._parts(choices))

    def _reads_in_words(self, choices: Sequence[Choice]) -> str:
        if self._reads_fitted(choices):
            fewest = min(samples_of(fold.fitted) for fold in self._trials.workbench.folds)
            return f"{fewest} samples of the {self._trials.role} set, on which it was not judged"
        return f"the representative set, {self._count_samples()} samples"

    def _count_samples(self) -> int:
        """Samples of the representative set."""
        return self._trials.case.record.datasets["representative"].seen

    def _expected_seconds(self) -> float:
        return START + PER_SAMPLE * self._count_samples() * self._trials.speed

    def _is_trusted(self, choices: Iterable[Choice]) -> bool:
        """Only what the built-in rules print is run: rules may come from a stranger's pull request."""
        trusted = self._workshop.trusted
        return self._workshop.toolchain in trusted.toolchains and all(
            part.advice.id in trusted.remedies and part.snippet in trusted.remedies[part.advice.id].snippets
            for part in self._parts(choices)
        )

    def _changes_anything(self, choices: Iterable[Choice], code: str) -> bool:
        """Some option that it asks for is not in force already; a remedy without options changes data or run."""
        parts = self._parts(choices)
        marks = {form for part in parts for form in part.snippet.options} & self._workshop.toolchain.in_force.keys()
        asks = all(any(part.snippet.options.values()) and not part.snippet.code for part in parts)
        return not (asks and marks) or CHANGED in code

    def _parts(self, choices: Iterable[Choice]) -> list[Part]:
        """The snippets of all choices."""
        return [part for choice in choices for part in choice.snippets(self._workshop.toolchain)]

    def _heals(self, trial: TrialRecord | None) -> bool:
        return trial is not None and trial.proven and leaves_nothing(trial, trial.share or 0.0, self._workshop.base)

    def _counts(self, run: _Run) -> bool:
        """It recovers something for sure, and more than quantizing again with nothing changed does."""
        own = self._own_trial(run)
        least = self._workshop.base.threshold("negligible_gain_db")
        return run.trial.proven and (own is None or (own.proven and (own.gain_db or 0.0) >= least))

    def _best(self) -> _Run | None:
        """The first that heals; else the first that recovers about as much as the most; else the baseline."""
        again = [self._baseline] if self._baseline is not None else []
        others = [run for run in self._runs if run is not self._baseline]
        healing = next((run for run in (*again, *others) if self._heals(run.trial)), None)
        if healing is not None:
            return self._with_hidden(healing)
        counted = [run for run in others if self._counts(run)] or [run for run in again if self._counts(run)]
        most = max((run.trial.gain_db or 0.0 for run in counted), default=0.0)
        return next((run for run in counted if (run.trial.gain_db or 0.0) >= most - PREFERENCE_DB), None)

    def _with_hidden(self, run: _Run) -> _Run:
        """The same with what heals hidden faults too, where that recovers clearly more."""
        ids, enough = {choice.id for choice in run.choices}, (run.trial.gain_db or 0.0) + PREFERENCE_DB
        wider = (other for other in self._runs if ids < {choice.id for choice in other.choices} and other.trial.proven)
        return next((other for other in wider if (other.trial.gain_db or 0.0) >= enough), run)


def _judge_outcomes(key: str, outcomes: Sequence[Outcome], judgement: Judgement) -> TrialRecord:
    """What the models that a text gave recover."""
    if outcomes[-1].failed is not None:
        return TrialRecord(key=key, kind=PRESCRIPTION, failed=outcomes[-1].failed)
    judgement.add((key,), [measured for each in outcomes for measured in each.found])
    return judgement.trial(key, PRESCRIPTION, (key,), ())
