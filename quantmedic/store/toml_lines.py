"""The lines of the keys of a TOML document, which tomllib does not give."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from quantmedic.engine.reading_limits import POLICY_DEPTH

#: Place of a table, key or list item: keys, and places in lists from 0.
Key = tuple[str | int, ...]
#: Strings, marks, words and line ends; blanks and comments fall between. Runs are possessive, so that none is searched
#: twice; groups are not, for Python 3.11.2 ends such groups too early.
_TOKEN = re.compile(
    r'''"""(?:[^"\\]++|\\.|"(?!""))*"{3,5}'''
    r"""|'''(?:[^']++|'(?!''))*'{3,5}"""
    r'''|"(?:[^"\\\n]++|\\.)*"'''
    r"""|'[^'\n]*+'"""
    r"""|[\[\]{}=,.\n]|[^\s"'#\[\]{}=,.]++|\#[^\n]*+|["']""",
    re.DOTALL,
)
_OPENING, _CLOSING = frozenset("[{"), frozenset("]}")
_END_OF_VALUE = frozenset(("", "\n", ",", "]", "}"))


class _Token(NamedTuple):
    text: str
    line: int


def key_lines(text: str) -> dict[Key, int]:
    """Line of every table, key and list item, the first line being 1.

    A table that is only implied, as ``a`` is by ``[a.b]``, stands where it is first implied.

    Args:
        text: A document that tomllib accepts.
    """
    return _Reader(list(_tokens(text))).lines_by_key()


def too_deep(text: str) -> int | None:
    """Line on which lists, tables or dotted names are nested beyond the limit; None where they are not.

    The text need not be valid, so that this can be checked before tomllib reads it, which takes time and memory with
    the square of the levels.
    """
    depth, dots, deepest = 0, 0, POLICY_DEPTH.in_force
    for token in _tokens(text):
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
        dots = dots + 1 if token.text == "." else 0 if token.text in _END_OF_VALUE or token.text == "=" else dots
        if max(depth, dots) > deepest:
            return token.line
    return None


def _tokens(text: str) -> Iterator[_Token]:
    line = 1
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token[0] != "#":
            yield _Token(token, line)
        line += token.count("\n")


@dataclass
class _Reader:
    """Walks over the tokens of a valid document and notes where each key stands."""

    tokens: list[_Token]
    lines: dict[Key, int] = field(default_factory=dict)
    _sizes: dict[Key, int] = field(default_factory=dict)
    _at: int = 0

    def lines_by_key(self) -> dict[Key, int]:
        table: Key = ()
        while self._next.text:
            if self._take("\n") or self._take("]"):
                continue
            if self._take("["):
                table = self._header(several=self._take("["))
            else:
                self._pair(table)
        return self.lines

    @property
    def _next(self) -> _Token:
        return self.tokens[self._at] if self._at < len(self.tokens) else _Token("", 0)

    def _take(self, text: str) -> bool:
        if self._next.text != text:
            return False
        self._at += 1
        return True

    def _header(self, *, several: bool) -> Key:
        """``[a.b]`` or ``[[a.b]]``: the table that it opens; lists of tables on its way stand for their last one."""
        line = self._next.line
        *above, last = self._name()
        path: Key = ()
        for key in above:
            path += (key,)
            self.lines.setdefault(path, line)
            if path in self._sizes:
                path += (self._sizes[path] - 1,)
        path += (last,)
        if several:
            self.lines.setdefault(path, line)
            self._sizes[path] = number = self._sizes.get(path, 0) + 1
            path += (number - 1,)
        self.lines[path] = line
        return path

    def _pair(self, table: Key) -> None:
        """``a.b = value``."""
        line, path = self._next.line, table
        for key in self._name():
            path += (key,)
            self.lines.setdefault(path, line)
        self._take("=")
        self._value(path)

    def _name(self) -> Iterator[str]:
        """A dotted name; quoted parts as tomllib reads them."""
        while True:
            part = self._next.text
            self._at += 1
            yield tomllib.loads(f"key = {part}")["key"] if part[:1] in ("'", '"') else part
            if not self._take("."):
                return

    def _value(self, path: Key) -> None:
        if self._take("["):
            self._items(path)
        elif self._take("{"):
            self._inline(path)
        else:
            self._at += 1
            while self._next.text not in _END_OF_VALUE:
                self._at += 1

    def _items(self, path: Key) -> None:
        number = 0
        while not self._take("]") and self._next.text:
            if not (self._take("\n") or self._take(",")):
                item = (*path, number)
                self.lines[item] = self._next.line
                self._value(item)
                number += 1

    def _inline(self, path: Key) -> None:
        while not self._take("}") and self._next.text:
            if not (self._take("\n") or self._take(",")):
                self._pair(path)
