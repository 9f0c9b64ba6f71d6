"""LiteRT's QuantizationDebugger, of ONNX and LiteRT files alike: the part of the public API."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quantmedic.api.opening import open_pair
from quantmedic.api.options import DataOptions, DataSource, MeasuringOptions, ModelSource
from quantmedic.api.rulebase import load_rulebase
from quantmedic.collectors.data.preprocessing import Preprocessing
from quantmedic.collectors.data.progress import Progress, no_progress
from quantmedic.collectors.measure.debugger import debug, open_metrics
from quantmedic.collectors.measure.host import available_threads
from quantmedic.engine.case.facts import Role
from quantmedic.engine.errors import DataError
from quantmedic.engine.formulas.debugger import DebuggerRecord
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.reports.machines.spreadsheets import debugger_csv
from quantmedic.reports.write import Written, place

#: ``module:function``, or the function itself, which returns one number.
MetricSource = str | Callable[..., float]
#: Threshold above which the error of a layer, in steps, is more than rounding.
_SUSPECT = "clip_rmse_over_scale"


def debugger(
    float_model: ModelSource,
    quantized_model: ModelSource,
    *,
    validation: DataSource | None = None,
    representative: DataSource | None = None,
    data: DataSource | None = None,
    layer_metrics: Mapping[str, MetricSource] | None = None,
    pair_metrics: Mapping[str, MetricSource] | None = None,
    output_metrics: Mapping[str, MetricSource] | None = None,
    preprocessing: Preprocessing | Mapping[Role, Preprocessing] | None = None,
    samples: int | None = None,
    threads: int | None = None,
    rules: RuleBase | None = None,
    progress: Progress = no_progress,
) -> DebuggerRecord:
    """Measure each quantized operator against its float twin, both fed with what the deployed model computed.

    Every metric is computed for each sample and averaged over the samples; those of layers and pairs leave NaN out.

    Args:
        float_model: Path of the float ONNX or LiteRT model.
        quantized_model: Path of its quantized counterpart.
        validation: The samples: ``.npz``, folder, ``module:function``, mapping or array.
        representative: Calibration data, read where no evaluation data are given.
        data: Another name of ``validation``.
        layer_metrics: Functions of the difference ``quantized - float`` by name, each given as ``module:function`` or
            as the function itself; they return one number.
        pair_metrics: The same of ``(float, codes, scale, zero_point)``, codes as they are stored.
        output_metrics: The same of ``(float_outputs, quantized_outputs)``, two lists of arrays.
        preprocessing: ``Preprocessing``, of the evaluation data or by role, for samples that are not yet what the
            network wants.
        samples: At most this many samples.
        threads: Processor threads to use; all cores by default.
        rules: Thresholds in force: beyond one of them a layer is suspect.
        progress: Called with a stage, the samples done and their number where known.

    Returns:
        One row per quantized tensor, and the metrics of the outputs.

    Raises:
        DataError: The data do not fit the model, or a function cannot be imported, fails or returns no number.
        ModelError: A model cannot be read, the two do not belong together, nothing is quantized, or they are torch
            modules, whose operators are not run by themselves.
    """
    prepared: Mapping[Role, Preprocessing] = {}
    if preprocessing is not None:
        prepared = {"validation": preprocessing} if isinstance(preprocessing, Preprocessing) else preprocessing
    options = DataOptions(
        representative=representative,
        validation=data if validation is None else validation,
        samples=samples,
        preprocessing=prepared,
    )
    metrics = DebuggerMetrics(layer_metrics or {}, pair_metrics or {}, output_metrics or {})
    measuring = MeasuringOptions(threads=threads)
    base = rules or load_rulebase()
    return debug_pair(float_model, quantized_model, options, metrics, measuring, base, progress=progress)


@dataclass(frozen=True)
class DebuggerMetrics:
    """The user's functions by name: of a difference, of two tensors, of all outputs."""

    layer: Mapping[str, MetricSource] = field(default_factory=dict)
    pair: Mapping[str, MetricSource] = field(default_factory=dict)
    output: Mapping[str, MetricSource] = field(default_factory=dict)


def debug_pair(
    float_model: ModelSource,
    quantized_model: ModelSource,
    data: DataOptions,
    metrics: DebuggerMetrics,
    measuring: MeasuringOptions,
    base: RuleBase,
    *,
    progress: Progress = no_progress,
) -> DebuggerRecord:
    """``debugger`` with its options in groups; see there."""
    if data.evaluation is None:
        raise DataError("no data was given", help="pass samples with --validation")
    role, source = data.evaluation
    functions = open_metrics(metrics.layer, metrics.pair, metrics.output)
    models, datasets = open_pair(float_model, quantized_model, {role: source}, preprocessing=data.preprocessing)
    return debug(
        models,
        datasets[role],
        functions,
        samples=data.samples,
        threads=measuring.threads or available_threads(),
        suspect_steps=base.thresholds[_SUSPECT].value,
        progress=progress,
    )


def write_layers(record: DebuggerRecord, path: str | Path) -> Written:
    """Write the table as CSV with the columns of LiteRT's debugger, whole or not at all.

    Raises:
        OutputError: The file cannot be written.
    """
    target = Path(path)
    (written,) = place({target.name: debugger_csv(record).encode()}, target.parent)
    return written
