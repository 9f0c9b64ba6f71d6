"""Searches over the layers of a pair: sensitivity, layers to leave in float, and the debugger's table."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pydantic import ValidationError

from quantmedic.api.inspection import inspect
from quantmedic.api.judging import check_toolchain, judge
from quantmedic.api.limits import with_time_limit
from quantmedic.api.opening import open_evaluation, open_pair
from quantmedic.api.options import CheckpointOptions, DataOptions, MeasuringOptions, ModelSource
from quantmedic.api.rulebase import load_rulebase
from quantmedic.collectors.data.progress import Progress, no_progress
from quantmedic.collectors.measure.debugger import debug, open_metrics
from quantmedic.collectors.measure.host import threads_to_use
from quantmedic.collectors.measure.models import Models
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.searches import (
    FIRST_LAYERS,
    MODES,
    DebuggerRecord,
    FallbackRecord,
    Goal,
    Mode,
    Outcome,
    SensitivityRecord,
)
from quantmedic.engine.diagnosis.advice import advise_on
from quantmedic.engine.diagnosis.candidates import Choice
from quantmedic.engine.diagnosis.prescription import write_prescription
from quantmedic.engine.errors import CaseError, DataError
from quantmedic.engine.formulas.change import Targets
from quantmedic.engine.input_files import read_text
from quantmedic.engine.json_text import parse_json, read_json
from quantmedic.engine.metrics.kinds import is_share
from quantmedic.engine.output_files import require_file
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.rules.toolchain import Chosen
from quantmedic.reports.search_formats import search_json
from quantmedic.reports.write import place
from quantmedic.trials.float_search import FallbackTrial, try_denylists
from quantmedic.trials.layer_search import Experiment, LayerSearch, Searched
from quantmedic.version import VERSION

#: ``module:function``, or the function itself, which returns one number.
MetricSource = str | Callable[..., float]
#: Samples that every run of ``sensitivity`` reads unless the user wants more: enough to rank layers by noise.
SAMPLES = 64
#: Samples per run; part of the result, since sums are rounded.
BATCH_SIZE = 16
#: Seconds between two checkpoints.
CHECKPOINT_SECONDS = 5.0
#: The remedy that a set of layers is prescribed as.
IN_FLOAT = "keep-layers-float"
#: Threshold above which the error of a layer, in steps, is more than rounding.
SUSPECT = "clip_rmse_over_scale"


class SensitivityInterrupted(KeyboardInterrupt):
    """Ctrl-C: ``record`` holds the runs that were made until then."""

    def __init__(self, record: SensitivityRecord) -> None:
        super().__init__()
        self.record = record


@with_time_limit
def measure_sensitivity(
    float_model: ModelSource,
    quantized_model: ModelSource,
    data: DataOptions,
    measuring: MeasuringOptions,
    saving: CheckpointOptions,
    cluster: object | None = None,
    *,
    modes: Sequence[Mode] = MODES,
    progress: Progress = no_progress,
) -> SensitivityRecord:
    """``sensitivity`` with its options in groups; see there."""
    _check_modes(modes)
    if saving.checkpoint is not None:
        require_file(Path(saving.checkpoint))
    before = _unfinished_record(saving)
    experiment, models = open_experiment(float_model, quantized_model, data, measuring, modes)
    record = experiment.start if before is None else before.resume(experiment.start)
    if cluster is None:
        with models.as_deployed():
            own = ((mode, unit, experiment.run(mode, unit)) for mode, unit in record.missing)
            return _add_runs(own, record, saving, progress)
    from quantmedic.cluster.searches import run_on_cluster  # Dask is an optional package

    runs = run_on_cluster(float_model, quantized_model, data, measuring, cluster, record)
    return _add_runs(runs, record, saving, progress)


def open_experiment(
    float_model: ModelSource,
    quantized_model: ModelSource,
    data: DataOptions,
    measuring: MeasuringOptions,
    modes: Sequence[Mode],
) -> tuple[Experiment, Models]:
    """The simulated network with its samples, and both models."""
    opened = open_evaluation(float_model, quantized_model, data, measuring)
    with opened.models.as_deployed():
        experiment = Experiment(
            opened,
            modes=tuple(mode for mode in MODES if mode in modes),
            samples=data.samples or SAMPLES,
            batch_size=measuring.batch_size or BATCH_SIZE,
        )
    return experiment, opened.models


def _add_runs(
    runs: Iterable[tuple[Mode, int, Outcome]], record: SensitivityRecord, saving: CheckpointOptions, progress: Progress
) -> SensitivityRecord:
    """Add runs as they come, and keep the record in the checkpoint on the way."""
    last_save = time.monotonic()
    done = Counter(run.mode for run in record.runs)
    try:
        for mode, unit, outcome in runs:
            record = record.add_run(mode, unit, outcome)
            done[mode] += 1
            progress(mode, done[mode], len(record.units))
            if time.monotonic() - last_save > CHECKPOINT_SECONDS:
                _save_checkpoint(record, saving)
                last_save = time.monotonic()
    except KeyboardInterrupt:
        raise SensitivityInterrupted(record) from None
    finally:
        _save_checkpoint(record, saving)
    return record


def _unfinished_record(saving: CheckpointOptions) -> SensitivityRecord | None:
    """The record to continue, if there is one."""
    if not saving.resume or saving.checkpoint is None or not Path(saving.checkpoint).exists():
        return None
    return load_sensitivity(saving.checkpoint)


def load_sensitivity(path: str | Path) -> SensitivityRecord:
    """Open a stored record, whole or interrupted: table and graph can be made of it without models.

    Raises:
        CaseError: The file is missing, damaged, or of another version.
        LimitError: It is too large or too deep.
    """
    try:
        return SensitivityRecord.model_validate(read_json(path))
    except OSError as error:
        raise CaseError(
            "cannot read the sensitivity file",
            where=f"{path}: {error.strerror or error}",
            help="write one with: quantmedic search sensitivity FLOAT QUANT",
        ) from error
    except ValidationError as error:
        raise CaseError(
            "not a readable sensitivity file",
            where=f"{path}: {error.errors()[0]['msg']}",
            help="start again without --resume",
        ) from error
    except ValueError as error:
        raise CaseError(
            "not a readable sensitivity file", where=f"{path}: {error}", help="start again without --resume"
        ) from error


def _save_checkpoint(record: SensitivityRecord, saving: CheckpointOptions) -> None:
    if saving.checkpoint is not None:
        path = Path(saving.checkpoint)
        place({path.name: search_json(record).encode()}, path.parent)


def _check_modes(modes: Sequence[str]) -> None:
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown or not modes:
        raise DataError(
            "mode is not known", where=f"modes {', '.join(map(repr, unknown))}", help=f"give any of {', '.join(MODES)}"
        )


@dataclass(frozen=True)
class GoalOptions:
    """What the search has to reach: exactly one of the two."""

    max_drop: float | None = None
    min_sqnr_db: float | None = None

    def check(self) -> None:
        """Refuse no goal, two goals, and a goal that no model can reach.

        Raises:
            DataError: Says what to give.
        """
        given = {"--max-drop": self.max_drop, "--min-sqnr": self.min_sqnr_db}
        where = ", ".join(f"{option} {value:g}" for option, value in given.items() if value is not None)
        example = "give --max-drop 1.0 (points of the metric) or --min-sqnr 30 (dB)"
        if (self.max_drop is None) == (self.min_sqnr_db is None):
            raise DataError("exactly one goal is needed", where=where or "none is given", help=example)
        finite = all(math.isfinite(value) for value in given.values() if value is not None)
        if not finite or (self.max_drop or 0) < 0:
            raise DataError("no model can reach this goal", where=where, help=example)

    def of_metric(self, metric: str | None) -> Goal:
        """The goal in the metric's own unit; None is the agreement with the float model's class."""
        if self.max_drop is None:
            assert self.min_sqnr_db is not None
            return Goal(kind="sqnr", limit=self.min_sqnr_db)
        # The agreement is a share too.
        in_points = metric is None or is_share(metric)
        return Goal(kind="drop", limit=self.max_drop / 100 if in_points else self.max_drop)


@with_time_limit
def search_fallback(
    float_model: ModelSource,
    quantized_model: ModelSource,
    data: DataOptions,
    measuring: MeasuringOptions,
    goal: GoalOptions,
    cluster: object | None = None,
    *,
    toolchain: str | None = None,
    progress: Progress = no_progress,
) -> FallbackRecord:
    """``fallback`` with its options in groups; see there."""
    goal.check()
    base = load_rulebase()
    check_toolchain(toolchain, base)
    trial, opened = open_fallback(float_model, quantized_model, data, measuring, goal)
    with opened.models.as_deployed(), ExitStack() as workers:
        if cluster is not None:
            from quantmedic.cluster.searches import simulate_on_cluster  # Dask is an optional package

            job = (float_model, quantized_model, data, measuring, asdict(goal))
            trial.elsewhere = workers.enter_context(simulate_on_cluster(cluster, *job))
        found = trial.search(lambda found: progress("evaluations", found.evaluations, None))
    base = base.for_framework(opened.models.framework)
    return _with_prescription(found, trial.places, opened.case, base, toolchain) if found.layers else found


def open_fallback(
    float_model: ModelSource,
    quantized_model: ModelSource,
    data: DataOptions,
    measuring: MeasuringOptions,
    goal: GoalOptions,
) -> tuple[FallbackTrial, Searched]:
    """The search before its first evaluation, and what it was opened from."""
    opened = open_evaluation(float_model, quantized_model, data, measuring)
    name = opened.metric.name if opened.metric is not None and opened.dataset.labelled else None
    with opened.models.as_deployed():
        editable = replace(opened, models=opened.models.editable())
        trial = FallbackTrial(editable, goal.of_metric(name), samples=data.samples)
    return trial, opened


def _with_prescription(
    record: FallbackRecord, places: Targets, case: Case, base: RuleBase, asked: str | None
) -> FallbackRecord:
    """The record with the set in the toolchain's own form, the settings of the quantized model kept."""
    opened = inspect(case, base)
    diagnosis = judge(opened, base, toolchain=asked)
    chosen = diagnosis.toolchain
    if chosen is not None and chosen.name is None and opened.facts.model.framework == "onnx":
        diagnosis = judge(opened, base, toolchain="onnxruntime")
        chosen = Chosen(name="onnxruntime", title="ONNX Runtime", how="the model does not show its toolchain")
    toolchain = next((each for each in base.toolchains if chosen is not None and each.name == chosen.name), None)
    advice = advise_on(base.remedies[IN_FLOAT], places, opened.facts)
    choice = Choice(IN_FLOAT, ((None, advice),), advice.title, None)
    given = write_prescription(diagnosis, (choice,), toolchain) if toolchain is not None else None
    return record.model_copy(update={"toolchain": chosen, "prescription": given})


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
    functions = open_metrics({"layer": metrics.layer, "pair": metrics.pair, "output": metrics.output})
    models, datasets = open_pair(float_model, quantized_model, {role: source}, preprocessing=data.preprocessing)
    record = debug(
        models,
        datasets[role],
        functions,
        samples=data.samples,
        threads=threads_to_use(measuring.threads),
        suspect_steps=limit,
        version=VERSION,
        progress=progress,
    )
    if not denylists:
        return record
    lists = {text: names_of_denylist(text, record) for text in denylists}
    opened = open_evaluation(float_model, quantized_model, data, measuring)
    with opened.models.as_deployed():
        search = LayerSearch(replace(opened, models=opened.models.editable()))
        found = try_denylists(record, search, lists, data.samples)
    return found.model_copy(update={"metric": opened.metric.name if opened.metric is not None else None})


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
