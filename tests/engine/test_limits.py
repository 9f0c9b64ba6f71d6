"""Limits: one wording, raised by the environment; and readers that no file can hurt."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from quantmedic.engine import reading_limits
from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.input_files import read_bytes
from quantmedic.engine.json_text import parse_json
from quantmedic.engine.reading_limits import (
    DEPTH,
    DIGITS,
    JSON_LISTS,
    LIMITS,
    TEXT_BYTES,
    YAML_VALUES,
    Limit,
    LimitError,
)
from quantmedic.engine.yaml_text import NotYaml, compose_yaml, parse_yaml

ROWS = Limit("rows", "a table", "rows", 10, option="--rows")


def test_the_wording_says_what_how_large_the_limit_and_what_raises_it() -> None:
    with pytest.raises(LimitError) as caught:
        ROWS.check(12, "table.csv")
    assert str(caught.value).splitlines() == [
        "a table has too many rows: 12 rows, the limit is 10 rows",
        "  table.csv",
        "help: raise the limit with --rows, or QUANTMEDIC_MAX_ROWS=20, if you trust it",
    ]


def test_bytes_are_told_in_mebibytes() -> None:
    with pytest.raises(LimitError, match=re.escape("too many bytes: 80.0 MiB, the limit is 64.0 MiB")):
        TEXT_BYTES.check(80 << 20, "x")


def test_the_environment_raises_and_lowers_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    ROWS.check(10, "table.csv")
    monkeypatch.setenv("QUANTMEDIC_MAX_ROWS", "12")
    ROWS.check(12, "table.csv")
    with pytest.raises(LimitError, match="the limit is 12 rows"):
        ROWS.check(13, "table.csv")
    for text in ("", "0", "-1", "1e3", "many", "٣", "9" * 30):
        monkeypatch.setenv("QUANTMEDIC_MAX_ROWS", text)
        with pytest.raises(QuantmedicError, match="QUANTMEDIC_MAX_ROWS"):
            ROWS.check(1, "table.csv")


def test_every_limit_is_in_the_table() -> None:
    defined = {each for each in vars(reading_limits).values() if isinstance(each, Limit)}
    assert defined == set(LIMITS) and len({each.name for each in LIMITS}) == len(LIMITS)


DEEP = {
    "lists": "[" * 100_000 + "]" * 100_000,
    "open lists": "[" * 100_000,
    "mappings": "{a: " * 100_000,
    "blocks": "- " * 100_000,
    "keys": "? " * 100_000,
    "tags": "!!seq [" * 100_000,
    "aliases": "\n".join(["a0: &a0 [x]", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 5000))]),
}


def test_deep_yaml_ends_neither_the_process_nor_its_time() -> None:
    code = (
        "from quantmedic.engine.yaml_text import compose_yaml, parse_yaml\n"
        "from quantmedic.engine.reading_limits import LimitError\nimport json, sys\n"
        "for name, text in json.load(sys.stdin).items():\n    for read in (compose_yaml, parse_yaml):\n"
        "        try:\n            read(text, name)\n        except LimitError as error:\n            print(error)"
    )
    given = json.dumps(DEEP)
    done = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    refused = "a file of nested lists and tables has too many levels: more"
    assert done.stdout.count(refused) == 2 * len(DEEP), done.stdout


MERGES = "a0: &a0 {k: 1}\n" + "\n".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 9))


@pytest.mark.thorough
def test_yaml_that_stands_for_too_much_is_refused() -> None:
    doubled = "a0: &a0 [x, x]\n" + "\n".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 30))
    for text in (MERGES, doubled, "[" + "1," * (YAML_VALUES.most + 1) + "]"):
        with pytest.raises(LimitError, match="a YAML file, its aliases written out, has too many values"):
            parse_yaml(text, "bomb.yaml")


def test_aliases_and_merges_within_the_limits_are_read() -> None:
    text = "a: &a {x: 1, y: [2]}\nb: *a\nc: {<<: *a, x: 3}\n"
    assert parse_yaml(text, "x") == {"a": {"x": 1, "y": [2]}, "b": {"x": 1, "y": [2]}, "c": {"x": 3, "y": [2]}}
    assert parse_yaml("", "x") is None and compose_yaml("", "x") is None


def test_what_is_no_yaml_is_told_with_its_line(subtests: pytest.Subtests) -> None:
    for text, problem, line in [
        ("a: 1\nb: &b [*b]\n", "a value holds itself", 2),
        ("a: 1\nb: *c\n", "found undefined alias", 2),
        ("a: [1,\n", "did not find expected node content", 2),
        ("a: !!timestamp x", "a value cannot be read", None),
        ("a: !!bool x", "a value cannot be read", None),
        ("a: !!int ''", "a value cannot be read", None),
        ("a: 2026-13-45", "a value cannot be read", None),
        ("a: !!float x", "a value cannot be read", None),
        ("a: !!python/name:os.system x", "could not determine a constructor", 1),
        ("a: 1\nb: \ud800", "it holds half of a character", 2),
    ]:
        with subtests.test(text=text, problem=problem, line=line):
            with pytest.raises(NotYaml) as caught:
                parse_yaml(text, "x")
            assert problem in caught.value.problem and caught.value.line == line


def test_whole_numbers_of_hundreds_of_digits_are_refused() -> None:
    for number in ("9" * 301, "-" + "9" * 400, "0x" + "f" * 400, "1:00" + ":59" * 4000, "1_0" * 200):
        with pytest.raises(LimitError, match="a whole number has too many digits"):
            parse_yaml(f"a: {number}", "x")


def test_deep_or_long_json_is_refused() -> None:
    for depth in (DEPTH.most + 1, 100_000):
        with pytest.raises(LimitError, match="too many levels"):
            parse_json("[" * depth + "]" * depth, "x")
    with pytest.raises(LimitError, match="too many digits"):
        parse_json(f'{{"a": -{"9" * (DIGITS.most + 1)}}}', "x")
    with pytest.raises(LimitError, match="too many lists and objects"):
        parse_json("[" * (JSON_LISTS.most + 1), "x")
    inside = {"a": [int("9" * DIGITS.most)], "b": "9" * 400}
    assert parse_json(json.dumps(inside), "x") == inside
    assert parse_json("[" * DEPTH.most + "]" * DEPTH.most, "x")


def test_halves_of_characters_in_json_become_text() -> None:
    text = json.dumps({"a\ud800": ["\udfff", {"b": "x\ude00\ud83d"}], "c": "😀 \\ud800"})
    assert parse_json(text, "x") == {"a\\ud800": ["\\udfff", {"b": "x\\ude00\\ud83d"}], "c": "😀 \\ud800"}


def test_pipes_devices_and_folders_are_never_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, "/dev/zero"):
        with pytest.raises(OSError, match="a pipe or a device"):
            read_bytes(path)
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)


def test_a_file_larger_than_its_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as stream:
        stream.truncate(1 << 40)  # a hole, not a terabyte
    with pytest.raises(LimitError, match="a file that is read whole has too many bytes"):
        read_bytes(path)
