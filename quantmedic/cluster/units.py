"""Units of work that workers do, in any order: what travels to them and back, and what has to be the same there."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from quantmedic.api.options import CollectOptions, ModelSource
from quantmedic.collectors.case_file.archive import read_case, write_case
from quantmedic.collectors.data.functions import FUNCTION
from quantmedic.collectors.measure.host import has_vnni, wants_exact_kernels
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import DataError, QuantmedicError
from quantmedic.engine.output_files import scratch_folder, write_file
from quantmedic.engine.version import VERSION
from quantmedic.trials.split import Pool

if TYPE_CHECKING:
    from distributed import Client, Future


#: Threads of one unit of work: workers are many instead.
THREADS = 1
#: What an error calls the options that are files or folders.
_FILES = {
    "representative": "the representative data",
    "validation": "the validation data",
    "labels": "the labels",
    "reference_outputs": "the reference outputs",
    "device_outputs": "the outputs of the device",
}
#: What this machine alone needs, as it is by default.
_ELSEWHERE: Mapping[str, Any] = {
    **dict.fromkeys(("tokens", "device_tensors", "device_names", "mct_log", "core_config", "prove", "write_fixed")),
    **dict.fromkeys(("checkpoint", "cluster")),
    **{"toolchain_logs": (), "settings_files": (), "resume": False},
}


@dataclass(frozen=True)
class Trial:
    """The samples that the trials on a case keep, and whether they measure the task metric.

    ``case`` tells one case of a job from another.
    """

    pool: Pool
    by_metric: bool
    case: str


@dataclass(frozen=True)
class Job:
    """Absolute paths, or ``module:function``, of two models, and the options with paths of their data."""

    float_model: str
    quantized_model: str
    options: CollectOptions
    trial: Trial | None = None


def describe_job(float_model: ModelSource, quantized_model: ModelSource, options: CollectOptions) -> Job:
    """What a worker has to know to open the same models and data and to measure as asked.

    Raises:
        DataError: A model or a data set is an object in memory, which does not travel.
    """
    stages = options.stages.items() if isinstance(options.stages, Mapping) else options.stages
    files = {
        name: _place(getattr(options, name), what)
        for name, what in _FILES.items()
        if getattr(options, name) is not None
    }
    own = replace(
        options,
        **{**_ELSEWHERE, **files},
        threads=options.threads or THREADS,
        stages=tuple((name, _place(path, f"stage {name}")) for name, path in stages),
    )
    return Job(_place(float_model, "the float model"), _place(quantized_model, "the quantized model"), own)


def _place(source: object, what: str) -> str:
    """Absolute path of a file or folder; ``module:function`` as it is."""
    if not isinstance(source, str | Path):
        raise DataError(
            f"{what} cannot go to workers: only paths travel",
            where=type(source).__name__,
            help="save it and give the path on storage that all workers see, or module:function that all can import",
        )
    if isinstance(source, str) and FUNCTION.fullmatch(source) and not Path(source).exists():
        return source
    return str(Path(source).expanduser().resolve())


#: A case as its bytes, or the path of its file.
StoredCase = bytes | str
#: Module of what workers do. It opens models, which the client does in its own way: it only knows the names in there.
ERRANDS = "quantmedic.cluster.errands"


def run_errand(name: str, versions: dict[str, str], *arguments: Any) -> Any:
    """Call a function of ``errands`` by its name; an error that the user can act on is the answer, and not raised.

    Args:
        name: Of the function.
        versions: What ``describe_worker`` has to say: workers may have joined since that was asked.
        arguments: What the function takes.
    """
    try:
        require_versions(versions)
        return getattr(import_module(ERRANDS), name)(*arguments)
    except QuantmedicError as error:
        return error


def describe_worker() -> dict[str, str]:
    """What has to be the same everywhere for figures to be the same."""
    import onnxruntime  # slow to import, and most measurements have no cluster

    return {
        "quantmedic": VERSION,
        "onnxruntime": onnxruntime.__version__,
        "numpy": np.__version__,
        "integer kernels": f"{'exact' if wants_exact_kernels() else f'VNNI {has_vnni()}'}",
    }


def sees_file(path: str) -> bool:
    """The file is on storage that this worker shares."""
    return Path(path).is_file()


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
        write_file(path, stored)
        return read_case(path)


def store_case(case: Case, target: str | None) -> StoredCase:
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
    with scratch_folder() as folder:
        yield folder / "part.case"


#: Times that a unit is tried again, on another worker where there is one.
RETRIES = 3


def submit(client: "Client", errand: str, *arguments: Any, priority: int = 0) -> "Future":
    """Let a worker call a function of ``errands``.

    Args:
        client: Whose workers.
        errand: Name of the function.
        arguments: What it takes: paths, options, small records, cases as `answers` stores them.
        priority: Higher ones first.
    """
    key = f"quantmedic-{errand}-{uuid4().hex}"
    return client.submit(
        run_errand, errand, describe_worker(), *arguments, key=key, priority=priority, retries=RETRIES, pure=False
    )


def answer_of(future: "Future") -> Any:
    """What a worker answered.

    Raises:
        QuantmedicError: What it could not do.
    """
    answer = future.result()
    if isinstance(answer, QuantmedicError):
        raise answer
    return answer


def run_units(client: "Client", errand: str, units: Sequence[Sequence[Any]]) -> Iterator[tuple[int, Any]]:
    """Call a function of this package once for each unit; yields the number of a unit and its result as they come.

    Whatever ends the iteration, Ctrl-C too, cancels what is left.

    Args:
        client: Whose workers.
        errand: Name of a function in ``errands``.
        units: Its arguments.

    Raises:
        QuantmedicError: What a worker could not do.
    """
    from distributed import as_completed  # an optional package

    futures = [submit(client, errand, *unit, priority=-number) for number, unit in enumerate(units)]
    places = {future.key: number for number, future in enumerate(futures)}
    try:
        for future in as_completed(futures):
            yield places[future.key], answer_of(future)
    finally:
        client.cancel(futures)
