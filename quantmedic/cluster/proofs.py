"""Trials of remedies, and prescriptions run as printed, carried out by workers."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from quantmedic.api.options import CollectOptions, ModelSource
from quantmedic.cluster.connection import connect, shared_folder
from quantmedic.cluster.searches import simulate_units
from quantmedic.cluster.units import Job, Trial, answer_of, describe_job, store_case, submit
from quantmedic.engine.case.records import Case
from quantmedic.engine.diagnosis.smallest_set import Units
from quantmedic.engine.errors import QuantmedicError
from quantmedic.trials.bench import OutOfTimeError
from quantmedic.trials.layer_search import Float32, SimulateElsewhere
from quantmedic.trials.split import Pool
from quantmedic.trials.tasks import ElsewhereError, OpenElsewhere, Outcome, Task, until_one_fails

if TYPE_CHECKING:
    from distributed import Client, Future

#: What is needed now goes before what is likely to be needed next.
NOW, NEXT = 1, 0


@contextmanager
def try_on_cluster(
    where: object, float_model: ModelSource, quantized_model: ModelSource, options: CollectOptions
) -> Iterator[OpenElsewhere]:
    """What opens the workers for trials on a case, while the connection is open; then what is left is cancelled.

    Raises:
        DataError: The cluster cannot be reached, or models or data are objects in memory.
        QuantmedicError: A worker has another version of what figures depend on.
    """
    # What was computed elsewhere is measured already.
    own = replace(options, reference_outputs=None, device_outputs=None, stages=())
    own = replace(own, expected_float_metric=None, expected_quantized_metric=None)
    job = describe_job(float_model, quantized_model, own)
    beside = options.checkpoint
    with connect(where) as client, ExitStack() as stack:
        folder = stack.enter_context(shared_folder(client, None if beside is None else Path(beside)))

        def open_workers(case: Case, pool: Pool, by_metric: bool) -> TrialWorkers:
            plan = replace(job, trial=Trial(pool, by_metric, uuid4().hex))
            workers = TrialWorkers(client, plan, _hand_over(client, case, folder))
            stack.callback(workers.cancel)
            return workers

        yield open_workers


def _hand_over(client: "Client", case: Case, folder: Path | None) -> "str | Future":
    """The case as the path of its file, or as bytes that a worker holds and others fetch from it."""
    stored = store_case(case, None if folder is None else str(folder / "tried.case"))
    if isinstance(stored, str):
        return stored
    return client.submit(hold, stored, key=f"quantmedic-case-{uuid4().hex}", pure=False)


def hold(stored: bytes) -> bytes:
    """The bytes, which are made again from the task where the worker that holds them is lost."""
    return stored


class TrialWorkers:
    """Workers with the models of a job; see ``trials.tasks.Elsewhere``."""

    def __init__(self, client: "Client", job: Job, stored: "str | Future") -> None:
        """Nothing is asked for yet.

        Args:
            client: Whose workers.
            job: Models, data and options, and the samples that are kept.
            stored: The case.
        """
        self._client, self._job, self._stored = client, job, stored
        self._begun: list[tuple[Task, Future]] = []

    def results(self, tasks: Sequence[Task], ahead: Iterator[Task], seconds: float | None) -> list[Outcome]:
        """See ``trials.tasks.Elsewhere``: as many tasks as there are threads are on their way."""
        end = None if seconds is None else time.monotonic() + seconds
        wanted = [self._begin(task, NOW, seconds) for task in tasks]
        while any(not future.done() for future in wanted):
            self._begin_ahead(ahead, seconds)
            self._wait_for_one(end)
        return until_one_fails(map(_outcome_of, wanted))

    def _begin_ahead(self, ahead: Iterator[Task], seconds: float | None) -> None:
        places = sum(self._client.nthreads().values())
        while len(self._unfinished) < places:
            task = next(ahead, None)
            if task is None:
                return
            self._begin(task, NEXT, seconds)

    def _begin(self, task: Task, priority: int, seconds: float | None) -> "Future":
        """The unit of a task, which may be on its way already."""
        found = next((future for known, future in self._begun if known == task), None)
        if found is not None:
            return found
        given = self._job, self._stored, task, seconds
        future = submit(self._client, "carry_out", *given, priority=priority)
        self._begun.append((task, future))
        return future

    @property
    def _unfinished(self) -> "list[Future]":
        return [future for _, future in self._begun if not future.done()]

    def _wait_for_one(self, end: float | None) -> None:
        """Wait until something comes to its end.

        Raises:
            OutOfTimeError: It takes longer.
        """
        from distributed import wait  # an optional package

        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            raise OutOfTimeError
        if not (unfinished := self._unfinished):
            return
        try:
            wait(unfinished, timeout=left, return_when="FIRST_COMPLETED")
        except TimeoutError:
            raise OutOfTimeError from None

    def simulation(self, least_db: float) -> SimulateElsewhere:
        """See ``trials.tasks.Elsewhere``."""

        def simulate(first: int, sets: Sequence[Units]) -> list[list[Float32]]:
            given = self._job, self._stored, least_db
            with _as_elsewhere():
                return simulate_units(self._client, "simulate_search", given, first, sets)

        return simulate

    def cancel(self) -> None:
        """Forget what nobody waits for."""
        self._client.cancel([future for _, future in self._begun])


@contextmanager
def _as_elsewhere() -> Iterator[None]:
    """Errors of workers, as what ends all trials."""
    try:
        yield
    except QuantmedicError as error:
        raise ElsewhereError(error.message, where=error.where, help=error.help) from error


def _outcome_of(future: "Future") -> Outcome:
    """What a worker answers.

    Raises:
        OutOfTimeError: The time was over.
        ElsewhereError: The worker cannot work.
    """
    from distributed import KilledWorker  # an optional package

    try:
        with _as_elsewhere():
            outcome: Outcome | None = answer_of(future)
    except KilledWorker:
        return Outcome(failed="every worker that carried it out was lost")
    if outcome is None:
        raise OutOfTimeError
    return outcome
