"""Where a language model loses, as maps: blocks by places within texts, experts by block, and the texts themselves."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.case.facts import LanguageFacts
from quantmedic.engine.case.language_facts import BlockFacts, ExpertFacts
from quantmedic.reports.text import NOT_MEASURED, count, decibels, name, number, percent, visible

#: Room for a cell with a number, and without; the height of a row, and of one where there are many.
_WIDE, _NARROW, _HIGH, _LOW = 38, 12, 19, 13
_LEFT, _TOP, _GAP = 58, 34, 8
#: Columns and rows from which on cells have no numbers, and cells that a map has at most.
_NUMBERED_COLUMNS, _NUMBERED_ROWS, _MOST = 24, 48, 8192
#: Colour of the least noise, and that of the most below numbers, which stay legible in both themes.
_LEAST, _WITH_TEXT = 0.06, 0.55
#: Bars of the texts, and their size.
_BARS, _BAR_AREA, _BAR_HEIGHT = 200, 640, 110
#: Columns that a table of Markdown may have.
_MOST_IN_TEXT = 18


@dataclass(frozen=True)
class Cell:
    """One cell of a map."""

    x: Annotated[float, "left end"]
    text: Annotated[str, "what stands in it; empty where there is no room"]
    shown: Annotated[str, "what the table shows"]
    depth: Annotated[float, "strength of its colour, from 0 to 1"]
    tip: Annotated[str, "shown under the pointer"]


@dataclass(frozen=True)
class MapRow:
    """One row of a map."""

    y: Annotated[float, "top"]
    title: Annotated[str, "name beside the row"]
    full: Annotated[str, "name in the table"]
    cells: Annotated[tuple[Cell, ...], "from left to right"]
    more: Annotated[tuple[str, ...], "what the table shows beside the cells"]


@dataclass(frozen=True)
class HeatMap:
    """Rows of cells whose colour is stronger where more is lost."""

    title: Annotated[str, "what it shows"]
    lead: Annotated[str, "how to read it"]
    columns: Annotated[tuple[tuple[float, str, str], ...], "place, short and full head of each column"]
    rows: Annotated[tuple[MapRow, ...], "from top to bottom"]
    heads: Annotated[tuple[str, ...], "heads of what the table shows beside the cells"]
    left: Annotated[float, "where cells begin"]
    width: Annotated[float, "of a cell"]
    height: Annotated[float, "of a row"]
    whole: Annotated[tuple[float, float], "size of the drawing"]
    is_narrow: Annotated[bool, "few enough columns for a table of Markdown"]


@dataclass(frozen=True)
class TextLine:
    """One of the worst texts."""

    place: Annotated[int, "which text it is, from 1"]
    kl: Annotated[str, "mean divergence of its tokens"]
    tokens: Annotated[int, "tokens that are predicted of it"]
    beginning: Annotated[str, "its first words or token ids"]


@dataclass(frozen=True)
class TextsBox:
    """Divergence of each text."""

    summary: Annotated[str, "least, median and largest"]
    bars: Annotated[tuple[tuple[float, float], ...], "left end and height of each bar, the worst text first"]
    bar: Annotated[float, "width of a bar"]
    size: Annotated[tuple[float, float], "of the drawing"]
    largest: Annotated[str, "what the highest bar stands for"]
    worst: Annotated[tuple[TextLine, ...], "the worst, first"]


def position_map(language: LanguageFacts) -> HeatMap | None:
    """Noise behind each block by the place of the token; None where it was not measured."""
    blocks = [block for block in language.blocks if block.noise_by_position]
    if not language.positions or not blocks:
        return None
    heads = [_place_text(k, language.positions) for k in range(len(language.positions))]
    rows = [("KL", "KL divergence", [_nats(value) for value in language.kl_by_position])]
    rows += [(_short(own), name(own.name), [_noise(value) for value in own.noise_by_position]) for own in blocks]
    return _laid_out(
        "Noise by place within the texts",
        "Signal over noise in dB behind each block, of the tokens at each place, all texts together; a stronger colour "
        "is worse. The first token stands apart. The first row is the KL divergence of what is predicted there, by its "
        "own scale.",
        [(str(start), head) for start, head in zip(language.positions, heads, strict=True)],
        rows,
        own_scales=1,
    )


def expert_map(language: LanguageFacts) -> HeatMap | None:
    """Noise of each expert of each block; None where there are none, or too many."""
    blocks = [block for block in language.blocks if block.experts]
    most = max((len(block.experts) for block in blocks), default=0)
    if not blocks or most * len(blocks) > _MOST:
        return None
    return _laid_out(
        "Experts",
        "Signal over noise in dB of what each expert makes of the tokens that the float router gives it; a stronger "
        "colour is worse. A dash: no token of the first texts reached it.",
        [(str(number), f"expert {number}") for number in range(most)],
        [(_short(block), name(block.name), [_expert(expert) for expert in block.experts]) for block in blocks],
        heads=("same experts", "moved"),
        more=[(percent(block.router_agreement, 1), percent(block.router_moved, 1)) for block in blocks],
    )


def texts_box(language: LanguageFacts) -> TextsBox | None:
    """Divergence of each text, the worst first; None where one text alone was run."""
    if len(language.kl_by_text) < 2:
        return None
    found = sorted(language.kl_by_text, reverse=True)
    number_of_bars = min(len(found), _BARS)
    shown = [found[k * len(found) // number_of_bars] for k in range(number_of_bars)]
    step = _BAR_AREA / number_of_bars
    top = max(shown[0], 1e-300)
    median = (found[(len(found) - 1) // 2] + found[len(found) // 2]) / 2
    ends = f"{number(found[-1])} … {number(found[0])} nats per token"
    summary = f"{count(len(found), 'text')}: {ends}, median {number(median)}"
    worst = tuple(
        TextLine(text.place or 0, f"{number(text.kl)} nats", text.tokens or 0, visible(text.beginning or "", 90))
        for text in language.worst_texts
    )
    return TextsBox(
        summary=summary,
        bars=tuple((round(k * step, 2), round(_BAR_HEIGHT * value / top, 2)) for k, value in enumerate(shown)),
        bar=round(max(step - (2 if step > 6 else 0.5), 0.5), 2),
        size=(_BAR_AREA, _BAR_HEIGHT),
        largest=f"{number(found[0])} nats",
        worst=worst,
    )


#: What a cell says: text in it, text of the table, what its depth is made of (None: not measured), and more of the tip.
Said = tuple[str, str, float | None, str]


def _laid_out(
    title: str,
    lead: str,
    columns: Sequence[tuple[str, str]],
    rows: Sequence[tuple[str, str, Sequence[Said]]],
    *,
    own_scales: int = 0,
    heads: tuple[str, ...] = (),
    more: Sequence[tuple[str, ...]] = (),
) -> HeatMap:
    """A map; the first ``own_scales`` rows are compared within themselves, all others with one another."""
    is_numbered = len(columns) <= _NUMBERED_COLUMNS
    width = _WIDE if is_numbered else _NARROW
    height = _HIGH if len(rows) <= _NUMBERED_ROWS else _LOW
    ranges = [_range([row]) for row in rows[:own_scales]]
    ranges += [_range(rows[own_scales:])] * (len(rows) - own_scales)
    found = []
    for number_of_row, (short, full, cells) in enumerate(rows):
        y = _TOP + number_of_row * height + (_GAP if number_of_row >= own_scales > 0 else 0)
        made = tuple(
            _cell(cell, _LEFT + k * width, f"{full}, {columns[k][1]}", ranges[number_of_row], is_numbered=is_numbered)
            for k, cell in enumerate(cells)
        )
        found.append(MapRow(y, short, full, made, more[number_of_row] if more else ()))
    every = max(1, math.ceil(len(columns) / 32))
    places = tuple(
        (_LEFT + (k + 0.5) * width, short if k % every == 0 else "", full) for k, (short, full) in enumerate(columns)
    )
    whole = (_LEFT + len(columns) * width + 4, found[-1].y + height + 4)
    return HeatMap(title, lead, places, tuple(found), heads, _LEFT, width, height, whole, len(columns) <= _MOST_IN_TEXT)


def _cell(said: Said, x: float, where: str, ends: tuple[float, float], *, is_numbered: bool) -> Cell:
    text, shown, value, more = said
    low, high = ends
    strength = _WITH_TEXT if is_numbered else 1.0
    depth = 0.0
    if value is not None:
        share = (min(max(value, low), high) - low) / (high - low) if high > low else 0.5
        depth = round(strength * (_LEAST + (1 - _LEAST) * share), 3)
    return Cell(x, text if is_numbered else "", shown, depth, f"{where}: {shown}{more}")


def _range(rows: Sequence[tuple[str, str, Sequence[Said]]]) -> tuple[float, float]:
    known = [cell[2] for _, _, cells in rows for cell in cells if cell[2] is not None and math.isfinite(cell[2])]
    return (min(known), max(known)) if known else (0.0, 1.0)


def _noise(noise: float | None) -> Said:
    """Decibels; the depth is their negative."""
    if noise is None:
        return "–", NOT_MEASURED, None, ""
    if not noise > 0:
        return "∞", decibels(math.inf), None, ""
    level = -10 * math.log10(noise)
    return f"{level:.0f}", decibels(level), -level, ""


def _nats(value: float | None) -> Said:
    if value is None:
        return "–", NOT_MEASURED, None, ""
    return _short_number(value), f"{number(value)} nats", value, ""


def _expert(expert: ExpertFacts) -> Said:
    text, shown, depth, _ = _noise(expert.noise)
    return text, shown, depth, f", {percent(expert.share, 1)} of the choices"


def _short_number(value: float) -> str:
    """At most five characters."""
    return f"{value:.0e}".replace("e-0", "e-") if 0 < value < 0.001 else f"{value:.2g}"


def _short(block: BlockFacts) -> str:
    """The number of a block."""
    return visible((block.name or "").rpartition(".")[2], 7)


def _place_text(k: int, starts: Sequence[int]) -> str:
    if k == 0:
        return "first token"
    if k + 1 == len(starts):
        return f"tokens from {starts[k]} on"
    last = starts[k + 1] - 1
    return f"token {starts[k]}" if last == starts[k] else f"tokens {starts[k]} to {last}"


def worst_experts(language: LanguageFacts) -> Iterator[tuple[str, str, str, str, str]]:
    """Per block: its name, agreement of the router, what moved, the worst expert, and the least used one."""
    for block in language.blocks:
        if not block.experts:
            continue
        known = [(expert.noise, k) for k, expert in enumerate(block.experts) if expert.noise is not None]
        noise, worst = max(known, default=(None, None))
        shares = [expert.share or 0.0 for expert in block.experts]
        least = shares.index(min(shares))
        yield (
            name(block.name),
            percent(block.router_agreement, 1),
            percent(block.router_moved, 1),
            NOT_MEASURED if worst is None else f"{worst}: {_noise(noise)[1]}",
            f"{least}: {percent(shares[least], 1)} of the choices",
        )
