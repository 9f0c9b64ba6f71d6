"""JSON is read here: bounded in depth, in lists and objects, and in the digits of whole numbers."""

import json
import re
from pathlib import Path

from quantmedic.engine.input_files import read_text
from quantmedic.engine.reading_limits import DEPTH, DIGITS, JSON_LISTS, TEXT_BYTES, Limit, beyond_readers
from quantmedic.engine.text import whole

#: An escape that may be half of a character.
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def read_json(path: str | Path, limit: Limit = TEXT_BYTES) -> object:
    """The content of a JSON file.

    Raises:
        OSError: It cannot be read, or is no regular file.
        ValueError: It is not JSON in UTF-8; a ``JSONDecodeError`` knows line and column.
        LimitError: It is too large or too deep, or holds a number of too many digits.
    """
    return parse_json(read_text(path, limit), path)


def parse_json(text: str, where: str | Path) -> object:
    """The content of a JSON text; ``where`` is named in the errors of limits. Halves of characters become text.

    Raises:
        ValueError: It is not JSON; a ``JSONDecodeError`` knows line and column.
        LimitError: It is too deep, or holds a number of too many digits, or too many lists and objects.
    """
    JSON_LISTS.check(text.count("[") + text.count("{"), where)

    def whole_number(literal: str) -> int:
        DIGITS.check(len(literal.lstrip("-")), where)
        return int(literal)

    # Asked of every number, it would double the time that reading takes.
    suspect = re.search(rf"\d{{{DIGITS.in_force + 1}}}", text)
    try:
        content: object = json.loads(text, parse_int=whole_number if suspect else None)
    except RecursionError as error:
        raise beyond_readers(where) from error
    if not _within(content, DEPTH.in_force):
        raise DEPTH.error_for(where)
    return with_whole_text(content) if _HALF.search(text) else content


def with_whole_text(content: object) -> object:
    """Lists, tuples and tables of plain values, in whose texts no character is half a one."""
    if isinstance(content, str):
        return whole(content)
    if isinstance(content, dict):
        return {with_whole_text(key): with_whole_text(value) for key, value in content.items()}
    return type(content)(map(with_whole_text, content)) if isinstance(content, list | tuple) else content


def _within(content: object, levels: int) -> bool:
    """Whether lists and objects are nested in at most so many levels."""
    level = [content] if isinstance(content, list | dict) else []
    while level and levels > 0:
        inside = (part.values() if isinstance(part, dict) else part for part in level)
        level = [value for values in inside for value in values if isinstance(value, list | dict)]
        levels -= 1
    return not level
