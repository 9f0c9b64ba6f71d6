"""Where a language model loses, as maps: blocks by places within texts, experts by block, and the texts themselves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from quantmedic.engine.case.facts import LanguageFacts
from quantmedic.engine.case.language_facts import BlockFacts, ExpertFacts
from quantmedic.reports.blocks import (
    Block,
    Cell,
    Column,
    Heading,
    PageOnly,
    Paragraph,
    Span,
    Table,
    make_table,
)
from quantmedic.reports.text import count, decibels, name, number, percent, tenths, visible

#: Cells that a map has at most, and steps of their colour.
_MOST, _SHADES = 8192, 9
#: Bars of the texts, and their size.
_BARS, _BAR_AREA, _BAR_HEIGHT = 200, 640, 110
#: Columns that a table of Markdown may have.
_MOST_IN_TEXT = 18


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
    rows = [("KL divergence", [_nats(value) for value in language.kl_by_position])]
    rows += [(name(own.name), [_noise(value) for value in own.noise_by_position]) for own in blocks]
    lead = (
        "Signal over noise in dB behind each block, of the tokens at each place, all texts together; a stronger colour "
        "is worse. The first token stands apart. The first row is the KL divergence of what is predicted there, by its "
        "own scale."
    )
    return _map_blocks("Noise by place within the texts", lead, heads, rows, own_scales=1)


def expert_map(language: LanguageFacts) -> list[Block]:
    """Noise of each expert of each block, where there are not too many, and routers with their worst experts."""
    blocks = [block for block in language.blocks if block.experts]
    most = max((len(block.experts) for block in blocks), default=0)
    if not blocks:
        return []
    lead = (
        "Signal over noise in dB of what each expert makes of the tokens that the float router gives it; a stronger "
        "colour is worse. Below it, its share of the choices. A dash: no token of the first texts reached it."
    )
    heads = [f"expert {number}" for number in range(most)]
    rows = [(name(block.name), [_expert(expert) for expert in block.experts]) for block in blocks]
    drawn = _map_blocks("Experts", lead, heads, rows) if most * len(blocks) <= _MOST else []
    told = "Routers: tokens for which both models choose the same experts, and how much of the shares goes to others."
    return [*drawn, Heading("routers"), Paragraph(told, "lead"), _router_table(blocks)]


def _router_table(blocks: Sequence[BlockFacts]) -> Table:
    return make_table(
        "Routers and experts",
        blocks,
        [
            (Column("block", "name"), lambda block: block.name),
            (Column("same experts", "num", tenths), lambda block: block.router_agreement),
            (Column("moved", "num", tenths), lambda block: block.router_moved),
            (Column("noisiest expert", "tight"), _noisiest_expert),
            (Column("least used expert", "tight"), _least_used_expert),
        ],
        "dense",
    )


def _noisiest_expert(block: BlockFacts) -> str | None:
    known = [(expert.noise, k) for k, expert in enumerate(block.experts) if expert.noise is not None]
    noise, worst = max(known, default=(None, None))
    return None if worst is None else f"{worst}: {_noise(noise)[0]}"


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


#: What a cell says, what its shade is made of (None: not measured, or without end), and what the page says below it.
Said = tuple[str | None, float | None, str]


def _map_blocks(
    title: str, lead: str, heads: Sequence[str], rows: Sequence[tuple[str, Sequence[Said]]], own_scales: int = 0
) -> list[Block]:
    """A table with shades; the first ``own_scales`` rows are compared within themselves, others with one another."""
    ends = [_range([row]) for row in rows[:own_scales]]
    ends += [_range(rows[own_scales:])] * (len(rows) - own_scales)
    cells = [
        (full, *(_shade_cell(said, own) for said in row), *[None] * (len(heads) - len(row)))
        for (full, row), own in zip(rows, ends, strict=True)
    ]
    table = Table(title, [Column("block", "name"), *(Column(head, "num") for head in heads)], cells, "heat")
    return [Heading(title), Paragraph(lead, "lead"), table if len(heads) <= _MOST_IN_TEXT else PageOnly([table])]


def _shade_cell(said: Said, ends: tuple[float, float]) -> Cell:
    """A cell whose colour is stronger where more is lost."""
    text, value, more = said
    low, high = ends
    if text is None or value is None:
        return text
    share = (value - low) / (high - low) if high > low else 0.5
    return [Span(text, f"shade shade-{round(_SHADES * share)}"), Span(more, "hint")]


def _range(rows: Sequence[tuple[str, Sequence[Said]]]) -> tuple[float, float]:
    known = [value for _, cells in rows for _, value, _ in cells if value is not None]
    return (min(known), max(known)) if known else (0.0, 1.0)


def _noise(noise: float | None) -> Said:
    """Decibels; the shade is their negative."""
    if noise is None or not noise > 0:
        return None if noise is None else decibels(math.inf), None, ""
    level = -10 * math.log10(noise)
    return decibels(level), -level, ""


def _nats(value: float | None) -> Said:
    return None if value is None else f"{number(value)} nats", value, ""


def _expert(expert: ExpertFacts) -> Said:
    text, value, _ = _noise(expert.noise)
    return text, value, percent(expert.share, 1)


def _place_text(k: int, starts: Sequence[int]) -> str:
    if k == 0:
        return "first token"
    if k + 1 == len(starts):
        return f"tokens from {starts[k]} on"
    last = starts[k + 1] - 1
    return f"token {starts[k]}" if last == starts[k] else f"tokens {starts[k]} to {last}"
