"""What was read from files of a toolchain, and what is missing to judge more."""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from quantmedic.engine.case.facts import ReportedFacts
from quantmedic.engine.case.records import ImportRecord
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.contract.layers import LayerRow
from quantmedic.reports.blocks import (
    Block,
    Bullets,
    Cell,
    Column,
    Heading,
    Paragraph,
    Section,
    Span,
    Table,
    joined,
    make_table,
)
from quantmedic.reports.text import NOT_MEASURED, count, level, number, visible

#: Lines of the table of reported errors.
REPORTED_SHOWN = 30

#: Files that would supply what is missing.
SUPPLIES = {
    "settings": "the configuration that the toolchain was run with",
    "thresholds": "a calibration table, cache or result, or encodings",
    "errors of layers": "the table or log of the toolchain's own debugger, such as LiteRT's QuantizationDebugger",
}


def files_section(diagnosis: Diagnosis) -> Section | None:
    """What was read of which file, what is missing, and what the toolchain itself measured; None without files."""
    if not diagnosis.imports:
        return None
    table = make_table(
        "Files of the toolchain",
        diagnosis.imports,
        [
            (Column("file"), lambda row: visible(row.file, 120)),
            (Column("kind"), lambda row: row.format),
            (Column("tells"), tells_text),
            (Column("unknown keys"), lambda row: joined([Span(visible(text, 200), "code") for text in row.unknown])),
        ],
    )
    missing = [f"Missing: {text}." for text in lacking(diagnosis.imports)]
    blocks: list[Block] = [table, *([Bullets(missing)] if missing else [])]
    if reported := reported_rows(diagnosis.layers):
        lead = f"What it measured itself, in the units of this report; the worst {count(len(reported), 'layer')} first."
        blocks += [Heading("reported by the toolchain"), Paragraph(lead, "lead"), _reported_table(reported)]
    return Section("files", "Files of the toolchain", "Files", blocks)


def tells_text(row: ImportRecord) -> str:
    """What was read from a file."""
    return "; ".join(visible(text, 400) for text in row.tells) or "nothing that is known"


def lacking(imports: Iterable[ImportRecord]) -> tuple[str, ...]:
    """What none of the files holds, and which kind of file does."""
    rows = list(imports)
    return tuple(
        f"no {what}: give {supply}"
        for what, supply in SUPPLIES.items()
        if rows and all(what in row.lacks for row in rows)
    )


def reported_rows(layers: Iterable[LayerRow]) -> list[tuple[LayerRow, ReportedFacts]]:
    """Layers of which the toolchain reports an error, the worst first."""
    known = [(row, row.reported) for row in layers if row.reported is not None and _badness(row.reported) is not None]
    return sorted(known, key=lambda pair: -(_badness(pair[1]) or 0.0))[:REPORTED_SHOWN]


def _reported_table(rows: Sequence[tuple[LayerRow, ReportedFacts]]) -> Table:
    columns: list[tuple[Column, Callable[[tuple[LayerRow, ReportedFacts]], Cell]]] = [
        (Column("layer", "name"), lambda pair: pair[0].name),
        (Column("operator"), lambda pair: visible(pair[0].op_type, 40)),
        (Column("cosine", "num", lambda value: number(value, 6)), lambda pair: pair[1].cosine),
        (Column("SQNR in dB", "num", level), lambda pair: pair[1].sqnr_db),
        (Column("MSE", "num"), lambda pair: pair[1].mse),
        (Column("RMSE / scale", "num"), lambda pair: pair[1].rmse_over_scale),
        (Column("normalized MSE", "num"), lambda pair: normalized_text(pair[1])),
    ]
    if any(reported.own_metrics for _, reported in rows):
        own = Column("own metrics")
        columns.append((own, lambda pair: "; ".join(visible(text, 80) for text in pair[1].own_metrics or ())))
    columns += [
        (Column("computed by"), lambda pair: ", ".join(filter(None, (pair[1].device, pair[1].dtype)))),
        (Column("from"), lambda pair: visible(pair[1].origin or NOT_MEASURED, 120)),
    ]
    return make_table("Errors that the toolchain reported", rows, columns)


def normalized_text(reported: ReportedFacts) -> str:
    """With the SQNR of the same tensors where they were saved: the scaled figure sees no wrong scale or offset."""
    texts = [] if reported.normalized_mse is None else [number(reported.normalized_mse)]
    texts += [] if reported.saved_sqnr_db is None else [f"unscaled {level(reported.saved_sqnr_db)} dB"]
    return ", ".join(texts)


def _badness(reported: ReportedFacts) -> float | None:
    """Share of noise in the signal by the first figure that is known; only for the order of lines."""
    if reported.cosine is not None and reported.cosine > 0:
        return 1 / reported.cosine**2 - 1
    if reported.cosine is not None:
        return math.inf
    level_db = reported.saved_sqnr_db if reported.sqnr_db is None else reported.sqnr_db
    if level_db is not None:
        with suppress(OverflowError):
            return float(10 ** (-level_db / 10))
        return math.inf
    for value in (reported.rmse_over_scale, reported.normalized_mse, reported.mse):
        if value is not None:
            return value
    return None
