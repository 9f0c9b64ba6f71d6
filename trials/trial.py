"""One trial after the other: repairs on copies of the quantized model, fitted on some samples and judged on others."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from typing import NamedTuple, TypeVar

import numpy as np

from quantmedic.collectors.data.batches import Batch, cut
from quantmedic.collectors.data.datasets import open_dataset
from quantmedic.collectors.data.progress import Progress
from quantmedic.collectors.data.rows import row_of
from quantmedic.collectors.measure.collect_pair import collect
from quantmedic.collectors.measure.measurement import Measurement
from quantmedic.collectors.measure.models import Edited, FloatReader, Models
from quantmedic.collectors.measure.simulation import batch_size_of
from quantmedic.collectors.pair.tensor_pairs import Pair
from quantmedic.collectors.statistics.accumulate import SetAccumulator, as_rows
from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.case.proof import REPAIRED_DATA, ProofRecord, Stopped, TrialRecord
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.statistics import SetStatistics
from quantmedic.engine.decibels import to_decibels
from quantmedic.engine.diagnosis.input_repair import InputRepair
from quantmedic.engine.diagnosis.inspection import Inspection
from quantmedic.engine.diagnosis.prediction import explains
from quantmedic.engine.diagnosis.suspects import Repair, general_repairs
from quantmedic.engine.errors import DataError, QuantmedicError, failure_in_words
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.formulas.stored_bins import main_role
from quantmedic.engine.rules.remedy_kinds import BOUNDS, is_learned, tried_change_of
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.trials.allowance import Allowance
from quantmedic.trials.bench import OutOfTimeError, Runners
from quantmedic.trials.edit import learns
from quantmedic.trials.float_search import float_set
from quantmedic.trials.judgement import Judgement
from quantmedic.trials.split import MAX_SAMPLES, Pool, judged_together, plan_pool, samples_of
from quantmedic.trials.tasks import (
    EditTask,
    ElsewhereError,
    OpenElsewhere,
    Outcome,
    Task,
    attempt,
    until_one_fails,
)
from quantmedic.trials.workbench import Subject, Workbench

T = TypeVar("T", bound=Task)
#: Share of the budget that both networks may take on one half of the samples.
HALF_SHARE = 0.05
MIN_HALF = 32
#: The search for layers in float is held to this much more in dB than explains the loss: other samples judge its set.
MARGIN_DB = 1.0
#: Runs of both networks that measuring one half and the tensors of a remedy on the other takes, about.
PREPARATION = 3


class FittedSamples:
    """Some samples, and of the float model's tensors on them the histograms that were asked for.

    A remedy names few tensors: only those are measured, each once.
    """

    def __init__(
        self, models: Models, case: Case, facts: CaseFacts, batches: Sequence[Batch], unit: int, threads: int
    ) -> None:
        """Remember what there is to measure.

        Args:
            models: Both models.
            case: What was measured of them on all samples.
            facts: Its facts.
            batches: The samples.
            unit: Samples that the models take at a time and that stay together.
            threads: Processor threads.
        """
        size = batch_size_of(case)
        self._batches = [part for batch in batches for part in (cut([batch], size) if unit == 1 else [batch])]
        self._models, self._case, self._facts, self._threads = models, case, facts, threads
        self._pairs = {(pair.root, pair.twin): pair for pair in models.pairs}
        role = main_role(case)
        whole = case.statistics[role]
        statistics = SetStatistics.empty(whole.channels, 0, [])
        statistics.lattice = whole.lattice  # The values that an input can take do not depend on the samples.
        self._into = SetAccumulator(statistics, None, classes=False, thumbnails=False)
        self._measured: set[int] = set()
        self._fitted = replace(case, statistics={role: statistics})

    def change(self, repairs: Sequence[Repair]) -> Change:
        """All repairs together, fitted on these samples, unless they were fitted on other data.

        Raises:
            ModelError: A model fails.
        """
        return reduce(Change.join, map(self._change, repairs), Change())

    def _change(self, repair: Repair) -> Change:
        whole = _fit_to_all(repair, self._case, self._facts)
        ranged = [] if repair.is_fitted else [i for i, grid in whole.grids.items() if grid is not None]
        if not ranged:
            return whole
        change = tried_change_of(repair.kind, self.with_tensors(ranged), self._facts, repair.targets)
        # What was measured for other repairs must not matter: trials run in any order, and on other machines.
        return replace(change, grids={i: grid for i, grid in change.grids.items() if grid is None or i in ranged})

    def with_tensors(self, tensors: Iterable[int]) -> Case:
        """The case with at least these tensors measured, by index.

        Raises:
            ModelError: A model fails.
        """
        missing = sorted(set(tensors) - self._measured)
        if missing:
            self._measure(missing)
            self._measured.update(missing)
        return self._fitted

    def _measure(self, tensors: Sequence[int]) -> None:
        records = self._case.record.tensors
        pairs = {i: self._pairs[records[i].name, records[i].float_name] for i in tensors}
        read = self._reader_of(pairs)
        for batch in self._batches:
            floats = read(batch)
            for i, pair in pairs.items():
                rows = as_rows(np.asarray(row_of(floats[pair.twin]), np.float32), records[i].axis)
                self._into.tensor(i, rows, batch.samples, None, None, None)

    def _reader_of(self, pairs: Mapping[int, Pair]) -> FloatReader:
        """The float model alone, where it can be read so."""
        read = self._models.float_reader([pair.twin for pair in pairs.values()], self._threads)
        if read is not None:
            return read
        view = self._models.view(pairs, self._batches[0], self._threads)
        return lambda batch: view.read_tensors(batch).floats


class Spent(NamedTuple):
    """A trial, and what it took of the allowance."""

    trial: TrialRecord
    seconds: float


class Trials:
    """The trials that ran, and all that is needed for the next one.

    Attributes:
        case: What was measured of both models on all samples.
        facts: The facts of all samples.
        chain: Proven repairs, each on top of those before it.
        speed: Seconds of the allowance that both networks take for one sample.
        workbench: What they are carried out on here.
        role: The data set whose samples are fitted on and judged on.
        allowance: What all of this may take.
        judgement: What was measured on the judged samples.
        elsewhere: Other machines that carry them out instead, if there are any.
    """

    def __init__(
        self,
        subject: Subject,
        opened: Inspection,
        allowance: Allowance,
        progress: Progress,
        elsewhere: OpenElsewhere | None = None,
    ) -> None:
        """Read and split the samples, and measure both networks on them.

        Args:
            subject: See there.
            opened: What was measured of it.
            allowance: What all trials may take.
            progress: Called with ``trials``, the seconds spent and those that may be.
            elsewhere: Opens other machines.

        Raises:
            QuantmedicError: The models cannot be run on these data.
        """
        case, options = opened.case, subject.options
        self.case, self.facts, self.chain = case, opened.facts, list[Repair]()
        self._subject, self._base = subject, opened.base
        self._options = replace(options, samples=None, mode="exact")
        self._started, self.allowance, self._progress = allowance.now(), allowance, progress
        self._end = self._started + allowance.seconds
        self.role, self._done, self._longest = main_role(case), list[TrialRecord](), 0.0
        self.tell()
        dataset = subject.datasets[self.role]
        first = next(dataset.batches(min(batch_size_of(case), case.record.datasets[self.role].seen), options.samples))
        runners = Runners.open(subject.copies, options.threads)
        self.speed = allowance.per_sample(case, lambda: _seconds_per_sample(runners, first))
        _refuse_short(allowance.seconds, self.speed)
        self._wanted = max(int(min(HALF_SHARE * allowance.seconds / self.speed, MAX_SAMPLES)), MIN_HALF)
        pool = plan_pool(
            dataset, case.record.datasets[self.role].seen, options.samples, 2 * self._wanted, judged_together(case)
        )
        self.workbench = Workbench(subject, pool, runners)
        self._fitted = samples_of(self.workbench.folds[0].fitted)
        self._halves = [
            FittedSamples(subject.copies, case, opened.facts, fold.fitted, dataset.unit, options.threads)
            for fold in self.workbench.folds
        ]
        self.judgement = Judgement(self.workbench.benches, self.workbench.judged, subject.metric, options.seed)
        allowance.count(PREPARATION * self.workbench.judged * self.speed)
        self._expected: Sequence[tuple[Repair, Sequence[Repair]]] = ()
        #: Fitting a change takes long: what was fitted ahead is not fitted again.
        self._planned: dict[tuple[str, tuple[str, ...]], list[EditTask]] = {}
        self.elsewhere = elsewhere(case, pool, subject.metric is not None) if elsewhere is not None else None

    def general(self, kinds: Sequence[str]) -> list[Repair]:
        """Changes of the whole network, as far as these models can be edited so."""
        found = general_repairs(kinds, self.case, self.facts)
        return found if learns(self._subject.copies) else [repair for repair in found if not is_learned(repair.kind)]

    def alone(self, repair: Repair) -> TrialRecord:
        """Carry out a repair on the unchanged model; once.

        Raises:
            OutOfTimeError: The budget does not allow it.
        """
        return self._try(repair, [])

    def on_top(self, repair: Repair) -> TrialRecord:
        """Carry out a repair on a copy that holds the chain already; once.

        Raises:
            OutOfTimeError: The budget does not allow it.
        """
        return self._try(repair, self.chain)

    def last(self) -> TrialRecord | None:
        """The trial of the chain's last link."""
        keys = tuple(repair.key for repair in self.chain)
        return next((t for t in self._done if keys and (*t.after, t.key) == keys), None)

    def chain_share(self) -> float:
        """Share of the noise power that the whole chain takes away."""
        return self.judgement.share(tuple(repair.key for repair in self.chain))

    def calibrate_on(self, cause: str, data: InputRepair) -> Repair:
        """New ranges for all activations from repaired representative inputs.

        Raises:
            QuantmedicError: These cannot be read, or nothing is left of them.
        """

        def repaired_inputs() -> Iterator[object]:
            for batch in self._subject.datasets["representative"].batches(MIN_HALF, self._subject.options.samples):
                changed = repair_batch(batch, data)
                if changed is not None:
                    yield changed.inputs

        dataset = open_dataset(repaired_inputs, self._subject.copies.input_specs, role="representative")
        options = replace(self._options, samples=self._wanted)
        case = collect(Measurement(self._subject.copies, {"representative": dataset}, options))
        return Repair.recalibrate(f"{REPAIRED_DATA}:{cause}", REPAIRED_DATA, case, self.facts, data.words)

    def fewest_in_float(self) -> Repair | None:
        """The smallest set of layers in float that explains the loss; None where it cannot be found or none is small.

        Raises:
            OutOfTimeError: The budget does not allow the search.
        """
        if self.workbench.benches[0].columns is not None:
            return None  # The search does not see noise that hides in few columns.
        base = self._base
        clean = "healed_sqnr_db" if self.facts.model.output_agreement is not None else "quantize_error_sqnr_db"
        least = max(self.judgement.sqnr_db - to_decibels(1 - base.threshold("explained_share")), base.threshold(clean))
        try:
            search = self.workbench.search(least + MARGIN_DB)
            search.elsewhere = None if self.elsewhere is None else self.elsewhere.simulation(least + MARGIN_DB)
            return float_set(search, self.case, self._options.seed, self.tell)
        except ElsewhereError:
            raise
        except QuantmedicError:
            return None

    @property
    def deadline(self) -> float | None:
        """``time.monotonic()`` at which the trials end; None where no clock ends them."""
        return self.allowance.by_the_clock(self._end)

    def have_left(self, seconds: float) -> bool:
        """So much of the allowance is left."""
        return self.allowance.now() + seconds <= self._end

    def keep_back(self, share: float) -> None:
        """End the trials earlier, so that this share of the allowance is left; 0 gives all of it back."""
        self._end = self._started + (1.0 - share) * self.allowance.seconds

    def judge_all(self, models: int) -> tuple[Judgement, Pool] | None:
        """A judgement on all samples of the set, as many as are kept in memory, and which these are.

        None where no more are left than were judged, or where they take so many models too long.
        """
        seen = self.case.record.datasets[self.role].seen
        seconds = seen * self.speed * (1 + models)
        if seen <= self.judgement.samples or not self.have_left(seconds):
            return None
        size = judged_together(self.case)
        pool = plan_pool(self._subject.datasets[self.role], seen, self._subject.options.samples, seen, size)
        bench = self.workbench.bench_on(pool)
        if bench.samples <= self.judgement.samples:
            return None
        self.allowance.count(seconds)
        return Judgement([bench], bench.samples, self._subject.metric, self._options.seed), pool

    def record(self, stopped: Stopped) -> ProofRecord:
        """All that is kept in the case."""
        return ProofRecord(
            dataset=self.role,
            seed=self._options.seed,
            fitted=self._fitted,
            judged=self.judgement.samples,
            cross_fitted=len(self._halves) > 1,
            budget_seconds=self.allowance.by_the_clock(self.allowance.seconds),
            spent_seconds=self.allowance.by_the_clock(round(self.allowance.now() - self._started, 1)),
            stopped=stopped,
            trials=tuple(self._done),
            chain=tuple(repair.key for repair in self.chain),
        )

    def edit_chain(self) -> Edited:
        """The model with the whole chain, as it was measured; after cross-fitting, fitted on all samples."""
        fitted = [_fit_to_all(repair, self.case, self.facts) for repair in self.chain]
        is_crossed = len(self._halves) > 1
        change = reduce(Change.join, fitted) if is_crossed else self._halves[0].change(self.chain)
        return self.workbench.edit(change, range(len(self._halves)), None)

    def expect(self, trials: Iterable[tuple[Repair, Sequence[Repair]]]) -> None:
        """Say which trials are likely to be next, each with what it comes after: idle machines begin with them.

        What comes of a trial depends on none before it, so what is measured remains the same.
        """
        self._expected = [(repair, tuple(after)) for repair, after in trials]

    def _tasks(self, repair: Repair, after: Sequence[Repair]) -> list[EditTask]:
        """One per fold, the first fold last: models of both folds differ in numbers only, and its words are kept.

        Raises:
            ModelError: A model fails on the fitted samples.
        """
        key = (repair.key, _keys_of(after))
        if key not in self._planned:
            changes = [half.change([*after, repair]) for half in self._halves]
            self._planned[key] = [EditTask(place, changes[place]) for place in reversed(range(len(changes)))]
        return self._planned[key]

    def _ahead(self) -> Iterator[EditTask]:
        for repair, after in self._expected:
            if self._find(repair, after) is not None:
                continue
            tasks: list[EditTask] = []
            with suppress(Exception):  # It fails again, and is recorded, once its turn has come.
                tasks = self._tasks(repair, after)
            yield from tasks

    def _find(self, repair: Repair, after: Sequence[Repair]) -> TrialRecord | None:
        keys = _keys_of(after)
        return next((t for t in self._done if t.key == repair.key and t.after == keys), None)

    def carry_out(
        self, tasks: Sequence[T], ahead: Iterator[T], run: Callable[[T, float | None], Outcome]
    ) -> list[Outcome]:
        """What comes of the tasks of one trial, up to the first that fails.

        Args:
            tasks: What is needed now.
            ahead: What is likely to be needed next, for other machines that would be idle.
            run: Carries a task out on this machine until a ``deadline``.

        Raises:
            OutOfTimeError: The deadline has passed.
            ElsewhereError: Another machine cannot work.
        """
        if self.elsewhere is not None:
            left = None if self.deadline is None else self.deadline - time.monotonic()
            return self.elsewhere.results(tasks, ahead, left)
        return until_one_fails(attempt(partial(run, task, self.deadline)) for task in tasks)

    def spend(self, work: Callable[[], tuple[TrialRecord, float]], longest: float, expected: float) -> Spent:
        """Do something of the allowance.

        Args:
            work: Gives a trial, and the seconds that its tasks took.
            longest: What has to be left for it.
            expected: What it is expected to take.

        Raises:
            OutOfTimeError: Not so much is left.
        """
        begun = self.allowance.now()
        if not self.have_left(longest):
            raise OutOfTimeError
        self.tell()
        trial, took = work()
        self.allowance.count(expected)
        # Other machines may have begun with it before.
        alone = self.elsewhere is None or self.deadline is None
        seconds = self.allowance.now() - begun if alone else took
        shown = self.allowance.by_the_clock(round(seconds, 3))
        return Spent(trial.model_copy(update={"seconds": shown}), seconds)

    def _try(self, repair: Repair, after: Sequence[Repair]) -> TrialRecord:
        known = self._find(repair, after)
        if known is not None:
            return known
        expected = self.judgement.samples * self.speed
        spent = self.spend(partial(self._measure, repair, after), self._longest, expected)
        self._longest = max(self._longest, spent.seconds)
        self._done.append(spent.trial)
        return spent.trial

    def _measure(self, repair: Repair, after: Sequence[Repair]) -> tuple[TrialRecord, float]:
        """What a repair recovers, and the seconds that its tasks took."""
        keys = _keys_of(after)
        try:
            tasks = self._tasks(repair, after)
        except Exception as error:  # One trial that fails, for whatever reason, must not cost what was measured.
            outcomes = [Outcome(failed=failure_in_words(error))]
        else:
            outcomes = self.carry_out(tasks, self._ahead(), self.workbench.carry_out)
        seconds, last = sum(each.seconds for each in outcomes), outcomes[-1]
        if last.failed is not None:
            return TrialRecord(key=repair.key, kind=repair.kind, after=keys, failed=last.failed), seconds
        own = (*keys, repair.key)
        self.judgement.add(own, [measured for each in reversed(outcomes) for measured in each.found])
        trial = self.judgement.trial(repair.key, repair.kind, own, keys)
        known: dict[str, object] = {"detail": repair.data, "nodes": repair.nodes, "bound": repair.kind in BOUNDS}
        return trial.model_copy(update={**known, "left_integer": last.left_integer, "unedited": last.unedited}), seconds

    def tell(self) -> None:
        """Show what was spent, and end where that is all."""
        now = self.allowance.now()
        if now > self._end:
            raise OutOfTimeError
        self._progress("trials", int(now - self._started), int(self.allowance.seconds))


def repair_batch(batch: Batch, found: InputRepair) -> Batch | None:
    """Representative inputs without their mistake; None where no sample stays."""
    rows = found.find_kept(batch.inputs[found.name])
    if not rows.size:
        return None
    kept = batch if rows.size == batch.samples else batch.take(rows)
    return Batch({**kept.inputs, found.name: found.change(kept.inputs[found.name])}, kept.labels)


def _keys_of(repairs: Sequence[Repair]) -> tuple[str, ...]:
    return tuple(repair.key for repair in repairs)


def _fit_to_all(repair: Repair, case: Case, facts: CaseFacts) -> Change:
    """What a trial of a repair carries out, fitted on all samples, unless it was fitted on other data."""
    return repair.change if repair.is_fitted else tried_change_of(repair.kind, case, facts, repair.targets)


def leaves_nothing(trial: TrialRecord, share: float, base: RuleBase) -> bool:
    """Hardly any noise is left, and no loss of the task metric can be proven any more.

    Args:
        trial: The last one.
        share: Share of the noise power that it and those before it take away.
        base: Holds the thresholds.
    """
    if trial.sqnr_after is None or (trial.metric is not None and trial.metric.left_low > 0):
        return False
    enough = share > base.threshold("explained_share")
    return enough and explains(share=share, sqnr_db=trial.sqnr_after, agreement=trial.agreement_after, base=base)


def _refuse_short(budget: float, speed: float) -> None:
    needed = PREPARATION * MIN_HALF * speed
    if needed > budget:
        raise DataError(
            "the budget is too short for any trial",
            where=f"{budget:g} s; measuring {MIN_HALF} samples before the first one takes about {needed:.1f} s",
            help=f"pass --budget {math.ceil(3 * needed)}s or more",
        )


def _seconds_per_sample(runners: Runners, batch: Batch) -> float:
    """Time of both networks."""
    seconds = 0.0
    for run in runners:
        run(batch)
        start = time.perf_counter()
        run(batch)
        seconds += time.perf_counter() - start
    return seconds / batch.samples
