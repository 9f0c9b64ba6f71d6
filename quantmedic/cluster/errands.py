"""What workers do: functions that are called by name, and what they hold open between two units of work.

Opening models costs more than many a unit.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from quantmedic.api.opening import open_measurement
from quantmedic.api.options import SearchOptions
from quantmedic.api.rulebase import load_rulebase
from quantmedic.api.search import open_experiment, open_fallback
from quantmedic.cluster.units import Job, StoredCase, load_stored, store_case
from quantmedic.collectors.extensions import extension_for
from quantmedic.collectors.measure.checkpoints import CHECKPOINTS, CompareTensors, Found
from quantmedic.collectors.measure.collect_pair import Run
from quantmedic.collectors.measure.models import Models
from quantmedic.collectors.native.runs import time_limit
from quantmedic.engine.case.facts import Role
from quantmedic.engine.contract.searches import Mode, Outcome
from quantmedic.engine.errors import DataError, QuantmedicError
from quantmedic.trials.bench import OutOfTimeError
from quantmedic.trials.edit import find_executor
from quantmedic.trials.float_search import FallbackTrial
from quantmedic.trials.layer_search import Experiment
from quantmedic.trials.tasks import EditTask, Task, attempt
from quantmedic.trials.tasks import Outcome as TrialOutcome
from quantmedic.trials.workbench import Subject, Workbench

Opened = TypeVar("Opened")
P = ParamSpec("P")
_LOCK = Lock()
#: Those that nobody works with, of the last job alone.
_IDLE: dict[str, list[object]] = {}


def measure_slice(job: Job, role: Role, number: int, target: str | None) -> StoredCase:
    """Measure one slice of a data set.

    Args:
        job: Models, data and options.
        role: The data set.
        number: The slice.
        target: File for the case, on storage that all share; None gives its bytes.
    """
    if target is not None and Path(target).exists():
        return target
    with _borrow(_open_slices, job) as run:
        return store_case(run.measure_slice(role, number), target)


def merge_cases(parts: Sequence[StoredCase | QuantmedicError], target: str | None) -> StoredCase:
    """Add up cases of slices.

    Raises:
        QuantmedicError: The first failure among them.
    """
    failed = next((part for part in parts if isinstance(part, QuantmedicError)), None)
    if failed is not None:
        raise failed
    if target is not None and Path(target).exists():
        return target
    first, *others = (load_stored(cast(StoredCase, part)) for part in parts)
    for case in others:
        first = first.merge(case)
    return store_case(first, target)


def run_experiments(job: Job, runs: Sequence[tuple[Mode, int]]) -> list[Outcome]:
    """Runs of ``sensitivity``."""
    with _borrow(_open_experiment, job) as experiment:
        return [experiment.run(mode, unit) for mode, unit in runs]


def simulate_batches(job: Job, first: int, sets: Sequence[Sequence[int]]) -> list[list[Any]]:
    """Outputs of the network for some batches of a search for layers in float.

    Args:
        job: Models, data and goal.
        first: The first of these batches.
        sets: What stays in float, for each of them.
    """
    with _borrow(_open_fallback, job) as trial:
        return trial.simulate_batches(first, [frozenset(units) for units in sets])


def carry_out(job: Job, stored: StoredCase, task: Task, seconds: float | None) -> TrialOutcome | None:
    """What comes of one task of a trial, failures included; None where the time was over.

    Args:
        job: Models, data and options, and the samples that are kept.
        stored: What was measured of the models.
        task: What to do.
        seconds: Time for it, opening the models included; None: no clock ends it.

    Raises:
        DataError: A toolchain is not here.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    with _borrow(_open_trials, job, stored) as (models, bench), models.as_deployed():
        try:
            if isinstance(task, EditTask):
                return attempt(partial(bench.carry_out, task, deadline))
            executor = find_executor(models, task.toolchain)
            missing = "it is not known" if executor is None else executor.missing()
            if executor is None or missing is not None:
                help = "install it everywhere"
                raise DataError(f"a worker cannot run {task.toolchain}", where=missing or "", help=help)
            return attempt(partial(bench.run_text, executor, task, deadline))
        except OutOfTimeError:
            return None


def simulate_search(
    job: Job, stored: StoredCase, least_db: float, first: int, sets: Sequence[Sequence[int]]
) -> list[list[Any]]:
    """``simulate_batches`` for a trial, whose search has to reach this output SQNR."""
    with _borrow(_open_trials, job, stored) as (models, bench), models.as_deployed():
        return bench.search(least_db).simulate_batches(first, [frozenset(units) for units in sets])


def compare_layers(job: Job, names: Sequence[str]) -> Found:
    """What comparing some tensors of two checkpoints finds."""
    with _borrow(_open_checkpoints, job) as compare:
        return compare(names, job.options.threads)


@contextmanager
def _borrow(
    open_job: Callable[Concatenate[Job, P], Opened], job: Job, *more: P.args, **named: P.kwargs
) -> Iterator[Opened]:
    """What a function of this module opens for a job; nobody else works with it meanwhile.

    What fails is not kept. The job alone tells what is open: ``more`` is what it names and cannot hold.
    """
    key = f"{open_job.__name__} {job}"
    with _LOCK:
        for other in [name for name in _IDLE if name != key]:
            del _IDLE[other]
        kept = _IDLE.get(key)
        found = cast(Opened, kept.pop()) if kept else None
    with time_limit(job.options.timeout):
        opened = open_job(job, *more, **named) if found is None else found
        yield opened
    with _LOCK:
        _IDLE.setdefault(key, []).append(opened)


def _open_slices(job: Job) -> Run:
    """The models of a job, looked at on their first batch."""
    return Run(open_measurement(job.float_model, job.quantized_model, job.options, load_rulebase()))


def _open_experiment(job: Job) -> Experiment:
    """The simulated network of a job, and the samples that it is run on."""
    return open_experiment(job.float_model, job.quantized_model, cast(SearchOptions, job.options))[0]


def _open_fallback(job: Job) -> FallbackTrial:
    """The search of a job, which is told what to simulate."""
    return open_fallback(job.float_model, job.quantized_model, cast(SearchOptions, job.options))[0]


def _open_trials(job: Job, stored: StoredCase) -> tuple[Models, Workbench]:
    """The models as they were given, and a workbench on a case that was measured of them."""
    assert job.trial is not None
    opened = open_measurement(job.float_model, job.quantized_model, job.options, load_rulebase())
    models = opened.models
    with models.as_deployed():
        metric = opened.metric if job.trial.by_metric else None
        subject = Subject(models, models.editable(), load_stored(stored), opened.datasets, opened.options, metric)
        bench = Workbench(subject, job.trial.pool)
    return models, bench


def _open_checkpoints(job: Job) -> CompareTensors:
    """What compares tensors of both checkpoints of a job."""
    paths = Path(job.float_model), Path(job.quantized_model)
    return extension_for(CHECKPOINTS, paths[1], str(paths[1])).open(*paths)
