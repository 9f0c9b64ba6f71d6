"""Facts of an output by its columns and by the parts that it is divided into: the worst of them counts."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.facts import OutputColumnFacts, OutputOperandFacts
from quantmedic.engine.case.output_comparison import Comparison
from quantmedic.engine.case.records import OutputRecord, PartRecord
from quantmedic.engine.decibels import sqnr_db
from quantmedic.engine.thresholds import Thresholds

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
#: A column counts by itself if 8 bits resolve it beside the loudest column of its part: it has this share of the power
#: (48 dB). Below, the step of a grid over both is as large as the column, which then is a quantity of its own.
AUDIBLE = 2.0 ** (-2 * 8)
#: Below this share a column is what rounding in float32 (24 bits) leaves of the loudest one.
ROUNDING = 2.0 ** (-2 * 24)
#: Parts that are told apart; an output of more is not taken to pieces.
MAX_PARTS = 64
#: ... and this share where the columns are scores: those of a class that hardly ever occurs are no fault.
AUDIBLE_SCORE = 1e-2
#: Scores compete with each other, so that their noise counts together; one alone counts where its noise has half of its
#: power, in dB.
LOST_DB = 3.0
#: A column varies if its deviation is more than this share of its largest value, and is constant below the second.
VARIES, CONSTANT = 1e-3, 1e-6


class _Rows(NamedTuple):
    """Figures of some columns, or of some operands."""

    power: Floats
    noise: Floats
    varies: Flags
    constant: Flags


def output_column_facts(
    record: OutputRecord, found: Comparison, *, by_operand: bool, classes: bool, limits: Thresholds
) -> OutputColumnFacts:
    """The worst column and the worst part of an output.

    Args:
        record: The output.
        found: Float and quantized output, a row per column.
        by_operand: A row per operand instead.
        classes: The output holds class scores.
        limits: Say below which level an output is spoiled.
    """
    divided = parts_of(record, None if by_operand else found)
    classes = classes and not mixes_scores(divided)
    rows = _rows_of(found)
    whole = PartRecord(start=0, stop=len(rows.power), tensor="", is_score=record.is_score)
    parts = [part.model_copy(update={"is_score": part.is_score or classes}) for part in divided or (whole,)]
    selected = has_selected_rows(record)
    places = [slice(k, k + 1) if by_operand else slice(part.start, part.stop) for k, part in enumerate(parts)]
    counts = np.zeros(len(rows.power), bool)
    scores = np.zeros(len(rows.power), bool)
    for part, place in zip(parts, places, strict=True):
        scores[place] = part.is_score
        if not selected or part.kind == "scores":
            counts[place] = True if by_operand else audible_columns(rows.power[place], part.is_score)
    dead = counts & rows.varies & rows.constant
    operands = [_operand(part, place, rows) for part, place in zip(parts, places, strict=True)]
    own = np.array([sqnr_db(p, n) for p, n in zip(rows.power, rows.noise, strict=True)])
    judged = np.flatnonzero(counts & (rows.power > 0))
    levels = [
        *own[judged[counts_alone(own[judged], scores[judged])]].tolist(),
        *(() if classes else (_level(o) for o in operands if not selected or o.kind == "scores")),
    ]
    worst_sqnr_db = min([*([] if selected else [sqnr_db(rows.power.sum(), rows.noise.sum())]), *levels], default=None)
    held = [o for o in operands if o.sqnr_db is not None and (not selected or o.kind == "scores")]
    weakest = min(held, key=_level, default=None) if divided else None
    return OutputColumnFacts.model_validate(
        {
            **(_erased_operands(parts, dead) if by_operand else _dead_columns(dead)),
            "worst_sqnr_db": worst_sqnr_db,
            "worst": _worst_words(own if not by_operand else own[:0], weakest, worst_sqnr_db),
            "operands": tuple(operands) if divided else (),
            "spoiled": bool(dead.any()) or min(levels, default=np.inf) < limits.threshold("quantize_error_sqnr_db"),
        }
    )


def parts_of(record: OutputRecord, found: Comparison | None) -> tuple[PartRecord, ...]:
    """Operands of the Concat that joins an output; where none does, neighbouring columns of one scale.

    Columns differ in scale where 8 bits do not resolve one beside the other (``AUDIBLE``), such as scores beside boxes
    in pixels: they are parted at the widest gap between their powers. The quieter ones are judged as scores are:
    together, and alone where they are lost.

    Args:
        record: The output.
        found: Float and quantized output, a row per column; None where they were not compared.

    Returns:
        Nothing where all columns have one scale. Values of at most 1 may be scores, however they were made: a quiet
        column of them is a class that hardly ever occurs.
    """
    if record.parts or record.is_score or found is None or found.column("peak").max(initial=0.0) <= 1:
        return record.parts
    rows = _rows_of(found)
    scales = np.full(len(rows.power), -1)
    known = np.flatnonzero(rows.varies & (rows.power > ROUNDING * rows.power.max(initial=0.0)))
    for scale, columns in enumerate(_part_at_gaps(known[np.argsort(-rows.power[known])], rows.power)):
        scales[columns] = scale
    turns = 1 + np.flatnonzero(np.diff(scales[known]))
    starts = [0, *known[turns].tolist(), len(scales)]
    if not 0 < len(turns) < MAX_PARTS:
        return ()
    runs = zip(starts, starts[1:], scales[known[[0, *turns]]].tolist(), strict=False)
    return tuple(PartRecord(start=a, stop=b, tensor="", is_score=scale > 0) for a, b, scale in runs)


def _part_at_gaps(columns: NDArray[np.int64], power: Floats) -> list[NDArray[np.int64]]:
    """Columns, the loudest first, parted at the widest gap until 8 bits resolve all of a part beside each other."""
    parts, rest = [], [columns]
    while rest:
        levels = power[own := rest.pop()]
        if len(own) < 2 or levels[-1] >= AUDIBLE * levels[0]:
            parts.append(own)
            continue
        gap = 1 + int((levels[:-1] / levels[1:]).argmax())
        rest += [own[gap:], own[:gap]]
    return parts


def has_selected_rows(record: OutputRecord) -> bool:
    """TopK selects its rows, the head of a detector that needs no suppression.

    Such rows change places where two scores are close, so that only the scores, which both models sort, are compared.
    """
    return any(part.kind == "classes" for part in record.parts)


def counts_alone(levels: Floats, scores: Flags) -> Flags:
    """Columns whose level counts by itself: all but scores, and those of them that are lost."""
    alone: Flags = ~scores | (levels < LOST_DB)
    return alone


class _Part(Protocol):
    @property
    def is_score(self) -> bool: ...


def mixes_scores(parts: Iterable[_Part]) -> bool:
    """Scores stand beside something else, such as boxes: the columns are not those of one set of classes."""
    return len({part.is_score for part in parts}) > 1


def _rows_of(found: Comparison) -> _Rows:
    count = np.maximum(found.column("count"), 1.0)
    floats, quantized = (np.sqrt(np.maximum(found.column(name), 0.0) / count) for name in ("m2_x", "m2_y"))
    peak = found.column("peak")
    return _Rows(
        found.column("power"),
        found.column("square"),
        varies=(found.column("count") > 1) & (floats > VARIES * peak),
        constant=quantized <= CONSTANT * peak,
    )


def audible_columns(power: Floats, is_score: bool) -> Flags:
    """Columns of one part that count by themselves, from their power."""
    audible: Flags = (power > 0) & (power >= (AUDIBLE_SCORE if is_score else AUDIBLE) * power.max(initial=0.0))
    return audible


def _operand(part: PartRecord, place: slice, rows: _Rows) -> OutputOperandFacts:
    power, noise = float(rows.power[place].sum()), float(rows.noise[place].sum())
    return OutputOperandFacts(
        tensor=part.tensor or None,
        columns=column_places(np.arange(part.start, part.stop)),
        sqnr_db=sqnr_db(power, noise) if power > 0 else None,
        kind=part.kind,
    )


def _dead_columns(dead: Flags) -> dict[str, object]:
    """How many columns are dead, and which."""
    return {"dead": int(dead.sum()), "dead_places": column_places(np.flatnonzero(dead)) or None}


def _erased_operands(parts: Sequence[PartRecord], erased: Flags) -> dict[str, object]:
    """The same where operands are judged, a row each: all columns of those that are erased."""
    gone = [part for part, is_erased in zip(parts, erased, strict=True) if is_erased]
    places = ", ".join(column_places(np.arange(part.start, part.stop)) for part in gone)
    return {"dead": sum(part.stop - part.start for part in gone), "dead_places": places or None}


def _level(operand: OutputOperandFacts) -> float:
    return operand.sqnr_db if operand.sqnr_db is not None else np.inf


def _worst_words(own: Floats, operand: OutputOperandFacts | None, level: float | None) -> str | None:
    """What has the lowest level, in words; None where it is the output as a whole."""
    if operand is not None and operand.sqnr_db == level:
        return f"{operand.kind + ', ' if operand.kind else ''}{part_words(operand.columns, operand.tensor)}"
    found = np.flatnonzero(own == level)
    return f"column {found[0]}" if found.size else None


def part_words(columns: str | None, tensor: str | None) -> str:
    """Columns of a part by their places, and the operand that they come from."""
    noun = "column" if columns is not None and columns.isdigit() else "columns"
    return f"{noun} {columns}{f' ({tensor})' if tensor else ''}"


def column_places(numbers: Sequence[int] | NDArray[np.int64]) -> str:
    """Numbers in ascending order, runs of them as ``first…last``."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(map(int, numbers)), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]}…{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
