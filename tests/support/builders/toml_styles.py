"""TOML written in any style, with the line of every key."""

import json
import random
from collections.abc import Iterator
from datetime import date
from typing import Any

#: Place of a table, key or list item.
Key = tuple[str | int, ...]


class Writer:
    """Writes a table in a style that dice decide, and notes the line of every key."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.text = ""
        self.lines: dict[Key, int] = {}

    def write(self, tree: dict[str, Any], above: tuple[str, ...] = ()) -> str:
        """The document, the tree in its table ``above``."""
        if above:
            self._header("[", above, above)
        self._table(above, above, tree)
        return self.text

    @property
    def line(self) -> int:
        return self.text.count("\n") + 1

    def _table(self, name: tuple[str, ...], path: Key, tree: dict[str, Any]) -> None:
        later = []
        for key, value in self._shuffled(tree):
            tables = isinstance(value, dict) or (isinstance(value, list) and value and _all_tables(value))
            if tables and self.dice.random() < 0.7:
                later.append((key, value))
            elif isinstance(value, dict) and value and self.dice.random() < 0.5:
                self._dotted((key,), (*path, key), value)
            else:
                self._pair((key,), (*path, key), value)
        for key, value in later:
            if isinstance(value, dict):
                self._header("[", (*name, key), (*path, key))
                self._table((*name, key), (*path, key), value)
            else:
                self.lines.setdefault((*path, key), self.line + 1)
                for number, each in enumerate(value):
                    self._header("[[", (*name, key), (*path, key, number))
                    self._table((*name, key), (*path, key, number), each)

    def _header(self, opening: str, name: tuple[str, ...], path: Key) -> None:
        self.text += "\n" + self.dice.choice(("", " ", "\t")) + opening
        for depth in range(1, len(path)):
            self.lines.setdefault(path[:depth], self.line)
        self.lines[path] = self.line
        self.text += self._name(name) + opening.replace("[", "]") + self._end()

    def _dotted(self, name: tuple[str, ...], path: Key, tree: dict[str, Any]) -> None:
        for key, value in self._shuffled(tree):
            self.lines.setdefault(path, self.line)
            if isinstance(value, dict) and value and self.dice.random() < 0.5:
                self._dotted((*name, key), (*path, key), value)
            else:
                self._pair((*name, key), (*path, key), value)

    def _pair(self, name: tuple[str, ...], path: Key, value: Any) -> None:
        self.lines[path] = self.line
        self.text += self._name(name) + self.dice.choice(("=", " = "))
        self._value(path, value)
        self.text += self._end()

    def _value(self, path: Key, value: Any) -> None:
        if isinstance(value, dict):
            self.text += "{"
            for place, (key, each) in enumerate(self._shuffled(value)):
                self.text += ", " if place else ""
                self.lines[(*path, key)] = self.line
                self.text += self._name((key,)) + " = "
                self._value((*path, key), each)
            self.text += "}"
        elif isinstance(value, list):
            self.text += "["
            for number, each in enumerate(value):
                self.text += self.dice.choice(("", "\n", "# [not = 1]\n  \n"))
                self.lines[(*path, number)] = self.line
                self._value((*path, number), each)
                self.text += self.dice.choice((",", "\n ,")) if number + 1 < len(value) else ""
            self.text += self.dice.choice(("", ",\n", "\n")) if value else self.dice.choice(("", "\n"))
            self.text += "]"
        else:
            self.text += self._scalar(value)

    def _scalar(self, value: Any) -> str:
        if isinstance(value, str):
            return self.dice.choice(list(_spellings(value)))
        if isinstance(value, bool):
            return "true" if value else "false"
        return value.isoformat() if isinstance(value, date) else repr(value)

    def _name(self, parts: tuple[str, ...]) -> str:
        bare = "abcdefghijklmnopqrstuvwxyz0123456789-_"
        written = [
            part if part and set(part) <= set(bare) and self.dice.random() < 0.7 else _basic(part) for part in parts
        ]
        return self.dice.choice((".", " . ")).join(written)

    def _end(self) -> str:
        return self.dice.choice(("\n", "  # a = '\n", "\r\n", "\n\n"))

    def _shuffled(self, tree: dict[str, Any]) -> list[tuple[str, Any]]:
        return self.dice.sample(list(tree.items()), len(tree))


def _all_tables(values: list[Any]) -> bool:
    return all(isinstance(each, dict) for each in values)


def _basic(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _spellings(text: str) -> Iterator[str]:
    yield _basic(text)
    yield '"""\n' + _basic(text)[1:-1].replace("\\n", "\n") + '"""'
    if text.isprintable() and "'" not in text:
        yield f"'{text}'"
        yield f"'''\n{text}'''"
