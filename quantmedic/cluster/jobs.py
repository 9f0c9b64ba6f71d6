"""What a worker is told: which files to open and how, as plain values that JSON knows."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from quantmedic.api.options import (
    CollectOptions,
    DataOptions,
    MeasuringOptions,
    ModelSource,
    ReferenceOptions,
)
from quantmedic.collectors.data.functions import FUNCTION
from quantmedic.collectors.data.preprocessing import Preprocessing
from quantmedic.engine.errors import DataError

#: Plain values by name.
Job = dict[str, Any]
#: Threads of one unit of work: workers are many instead.
THREADS = 1


def describe_job(float_model: ModelSource, quantized_model: ModelSource, options: CollectOptions) -> Job:
    """What a worker has to know to open the same models and data and to measure as asked.

    Raises:
        DataError: A model or a data set is an object in memory, which does not travel.
    """
    data, measuring, references = options.data, options.measuring, options.references
    stages = references.stages.items() if isinstance(references.stages, Mapping) else references.stages
    plain = ("samples", "metric", "metric_direction", "metric_output")
    return {
        "float_model": _place(float_model, "the float model"),
        "quantized_model": _place(quantized_model, "the quantized model"),
        "sources": {role: _place(source, f"the {role} data") for role, source in data.sources.items()},
        "labels": _optional_place(data.labels, "the labels"),
        "preprocessing": {role: vars(given) for role, given in data.preprocessing.items()},
        "metric_options": dict(data.metric_options),
        **{name: getattr(data, name) for name in plain},
        "measuring": {field.name: getattr(measuring, field.name) for field in fields(MeasuringOptions)},
        "threads": measuring.threads or THREADS,
        "reference_outputs": _optional_place(references.reference_outputs, "the reference outputs"),
        "device_outputs": _optional_place(references.device_outputs, "the outputs of the device"),
        "expected_float_metric": references.expected_float_metric,
        "expected_quantized_metric": references.expected_quantized_metric,
        "stages": [[name, _place(path, f"stage {name}")] for name, path in stages],
        "mapping": None if options.mapping is None else dict(options.mapping),
    }


def read_job(job: Job) -> CollectOptions:
    """The options that a job describes."""
    plain = ("labels", "samples", "metric", "metric_direction", "metric_output", "metric_options")
    data = DataOptions(
        **job["sources"],
        preprocessing={role: _preprocessing(given) for role, given in job["preprocessing"].items()},
        **{name: job[name] for name in plain},
    )
    references = ReferenceOptions(
        reference_outputs=job["reference_outputs"],
        device_outputs=job["device_outputs"],
        expected_float_metric=job["expected_float_metric"],
        expected_quantized_metric=job["expected_quantized_metric"],
        stages=[(name, path) for name, path in job["stages"]],
    )
    measuring = MeasuringOptions(**{**job["measuring"], "threads": job["threads"]})
    return CollectOptions(data=data, measuring=measuring, references=references, mapping=job["mapping"])


def _preprocessing(given: Mapping[str, Any]) -> Preprocessing:
    plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
    return Preprocessing(**plain)


def _optional_place(source: object, what: str) -> str | None:
    return None if source is None else _place(source, what)


def _place(source: object, what: str) -> str:
    """Absolute path of a file or folder; ``module:function`` as it is."""
    if not isinstance(source, str | Path):
        raise DataError(
            f"{what} cannot go to workers: only paths travel",
            where=type(source).__name__,
            help="save it and give the path on storage that all workers see, or module:function that all can import",
        )
    if isinstance(source, str) and FUNCTION.fullmatch(source) and not Path(source).exists():
        return source
    return str(Path(source).expanduser().resolve())
