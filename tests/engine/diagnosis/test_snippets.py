"""Snippets: this model's names, and nothing that can fail or run."""

import ast
import json

import pytest
import yaml

from quantmedic.engine.diagnosis.snippets import render_snippet
from quantmedic.engine.errors import RuleError
from quantmedic.engine.text import literal, quote


def test_names_are_filled_in_and_doubled_braces_are_braces() -> None:
    code = 'quantize(nodes_to_exclude={layers}, extra_options={{"a": {{"b": 1}}}})'
    assert render_snippet(code, {"layers": ("conv1", "conv2")}, "") == (
        'quantize(nodes_to_exclude=["conv1", "conv2"], extra_options={"a": {"b": 1}})'
    )


def test_values_are_filled_in() -> None:
    fields = {"ratio": 0.141, "ranges": {"relu": (-0.123456789, 6.0)}}
    assert render_snippet("ratio={ratio}, ranges={ranges}", fields, "") == (
        'ratio=0.141, ranges={"relu": [-0.1234568, 6]}'
    )


def test_a_line_stands_once_for_each_name() -> None:
    code = 'info:\n  {node}: {{"ON": "CPU"}}\nend: 1'
    filled = render_snippet(code, {"nodes": ("a", "/b{c}")}, "")
    assert filled == 'info:\n  "a": {"ON": "CPU"}\n  "/b{c}": {"ON": "CPU"}\nend: 1'
    assert yaml.safe_load(filled) == {"info": {"a": {"ON": "CPU"}, "/b{c}": {"ON": "CPU"}}, "end": 1}


def test_a_snippet_cannot_read_attributes() -> None:
    text = "{layers.__class__} {0} {oops} {"
    assert render_snippet(text, {"layers": ("a",)}, "") == text


def test_names_are_not_filled_in_twice() -> None:
    assert render_snippet("{layers} {{", {"layers": ("{weights}", "}}")}, "") == '["{weights}", "}}"] {'
    assert render_snippet("- {layer}", {"layers": ("{weights}", "}}{")}, "") == '- "{weights}"\n- "}}{"'


def test_without_names_the_error_says_whose_snippet_it_is() -> None:
    for code in ("exclude={layers}", "{node}: 1"):
        with pytest.raises(RuleError, match="there are none") as error:
            render_snippet(code, {"layers": (), "nodes": ()}, "G003: keep-layers-float")
        assert error.value.where == ("G003: keep-layers-float",)


def test_quoted_names_and_literals_are_exact_in_python_and_json() -> None:
    for name in ("plain", 'quo"te', "back\\slash", "new\nline", "</script>", "nul\x00", "\u202e", "層"):
        assert ast.literal_eval(quote(name)) == name
        assert json.loads(quote(name)) == name
        assert not set("<>&\n\x00") & set(quote(name))
    value = {"a": (1, -0.5), "b": [True, "c"]}
    assert json.loads(literal(value)) == {"a": [1, -0.5], "b": [True, "c"]}
    assert ast.literal_eval(literal({"a": (1, 2.5)})) == {"a": [1, 2.5]}
