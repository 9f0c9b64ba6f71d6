"""Texts that attack whoever prints them: terminals, logs of continuous integration, spreadsheets, markup."""

import re
from collections.abc import Iterator, Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError

ATTACKS = (
    "esc\x1b[31mred\x1b[2J\x1b[H",
    "link\x1b]8;;https://evil.example\x07text\x1b]8;;\x07",
    "title\x1b]0;owned\x07",
    "clipboard\x1b]52;c;b3duZWQ=\x1b\\",
    "dcs\x1bP+q544e\x1b\\apc\x1b_Gi=1\x1b\\",
    "c1\x9b31m\x9d8;;https://evil.example\x9c",
    "hidden\rREGRESSION",
    "back\x08\x08\x08\x08space\x7f",
    "bell\x07nul\x00",
    "bidi\u202eoverride\u2066isolate\u2069\u200f\u061c",
    "unseen\u200b\ufeff\u2060\u00ad\U000e0041",
    "line\n::error::owned",
    "lines\r\n::set-output name=x::owned\r\n",
    "other\u2028::error::owned\u2029::error::owned\x85::error::owned\x0b::error::owned\x0c::error::owned",
    "::error file=a,line=1::owned",
    " \t::stop-commands::owned",
    "##[error]owned",
    "##vso[task.setvariable variable=x]owned",
    "##teamcity[buildStop comment='owned']",
    "\n##[endgroup]\n##[command]owned",
    "=cmd|' /C calc'!A0",
    "@SUM(1+9)*cmd|' /C calc'!A0",
    '\t=HYPERLINK("https://evil.example")',
    "</script><script>alert(1)</script>",
    "{{7*7}}{% raw %}",
    "]]>&lt;![CDATA[",
    "surrogate\udcff\ud800",
    "[red]markup[/red] [link=https://evil.example]rich[/link]",
)
#: What GitHub, Azure and TeamCity obey, wherever it stands in a line.
_INSIDE = re.compile(r"##\w*\[")
#: Fields of a case whose texts are no names.
_DECIDING = {"op_type", "attributes", "format", "framework", "toolchain", "metric"}
Model = TypeVar("Model", bound=BaseModel)


def raw_places(text: str) -> list[str]:
    """Lines of an output that a terminal or a continuous integration would obey."""
    return [
        line
        for line in text.split("\n")
        if not line.replace("\t", " ").isprintable() or line.strip().startswith("::") or _INSIDE.search(line)
    ]


def attacked(record: Model) -> Model:
    """The record with attacks in turn at the heads of all texts that may be any: equal texts stay equal.

    A field is left as it is where the record refuses other texts, or where a text decides what is computed.
    """
    data = record.model_dump()
    paths = [path for path in _text_paths(data) if not _DECIDING & set(path)]
    free = {path for path in paths if _accepts(record, data, path)}
    texts = sorted(set(_texts(data)))
    able = [attack for attack in ATTACKS if "\ud800" not in attack]  # a lone surrogate is no text of a file
    attacks = {text: f"{able[place % len(able)]}{text}" for place, text in enumerate(texts)}
    return type(record).model_validate(_replace(data, (), free, attacks))


Path = tuple[str, ...]


def _text_paths(value: object, path: Path = ()) -> set[Path]:
    """Places of texts; all items of a list are one place."""
    if isinstance(value, dict):
        return set().union(*(_text_paths(item, (*path, str(key))) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return set().union(*(_text_paths(item, (*path, "*")) for item in value))
    return {path} if isinstance(value, str) else set()


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _accepts(record: BaseModel, data: dict[str, object], path: Path) -> bool:
    attacks = {text: f"{ATTACKS[0]}{text}" for text in _texts(data)}
    try:
        type(record).model_validate(_replace(data, (), {path}, attacks))
    except ValidationError:
        return False
    return True


def _replace(value: object, path: Path, wanted: set[Path], attacks: Mapping[str, str]) -> object:
    if isinstance(value, dict):
        return {key: _replace(item, (*path, str(key)), wanted, attacks) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_replace(item, (*path, "*"), wanted, attacks) for item in value)
    return attacks[value] if isinstance(value, str) and path in wanted else value
