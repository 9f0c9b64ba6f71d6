"""A small set of layers that leave int8: the part of the public API that searches and checks it."""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from quantmedic.api.inspection import inspect
from quantmedic.api.judging import check_toolchain, judge
from quantmedic.api.limits import with_time_limit
from quantmedic.api.notebooks import Watching, watching
from quantmedic.api.opening import Opened, open_evaluation
from quantmedic.api.options import DataOptions, DataSource, MeasuringOptions, ModelSource
from quantmedic.api.rulebase import load_rulebase
from quantmedic.collectors.data.preprocessing import Preprocessing, preprocessing_by_role
from quantmedic.collectors.data.progress import Progress, no_progress
from quantmedic.engine.case.facts import Role
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.fallback import FallbackRecord, Goal
from quantmedic.engine.diagnosis.advice import advise_on
from quantmedic.engine.diagnosis.candidates import Choice
from quantmedic.engine.diagnosis.prescription import write_prescription
from quantmedic.engine.errors import DataError
from quantmedic.engine.formulas.change import Targets
from quantmedic.engine.metrics.kinds import is_share
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.rules.toolchain import Chosen
from quantmedic.reports.machines.records import fallback_json
from quantmedic.reports.terminal.fallback import render_fallback
from quantmedic.reports.write import place
from quantmedic.trials.fallback import FallbackTrial

#: The remedy that a set of layers is prescribed as.
IN_FLOAT = "keep-layers-float"


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


def fallback(
    float_model: ModelSource,
    quantized_model: ModelSource,
    *,
    validation: DataSource | None = None,
    representative: DataSource | None = None,
    labels: str | Path | None = None,
    metric: str | None = None,
    metric_direction: str | None = None,
    metric_output: str | None = None,
    metric_options: Mapping[str, str] | None = None,
    preprocessing: Preprocessing | Mapping[Role, Preprocessing] | None = None,
    max_drop: float | None = None,
    min_sqnr_db: float | None = None,
    samples: int | None = None,
    threads: int | None = None,
    timeout: float | None = None,
    device: str | None = None,
    seed: int = 0,
    toolchain: str | None = None,
    cluster: object | None = None,
    progress: Watching = True,
) -> FallbackRecord:
    """Find a small set of layers that leave int8 so that a goal is met.

    It is searched in the simulated network on one half of the samples, and checked on the other half with the quantized
    model itself, edited for real.

    Args:
        float_model: Path of the float ONNX or LiteRT model, or the float ``torch.nn.Module``.
        quantized_model: Path of its quantized counterpart, or that module.
        validation: The samples: ``.npz``, folder, ``module:function``, mapping or array.
        representative: Calibration data, read where no evaluation data are given.
        labels: Their labels, where they are not part of the data.
        metric: A built-in metric such as top1, map, miou or cer (page ``metrics``), or ``module:function``; top1 where
            labels are classes, map where they are boxes of a detector.
        metric_direction: ``higher`` or ``lower`` is better, for a function without ``higher_is_better``.
        metric_output: Output that a built-in metric reads, for boxes their names separated by commas; the first, or
            those that look like boxes, scores and classes, by default.
        metric_options: Options of a built-in metric, such as ``{"blank": "28"}`` of cer.
        preprocessing: ``Preprocessing`` of all data, or by role, for samples that are not yet what the network wants.
        max_drop: The metric may get worse by this against the float model: in points of a share (1.0 is 1 %), else in
            its own unit. Without labels, of the agreement with the float model's class.
        min_sqnr_db: Or: the least output SQNR in dB. Exactly one of the two goals is given.
        samples: Samples of one evaluation; 64 to 256 by the size of the network by default.
        threads: Processor threads to use; all cores by default.
        timeout: Seconds that one run of a model may take; see ``collect``.
        device: Where both models run; see ``collect``.
        seed: Seed of the split, of the random sets and of bootstrapped intervals.
        toolchain: Whose configuration is written; None: the one that the quantized model carries marks of.
        cluster: Workers that evaluate; see ``collect``.
        progress: Called with ``evaluations``, their number so far, and None; see ``collect``.

    Returns:
        The set with cost, check and search; after Ctrl-C the best set so far, ``interrupted`` and not checked.

    Raises:
        DataError: The data do not fit the model, none were given, or there is not exactly one goal.
        ModelError: A model cannot be read or simulated, no layer is quantized, or the two do not belong together.
        RuleError: No toolchain has that name.
    """
    data = DataOptions(
        representative=representative,
        validation=validation,
        labels=labels,
        samples=samples,
        preprocessing=preprocessing_by_role(preprocessing),
        metric=metric,
        metric_direction=metric_direction,
        metric_output=metric_output,
        metric_options=metric_options or {},
    )
    measuring = MeasuringOptions(threads=threads, device=device, seed=seed, timeout=timeout)
    goal = GoalOptions(max_drop, min_sqnr_db)
    with watching(progress) as told:
        return search_fallback(
            float_model, quantized_model, data, measuring, goal, cluster, toolchain=toolchain, progress=told
        )


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
) -> tuple[FallbackTrial, Opened]:
    """The search before its first evaluation, and what it was opened from."""
    opened = open_evaluation(float_model, quantized_model, data, measuring)
    name = opened.metric.name if opened.metric is not None and opened.dataset.labelled else None
    with opened.models.as_deployed():
        trial = FallbackTrial(
            opened.models.editable(),
            opened.dataset,
            opened.case,
            goal.of_metric(name),
            metric=opened.metric,
            samples=data.samples,
            threads=opened.threads,
            seed=measuring.seed,
        )
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


def write_fallback(
    record: FallbackRecord, folder: str | Path, *, formats: Sequence[str] = ("text", "json")
) -> list[tuple[Path, int]]:
    """Write ``fallback.txt`` and ``fallback.json``, and what is to be pasted; returns path and bytes of each.

    Raises:
        OutputError: The folder cannot be written.
    """
    texts: dict[str, bytes] = {}
    if "text" in formats:
        texts["fallback.txt"] = render_fallback(record).encode()
    if "json" in formats:
        texts["fallback.json"] = fallback_json(record).encode()
    if record.prescription is not None:
        texts |= {each.file: each.code.encode() for each in record.prescription.configurations}
    return [(file.path, file.size) for file in place(texts, Path(folder))]
