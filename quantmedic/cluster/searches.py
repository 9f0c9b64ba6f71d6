"""Searches, and comparisons of checkpoints, whose runs are made by workers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from quantmedic.api.options import CollectOptions, ModelSource, SearchOptions
from quantmedic.cluster.connection import connect
from quantmedic.cluster.units import describe_job, run_units
from quantmedic.collectors.measure.checkpoints import Found
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
    float_model: ModelSource, quantized_model: ModelSource, options: SearchOptions
) -> Iterator[SimulateElsewhere]:
    """What simulates batches with workers while the connection is open.

    Raises:
        DataError: The cluster cannot be reached, or models or data are objects in memory.
        QuantmedicError: What a worker could not do.
    """
    job = describe_job(float_model, quantized_model, options)
    with connect(options.cluster) as client:

        def simulate(first: int, sets: Sequence[Units]) -> list[list[Float32]]:
            return simulate_units(client, "simulate_batches", (job,), first, sets)

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
    float_model: ModelSource, quantized_model: ModelSource, options: SearchOptions, record: SensitivityRecord
) -> Iterator[tuple[Mode, int, Outcome]]:
    """The runs that a record plans, as they come.

    Raises:
        DataError: The cluster cannot be reached, or models or data are objects in memory.
        QuantmedicError: What a worker could not do.
    """
    job, planned = describe_job(float_model, quantized_model, options), record.planned
    with connect(options.cluster) as client:
        size = _runs_of_unit(len(planned), sum(client.nthreads().values()))
        units = [planned[k : k + size] for k in range(0, len(planned), size)]
        for number, found in run_units(client, "run_experiments", [(job, unit) for unit in units]):
            for (mode, layer), outcome in zip(units[number], found, strict=True):
                yield mode, layer, outcome


def _runs_of_unit(runs: int, threads: int) -> int:
    """As many as leave each thread some units, so that none waits long for the last one."""
    return max(min(runs // (UNITS_OF_THREAD * max(threads, 1)), MOST_RUNS), 1)


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
