"""What a worker holds open between two units of work: opening models costs more than many a unit."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Concatenate, ParamSpec, TypeVar, cast

from quantmedic.api.collect import open_measurement
from quantmedic.api.layer_searches import GoalOptions, open_experiment, open_fallback
from quantmedic.api.rulebase import load_rulebase
from quantmedic.cluster.answers import StoredCase, load_stored
from quantmedic.cluster.jobs import Job, read_job
from quantmedic.collectors.extensions import extension_for
from quantmedic.collectors.measure.checkpoints import CHECKPOINTS, CheckpointPair
from quantmedic.collectors.measure.collect_pair import SliceRun
from quantmedic.collectors.measure.models import Models
from quantmedic.collectors.native.runs import time_limit
from quantmedic.engine.errors import DataError
from quantmedic.trials.edit import find_executor
from quantmedic.trials.float_search import FallbackTrial
from quantmedic.trials.layer_search import Experiment
from quantmedic.trials.split import Pool
from quantmedic.trials.tasks import EditTask, Outcome, Task, attempt
from quantmedic.trials.workbench import Subject, Workbench
from quantmedic.version import VERSION

Opened = TypeVar("Opened")
P = ParamSpec("P")
_LOCK = Lock()
#: Those that nobody works with, of the last job alone.
_IDLE: dict[str, list[object]] = {}


@contextmanager
def borrow(
    open_job: Callable[Concatenate[Job, P], Opened], job: Job, *more: P.args, **named: P.kwargs
) -> Iterator[Opened]:
    """What a function of this module opens for a job; nobody else works with it meanwhile.

    What fails is not kept. The job alone tells what is open: ``more`` is what it names and cannot hold.
    """
    key = f"{open_job.__name__} {json.dumps(job, sort_keys=True)}"
    with _LOCK:
        for other in [name for name in _IDLE if name != key]:
            del _IDLE[other]
        kept = _IDLE.get(key)
        found = cast(Opened, kept.pop()) if kept else None
    with time_limit(job.get("measuring", {}).get("timeout")):
        opened = open_job(job, *more, **named) if found is None else found
        yield opened
    with _LOCK:
        _IDLE.setdefault(key, []).append(opened)


def forget() -> None:
    """Close what nobody works with."""
    with _LOCK:
        _IDLE.clear()


def open_slice_run(job: Job) -> SliceRun:
    """The models of a job, looked at on their first batch."""
    measurement, extras = open_measurement(job["float_model"], job["quantized_model"], read_job(job), load_rulebase())
    return SliceRun(measurement.models, measurement.datasets, measurement.options, VERSION, measurement.metric, extras)


def open_job_experiment(job: Job) -> Experiment:
    """The simulated network of a job, and the samples that it is run on."""
    options, paths = read_job(job), (job["float_model"], job["quantized_model"])
    return open_experiment(*paths, options.data, options.measuring, job["modes"])[0]


def open_job_fallback(job: Job) -> FallbackTrial:
    """The search of a job, which is told what to simulate."""
    options, paths = read_job(job), (job["float_model"], job["quantized_model"])
    return open_fallback(*paths, options.data, options.measuring, GoalOptions(**job["goal"]))[0]


@dataclass(frozen=True)
class TrialPlace:
    """A workbench, and the models as they were given."""

    models: Models
    bench: Workbench

    def carry_out(self, task: Task, deadline: float | None) -> Outcome:
        """What comes of a task; why it fails is part of that.

        Raises:
            OutOfTimeError: The deadline has passed.
            DataError: There is no such toolchain here.
        """
        if isinstance(task, EditTask):
            return attempt(partial(self.bench.carry_out, task, deadline))
        executor = find_executor(self.models, task.toolchain)
        missing = "it is not known" if executor is None else executor.missing()
        if executor is None or missing is not None:
            raise DataError(f"a worker cannot run {task.toolchain}", where=missing or "", help="install it everywhere")
        return attempt(partial(self.bench.run_text, executor, task, deadline))


def open_job_trials(job: Job, stored: StoredCase) -> TrialPlace:
    """The samples and models of trials, on a case that was measured of them."""
    opened, _ = open_measurement(job["float_model"], job["quantized_model"], read_job(job), load_rulebase())
    models = opened.models
    with models.as_deployed():
        metric = opened.metric if job["by_metric"] else None
        subject = Subject(models, models.editable(), load_stored(stored), opened.datasets, opened.options, metric)
        bench = Workbench(subject, Pool(**job["pool"]))
    return TrialPlace(models, bench)


def open_job_checkpoints(job: Job) -> CheckpointPair:
    """Both checkpoints of a job."""
    paths = Path(job["float_weights"]), Path(job["quantized_weights"])
    return extension_for(CHECKPOINTS, paths[1], str(paths[1])).open(*paths)
