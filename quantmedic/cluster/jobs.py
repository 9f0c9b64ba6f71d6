"""What a worker has to know: which files to open and how. Models and data do not travel, only their paths."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quantmedic.api.options import CollectOptions, ModelSource
from quantmedic.collectors.data.functions import FUNCTION
from quantmedic.engine.errors import DataError
from quantmedic.trials.split import Pool

#: Threads of one unit of work: workers are many instead.
THREADS = 1
#: What an error calls the options that are files or folders.
_FILES = {
    "representative": "the representative data",
    "validation": "the validation data",
    "labels": "the labels",
    "reference_outputs": "the reference outputs",
    "device_outputs": "the outputs of the device",
}
#: What this machine alone needs, as it is by default.
_ELSEWHERE: Mapping[str, Any] = {
    **dict.fromkeys(("tokens", "device_tensors", "device_names", "mct_log", "core_config", "prove", "write_fixed")),
    **dict.fromkeys(("checkpoint", "cluster")),
    **{"toolchain_logs": (), "settings_files": (), "resume": False},
}


@dataclass(frozen=True)
class Trial:
    """The samples that the trials on a case keep, and whether they measure the task metric.

    ``case`` tells one case of a job from another.
    """

    pool: Pool
    by_metric: bool
    case: str


@dataclass(frozen=True)
class Job:
    """Absolute paths, or ``module:function``, of two models, and the options with paths of their data."""

    float_model: str
    quantized_model: str
    options: CollectOptions
    trial: Trial | None = None


def describe_job(float_model: ModelSource, quantized_model: ModelSource, options: CollectOptions) -> Job:
    """What a worker has to know to open the same models and data and to measure as asked.

    Raises:
        DataError: A model or a data set is an object in memory, which does not travel.
    """
    stages = options.stages.items() if isinstance(options.stages, Mapping) else options.stages
    files = {
        name: _place(getattr(options, name), what)
        for name, what in _FILES.items()
        if getattr(options, name) is not None
    }
    own = replace(
        options,
        **{**_ELSEWHERE, **files},
        threads=options.threads or THREADS,
        stages=tuple((name, _place(path, f"stage {name}")) for name, path in stages),
    )
    return Job(_place(float_model, "the float model"), _place(quantized_model, "the quantized model"), own)


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
