"""Opening two models with the data that they are judged on, as every command does it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from quantmedic.api.options import DataOptions, DataSource, MeasuringOptions, ModelSource
from quantmedic.collectors.data.datasets import Dataset, open_dataset
from quantmedic.collectors.data.functions import FUNCTION, import_function
from quantmedic.collectors.data.metrics import Metric, load_metric
from quantmedic.collectors.data.preprocessing import Preprocessing
from quantmedic.collectors.from_onnx.models import open_models
from quantmedic.collectors.measure.collect import collect
from quantmedic.collectors.measure.host import available_threads
from quantmedic.collectors.measure.models import FileModels, Models
from quantmedic.collectors.measure.options import Options
from quantmedic.engine.case.facts import Role
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import DataError, ModelError, QuantmedicError
from quantmedic.version import VERSION

#: Samples from which is told what can be quantized.
LOOKED_AT = 16
#: What every LiteRT file has at byte 4, and how such files are named.
LITERT_IDENTIFIER, LITERT_SUFFIXES = b"TFL3", (".tflite", ".lite")


@dataclass(frozen=True)
class Opened:
    """Two models, the validation data, and a case of a few of its samples."""

    models: Models
    dataset: Dataset
    metric: Metric | None
    case: Case
    threads: int


def open_validation(
    float_model: ModelSource, quantized_model: ModelSource, data: DataOptions, measuring: MeasuringOptions
) -> Opened:
    """Open what ``sensitivity`` and ``fallback`` need; see there.

    Raises:
        DataError: The data do not fit the model, or none were given.
        ModelError: A model cannot be read, or the two do not belong together.
    """
    if data.validation is None:
        raise DataError("no data was given", help="pass the evaluation data with --validation")
    models, datasets = open_pair(
        float_model,
        quantized_model,
        {"validation": data.validation},
        preprocessing=data.preprocessing,
        labels=data.labels,
    )
    dataset = datasets["validation"]
    name = data.metric or default_metric([dataset])
    metric = load_metric(name, data.metric_direction, output=data.metric_output) if name else None
    threads = measuring.threads or available_threads()
    options = Options(samples=max(LOOKED_AT, dataset.unit), threads=threads, seed=measuring.seed)
    with models.as_deployed():
        case = collect(models, {"validation": dataset}, options=options, version=VERSION, metric=metric)
    return Opened(models, dataset, metric, case, threads)


def open_pair(
    float_model: ModelSource,
    quantized_model: ModelSource,
    given: Mapping[Role, DataSource],
    *,
    preprocessing: Mapping[Role, Preprocessing],
    labels: str | Path | None = None,
    mapping: Mapping[str, str] | None = None,
) -> tuple[Models, dict[Role, Dataset]]:
    """Open two models, whatever their framework, and the data that they are given.

    Raises:
        DataError: A data set does not fit the models.
        ModelError: A model cannot be read, or the two do not belong together.
    """
    float_model, quantized_model = model_of(float_model), model_of(quantized_model)
    if not isinstance(float_model, str | Path) and not isinstance(quantized_model, str | Path):
        return _open_modules(float_model, quantized_model, given, preprocessing, labels, mapping)
    if not isinstance(float_model, str | Path) or not isinstance(quantized_model, str | Path):
        raise ModelError(
            "one model is a file, the other is not",
            where=[f"float     {_source_name(float_model)}", f"quantized {_source_name(quantized_model)}"],
            help="give two files, or two torch modules",
        )
    if mapping:
        raise DataError("mapping is for torch modules", help="files are matched by their graphs; leave it out")
    models = _open_paths(Path(float_model), Path(quantized_model))
    models.probe()
    datasets = {
        role: open_dataset(
            source,
            models.input_specs,
            preprocessing=preprocessing.get(role, Preprocessing()),
            labels=labels if role == "validation" or "validation" not in given else None,
            role=role,
        )
        for role, source in given.items()
    }
    return models, datasets


def open_files(float_model: ModelSource, quantized_model: ModelSource) -> FileModels:
    """Open two ONNX or LiteRT files, given by path or by ``module:function``, without data.

    Raises:
        ModelError: One is no file or cannot be read, or the two do not belong together.
    """
    float_model, quantized_model = model_of(float_model), model_of(quantized_model)
    if not isinstance(float_model, str | Path) or not isinstance(quantized_model, str | Path):
        raise ModelError(
            "torch modules cannot be judged without data: what they compute is found out by running them",
            where=[f"float     {_source_name(float_model)}", f"quantized {_source_name(quantized_model)}"],
            help="leave --static out and pass the calibration data with --representative",
        )
    return _open_paths(Path(float_model), Path(quantized_model))


def is_litert(path: Path) -> bool:
    """A file says of itself that it is a LiteRT model, or its name does."""
    if path.suffix.lower() in LITERT_SUFFIXES:
        return True
    try:
        with path.open("rb") as stream:
            return stream.read(8)[4:] == LITERT_IDENTIFIER
    except OSError:
        return False


def _open_paths(float_path: Path, quantized_path: Path) -> FileModels:
    """Open two files of one kind; neither is run."""
    paths = (float_path, quantized_path)
    # A file that is missing is to be named by who reads the other one.
    kinds = [is_litert(path) for path in paths if path.exists()] or [is_litert(path) for path in paths]
    if all(kinds):
        # LiteRT is an optional package.
        from quantmedic.collectors.from_litert import models as litert

        return litert.open_models(float_path, quantized_path)
    if not any(kinds):
        return open_models(float_path, quantized_path)
    names = ["LiteRT" if kind else "ONNX" for kind in kinds]
    raise ModelError(
        "one model is a LiteRT file, the other is not",
        where=[f"float     {float_path}  {names[0]}", f"quantized {quantized_path}  {names[1]}"],
        help="give two files of one kind: the float model as the converter writes it without quantization",
    )


def model_of(source: ModelSource) -> ModelSource:
    """The model that ``module:function`` returns, if the source has that form; any other source as it is."""
    if not isinstance(source, str | Path) or not FUNCTION.fullmatch(str(source)) or Path(source).exists():
        return source
    try:
        return import_function(str(source), "model")()
    except QuantmedicError:
        raise
    except Exception as error:
        raise ModelError(
            "the function that makes the model failed",
            where=[str(source), f"cause  {type(error).__name__}: {error}"],
            help="it is called without arguments and returns a torch module, or the path of an ONNX or LiteRT file",
        ) from error


def _open_modules(
    float_model: ModelSource,
    quantized_model: ModelSource,
    given: Mapping[Role, DataSource],
    preprocessing: Mapping[Role, Preprocessing],
    labels: str | Path | None,
    mapping: Mapping[str, str] | None,
) -> tuple[Models, dict[Role, Dataset]]:
    try:
        # Torch is an optional package.
        from quantmedic.collectors.from_torch.open import open_torch
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise ModelError(
            "these models are neither files nor can torch be imported",
            where=[f"float     {_source_name(float_model)}", f"quantized {_source_name(quantized_model)}"],
            help="give paths of ONNX or LiteRT files, or install torch for torch modules: pip install torch",
        ) from error
    return open_torch(float_model, quantized_model, given, preprocessing=preprocessing, labels=labels, mapping=mapping)


def _source_name(model: ModelSource) -> str:
    return str(model) if isinstance(model, str | Path) else type(model).__name__


def default_metric(datasets: Iterable[Dataset]) -> str | None:
    """top1 where the labels are class numbers; labels of other kinds need a metric that the user names."""
    for dataset in datasets:
        if dataset.labelled:
            labels = next(dataset.batches(1)).labels
            return "top1" if labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu" else None
    return None
