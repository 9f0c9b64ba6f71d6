"""Drop-in for the XQuant Extension Tool of Sony's Model Compression Toolkit: change one import.

>>> from quantmedic.xquant import XQuantConfig, xquant_report_troubleshoot_pytorch_experimental

What is the same and what differs stands in the manual, page ``general/xquant``.
"""

import io
import json
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from importlib.util import find_spec
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantmedic.api.collect import collect_pair
from quantmedic.api.judging import Diagnosis, inspect, judge
from quantmedic.api.options import CollectOptions
from quantmedic.api.rulebase import load_rulebase, translate
from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.diagnosis.inspection import Inspection
from quantmedic.engine.errors import OutputError, QuantmedicError
from quantmedic.engine.output_files import require_folder, write_file
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.reports import xquant as words
from quantmedic.reports.charts.frame import Drawing
from quantmedic.reports.machines.json import render_json
from quantmedic.reports.write import place

if TYPE_CHECKING:
    import torch

    from quantmedic.xquant_metrics import ModelInputs

__all__ = ["XQuantConfig", "xquant_report_troubleshoot_pytorch_experimental"]

LOGGER_NAME = "Model Compression Toolkit"
REPORT_FILENAME = "quant_report.json"
TROUBLESHOOT_REPORT_FILENAME = "troubleshoot_report.json"
THRESHOLDS = {"mse": 0.1, "cs": 0.1, "sqnr": 0.1}
UNDER = {"mse": False, "cs": True, "sqnr": True}
#: XQuant's fields that are thresholds of rules here.
RULE_FIELDS = (
    "threshold_degrade_layer_ratio",
    "threshold_zscore_outlier_removal",
    "threshold_ratio_unbalanced_concatenation",
    "threshold_bitwidth_mixed_precision_with_model_output_loss_objective",
)

#: Batches, or a function that gives them; XQuant passes None for a set that is not there.
Dataset = Callable[[], Iterable[object]] | Iterable[object] | None
#: The user's similarity metrics: of the float tensor and the quantized one.
Metric = Callable[["torch.Tensor", "torch.Tensor"], float]
#: A result, as the original gives it: values that JSON can hold.
Report = dict[str, Any]


def _mct_log_folder() -> str | None:
    """Where MCT logs to, as set with ``mct.set_log_folder``; MCT is not imported for it."""
    logger = getattr(sys.modules.get("model_compression_toolkit.logger"), "Logger", None)
    return getattr(logger, "LOG_PATH", None)


@dataclass
class XQuantConfig:
    """Settings of the report; fields, order and defaults are MCT's.

    Attributes:
        report_dir: Folder for everything that is written; made if it does not exist.
        custom_similarity_metrics: Further measures ``f(float_tensor, quantized_tensor) -> float`` by name.
        quantize_reported_dir: Log folder of the quantization; what ``mct.set_log_folder`` was given by default.
        threshold_quantize_error: Limit by measure, at which a layer counts as degraded.
        is_detect_under_threshold_quantize_error: By measure, whether small values are bad.
        threshold_degrade_layer_ratio: Above this share of degraded layers, causes of the whole model come first. The
            original judges nothing there.
        threshold_zscore_outlier_removal: Deviations from the mean at which a value is an outlier.
        threshold_ratio_unbalanced_concatenation: Ratio of range widths at which a concatenation is unbalanced.
        threshold_bitwidth_mixed_precision_with_model_output_loss_objective: Bits that are too few in the last layer.
        skip_judging_above_degrade_ratio: At ``threshold_degrade_layer_ratio`` and above no cause is judged, as the
            original does, by the measures of the layers that it compares.
    """

    report_dir: str
    custom_similarity_metrics: dict[str, Metric] | None = None
    quantize_reported_dir: str | None = None
    threshold_quantize_error: dict[str, float] = field(default_factory=lambda: dict(THRESHOLDS))
    is_detect_under_threshold_quantize_error: dict[str, bool] = field(default_factory=lambda: dict(UNDER))
    threshold_degrade_layer_ratio: float = 0.5
    threshold_zscore_outlier_removal: float = 5.0
    threshold_ratio_unbalanced_concatenation: float = 16.0
    threshold_bitwidth_mixed_precision_with_model_output_loss_objective: int = 2
    skip_judging_above_degrade_ratio: bool = False

    def __post_init__(self) -> None:
        if self.quantize_reported_dir is None:
            self.quantize_reported_dir = _mct_log_folder()


def xquant_report_troubleshoot_pytorch_experimental(
    float_model: "torch.nn.Module",
    quantized_model: "torch.nn.Module",
    repr_dataset: Callable[[], Iterable[object]],
    validation_dataset: Callable[[], Iterable[object]],
    xquant_config: XQuantConfig,
) -> tuple[Report, Report]:
    """Compare the models, find degraded layers and the causes of the degradation, and write the reports.

    Args:
        float_model: The model before quantization.
        quantized_model: The model after it.
        repr_dataset: Gives the representative data: an iterable of batches, each a list of the model's inputs.
        validation_dataset: Gives the validation data: an iterable of pairs of inputs (a tensor, or a list of them) and
            labels. With class numbers as labels the accuracy of both models is measured too.
        xquant_config: Settings; MCT's own object will do.

    Returns:
        Two dictionaries, as the original: the measures of outputs and layers on both data sets, with ``quantmedic``,
        the whole diagnosis, beside them; and what was judged, with ``causes``, every cause that counts. The latter is
        empty for a healthy model.

    Raises:
        QuantmedicError: The models or data cannot be used, or the report cannot be written.
    """
    _custom_metrics(xquant_config)
    base = _configured_rules(xquant_config)
    with _report_log(Path(xquant_config.report_dir)) as logger:
        options = CollectOptions(
            representative=collectable(repr_dataset, float_model, labelled=False),
            validation=collectable(validation_dataset, float_model, labelled=True),
            mct_log=_readable_log(xquant_config, logger),
        )
        case = collect_pair(float_model, quantized_model, options, rules=base)
        opened = inspect(case, base)
        diagnosis = judge(opened, toolchain="mct" if "mct_quantizers" in sys.modules else None)
        found = {suffix: words.similarity(diagnosis, role) for suffix, role in words.SETS.items()}
        pairs, sets = (float_model, quantized_model), {"repr": repr_dataset, "val": validation_dataset}
        found, skipped = _with_own_measures(found, opened.facts, pairs, sets, xquant_config)
        kinds = {name: type(module).__name__ for name, module in quantized_model.named_modules()}
        results = Results(opened, diagnosis, found, xquant_config, logger).write(kinds, skipped=skipped)
        if find_spec("tensorboard") is not None:
            # TensorBoard is an optional package.
            from quantmedic.xquant_tensorboard import write_events

            write_events(Path(xquant_config.report_dir), opened, found, quantized_model)
            logger.info(f"Please run: tensorboard --logdir {xquant_config.report_dir}")
        return results


def _with_own_measures(
    found: Mapping[str, words.Similarity],
    facts: CaseFacts,
    models: "tuple[torch.nn.Module, torch.nn.Module]",
    sets: Mapping[str, Callable[[], Iterable[object]]],
    config: XQuantConfig,
) -> tuple[dict[str, words.Similarity], bool]:
    """The measures with the original's of what it compares, and the user's own; and whether nothing is to be judged."""
    # Torch is an optional package.
    from quantmedic.xquant_metrics import add_metrics, measure_metrics, module_pairs, wrapped_pairs

    metrics = _custom_metrics(config)
    pairs = module_pairs(facts, *models)
    compared = wrapped_pairs(pairs)
    measured = dict(found)
    for suffix, dataset in sets.items():
        if dataset is None or not (metrics or compared):
            continue
        batches = XQuantData(dataset, models[0], suffix == "val").inputs()
        own = measure_metrics(*models, pairs if metrics else compared, batches, metrics, compared)
        measured[suffix] = add_metrics(found[suffix], own, metrics, compared)
    # MCT's own object has no such field
    skips = getattr(config, "skip_judging_above_degrade_ratio", False)
    return measured, skips and _most_are_degraded(measured, compared or pairs, config)


def _most_are_degraded(
    measured: Mapping[str, words.Similarity], compared: Collection[str], config: XQuantConfig
) -> bool:
    """Whether so many layers are degraded that the original judges nothing, of those that it compares."""
    degraded: set[str] = set()
    for metric, limit in config.threshold_quantize_error.items():
        below = config.is_detect_under_threshold_quantize_error.get(metric, False)
        for values in measured.values():
            degraded.update(words.degraded_layers(values.layers, metric, limit, below))
    count = len(degraded.intersection(compared))
    return bool(compared) and count / len(compared) >= config.threshold_degrade_layer_ratio


def _readable_log(config: XQuantConfig, logger: logging.Logger) -> str | None:
    """The log folder of the quantization, where what it takes to read it is installed."""
    if config.quantize_reported_dir is not None and find_spec("tensorboard") is None:
        logger.info("the log folder of the quantization is not read: pip install tensorboard")
        return None
    return config.quantize_reported_dir


@dataclass(frozen=True)
class Results:
    """What was measured and judged, on its way into the log and the folder of the report.

    Attributes:
        opened: What was measured.
        diagnosis: What was judged.
        found: Measures of outputs and layers, by the data set as XQuant calls it.
        config: The user's settings.
        logger: That of MCT.
    """

    opened: Inspection
    diagnosis: Diagnosis
    found: Mapping[str, words.Similarity]
    config: XQuantConfig
    logger: logging.Logger

    @property
    def folder(self) -> Path:
        """Where all is written."""
        return Path(self.config.report_dir)

    def write(self, kinds: Mapping[str, str], *, skipped: bool = False) -> tuple[Report, Report]:
        """Both results, logged and written; where judging is skipped the second one is empty.

        Args:
            kinds: Class of a layer by its name in the quantized model.
            skipped: So many layers are degraded that no cause is judged.
        """
        self.diagnosis.save(self.folder)
        collected: Report = {
            **{f"output_similarity_metrics_{suffix}": dict(own.output) for suffix, own in self.found.items()},
            **{f"intermediate_similarity_metrics_{suffix}": dict(own.layers) for suffix, own in self.found.items()},
        }
        for notice in self.diagnosis.warnings:
            self.logger.info(notice)
        self._dump(REPORT_FILENAME, collected)
        degraded = self._find_degraded()
        troubles: Report = {}
        if skipped:
            self.logger.info("most layers are degraded: no cause is judged (skip_judging_above_degrade_ratio)")
        else:
            images = self._draw_outliers()
            judged = words.judgements(self.diagnosis, self.opened.facts, images, kinds, self.config.report_dir)
            for judgement in judged:
                for line in judgement.lines:
                    self.logger.warning(line)
            self._log_rest(degraded)
            troubles = words.troubleshooting(judged, self.diagnosis)
        self._dump(TROUBLESHOOT_REPORT_FILENAME, troubles)
        return collected | {"quantmedic": json.loads(render_json(self.diagnosis))}, troubles

    def _find_degraded(self) -> set[str]:
        """Name and draw the layers that are at their limits or beyond."""
        config, logger = self.config, self.logger
        degraded: set[str] = set()
        graphs: list[Drawing] = []
        for metric in (*words.METRICS, *(config.custom_similarity_metrics or {})):
            if metric not in config.threshold_quantize_error:
                logger.warning(
                    f"XQuantConfig.threshold_quantize_error['{metric}'] is not defined. "
                    f"Skipping detection degrade layers by '{metric}'"
                )
                continue
            if metric not in config.is_detect_under_threshold_quantize_error:
                logger.warning(
                    f"XQuantConfig.is_detect_under_threshold_quantize_error[{metric}] is not defined. Assume =False"
                )
            below = config.is_detect_under_threshold_quantize_error.get(metric, False)
            limit = config.threshold_quantize_error[metric]
            for suffix, values in self.found.items():
                for layer in words.degraded_layers(values.layers, metric, limit, below):
                    if not degraded:
                        logger.info(words.DEGRADED)
                    logger.info(f"{metric}[{layer}]={values.layers[layer][metric]}")
                    degraded.add(layer)
                if values.layers:
                    graphs.append(words.error_graph(self.diagnosis, values, metric, suffix, limit, below))
        drawn = [(graph.stem, words.picture(graph)) for graph in graphs]
        place({f"{stem}.{kind}": content for stem, (kind, content) in drawn}, self.folder)
        if any(kind == "svg" for _, (kind, _) in drawn):
            logger.warning("Graphs are written as SVG: for PNG, pip install 'quantmedic[png]'")
        return degraded

    def _draw_outliers(self) -> dict[str, str]:
        """Draw the histograms of layers with outliers; their paths by layer."""
        graphs = words.outlier_graphs(self.diagnosis)
        drawn = {layer: (stem, words.picture(chart)) for layer, (stem, chart) in graphs.items()}
        names = {layer: f"{words.OUTLIER_FOLDER}/{stem}.{kind}" for layer, (stem, (kind, _)) in drawn.items()}
        place({names[layer]: content for layer, (_, (_, content)) in drawn.items()}, self.folder)
        return {layer: f"{self.config.report_dir}/{name}" for layer, name in names.items()}

    def _log_rest(self, degraded: set[str]) -> None:
        """Log what the original does not say: the verdict, that most layers are degraded, what could not be judged."""
        diagnosis, logger, report = self.diagnosis, self.logger, self.config.report_dir
        layers = max((len(values.layers) for values in self.found.values()), default=0)
        if layers and len(degraded) / layers >= self.config.threshold_degrade_layer_ratio:
            logger.info(
                f"{len(degraded)} of {layers} layers are degraded: causes that concern the whole model are judged first"
            )
        if diagnosis.not_judged:
            logger.info(f"{len(diagnosis.not_judged)} rules could not be judged, the report says why")
        pages = ", ".join(f"{report}/manual/general/{page}.html" for page in diagnosis.advice[:3])
        if diagnosis.advice_place == "folded":
            logger.info(f"if the remedies do not help, general measures, in this order: {pages}")
        elif diagnosis.verdict == "degraded" and pages:
            why = "what was tried did not help" if diagnosis.advice_place == "first" else "no cause was found"
            logger.warning(f"accuracy is lost and {why}; general measures, in this order: {pages}")
        logger.info(f"verdict: {diagnosis.verdict}, report: {report}/index.html")

    def _dump(self, name: str, values: Report) -> None:
        self.logger.info(f"Dumping report data to: {(self.folder / name).absolute()}")
        place({name: words.as_json(values).encode()}, self.folder)


def _configured_rules(config: XQuantConfig) -> RuleBase:
    """The rules with the user's thresholds.

    Limits of degraded layers that were left at XQuant's defaults do not reach the rules: at a tenth of the signal's
    power below the noise, no harm would ever be measured.
    """
    values: dict[str, object] = {name: getattr(config, name) for name in RULE_FIELDS}
    under = {**UNDER, **config.is_detect_under_threshold_quantize_error}
    changed = {
        metric: limit
        for metric, limit in config.threshold_quantize_error.items()
        if metric in THRESHOLDS and limit != THRESHOLDS[metric] and under[metric] == UNDER[metric]
        # a limit that no ratio of powers reaches turns the measure off
        if metric != "sqnr" or limit > 0
    }
    if changed:
        values["threshold_quantize_error"] = changed
    return load_rulebase().with_thresholds(translate(values), "XQuantConfig")


def _custom_metrics(config: XQuantConfig) -> Mapping[str, Metric]:
    metrics = config.custom_similarity_metrics or {}
    if not isinstance(metrics, dict):
        raise QuantmedicError(
            f"custom_similarity_metrics should be a dictionary but is of type {type(metrics)}",
            help="give functions of two tensors by name",
        )
    return metrics


@contextmanager
def _report_log(folder: Path) -> Iterator[logging.Logger]:
    """MCT's logger, which also writes to ``logs_<time>/mct_log.log`` inside, and to the console if it else would not.

    Its handlers and level are left as they were.
    """
    logger = logging.getLogger(LOGGER_NAME)
    path = folder / f"logs_{datetime.now():%d%m%Y_%H%M%S}" / "mct_log.log"
    require_folder(path.parent, within=folder)
    said = io.StringIO()
    handlers: list[logging.Handler] = [logging.StreamHandler(said)]
    if not logger.hasHandlers():
        handlers.append(logging.StreamHandler())
    level = logger.level
    if not logger.isEnabledFor(logging.WARNING):  # what the report says is for its file too, however quiet the rest is
        logger.setLevel(logging.WARNING)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield logger
    finally:
        logger.setLevel(level)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
        try:
            write_file(path, said.getvalue().encode())
        except OSError as error:
            raise OutputError("cannot write the report", where=f"{folder}: {error.strerror or error}") from error


def collectable(dataset: Dataset, model: "torch.nn.Module", *, labelled: bool) -> object:
    """The data set as ``collect`` takes it; what can be read only once is left as it is, and refused there."""
    return dataset if dataset is None or isinstance(dataset, Iterator) else XQuantData(dataset, model, labelled)


class XQuantData:
    """XQuant's data sets as batches: a list of inputs each, or a pair of it and class numbers."""

    def __init__(
        self, dataset: Callable[[], Iterable[object]] | Iterable[object], model: "torch.nn.Module", labelled: bool
    ):
        self._dataset = dataset
        self._labelled = labelled
        self._inputs = _required_inputs(model)
        self.__name__ = getattr(dataset, "__name__", type(dataset).__name__)

    def __call__(self) -> Iterator[object]:
        for inputs, labels in self._pairs():
            yield inputs if labels is None else (inputs, labels)

    def inputs(self) -> "Iterator[ModelInputs]":
        """The inputs alone."""
        return (inputs for inputs, _ in self._pairs())

    def _pairs(self) -> "Iterator[tuple[ModelInputs, object | None]]":
        for batch in self._dataset() if callable(self._dataset) else self._dataset:
            yield self._split(batch)

    def _split(self, batch: object) -> "tuple[ModelInputs, object | None]":
        """Inputs and usable labels: a pair of validation data is inputs and labels, as XQuant has it.

        A list of tensors alone is taken for inputs where the model wants as many.
        """
        if not isinstance(batch, list | tuple):
            return (batch if isinstance(batch, Mapping) else [batch]), None
        is_inputs = not self._labelled or len(batch) == 1 or (self._inputs > 1 and len(batch) == self._inputs)
        if is_inputs and not isinstance(batch[0], list | tuple | Mapping):
            return list(batch), None
        return _listed_inputs(batch[0]), _class_numbers(batch[1]) if len(batch) > 1 else None


def _listed_inputs(inputs: object) -> "ModelInputs":
    if isinstance(inputs, Mapping):
        return inputs
    return list(inputs) if isinstance(inputs, list | tuple) else [inputs]


def _required_inputs(model: "torch.nn.Module") -> int:
    """How many inputs the model cannot do without; 0 where that is not known."""
    try:
        parameters = signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return 0
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is Parameter.empty for p in parameters)


def _class_numbers(labels: object) -> object | None:
    """Labels that the accuracy can be measured with: one integer per sample; else None."""
    kind = str(getattr(labels, "dtype", "")).removeprefix("torch.")
    is_integer = kind.startswith(("int", "uint"))
    return labels if is_integer and getattr(labels, "ndim", 0) == 1 else None
