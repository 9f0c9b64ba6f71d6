"""Facts of an output by its columns and by the operands that it is joined of: the worst of them counts."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.comparison import Comparison
from quantmedic.engine.case.facts import OutputColumnFacts, OutputOperandFacts
from quantmedic.engine.case.records import OutputRecord, PartRecord
from quantmedic.engine.decibels import sqnr_db

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
#: A column counts by itself if it has this share of the power of the loudest column of its operand ...
AUDIBLE = 1e-4
#: ... and this share where the columns are scores: those of a class that hardly ever occurs are no fault.
AUDIBLE_SCORE = 1e-2
#: A column varies if its deviation is more than this share of its largest value, and is constant below the second.
VARIES, CONSTANT = 1e-3, 1e-6


class Limits(Protocol):
    """Named limits; a rule base has them."""

    def threshold(self, name: str) -> float:
        """Value in force of a named threshold."""


class _Rows(NamedTuple):
    """Figures of some columns, or of some operands."""

    power: Floats
    noise: Floats
    varies: Flags
    constant: Flags


def output_column_facts(
    record: OutputRecord, found: Comparison, *, by_operand: bool, classes: bool, limits: Limits
) -> OutputColumnFacts:
    """The worst column and the worst operand of an output.

    Args:
        record: The output.
        found: Float and quantized output, a row per column.
        by_operand: A row per operand instead.
        classes: The output holds class scores.
        limits: Say below which level an output is spoiled.
    """
    classes = classes and not mixes_scores(record)
    rows = _rows_of(found)
    parts = record.parts or (PartRecord(start=0, stop=len(rows.power), tensor="", is_score=record.is_score or classes),)
    places = [slice(k, k + 1) if by_operand else slice(part.start, part.stop) for k, part in enumerate(parts)]
    counts = np.zeros(len(rows.power), bool)
    for part, place in zip(parts, places, strict=True):
        counts[place] = True if by_operand else _audible(rows.power[place], part.is_score)
    dead = counts & rows.varies & rows.constant
    operands = [_operand(part, place, rows, counts, dead) for part, place in zip(parts, places, strict=True)]
    own = np.array([sqnr_db(p, n) for p, n in zip(rows.power, rows.noise, strict=True)])
    judged = np.flatnonzero(counts & (rows.power > 0))
    worst = int(judged[own[judged].argmin()]) if judged.size and not by_operand and len(own) > 1 else None
    weakest = min((o for o in operands if o.sqnr_db is not None), key=_level, default=None)
    levels = [sqnr_db(rows.power.sum(), rows.noise.sum()), *(_level(o) for o in operands), *own[judged].tolist()]
    scores = _score_columns(parts, places, len(own))
    spoiled = (
        bool(dead.any())
        or (not classes and min(map(_level, operands)) < limits.threshold("quantize_error_sqnr_db"))
        or any(own[k] < limits.threshold("lost_sqnr_db" if scores[k] else "quantize_error_sqnr_db") for k in judged)
    )
    return OutputColumnFacts(
        count=len(own) if not by_operand else None,
        judged=len(judged) if not by_operand else None,
        worst_sqnr_db=min(levels),
        worst=_worst_words(worst, own, weakest if record.parts else None, min(levels)),
        worst_column=worst,
        worst_column_sqnr_db=float(own[worst]) if worst is not None else None,
        dead=sum(p.stop - p.start for p, o in zip(parts, operands, strict=True) if o.erased)
        if by_operand
        else int(dead.sum()),
        dead_places=_dead_places(operands if by_operand else (), dead),
        operands=tuple(operands) if record.parts else (),
        worst_operand=weakest.tensor if record.parts and weakest is not None else None,
        worst_operand_sqnr_db=weakest.sqnr_db if record.parts and weakest is not None else None,
        erased_operands=sum(bool(o.erased) for o in operands) if record.parts else None,
        spoiled=spoiled,
    )


def mixes_scores(record: OutputRecord) -> bool:
    """Scores stand beside something else, such as boxes: the columns are not those of one set of classes."""
    return len({part.is_score for part in record.parts}) > 1


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


def _audible(power: Floats, is_score: bool) -> Flags:
    audible: Flags = (power > 0) & (power >= (AUDIBLE_SCORE if is_score else AUDIBLE) * power.max(initial=0.0))
    return audible


def _operand(part: PartRecord, place: slice, rows: _Rows, counts: Flags, dead: Flags) -> OutputOperandFacts:
    power, noise = float(rows.power[place].sum()), float(rows.noise[place].sum())
    alive = counts[place] & rows.varies[place]
    return OutputOperandFacts(
        tensor=part.tensor,
        columns=_places(np.arange(part.start, part.stop)),
        sqnr_db=sqnr_db(power, noise) if power > 0 else None,
        erased=bool(alive.any() and dead[place][alive].all()),
        is_score=part.is_score,
    )


def _dead_places(erased: Sequence[OutputOperandFacts], dead: Flags) -> str | None:
    """Columns that are dead, or those of erased operands; None where there are none."""
    if erased:
        return ", ".join(operand.columns or "" for operand in erased if operand.erased) or None
    return _places(np.flatnonzero(dead)) or None


def _score_columns(parts: Sequence[PartRecord], places: Sequence[slice], rows: int) -> Flags:
    scores = np.zeros(rows, bool)
    for part, place in zip(parts, places, strict=True):
        scores[place] = part.is_score
    return scores


def _level(operand: OutputOperandFacts) -> float:
    return operand.sqnr_db if operand.sqnr_db is not None else np.inf


def _worst_words(column: int | None, own: Floats, operand: OutputOperandFacts | None, level: float) -> str | None:
    """What has the lowest level, in words; None where it is the output as a whole."""
    if operand is not None and operand.sqnr_db == level:
        return f"columns {operand.columns} ({operand.tensor})"
    return f"column {column}" if column is not None and own[column] == level else None


def _places(numbers: Sequence[int] | NDArray[np.int64]) -> str:
    """Numbers in ascending order, runs of them as ``first…last``."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(map(int, numbers)), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]}…{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
