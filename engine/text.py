"""Text that is safe to copy: names as literals without any character that markup or terminals act upon."""

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

#: What continuous integration takes for a command of its own: GitHub ``::`` at the head of a line and ``##[`` anywhere,
#: Azure ``##vso[``, TeamCity ``##teamcity[``.
_WORKFLOW_COMMAND = re.compile(r"^(\s*):(?=:)|#(?=#\w*\[)")


def escape(char: str) -> str:
    """A character as the escape that Python and JSON read back."""
    code = ord(char)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def visible(text: str, limit: int | None = None) -> str:
    """Show control, bidi and other unprintable characters as ``\\uXXXX``; shorten in the middle beyond ``limit``."""
    shown = text if text.isprintable() else "".join(c if c.isprintable() else escape(c) for c in text)
    if limit is None or len(shown) <= limit:
        return shown
    head = (limit - 1) // 2
    return f"{shown[:head]}…{shown[len(shown) - (limit - 1 - head) :]}"


def whole(text: str) -> str:
    """Text without halves of characters (surrogates), which no encoding has: they are shown as ``\\uXXXX``.

    Names of files that are no UTF-8 hold them, and escapes of JSON can write them.
    """
    return text.encode("utf-8", "backslashreplace").decode()


def inert_line(line: str) -> str:
    """One line without a character that a terminal obeys, which no continuous integration takes for a command."""
    return without_commands(visible(line))


def without_commands(line: str) -> str:
    """A line that no continuous integration takes for a command of its own."""
    return _WORKFLOW_COMMAND.sub(lambda match: (match[1] or "") + escape(match[0][-1]), line)


def inert(text: str) -> str:
    """Text without any character that markup or terminals act upon."""
    return "".join(c if c.isprintable() and c not in "<>&`" else escape(c) for c in text)


def quote(name: str) -> str:
    """A name as a double-quoted literal, exact, without any character that markup or terminals act upon."""
    return inert(json.dumps(name, ensure_ascii=False))


def suggest(name: str, known: Iterable[str]) -> str:
    """The nearest known name, as the end of a message that says that a name is unknown; empty where none is near."""
    near = get_close_matches(str(name), list(known), n=1)  # a key of YAML may be anything
    return f"; did you mean {near[0]!r}?" if near else ""


def literal(value: object) -> str:
    """Names, numbers and tables of them that Python, JSON and YAML read alike."""
    if isinstance(value, Mapping):
        rows = ", ".join(f"{quote(name)}: {literal(row)}" for name, row in value.items())
        return f"{{{rows}}}"
    if isinstance(value, str | bool):
        return quote(value) if isinstance(value, str) else json.dumps(value)
    if isinstance(value, Iterable):
        return f"[{', '.join(map(literal, value))}]"
    return f"{value:.7g}" if isinstance(value, float) else str(value)
