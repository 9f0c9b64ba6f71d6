"""Patterns by which configurations name modules, matched against names without trusting either.

A regular expression of a stranger may run for years: one whose repetitions are nested, or more than a few, is not
matched, and nothing is said of it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

#: Repetitions without an end in one expression, and the characters of a name that are looked at.
_MOST_REPEATS, _MOST_CHARACTERS = 3, 300
_MOST_LENGTH = 500
#: A class of modules by its name, such as Linear.
_CLASS = re.compile(r"[A-Z]\w*", re.ASCII)
_REPEATS = re.compile(r"[*+]|\{\d*,\d*\}")
#: What no nested repetition can do without: a repetition behind a group that holds one, or behind another.
_NESTED = re.compile(r"[*+?}][*+{]|\)[*+{]|\\\d|\(\?P=")


@dataclass(frozen=True)
class NamePattern:
    """How a configuration names modules.

    Attributes:
        text: As it stands there.
        matches: Tells whether it means a name; None where that is not decided by names, or not safely.
        is_name: It means the module of this very name.
    """

    text: str
    matches: Callable[[str], bool] | None
    is_name: bool = False


def exact_or_regex(text: str) -> NamePattern:
    """As compressed-tensors reads it: ``re:`` and a regular expression, the name of a class, or a name."""
    if text.startswith("re:"):
        return NamePattern(text, expression(text.removeprefix("re:")))
    if _CLASS.fullmatch(text):
        return NamePattern(text, None)
    return NamePattern(text, lambda name: name == text, is_name=True)


def dynamic_key(text: str) -> NamePattern:
    """As GPTQModel reads it: a regular expression, behind a sign."""
    return NamePattern(text, expression(text.removeprefix("-:").removeprefix("+:")))


def part_of_name(text: str) -> NamePattern:
    """As AutoAWQ and transformers read it: a name that holds it."""
    return NamePattern(text, lambda name: text in name)


def wildcard(text: str) -> NamePattern:
    """As ModelOpt reads it: a name with stars, or the beginning of one."""
    return NamePattern(text, lambda name: fnmatchcase(name, text) or name.startswith(f"{text}."))


@cache
def expression(text: str) -> Callable[[str], bool] | None:
    """Matches the beginning of names; None where the expression is wrong or could take too long."""
    if len(text) > _MOST_LENGTH or len(_REPEATS.findall(text)) > _MOST_REPEATS or _NESTED.search(text):
        return None
    try:
        compiled = re.compile(text)
    except (re.error, RecursionError, OverflowError):
        return None
    return lambda name: compiled.match(name[:_MOST_CHARACTERS]) is not None
