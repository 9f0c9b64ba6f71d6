"""What client and workers tell each other: answers, cases, and what has to be the same on all machines."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from quantmedic.collectors.case_file.archive import read_case, write_case
from quantmedic.collectors.measure.host import has_vnni, wants_exact_kernels
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.output_files import scratch_folder, write_file
from quantmedic.engine.version import VERSION

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
