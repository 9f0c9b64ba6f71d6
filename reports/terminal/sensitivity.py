"""A sensitivity record as text: JSON, CSV, Markdown and lines for the terminal."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.diagnosis.sensitivity import Mode, Outcome, SensitivityRecord, SensitivityRun
from quantmedic.reports.charts.sensitivity import render_svg
from quantmedic.reports.machines.json import inert_json
from quantmedic.reports.templating import markdown_environment
from quantmedic.reports.terminal.console import terminal_text
from quantmedic.reports.text import (
    NOT_MEASURED,
    count,
    decibels,
    level,
    metric_change,
    metric_label,
    metric_value,
    name,
    percent,
    spreadsheet_text,
    visible,
)

#: Runs of each mode that the terminal and the Markdown table show; all are in the CSV file.
SHOWN, SHOWN_IN_MARKDOWN = 10, 200
NAMES_TOLD = 5
MODE_TITLES: dict[Mode, str] = {
    "one": "one layer quantized, all others float (worst first)",
    "all-but-one": "all quantized but one layer (largest gain first)",
    "cumulative": "layers quantized one after another from the input",
}
SHARE_TITLES: dict[Mode, str] = {"one": "of all noise", "all-but-one": "noise gone", "cumulative": "of all noise"}
COLUMNS = ("mode", "place", "layer", "operator", "quantized", "sqnr_db", "share", "agreement")
METRIC_COLUMNS = ("metric", "drop", "drop_low", "drop_high")


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
    drop: Annotated[str, "its drop against the float network with the paired 95 % interval"]


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
    tables: Annotated[tuple[SensitivityTable, ...], "one per mode"]


def sensitivity_files(record: SensitivityRecord) -> dict[str, bytes]:
    """All files of a record by name."""
    return {
        "sensitivity.json": render_json(record).encode(),
        "sensitivity.csv": render_csv(record).encode(),
        "sensitivity.md": render_markdown(record).encode(),
        "sensitivity.svg": render_svg(record).encode(),
    }


def render_json(record: SensitivityRecord) -> str:
    """``sensitivity.json``: the record itself; ASCII, safe inside markup and terminals."""
    return inert_json(record.model_dump_json(indent=1))


def render_csv(record: SensitivityRecord) -> str:
    """``sensitivity.csv``: one row per run; no name can become a formula of a spreadsheet."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    labelled = record.metric is not None
    writer.writerow([*COLUMNS, *(METRIC_COLUMNS if labelled else ())])
    for run in record.runs:
        unit = record.units[run.unit]
        texts = [spreadsheet_text(unit.name), spreadsheet_text(unit.op_type), "+".join(unit.quantized)]
        row = [run.mode, run.unit, *texts, run.sqnr_db, run.share, run.agreement]
        writer.writerow([*row, *([run.metric, run.drop, run.drop_low, run.drop_high] if labelled else ())])
    return stream.getvalue()


def render_markdown(record: SensitivityRecord) -> str:
    """``sensitivity.md``: the tables, and the graph beside it."""
    context = sensitivity_context(record, SHOWN_IN_MARKDOWN)
    return markdown_environment().get_template("sensitivity.md").render(record=context)


def render_sensitivity(record: SensitivityRecord, *, verbose: bool = False, ascii_only: bool = False) -> str:
    """Text for the terminal: the leading layers of each mode, or all."""
    context = sensitivity_context(record, len(record.units) if verbose else SHOWN)
    return terminal_text(_lines(context), ascii_only=ascii_only)


def sensitivity_context(record: SensitivityRecord, shown: int) -> SensitivityContext:
    """The record as text.

    Args:
        record: What was measured.
        shown: Runs of each mode to show at most.
    """
    return SensitivityContext(
        title=name(record.quantized_model),
        facts=tuple(_facts(record)),
        warnings=tuple(_warnings(record)),
        metric=metric_label(record.metric) if record.metric is not None else "",
        tables=tuple(_table(record, mode, shown) for mode in record.modes),
    )


def _facts(record: SensitivityRecord) -> Iterator[str]:
    samples, data = count(record.samples, "sample"), name(record.data)
    yield f"{count(len(record.units), 'layer')} with quantizers, {samples} of {data}, seed {record.seed}"
    yield f"all layers quantized: {_outcome(record, record.simulated)}"
    yield f"the quantized model itself: {_outcome(record, record.deployed)}"
    yield f"simulation gap: {decibels(record.simulation_gap_db, sign='+')} (deployed minus simulated)"
    if record.columns is not None:
        yield f"judged on the {count(record.columns, 'output column')} in which the noise hides"


def _outcome(record: SensitivityRecord, outcome: Outcome) -> str:
    parts = [f"SQNR {decibels(outcome.sqnr_db)}"]
    if outcome.agreement is not None:
        parts.append(f"same class {percent(outcome.agreement)}")
    if record.metric is not None:
        values = [metric_value(value, record.metric) for value in (record.float_metric, outcome.metric)]
        parts.append(f"{metric_label(record.metric)} {values[0]} → {values[1]}")
    return ", ".join(parts)


def _warnings(record: SensitivityRecord) -> Iterator[str]:
    if record.missing:
        done, planned = len(record.runs), len(record.planned)
        yield f"interrupted after {done} of {planned} runs: repeat the command with --resume to go on"
    if not record.is_faithful:
        yield (
            "the simulated network is not as noisy as the quantized model: what is shown of single layers may not hold "
            "for it"
        )
    if record.unsimulated:
        names = ", ".join(name(text) for text in record.unsimulated[:NAMES_TOLD])
        more = f" and {len(record.unsimulated) - NAMES_TOLD} more" if len(record.unsimulated) > NAMES_TOLD else ""
        yield f"left in float in every run, for their quantizers cannot be simulated: {names}{more}"


def _table(record: SensitivityRecord, mode: Mode, shown: int) -> SensitivityTable:
    runs = record.rank_runs(mode)
    kept: Sequence[SensitivityRun] = runs
    if len(runs) > shown:
        kept = record.leading(mode, shown) if mode == "cumulative" else runs[:shown]
    left_out = len(runs) - len(kept)
    title = MODE_TITLES[mode]
    return SensitivityTable(
        title=f"{title}: the largest steps" if mode == "cumulative" and left_out else title,
        share_title=SHARE_TITLES[mode],
        rows=tuple(_line(record, run) for run in kept),
        left_out=left_out,
    )


def _line(record: SensitivityRecord, run: SensitivityRun) -> SensitivityLine:
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


def _lines(context: SensitivityContext) -> Iterator[str]:
    yield f"SENSITIVITY  {context.title}"
    yield from (f"  {fact}" for fact in context.facts)
    yield from (f"  warning: {warning}" for warning in context.warnings)
    for table in context.tables:
        yield ""
        yield table.title
        drop = f"drop in {context.metric} [95 %]" if context.metric else ""
        yield f"    #  {'layer':<36} {'SQNR dB':>8} {table.share_title:>12} {'same class':>12}  {drop}".rstrip()
        for row in table.rows:
            where = f"{row.place:>5}  {visible(row.layer, 36):<36}"
            yield f"{where} {row.sqnr:>8} {row.share:>12} {row.agreement:>12}  {row.drop}".rstrip()
        if table.left_out:
            yield f"       {table.left_out} more: --verbose, or sensitivity.csv"
    yield ""
    yield "what these numbers hide: quantmedic explain sensitivity"
