"""What was read from files of a toolchain, and what is missing to judge more."""

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.case.facts import ReportedFacts
from quantmedic.engine.case.records import ImportRecord
from quantmedic.engine.contract.layers import LayerRow
from quantmedic.reports.text import NOT_MEASURED, level, name, number, visible

#: Lines of the table of reported errors.
REPORTED_SHOWN = 30

#: Files that would supply what is missing.
SUPPLIES = {
    "settings": "the configuration that the toolchain was run with",
    "thresholds": "a calibration table, cache or result, or encodings",
    "errors of layers": "the table or log of the toolchain's own debugger, such as LiteRT's QuantizationDebugger",
}


@dataclass(frozen=True)
class ImportLine:
    """One file of a toolchain."""

    file: Annotated[str, "its name"]
    format: Annotated[str, "what kind of file it is"]
    toolchain: Annotated[str, "whose it is"]
    tells: Annotated[tuple[str, ...], "what was read from it"]
    lacks: Annotated[tuple[str, ...], "what such files can hold and this one does not"]
    unknown: Annotated[tuple[str, ...], "keys in it that its toolchain does not know"]


@dataclass(frozen=True)
class ReportedLine:
    """What the toolchain itself measured of one layer, in our units."""

    name: Annotated[str, "layer"]
    op_type: Annotated[str, "operator"]
    cosine: Annotated[str, "cosine of float and quantized output; empty where not reported"]
    sqnr: Annotated[str, "SQNR in dB"]
    mse: Annotated[str, "mean squared error"]
    steps: Annotated[str, "root mean squared error over the scale"]
    normalized: Annotated[str, "mean squared error of the saved tensors scaled to 0 … 1, and their SQNR as they are"]
    own: Annotated[tuple[str, ...], "metrics that the user of the tool added, name and value"]
    where: Annotated[str, "device and type that it computes with"]
    origin: Annotated[str, "file that says so"]


def import_rows(imports: Iterable[ImportRecord]) -> tuple[ImportLine, ...]:
    """The files in the order in which they were given."""
    return tuple(
        ImportLine(
            file=visible(row.file, 120),
            format=visible(row.format),
            toolchain=visible(row.toolchain),
            tells=tuple(visible(text, 400) for text in row.tells),
            lacks=tuple(visible(text, 400) for text in row.lacks),
            unknown=tuple(visible(text, 200) for text in row.unknown),
        )
        for row in imports
    )


def lacking(imports: Iterable[ImportRecord]) -> tuple[str, ...]:
    """What none of the files holds, and which kind of file does."""
    rows = list(imports)
    return tuple(
        f"no {what}: give {supply}"
        for what, supply in SUPPLIES.items()
        if rows and all(what in row.lacks for row in rows)
    )


def reported_rows(layers: Iterable[LayerRow]) -> tuple[ReportedLine, ...]:
    """Layers of which the toolchain reports an error, the worst first."""
    known = [(row, row.reported) for row in layers if row.reported is not None and _badness(row.reported) is not None]
    known.sort(key=lambda pair: -(_badness(pair[1]) or 0.0))
    return tuple(
        ReportedLine(
            name=name(row.name),
            op_type=visible(row.op_type, 40),
            cosine=_text_if_known(reported.cosine, number(reported.cosine, 6)),
            sqnr=_text_if_known(reported.sqnr_db, level(reported.sqnr_db)),
            mse=_text_if_known(reported.mse, number(reported.mse)),
            steps=_text_if_known(reported.rmse_over_scale, number(reported.rmse_over_scale)),
            normalized=_normalized_text(reported),
            own=tuple(visible(text, 80) for text in reported.own_metrics or ()),
            where=", ".join(visible(text, 40) for text in (reported.device, reported.dtype) if text),
            origin=visible(reported.origin or NOT_MEASURED, 120),
        )
        for row, reported in known[:REPORTED_SHOWN]
    )


def _text_if_known(value: float | None, text: str) -> str:
    return "" if value is None else text


def _normalized_text(reported: ReportedFacts) -> str:
    """With the SQNR of the same tensors where they were saved: the scaled figure sees no wrong scale or offset."""
    texts = [_text_if_known(reported.normalized_mse, number(reported.normalized_mse))]
    texts.append(_text_if_known(reported.saved_sqnr_db, f"unscaled {level(reported.saved_sqnr_db)} dB"))
    return ", ".join(filter(None, texts))


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
