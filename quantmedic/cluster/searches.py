"""The search for layers in float, whose evaluations are divided among workers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from quantmedic.api.options import CollectOptions, DataOptions, MeasuringOptions, ModelSource
from quantmedic.cluster.answers import describe_worker
from quantmedic.cluster.connection import connect
from quantmedic.cluster.jobs import describe_job
from quantmedic.cluster.units import run_units
from quantmedic.engine.diagnosis.fallback import Units
from quantmedic.trials.fallback import Elsewhere, Float32

#: Batches that a unit of work simulates: an evaluation has up to 256 of them, of one sample each.
BATCHES = 16


@contextmanager
def simulate_on_cluster(
    where: object,
    float_model: ModelSource,
    quantized_model: ModelSource,
    data: DataOptions,
    measuring: MeasuringOptions,
    goal: Mapping[str, float | None],
) -> Iterator[Elsewhere]:
    """What simulates batches with workers while the connection is open.

    Raises:
        DataError: The cluster cannot be reached, or models or data are objects in memory.
        QuantmedicError: What a worker could not do.
    """
    job = describe_job(float_model, quantized_model, CollectOptions(data=data, measuring=measuring))
    job["goal"], versions = dict(goal), describe_worker()
    with connect(where) as client:

        def simulate(first: int, sets: Sequence[Units]) -> list[list[Float32]]:
            units = [(job, versions, *part) for part in in_batches(first, sets)]
            found = dict(run_units(client, "simulate_batches", units))
            return [outputs for number in range(len(units)) for outputs in found[number]]

        yield simulate


def in_batches(first: int, sets: Sequence[Units]) -> list[tuple[int, list[list[int]]]]:
    """Batches from a first one on, each with what stays in float, cut into units of work."""
    starts = range(0, len(sets), BATCHES)
    return [(first + k, [sorted(map(int, units)) for units in sets[k : k + BATCHES]]) for k in starts]
