"""Searches whose runs are made by workers: runs of ``sensitivity``, and evaluations of a set of layers in float."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from quantmedic.api.options import CollectOptions, DataOptions, MeasuringOptions, ModelSource
from quantmedic.cluster.answers import describe_worker
from quantmedic.cluster.connection import connect
from quantmedic.cluster.jobs import describe_job
from quantmedic.cluster.units import run_units
from quantmedic.engine.contract.searches import Mode, Outcome, SensitivityRecord
from quantmedic.engine.diagnosis.smallest_set import Units
from quantmedic.trials.layer_search import Float32, SimulateElsewhere

if TYPE_CHECKING:
    from distributed import Client

#: Batches that a unit of work simulates: an evaluation has up to 256 of them, of one sample each.
BATCHES = 16
#: Runs of one unit at most: what a lost worker costs, and what progress moves by.
MOST_RUNS = 8
#: Units for each thread at least.
UNITS_OF_THREAD = 4


@contextmanager
def simulate_on_cluster(
    where: object,
    float_model: ModelSource,
    quantized_model: ModelSource,
    data: DataOptions,
    measuring: MeasuringOptions,
    goal: Mapping[str, float | None],
) -> Iterator[SimulateElsewhere]:
    """What simulates batches with workers while the connection is open.

    Raises:
        DataError: The cluster cannot be reached, or models or data are objects in memory.
        QuantmedicError: What a worker could not do.
    """
    job = describe_job(float_model, quantized_model, CollectOptions(data=data, measuring=measuring))
    job["goal"], versions = dict(goal), describe_worker()
    with connect(where) as client:

        def simulate(first: int, sets: Sequence[Units]) -> list[list[Float32]]:
            return simulate_units(client, "simulate_batches", (job, versions), first, sets)

        yield simulate


def simulate_units(
    client: "Client", errand: str, given: tuple[object, ...], first: int, sets: Sequence[Units]
) -> list[list[Float32]]:
    """The outputs of batches from a first one on, each with what stays in float, simulated in units of work.

    Args:
        client: Whose workers.
        errand: What a worker does; it takes ``given``, a first batch, and what stays in float in it and those behind.
        given: What is the same for all units.
        first: Number of the first batch.
        sets: What stays in float, by batch.

    Raises:
        QuantmedicError: What a worker could not do.
    """
    starts = range(0, len(sets), BATCHES)
    parts = [[sorted(map(int, units)) for units in sets[k : k + BATCHES]] for k in starts]
    units = [(*given, first + k, part) for k, part in zip(starts, parts, strict=True)]
    found = dict(run_units(client, errand, units))
    return [outputs for number in range(len(units)) for outputs in found[number]]


def run_on_cluster(
    float_model: ModelSource,
    quantized_model: ModelSource,
    data: DataOptions,
    measuring: MeasuringOptions,
    where: object,
    record: SensitivityRecord,
) -> Iterator[tuple[Mode, int, Outcome]]:
    """The runs that a record lacks, as they come.

    Raises:
        DataError: The cluster cannot be reached, or models or data are objects in memory.
        QuantmedicError: What a worker could not do.
    """
    job = describe_job(float_model, quantized_model, CollectOptions(data=data, measuring=measuring))
    job["modes"] = list(record.modes)
    missing, versions = record.missing, describe_worker()
    with connect(where) as client:
        size = _runs_of_unit(len(missing), sum(client.nthreads().values()))
        units = [missing[k : k + size] for k in range(0, len(missing), size)]
        for number, found in run_units(client, "run_experiments", [(job, versions, unit) for unit in units]):
            for (mode, layer), outcome in zip(units[number], found, strict=True):
                yield mode, layer, Outcome.model_validate(outcome)


def _runs_of_unit(runs: int, threads: int) -> int:
    """As many as leave each thread some units, so that none waits long for the last one."""
    return max(min(runs // (UNITS_OF_THREAD * max(threads, 1)), MOST_RUNS), 1)
