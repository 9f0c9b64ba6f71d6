"""Lines of the keys of a TOML document, against a writer that knows where it wrote them."""

import tomllib
from collections.abc import Iterator
from datetime import date
from typing import Any

from builders.properties import examples
from builders.toml_styles import Writer
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.reading_limits import POLICY_DEPTH
from quantmedic.store.toml_lines import Key, key_lines, too_deep

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=12) | st.sampled_from(
    ("[check]", "a = 1\n[b]\n", '"""', "'''", "# no", "\\", "]", "}", ",", "\r\n", "q''", '""')
)
SCALARS = st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False) | st.dates(date(1, 1, 1)) | TEXTS
NAMES = st.sampled_from(("check", "a", "b-1", "1.5", "ignore", "#", "[x]", "ß", "", '"', "a b"))
TREES = st.dictionaries(
    NAMES,
    st.recursive(
        SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
    ),
    max_size=4,
)


@examples(300)
@given(TREES, st.integers(0, 2**32))
def test_every_key_is_on_the_line_that_it_was_written_on(tree: dict[str, Any], seed: int) -> None:
    writer = Writer(seed)
    text = writer.write(tree)
    assert tomllib.loads(text) == tree
    assert key_lines(text) == writer.lines
    assert too_deep(text) is None


PIECES = ("[a]", "[[b]]", "[b.c]", "a=", "b.c =", "'a'.\"b\"=", "{", "}", "[", "]", ",", "1", "1.5", "\n", "# [x]\n")
PIECES += ('""', '"a#"', "''", "'\"'", '"""', "'''", '"', "'", "\\", " ", "2026-01-01 12:00:00", "\r\n")


@examples(1000)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_whatever_tomllib_accepts_has_its_keys(text: str) -> None:
    too_deep(text)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    lines = key_lines(text)
    assert set(lines) == set(_keys(document))
    assert all(1 <= line <= text.count("\n") + 1 for line in lines.values())


def _keys(value: Any, path: Key = ()) -> Iterator[Key]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in pairs:
        yield (*path, key)
        yield from _keys(each, (*path, key))


def test_too_deep_names_the_line() -> None:
    for text, line in (
        ("a = 1\nb = " + "[" * 33, 2),
        ("\n\n" + "a." * 33 + "b = 1", 3),
        ("a = " + "{a = " * 33, 1),
        ("[" + "a . " * 40 + "b]", 1),
        ("[[" * 10 + "\n" + "a=[" * 30, 2),
    ):
        assert too_deep(text) == line


def test_deep_enough() -> None:
    assert too_deep("[" * POLICY_DEPTH.most + "]" * POLICY_DEPTH.most + "\n" + "[" * POLICY_DEPTH.most) is None
    assert too_deep("1.5\n" * 1000 + "[" + "1.5," * 1000 + "]") is None
    assert too_deep('"' + "." * 1000 + '[[["') is None
