"""The calibration that suits a float model best: its settings are built by their texts, and judged."""

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quantmedic.api.judging import check_toolchain
from quantmedic.api.opening import model_of, open_metric, open_pair, with_time_limit
from quantmedic.api.options import DataOptions, ModelSource, SearchOptions
from quantmedic.api.rulebase import load_rulebase
from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.data.preprocessing import Preprocessing
from quantmedic.collectors.data.progress import Progress
from quantmedic.collectors.front_ends import front_end_named, source_name
from quantmedic.collectors.measure.host import EXACT_KERNELS, has_vnni, threads_to_use, wants_exact_kernels
from quantmedic.collectors.measure.models import Edited, Models
from quantmedic.collectors.metrics.metric import Metric
from quantmedic.engine.case.facts import Role
from quantmedic.engine.contract.advised_remedies import Configuration
from quantmedic.engine.contract.searches import CalibrationsRecord, JudgedSetting, OtherToolchain, Unjudged
from quantmedic.engine.diagnosis.prescription import user_names
from quantmedic.engine.errors import DataError, ModelError
from quantmedic.engine.rules.toolchain import Toolchain, find_toolchain
from quantmedic.engine.version import VERSION
from quantmedic.trials.calibration_search import (
    Judge,
    Setting,
    check_methods,
    judge_settings,
    same_choices,
    settings_of,
)
from quantmedic.trials.edit import find_executor
from quantmedic.trials.execute import Executor
from quantmedic.trials.split import BATCH, MAX_SAMPLES, EvenBatches, read_pool

_DATA = "quantmedic search calibrations float.onnx --representative rep.npz --validation val.npz"


@with_time_limit
def search_calibrations(float_model: ModelSource, options: SearchOptions, progress: Progress) -> CalibrationsRecord:
    """The way to calibrate that suits a network best, checked as it is printed."""
    begun = time.monotonic()
    _require_data(options)
    base = load_rulebase()
    check_toolchain(options.toolchain, base)
    job = _open_job(float_model, options, base.toolchains)
    check_methods(options.methods, job.toolchain)
    settings = settings_of(job.toolchain, options.methods)
    with job.models.as_deployed():
        judge = job.judge()
        rows = judge_settings(settings, job.make, judge, lambda done: progress("judging", done, len(settings)))
    if rows[0][1].standing != "best":
        raise _all_failed([row for _, row in rows], job.toolchain)
    return _record(job, judge, rows, base.toolchains, round(time.monotonic() - begun, 3))


@dataclass(frozen=True)
class _Job:
    """What is searched for: the float model as both of a pair, its data, and the toolchain."""

    name: str
    models: Models
    datasets: Mapping[Role, Dataset]
    counts: Mapping[Role, int]
    limit: int | None
    prepared: Preprocessing
    metric: Metric | None
    toolchain: Toolchain
    executor: Executor
    threads: int
    seed: int

    def make(self, code: str) -> Edited:
        """The model that a text makes of the calibration samples."""
        batches = EvenBatches(self.datasets["representative"], self.counts["representative"], self.limit)
        return self.executor.execute(self.models, code, batches, None)

    def judge(self) -> Judge:
        """The validation samples, as many as fit into memory."""
        dataset = self.datasets["validation"]
        pool = read_pool(dataset, self.counts["validation"], self.limit, MAX_SAMPLES, self.seed)
        return Judge(self.models, pool, metric=self.metric, threads=self.threads, seed=self.seed)


def _open_job(float_model: ModelSource, options: SearchOptions, toolchains: Sequence[Toolchain]) -> _Job:
    opened = model_of(float_model)
    is_file = isinstance(opened, str | Path)
    twin = opened if is_file else copy.deepcopy(opened)
    models, datasets = open_pair(opened, twin, options)
    if models.float_graph.is_quantized:
        raise ModelError(
            "the model is quantized already, and calibration needs the float one",
            where=source_name(opened),
            help="give the model as it was before quantization",
        )
    toolchain, executor = _choose_toolchain(models, toolchains, options.toolchain)
    return _Job(
        name=Path(str(opened)).name if is_file else source_name(opened),
        models=models,
        datasets=datasets,
        counts={role: _count(dataset, options.samples) for role, dataset in datasets.items()},
        limit=options.samples,
        prepared=options.preprocessing.get("representative", Preprocessing()),
        metric=_metric(options, datasets["validation"], models),
        toolchain=toolchain,
        executor=executor,
        threads=threads_to_use(options.threads),
        seed=options.seed,
    )


def _record(
    job: _Job,
    judge: Judge,
    rows: Sequence[tuple[Setting, JudgedSetting]],
    toolchains: Sequence[Toolchain],
    seconds: float,
) -> CalibrationsRecord:
    """What was found; the first row is that of the winner."""
    setting, _ = rows[0]
    return CalibrationsRecord(
        quantmedic_version=VERSION,
        float_model=job.name,
        toolchain=job.toolchain.title,
        toolchain_version=job.executor.version(),
        representative=job.datasets["representative"].origin,
        representative_samples=job.counts["representative"],
        validation=job.datasets["validation"].origin,
        validation_samples=judge.samples,
        labelled_by=job.metric.name if job.metric is not None else None,
        seed=job.seed,
        float_metric=judge.float_value,
        seconds=seconds,
        settings=tuple(row for _, row in rows),
        configuration=setting.configuration,
        given=_describe_names(job, setting.configuration),
        warnings=tuple(_warnings(job.models, job.datasets)),
        notes=tuple(note for ways in job.toolchain.calibrations.values() for note in ways.notes),
        others=tuple(_write_for_others(setting.choices, toolchains)),
        unjudged=tuple(_list_unjudged(job.models, job.toolchain, toolchains)),
    )


def _describe_names(job: _Job, configuration: Configuration) -> dict[str, str]:
    """The user's own names in a text; what reads the data has to prepare them as was declared here."""
    found = user_names([configuration], job.toolchain, reads_anew=False)
    declared = job.prepared.words
    if not declared:
        return found
    demand = f"it has to prepare the samples itself, as was declared here: {declared}"
    return {name: f"{what}; {demand}" if name in job.toolchain.data_names else what for name, what in found.items()}


def _require_data(data: DataOptions) -> None:
    """Refuse a search without data to calibrate with, or without other data to judge on."""
    if data.representative is None:
        raise DataError("no calibration data was given", help=f"pass it with --representative: {_DATA}")
    if data.validation is None:
        raise DataError(
            "no data to judge on was given",
            help=f"pass samples that took no part in calibration with --validation: {_DATA}",
        )


def _metric(data: DataOptions, dataset: Dataset, models: Models) -> Metric | None:
    if data.metric is not None and not dataset.labelled:
        raise DataError(
            "a metric needs labels, and the validation data have none",
            where=f"--metric {data.metric}",
            help="pass them with --labels; without --metric the noise at the output judges",
        )
    return open_metric(data, [dataset], models) if dataset.labelled else None


def _count(dataset: Dataset, limit: int | None) -> int:
    """Samples of a data set that are read."""
    known = dataset.samples
    if known is None:
        return sum(batch.samples for batch in dataset.batches(BATCH, limit))
    whole = known - known % dataset.unit
    return whole if limit is None else min(limit, whole)


def _choose_toolchain(models: Models, toolchains: Sequence[Toolchain], asked: str | None) -> tuple[Toolchain, Executor]:
    """The toolchain whose settings are searched, and what runs it.

    Raises:
        ModelError: None that takes such models can be run here, or not the one that was asked for.
    """
    named = find_toolchain(asked, toolchains) if asked is not None else None
    title = front_end_named(models.framework).title
    reasons = []
    for toolchain in [named] if named is not None else toolchains:
        if models.framework not in _frameworks(toolchain):
            continue
        executor = find_executor(models, toolchain.name)
        missing = executor.missing() if executor is not None else "it cannot be run"
        if executor is not None and missing is None:
            return toolchain, executor
        reasons.append(f"{toolchain.title}: {missing}")
    if named is not None and not reasons:
        known = [each.title for each in toolchains if models.framework in _frameworks(each)]
        printed = [each.title for each in toolchains if each.calibrations and not _frameworks(each)]
        raise ModelError(
            f"no settings of {named.title} can be searched for {title} models",
            where="--toolchain",
            help=f"leave --toolchain out: it searches those of {', '.join(known)}, and prints the winner's choices as "
            f"options of {', '.join(printed)} too, of no other toolchain",
        )
    raise ModelError(
        f"no toolchain that calibrates {title} models can be run here",
        where=reasons,
        help="install one, such as: pip install onnxruntime, ai-edge-quantizer or model-compression-toolkit",
    )


def _frameworks(toolchain: Toolchain) -> set[str]:
    return {ways.framework for ways in toolchain.calibrations.values() if ways.framework is not None}


def _all_failed(rows: Sequence[JudgedSetting], toolchain: Toolchain) -> ModelError:
    reasons = dict.fromkeys(f"{', '.join(row.choices.values())}: {row.failed}" for row in rows)
    return ModelError(
        f"no setting of {toolchain.title} gives a model that can be judged",
        where=list(reasons)[:3],
        help="quantize once by hand, and give what it prints to: quantmedic diagnose FLOAT --log FILE",
    )


def _warnings(models: Models, datasets: Mapping[Role, Dataset]) -> Iterator[str]:
    """Why the ranking may be another one on other samples, or on the device."""
    first, second = (datasets[role].fingerprint() for role in ("representative", "validation"))
    if first is not None and first == second:
        yield "the settings were judged on the samples that calibrated them, which favours those that fit them closely"
    if models.framework == "onnx" and has_vnni() is False and not wants_exact_kernels():
        yield (
            "this processor has no VNNI, and its int8 kernels may saturate, most of all with weights per channel "
            f"(R001): {EXACT_KERNELS}=1 in the environment judges as on processors with VNNI, ARM and NPUs"
        )


def _write_for_others(choices: Mapping[str, str], toolchains: Sequence[Toolchain]) -> Iterator[OtherToolchain]:
    """The same choices in the options of toolchains that run nowhere here."""
    for toolchain in toolchains:
        if not toolchain.calibrations or _frameworks(toolchain):
            continue
        for setting, lacking in same_choices(choices, toolchain):
            language = setting.configuration.language
            yield OtherToolchain(
                title=toolchain.title,
                form=setting.form,
                configuration=setting.configuration.model_copy(update={"file": f"{setting.form}.{language}"}),
                lacking=lacking,
                notes=toolchain.calibrations[setting.form].notes,
            )


def _list_unjudged(models: Models, chosen: Toolchain, toolchains: Sequence[Toolchain]) -> Iterator[Unjudged]:
    """The toolchains whose settings are known and were not judged."""
    own = front_end_named(models.framework).title
    for toolchain in toolchains:
        takes = _frameworks(toolchain)
        if toolchain is chosen or not toolchain.calibrations:
            continue
        if not takes:
            yield Unjudged(title=toolchain.title, reason="it is not run here; its options are from its documentation")
        elif models.framework not in takes:
            titles = ", ".join(sorted(front_end_named(each).title for each in takes))
            yield Unjudged(title=toolchain.title, reason=f"it takes {titles} models, and this is one of {own}")
        else:
            executor = find_executor(models, toolchain.name)
            missing = executor.missing() if executor is not None else "it cannot be run here"
            yield Unjudged(title=toolchain.title, reason=missing or "another one was searched: --toolchain names it")
