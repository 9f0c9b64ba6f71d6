"""LiteRT's QuantizationDebugger, of ONNX and LiteRT files alike: the part of the public API."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quantmedic.api.limits import with_time_limit
from quantmedic.api.notebooks import Watching, watching
from quantmedic.api.opening import open_evaluation, open_pair
from quantmedic.api.options import DataOptions, DataSource, MeasuringOptions, ModelSource
from quantmedic.api.rulebase import load_rulebase
from quantmedic.collectors.data.preprocessing import Preprocessing, preprocessing_by_role
from quantmedic.collectors.data.progress import Progress, no_progress
from quantmedic.collectors.measure.debugger import debug, open_metrics
from quantmedic.collectors.measure.host import threads_to_use
from quantmedic.engine.case.facts import Role
from quantmedic.engine.errors import DataError
from quantmedic.engine.files import read_text
from quantmedic.engine.formulas.debugger import FIRST_LAYERS, DebuggerRecord
from quantmedic.engine.json_text import parse_json
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.reports.files import debugger_files
from quantmedic.reports.machines.spreadsheets import debugger_csv
from quantmedic.reports.write import Written, place
from quantmedic.trials.denylists import try_denylists

#: ``module:function``, or the function itself, which returns one number.
MetricSource = str | Callable[..., float]
#: Threshold above which the error of a layer, in steps, is more than rounding.
SUSPECT = "clip_rmse_over_scale"


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
    timeout: float | None = None,
    threshold: float | None = None,
    denylists: Sequence[str] = (),
    labels: str | Path | None = None,
    metric: str | None = None,
    rules: RuleBase | None = None,
    progress: Watching = True,
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
        timeout: Seconds that one run of a model may take; see ``collect``.
        threshold: Error in steps, √mean_squared_error / scale, above which a layer is suspected; 0.7 by default.
        denylists: What to leave in float, one evaluation each: names of tensors, ``suspected``, ``first``, and
            ``op:TYPE``, separated by commas, or ``@FILE`` with a name per line or a ``denylist.json``.
        labels: Labels for their task metric, where they are not part of the data.
        metric: That metric, as in ``diagnose``.
        rules: Thresholds in force: beyond one of them a layer is suspect.
        progress: Called with a stage, the samples done and their number where known; see ``collect``.

    Returns:
        One row per quantized tensor, and the metrics of the outputs.

    Raises:
        DataError: The threshold is negative, the data do not fit the model, or a function cannot be imported, fails or
            returns no number.
        ModelError: A model cannot be read, the two do not belong together, nothing is quantized, or they are torch
            modules, whose operators are not run by themselves.
    """
    options = DataOptions(
        representative=representative,
        validation=data if validation is None else validation,
        samples=samples,
        preprocessing=preprocessing_by_role(preprocessing),
        labels=labels,
        metric=metric,
    )
    metrics = DebuggerMetrics(layer_metrics or {}, pair_metrics or {}, output_metrics or {})
    measuring = MeasuringOptions(threads=threads, timeout=timeout)
    base = rules or load_rulebase()
    if threshold is not None:
        base = base.with_thresholds({SUSPECT: threshold}, "threshold")
    with watching(progress) as told:
        return debug_pair(
            float_model, quantized_model, options, metrics, measuring, base, denylists=denylists, progress=told
        )


@dataclass(frozen=True)
class DebuggerMetrics:
    """The user's functions by name: of a difference, of two tensors, of all outputs."""

    layer: Mapping[str, MetricSource] = field(default_factory=dict)
    pair: Mapping[str, MetricSource] = field(default_factory=dict)
    output: Mapping[str, MetricSource] = field(default_factory=dict)


@with_time_limit
def debug_pair(
    float_model: ModelSource,
    quantized_model: ModelSource,
    data: DataOptions,
    metrics: DebuggerMetrics,
    measuring: MeasuringOptions,
    base: RuleBase,
    *,
    denylists: Sequence[str] = (),
    progress: Progress = no_progress,
) -> DebuggerRecord:
    """``debugger`` with its options in groups; see there."""
    limit = base.thresholds[SUSPECT].value
    if limit < 0:
        raise DataError(
            "no error is below the limit of suspicion, so that every layer would be suspected",
            where=f"{SUSPECT}: {limit:g} steps",
            help="give a number from 0 on, such as --threshold 0.5; ideal rounding makes 0.29 steps",
        )
    if data.evaluation is None:
        raise DataError("no data was given", help="pass samples with --validation")
    if not denylists and (data.labels is not None or data.metric is not None):
        raise DataError("labels and metric judge denylists, and none was given", help="pass --denylist suspected")
    role, source = data.evaluation
    functions = open_metrics(metrics.layer, metrics.pair, metrics.output)
    models, datasets = open_pair(float_model, quantized_model, {role: source}, preprocessing=data.preprocessing)
    record = debug(
        models,
        datasets[role],
        functions,
        samples=data.samples,
        threads=threads_to_use(measuring.threads),
        suspect_steps=limit,
        progress=progress,
    )
    if not denylists:
        return record
    lists = {text: names_of_denylist(text, record) for text in denylists}
    opened = open_evaluation(float_model, quantized_model, data, measuring)
    with opened.models.as_deployed():
        found = try_denylists(
            opened.models.editable(),
            opened.dataset,
            opened.case,
            lists,
            metric=opened.metric,
            samples=data.samples,
            threads=opened.threads,
        )
    name = opened.metric.name if opened.metric is not None else None
    return record.model_copy(update={"denylists": found, "metric": name})


def names_of_denylist(text: str, record: DebuggerRecord) -> tuple[str, ...]:
    """The tensors that a denylist means.

    Raises:
        DataError: Its file cannot be read, or no layer has an operator type that it names.
    """
    if text.startswith("@"):
        return _names_in_file(Path(text[1:]), record)
    terms = [term.strip() for term in text.split(",") if term.strip()]
    return tuple(dict.fromkeys(name for term in terms for name in _names_of_term(term, record)))


def _names_in_file(path: Path, record: DebuggerRecord) -> tuple[str, ...]:
    """A name per line, or the lists of ``denylist.json``."""
    try:
        content = read_text(path)
        whole = content.lstrip().startswith("{")
        lists = parse_json(content, path) if whole else {"denylisted_nodes": content.splitlines()}
        if not isinstance(lists, dict):
            raise TypeError("it holds no lists")
        names = [*lists.get("denylisted_nodes", ())]
        kinds = [*lists.get("denylisted_ops", ())]
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            "the denylist cannot be read", where=f"{path}: {error}", help="give a name per line, or a denylist.json"
        ) from error
    own = [str(name).strip() for name in names if str(name).strip()]
    return tuple(dict.fromkeys([*own, *(name for kind in kinds for name in _names_of_term(f"op:{kind}", record))]))


def _names_of_term(term: str, record: DebuggerRecord) -> list[str]:
    if term == "suspected":
        return [layer.tensor_name for layer in record.suspected]
    if term == "first":
        return [layer.tensor_name for layer in record.layers[:FIRST_LAYERS]]
    if not term.startswith("op:"):
        return [term]
    kind = term.removeprefix("op:")
    names = [layer.tensor_name for layer in record.layers if layer.op_name == kind]
    if not names:
        known = ", ".join(dict.fromkeys(layer.op_name for layer in record.layers))
        raise DataError(f"no quantized operator is a {kind}", where=term, help=f"there are: {known}")
    return names


def write_layers(record: DebuggerRecord, path: str | Path) -> Written:
    """Write the table as CSV, whole or not at all: the columns of LiteRT's debugger, then range and error in steps.

    Raises:
        OutputError: The file cannot be written.
    """
    target = Path(path)
    (written,) = place({target.name: debugger_csv(record).encode()}, target.parent)
    return written


def write_report(record: DebuggerRecord, folder: str | Path) -> list[Written]:
    """Write ``debugger.html``, ``debugger.svg``, ``layers.csv`` and ``denylist.json``, all or none.

    Raises:
        OutputError: The folder cannot be written.
    """
    return list(place(debugger_files(record), Path(folder)))
