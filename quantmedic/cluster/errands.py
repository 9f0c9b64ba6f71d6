"""What workers do: functions of this package that are called by name with plain values, and answer with such.

An answer is ``{"done": value}``, or ``{"failed": …}`` with the texts of an error that the user can act on.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np
import onnxruntime

from quantmedic.cluster.jobs import Job
from quantmedic.cluster.workplaces import (
    borrow,
    open_job_checkpoints,
    open_job_experiment,
    open_job_fallback,
    open_slice_run,
)
from quantmedic.collectors.measure.case_file import read_case, write_case
from quantmedic.collectors.measure.host import has_vnni, wants_exact_kernels
from quantmedic.engine.case.facts import Role
from quantmedic.engine.case.records import Case
from quantmedic.engine.diagnosis.sensitivity import Mode
from quantmedic.engine.errors import QuantmedicError
from quantmedic.version import VERSION

P = ParamSpec("P")
Answer = dict[str, Any]
#: A case as its bytes, or the path of its file.
StoredCase = bytes | str


def describe_worker() -> dict[str, str]:
    """What has to be the same everywhere for figures to be the same."""
    return {
        "quantmedic": VERSION,
        "onnxruntime": onnxruntime.__version__,
        "numpy": np.__version__,
        "integer kernels": f"{'exact' if wants_exact_kernels() else f'VNNI {has_vnni()}'}",
    }


def sees_file(path: str) -> bool:
    """The file is on storage that this worker shares."""
    return Path(path).is_file()


def answer_plainly(function: Callable[P, Any]) -> Callable[P, Answer]:
    """The function, with what it returns and what it raises as plain values."""

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> Answer:
        try:
            return {"done": function(*arguments, **options)}
        except QuantmedicError as error:
            kind = type(error).__name__
            return {"failed": {"kind": kind, "message": error.message, "where": [*error.where], "help": error.help}}

    return call


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
        return _store(run.measure(role, number), target)


@answer_plainly
def run_experiment(job: Job, versions: dict[str, str], mode: Mode, unit: int) -> dict[str, Any]:
    """One run of ``sensitivity``, as the fields of its outcome."""
    require_versions(versions)
    with borrow(open_job_experiment, job) as experiment:
        return experiment.run(mode, unit).model_dump()


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
    return _store(case, target)


def require_versions(expected: dict[str, str]) -> None:
    """Refuse to work where figures would not be those of the others.

    Raises:
        QuantmedicError: Names what differs.
    """
    mine = describe_worker()
    if mine != expected:
        raise wrong_versions({_worker_name(): mine}, expected)


def wrong_versions(workers: dict[str, dict[str, str]], expected: dict[str, str]) -> QuantmedicError:
    """The error for workers that are not like the client."""
    where = [
        f"{name}  {key} {found.get(key)}, here {wanted}"
        for name, found in workers.items()
        for key, wanted in expected.items()
        if found.get(key) != wanted
    ]
    return QuantmedicError(
        "a worker would give other figures than this machine",
        where=where,
        help="install the same versions everywhere; for kernels set QUANTMEDIC_EXACT_KERNELS=1 everywhere",
    )


def _worker_name() -> str:
    from distributed import get_worker  # an optional package, and only a worker gets here

    try:
        return str(get_worker().address)
    except ValueError:
        return "this process"


def load_stored(stored: StoredCase) -> Case:
    """The case of a path or of bytes."""
    if isinstance(stored, str):
        return read_case(Path(stored))
    with _scratch_file() as path:
        path.write_bytes(stored)
        return read_case(path)


def _store(case: Case, target: str | None) -> StoredCase:
    if target is not None:
        # The folder is gone where nobody waits for the result any more.
        if Path(target).parent.is_dir():
            write_case(case, Path(target))
        return target
    with _scratch_file() as path:
        write_case(case, path)
        return path.read_bytes()


@contextmanager
def _scratch_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "part.case"
