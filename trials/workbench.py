"""What tasks are carried out on: both models, samples in folds, and the benches that judge on them."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.datasets import Dataset, open_dataset
from quantmedic.collectors.measure.models import Edited, Fitting, Models
from quantmedic.collectors.measure.options import Options
from quantmedic.collectors.measure.simulation import BATCH_VALUES, samples_within
from quantmedic.collectors.metrics.metric import Metric
from quantmedic.collectors.pair.output_parts import recorded_joints
from quantmedic.engine.case.facts import Role
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.searches import Goal
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.formulas.stored_bins import main_role
from quantmedic.trials.bench import Bench, Runners
from quantmedic.trials.edit import edit
from quantmedic.trials.execute import Executor
from quantmedic.trials.float_search import FallbackTrial
from quantmedic.trials.layer_search import Searched
from quantmedic.trials.split import (
    BATCH,
    EvenBatches,
    Fold,
    Pool,
    even_batches,
    folds,
    read_planned,
    samples_of,
)
from quantmedic.trials.tasks import EditTask, Outcome, TextTask


@dataclass(frozen=True)
class Subject:
    """What trials are about.

    Attributes:
        models: The pair as the user gave it, which texts are run for.
        copies: The same pair, of which copies are edited.
        case: What was measured of them.
        datasets: The data that it was measured on.
        options: How the case was collected.
        metric: Task metric, where the data are labelled.
    """

    models: Models
    copies: Models
    case: Case
    datasets: Mapping[Role, Dataset]
    options: Options
    metric: Metric | None


class Workbench:
    """The samples of all trials on one case; it knows nothing of their order, nor of any before.

    Attributes:
        folds: The samples.
        benches: Judge on the judged samples of each fold.
        role: The data set that they come from.
    """

    def __init__(self, subject: Subject, pool: Pool, runners: Runners | None = None) -> None:
        """Read and split the samples, and run both networks on them.

        Args:
            subject: See there.
            pool: Which samples.
            runners: Both models opened, where they are.

        Raises:
            QuantmedicError: The models cannot be run on these data.
        """
        self._subject, self._case, self._options = subject, subject.case, subject.options
        self.role: Role = main_role(subject.case)
        unit, seed = subject.datasets[self.role].unit, subject.options.seed
        self.folds: Sequence[Fold] = folds(self._read_pool(pool), unit, seed)
        self.benches = [self._bench(fold.judged, runners) for fold in self.folds]
        Bench.share_signal(self.benches)
        self._judged_on: dict[Pool, Bench] = {}
        self._made: dict[TextTask, Edited] = {}
        self._searches: dict[float, FallbackTrial] = {}

    @property
    def judged(self) -> int:
        """Samples that judge."""
        return samples_of(batch for fold in self.folds for batch in fold.judged)

    def carry_out(self, task: EditTask, deadline: float | None) -> Outcome:
        """Edit a copy and measure it.

        Raises:
            ModelError: It cannot be edited or run.
            OutOfTimeError: The deadline has passed.
        """
        begun = time.monotonic()
        edited = self.edit(task.change, [task.fold], deadline)
        found = self.benches[task.fold].measure(edited, deadline)
        left = edited.left_integer(self._case, task.change) if edited.left_integer is not None else ()
        return Outcome((found,), left, edited.unedited, seconds=time.monotonic() - begun)

    def edit(self, change: Change, places: Iterable[int], deadline: float | None) -> Edited:
        """A copy with a change, whatever is learned being learned on the fitted samples of these folds."""
        batches = [batch for place in places for batch in self.folds[place].fitted]
        return edit(self._subject.copies, self._case, change, Fitting(batches, self._options.threads, deadline))

    def make(self, task: TextTask, executor: Executor, deadline: float | None) -> Edited:
        """The model that a text gives; it is kept, as it may be measured on other samples.

        Raises:
            ModelError: The toolchain refuses it.
            OutOfTimeError: The deadline has passed.
        """
        own = TextTask(task.toolchain, task.code, task.fold)
        if own not in self._made:
            self._made[own] = executor.execute(self._subject.models, task.code, self._calibration(task.fold), deadline)
        return self._made[own]

    def run_text(self, executor: Executor, task: TextTask, deadline: float | None) -> Outcome:
        """Run a text and measure the model.

        Raises:
            ModelError: The toolchain refuses it, or the model cannot be run.
            OutOfTimeError: The deadline has passed.
        """
        begun = time.monotonic()
        run = self.make(task, executor, deadline).runner(self._options.threads)
        found = tuple(bench.measure_run(run, deadline) for bench in self._benches_of(task))
        return Outcome(found, seconds=time.monotonic() - begun)

    def _benches_of(self, task: TextTask) -> Sequence[Bench]:
        if task.pool is not None:
            return [self.bench_on(task.pool)]
        return self.benches if task.fold is None else [self.benches[task.fold]]

    def bench_on(self, pool: Pool) -> Bench:
        """Judges on all samples of a pool; it is kept."""
        if pool not in self._judged_on:
            self._judged_on[pool] = self._bench(self._read_pool(pool))
        return self._judged_on[pool]

    def search(self, least_db: float) -> FallbackTrial:
        """The search for layers in float that reaches this output SQNR, on fitted samples; it is kept.

        Raises:
            QuantmedicError: The network cannot be simulated.
        """
        if least_db not in self._searches:
            options = self._options
            searched = Searched(
                self._subject.copies, self._fitted_data(), self._case, None, options.threads, options.seed
            )
            self._searches[least_db] = FallbackTrial(searched, Goal(kind="sqnr", limit=least_db))
        return self._searches[least_db]

    def _read_pool(self, pool: Pool) -> list[Batch]:
        return read_planned(self._subject.datasets[self.role], pool, self._options.samples, self._options.seed)

    def _fitted_data(self) -> Dataset:
        """The fitted inputs of the last fold as a data set."""

        def fitted_inputs() -> Iterator[object]:
            yield from (batch.inputs for batch in self.folds[-1].fitted)

        return open_dataset(fitted_inputs, self._subject.copies.input_specs, role=self.role)

    def _calibration(self, fold: int | None) -> Iterable[Batch]:
        """What the reader of a text gives: the representative set, or the fitted samples of a fold."""
        if fold is not None:
            return even_batches(self.folds[fold].fitted, self._largest_batch(self._subject.datasets[self.role]))
        data = self._subject.datasets["representative"]
        seen = self._case.record.datasets["representative"].seen
        return EvenBatches(data, seen, self._options.samples, self._largest_batch(data))

    def _largest_batch(self, data: Dataset) -> int:
        """Calibrators hold every tensor of a batch: of a large network few samples, of any as many as it must take."""
        return max(samples_within(BATCH_VALUES, 1, BATCH, self._case), data.unit)

    def _bench(self, batches: Sequence[Batch], runners: Runners | None = None) -> Bench:
        return Bench(
            self._subject.copies,
            batches,
            metric=self._subject.metric,
            classes=self._case.statistics[self.role].has_classes,
            threads=self._options.threads,
            joints=recorded_joints(self._case),
            runners=runners,
        )
