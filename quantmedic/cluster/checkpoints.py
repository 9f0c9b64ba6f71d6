"""Checkpoints compared by workers, some layers at a time."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from quantmedic.api.options import CollectOptions
from quantmedic.cluster.connection import connect
from quantmedic.cluster.jobs import describe_job
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
    job = describe_job(float_path, quantized_path, CollectOptions(threads=threads))
    with connect(where) as client:
        yield from run_units(client, "compare_layers", [(job, list(names)) for names in groups])
