"""Where a language model loses, as maps: blocks by places within texts, experts by block, and the texts themselves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from quantmedic.engine.case.facts import LanguageFacts
from quantmedic.engine.case.language_facts import BlockFacts, ExpertFacts
from quantmedic.reports.blocks import (
    Block,
    Column,
    Details,
    Heading,
    PageOnly,
    Paragraph,
    Span,
    Table,
    make_table,
)
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
class Square:
    """One cell of a map."""

    x: Annotated[float, "left end"]
    text: Annotated[str, "what stands in it; empty where there is no room"]
    depth: Annotated[float, "strength of its colour, from 0 to 1"]
    tip: Annotated[str, "shown under the pointer"]


@dataclass(frozen=True)
class MapRow:
    """One row of a map."""

    y: Annotated[float, "top"]
    title: Annotated[str, "name beside the row"]
    cells: Annotated[tuple[Square, ...], "from left to right"]


@dataclass(frozen=True)
class HeatMap:
    """Rows of cells whose colour is stronger where more is lost; only the page draws it."""

    kind: ClassVar[str] = "heat"
    title: Annotated[str, "what it shows"]
    columns: Annotated[tuple[tuple[float, str, str], ...], "place, short and full head of each column"]
    rows: Annotated[tuple[MapRow, ...], "from top to bottom"]
    left: Annotated[float, "where cells begin"]
    width: Annotated[float, "of a cell"]
    height: Annotated[float, "of a row"]
    whole: Annotated[tuple[float, float], "size of the drawing"]


@dataclass(frozen=True)
class TextBars:
    """Divergence of each text as a bar; only the page draws it."""

    kind: ClassVar[str] = "bars"
    summary: Annotated[str, "least, median and largest"]
    bars: Annotated[tuple[tuple[float, float], ...], "left end and height of each bar, the worst text first"]
    bar: Annotated[float, "width of a bar"]
    size: Annotated[tuple[float, float], "of the drawing"]
    largest: Annotated[str, "what the highest bar stands for"]


def position_map(language: LanguageFacts) -> list[Block]:
    """Noise behind each block by the place of the token; nothing where it was not measured."""
    blocks = [block for block in language.blocks if block.noise_by_position]
    if not language.positions or not blocks:
        return []
    heads = [_place_text(k, language.positions) for k in range(len(language.positions))]
    rows = [("KL", "KL divergence", [_nats(value) for value in language.kl_by_position])]
    rows += [(_short(own), name(own.name), [_noise(value) for value in own.noise_by_position]) for own in blocks]
    lead = (
        "Signal over noise in dB behind each block, of the tokens at each place, all texts together; a stronger colour "
        "is worse. The first token stands apart. The first row is the KL divergence of what is predicted there, by its "
        "own scale."
    )
    columns = [(str(start), head) for start, head in zip(language.positions, heads, strict=True)]
    return _map_blocks("Noise by place within the texts", lead, columns, rows, own_scales=1)


def expert_map(language: LanguageFacts) -> list[Block]:
    """Noise of each expert of each block, where there are not too many, and routers with their worst experts."""
    blocks = [block for block in language.blocks if block.experts]
    most = max((len(block.experts) for block in blocks), default=0)
    if not blocks:
        return []
    lead = (
        "Signal over noise in dB of what each expert makes of the tokens that the float router gives it; a stronger "
        "colour is worse. A dash: no token of the first texts reached it."
    )
    columns = [(str(number), f"expert {number}") for number in range(most)]
    rows = [(_short(block), name(block.name), [_expert(expert) for expert in block.experts]) for block in blocks]
    drawn = _map_blocks("Experts", lead, columns, rows) if most * len(blocks) <= _MOST else []
    told = "Routers: tokens for which both models choose the same experts, and how much of the shares goes to others."
    return [*drawn, Heading("routers"), Paragraph(told, "lead"), _router_table(blocks)]


def _router_table(blocks: Sequence[BlockFacts]) -> Table:
    return make_table(
        "Routers and experts",
        blocks,
        [
            (Column("block", "name"), lambda block: block.name),
            (Column("same experts", "num", lambda share: percent(share, 1)), lambda block: block.router_agreement),
            (Column("moved", "num", lambda share: percent(share, 1)), lambda block: block.router_moved),
            (Column("noisiest expert", "tight"), _noisiest_expert),
            (Column("least used expert", "tight"), _least_used_expert),
        ],
        "dense",
    )


def _noisiest_expert(block: BlockFacts) -> str | None:
    known = [(expert.noise, k) for k, expert in enumerate(block.experts) if expert.noise is not None]
    noise, worst = max(known, default=(None, None))
    return None if worst is None else f"{worst}: {_noise(noise)[1]}"


def _least_used_expert(block: BlockFacts) -> str:
    shares = [expert.share or 0.0 for expert in block.experts]
    least = shares.index(min(shares))
    return f"{least}: {percent(shares[least], 1)} of the choices"


def texts_blocks(language: LanguageFacts) -> list[Block]:
    """Divergence of each text, the worst first; nothing where one text alone was run."""
    if len(language.kl_by_text) < 2:
        return []
    found = sorted(language.kl_by_text, reverse=True)
    number_of_bars = min(len(found), _BARS)
    shown = [found[k * len(found) // number_of_bars] for k in range(number_of_bars)]
    step = _BAR_AREA / number_of_bars
    top = max(shown[0], 1e-300)
    median = (found[(len(found) - 1) // 2] + found[len(found) // 2]) / 2
    ends = f"{number(found[-1])} … {number(found[0])} nats per token"
    summary = f"{count(len(found), 'text')}: {ends}, median {number(median)}"
    drawing = TextBars(
        summary=summary,
        bars=tuple((round(k * step, 2), round(_BAR_HEIGHT * value / top, 2)) for k, value in enumerate(shown)),
        bar=round(max(step - (2 if step > 6 else 0.5), 0.5), 2),
        size=(_BAR_AREA, _BAR_HEIGHT),
        largest=f"{number(found[0])} nats",
    )
    worst = make_table(
        "The worst texts",
        language.worst_texts,
        [
            (Column("text", "num"), lambda text: text.place or 0),
            (Column("KL", "num", lambda value: f"{number(value)} nats"), lambda text: text.kl),
            (Column("tokens", "num"), lambda text: text.tokens or 0),
            (Column("begins with"), lambda text: Span(visible(text.beginning or "", 90), "begins")),
        ],
        "dense",
    )
    return [Heading("KL divergence by text"), Paragraph(f"{summary}.", "lead"), drawing, worst]


#: What a cell says: text in it, text of the table, what its depth is made of (None: not measured), and more of the tip.
Said = tuple[str, str, float | None, str]


def _map_blocks(
    title: str,
    lead: str,
    columns: Sequence[tuple[str, str]],
    rows: Sequence[tuple[str, str, Sequence[Said]]],
    own_scales: int = 0,
) -> list[Block]:
    """A map and its table; the first ``own_scales`` rows are compared within themselves, others with one another."""
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
        found.append(MapRow(y, short, made))
    every = max(1, math.ceil(len(columns) / 32))
    places = tuple(
        (_LEFT + (k + 0.5) * width, short if k % every == 0 else "", full) for k, (short, full) in enumerate(columns)
    )
    whole = (_LEFT + len(columns) * width + 4, found[-1].y + height + 4)
    drawing = HeatMap(title, places, tuple(found), _LEFT, width, height, whole)
    table = Table(
        title,
        [Column("block", "name"), *(Column(full, "num") for _, full in columns)],
        [(full, *(said[1] for said in cells)) for _, full, cells in rows],
        "dense",
    )
    folded = Details(f"{title} as a table", [table])
    shown: Block = folded if len(columns) <= _MOST_IN_TEXT else PageOnly([folded])
    return [Heading(title), Paragraph(lead, "lead"), drawing, shown]


def _cell(said: Said, x: float, where: str, ends: tuple[float, float], *, is_numbered: bool) -> Square:
    text, shown, value, more = said
    low, high = ends
    strength = _WITH_TEXT if is_numbered else 1.0
    depth = 0.0
    if value is not None:
        share = (min(max(value, low), high) - low) / (high - low) if high > low else 0.5
        depth = round(strength * (_LEAST + (1 - _LEAST) * share), 3)
    return Square(x, text if is_numbered else "", depth, f"{where}: {shown}{more}")


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
