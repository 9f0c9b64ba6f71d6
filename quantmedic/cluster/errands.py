"""What workers do: functions that are called by name with plain values, and answer with such.

An answer is ``{"done": value}``, or ``{"failed": …}`` with the texts of an error that the user can act on.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quantmedic.cluster.answers import Answer, StoredCase, answer_plainly, load_stored, require_versions, store_case
from quantmedic.cluster.jobs import Job
from quantmedic.cluster.tasks import Plain, outcome_as_plain, read_task
from quantmedic.cluster.workplaces import (
    borrow,
    open_job_checkpoints,
    open_job_experiment,
    open_job_fallback,
    open_job_trials,
    open_slice_run,
)
from quantmedic.engine.case.facts import Role
from quantmedic.engine.contract.searches import Mode
from quantmedic.trials.bench import OutOfTimeError


@answer_plainly
def measure_slice(job: Job, versions: dict[str, str], role: Role, number: int, target: str | None) -> StoredCase:
    """Measure one slice of a data set.

    Args:
        job: Models, data and options.
        versions: What ``describe_worker`` has to say: workers may have joined since that was asked.
        role: The data set.
        number: The slice.
        target: File for the case, on storage that all share; None gives its bytes.
    """
    require_versions(versions)
    if target is not None and Path(target).exists():
        return target
    with borrow(open_slice_run, job) as run:
        return store_case(run.measure(role, number), target)


@answer_plainly
def run_experiments(job: Job, versions: dict[str, str], runs: Sequence[tuple[Mode, int]]) -> list[dict[str, Any]]:
    """Runs of ``sensitivity``, as the fields of their outcomes."""
    require_versions(versions)
    with borrow(open_job_experiment, job) as experiment:
        return [experiment.run(mode, unit).model_dump() for mode, unit in runs]


@answer_plainly
def simulate_batches(job: Job, versions: dict[str, str], first: int, sets: Sequence[Sequence[int]]) -> list[list[Any]]:
    """Outputs of the network for some batches of a search for layers in float.

    Args:
        job: Models, data and goal.
        versions: See ``measure_slice``.
        first: The first of these batches.
        sets: What stays in float, for each of them.
    """
    require_versions(versions)
    with borrow(open_job_fallback, job) as trial:
        return trial.simulate_batches(first, [frozenset(units) for units in sets])


@answer_plainly
def carry_out(job: Job, versions: dict[str, str], stored: StoredCase, task: Plain, seconds: float | None) -> Any:
    """One task of a trial, as the fields of its outcome; None where the time was over.

    Args:
        job: Models, data and options, and the samples that are kept.
        versions: See ``measure_slice``.
        stored: What was measured of the models.
        task: What to do.
        seconds: Time for it, opening the models included; None: no clock ends it.
    """
    require_versions(versions)
    deadline = None if seconds is None else time.monotonic() + seconds
    with borrow(open_job_trials, job, stored) as place, place.models.as_deployed():
        try:
            return outcome_as_plain(place.carry_out(read_task(task), deadline))
        except OutOfTimeError:
            return None


@answer_plainly
def simulate_search(
    job: Job, versions: dict[str, str], stored: StoredCase, least_db: float, first: int, sets: Sequence[Sequence[int]]
) -> list[list[Any]]:
    """``simulate_batches`` for a trial, whose search has to reach this output SQNR."""
    require_versions(versions)
    with borrow(open_job_trials, job, stored) as place, place.models.as_deployed():
        search = place.bench.search(least_db)
        return search.simulate_batches(first, [frozenset(units) for units in sets])


@answer_plainly
def compare_layers(job: Job, versions: dict[str, str], names: Sequence[str]) -> dict[str, Any]:
    """What comparing some tensors of two checkpoints finds, as plain values."""
    require_versions(versions)
    with borrow(open_job_checkpoints, job) as pair:
        return pair.compare(names, job["threads"])


def merge_cases(parts: Sequence[Answer], target: str | None) -> Answer:
    """Add up cases of slices; the first failure among them is the answer."""
    failed = next((part for part in parts if "failed" in part), None)
    return failed or _merge_stored([part["done"] for part in parts], target)


@answer_plainly
def _merge_stored(parts: Sequence[StoredCase], target: str | None) -> StoredCase:
    if target is not None and Path(target).exists():
        return target
    case = load_stored(parts[0])
    for part in parts[1:]:
        case = case.merge(load_stored(part))
    return store_case(case, target)
