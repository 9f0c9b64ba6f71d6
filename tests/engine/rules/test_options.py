"""Options: filled, merged over remedies, and written so that Python, YAML and JSON read back what was meant."""

import ast
import itertools
import json
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.rules.toolchain_options import (
    CodeStep,
    Form,
    Names,
    asked_fields,
    fill,
    mark_changes,
    merge,
    write,
    write_excerpt,
)

NAMES = st.text(min_size=1, max_size=12)
SCALARS = st.one_of(st.booleans(), st.integers(-1000, 1000), NAMES.filter(lambda text: not text.startswith("=")))
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(NAMES.filter(lambda text: not text.endswith("()")), inner, max_size=6),
    ),
    max_leaves=25,
)
TABLES = st.recursive(
    st.dictionaries(NAMES, SCALARS, min_size=1, max_size=4),
    lambda inner: st.dictionaries(NAMES, st.one_of(SCALARS, inner), min_size=1, max_size=4),
    max_leaves=12,
)


def python(options: dict[str, Any]) -> Any:
    """The argument that a call was written with."""
    (call,) = ast.parse(write("f", Form(), options)).body
    (keyword,) = call.value.keywords
    return keyword.value


def value(node: ast.expr) -> Any:
    """A literal, or the comprehension that stands for many alike entries."""
    if isinstance(node, ast.DictComp):
        (loop,) = node.generators
        return {name: value(node.value) for name in ast.literal_eval(loop.iter)}
    if isinstance(node, ast.Dict):
        return {ast.literal_eval(key): value(inner) for key, inner in zip(node.keys, node.values, strict=True)}
    if isinstance(node, ast.List):
        return [value(inner) for inner in node.elts]
    return ast.literal_eval(node)


@given(TREES)
def test_python_reads_back_what_was_written(tree: Any) -> None:
    assert value(python({"given": tree})) == tree


@given(st.dictionaries(NAMES, TREES, max_size=4).filter(bool))
def test_json_reads_back_what_was_written(tree: dict[str, Any]) -> None:
    text = write("quant_config", Form(language="json"), tree)
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        assert "\\U" in text, "only an unprintable character beyond 16 bits has no JSON escape of one piece"
        return
    assert found == tree


@given(TABLES)
def test_yaml_reads_back_what_was_written(tree: dict[str, Any]) -> None:
    assert yaml.safe_load(write("hb_mapper", Form(language="yaml"), tree)) == tree


def test_names_become_entries_lists_and_rows() -> None:
    options = {
        "exclude": "{around}",
        "each": {"{layer}": {"type": "{kind}"}},
        "ranges": {"{ranges}": [{"low": "=np.float32({0})", "high": "=np.float32({1})"}]},
        "code": "=[f(n) for n in {around}]",
    }
    assert set(asked_fields(options)) == {"around", "layer", "kind", "ranges"}
    fields = {"around": ("a", "b"), "layer": ("a",), "kind": 8, "ranges": {"t": (-1.0, 2.5)}}
    assert fill(options, fields) == {
        "exclude": ("a", "b"),
        "each": {"a": {"type": 8}},
        "ranges": {"t": [{"low": "=np.float32(-1)", "high": "=np.float32(2.5)"}]},
        "code": '=[f(n) for n in ["a", "b"]]',
    }


def test_a_name_that_looks_like_a_field_stays_a_name() -> None:
    assert fill({"{layer}": 1, "x": "{around}"}, {"layer": ("{around}",), "around": ("{layer}",)}) == {
        "{around}": 1,
        "x": ("{layer}",),
    }


#: What a model may call its layers: each would be code, a call or a field if it were a text of the rules.
HOSTILE = ("=evil()", "evil()", "=[evil() for x in y]", "{layer}", "={layer}", '="', "='", "=a\nevil()", "a\nevil()")


def test_no_name_of_a_model_is_code() -> None:
    options = {
        "exclude": "{layers}",
        "each": {"{layers}": {"bits": "{bits}", "kind": "{name}"}},
        "rows": {"{rows}": [{"low": "{0}", "name": "{key}", "code": "=f({1})"}]},
        "code": "=f({layers}, {name})",
    }
    for name, many in itertools.product(HOSTILE, (1, 5)):
        names = (name, *(f"{name}{k}" for k in range(1, many)))
        fields = {"layers": names, "bits": 8, "name": name, "rows": dict.fromkeys(names, (name, name))}
        filled = fill(options, fields)
        changed = mark_changes(filled, fill(options, {**fields, "layers": ("b",)}))
        for made in (filled, merge(filled, filled, []), changed):
            assert "evil" not in called(write("g", Form(), made)), name


def called(code: str) -> set[str]:
    """Names of the functions that Python code calls."""
    return {ast.unparse(node.func) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)}


def test_merging_joins_names_and_tables_and_keeps_the_first_of_what_contradicts() -> None:
    first = {"nodes": Names(("a", "b")), "o": {"t": [{"low": 1}]}, "per_channel": True, "kind": ["kl"]}
    second = {"nodes": Names(("b", "c")), "o": {"t": [{"type": 16}], "u": [{"type": 16}]}, "kind": ["minmax"], "new": 1}
    conflicts: list[str] = []
    assert merge(first, second, conflicts) == {
        "nodes": ("a", "b", "c"),
        "o": {"t": [{"low": 1, "type": 16}], "u": [{"type": 16}]},
        "per_channel": True,
        "kind": ["kl"],
        "new": 1,
    }
    assert conflicts == ["kind"]


@given(st.dictionaries(NAMES, TREES, max_size=4))
def test_merging_with_itself_changes_nothing(tree: dict[str, Any]) -> None:
    conflicts: list[str] = []
    assert merge(tree, tree, conflicts) == tree
    assert not conflicts


def test_calls() -> None:
    for options, text in [
        ({}, 'f("a.onnx", reader)'),
        ({0: "b.onnx", "x": None}, 'f("b.onnx", reader, x=None)'),
        ({"scope": {"g()": {"names": ["n"]}}}, 'f("a.onnx", reader, scope=g(names=["n"]))'),
        ({"kind": "=Kind.A", "text": "Kind.A"}, 'f("a.onnx", reader, kind=Kind.A, text="Kind.A")'),
    ]:
        assert write("f", Form(positional=("a.onnx", "=reader")), options) == text
        assert write("f", Form(positional=("a.onnx", "=reader"), assign="y"), options) == f"y = {text}"


def test_long_calls_have_an_argument_per_line_and_alike_entries_stand_once() -> None:
    names = [f"/features/{number}/conv" for number in range(9)]
    text = write("f", Form(), {"o": {name: [{"bits": 16}] for name in names}, "p": True})
    assert text.count("bits") == 1 and "for name in [" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    assert text.splitlines()[0] == "f(" and text.splitlines()[-1] == ")"


def test_another_call_replaces_the_one_before_with_its_arguments() -> None:
    first, second = {"config": {"Wide()": {}}}, {"config": {"Narrow()": {"bits": 4}}, "names": ["a"]}
    conflicts: list[str] = []
    merged = merge(first, second, conflicts)
    assert merged == {"config": {"Wide()": {}}, "names": ["a"]}
    assert conflicts == ["config"]
    assert write("f", Form(), mark_changes(merged, second)).splitlines()[1:3] == [
        "    config=Wide(),  # changed by the remedy",
        '    names=["a"],',
    ]


SCRIPT = Form(
    defaults={"names": [], "config": {"Config()": {}}},
    steps=(
        CodeStep(code="made = make(config)"),
        CodeStep(code="leave(names)", needs=("names", "others")),
        CodeStep(code="search(target)", needs="target"),
        CodeStep(code="run()", lacks=("target",)),
    ),
)


def test_options_of_a_script_are_variables_and_stand_before_its_steps() -> None:
    text = write("f", SCRIPT, {"config": {"Config()": {"bits": 4}}})
    assert text.splitlines() == [
        "config = Config(bits=4)",
        "names = []",
        "",
        "made = make(config)",
        "leave(names)",
        "run()",
    ]
    assert write("f", SCRIPT, {"target": 3}).splitlines()[-1] == "search(target)"
    assert write_excerpt("f", SCRIPT, {"target": 3}) == "target = 3", "of a remedy only what it asks for"


def test_changes_of_a_script_are_marked_beside_the_variable() -> None:
    before = {"config": {"Config()": {"bits": 4, "kind": "a"}}, "names": []}
    merged = merge({"config": {"Config()": {"bits": 8}}, "names": Names(("fc",))}, before, [])
    assert write_excerpt("f", SCRIPT, mark_changes(merged, before)).splitlines() == [
        "config = Config(",
        "    bits=8,  # changed by the remedy",
        '    kind="a",',
        ")",
        'names = ["fc"]  # changed by the remedy',
    ]


def test_what_is_in_force_stands_before_what_a_remedy_adds() -> None:
    """Of patterns that match the same name, Neural Compressor obeys the last."""
    before = {"types": {".*": {"scale": "one"}}, "format": "QDQ"}
    marked = mark_changes(
        {"new": 1, "types": {"Conv": {"kept": True}, ".*": {"scale": "one"}}, "format": "QDQ"}, before
    )
    assert [*marked] == ["types", "format", "new"]
    assert isinstance(marked["types"], dict) and [*marked["types"]] == [".*", "Conv"]
