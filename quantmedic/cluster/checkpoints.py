"""Checkpoints compared by workers, some layers at a time."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from quantmedic.cluster.answers import describe_worker
from quantmedic.cluster.connection import connect
from quantmedic.cluster.jobs import THREADS
from quantmedic.cluster.units import run_units
from quantmedic.collectors.measure.checkpoints import Found


def compare_on_cluster(
    float_path: Path, quantized_path: Path, where: object, threads: int | None, groups: Sequence[Sequence[str]]
) -> Iterator[tuple[int, Found]]:
    """What comparing groups of tensors finds, by the number of the group, as it comes.

    Raises:
        DataError: The cluster cannot be reached.
        QuantmedicError: What a worker could not do.
    """
    job = {
        "float_weights": str(float_path.resolve()),
        "quantized_weights": str(quantized_path.resolve()),
        "threads": threads or THREADS,
    }
    versions = describe_worker()
    with connect(where) as client:
        yield from run_units(client, "compare_layers", [(job, versions, list(names)) for names in groups])
