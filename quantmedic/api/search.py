"""Searches: what is changed at which places of a network, and what the network gives then."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from quantmedic.api.arguments import SearchArguments
from quantmedic.api.calibration_search import search_calibrations
from quantmedic.api.judging import check_toolchain, inspect, judge
from quantmedic.api.keywords import group_search_arguments
from quantmedic.api.notebooks import Watching, watching
from quantmedic.api.opening import measuring_options, open_evaluation, open_pair, with_time_limit
from quantmedic.api.options import SEARCHES, SUSPECT, TAKEN, ModelSource, SearchOptions, What
from quantmedic.api.rulebase import load_rulebase
from quantmedic.cluster.searches import run_on_cluster, simulate_on_cluster
from quantmedic.collectors.data.progress import Progress
from quantmedic.collectors.measure.debugger import debug, open_metrics
from quantmedic.collectors.measure.measurement import Measurement
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
    SearchRecord,
    SensitivityRecord,
)
from quantmedic.engine.diagnosis.advice import advise_on
from quantmedic.engine.diagnosis.candidates import Choice
from quantmedic.engine.diagnosis.prescription import write_prescription
from quantmedic.engine.errors import DataError
from quantmedic.engine.formulas.change import Targets
from quantmedic.engine.input_files import read_text
from quantmedic.engine.json_text import parse_json
from quantmedic.engine.metrics.kinds import is_share
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.rules.toolchain import Chosen
from quantmedic.reports.machines.spreadsheets import debugger_csv
from quantmedic.reports.search_formats import search_files
from quantmedic.reports.write import Written, place
from quantmedic.trials.float_search import FallbackTrial, try_denylists
from quantmedic.trials.layer_search import Experiment, LayerSearch, Searched


def search(
    what: What,
    float_model: ModelSource,
    quantized_model: ModelSource | None = None,
    *,
    progress: Watching = True,
    **options: Unpack[SearchArguments],
) -> SearchRecord:
    """Change a network at one place after another, and measure what it gives then.

    Args:
        what: ``sensitivity`` turns simulated quantizers on and off, layer by layer. ``fallback`` finds as few layers
            as it can that leave int8 so that a goal is met: in the simulated network on one half of the samples; it is
            checked on the other half with the quantized model itself, edited for real. ``calibrations`` builds settings
            of a toolchain, combinations of a calibration method with scales and zero points, each by running the text
            that is printed of it, and judges their models on all samples. ``debugger`` measures each quantized operator
            against its float twin, both fed with what the deployed model computed; every metric is averaged over the
            samples, those of layers and pairs without NaN.
        float_model: Path of the float ONNX or LiteRT model, or the float ``torch.nn.Module``; ``debugger`` takes files.
        quantized_model: Path of its quantized counterpart, or that module; none for ``calibrations``.
        validation: The samples that judge: ``.npz``, folder, ``module:function``, mapping or array.
        representative: Calibration data: what ``calibrations`` calibrates with, and what the others read where no
            evaluation data are given.
        samples: Samples at most: of ``sensitivity`` 64 by default, from all over the data set where its length is
            known; of one evaluation of ``fallback`` 64 to 256, by the size of the network; else all.
        progress: Called with a stage, what is done of it, and its number where known; see ``collect``.
        toolchain: Of ``fallback``, whose configuration is written; by default the one that the quantized model carries
            marks of. Of ``calibrations``, whose settings are searched (ort, litert, mct); by default the one that takes
            such models.
        **options: See ``quantmedic.api.options``.

    Returns:
        A record with all that tables, graphs and files show. After Ctrl-C, ``sensitivity`` gives the runs so far, and
        ``fallback`` the best set so far, ``interrupted`` and not checked.

    Raises:
        DataError: The data do not fit the model or are missing, there is not exactly one goal, a threshold is negative,
            or a function of yours fails.
        ModelError: A model cannot be read, simulated or run operator by operator, no layer is quantized, the two do not
            belong together, no toolchain can be run, or every setting failed.
        RuleError: No toolchain or method has that name.
        TypeError: There is no such search, or it takes no argument of such a name.
    """
    if what not in SEARCHES:
        raise TypeError(f"there is no search {what!r}: {', '.join(SEARCHES)}")
    for name in options.keys() - TAKEN[what]:
        raise TypeError(f"{what} takes no argument {name!r}")
    if quantized_model is None and what != "calibrations":
        raise TypeError(f"{what} compares a float and a quantized model: give both")
    given = group_search_arguments(options)
    with watching(progress) as told:
        return search_models(what, float_model, quantized_model, given, told)


def search_models(
    what: What, float_model: ModelSource, quantized_model: ModelSource, options: SearchOptions, progress: Progress
) -> SearchRecord:
    """``search`` with its options as one record; see there."""
    match what:
        case "sensitivity":
            return measure_sensitivity(float_model, quantized_model, options, progress)
        case "fallback":
            return search_fallback(float_model, quantized_model, options, progress)
        case "calibrations":
            return search_calibrations(float_model, options, progress)
        case "debugger":
            return debug_pair(float_model, quantized_model, options, progress)


def write_search(record: SearchRecord, folder: str | Path, formats: Sequence[str] | None = None) -> list[Written]:
    """Write what a search has found, and what is to be pasted, all files or none; returns path and bytes of each.

    Args:
        record: What was found.
        folder: Where to.
        formats: ``text``, ``markdown``, ``html``, ``json``, ``csv`` or ``svg``; those that suit the search by default.

    Raises:
        OutputError: The folder cannot be written.
        QuantmedicError: There is no such format.
    """
    return list(place(search_files(record, formats), Path(folder)))


def write_layers(record: DebuggerRecord, path: str | Path) -> Written:
    """Write the debugger's table as CSV, whole or not at all: LiteRT's columns, then range and error in steps.

    Raises:
        OutputError: The file cannot be written.
    """
    target = Path(path)
    (written,) = place({target.name: debugger_csv(record).encode()}, target.parent)
    return written


#: Samples that every run of ``sensitivity`` reads unless the user wants more: enough to rank layers by noise.
SAMPLES = 64
#: Samples per run; part of the result, since sums are rounded.
BATCH_SIZE = 16
#: The remedy that a set of layers is prescribed as.
IN_FLOAT = "keep-layers-float"


@with_time_limit
def measure_sensitivity(
    float_model: ModelSource, quantized_model: ModelSource, options: SearchOptions, progress: Progress
) -> SensitivityRecord:
    """How sensitive the output is to each layer; after Ctrl-C, the runs that were made until then."""
    _check_modes(options.modes)
    experiment, models = open_experiment(float_model, quantized_model, options)
    record, done = experiment.start, Counter[Mode]()
    try:
        with models.as_deployed():
            for mode, unit, outcome in _make_runs(experiment, float_model, quantized_model, options):
                record = record.add_run(mode, unit, outcome)
                done[mode] += 1
                progress(mode, done[mode], len(record.units))
    except KeyboardInterrupt:
        pass
    return record


def _make_runs(
    experiment: Experiment, float_model: ModelSource, quantized_model: ModelSource, options: SearchOptions
) -> Iterable[tuple[Mode, int, Outcome]]:
    """All runs, made here or by workers, as they come."""
    if options.cluster is None:
        return ((mode, unit, experiment.run(mode, unit)) for mode, unit in experiment.start.planned)
    return run_on_cluster(float_model, quantized_model, options, experiment.start)


def open_experiment(
    float_model: ModelSource, quantized_model: ModelSource, options: SearchOptions
) -> tuple[Experiment, Models]:
    """The simulated network with its samples, and both models."""
    opened = open_evaluation(float_model, quantized_model, options)
    with opened.models.as_deployed():
        experiment = Experiment(
            opened,
            modes=tuple(mode for mode in MODES if mode in (options.modes or MODES)),
            samples=options.samples or SAMPLES,
            batch_size=options.batch_size or BATCH_SIZE,
        )
    return experiment, opened.models


def _check_modes(modes: Sequence[str]) -> None:
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        raise DataError(
            "mode is not known", where=f"modes {', '.join(map(repr, unknown))}", help=f"give any of {', '.join(MODES)}"
        )


def check_goal(options: SearchOptions) -> None:
    """Refuse no goal, two goals, and a goal that no model can reach.

    Raises:
        DataError: Says what to give.
    """
    given = {"--max-drop": options.max_drop, "--min-sqnr": options.min_sqnr_db}
    where = ", ".join(f"{option} {value:g}" for option, value in given.items() if value is not None)
    example = "give --max-drop 1.0 (points of the metric) or --min-sqnr 30 (dB)"
    if (options.max_drop is None) == (options.min_sqnr_db is None):
        raise DataError("exactly one goal is needed", where=where or "none is given", help=example)
    finite = all(math.isfinite(value) for value in given.values() if value is not None)
    if not finite or (options.max_drop or 0) < 0:
        raise DataError("no model can reach this goal", where=where, help=example)


def goal_of(options: SearchOptions, metric: str | None) -> Goal:
    """The goal in the metric's own unit; None is the agreement with the float model's class."""
    if options.max_drop is None:
        assert options.min_sqnr_db is not None
        return Goal(kind="sqnr", limit=options.min_sqnr_db)
    # The agreement is a share too.
    in_points = metric is None or is_share(metric)
    return Goal(kind="drop", limit=options.max_drop / 100 if in_points else options.max_drop)


@with_time_limit
def search_fallback(
    float_model: ModelSource, quantized_model: ModelSource, options: SearchOptions, progress: Progress
) -> FallbackRecord:
    """As few layers as it finds that leave int8 to reach a goal, checked; after Ctrl-C the best so far, unchecked."""
    check_goal(options)
    base = load_rulebase()
    check_toolchain(options.toolchain, base)
    trial, opened = open_fallback(float_model, quantized_model, options)
    with opened.models.as_deployed(), ExitStack() as workers:
        if options.cluster is not None:
            trial.elsewhere = workers.enter_context(simulate_on_cluster(float_model, quantized_model, options))
        found = trial.search(lambda found: progress("evaluations", found.evaluations, None))
    base = base.for_framework(opened.models.framework)
    return _with_prescription(found, trial.places, opened.case, base, options.toolchain) if found.layers else found


def open_fallback(
    float_model: ModelSource, quantized_model: ModelSource, options: SearchOptions
) -> tuple[FallbackTrial, Searched]:
    """The search before its first evaluation, and what it was opened from."""
    opened = open_evaluation(float_model, quantized_model, options)
    name = opened.metric.name if opened.metric is not None and opened.dataset.labelled else None
    with opened.models.as_deployed():
        editable = replace(opened, models=opened.models.editable())
        trial = FallbackTrial(editable, goal_of(options, name), samples=options.samples)
    return trial, opened


def _with_prescription(
    record: FallbackRecord, places: Targets, case: Case, base: RuleBase, asked: str | None
) -> FallbackRecord:
    """The record with the set in the toolchain's own form, the settings of the quantized model kept."""
    opened = inspect(case, base)
    diagnosis = judge(opened, toolchain=asked)
    chosen = diagnosis.toolchain
    if chosen is not None and chosen.name is None and opened.facts.model.framework == "onnx":
        diagnosis = judge(opened, toolchain="onnxruntime")
        chosen = Chosen(name="onnxruntime", title="ONNX Runtime", how="the model does not show its toolchain")
    toolchain = next((each for each in base.toolchains if chosen is not None and each.name == chosen.name), None)
    advice = advise_on(base.remedies[IN_FLOAT], places, base, opened.facts)
    choice = Choice(IN_FLOAT, ((None, advice),), advice.title, None)
    given = write_prescription(diagnosis, (choice,), toolchain) if toolchain is not None else None
    return record.model_copy(update={"toolchain": chosen, "prescription": given})


@with_time_limit
def debug_pair(
    float_model: ModelSource, quantized_model: ModelSource, options: SearchOptions, progress: Progress
) -> DebuggerRecord:
    """Each quantized operator against its float twin, as LiteRT's debugger measures it."""
    limit = load_rulebase().thresholds[SUSPECT].value if options.threshold is None else options.threshold
    if not limit >= 0:
        raise DataError(
            "no error is below the limit of suspicion, so that every layer would be suspected",
            where=f"{SUSPECT}: {limit:g} steps",
            help="give a number from 0 on, such as --threshold 0.5; ideal rounding makes 0.29 steps",
        )
    role = options.evaluation
    if role is None:
        raise DataError("no data was given", help="pass samples with --validation")
    if not options.denylists and (options.labels is not None or options.metric is not None):
        raise DataError("labels and metric judge denylists, and none was given", help="pass --denylist suspected")
    functions = open_metrics(
        {"layer": options.layer_metrics, "pair": options.pair_metrics, "output": options.output_metrics}
    )
    models, datasets = open_pair(float_model, quantized_model, options, role)
    measurement = Measurement(models, datasets, measuring_options(options), progress=progress)
    record = debug(measurement, role, functions, limit)
    if not options.denylists:
        return record
    lists = {text: names_of_denylist(text, record) for text in options.denylists}
    opened = open_evaluation(float_model, quantized_model, options)
    with opened.models.as_deployed():
        search = LayerSearch(replace(opened, models=opened.models.editable()))
        found = try_denylists(record, search, lists, options.samples)
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
