"""Blocks: what a report is made of. They are made once; page, Markdown and console each render them their way.

A number stays a number in the cells of a table: its column says how people read it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, TypeVar
from urllib.parse import quote

from quantmedic.reports.charts.frame import Drawing
from quantmedic.reports.text import NOT_MEASURED, capital, number, visible

Record = TypeVar("Record")
#: Begins the target of a page of the manual that the page has within itself.
EMBEDDED = "embedded/"


@dataclass(frozen=True)
class Span:
    """A piece of text that stands out, or leads somewhere.

    Looks: code, and name of the network; strong, flag and struck as they say; a note stands below its line on the page
    and behind it elsewhere; a point is an entry below its entry of a list; a hint is shown by the page alone. Any other
    look is a class of the page. What leads to ``embedded/CODE`` leads to a page of the manual: the page has it within.
    """

    text: Annotated[str, "the text"]
    look: Annotated[str, "how it is set; empty for plain text"] = ""
    target: Annotated[str, "#anchor of the page, file beside the report, or page of the manual without suffix"] = ""


#: Text, or pieces of it.
Inline = str | Span | Sequence[Any]  # Any: Inline, which mypy does not follow within a sequence
#: What a cell holds; None where it was not measured.
Cell = float | Inline | None


class Block(Protocol):
    """What a section is made of; renderers go by its kind."""

    kind: ClassVar[str]


@dataclass(frozen=True)
class Paragraph:
    """A sentence or several."""

    kind: ClassVar[str] = "paragraph"
    text: Annotated[Inline, "what it says"]
    look: Annotated[str, "lead or muted; empty for plain text"] = ""


@dataclass(frozen=True)
class Bullets:
    """A list."""

    kind: ClassVar[str] = "bullets"
    items: Annotated[Sequence[Inline], "one text per entry"]
    look: Annotated[str, "class of the page; empty for a plain list"] = ""
    ordered: Annotated[bool, "entries are numbered"] = False
    looks: Annotated[Sequence[str], "class of each entry; none where all look alike"] = ()


@dataclass(frozen=True)
class Heading:
    """A title inside a section."""

    kind: ClassVar[str] = "heading"
    text: Annotated[Inline, "the title, as a phrase"]
    level: Annotated[int, "3 right below that of a section, 4 and 5 below"] = 3


@dataclass(frozen=True)
class Code:
    """Text to copy."""

    kind: ClassVar[str] = "code"
    text: Annotated[str, "the text"]
    file: Annotated[str, "file beside the report that holds it, so that the console need not; empty for none"] = ""


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    head: Annotated[Inline, "what it is called, as a phrase; empty for a column of marks"]
    look: Annotated[str, "num, bar (num with a bar of that share), name, tight or whole (never broken); else words"] = (
        ""
    )
    form: Annotated[Callable[[float], str], "how a number is written"] = number
    brief: Annotated[bool, "the console has room for it"] = True

    @property
    def is_number(self) -> bool:
        """Stands to the right."""
        return self.look in ("num", "bar")


@dataclass(frozen=True)
class Table:
    """Rows of cells, one for each column; the first that is no number names its row."""

    kind: ClassVar[str] = "table"
    label: Annotated[str, "what the table is called where it is not seen"]
    columns: Annotated[Sequence[Column], "the columns"]
    rows: Annotated[Sequence[Sequence[Cell]], "the rows"]
    look: Annotated[str, "class of the page"] = ""
    flagged: Annotated[frozenset[int], "places of rows that stand out"] = frozenset()

    @property
    def head_place(self) -> int:
        """Place of the column that names the rows."""
        return next((place for place, column in enumerate(self.columns) if not column.is_number), 0)


@dataclass(frozen=True)
class Figure:
    """A graph, or why there is none."""

    kind: ClassVar[str] = "figure"
    chart: Annotated[Drawing, "what to draw"]


@dataclass(frozen=True)
class Picture:
    """One sample."""

    uri: Annotated[str, "the picture as a data URI"]
    alt: Annotated[str, "what it is, for those who cannot see it"]
    caption: Annotated[str, "class, or what is odd about it; may be empty"]
    odd: Annotated[bool, "kept because it is the extreme of its set"]
    wrong: Annotated[bool, "blank, or not finite: no sample should be"]
    width: Annotated[int, "pixels across"]
    height: Annotated[int, "pixels down"]


@dataclass(frozen=True)
class Pictures:
    """Samples beside each other: those that stand for a set first, then odd ones."""

    kind: ClassVar[str] = "pictures"
    pictures: Annotated[Sequence[Picture], "the samples"]
    file: Annotated[str, "path of the same as one PNG file, relative to the report"]
    span: Annotated[str, "least and largest value of the pictures that stand for the set"]
    alt: Annotated[str, "what the file shows"]


@dataclass(frozen=True)
class Facts:
    """What is known of something."""

    kind: ClassVar[str] = "facts"
    rows: Annotated[Sequence[tuple[str, Inline]], "each fact with what it is called"]


@dataclass(frozen=True)
class Tabs:
    """Ways to do the same, of which the page shows one at a time and the console the first."""

    kind: ClassVar[str] = "tabs"
    key: Annotated[str, "tells them from others of the page"]
    ways: Annotated[Sequence[tuple[str, Sequence[Block]]], "each way with what it is called"]
    first_is_own: Annotated[bool, "the reader uses the first: what cannot fold the others names them"] = False

    @property
    def parts(self) -> Sequence[Sequence[Block]]:
        """The content of each."""
        return [blocks for _, blocks in self.ways]


@dataclass(frozen=True)
class Details:
    """What the page folds."""

    kind: ClassVar[str] = "details"
    summary: Annotated[Inline, "what is inside, as a phrase"]
    blocks: Annotated[Sequence[Block], "the content"]
    look: Annotated[str, "class of the page"] = ""
    anchor: Annotated[str, "id on the page; empty where nothing leads there"] = ""


@dataclass(frozen=True)
class PageOnly:
    """What only the page has room for."""

    kind: ClassVar[str] = "page-only"
    blocks: Annotated[Sequence[Block], "the content"]


@dataclass(frozen=True)
class Tool:
    """What the program of the page draws by itself; blocks stand for it where there is no program."""

    kind: ClassVar[str] = "tool"
    name: Annotated[str, "what the program knows it by"]
    blocks: Annotated[Sequence[Block], "the same without a program"]
    instead: Annotated[str, "what a page with a program says in their place where it does not run; empty: blocks"] = ""


@dataclass(frozen=True)
class Beside:
    """Parts that stand beside each other where there is room."""

    kind: ClassVar[str] = "beside"
    parts: Annotated[Sequence[Sequence[Block]], "the parts"]


@dataclass(frozen=True)
class Panel:
    """What belongs together."""

    kind: ClassVar[str] = "panel"
    label: Annotated[str, "what it is called where it is not seen"]
    blocks: Annotated[Sequence[Block], "the content"]


@dataclass(frozen=True)
class Section:
    """A part of a report with a title of its own."""

    anchor: Annotated[str, "id on the page"]
    title: Annotated[Inline, "heading"]
    short: Annotated[str, "what the page's table of contents calls it"]
    blocks: Annotated[Sequence[Block], "the content"]


@dataclass(frozen=True)
class Document:
    """A report of its own, beside that of a diagnosis: a comparison, or what a search has found."""

    kind: Annotated[str, "what kind of report it is"]
    title: Annotated[str, "what it is about"]
    word: Annotated[str, "the answer in one word; empty where there is none"]
    look: Annotated[str, "verdict of a report whose look the word has"]
    facts: Annotated[Sequence[str], "what the answer rests on, or what was searched, as phrases"]
    notices: Annotated[Sequence[str], "why figures may mislead, as phrases"]
    sections: Annotated[Sequence[Section], "what was found"]
    reading: Annotated[str, "what the manual page says"]
    page: Annotated[str, "name of the manual page"]
    start: Annotated[str, "anchor of what most readers want first"] = "part-1"


def make_table(
    label: str,
    records: Iterable[Record],
    columns: Sequence[tuple[Column, Callable[[Record], Cell]]],
    look: str = "",
    flagged: Callable[[Record], object] | None = None,
) -> Table:
    """A table of records: each column with what it shows of one."""
    known = list(records)
    rows = [tuple(cell(record) for _, cell in columns) for record in known]
    marked = frozenset(place for place, record in enumerate(known) if flagged is not None and flagged(record))
    return Table(label, [column for column, _ in columns], rows, look, marked)


def cell_text(cell: Cell, column: Column) -> Inline | None:
    """What stands in a cell; None where it was not measured."""
    if isinstance(cell, int | float):
        return column.form(cell)
    return None if cell == NOT_MEASURED else cell


def all_blocks(blocks: Iterable[Block]) -> Iterator[Block]:
    """Blocks, and all within them."""
    for block in blocks:
        yield block
        for part in block.parts if isinstance(block, Beside | Tabs) else [getattr(block, "blocks", ())]:
            yield from all_blocks(part)


def anchor(code: str) -> str:
    """Id of a manual page embedded in the report."""
    return f"manual-{code.replace('/', '-')}"


def layer_target(name: str) -> str:
    """Where the page shows a layer."""
    return f"#layer={quote(visible(name), safe='')}"


def joined(parts: Sequence[Inline], between: str = ", ") -> Inline:
    """Texts in one, with something between them."""
    return [piece for place, part in enumerate(parts) for piece in ((between, part) if place else (part,))]


def capitalized(text: Inline) -> Inline:
    """A phrase as the beginning of a sentence."""
    if isinstance(text, str):
        return capital(text)
    if isinstance(text, Span):
        return Span(capital(text.text), text.look, text.target) if text.look not in ("code", "name") else text
    return [capitalized(text[0]), *text[1:]] if text else text
