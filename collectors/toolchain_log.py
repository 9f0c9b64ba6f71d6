"""Logs of toolchains, read as text: patterns that the rule base holds tell which facts a line states."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from quantmedic.collectors.messages import missing
from quantmedic.engine.errors import DataError
from quantmedic.engine.facts import SearchFacts
from quantmedic.engine.rule import LogPattern

#: Bytes of one log that are read: the beginning, which states the settings, and the end, which states how it went.
MAX_BYTES = 16 << 20
#: Longer lines are cut: they hold arrays, not messages.
MAX_LINE = 2000
#: Characters of a line that a fact keeps.
SHOWN = 200


def read_logs(paths: Iterable[str | Path], patterns: Sequence[LogPattern]) -> SearchFacts:
    """What the logs tell of the toolchain's search; empty where none was given.

    Nothing in a log is executed, and what matches no pattern is ignored. A log that was read and does not complain
    about its target makes ``unreachable`` False.

    Raises:
        DataError: A file cannot be read.
    """
    found: dict[str, Any] = {}
    compiled = [(pattern, re.compile(pattern.pattern)) for pattern in patterns]
    for path in paths:
        found.setdefault("unreachable", False)
        for line in _lines(Path(path).expanduser()):
            for pattern, expression in compiled:
                match = expression.search(line)
                if match is not None:
                    _learn(found, pattern, match, line)
    return SearchFacts(**found)


def _learn(found: dict[str, Any], pattern: LogPattern, match: re.Match[str], line: str) -> None:
    """Add what one line states: the first word stands, but of images the smallest number counts."""
    stated: dict[str, Any] = {**pattern.sets}
    for name, text in match.groupdict().items():
        value = _value(name, text)
        if value is not None:
            stated[name] = value
    found.setdefault("toolchain", pattern.toolchain)
    for name, value in stated.items():
        if name == "images":
            found[name] = min(found.get(name, value), value)
        elif name == "unreachable":
            found[name] = found.get(name) or value
        else:
            found.setdefault(name, value)
    if stated.get("unreachable") and "line" not in found:
        found["line"] = line.strip()[:SHOWN]


def _value(name: str, text: str | None) -> Any:
    """A word of the log as the fact's type; None where it is no such thing."""
    if text is None:
        return None
    try:
        return getattr(SearchFacts.model_validate({name: text}), name)
    except ValidationError:
        return None


def _lines(path: Path) -> Iterator[str]:
    if not path.is_file():
        raise missing(path, "toolchain log", otherwise="")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES // 2)
            rest = max(path.stat().st_size - MAX_BYTES // 2, file.tell())
            file.seek(rest)
            content += b"\n" * (rest > len(content)) + file.read(MAX_BYTES // 2)
    except OSError as error:
        raise DataError("toolchain log cannot be read", where=f"{path}: {error.strerror or error}") from error
    if b"\0" in content[:4096]:
        raise DataError("toolchain log is not text", where=str(path), help="give what the tool printed, as plain text")
    for line in content.splitlines():
        yield line[:MAX_LINE].decode("utf-8", errors="replace")
