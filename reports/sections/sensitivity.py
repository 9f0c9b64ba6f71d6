"""A sensitivity record as text: what was measured, its limits, and one table per mode."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.diagnosis.sensitivity import Mode, Outcome, SensitivityRecord, SensitivityRun
from quantmedic.reports.text import (
    NOT_MEASURED,
    count,
    decibels,
    level,
    loss_word,
    metric_change,
    metric_label,
    metric_value,
    name,
    percent,
    visible,
)

NAMES_SHOWN = 5
MODE_TITLES: dict[Mode, str] = {
    "one": "one layer quantized, all others float (worst first)",
    "all-but-one": "all quantized but one layer (largest gain first)",
    "cumulative": "layers quantized one after another from the input",
}
SHARE_TITLES: dict[Mode, str] = {"one": "of all noise", "all-but-one": "noise gone", "cumulative": "of all noise"}


@dataclass(frozen=True)
class SensitivityLine:
    """One run as text."""

    place: Annotated[int, "place of the layer in order of execution"]
    layer: Annotated[str, "name of the layer"]
    op_type: Annotated[str, "operator type"]
    sqnr: Annotated[str, "output SQNR in dB"]
    share: Annotated[str, "share of the noise of all layers"]
    agreement: Annotated[str, "share of samples with the float network's class"]
    metric: Annotated[str, "task metric; empty where the data are not labelled"]
    drop: Annotated[str, "its drop or rise against the float network with the paired 95 % interval"]


@dataclass(frozen=True)
class SensitivityTable:
    """The runs of one mode."""

    title: Annotated[str, "what was quantized, and the order"]
    share_title: Annotated[str, "heading of the shares"]
    rows: Annotated[tuple[SensitivityLine, ...], "the runs shown"]
    left_out: Annotated[int, "runs that are only in sensitivity.csv"]


@dataclass(frozen=True)
class SensitivityContext:
    """What the Markdown template may name."""

    title: Annotated[str, "name of the quantized model"]
    facts: Annotated[tuple[str, ...], "sentences on samples, network and simulation"]
    warnings: Annotated[tuple[str, ...], "why the numbers may mislead"]
    metric: Annotated[str, "name of the task metric; empty where there is none"]
    loss: Annotated[str, "drop, or rise where less of the metric is better"]
    tables: Annotated[tuple[SensitivityTable, ...], "one per mode"]


def sensitivity_context(record: SensitivityRecord, shown: int) -> SensitivityContext:
    """The record as text.

    Args:
        record: What was measured.
        shown: Runs of each mode to show at most.
    """
    return SensitivityContext(
        title=name(record.quantized_model),
        facts=tuple(_record_facts(record)),
        warnings=tuple(_record_warnings(record)),
        metric=metric_label(record.metric) if record.metric is not None else "",
        loss=loss_word(record.higher_is_better),
        tables=tuple(_mode_table(record, mode, shown) for mode in record.modes),
    )


def _record_facts(record: SensitivityRecord) -> Iterator[str]:
    samples, data = count(record.samples, "sample"), name(record.data)
    yield f"{count(len(record.units), 'layer')} with quantizers, {samples} of {data}, seed {record.seed}"
    yield f"all layers quantized: {_outcome_text(record, record.simulated)}"
    yield f"the quantized model itself: {_outcome_text(record, record.deployed)}"
    yield f"simulation gap: {decibels(record.simulation_gap_db, sign='+')} (deployed minus simulated)"
    if record.columns is not None:
        yield f"judged on the {count(record.columns, 'output column')} in which the noise hides"


def _outcome_text(record: SensitivityRecord, outcome: Outcome) -> str:
    parts = [f"SQNR {decibels(outcome.sqnr_db)}"]
    if outcome.agreement is not None:
        parts.append(f"same class {percent(outcome.agreement)}")
    if record.metric is not None:
        values = [metric_value(value, record.metric) for value in (record.float_metric, outcome.metric)]
        parts.append(f"{metric_label(record.metric)} {values[0]} → {values[1]}")
    return ", ".join(parts)


def _record_warnings(record: SensitivityRecord) -> Iterator[str]:
    if record.missing:
        done, planned = len(record.runs), len(record.planned)
        yield f"interrupted after {done} of {planned} runs: repeat the command with --resume to go on"
    if not record.is_faithful:
        yield (
            "the simulated network is not as noisy as the quantized model: what is shown of single layers may not hold "
            "for it"
        )
    if record.unsimulated:
        names = ", ".join(name(text) for text in record.unsimulated[:NAMES_SHOWN])
        more = f" and {len(record.unsimulated) - NAMES_SHOWN} more" if len(record.unsimulated) > NAMES_SHOWN else ""
        yield f"left in float in every run, for their quantizers cannot be simulated: {names}{more}"


def _mode_table(record: SensitivityRecord, mode: Mode, shown: int) -> SensitivityTable:
    runs = record.rank_runs(mode)
    kept: Sequence[SensitivityRun] = runs
    if len(runs) > shown:
        kept = record.leading(mode, shown) if mode == "cumulative" else runs[:shown]
    left_out = len(runs) - len(kept)
    title = MODE_TITLES[mode]
    return SensitivityTable(
        title=f"{title}: the largest steps" if mode == "cumulative" and left_out else title,
        share_title=SHARE_TITLES[mode],
        rows=tuple(_run_line(record, run) for run in kept),
        left_out=left_out,
    )


def _run_line(record: SensitivityRecord, run: SensitivityRun) -> SensitivityLine:
    unit, metric = record.units[run.unit], record.metric
    drop = ""
    if run.drop is not None and run.drop_low is not None and run.drop_high is not None:
        values = [metric_change(value, metric).removesuffix(" points") for value in (run.drop_low, run.drop_high)]
        drop = f"{metric_change(run.drop, metric)} [{', '.join(values)}]"
    return SensitivityLine(
        place=run.unit,
        layer=name(unit.name),
        op_type=visible(unit.op_type),
        sqnr=level(run.sqnr_db),
        share=NOT_MEASURED if run.share is None else percent(run.share, 1),
        agreement=NOT_MEASURED if run.agreement is None else percent(run.agreement, 1),
        metric=metric_value(run.metric, metric) if run.metric is not None else "",
        drop=drop,
    )
