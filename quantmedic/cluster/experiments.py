"""Runs of ``sensitivity`` made by workers, some at a time: one takes milliseconds in a small network."""

from collections.abc import Iterator

from quantmedic.api.options import CollectOptions, DataOptions, MeasuringOptions, ModelSource
from quantmedic.cluster.answers import describe_worker
from quantmedic.cluster.connection import connect
from quantmedic.cluster.jobs import describe_job
from quantmedic.cluster.units import run_units
from quantmedic.engine.contract.searches import Mode, Outcome, SensitivityRecord

#: Runs of one unit at most: what a lost worker costs, and what progress moves by.
MOST_RUNS = 8
#: Units for each thread at least.
UNITS_OF_THREAD = 4


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
        size = runs_of_unit(len(missing), sum(client.nthreads().values()))
        units = [missing[k : k + size] for k in range(0, len(missing), size)]
        for number, found in run_units(client, "run_experiments", [(job, versions, unit) for unit in units]):
            for (mode, layer), outcome in zip(units[number], found, strict=True):
                yield mode, layer, Outcome.model_validate(outcome)


def runs_of_unit(runs: int, threads: int) -> int:
    """As many as leave each thread some units, so that none waits long for the last one."""
    return max(min(runs // (UNITS_OF_THREAD * max(threads, 1)), MOST_RUNS), 1)
