"""Runs of ``sensitivity`` made by workers."""

from collections.abc import Iterator

from quantmedic.api.options import CollectOptions, DataOptions, MeasuringOptions, ModelSource
from quantmedic.cluster.answers import describe_worker
from quantmedic.cluster.connection import connect
from quantmedic.cluster.jobs import describe_job
from quantmedic.cluster.units import run_units
from quantmedic.engine.diagnosis.sensitivity import Mode, Outcome, SensitivityRecord


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
        for number, found in run_units(client, "run_experiment", [(job, versions, *run) for run in missing]):
            yield *missing[number], Outcome.model_validate(found)
