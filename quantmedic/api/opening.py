"""Opening two models with the data that they are judged on, and what was computed elsewhere for the same data."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar

from quantmedic.api.cases import with_notice
from quantmedic.api.options import CollectOptions, DataOptions, ModelSource, ReferenceOptions
from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.data.functions import FUNCTION, failing_as, import_function
from quantmedic.collectors.data.progress import Announce, Progress, no_announcement, no_progress
from quantmedic.collectors.extensions import extension_for
from quantmedic.collectors.front_ends import front_end_of, front_end_of_pair
from quantmedic.collectors.measure.collect_pair import collect
from quantmedic.collectors.measure.detector_reading import read_detector
from quantmedic.collectors.measure.device_tensors import DEVICE_TENSORS, DUMP_OPTION, NAMES_OPTION, CompareDump
from quantmedic.collectors.measure.front_end import GivenData
from quantmedic.collectors.measure.given_outputs import References
from quantmedic.collectors.measure.host import threads_to_use
from quantmedic.collectors.measure.measurement import Extras, Measurement
from quantmedic.collectors.measure.memory import heed_memory
from quantmedic.collectors.measure.models import Models
from quantmedic.collectors.measure.options import Options
from quantmedic.collectors.measure.outputs import OPTIONS as OUTPUT_OPTIONS
from quantmedic.collectors.measure.reading_trials import Unread
from quantmedic.collectors.measure.stages import open_stages
from quantmedic.collectors.metrics.box_readings import BoxReading
from quantmedic.collectors.metrics.metric import Metric, load_metric
from quantmedic.collectors.metrics.reading import OPTIONS, Reading, parse_options
from quantmedic.collectors.metrics.sample_tallies import is_one_hot
from quantmedic.collectors.native.runs import time_limit
from quantmedic.collectors.tensorflow_files import Target, convert_tensorflow, tensorflow_kind
from quantmedic.engine.case.facts import Role
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import DataError, ModelError
from quantmedic.engine.metrics.detection import BOX_METRICS
from quantmedic.engine.metrics.kinds import is_share
from quantmedic.engine.rules.rulebase import RuleBase
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
    role = options.evaluation
    if role is None:
        raise DataError("no data was given", help="pass the evaluation data with --validation")
    models, datasets = open_pair(float_model, quantized_model, options, role)
    if options.device is not None:
        models.run_on(options.device)
    dataset = datasets[role]
    metric = open_metric(options, [dataset], models, options.threads)
    threads = threads_to_use(options.threads)
    brief = Options(samples=max(LOOKED_AT, dataset.unit), threads=threads, seed=options.seed)
    with models.as_deployed():
        case = collect(Measurement(models, {role: dataset}, brief, metric))
    return Searched(models, dataset, case, metric, threads, options.seed)


def open_pair(
    float_model: ModelSource, quantized_model: ModelSource, options: CollectOptions, *roles: Role
) -> tuple[Models, dict[Role, Dataset]]:
    """Open two models, whatever their framework, and the data that they are given, or those of some roles.

    Raises:
        DataError: A data set does not fit the models.
        ModelError: A model cannot be read, or the two do not belong together.
    """
    (float_model, quantized_model), notices = models_of(float_model, quantized_model)
    given = {role: source for role, source in options.sources.items() if not roles or role in roles}
    data = GivenData(given, options.preprocessing, options.labels, options.mapping or {})
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


@dataclass(frozen=True, kw_only=True)
class JudgedMeasurement(Measurement):
    """A measurement with the rules that judge it; ``announce`` is called with a line on what takes long."""

    base: RuleBase
    announce: Announce = no_announcement


def open_measurement(
    float_model: ModelSource,
    quantized_model: ModelSource,
    options: CollectOptions,
    base: RuleBase,
    *,
    progress: Progress = no_progress,
    announce: Announce = no_announcement,
) -> JudgedMeasurement:
    """Both models, their data and what was computed elsewhere, opened as the options say."""
    models, datasets = open_pair(float_model, quantized_model, options)
    with models.as_deployed():
        metric = open_metric(options, datasets.values(), models, options.threads)
    extras = open_references(models, datasets, options, metric)
    if options.device is not None:
        models.run_on(options.device)
    return JudgedMeasurement(
        models=models,
        datasets=datasets,
        metric=metric,
        options=heed_memory(models, datasets, measuring_options(options), options.memory),
        extras=extras,
        base=base,
        progress=progress,
        announce=announce,
    )


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


def open_references(
    models: Models,
    datasets: Mapping[Role, Dataset],
    options: CollectOptions,
    metric: Metric | None,
) -> Extras:
    """What was computed elsewhere: stages and outputs, opened, and the metric that is expected."""
    outputs = _open_outputs(models, datasets, options)
    name = metric.name if metric is not None else None
    given = options.stages
    stages = list(given.items() if isinstance(given, Mapping) else given)
    return Extras(
        outputs,
        stages=open_stages(stages, models, lambda path: front_end_of(path).open_network(path)) if stages else (),
        expected_float_metric=_expected_metric("float", options.expected_float_metric, name, datasets.values()),
        expected_quantized_metric=_expected_metric(
            "quantized", options.expected_quantized_metric, name, datasets.values()
        ),
        device=options.device,
    )


def _open_outputs(models: Models, datasets: Mapping[Role, Dataset], options: CollectOptions) -> dict[str, References]:
    """Outputs that were computed elsewhere, opened."""
    sources = {"reference": options.reference_outputs, "device": options.device_outputs}
    given = {kind: source for kind, source in sources.items() if source is not None}
    validation = datasets.get("validation")
    if not given:
        return {}
    if validation is None:
        raise DataError(
            "outputs were given without the inputs that they belong to",
            where=", ".join(OUTPUT_OPTIONS[kind] for kind in given),
            help="pass these inputs with --validation",
        )
    return {kind: References(s, kind, models, validation.samples, options.samples) for kind, s in given.items()}


def open_device_tensors(measurement: Measurement, references: ReferenceOptions) -> CompareDump | None:
    """Tensors of the device, found in the quantized model; None where none were given."""
    if references.device_tensors is None:
        if references.device_names is not None:
            raise DataError(
                "names of tensors were given without the tensors",
                where=NAMES_OPTION,
                help=f"pass the tensors with {DUMP_OPTION}",
            )
        return None
    if "validation" not in measurement.datasets:
        raise DataError(
            "tensors of the device were given without the inputs that they belong to",
            where=DUMP_OPTION,
            help="pass these inputs with --validation",
        )
    device = extension_for(DEVICE_TENSORS, references.device_tensors, DUMP_OPTION)
    return device.open(references.device_tensors, references.device_names, measurement.models)


def with_device_tensors(case: Case, measurement: Measurement, compare: CompareDump) -> Case:
    """The case with what the device computes otherwise than the quantized model here."""
    options = measurement.options
    record, notices = compare(
        measurement.models,
        case,
        measurement.datasets["validation"],
        limit=options.samples,
        threads=options.threads,
    )
    return with_notice(case.with_record(device=record), *notices)


def _expected_metric(
    model: Literal["float", "quantized"], value: float | None, metric: str | None, datasets: Iterable[Dataset]
) -> float | None:
    """The metric that the user expects of a model, shares as a share."""
    if value is None:
        return None
    where = f"--expected-{model}-metric {value:g}"
    if metric is None or not any(dataset.labelled for dataset in datasets):
        raise DataError(
            f"the expected {model} metric cannot be compared: none is measured",
            where=where,
            help="pass --labels (or labels in the .npz of --validation) and --metric",
        )
    share = value / 100 if is_share(metric) and value > 1 else value
    if not math.isfinite(value) or (is_share(metric) and not 0 <= share <= 1):
        raise DataError(
            f"the expected {model} metric is not a valid {metric}",
            where=where,
            help="give a share such as 0.76, or percent such as 76.1",
        )
    return share
