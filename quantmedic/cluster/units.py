"""Units of work that a cluster's workers do, in any order, and what becomes of their failures."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from quantmedic.cluster.answers import describe_worker, run_errand
from quantmedic.engine.errors import QuantmedicError

if TYPE_CHECKING:
    from distributed import Client, Future

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
