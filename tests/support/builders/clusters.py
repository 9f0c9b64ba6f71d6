"""Dask clusters on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import distributed


@contextmanager
def cluster_of(workers: int, *, processes: bool = False) -> Iterator[Any]:
    """A client of so many workers of one thread each, in this process or in their own."""
    local = distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=processes, dashboard_address=":0", memory_limit=0
    )
    with local, distributed.Client(local) as client:
        yield client
