"""Lines for the terminal: how wide they are, how they break, which colours they have, what is safe to print."""

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

from quantmedic.engine.text import escape, visible, without_commands

Verbosity = Literal["quiet", "normal", "verbose"]
#: Puts a text into the colour of a style.
Paint = Callable[[str, str], str]
WIDTH = 100
#: Columns of the narrowest terminal that lines are broken for.
MIN_WIDTH = 40
ASCII = {
    "→": "->",
    "…": "..",
    "×": "x",
    "·": "-",
    "≥": ">=",
    "≤": "<=",
    "≠": "!=",
    "∞": "inf",
    "σ": "sigma",
    "–": "-",
    "±": "+-",
}
STYLES = {
    "bold": "1",
    "dim": "2",
    "degraded": "1;31",
    "not-comparable": "1;33",
    "undecided": "1;33",
    "failed": "1;31",
    "healthy": "1;32",
    "high": "31",
    "good": "32",
    "medium": "33",
    "help": "36",
}
#: What `paint_style` writes around a text.
_COLOR = re.compile(rf"(\x1b\[(?:0|{'|'.join(sorted(set(STYLES.values())))})m)")


def terminal_text(lines: Iterable[str], *, ascii_only: bool = False) -> str:
    """Lines as printed: harmless to terminals and continuous integration, and without characters that one lacks."""
    text = "\n".join(painted_line(line) for line in lines) + "\n"
    return _to_ascii(text) if ascii_only else text


def fit_text(text: str, columns: int) -> str:
    """Text for a terminal that is narrower than ``WIDTH``: what is longer goes on in the line below, indented."""
    return "".join(f"{piece}\n" for line in text.splitlines() for piece in _fitting(line, columns))


def _fitting(line: str, columns: int) -> list[str]:
    if len(_COLOR.sub("", line)) <= columns or _COLOR.search(line):
        return [line]
    indent = len(line) - len(line.lstrip())
    return wrap_line(line.lstrip(), indent=indent, width=max(columns, MIN_WIDTH)) or [line]


def wrap_line(
    text: str, indent: int = 0, hang: int = 2, width: int = WIDTH, most: int | None = None, *, whole_words: bool = False
) -> list[str]:
    """Text in lines of at most ``width`` columns.

    Args:
        text: One paragraph.
        indent: Spaces in front of the first line.
        hang: Spaces more in front of the others.
        width: Columns.
        most: So many lines at most, the last of which ends with an ellipsis where something is left out.
        whole_words: One that is longer than a line stays whole, so that a path can be copied; else it is cut.
    """
    return textwrap.wrap(
        text,
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hang),
        break_long_words=not whole_words,
        break_on_hyphens=False,
        max_lines=most,
        placeholder=" …",
    )


def paint_style(text: str, style: str) -> str:
    """Text in a colour of the terminal."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if text and style in STYLES else text


def plain(text: str, style: str) -> str:
    """Text as it is."""
    return text


def aligned_rows(rows: Sequence[Sequence[str]], to_the_left: Iterable[int]) -> Iterator[str]:
    """Rows of text in columns; those named stand to the left, all others to the right."""
    left = set(to_the_left)
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def painted_line(line: str) -> str:
    """One line without a character that a terminal obeys, but for our colours, and without a command of workflows."""
    parts = _COLOR.split(line)
    return without_commands("".join(part if place % 2 else visible(part) for place, part in enumerate(parts)))


def _to_ascii(text: str) -> str:
    for char, plain in ASCII.items():
        text = text.replace(char, plain)
    return "".join(char if char.isascii() else escape(char) for char in text)
