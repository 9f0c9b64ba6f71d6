"""Maps of language models: cells stand where their figures belong, and say the same as the tables beside them."""

import re
from xml.etree import ElementTree

from builders.properties import examples
from builders.tables import column, shown, tables_of
from hypothesis import given
from hypothesis import strategies as some

from quantmedic.engine.case.facts import LanguageFacts
from quantmedic.engine.case.language_facts import BlockFacts, ExpertFacts, TextFacts
from quantmedic.reports.blocks import Table
from quantmedic.reports.sections.language_maps import TextBars, expert_map, position_map, texts_blocks
from quantmedic.reports.templating import html_environment

NOISES = some.none() | some.floats(0, 1e6, allow_nan=False)


def block(number: int, noise: tuple[float | None, ...] = (), experts: tuple[ExpertFacts, ...] = ()) -> BlockFacts:
    return BlockFacts(
        name=f"model.layers.{number}",
        noise_by_position=noise,
        experts=experts,
        router_agreement=0.9 if experts else None,
        router_moved=0.04 if experts else None,
    )


LANGUAGE = LanguageFacts(
    positions=(0, 1, 11, 12),
    kl_by_position=(0.1, 0.2, None, 0.05),
    kl_by_text=(0.1, 0.5, 0.2),
    worst_texts=(
        TextFacts(place=2, tokens=9, kl=0.5, beginning="<b>so | it goes"),
        TextFacts(place=3, tokens=8, kl=0.2),
    ),
    blocks=(
        block(0, (0.001, 0.01, 0.1, 0.0), (ExpertFacts(share=0.75, noise=0.1), ExpertFacts(share=0.25, noise=0.01))),
        block(1, (1e-4, None, 0.1, 0.01), (ExpertFacts(share=1.0, noise=0.001), ExpertFacts(share=0.0))),
    ),
)


def shades(table: Table) -> list[list[int | None]]:
    """How strong the colour of each cell is; None where it has none."""
    spans = [[cell[0] if isinstance(cell, list) else None for cell in cells] for _, *cells in table.rows]
    return [[None if span is None else int(span.look.rpartition("-")[2]) for span in row] for row in spans]


def test_cells_say_how_much_is_lost_where() -> None:
    (table,) = tables_of(position_map(LANGUAGE))
    heads = [column.head for column in table.columns]
    assert heads == ["block", "first token", "tokens 1 to 10", "token 11", "tokens from 12 on"]
    assert column(table, "block") == ["KL divergence", "model.layers.0", "model.layers.1"]
    assert shown(table)[1][1:] == ("30.0 dB", "20.0 dB", "10.0 dB", "∞ dB")
    assert shown(table)[2][1:] == ("40.0 dB", "-", "10.0 dB", "20.0 dB")
    (first, _, third, last) = shades(table)[2]
    assert first < last < third and shades(table)[2][1] is None, "more noise, more colour; none where not measured"
    assert shades(table)[1][2] == third, "blocks have one scale"


def test_experts_are_cells_of_their_block() -> None:
    table, routers = tables_of(expert_map(LANGUAGE))
    assert shown(table)[0][1:] == ("10.0 dB", "20.0 dB") and shown(table)[1][2] == "-"
    assert table.rows[0][1][1].text == "75.0 %"
    assert shown(routers)[1][1:3] == ("90.0 %", "4.0 %")
    assert shown(routers)[0][3:] == ("0: 10.0 dB", "1: 25.0 % of the choices")


def test_nothing_is_drawn_of_what_was_not_measured() -> None:
    empty = LanguageFacts(texts=1, blocks=(BlockFacts(name="h.0"),))
    assert position_map(empty) == expert_map(empty) == texts_blocks(empty) == []


def test_many_texts_are_as_many_bars_as_fit() -> None:
    blocks = texts_blocks(LanguageFacts(kl_by_text=tuple(float(k) for k in range(1, 1001))))
    found = next(block for block in blocks if isinstance(block, TextBars))
    assert len(found.bars) == 200
    heights = [height for _, height in found.bars]
    assert heights == sorted(heights, reverse=True) and heights[0] == found.size[1]
    assert found.summary == "1000 texts: 1 … 1000 nats per token, median 500"


@given(
    some.integers(1, 40).flatmap(
        lambda columns: some.lists(some.lists(NOISES, min_size=columns, max_size=columns), min_size=1, max_size=60)
    )
)
@examples(20)
def test_maps_are_sound_whatever_was_measured(noises: list[list[float | None]]) -> None:
    columns = len(noises[0])
    language = LanguageFacts(
        positions=tuple(range(columns)),
        kl_by_position=tuple(noises[0]),
        blocks=tuple(block(k, tuple(row)) for k, row in enumerate(noises)),
    )
    for table in tables_of(position_map(language)):
        assert all(len(row) == columns + 1 for row in table.rows)
        assert all(shade is None or 0 <= shade <= 9 for row in shades(table) for shade in row)


def test_drawings_are_escaped_and_parse() -> None:
    render = html_environment().get_template("_blocks.html").module.blocks
    text = str(render(texts_blocks(LANGUAGE), False))
    drawing = re.search(r"<svg.*?</svg>", text, re.DOTALL)
    assert drawing is not None and ElementTree.fromstring(drawing[0]).findall(".//rect")
    assert "<b>so" not in text
