"""What a worker holds open between two units of work: opening models costs more than many a unit."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TypeVar, cast

from quantmedic.api.collect import open_measurement
from quantmedic.api.rulebase import load_rulebase
from quantmedic.api.searches.fallbacks import GoalOptions, open_fallback
from quantmedic.api.sensitivities import open_experiment
from quantmedic.cluster.jobs import Job, read_job
from quantmedic.collectors.from_checkpoint.collect import CheckpointPair, open_checkpoints
from quantmedic.collectors.measure.slice_run import SliceRun
from quantmedic.collectors.native.runs import time_limit
from quantmedic.trials.fallback import FallbackTrial
from quantmedic.trials.sensitivity import Experiment
from quantmedic.version import VERSION

Opened = TypeVar("Opened")
_LOCK = Lock()
#: Those that nobody works with, of the last job alone.
_IDLE: dict[str, list[object]] = {}


@contextmanager
def borrow(open_job: Callable[[Job], Opened], job: Job) -> Iterator[Opened]:
    """What a function of this module opens for a job; nobody else works with it meanwhile.

    What fails is not kept.
    """
    key = f"{open_job.__name__} {json.dumps(job, sort_keys=True)}"
    with _LOCK:
        for other in [name for name in _IDLE if name != key]:
            del _IDLE[other]
        kept = _IDLE.get(key)
        found = cast(Opened, kept.pop()) if kept else None
    with time_limit(job.get("measuring", {}).get("timeout")):
        opened = open_job(job) if found is None else found
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


def open_job_checkpoints(job: Job) -> CheckpointPair:
    """Both checkpoints of a job."""
    return open_checkpoints(Path(job["float_weights"]), Path(job["quantized_weights"]))
