"""Units of work that a cluster's workers do, in any order, and what becomes of their failures."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from quantmedic.cluster.answers import Answer, run_errand
from quantmedic.engine import errors
from quantmedic.engine.errors import QuantmedicError

if TYPE_CHECKING:
    from distributed import Client

#: Times that a unit is tried again, on another worker where there is one.
RETRIES = 3


def raise_failure(answer: Answer) -> None:
    """Raise the error that an answer tells of.

    Raises:
        QuantmedicError: What the worker could not do.
    """
    failed = answer.get("failed")
    if failed is None:
        return
    kind = getattr(errors, failed["kind"], QuantmedicError)
    raise kind(failed["message"], where=failed["where"], help=failed["help"])


def run_units(client: "Client", errand: str, units: Sequence[Sequence[Any]]) -> Iterator[tuple[int, Any]]:
    """Call a function of this package once for each unit; yields the number of a unit and its result as they come.

    Whatever ends the iteration, Ctrl-C too, cancels what is left.

    Args:
        client: Whose workers.
        errand: Name of a function in ``errands``.
        units: Its arguments, plain values.

    Raises:
        QuantmedicError: What a worker could not do.
    """
    from distributed import as_completed  # an optional package

    run = uuid4().hex
    futures = [
        client.submit(
            run_errand,
            errand,
            *unit,
            key=f"quantmedic-{errand}-{number}-{run}",
            retries=RETRIES,
            priority=-number,
            pure=False,
        )
        for number, unit in enumerate(units)
    ]
    places = {future.key: number for number, future in enumerate(futures)}
    try:
        for future in as_completed(futures):
            answer: Answer = future.result()
            raise_failure(answer)
            yield places[future.key], answer["done"]
    finally:
        client.cancel(futures)
