"""Opening two models with the data that they are judged on, as every command does it."""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from quantmedic.api.options import CollectOptions, DataOptions, DataSource, ModelSource
from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.data.functions import FUNCTION, failing_as, import_function
from quantmedic.collectors.data.preprocessing import Preprocessing
from quantmedic.collectors.front_ends import front_end_of, front_end_of_pair
from quantmedic.collectors.measure.collect_pair import collect
from quantmedic.collectors.measure.detector_reading import read_detector
from quantmedic.collectors.measure.front_end import GivenData
from quantmedic.collectors.measure.host import threads_to_use
from quantmedic.collectors.measure.measurement import Measurement
from quantmedic.collectors.measure.models import Models
from quantmedic.collectors.measure.options import Options
from quantmedic.collectors.measure.reading_trials import Unread
from quantmedic.collectors.metrics.box_readings import BoxReading
from quantmedic.collectors.metrics.metric import Metric, load_metric
from quantmedic.collectors.metrics.reading import OPTIONS, Reading, parse_options
from quantmedic.collectors.metrics.sample_tallies import is_one_hot
from quantmedic.collectors.native.runs import time_limit
from quantmedic.collectors.tensorflow_files import Target, convert_tensorflow, tensorflow_kind
from quantmedic.engine.case.facts import Role
from quantmedic.engine.errors import DataError, ModelError
from quantmedic.engine.metrics.detection import BOX_METRICS
from quantmedic.trials.layer_search import Searched

#: Said of labels that are boxes where they do not fit, or it is open how the outputs are read.
UNUSED_BOXES = "the labels were not used as boxes"
#: Samples that show what can be quantized.
LOOKED_AT = 16
P = ParamSpec("P")
R = TypeVar("R")


def with_time_limit(function: Callable[P, R]) -> Callable[P, R]:
    """The function, each of whose runs of models keeps to the time limit of the options that it is given."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        options = next(each for each in (*args, *kwargs.values()) if isinstance(each, CollectOptions))
        with time_limit(options.timeout):
            return function(*args, **kwargs)

    return call


def open_evaluation(float_model: ModelSource, quantized_model: ModelSource, options: CollectOptions) -> Searched:
    """Open what ``sensitivity`` and ``fallback`` need; see there.

    Raises:
        DataError: The data do not fit the model, or none were given.
        ModelError: A model cannot be read, or the two do not belong together.
    """
    if options.evaluation is None:
        raise DataError("no data was given", help="pass the evaluation data with --validation")
    role, source = options.evaluation
    models, datasets = open_pair(
        float_model, quantized_model, {role: source}, preprocessing=options.preprocessing, labels=options.labels
    )
    if options.device is not None:
        models.run_on(options.device)
    dataset = datasets[role]
    metric = open_metric(options, [dataset], models, options.threads)
    threads = threads_to_use(options.threads)
    brief = Options(samples=max(LOOKED_AT, dataset.unit), threads=threads, seed=options.seed)
    with models.as_deployed():
        case = collect(Measurement(models, {role: dataset}, brief, metric))
    return Searched(models, dataset, case, metric, threads, options.seed)


def measuring_options(options: CollectOptions) -> Options:
    """How both models are measured, as the options of a command say."""
    return Options(
        samples=options.samples,
        batch_size=options.batch_size,
        threads=threads_to_use(options.threads),
        seed=options.seed,
        mode=options.mode,
        thumbnails=options.thumbnails,
        step_error=options.step_error,
    )


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
    (float_model, quantized_model), notices = models_of(float_model, quantized_model)
    data = GivenData(given, preprocessing, labels, mapping or {})
    models, datasets = front_end_of_pair(float_model, quantized_model).open(float_model, quantized_model, data)
    models.float_graph.notices.extend(notices)
    return models, datasets


def open_files(float_model: ModelSource, quantized_model: ModelSource) -> Models:
    """Open two model files, given by path or by ``module:function``, without data.

    Raises:
        ModelError: One is not a file or cannot be read, or the two do not belong together.
    """
    (float_model, quantized_model), notices = models_of(float_model, quantized_model)
    models = front_end_of_pair(float_model, quantized_model).open_files(float_model, quantized_model)
    models.float_graph.notices.extend(notices)
    return models


def models_of(*sources: ModelSource) -> tuple[list[ModelSource], list[str]]:
    """The models that are measured, and notices: those of TensorFlow are converted to the format of the other ones.

    Raises:
        ModelError: A TensorFlow model cannot be converted, or a function that makes a model fails.
    """
    models, notices = [model_of(source) for source in sources], list[str]()
    kinds = [tensorflow_kind(Path(model)) if isinstance(model, str | Path) else None for model in models]
    others = [model for model, kind in zip(models, kinds, strict=True) if kind is None]
    target: Target = "litert" if any(front_end_of(model).name == "litert" for model in others) else "onnx"
    for place, kind in enumerate(kinds):
        if kind is not None:
            models[place], notice = convert_tensorflow(Path(str(models[place])), kind, target)
            notices.append(notice)
    return models, notices


def model_of(source: ModelSource) -> ModelSource:
    """The model that ``module:function`` returns, if the source has that form; any other source as it is."""
    if not isinstance(source, str | Path) or not FUNCTION.fullmatch(str(source)) or Path(source).exists():
        return source

    def refusal(cause: str) -> ModelError:
        help = "it is called without arguments and returns a torch module, or the path of a model file"
        return ModelError("the function that makes the model failed", where=[str(source), cause], help=help)

    function = import_function(str(source), "model")
    with failing_as(refusal):
        model: ModelSource = function()
    return model


def open_metric(
    data: DataOptions, datasets: Iterable[Dataset], models: Models, threads: int | None = None
) -> Metric | None:
    """The metric that was named; else top1 where the labels are classes, map where they are the boxes of a detector.

    Without a metric, the first labelled set takes a note of labels that are boxes and why they are not judged.

    Raises:
        DataError: The metric is not known, or an option of it is not, or labels of a detector are no boxes.
        ModelError: A model cannot be run.
    """
    labelled = next((dataset for dataset in datasets if dataset.labelled), None)
    name = data.metric or (_default_metric(labelled) if labelled is not None else None)
    told = (data.metric_direction, data.metric_output, data.metric_options)
    if labelled is None or name not in (None, *BOX_METRICS):
        return load_metric(name, *told) if name else None
    if name is None and not data.metric_options.keys() <= OPTIONS["map"].keys():
        return None
    reading = Reading(name or "map", data.metric_output, parse_options(name or "map", data.metric_options))
    unread: Unread | None = None
    try:
        with models.as_deployed():
            boxes = read_detector(models, labelled, reading, threads_to_use(threads))
    except Unread as open_:
        unread = open_
    labelled.notices.extend(reading.notices)
    if unread is not None:
        boxes = _judged_all_the_same(unread, labelled, is_named=name is not None)
    if boxes is None and name is None:
        return None
    return load_metric(name or "map", *told, boxes)


def _judged_all_the_same(open_: Unread, dataset: Dataset, *, is_named: bool) -> BoxReading | None:
    """How boxes are read of which that is open: only where the metric was named; the data set takes a note.

    Raises:
        DataError: It was named, and cannot be computed.
    """
    if not is_named:
        dataset.notices.append(f"{UNUSED_BOXES}: {open_.reason}; {open_.help}")
        return None
    if open_.fallback is None:
        raise DataError(open_.reason, help=open_.help)
    dataset.notices.append(open_.reason)
    return open_.fallback


def _default_metric(dataset: Dataset) -> str | None:
    """top1 where the labels are class numbers, or rows that mark one class each."""
    labels = next(dataset.batches(1)).labels
    if labels is None:
        return None
    if labels.dtype.kind == "U":
        raise DataError(
            "labels are texts, and no metric was named",
            where=f"{dataset.role} data  labels such as {labels.reshape(-1)[:1].tolist()}",
            help="pass --metric cer or --metric wer; of classes give their numbers",
        )
    are_classes = (labels.ndim == 1 and labels.dtype.kind in "iu") or is_one_hot(labels)
    return "top1" if are_classes else None
