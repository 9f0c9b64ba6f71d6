"""The tables of a case as text: columns and ready tables of the page, all facts of one layer, the data sets."""

import shlex
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from quantmedic.engine.case.facts import ROLES, LayerFacts, fact_paths
from quantmedic.engine.diagnosis.inspection import Inspection
from quantmedic.engine.diagnosis.report_rows import flagging_rules
from quantmedic.engine.errors import DataError, QuantmedicError
from quantmedic.engine.formulas.spreads import Channels
from quantmedic.engine.rules.evaluate import evaluate
from quantmedic.reports import blocks
from quantmedic.reports.sections.columns import Column, Value
from quantmedic.reports.sections.selection import Selection
from quantmedic.reports.sections.tables import data_blocks, relation_text
from quantmedic.reports.terminal.block_lines import block_lines, plain_text, render_table
from quantmedic.reports.terminal.lines import WIDTH, aligned_rows, wrap_line
from quantmedic.reports.text import UNITS_SHOWN, count, field_info, level, number, visible

ROWS = 50
NAME_WIDTH = 44
TEXT_WIDTH = 24
#: Bars of a histogram, from low to high.
BLOCKS, PLAIN_BLOCKS = "▁▂▃▄▅▆▇█", "_.-=*#"
#: Channels of a layer's weights whose histograms are printed.
CHANNELS_SHOWN = 16
#: Columns that every block of a wide table begins with.
FIXED = ("index", "name")


def table_lines(table: Selection, *, limit: int = ROWS, width: int = WIDTH) -> Iterator[str]:
    """A table in aligned columns; one that is too wide goes on below, with the names again.

    Args:
        table: What to print.
        limit: At most so many layers.
        width: Columns of the terminal.
    """
    shown = table.rows[:limit]
    chosen = f"{len(table.rows)} of {table.total}" if len(table.rows) < table.total else str(table.total)
    yield f"{chosen} {'layer' if table.total == 1 else 'layers'}, {table.order}"
    if not shown:
        return
    for part in _fitting_tables(table.columns, shown, width):
        yield ""
        yield from render_table(part, width)
    if len(table.rows) > len(shown):
        yield f"{len(table.rows) - len(shown)} more (--limit {len(table.rows)}, or --csv FILE)"


def layer_lines(inspection: Inspection, name: str, *, ascii_only: bool = False) -> Iterator[str]:
    """All facts of the layers of one name or number, with unit; those of both data sets side by side.

    Weights have a histogram per output channel, drawn with blocks, or with what ``ascii_only`` leaves.

    Raises:
        QuantmedicError: No layer has that name.
    """
    codes = flagging_rules(evaluate(inspection.base, inspection.facts))
    for layer in _layers_called(inspection.facts.layers, name):
        findings = codes.get(layer.name or "", [])
        state = [*(["degraded"] if layer.degraded else []), *findings]
        yield f"{visible(layer.name or '?')}   {visible(layer.op_type or '?')}   {', '.join(state)}".rstrip()
        yield from _fact_lines(layer)
        place = next(place for place, one in enumerate(inspection.facts.layers) if one is layer)
        channels = inspection.details([place])[0].weight_channels
        if channels is not None and channels.heights:
            yield from _channel_lines(channels, PLAIN_BLOCKS if ascii_only else BLOCKS)


def _channel_lines(channels: Channels, blocks: str) -> Iterator[str]:
    """A histogram per channel of the weights, the worst first: each over the range of all, to its own fullest bin."""
    yield ""
    yield f"weights by output channel, each a histogram from {number(channels.start)} to {number(channels.stop)}"
    heads = [("channel", "min", "max", "SQNR dB", "float weights")]
    shown = [
        (str(index), number(low), number(high), _cell_text(sqnr, "dB"), _bar_text(heights, blocks))
        for index, low, high, sqnr, heights in zip(
            *(one[:CHANNELS_SHOWN] for one in (channels.index, channels.low, channels.high, channels.sqnr_db)),
            (channels.heights or ())[:CHANNELS_SHOWN],
            strict=True,
        )
    ]
    yield from aligned_rows([*heads, *shown], to_the_left={4})
    if channels.total > len(shown):
        yield f"{count(channels.total - len(shown), 'more channel')}; those of the lowest SQNR stand first"


def _bar_text(heights: Sequence[int], blocks: str) -> str:
    return "".join(" " if height == 0 else blocks[(height - 1) * len(blocks) // 255] for height in heights)


def data_lines(inspection: Inspection) -> Iterator[str]:
    """Facts of both data sets side by side, and how they relate.

    Raises:
        DataError: The case has none.
    """
    if not inspection.case.record.datasets:
        raise DataError(
            "the case has no data sets",
            help="they are measured where samples are given: quantmedic diagnose with --representative, --validation",
        )
    datasets = inspection.facts.datasets
    yield from wrap_line(f"relation of the inputs: {relation_text(datasets)}")
    yield from block_lines(data_blocks(datasets))


def _layers_called(layers: Sequence[LayerFacts], name: str) -> list[LayerFacts]:
    def names(layer: LayerFacts) -> tuple[str, ...]:
        return tuple(one for one in (layer.name, layer.float_name, layer.quantized_name) if one)

    if found := [layer for layer in layers if name in names(layer)]:
        return found
    if found := [layer for layer in layers if name.isdecimal() and layer.index == int(name)]:
        return found
    known = list(dict.fromkeys(one for layer in layers for one in names(layer)))
    near = [one for one in known if name.lower() in one.lower()] or get_close_matches(name, known, n=3)
    raise QuantmedicError(
        f"no layer is called {name!r}",
        help=f"did you mean {', '.join(shlex.quote(visible(one)) for one in near[:3])}?"
        if near
        else "quantmedic show CASE lists them",
    )


def _fact_lines(layer: LayerFacts) -> Iterator[str]:
    """One line per fact that was measured; long names first, whole, those of the data sets in two columns."""
    single: list[tuple[str, str, str]] = []
    names: list[tuple[str, str, str]] = []
    double = []
    missing = 0
    for path, field in fact_paths("layer").items():
        if path.startswith(("model.", "output.data.")) or path.startswith(f"output.{ROLES[1]}."):
            continue
        of_set = path.startswith(f"output.{ROLES[0]}.")
        paths = [path.replace(f".{ROLES[0]}.", f".{role}.", 1) for role in ROLES] if of_set else [path]
        values = [_shown_value(layer, one) for one in paths]
        unit = field_info(field).unit or ""
        if all(value is None or value == () for value in values):
            missing += 1
        elif of_set:
            double.append((path.removeprefix(f"output.{ROLES[0]}."), *(_cell_text(v, unit) for v in values), unit))
        else:
            lines = _value_lines(values[0], unit)
            long = any(len(line) > NAME_WIDTH for line in lines)
            (names if long else single).extend(
                (path if place == 0 else "", line, unit) for place, line in enumerate(lines)
            )
    yield ""
    if names:
        width = max(len(path) for path, *_ in names)
        yield from (f"{path:<{width}}  {line}" for path, line, _ in names)
        yield ""
    yield from _fact_grid([("fact", "value", "unit"), *single])
    if double:
        yield ""
        yield from _fact_grid([("output on", *ROLES, "unit"), *double])
    yield f"{count(missing, 'fact')} not measured"


def _shown_value(layer: LayerFacts, path: str) -> object:
    """A fact; the best other way to read codes, which is none to take where it fits worse than the declared one."""
    value, gain = _fact_at(layer, path), layer.weight.reading_gain_db
    if path == "weight.better_reading" and value is not None and gain is not None and gain <= 0:
        return f"none; the best other one is worse: {value}"
    return value


def _value_lines(value: object, unit: str) -> list[str]:
    """A value on one line, several words or names one below the other."""
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        return [visible(item) for item in value]
    return [_cell_text(value, unit)]


def _fact_at(layer: LayerFacts, path: str) -> object:
    value: object = layer
    for field in path.split("."):
        value = getattr(value, field)
    return value


def _fact_grid(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows of facts: names and units to the left, values to the right."""
    return aligned_rows(rows, to_the_left={0, len(rows[0]) - 1} if rows[0][-1] == "unit" else {0})


#: A column as it is printed, and its cells as text.
PrintedColumn = tuple[blocks.Column, Sequence[str]]


def _fitting_tables(columns: Sequence[Column], rows: Sequence[int], width: int) -> Iterator[blocks.Table]:
    """Columns that fit beside each other, each time behind number and name."""
    printed = {column.key: _print_column(column, rows) for column in columns}
    fixed = [printed.pop(key) for key in FIXED if key in printed]
    part = list(fixed)
    for each in printed.values():
        if len(part) > len(fixed) and sum(_least_width(one) + 2 for one in [*part, each]) > width + 2:
            yield _table_of(part)
            part = list(fixed)
        part.append(each)
    yield _table_of(part)


def _table_of(printed: Sequence[PrintedColumn]) -> blocks.Table:
    rows = list(zip(*(cells for _, cells in printed), strict=True))
    return blocks.Table("layers", [column for column, _ in printed], rows)


def _print_column(column: Column, rows: Sequence[int]) -> PrintedColumn:
    unit = column.unit if column.unit in ("dB", *UNITS_SHOWN) and column.unit != column.label else ""
    head = " ".join(filter(None, [column.short_group, column.label, unit]))
    cells = [_table_cell(column, column.values[place]) for place in rows]
    return blocks.Column(head, "num" if column.numeric else "whole"), cells


def _least_width(printed: PrintedColumn) -> int:
    """Cells stay whole; only heads go on below themselves."""
    column, cells = printed
    return max(map(len, [*plain_text(column.head).split(), *cells]))


def _table_cell(column: Column, value: Value) -> str:
    """A value of bounded length; of several, as many as fit whole, and how many are left out."""
    unit, limit = column.unit, TEXT_WIDTH if column.key != "name" else NAME_WIDTH
    whole = _cell_text(value, unit)
    if not isinstance(value, tuple) or len(value) < 2 or len(whole) <= limit:
        return visible(whole, limit)
    limit = NAME_WIDTH
    for kept in range(len(value) - 1, 0, -1):
        text = f"{_cell_text(value[:kept], unit)}, {len(value) - kept} more"
        if len(text) <= limit:
            return text
    return f"{visible(value[0], limit)}, {len(value) - 1} more"


def _cell_text(value: object, unit: str | None) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case str():
            return visible(value)
        case tuple():
            return ", ".join(visible(str(item)) for item in value)
        case int() | float():
            return level(value) if unit == "dB" else number(value)
    return visible(str(value))
