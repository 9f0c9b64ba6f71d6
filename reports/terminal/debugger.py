"""The debugger's table as CSV, with the columns of LiteRT's QuantizationDebugger, and as lines for the terminal."""

import csv
import io
import math
from collections.abc import Iterator, Sequence

from quantmedic.engine.formulas.debugger import FIRST_LAYERS, LEADING, TRAILING, DebuggerLayer, DebuggerRecord
from quantmedic.reports.terminal.console import terminal_text
from quantmedic.reports.text import count, name, number, spreadsheet_text, visible

#: Layers that the terminal shows; all are in the CSV file.
SHOWN = 10
_WIDTH = 60


def render_csv(record: DebuggerRecord) -> str:
    """One row per quantized operator, in order of execution; a metric without a number is ``nan``."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*LEADING, *record.metrics, *TRAILING])
    for layer in record.layers:
        named = [spreadsheet_text(layer.op_name), layer.tensor_idx], [spreadsheet_text(layer.tensor_name)]
        writer.writerow([*named[0], *layer.metrics.values(), layer.scale, layer.zero_point, *named[1]])
    return stream.getvalue()


def render_debugger(record: DebuggerRecord, *, verbose: bool = False, ascii_only: bool = False) -> str:
    """Text for the terminal: the worst layers, or all, whom to suspect, and the metrics of the outputs."""
    return terminal_text(_lines(record, len(record.layers) if verbose else SHOWN), ascii_only=ascii_only)


def _lines(record: DebuggerRecord, shown: int) -> Iterator[str]:
    samples = count(record.samples, "sample")
    yield f"{count(len(record.layers), 'quantized operator')}, {samples} of {name(record.data)}"
    yield ""
    yield "√mse/scale: error in steps; 0.29 is ideal rounding. range: what all codes together span"
    heads = ("tensor", "operator", "√mse/scale", "range", "mean error", "max error", *record.metrics[5:])
    yield from _grid([heads, *(_row(layer, record.metrics[5:]) for layer in record.worst[:shown])])
    if len(record.layers) > shown:
        yield f"{len(record.layers) - shown} more (--verbose, or --output FILE)"
    yield ""
    yield from _suspects(record)
    for metric, value in record.outputs.items():
        yield f"outputs: {name(metric)} {_value(value)}"
    if record.unmeasured:
        yield f"not told from their neighbours: {_names(record.unmeasured)}"
    yield from (f"note: {notice}" for notice in record.notices)


def _suspects(record: DebuggerRecord) -> Iterator[str]:
    over = f"√mse/scale above {number(record.suspect_steps)}"
    if not record.suspected:
        yield f"suspected: none, no layer has {over}"
        return
    yield f"suspected, for {over}:"
    yield from (f"  {_shortened(layer.tensor_name)}" for layer in record.suspected)
    first = [layer.tensor_name for layer in record.layers[:FIRST_LAYERS] if layer not in record.suspected]
    if first:
        yield "first layers, often worth leaving in float with them:"
        yield from (f"  {_shortened(text)}" for text in first)
    if any(_shortened(text) != text for text in (*(layer.tensor_name for layer in record.suspected), *first)):
        yield "a denylist takes names whole, as --output FILE has them"
    yield "next: quantmedic fallback FLOAT QUANT -v DATA finds the smallest set of layers to leave in float"


def _row(layer: DebuggerLayer, own: Sequence[str]) -> tuple[str, ...]:
    metrics = layer.metrics
    figures = (layer.rmse_over_scale, layer.range, metrics["mean_error"], metrics["max_abs_error"])
    return (
        _shortened(layer.tensor_name),
        name(layer.op_name),
        *(_value(value) for value in (*figures, *(metrics[key] for key in own))),
    )


def _value(value: float) -> str:
    return "nan" if math.isnan(value) else number(value)


def _names(names: Sequence[str]) -> str:
    return ", ".join(name(text) for text in names)


def _shortened(text: str) -> str:
    """The name of a fused tensor lists all that was fused, the first what it is: more is not needed to tell it."""
    first, fused, _ = text.partition(";")
    return visible(first, _WIDTH) + (";…" if fused else "")


def _grid(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Columns in line: names to the left, numbers to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        cells = [cell.ljust(widths[k]) if k < 2 else cell.rjust(widths[k]) for k, cell in enumerate(row)]
        yield "  ".join(cells).rstrip()
