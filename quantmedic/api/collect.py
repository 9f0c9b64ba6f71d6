"""Two models measured on data: every tensor, once."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Unpack

import numpy as np

from quantmedic.api.arguments import CollectArguments
from quantmedic.api.cases import case_path, save_case, with_notice
from quantmedic.api.failed import collect_refusal
from quantmedic.api.imports import read_toolchain
from quantmedic.api.keywords import group_arguments
from quantmedic.api.language_models import collect_language_pair, is_language_pair, refuse_texts
from quantmedic.api.notebooks import Watching, watching
from quantmedic.api.opening import (
    UNUSED_BOXES,
    JudgedMeasurement,
    measuring_options,
    open_device_tensors,
    open_measurement,
    open_pair,
    with_device_tensors,
    with_time_limit,
)
from quantmedic.api.options import FIRST_SECONDS, CollectOptions, DataOptions, DataSource, ModelSource, ProofOptions
from quantmedic.api.remedies import Proof, prove_remedies, require_writable_repair, simulate_remedies
from quantmedic.api.rulebase import load_rulebase
from quantmedic.cluster.connection import connect
from quantmedic.cluster.proofs import try_on_cluster
from quantmedic.cluster.slices import measure_on_cluster
from quantmedic.cluster.units import THREADS
from quantmedic.collectors.case_file.archive import read_case
from quantmedic.collectors.data.progress import Announce, Progress, no_announcement, no_progress
from quantmedic.collectors.measure.collect_pair import Interrupted
from quantmedic.collectors.measure.collect_pair import collect as measure
from quantmedic.collectors.measure.measurement import Measurement
from quantmedic.collectors.measure.recordings import Recording, record_outputs
from quantmedic.engine.case.facts import ROLES
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import DataError, QuantmedicError, RefusedModelError
from quantmedic.engine.formulas.stored_bins import main_role
from quantmedic.engine.garbage import with_rare_garbage_collection
from quantmedic.engine.input_files import missing_model
from quantmedic.engine.output_files import require_file
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.trials.allowance import Allowance
from quantmedic.trials.tasks import OpenElsewhere

#: Said of a case whose samples are all measured, but no more than that.
_NOT_TRIED = (
    "it was interrupted before the noise was divided among its sources and remedies were tried: causes are ranked "
    "without that; the same command with --resume goes on"
)
#: Said where that was asked for.
_LEFT_OUT = (
    "the noise was not divided among its sources and no remedy was simulated (--no-attribution): causes are ranked "
    "without that"
)
#: Said where there are labels that no metric reads.
UNUSED_LABELS = (
    "the labels were not used: they are not the classes of samples, and no metric was named; name one with --metric "
    "(map, miou, mae … or module:function; see: quantmedic explain metrics)"
)
#: Said where samples that judge the model calibrated it.
CALIBRATING = (
    "{} of the {} validation samples are in the representative set, too: what calibrated a model judges it kindly, so "
    "leave them out of one of both sets"
)


def collect(
    float_model: ModelSource,
    quantized_model: ModelSource,
    *,
    representative: DataSource | None = None,
    validation: DataSource | None = None,
    rules: RuleBase | None = None,
    toolchain: str | None = None,
    progress: Watching = True,
    **options: Unpack[CollectArguments],
) -> Case:
    """Run both models over the data and measure every tensor, once.

    Where the quantized model is harmed, the remedies of what the rules suspect are simulated on some samples. The case
    then holds what each of them recovers.

    Args:
        float_model: See ``diagnose``.
        quantized_model: See ``diagnose``; neither model is changed.
        representative: See ``diagnose``.
        validation: See ``diagnose``.
        rules: Rules that decide which remedies are simulated; their ``logs.yaml`` holds patterns of toolchain logs;
            the built-in ones by default.
        toolchain: Whose prescriptions are run to prove them; see ``diagnose``.
        progress: Called with the data set's role, the samples done and their number where known. Where no function is
            given, notebooks show one line that is gone at the end; False shows nothing.
        **options: See ``quantmedic.api.options``.

    Raises:
        OutputError: The repaired model or the checkpoint cannot be written there.
        DataError: A data set does not fit the model, or none was given.
        ModelError: A model cannot be read, or the two do not belong together.
        TimeLimitError: A run of a model took longer than ``timeout``; a ``ModelError``.
        CaseError: The case to resume was measured with other models, data or options.
        TypeError: An argument has no such name.
        collectors.measure.collect_pair.Interrupted: Ctrl-C; a ``KeyboardInterrupt``, whose ``case`` is what was
            measured.
    """
    given = replace(group_arguments(representative, validation, options), toolchain=toolchain)
    with watching(progress) as told:
        return collect_pair(float_model, quantized_model, given, rules=rules, progress=told)


def collect_pair(
    float_model: ModelSource,
    quantized_model: ModelSource,
    options: CollectOptions,
    *,
    rules: RuleBase | None = None,
    progress: Progress = no_progress,
    announce: Announce = no_announcement,
) -> Case:
    """``collect`` with its options as one record; see there. ``announce`` is called with a line on what takes long."""
    if is_language_pair(float_model, quantized_model):
        return collect_language_pair(
            float_model, quantized_model, options, rules=rules, progress=progress, announce=announce
        )
    refuse_texts(float_model, quantized_model, options)
    write_fixed = options.write_fixed
    if write_fixed is not None:
        require_writable_repair(Path(write_fixed), (float_model, quantized_model))
    try:
        proof = prove_pair(float_model, quantized_model, options, rules=rules, progress=progress, announce=announce)
    except RefusedModelError as error:
        if write_fixed is not None or not _is_file(quantized_model, error.path):
            raise
        return collect_refusal(float_model, error, options, rules or load_rulebase(), progress)
    return _write_repair(proof, write_fixed)


def _is_file(model: ModelSource, path: Path) -> bool:
    return isinstance(model, str | Path) and Path(model).expanduser().resolve() == path.resolve()


def _refuse_missing_file(*models: ModelSource) -> None:
    """A mistyped name of a model is said before that data are missing."""
    for model in models:
        if isinstance(model, Path) and not model.exists():
            raise missing_model(model, "check the path")


@with_time_limit
@with_rare_garbage_collection
def prove_pair(
    float_model: ModelSource,
    quantized_model: ModelSource,
    options: CollectOptions,
    *,
    rules: RuleBase | None = None,
    progress: Progress = no_progress,
    announce: Announce = no_announcement,
) -> Proof:
    """``collect_pair`` that gives the repaired model back instead of writing it."""
    if options.checkpoint is not None:
        require_file(case_path(options.checkpoint))
    if not options.sources:
        _refuse_missing_file(float_model, quantized_model)
        raise DataError(
            "no data was given",
            help="pass the calibration data with --representative, the evaluation data with --validation, or both",
        )
    base = rules or load_rulebase()
    measurement = open_measurement(float_model, quantized_model, options, base, progress=progress, announce=announce)
    models = measurement.models
    dump = open_device_tensors(measurement, options)
    printed = read_toolchain(options, base, getattr(models, "quantized_module", None))
    extras = replace(measurement.extras, search=printed.search, settings=printed.settings)
    measurement = replace(measurement, extras=extras)
    with models.as_deployed(), _connect_once(options) as options:
        earlier = _unfinished_case(options)
        elsewhere = None
        if options.cluster is not None:
            elsewhere = partial(measure_on_cluster, float_model, quantized_model, options, progress)
        case = measure(
            measurement,
            resume=earlier,
            checkpoint=lambda case: _save_checkpoint(case, options),
            elsewhere=elsewhere,
        )
        case = _with_simulation_of(earlier, case)
        case = printed.added_to(_with_data_options(case, options), models)
        try:
            if dump is not None:
                case = with_device_tensors(case, measurement, dump)
            if options.profile:
                case = _with_latency(case, measurement)
            case = simulate_remedies(case, measurement) if options.attribution else with_notice(case, _LEFT_OUT)
        except KeyboardInterrupt:
            # All samples are measured: what is lost is only what remedies recover.
            case = with_notice(case, _NOT_TRIED)
            _save_checkpoint(case, options)
            raise Interrupted(case) from None
        allowance = _allowance_of(options, case)
        if allowance is None:
            return Proof(case)
        trying: AbstractContextManager[OpenElsewhere | None] = nullcontext()
        if options.cluster is not None:
            # What is compared has to run alike: kernels of several threads may round the last bit otherwise.
            own = replace(measurement.options, threads=options.threads or THREADS)
            measurement = replace(measurement, options=own)
            trying = try_on_cluster(options.cluster, float_model, quantized_model, options)
        with trying as workers:
            return prove_remedies(
                case, measurement, allowance, options.toolchain, first=options.first, elsewhere=workers
            )


def _allowance_of(options: ProofOptions, case: Case) -> Allowance | None:
    """What may be tried; None for nothing."""
    if options.first:
        return Allowance.like_measuring(case, FIRST_SECONDS)
    if options.budget is None:
        return None
    return Allowance(options.budget, counted=not options.is_timed)


@contextmanager
def _connect_once(options: CollectOptions) -> Iterator[CollectOptions]:
    """The options with a client of the cluster, where one is named: its workers start once for all that they do."""
    if options.cluster is None:
        yield options
        return
    with connect(options.cluster) as client:
        yield replace(options, cluster=client)


def _with_simulation_of(earlier: Case | None, case: Case) -> Case:
    """The case with what was simulated in the one that it goes on from: that has been finished before."""
    if earlier is None or earlier.record.simulation is None:
        return case
    known = {name: getattr(earlier.record, name) for name in ("simulation", "loss_budget")}
    return case.with_record(**known)


def _unfinished_case(saving: CollectOptions) -> Case | None:
    """The case to continue, if there is one."""
    if not saving.resume or saving.checkpoint is None or not case_path(saving.checkpoint).exists():
        return None
    case = read_case(case_path(saving.checkpoint))
    notices = tuple(notice for notice in case.record.notices if notice != _NOT_TRIED)
    return case.with_record(notices=notices)


def _save_checkpoint(case: Case, saving: CollectOptions) -> None:
    if saving.checkpoint is not None:
        save_case(case, saving.checkpoint)


def _write_repair(proof: Proof, path: str | Path | None) -> Case:
    """The case of the trials; the repaired model is written to ``path``."""
    if path is None:
        return proof.case
    save = proof.fix().save if proof.fix is not None else None
    if save is None:
        record = proof.case.record.proof
        why = record.unwritten if record is not None else "no remedy was tried"
        return with_notice(proof.case, f"{why}, so {Path(path).name} was not written")
    save(Path(path))
    return proof.case


def _with_data_options(case: Case, options: DataOptions) -> Case:
    """The case with what was declared for the data that were read, and whether the metric was named."""
    preprocessing = options.preprocessing
    declared = {
        # As a case file gives it back, which knows lists and no tuples.
        role: {k: list(v) if isinstance(v, tuple) else v for k, v in vars(preprocessing[role]).items() if v is not None}
        for role in case.record.datasets
        if role in preprocessing
    }
    run = {**case.record.run, "preprocessing": {role: given for role, given in declared.items() if given}}
    run["metric_by_default"] = case.record.metric is not None and options.metric is None
    case = case.with_record(run=run)
    if shared := _calibrating_samples(case):
        said = CALIBRATING.format(shared, case.record.datasets["validation"].seen)
        case = case.with_record(notices=(said, *(own for own in case.record.notices if own != said)))
    is_said = any(notice.startswith(UNUSED_BOXES) for notice in case.record.notices)
    if case.record.metric is None and not is_said and any(own.labelled for own in case.record.datasets.values()):
        return with_notice(case, UNUSED_LABELS)
    return case


def _calibrating_samples(case: Case) -> int:
    """How many samples of the validation set are in the representative one, too, by the content of all inputs."""
    sets = [case.statistics.get(role) for role in ROLES]
    if None in sets:
        return 0
    calibrating, judging = (own.samples["hash"] for own in sets if own is not None)
    return int(np.isin(judging, calibrating).sum())


def _with_latency(case: Case, measurement: JudgedMeasurement) -> Case:
    """The case with the time of one run of both models on their first sample, and of each operator."""
    measurement.progress("latency", 0, None)
    dataset = measurement.datasets[main_role(case)]
    try:
        latency = measurement.models.profile(next(dataset.batches(1)), measurement.options.threads)
    except QuantmedicError as error:
        return with_notice(case, f"latency was not measured: {error.message}")
    times = latency.times or {}
    record = case.record
    return case.with_record(
        model=record.model.model_copy(update={**latency.facts, "kernels": latency.kernels}),
        operators=tuple(op.model_copy(update={"time_ms": times.get(op.index)}) for op in record.operators),
    )


@with_time_limit
def record_pair(
    float_model: ModelSource,
    quantized_model: ModelSource,
    options: CollectOptions,
    output: Path,
    *,
    progress: Progress = no_progress,
) -> Recording:
    """Write the outputs of the quantized model on the validation data, with what tells of this installation.

    Raises:
        DataError: There are no validation data, or they do not fit.
        ModelError: A model cannot be read or run, or the two do not belong together.
        OutputError: The file cannot be written.
    """
    if options.validation is None:
        raise DataError("outputs of what are to be recorded?", help="pass the samples with --validation")
    models, datasets = open_pair(float_model, quantized_model, options, "validation")
    if options.device is not None:
        models.run_on(options.device)
    with models.as_deployed():
        return record_outputs(Measurement(models, datasets, measuring_options(options), progress=progress), output)
