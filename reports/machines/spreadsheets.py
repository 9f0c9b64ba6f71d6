"""Tables as CSV: full precision, and no name that a spreadsheet would run as a formula."""

import csv
import io
from collections.abc import Iterable, Sequence

from quantmedic.engine.contract.budget_report import BudgetLine, LossBudgetReport
from quantmedic.engine.contract.searches import COMPUTED, LEADING, TRAILING, DebuggerRecord, SensitivityRecord
from quantmedic.reports.sections.columns import Value
from quantmedic.reports.sections.selection import Selection
from quantmedic.reports.text import spreadsheet_text

SENSITIVITY_COLUMNS = ("mode", "place", "layer", "operator", "quantized", "sqnr_db", "share", "agreement")
BUDGET_COLUMNS = (
    *("source", "places", "op_type", "share", "alone", "last"),
    *(
        "mechanism",
        "healed_by",
        "healed",
        "lost",
        "lost_low",
        "lost_high",
        "judged",
        "lost_alone",
        "regained",
        "causes",
    ),
)
METRIC_COLUMNS = ("metric", "drop", "drop_low", "drop_high")

Cell = str | int | float | None


def sensitivity_csv(record: SensitivityRecord) -> str:
    """``sensitivity.csv``: one row per run."""
    labelled = record.metric is not None
    rows: list[list[Cell]] = []
    for run in record.runs:
        unit = record.units[run.unit]
        texts = [spreadsheet_text(unit.name), spreadsheet_text(unit.op_type), "+".join(unit.quantized)]
        metric = [run.metric, run.drop, run.drop_low, run.drop_high] if labelled else []
        rows.append([run.mode, run.unit, *texts, run.sqnr_db, run.share, run.agreement, *metric])
    return _csv_text([*SENSITIVITY_COLUMNS, *(METRIC_COLUMNS if labelled else ())], rows)


def debugger_csv(record: DebuggerRecord) -> str:
    """One row per quantized operator, in order of execution; a metric without a number is ``nan``.

    The columns are those of LiteRT's QuantizationDebugger, and behind them range and error in steps.
    """
    rows: Iterable[list[Cell]] = (
        [
            spreadsheet_text(layer.op_name),
            layer.tensor_idx,
            *layer.metrics.values(),
            layer.scale,
            layer.zero_point,
            spreadsheet_text(layer.tensor_name),
            layer.range,
            layer.rmse_over_scale,
        ]
        for layer in record.layers
    )
    return _csv_text([*LEADING, *record.metrics, *TRAILING, *COMPUTED], rows)


def budget_csv(budget: LossBudgetReport) -> str:
    """The loss budget, one row per line; shares are of the noise of the noisiest output."""
    rows: Iterable[list[Cell]] = (
        [
            line.source,
            spreadsheet_text(" ".join(line.places)),
            line.op_type and spreadsheet_text(line.op_type),
            line.share,
            line.alone,
            line.last,
            line.mechanism,
            line.healed_by,
            line.healed,
            *_lost_cells(line),
            " ".join(line.causes),
        ]
        for line in budget.lines
    )
    return _csv_text(BUDGET_COLUMNS, rows)


def _lost_cells(line: BudgetLine) -> list[Cell]:
    """What of the task's loss a line takes, with its interval."""
    task = line.task
    if task is None:
        return [""] * 6
    alone, last = (part.lost if part is not None else "" for part in (task.alone, task.last))
    return [task.share.lost, task.share.low, task.share.high, str(task.share.judged).lower(), alone, last]


def selection_csv(table: Selection) -> str:
    """All rows with full precision: one heading line of keys; what was not measured is empty.

    Text that a spreadsheet would run as a formula gets an apostrophe before it.
    """
    rows = ([_csv_cell(column.values[place]) for column in table.columns] for place in table.rows)
    return _csv_text([column.key for column in table.columns], rows)


def _csv_text(heads: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(rows)
    return stream.getvalue()


def _csv_cell(value: Value) -> Cell:
    """A value for CSV: numbers in full, names visible, formulas disarmed."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return value
    return spreadsheet_text(" ".join(map(str, value)) if isinstance(value, tuple) else str(value))
