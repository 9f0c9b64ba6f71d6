"""Hostile values, and mutations of bytes and of lines of text.

Every mutator takes content and a random generator and gives other content; equal generators give equal content.
"""

import copy
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from builders.hostile import HOSTILE_NAMES

Mutator = Callable[[bytes, random.Random], bytes]

#: Stand for what ``json.dumps`` does not write: nesting without end, and integers of thousands of digits.
DEEP, LONG = "@deep@", "@long@"
LONG_NUMBER = "9" * 6000
_WORDS = (
    "nan inf 1e999 -0 null 0x10 ../../evil /etc/passwd ~root a/../b {x} %s%n =cmd() -o --help a:b %2e%2e ٣ é \ufeff"
)
_CONTROLS = (
    "bell\x07|title\x1b]0;owned\x07|c1\x9b31m|line\u2028end|back\b\b|carriage\rreturn|del\x7f|\u2066isolate|a\x00b"
)
STRINGS = (
    *(name for name in HOSTILE_NAMES if len(name) < 100),
    *("", " ", "x" * 5000),
    *_WORDS.split(),
    *_CONTROLS.split("|"),
)
_INTEGERS = (0, -1, 1, 2, 3, 7, *(2**bits for bits in (7, 8, 16, 31, 32, 63, 64)), 127, 255, 65535, 2**31 - 1, -(2**63))
FLOATS = (
    *map(float, _INTEGERS),
    0.5,
    -0.0,
    1.5,
    1e-320,
    1e38,
    3.5e38,
    1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
)
NUMBERS: tuple[Any, ...] = (*_INTEGERS, 2**63 - 1, 2**53 + 1, 10**400, *FLOATS[len(_INTEGERS) :])
OTHERS: tuple[Any, ...] = (
    None,
    True,
    False,
    [],
    {},
    [[]],
    [None],
    {"": {}},
    [0] * 1000,
    {"a": [1, "b", None]},
    DEEP,
    LONG,
)


def any_value(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(rng.choice((STRINGS, NUMBERS, NUMBERS, OTHERS))))


def near_value(value: Any, rng: random.Random) -> Any:
    """Another value, mostly one of the same kind: it comes further than one of another."""
    if rng.random() < 0.25:
        return any_value(rng)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return rng.choice((*NUMBERS, value + 1, -value, value * 1000))
    if isinstance(value, str):
        return rng.choice((*STRINGS, value.upper(), value[: len(value) // 2], value + rng.choice(STRINGS)))
    return any_value(rng)


def times(rng: random.Random) -> range:
    """How often a content is changed: mostly once."""
    return range(rng.choice((1, 1, 1, 2, 2, 3, 5)))


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flipped, written over, left out, doubled and cut off."""
    data = bytearray(content)
    for _ in times(rng):
        at = rng.randrange(len(data) + 1)
        length = rng.choice((1, 1, 2, 4, 8, 64))
        change = rng.randrange(6)
        if change == 0:
            del data[at : at + length]
        elif change == 1:
            data[at:at] = data[at : at + length] * rng.choice((1, 2, 100))
        elif change == 2:
            data[at : at + length] = rng.choice((b"\x00", b"\xff", b"\x80", b"\x7f")) * length
        elif change == 3 and rng.random() < 0.3:
            del data[at:]
        elif data:
            data[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
    return bytes(data)


_TOKEN = re.compile(r"(?P<number>-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)|\"(?P<quoted>[^\"\n]*)\"|(?P<word>[A-Za-z_][\w.-]*)")


def mutate_lines(content: bytes, rng: random.Random) -> bytes:
    """Tokens replaced by others of their kind or of the file; lines left out, doubled, moved, cut off."""
    lines = content.decode("utf-8", "replace").split("\n")
    for _ in times(rng):
        at = rng.randrange(len(lines))
        change = rng.randrange(12)
        if change == 0 and len(lines) > 1:
            del lines[at]
        elif change == 1:
            lines[at:at] = [lines[at]] * rng.choice((1, 2, 500))
        elif change == 2:
            lines.insert(rng.randrange(len(lines)), lines[at])
        elif change == 3:
            lines[at] = lines[at] + rng.choice(STRINGS)
        elif change == 4:
            lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
        else:
            lines[at] = _other_token(lines, lines[at], rng)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _other_token(lines: Sequence[str], line: str, rng: random.Random) -> str:
    found = list(_TOKEN.finditer(line))
    if not found:
        return line + rng.choice(STRINGS)
    token = rng.choice(found)
    if token["number"] is not None:
        new = rng.choice((*map(str, FLOATS), *map(str, _INTEGERS), LONG_NUMBER))
    elif token["quoted"] is not None:
        new = '"' + rng.choice(STRINGS).translate({34: "'", 10: "\\n", 0: "\\u0000", 27: "\\u001b"}) + '"'
    else:
        others = _TOKEN.findall(rng.choice(lines))
        new = rng.choice([*("".join(each) for each in others), *STRINGS, "true", "[]", "{}", "1979-05-27"])
    return line[: token.start()] + new + line[token.end() :]
