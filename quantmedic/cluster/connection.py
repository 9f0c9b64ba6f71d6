"""A connection to a Dask cluster; Dask is loaded when one is asked for, and not before."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from quantmedic.cluster.units import describe_worker, sees_file, wrong_versions
from quantmedic.collectors.measure.host import available_threads
from quantmedic.engine.errors import DataError
from quantmedic.engine.json_text import read_json
from quantmedic.engine.output_files import make_folder, scratch_folder, write_file

if TYPE_CHECKING:
    from distributed import Client

#: Seconds to wait for a scheduler, which runs already, and for its first worker, which a queue may hold back.
SCHEDULER_PATIENCE, WORKER_PATIENCE = 15, 60
#: What Dask sets for its workers costs those that measure: freed memory goes back to the system at once, so that each
#: batch asks for its pages again, and a thread looks a hundred times a second at what the others do. None unsets.
_QUIET_WORKERS = {
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
    "distributed.worker.profile.enabled": False,
}
#: How addresses of schedulers begin.
_PROTOCOLS = ("tcp://", "tls://", "ucx://", "ws://", "wss://", "inproc://")


@contextmanager
def connect(where: object) -> "Iterator[Client]":
    """A client of the cluster, whose workers are like this machine.

    Args:
        where: ``local`` or ``local:N``, which start workers here; the address of a scheduler; the path of its
            ``scheduler.json``; or a client, which stays open.

    Raises:
        DataError: Dask is not installed, or there is no such cluster or no worker.
        QuantmedicError: A worker has another version of what figures depend on.
    """
    distributed = _import_distributed()
    text = str(where)
    with ExitStack() as stack:
        if isinstance(where, distributed.Client):
            client = where
        elif text.partition(":")[0] == "local":
            cluster = stack.enter_context(_local_cluster(distributed, text))
            client = stack.enter_context(distributed.Client(cluster))
        else:
            client = stack.enter_context(_open_client(distributed, text))
        require_equal_workers(client)
        yield client


def _import_distributed() -> Any:
    try:
        import distributed  # an optional package
    except ImportError as error:
        raise DataError(
            "a cluster needs Dask, which is not installed", help="pip install 'quantmedic[cluster]'"
        ) from error
    return distributed


def _local_cluster(distributed: Any, text: str) -> Any:
    _, colon, count = text.partition(":")
    if colon and not (count.isdigit() and int(count)):
        raise _unknown(text)
    import dask  # comes with distributed

    with dask.config.set(_QUIET_WORKERS):
        return distributed.LocalCluster(
            n_workers=int(count) if colon else available_threads(),
            threads_per_worker=1,
            memory_limit=0,  # --memory bounds what is measured; Dask's bound would end workers
            dashboard_address=":0",  # not a port that may be taken
            silence_logs=logging.ERROR,
        )


def _open_client(distributed: Any, text: str) -> Any:
    address = text if text.startswith(_PROTOCOLS) else _address_in(text)
    try:
        return distributed.Client(address, timeout=SCHEDULER_PATIENCE)
    except (OSError, ValueError, TypeError, ImportError) as error:  # what Dask raises for what it cannot connect to
        raise DataError(
            "the scheduler does not answer",
            where=f"{text}: {error}" if text == address else f"{text}: {address}: {error}",
            help="start it with: dask scheduler; its workers with: dask worker ADDRESS --nthreads 1",
        ) from error


def _address_in(path: str) -> str:
    """The address that a scheduler has written into its file.

    Raises:
        DataError: There is no such file, or no address in it.
    """
    help = "give the file that the scheduler writes: dask scheduler --scheduler-file scheduler.json"
    if not Path(path).exists():
        if Path(path).suffix == ".json":
            raise DataError("there is no such file of a scheduler", where=f"--cluster {path}", help=help)
        raise _unknown(path)
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise DataError(
            "the file of the scheduler cannot be read", where=f"--cluster {path}: {error}", help=help
        ) from error
    address = content.get("address") if isinstance(content, dict) else None
    if not isinstance(address, str) or not address.startswith(_PROTOCOLS):
        raise DataError("the file of the scheduler holds no address", where=f"--cluster {path}", help=help)
    return address


def _unknown(text: str) -> DataError:
    return DataError(
        "the cluster cannot be read",
        where=f"--cluster {text}",
        help="give local, local:4, tcp://HOST:8786, or the path of a scheduler.json",
    )


def require_equal_workers(client: "Client") -> None:
    """Wait for a worker, and refuse any whose figures would differ from this machine's.

    Raises:
        DataError: No worker comes.
        QuantmedicError: Names the workers and what differs.
    """
    try:
        client.wait_for_workers(1, timeout=WORKER_PATIENCE)
    except TimeoutError as error:
        raise DataError(
            "the cluster has no workers", where=f"waited {WORKER_PATIENCE} s", help="dask worker ADDRESS --nthreads 1"
        ) from error
    expected = describe_worker()
    found = client.run(describe_worker)
    if others := {name: versions for name, versions in found.items() if versions != expected}:
        raise wrong_versions(others, expected)


@contextmanager
def shared_folder(client: "Client", beside: Path | None) -> Iterator[Path | None]:
    """A new folder for results that all workers see; None where there is none, and results travel.

    It is removed with what it holds at the end.

    Args:
        client: Whose workers.
        beside: File that the folder is to stand beside, where there is one.
    """
    parent = beside.absolute().parent if beside is not None else None
    if parent is not None:
        make_folder(parent)
    with scratch_folder(parent) as folder:
        token = folder / uuid4().hex
        write_file(token, b"")
        seen = client.run(sees_file, str(token))
        yield folder if all(seen.values()) else None
