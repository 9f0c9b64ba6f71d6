"""Two loss budgets side by side as text: what of the noise went, what came, what stayed.

A share is of the noise of its own case; the noise itself is told in shares of the louder case, so that 80 % of a tenth
reads as 8 %.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.diagnosis.budget_lines import MECHANISMS, SMALLEST
from quantmedic.engine.versus.budget_changes import BudgetChange, BudgetSide, NoisePart, SourceChange
from quantmedic.reports.sections.budget_box import UNSIMULATED, WORDS_LIMIT, share_text
from quantmedic.reports.sections.task_loss import side_words
from quantmedic.reports.text import NOT_MEASURED, count, decibels, level, name, number, visible

NO_QUANTIZER, SMALL = "none", "small"
LOOKS = {"went": "good", "less": "good", "more": "bad", "came": "bad"}
UNKNOWN = "not known"


@dataclass(frozen=True)
class BudgetChangeRow:
    """A part of the noise in both cases."""

    fate: Annotated[str, "went, less, stayed, more, came or not known"]
    look: Annotated[str, "good, bad or empty"]
    words: Annotated[str, "what makes it, and where"]
    notes: Annotated[tuple[str, ...], "how it makes noise, and what its figures leave open"]
    share_before: Annotated[str, "share of the noise of the first case"]
    share_after: Annotated[str, "share of the noise of the second case"]
    noise_before: Annotated[str, "the same in shares of the louder case's noise; empty where not told apart"]
    noise_after: Annotated[str, "the same after"]
    change: Annotated[str, "its change in dB; empty where one is not known"]
    bars: Annotated[tuple[float, float], "both noises as lengths from 0 to 1"]
    quiet: Annotated[bool, "too small in both cases to be shown in short"]


@dataclass(frozen=True)
class BudgetChangeBox:
    """Where the noise comes from in both cases."""

    lead: Annotated[str, "what became of all of it, as a sentence"]
    base: Annotated[str, "what 100 % of the noise is: noise before or noise after"]
    rows: Annotated[tuple[BudgetChangeRow, ...], "the loudest of both cases first"]
    notes: Annotated[tuple[str, ...], "what limits it, as sentences"]


def budget_change_box(change: BudgetChange | None) -> BudgetChangeBox | None:
    """Both budgets as text; None where neither case has one."""
    if change is None:
        return None
    whole = change.whole
    base = max(whole.noise_before or 0.0, whole.noise_after or 0.0)
    rows = [_source_row(part, change, base) for part in change.sources]
    if max(change.unsimulated.share_before or 0.0, change.unsimulated.share_after or 0.0) >= SMALLEST:
        rows.append(_row(change.unsimulated, UNSIMULATED, (), change, base))
    return BudgetChangeBox(
        lead=" ".join((_lead(change), *_losses(change))),
        base="noise before" if base == whole.noise_before else "noise after",
        rows=tuple(rows),
        notes=tuple(_notes(change)),
    )


def _lead(change: BudgetChange) -> str:
    old, new = change.whole.noise_before or 0.0, change.whole.noise_after or 0.0
    before, after = level(change.before.sqnr_db), decibels(change.after.sqnr_db)
    levels = f"The noise of {name(change.output)}: SQNR {before} → {after}"
    if not old or not new:
        return f"{levels}."
    if new < old:
        return f"{levels}. {_percent(new / old)} of the noise is left."
    return f"{levels}. It is {number(new / old, 2)} times as much."


def _losses(change: BudgetChange) -> Iterator[str]:
    """What the task loses in both cases, as a sentence."""
    sides = (change.before, change.after)
    words = [side_words(side) for side in sides]
    told = [w.part(side.lost) if w and side.lost else NOT_MEASURED for w, side in zip(words, sides, strict=True)]
    labels = dict.fromkeys(w.label for w in words if w is not None)
    if len(labels) == 1:
        yield f"Lost {next(iter(labels))} on these samples: {' → '.join(told)}."


def _lost_notes(part: SourceChange, change: BudgetChange) -> Iterator[str]:
    sides = (("before", change.before, part.lost_before), ("after", change.after, part.lost_after))
    for when, side, lost in sides:
        words = side_words(side)
        if words is not None and lost is not None:
            yield f"{when}: {words.part(lost)} of {words.label}"


def _notes(change: BudgetChange) -> Iterator[str]:
    for which, side in (("first", change.before), ("second", change.after)):
        if side.samples is None:
            yield (
                f"The {which} case has no loss budget, as where outputs agree or an older version measured: each part "
                "of its noise is at most all of it."
            )
        elif side.complete is False:
            yield f"In the {which} case, the runs ended before all that matters was taken apart."
    if len({(side.dataset, side.samples) for side in _measured_sides(change)}) > 1:
        texts = [f"{count(side.samples or 0, 'sample')} of the {side.dataset} set" for side in _measured_sides(change)]
        yield f"The budgets are of different samples: {' and '.join(texts)}."


def _measured_sides(change: BudgetChange) -> list[BudgetSide]:
    return [side for side in (change.before, change.after) if side.samples is not None]


def _source_row(part: SourceChange, change: BudgetChange, base: float) -> BudgetChangeRow:
    how = [MECHANISMS[m] if m is not None else "" for m in (part.mechanism_before, part.mechanism_after)]
    notes = [how[0]] if how[0] and how[0] == how[1] else []
    for when, text, among in zip(("before", "after"), how, (part.among_before, part.among_after), strict=True):
        if text and text not in notes:
            notes.append(f"{when}: {text}")
        if among is not None:
            notes.append(f"{when}: not told apart from {count(among - 1, 'other')}")
    notes += _lost_notes(part, change)
    return _row(part, visible(part.words, WORDS_LIMIT), tuple(notes), change, base)


def _row(part: NoisePart, words: str, notes: tuple[str, ...], change: BudgetChange, base: float) -> BudgetChangeRow:
    among: tuple[int | None, int | None] = (None, None)
    if isinstance(part, SourceChange):
        among = (part.among_before, part.among_after)
    sides = (change.before, change.after)
    shares = (part.share_before, part.share_after)
    noises = (part.noise_before, part.noise_after)
    # A side without a budget has at most all of its noise at one place.
    limits = (change.whole.noise_before, change.whole.noise_after)
    told = [
        _percent(noise / base) if noise is not None and base else _limit(side, limit, base)
        for noise, side, limit in zip(noises, sides, limits, strict=True)
    ]
    bars = [min(max((noise or 0.0) / base, 0.0), 1.0) if base else 0.0 for noise in noises]
    return BudgetChangeRow(
        fate=part.fate or UNKNOWN,
        look=LOOKS.get(part.fate or "", ""),
        words=words,
        notes=notes,
        share_before=_share(shares[0], sides[0], among[0]),
        share_after=_share(shares[1], sides[1], among[1]),
        noise_before=told[0],
        noise_after=told[1],
        change="" if part.gain_db is None else decibels(part.gain_db, "+"),
        bars=(bars[0], bars[1]),
        quiet=all(abs(share or 0.0) < SMALLEST for share in shares),
    )


def _share(share: float | None, side: BudgetSide, among: int | None) -> str:
    if share is not None:
        return share_text(share)
    if side.samples is None:
        return NOT_MEASURED
    return SMALL if among is not None else NO_QUANTIZER


def _limit(side: BudgetSide, whole: float | None, base: float) -> str:
    return f"≤ {_percent((whole or 0.0) / base)}" if side.samples is None and base else ""


def _percent(share: float) -> str:
    """A share of the noise, with a digit where it is small."""
    return share_text(share) if abs(share) >= 0.1 else f"{number(100 * share, 1 if abs(share) < 0.01 else 2)} %"
