"""Searches: what is changed at which places of a network, and what the network gives then.

One public function makes all of them, and each has a name of its own: ``sensitivity``, ``fallback``, ``calibrations``,
``debugger``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict, Unpack, cast

from quantmedic.api.arguments import CollectArguments
from quantmedic.api.calibration_search import search_calibrations
from quantmedic.api.grouping import group_arguments
from quantmedic.api.layer_searches import (
    SUSPECT,
    DebuggerMetrics,
    GoalOptions,
    MetricSource,
    debug_pair,
    measure_sensitivity,
    search_fallback,
)
from quantmedic.api.notebooks import Watching, watching
from quantmedic.api.options import CollectOptions, DataSource, ModelSource
from quantmedic.api.rulebase import load_rulebase
from quantmedic.collectors.data.preprocessing import Preprocessing
from quantmedic.engine.case.facts import Role
from quantmedic.engine.contract.searches import (
    MODES,
    CalibrationsRecord,
    DebuggerRecord,
    FallbackRecord,
    Mode,
    SearchRecord,
    SensitivityRecord,
)
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.reports.machines.spreadsheets import debugger_csv
from quantmedic.reports.search_formats import search_files
from quantmedic.reports.write import Written, place

#: What is searched.
What = Literal["sensitivity", "fallback", "calibrations", "debugger"]


class SearchArguments(TypedDict, total=False):
    """What every search takes; see ``search``."""

    validation: DataSource | None
    representative: DataSource | None
    labels: str | Path | None
    metric: str | None
    metric_direction: str | None
    metric_output: str | None
    metric_options: Mapping[str, str] | None
    preprocessing: Preprocessing | Mapping[Role, Preprocessing] | None
    samples: int | None
    threads: int | None
    timeout: float | None
    seed: int


class SensitivityArguments(SearchArguments, total=False):
    """What ``sensitivity`` takes."""

    modes: Sequence[Mode] | None
    batch_size: int | None
    device: str | None
    checkpoint: str | Path | None
    resume: bool
    cluster: object | None


class FallbackArguments(SearchArguments, total=False):
    """What ``fallback`` takes."""

    max_drop: float | None
    min_sqnr_db: float | None
    device: str | None
    toolchain: str | None
    cluster: object | None


class CalibrationsArguments(SearchArguments, total=False):
    """What ``calibrations`` takes."""

    methods: Sequence[str]
    toolchain: str | None


class DebuggerArguments(SearchArguments, total=False):
    """What ``debugger`` takes."""

    data: DataSource | None
    layer_metrics: Mapping[str, MetricSource] | None
    pair_metrics: Mapping[str, MetricSource] | None
    output_metrics: Mapping[str, MetricSource] | None
    threshold: float | None
    denylists: Sequence[str]
    rules: RuleBase | None


class AllSearchArguments(
    SensitivityArguments, FallbackArguments, CalibrationsArguments, DebuggerArguments, total=False
):
    """What ``search`` takes, whatever is searched."""


def search(
    what: What,
    float_model: ModelSource,
    quantized_model: ModelSource | None = None,
    *,
    progress: Watching = True,
    **options: Unpack[AllSearchArguments],
) -> SearchRecord:
    """Change a network at one place after another, and measure what it gives then.

    Args:
        what: ``sensitivity`` turns simulated quantizers on and off, layer by layer. ``fallback`` finds a small set of
            layers that leave int8 so that a goal is met: in the simulated network on one half of the samples; it is
            checked on the other half with the quantized model itself, edited for real. ``calibrations`` builds settings
            of a toolchain, combinations of a calibration method with scales and zero points, and races them: one drops
            out only where it is proven worse than the leader; the winner's text is run as it is printed, and its model
            judged on all samples. ``debugger`` measures each quantized operator against its float twin, both fed with
            what the deployed model computed; every metric is averaged over the samples, those of layers and pairs
            without NaN.
        float_model: Path of the float ONNX or LiteRT model, or the float ``torch.nn.Module``; ``debugger`` takes files.
        quantized_model: Path of its quantized counterpart, or that module; none for ``calibrations``.
        validation: The samples that judge: ``.npz``, folder, ``module:function``, mapping or array.
        representative: Calibration data: what ``calibrations`` calibrates with, and what the others read where no
            evaluation data are given.
        labels: Labels of the samples, where they are not part of the data.
        metric: A built-in metric such as top1, map, miou or cer (page ``metrics``), or ``module:function``; top1 where
            labels are classes, map where they are boxes of a detector. Without labels, ``calibrations`` judges by the
            median of the samples' SQNR at the output.
        metric_direction: ``higher`` or ``lower`` is better, for a function without ``higher_is_better``.
        metric_output: Output that a built-in metric reads, for boxes their names separated by commas; the first, or
            those that look like boxes, scores and classes, by default.
        metric_options: Options of a built-in metric, such as ``{"blank": "28"}`` of cer.
        preprocessing: ``Preprocessing`` of all data, or by role, for samples that are not yet what the network wants.
        samples: Samples at most: of ``sensitivity`` 64 by default, from all over the data set where its length is
            known; of one evaluation of ``fallback`` 64 to 256, by the size of the network; else all.
        threads: Processor threads to use; all cores by default.
        timeout: Seconds that one run of a model may take; see ``collect``.
        seed: Seed of the choice and order of the samples, of random sets, and of bootstrapped intervals.
        progress: Called with a stage, what is done of it, and its number where known; see ``collect``.
        modes: Runs of ``sensitivity``: ``one`` layer quantized, ``all-but-one``, ``cumulative`` from the input; all by
            default.
        batch_size: Samples per run of ``sensitivity``, 16 by default.
        device: Where both models of ``sensitivity`` and ``fallback`` run; see ``collect``.
        checkpoint: File that the record of ``sensitivity`` is written to every few seconds and on Ctrl-C.
        resume: Continue from the record in ``checkpoint``, if there is one: what it lacks is measured.
        cluster: Workers that make the runs of ``sensitivity`` and ``fallback``; see ``collect``.
        max_drop: Goal of ``fallback``: the metric may get worse by this against the float model, in points of a share
            (1.0 is 1 %), else in its own unit. Without labels, of the agreement with the float model's class.
        min_sqnr_db: Or: the least output SQNR in dB. Exactly one of the two goals is given.
        toolchain: Of ``fallback``, whose configuration is written; by default the one that the quantized model carries
            marks of. Of ``calibrations``, whose settings are searched (ort, litert, mct); by default the one that takes
            such models.
        methods: Only these methods of ``calibrations``, by name, such as ``percentile 99.99``; all by default.
        data: Another name of ``validation``, for ``debugger``.
        layer_metrics: Functions of ``debugger`` of the difference ``quantized - float`` by name, each given as
            ``module:function`` or as the function itself; they return one number.
        pair_metrics: The same of ``(float, codes, scale, zero_point)``, codes as they are stored.
        output_metrics: The same of ``(float_outputs, quantized_outputs)``, two lists of arrays.
        threshold: Error in steps, √mean_squared_error / scale, above which ``debugger`` suspects a layer; 0.7 by
            default.
        denylists: What ``debugger`` leaves in float, one evaluation each: names of tensors, ``suspected``, ``first``,
            and ``op:TYPE``, separated by commas, or ``@FILE`` with a name per line or a ``denylist.json``.
        rules: Thresholds in force for ``debugger``.

    Returns:
        A record with all that tables, graphs and files show. After Ctrl-C, ``fallback`` gives the best set so far,
        ``interrupted`` and not checked.

    Raises:
        DataError: The data do not fit the model or are missing, there is not exactly one goal, a threshold is negative,
            or a function of yours fails.
        ModelError: A model cannot be read, simulated or run operator by operator, no layer is quantized, the two do not
            belong together, no toolchain can be run, or every setting failed.
        RuleError: No toolchain or method has that name.
        CaseError: The record to resume was begun with other models, data or options.
        OutputError: The checkpoint cannot be written.
        TypeError: The search takes no argument of such a name.
        SensitivityInterrupted: Ctrl-C during ``sensitivity``; its ``record`` is what was measured.
    """
    if what == "calibrations":
        return calibrations(float_model, progress=progress, **cast(CalibrationsArguments, options))
    if quantized_model is None:
        raise TypeError(f"{what} compares a float and a quantized model: give both")
    if what == "sensitivity":
        return sensitivity(float_model, quantized_model, progress=progress, **cast(SensitivityArguments, options))
    if what == "fallback":
        return fallback(float_model, quantized_model, progress=progress, **cast(FallbackArguments, options))
    if what == "debugger":
        return debugger(float_model, quantized_model, progress=progress, **cast(DebuggerArguments, options))
    raise TypeError(f"there is no search {what!r}: sensitivity, fallback, calibrations or debugger")


def sensitivity(
    float_model: ModelSource,
    quantized_model: ModelSource,
    *,
    progress: Watching = True,
    **options: Unpack[SensitivityArguments],
) -> SensitivityRecord:
    """Measure how sensitive the output is to each layer; see ``search``."""
    grouped = _group_options(options, SensitivityArguments)
    with watching(progress) as told:
        return measure_sensitivity(
            float_model,
            quantized_model,
            grouped.data,
            grouped.measuring,
            grouped.saving,
            grouped.spread.cluster,
            modes=MODES if options.get("modes") is None else cast(Sequence[Mode], options["modes"]),
            progress=told,
        )


def fallback(
    float_model: ModelSource,
    quantized_model: ModelSource,
    *,
    progress: Watching = True,
    **options: Unpack[FallbackArguments],
) -> FallbackRecord:
    """Find a small set of layers that leave int8 so that a goal is met, and check it; see ``search``."""
    grouped = _group_options(options, FallbackArguments)
    goal = GoalOptions(options.get("max_drop"), options.get("min_sqnr_db"))
    with watching(progress) as told:
        return search_fallback(
            float_model,
            quantized_model,
            grouped.data,
            grouped.measuring,
            goal,
            grouped.spread.cluster,
            toolchain=options.get("toolchain"),
            progress=told,
        )


def calibrations(
    float_model: ModelSource, *, progress: Watching = True, **options: Unpack[CalibrationsArguments]
) -> CalibrationsRecord:
    """Find the way to calibrate that suits a network best, and check it as it is printed; see ``search``."""
    grouped = _group_options(options, CalibrationsArguments)
    with watching(progress) as told:
        return search_calibrations(
            float_model,
            grouped.data,
            grouped.measuring,
            toolchain=options.get("toolchain"),
            methods=options.get("methods", ()),
            progress=told,
        )


def debugger(
    float_model: ModelSource,
    quantized_model: ModelSource,
    *,
    progress: Watching = True,
    **options: Unpack[DebuggerArguments],
) -> DebuggerRecord:
    """Measure each quantized operator against its float twin, as LiteRT's debugger does; see ``search``."""
    if options.get("validation") is None and options.get("data") is not None:
        options["validation"] = options["data"]
    grouped = _group_options(options, DebuggerArguments)
    metrics = DebuggerMetrics(
        options.get("layer_metrics") or {}, options.get("pair_metrics") or {}, options.get("output_metrics") or {}
    )
    base, threshold = options.get("rules") or load_rulebase(), options.get("threshold")
    if threshold is not None:
        base = base.with_thresholds({SUSPECT: threshold}, "threshold")
    with watching(progress) as told:
        return debug_pair(
            float_model,
            quantized_model,
            grouped.data,
            metrics,
            grouped.measuring,
            base,
            denylists=options.get("denylists", ()),
            progress=told,
        )


def _group_options(options: Mapping[str, object], own: type) -> CollectOptions:
    """The options of a search that ``collect`` has too, in groups.

    Raises:
        TypeError: The search takes no such argument.
    """
    for name in options.keys() - own.__annotations__.keys():
        raise TypeError(f"{own.__name__.removesuffix('Arguments').lower()} takes no argument {name!r}")
    common = {name: options[name] for name in options if name in CollectArguments.__annotations__}
    known = cast(CollectArguments, common)
    return group_arguments(options.get("representative"), options.get("validation"), known)


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
