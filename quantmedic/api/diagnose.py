"""The public API: collect facts, judge them, write the report. The CLI is a thin shell over these functions."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

import quantmedic
from quantmedic.api.imports import read_sources, with_files
from quantmedic.api.opening import default_metric, is_litert, open_pair
from quantmedic.collectors.data.progress import Progress, no_progress
from quantmedic.engine.case.facts import Role, SearchFacts, SettingsFacts
from quantmedic.engine.case.records import Case, RunRecord
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.diagnose import Provenance, make_diagnosis
from quantmedic.engine.diagnosis.inspection import Inspection
from quantmedic.engine.diagnosis.prescription import prescribe
from quantmedic.engine.diagnosis.previous import PreviousCase, previous_case, refuse_other_float
from quantmedic.engine.diagnosis.repair import facts_after
from quantmedic.engine.diagnosis.suspects import general_repairs, repairs_of, simulate, suspects_of
from quantmedic.engine.errors import DataError, OutputError, QuantmedicError
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.formulas.tensor_histogram import display_histogram
from quantmedic.engine.formulas.tensors import main_role
from quantmedic.engine.rules.evaluate import evaluate
from quantmedic.engine.rules.remedy_kinds import HALVES
from quantmedic.engine.rules.rule import RuleBase, load_rules
from quantmedic.engine.rules.toolchain import named

FORMATS = ("html", "markdown", "json")
#: Seconds for trials of remedies.
DEFAULT_BUDGET = 60.0


def diagnose(
    float_model: Any,
    quantized_model: Any = None,
    *,
    representative: Any = None,
    validation: Any = None,
    rules: RuleBase | None = None,
    output: str | Path | None = None,
    formats: Sequence[str] = FORMATS,
    previous: str | Path | None = None,
    toolchain: str | None = None,
    **options: Any,
) -> Diagnosis:
    """Find out why the quantized model is less accurate than the float one.

    Args:
        float_model: Path of the float ONNX model, or the float ``torch.nn.Module``.
        quantized_model: Path of its quantized counterpart, or that module. None where quantization failed: then
            ``toolchain_logs`` tell how, see ``collect_failed``, which takes the options.
        representative: The data that calibrated it: ``.npz``, folder, ``module:function``, mapping or array; for
            modules also what yields batches of tensors, such as a ``DataLoader`` or a generator function.
        validation: The data that it is judged on, in the same forms.
        rules: Rules and thresholds; the built-in ones by default.
        output: Folder for the report; None writes nothing.
        formats: What to write there: html, markdown, json, png.
        previous: Case file from before a remedy was applied: what was tried without effect is named and ranked down.
        toolchain: Toolchain that the prescription is written for: ort, mct, litert, inc, horizon, aimet, torchao, nncf
            …; the one that the quantized model carries marks of by default.
        **options: Passed to ``collect``.

    Returns:
        The diagnosis: verdict, ranked causes with evidence and remedies, facts of all layers.

    Raises:
        QuantmedicError: A model, data set or rule cannot be used, or the report cannot be written.
    """
    base = rules or load_rulebase()
    _check_toolchain(toolchain, base)
    past = load_case(previous) if previous is not None else None
    if quantized_model is None:
        case = _collect_failed(float_model, validation, representative=representative, rules=base, **options)
    else:
        data = {"representative": representative, "validation": validation}
        case = collect(float_model, quantized_model, **data, rules=base, **options)
    opened = inspect(case, base)
    diagnosis = judge(opened, base, previous=past, toolchain=toolchain)
    if output is not None:
        write_report(diagnosis, output, formats=formats, rules=base, case=opened)
    return diagnosis


def _collect_failed(float_model: Any, validation: Any, **options: Any) -> Case:
    """A case without a quantized model."""
    from quantmedic.api.failed import collect_failed

    if validation is not None:
        raise DataError(
            "there is no quantized model to judge on validation data",
            help="leave them out; what calibrated it goes with --representative",
        )
    return collect_failed(float_model, **options)


def collect(
    float_model: Any,
    quantized_model: Any,
    *,
    representative: Any = None,
    validation: Any = None,
    rules: RuleBase | None = None,
    labels: str | Path | None = None,
    metric: str | None = None,
    metric_direction: str | None = None,
    metric_output: str | None = None,
    preprocessing: Mapping[Role, Any] | None = None,
    samples: int | None = None,
    batch_size: int | None = None,
    mode: Literal["exact", "fast"] = "exact",
    threads: int | None = None,
    operator_error: bool = False,
    step_error: bool = False,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: Progress = no_progress,
    reference_outputs: Any = None,
    device_outputs: Any = None,
    expected_float_metric: float | None = None,
    stages: Mapping[str, str | Path] | Sequence[tuple[str, str | Path]] = (),
    toolchain_logs: Sequence[str | Path] = (),
    prove: float | None = None,
    write_fixed: str | Path | None = None,
    mapping: Mapping[str, str] | None = None,
    memory: int | None = None,
    core_config: Any = None,
    mct_log: str | Path | None = None,
    settings_files: Sequence[str | Path] = (),
    thumbnails: bool = True,
    profile: bool = False,
) -> Case:
    """Run both models over the data and measure every tensor, once.

    Where the quantized model is harmed, the remedies of what the rules suspect are simulated on some samples, so that
    the case tells what each of them recovers.

    Args:
        float_model: See ``diagnose``.
        quantized_model: See ``diagnose``; neither model is changed.
        representative: See ``diagnose``.
        validation: See ``diagnose``.
        rules: Rules that decide which remedies are simulated, and whose ``logs.yaml`` tells how toolchains word things;
            the built-in ones by default.
        labels: Labels of the validation data, where they are not part of it.
        metric: top1, top5, mae, rmse or ``module:function``; top1 where labels are class numbers.
        metric_direction: ``higher`` or ``lower`` is better, for a function that does not say so itself.
        metric_output: Output that a built-in metric reads; the first by default.
        preprocessing: ``Preprocessing`` per role, for stored data that is not yet what the network wants.
        samples: At most this many samples of each set.
        batch_size: Samples per run; as many as suit the processor's cache by default.
        mode: ``exact`` measures every tensor on every sample; ``fast`` exposes a part of the tensors at a time and
            measures each on a random slice of at least 32 samples, at little more than the cost of inference.
        threads: Processor threads to use; all cores by default.
        operator_error: Also measure each quantized operator on float inputs, which costs one more run.
        step_error: Also measure each quantized operator against the float one where both are fed with what the deployed
            model computed before them, as LiteRT's QuantizationDebugger does; costs one more run.
        seed: Seed of the intervals that are bootstrapped over samples.
        checkpoint: Case file that is written every half minute and on Ctrl-C, so that no measurement is lost.
        resume: Go on with the unfinished case in ``checkpoint``, if there is one.
        progress: Called with the data set's role, the samples done and their number where known.
        reference_outputs: Outputs of the training framework's model on the validation data, in their order: ``.npz``,
            ``.npy``, an array, or a mapping of output names to arrays, samples along axis 0.
        device_outputs: Outputs of the device on the validation data, in the same forms.
        expected_float_metric: Task metric of the float model as known from training; percent will do for shares.
        stages: Models between float and quantized in the order of the toolchain, by name.
        toolchain_logs: What the toolchain printed, as text files.
        prove: Seconds for carrying out the remedies of what is suspected on copies of the quantized model: what they
            recover there is measured, on samples that they were not fitted on. None tries nothing.
        write_fixed: Where to write the quantized model with all proven remedies; implies ``prove``.
        mapping: Of torch modules, float layers with their quantized counterparts by name, where structure and names
            leave open what belongs together.
        memory: Of torch modules, bytes that the observed tensors may take: as many layers are observed at a time as
            fit, and both modules run once for each such group.
        core_config: The ``mct.core.CoreConfig`` that Sony's toolkit quantized with: its settings are judged too.
        mct_log: The folder given to ``mct.set_log_folder``, for the same and for what the toolkit printed; one that is
            missing or belongs to another model is said in a notice.
        settings_files: What the toolchain was told or left behind, in any of the formats that ``import_files`` reads:
            settings, recorded thresholds and reported figures, matched by name.
        thumbnails: Keep small versions of a few samples where they are images, for reports to show.
        profile: Also measure how long a run of each model takes, and each operator of a quantized ONNX model. Times
            differ from run to run, so two cases of one input are no longer equal.

    Raises:
        OutputError: The repaired model cannot be written there.
        DataError: A data set does not fit the model, or none was given.
        ModelError: A model cannot be read, or the two do not belong together.
        CaseError: The case to resume was measured with other models, data or options.
        collectors.from_onnx.Interrupted: Ctrl-C; a ``KeyboardInterrupt`` whose ``case`` is what was measured.
    """
    from quantmedic.collectors.data.metrics import load_metric
    from quantmedic.collectors.from_onnx.file import require_writable, save_model
    from quantmedic.collectors.measure.collect import Interrupted
    from quantmedic.collectors.measure.collect import collect as _collect
    from quantmedic.collectors.measure.host import available_threads
    from quantmedic.collectors.measure.observer import Options
    from quantmedic.collectors.measure.stages import open_stages

    given: dict[Role, Any] = {}
    if representative is not None:
        given["representative"] = representative
    if validation is not None:
        given["validation"] = validation
    if not given:
        raise DataError(
            "no data was given",
            help="pass the calibration data with --representative, the evaluation data with --validation, or both",
        )
    if write_fixed is not None:
        _refuse_own(Path(write_fixed), (float_model, quantized_model))
        require_writable(Path(write_fixed))
    models, datasets = open_pair(
        float_model, quantized_model, given, preprocessing=preprocessing or {}, labels=labels, mapping=mapping
    )
    with models.as_deployed():
        name = metric or default_metric(datasets.values())
    extras = _extras(models, datasets.get("validation"), samples, reference_outputs, device_outputs)
    told = toolchain_facts(
        getattr(models, "quantized_module", None), rules, toolchain_logs, core_config=core_config, mct_log=mct_log
    )
    extras = replace(extras, search=told.search, settings=told.settings)
    sources = read_sources(settings_files)
    if stages:
        pairs = list(stages.items()) if isinstance(stages, Mapping) else list(stages)
        extras = replace(extras, stages=open_stages(pairs, models.float_graph))
    if expected_float_metric is not None:
        labelled = any(dataset.labelled for dataset in datasets.values())
        extras = replace(extras, expected_float_metric=_expected(expected_float_metric, name if labelled else None))
    settings = Options(
        samples, batch_size, threads or available_threads(), operator_error, seed, mode, thumbnails, step_error
    )
    task = load_metric(name, metric_direction, output=metric_output) if name else None
    if memory is not None:
        models.bound(memory // settings.lanes)
    with models.as_deployed():
        case = _collect(
            models,
            datasets,
            options=settings,
            version=quantmedic.__version__,
            metric=task,
            progress=progress,
            resume=_unfinished(Path(checkpoint)) if resume and checkpoint is not None else None,
            checkpoint=lambda case: save_case(case, checkpoint) if checkpoint is not None else None,
            extras=extras,
        )
        case = with_files(_with_preprocessing(case, preprocessing or {}), sources)
        if told.notice is not None:
            case = noted(case, told.notice)
        base = rules or load_rulebase()
        try:
            if profile:
                case = _profiled(case, models, datasets, settings.threads, progress)
            case = _simulated(case, models, datasets, settings, base, progress)
        except KeyboardInterrupt:
            # All samples are measured: what is lost is only what remedies recover.
            if checkpoint is not None:
                save_case(case, checkpoint)
            raise Interrupted(case) from None
        if prove is None and write_fixed is None:
            return case
        budget = DEFAULT_BUDGET if prove is None else prove
        proven = _proven(case, models, datasets, settings, base, progress, metric=task, budget=budget)
        if write_fixed is None:
            return proven.case
        if proven.fixed is None:
            return noted(proven.case, f"no remedy was proven, so {Path(write_fixed).name} was not written")
        save_model(proven.fixed, Path(write_fixed))
        return proven.case


class ToolchainFacts(NamedTuple):
    """What the toolchain printed and was told, None where nothing tells it; ``notice`` says what was of no use."""

    search: SearchFacts | None
    settings: SettingsFacts | None
    notice: str | None


def toolchain_facts(
    module: Any, rules: RuleBase | None, logs: Sequence[str | Path], *, core_config: Any, mct_log: str | Path | None
) -> ToolchainFacts:
    """What ``collect``'s options of these names tell; ``module`` is the quantized torch module, if there is one.

    Raises:
        DataError: A log cannot be read, or it is no ``CoreConfig``.
    """
    from quantmedic.collectors.from_settings.mct_settings import read_told
    from quantmedic.collectors.from_settings.toolchain_log import read_logs

    told = None
    if core_config is not None or mct_log is not None:
        told = read_told(module, core_config, mct_log)
    files = [*logs, *(told.logs if told is not None else ())]
    search = read_logs(files, (rules or load_rulebase()).logs) if files else None
    if told is None:
        return ToolchainFacts(search, None, None)
    known = told.search.model_dump(exclude_none=True)
    return ToolchainFacts((search or SearchFacts()).model_copy(update=known), told.settings, told.notice)


def _with_preprocessing(case: Case, preprocessing: Mapping[Role, Any]) -> Case:
    """The case with what was declared for the data that were read."""
    declared = {
        # As a case file gives it back, which knows lists and no tuples.
        role: {k: list(v) if isinstance(v, tuple) else v for k, v in vars(preprocessing[role]).items() if v is not None}
        for role in case.record.datasets
        if role in preprocessing
    }
    run = {**case.record.run, "preprocessing": {role: given for role, given in declared.items() if given}}
    return replace(case, record=case.record.model_copy(update={"run": run}))


def _profiled(case: Case, models: Any, datasets: Mapping[Role, Any], threads: int, progress: Progress) -> Case:
    """The case with the time of one run of both models on their first sample, and of each operator."""
    progress("latency", 0, None)
    dataset = datasets[main_role(case)]
    try:
        found = models.profile(next(dataset.batches(1)), threads)
    except QuantmedicError as error:
        return noted(case, f"latency was not measured: {error.message}")
    times = found.times or {}
    record = case.record
    changes = {
        "model": record.model.model_copy(update={**found.facts, "kernels": found.kernels}),
        "operators": tuple(op.model_copy(update={"time_ms": times.get(op.index)}) for op in record.operators),
    }
    return replace(case, record=record.model_copy(update=changes))


def _simulated(
    case: Case,
    models: Any,
    datasets: Mapping[Role, Any],
    options: Any,
    base: RuleBase,
    progress: Progress,
) -> Case:
    """The case with simulated runs of the remedies of what is suspected; a healthy model needs none."""
    from quantmedic.collectors.measure.simulation import Simulation

    facts = derive(case, base)
    if not facts.model.harmed:
        return case
    suspects = suspects_of(evaluate(base, facts), lambda findings: repairs_of(findings, base, case, facts))
    role = main_role(case)
    done = 0
    try:
        simulation = Simulation(models, datasets[role], role, case, options)

        def run(change: Change) -> RunRecord:
            nonlocal done
            done += 1
            progress("remedies", done, None)
            return simulation.run(change)

        found = simulate(suspects, general_repairs(HALVES, case, facts), simulation.record, run)
    except QuantmedicError as error:
        return noted(case, f"what remedies recover was not simulated: {error.message}")
    return replace(case, record=case.record.model_copy(update={"simulation": found}))


def _refuse_own(fixed: Path, own: Iterable[Any]) -> None:
    if not all(isinstance(model, str | Path) for model in own):
        raise DataError(
            "a repaired torch module is not written",
            where=str(fixed),
            help="leave write_fixed out: the report's prescription holds the configuration to quantize again with",
        )
    if any(is_litert(Path(path)) for path in own):
        raise DataError(
            "a repaired LiteRT model is not written",
            where=str(fixed),
            help="leave --write-fixed out: the report's prescription holds the configuration to quantize again with",
        )
    if fixed.resolve() in [Path(path).resolve() for path in own]:
        raise OutputError("the repaired model would replace one of yours", where=str(fixed), help="name another file")


@dataclass(frozen=True)
class _Proven:
    """A case with its trials, and the model with all proven remedies."""

    case: Case
    fixed: Any = None


def _proven(
    case: Case,
    models: Any,
    datasets: Mapping[Role, Any],
    options: Any,
    base: RuleBase,
    progress: Progress,
    *,
    metric: Any,
    budget: float,
) -> _Proven:
    """The case with what remedies recover on copies of the quantized model; a healthy model needs none."""
    from quantmedic.trials.prove import prove

    facts = derive(case, base)
    if not facts.model.harmed:
        return _Proven(noted(case, "no remedy was tried: the outputs of both models agree"))
    ranked = [cause.cause for cause in judge(case, base).causes]
    suspects = suspects_of(evaluate(base, facts), lambda findings: repairs_of(findings, base, case, facts))
    suspects = sorted(
        (suspect for suspect in suspects if suspect.cause in ranked), key=lambda suspect: ranked.index(suspect.cause)
    )
    try:
        edited = models.editable()
        found = prove(
            edited, case, base, suspects, datasets, options=options, metric=metric, budget=budget, progress=progress
        )
    except QuantmedicError as error:
        said = "; ".join([error.message, *error.where, *([error.help] if error.help else [])])
        return _Proven(noted(case, f"no remedy was tried: {said}"))
    record = case.record.model_copy(update={"proof": found.record, "notices": (*case.record.notices, *edited.notices)})
    return _Proven(replace(case, record=record), found.fixed)


def noted(case: Case, notice: str) -> Case:
    """The case with one more thing that the user should know."""
    return replace(case, record=case.record.model_copy(update={"notices": (*case.record.notices, notice)}))


def _extras(models: Any, validation: Any, samples: int | None, reference: Any, device: Any) -> Any:
    """Outputs that were computed elsewhere, opened."""
    from quantmedic.collectors.measure.collect import Extras
    from quantmedic.collectors.measure.given_outputs import OPTIONS, References

    given = {kind: source for kind, source in (("reference", reference), ("device", device)) if source is not None}
    if given and validation is None:
        raise DataError(
            "outputs were given without the inputs that they belong to",
            where=", ".join(OPTIONS[kind] for kind in given),
            help="pass these inputs with --validation",
        )
    return Extras({kind: References(s, kind, models, validation.samples, samples) for kind, s in given.items()})


def _expected(value: float, metric: str | None) -> float:
    """The metric that the user expects, shares as a share."""
    if metric is None:
        raise DataError(
            "the expected float metric cannot be compared: none is measured",
            where=f"--expected-float-metric {value:g}",
            help="pass --labels (or labels in the .npz of --validation) and --metric",
        )
    share = value / 100 if metric in ("top1", "top5") and value > 1 else value
    if not math.isfinite(value) or (metric in ("top1", "top5") and not 0 <= share <= 1):
        raise DataError(
            f"the expected float metric is no {metric}",
            where=f"--expected-float-metric {value:g}",
            help="give a share such as 0.76, or percent such as 76.1",
        )
    return share


def _unfinished(path: Path) -> Case | None:
    return load_case(path) if path.exists() else None


def judge(
    case: Case | Inspection,
    rules: RuleBase | None = None,
    *,
    previous: Case | None = None,
    toolchain: str | None = None,
) -> Diagnosis:
    """Judge a measured case; needs neither models nor data.

    Args:
        case: What was measured; opened by ``inspect``, its facts are not derived once more.
        rules: Rules and thresholds; the built-in ones by default.
        previous: The case before a remedy was applied, of the same float model.
        toolchain: See ``diagnose``.

    Raises:
        CaseError: The previous case is of another float model.
        RuleError: No toolchain has that name.
    """
    base = rules or load_rulebase()
    _check_toolchain(toolchain, base)
    opened = opened_under(case, base)
    case, facts = opened.case, opened.facts
    if previous is not None:
        refuse_other_float(previous.record, case.record)
    diagnosis = make_diagnosis(
        base,
        facts,
        repairs=lambda findings: repairs_of(findings, base, case, facts),
        repair=lambda change, outcome: facts_after(case, facts, base, change, outcome),
        simulation=case.record.simulation,
        proof=case.record.proof,
        provenance=Provenance(
            version=quantmedic.__version__,
            warnings=tuple(_warnings(case)),
            imports=case.record.imports,
            run=_run(case),
        ),
        histogram=lambda tensor: display_histogram(case, tensor),
        previous=_before(previous, case, base) if previous is not None else None,
    )
    return prescribe(diagnosis, base, toolchain)


def _check_toolchain(asked: str | None, base: RuleBase) -> None:
    """Refuse an unknown name before anything is measured."""
    if asked is not None:
        named(asked, base.toolchains)


def _before(previous: Case, case: Case, base: RuleBase) -> PreviousCase:
    """The previous case, judged by the rules in force now."""
    return previous_case(previous, case, derive(previous, base), judge(previous, base).causes)


def load_rulebase(folders: Iterable[str | Path] = ()) -> RuleBase:
    """The built-in rules, and those of the user's folders beside them.

    Raises:
        RuleError: A rule cannot be used; names file, line and the nearest known name.
    """
    return load_rules([rule_folder(), *(Path(folder) for folder in folders)])


def rule_folder() -> Path:
    """Folder of the built-in rules."""
    return _data_folder("rules")


def load_manuals(rules: RuleBase) -> dict[str, str]:
    """Manual pages by rule id, general pages as ``general/NAME``; a user's page lies beside its rule.

    A rule without a page gets a short one from its own words.
    """
    folder = _data_folder("manuals")
    pages = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
    pages |= {
        f"general/{path.stem}": path.read_text(encoding="utf-8") for path in sorted((folder / "general").glob("*.md"))
    }
    for rule in rules.rules:
        beside = rule.path.with_suffix(".md") if rule.path is not None else None
        if beside is not None and beside.is_file():
            pages[rule.id] = beside.read_text(encoding="utf-8")
        elif rule.id not in pages:
            remedies = "\n".join(f"- {rules.remedies[name].title}" for name in rule.remedies)
            pages[rule.id] = f"# {rule.name} ({rule.id})\n\n{rule.message}\n\n## What to do\n\n{remedies}\n"
    return pages


def write_report(
    diagnosis: Diagnosis,
    folder: str | Path,
    *,
    formats: Sequence[str] = FORMATS,
    rules: RuleBase | None = None,
    case: Case | Inspection | None = None,
) -> list[tuple[Path, int]]:
    """Write the report, and the case file beside it; returns (path, bytes) of every file.

    Without the case, the page can be read but has no tools: they show what only the case knows.

    Raises:
        OutputError: The folder cannot be written.
    """
    from quantmedic.reports.write import write_report as _write

    target, base = Path(folder), rules or load_rulebase()
    opened = opened_under(case, base) if case is not None else None
    written = [(file.path, file.size) for file in _write(diagnosis, load_manuals(base), target, formats, opened)]
    if opened is not None:
        save_case(opened.case, target / "quantmedic.case")
        written.append((target / "quantmedic.case", (target / "quantmedic.case").stat().st_size))
    return written


def inspect(case: Case, rules: RuleBase | None = None) -> Inspection:
    """A case opened for looking: facts of every layer, distributions, channels, the graph."""
    base = rules or load_rulebase()
    return Inspection(case, derive(case, base), base)


def opened_under(case: Case | Inspection, base: RuleBase) -> Inspection:
    """The case opened under these rules, whose thresholds its facts depend on."""
    if isinstance(case, Case):
        return inspect(case, base)
    return case if case.base is base else inspect(case.case, base)


def save_case(case: Case, path: str | Path) -> None:
    """Save a case to one file (zip of JSON and arrays)."""
    from quantmedic.collectors.measure.case_file import write_case

    write_case(case, Path(path))


def load_case(*paths: str | Path) -> Case:
    """Open a case; several shards of the same models are merged as if measured in one pass.

    Raises:
        CaseError: A file cannot be read, or the shards do not belong together.
    """
    from quantmedic.collectors.measure.case_file import read_case

    case, *shards = [read_case(Path(path)) for path in paths]
    for shard in shards:
        case = case.merge(shard)
    return case


def _data_folder(name: str) -> Path:
    return Path(str(files(f"quantmedic.{name}")))


def _warnings(case: Case) -> list[str]:
    record = case.record
    warnings = list(record.notices)
    if record.unmatched:
        shown = ", ".join(record.unmatched[:5])
        more = f" and {len(record.unmatched) - 5} more" if len(record.unmatched) > 5 else ""
        warnings.append(
            f"{len(record.unmatched)} operators have no twin in the float model and are not measured: {shown}{more}"
        )
    warnings += [
        f"the {role} data was not read to its end: {d.seen} samples"
        for role, d in record.datasets.items()
        if not d.complete
    ]
    return warnings


def _run(case: Case) -> dict[str, Any]:
    record = case.record
    data = {
        role: {
            "origin": d.origin,
            "samples": d.seen,
            "labelled": d.labelled,
            "samples_sha256": case.samples_sha256(role),
        }
        for role, d in record.datasets.items()
    }
    return {**record.run, "metric": record.metric, "data": data, "unmatched": list(record.unmatched)}
