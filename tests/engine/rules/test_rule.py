"""Loading of rules, thresholds, remedies and hints: what is refused, and where the error points."""

from pathlib import Path
from typing import Any

import pytest

from quantmedic.engine.errors import RuleError
from quantmedic.engine.rules.conditions import COMPARISONS
from quantmedic.engine.rules.load import load_rules
from quantmedic.engine.rules.rule import message_fields
from quantmedic.engine.rules.rulebase import RuleBase

RULE = """\
id: X001
name: values-too-wide
cause: wide-values
scope: tensor
severity: high
confidence: 0.5
when:
  all:
    - {fact: quantizer.bits, le: 8}
    - {fact: data.values.absmax, gt: $wide}
message: values reach {data.values.absmax:.3g}
remedies: [narrow-it]
"""
THRESHOLDS = """\
wide: {value: 3, unit: value, source: a guess, description: values are wide}
wider: {value: 9, source: a guess, description: values are wider}
"""
REMEDIES = """\
narrow-it: {title: narrow it, changes: the range, cost: nothing, unsafe: never}
"""
HINTS = """\
data.: give data
data.values.: give floats
model.metric.: give labels
"""


def write(folder: Path, rule: str = RULE, name: str = "X001.yaml", **files: str) -> Path:
    """A rule folder; keyword arguments replace the text of thresholds, remedies or hints."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"thresholds": THRESHOLDS, "remedies": REMEDIES, "hints": HINTS} | files
    for stem, text in texts.items():
        (folder / f"{stem}.yaml").write_text(text, encoding="utf-8")
    (folder / "family").mkdir(exist_ok=True)
    (folder / "family" / name).write_text(rule, encoding="utf-8")
    return folder


def refuse(folder: Path, old: str = "", new: str = "", **files: str) -> RuleError:
    """The error that replacing a piece of the sound rule gives."""
    assert old in RULE
    write(folder, RULE.replace(old, new) if old else RULE, **files)
    with pytest.raises(RuleError) as caught:
        load_rules([folder])
    return caught.value


def line_of(error: RuleError) -> int:
    """Line that the error points at."""
    path, _, rest = error.where[0].partition(".yaml:")
    assert Path(path + ".yaml").is_file()
    return int(rest.partition(":")[0])


def test_sound_rule_is_read(tmp_path: Path) -> None:
    base = load_rules([write(tmp_path)])
    (rule,) = base.rules
    assert (rule.id, rule.scope, rule.family) == ("X001", "tensor", "user")
    assert rule.path == tmp_path / "family" / "X001.yaml"
    assert [(c.fact, c.op, c.threshold) for c in rule.conditions()] == [
        ("quantizer.bits", "le", None),
        ("data.values.absmax", "gt", "wide"),
    ]
    assert base.threshold("wide") == 3.0
    assert base.thresholds["wide"].unit == "value"
    assert base.remedies["narrow-it"].title == "narrow it"
    assert message_fields(rule.message) == ["data.values.absmax"]


def test_families_follow_the_letter(tmp_path: Path) -> None:
    for letter, family in {"S": "sanity", "D": "data", "W": "weights", "Q": "user"}.items():
        text = RULE.replace("X001", f"{letter}001")
        (rule,) = load_rules([write(tmp_path / letter, text, f"{letter}001.yaml")]).rules
        assert rule.family == family


def test_where_is_checked_like_when(tmp_path: Path) -> None:
    text = RULE.replace("when:", "where: {fact: producer, is: Conv}\nwhen:")
    (rule,) = load_rules([write(tmp_path / "a", text)]).rules
    assert [c.fact for c in rule.conditions()] == ["producer", "quantizer.bits", "data.values.absmax"]
    with pytest.raises(RuleError, match=r"unknown fact 'producr'; did you mean 'producer'\?") as caught:
        load_rules([write(tmp_path / "b", text.replace("producer", "producr"))])
    assert line_of(caught.value) == 7


def test_facts_to_show_are_checked(tmp_path: Path) -> None:
    text = RULE + "shows: [producer]\n"
    assert load_rules([write(tmp_path / "a", text)]).rules[0].shows == ("producer",)
    with pytest.raises(RuleError, match="unknown fact 'producr'") as caught:
        load_rules([write(tmp_path / "b", text.replace("producer", "producr"))])
    assert line_of(caught.value) == 13


@pytest.mark.parametrize("op", COMPARISONS)
def test_every_operator_is_read(op: str, tmp_path: Path) -> None:
    value = {"in": "[3, 4]", "known": "true"}.get(op, "4")
    (rule,) = load_rules([write(tmp_path, RULE.replace("le: 8", f"{op}: {value}"))]).rules
    assert next(iter(rule.conditions())).op == op


@pytest.mark.parametrize(
    "old, new, message, line",
    [
        pytest.param(
            "absmax, gt",
            "absmx, gt",
            "unknown fact 'data.values.absmx'; did you mean 'data.values.absmax'?",
            10,
            id="fact",
        ),
        pytest.param(
            "absmax:.3g",
            "absmx:.3g",
            "unknown fact 'data.values.absmx'; did you mean 'data.values.absmax'?",
            11,
            id="fact in message",
        ),
        pytest.param(
            "scope: tensor",
            "scope: layer",
            "unknown fact 'quantizer.bits'; did you mean 'weight.quantizer.bits'?",
            9,
            id="fact of another scope",
        ),
        pytest.param("$wide", "$wiide", "unknown threshold 'wiide'; did you mean 'wide'?", 10, id="threshold"),
        pytest.param(
            "[narrow-it]", "[narow-it]", "unknown remedy 'narow-it'; did you mean 'narrow-it'?", 12, id="remedy"
        ),
        pytest.param(
            "[narrow-it]\n",
            "[narrow-it]\nshow: [name]\n",
            "unknown key 'show'; did you mean 'shows'?",
            13,
            id="key",
        ),
        pytest.param(
            "severity: high", "severity: hihg", "Input should be 'high', 'medium', 'low' or 'info'", 5, id="severity"
        ),
        pytest.param(
            "confidence: 0.5", "confidence: 1.5", "Input should be less than or equal to 1", 6, id="confidence"
        ),
        pytest.param("id: X001", "id: X1", r"String should match pattern '^[A-Z]\d{3}$'", 1, id="id"),
        pytest.param("[narrow-it]", "[narrow-it", "not a YAML file", 13, id="yaml"),
    ],
)
def test_error_names_the_line_and_the_nearest_name(old: str, new: str, message: str, line: int, tmp_path: Path) -> None:
    error = refuse(tmp_path, old, new)
    assert error.message == message
    assert line_of(error) == line


def test_unknown_fact_tells_where_facts_are_listed(tmp_path: Path) -> None:
    assert "TensorFacts" in (refuse(tmp_path, "absmax, gt", "absmx, gt").help or "")


@pytest.mark.parametrize(
    "old, new, message",
    [
        pytest.param(" gt: ", " gtt: ", "unknown operator 'gtt'; did you mean 'gt'?; known: is,", id="operator"),
        pytest.param(" gt: ", " ~: ", "unknown operator None; known: is,", id="operator that is nothing"),
        pytest.param(", le: 8", "", "a condition is {fact: PATH, OPERATOR: VALUE}, not", id="no operator"),
        pytest.param(
            ", le: 8", ", le: 8, gt: 2", "a condition is {fact: PATH, OPERATOR: VALUE}, not", id="two operators"
        ),
        pytest.param("fact: quantizer.bits, ", "", "a condition is {fact: PATH, OPERATOR: VALUE}, not", id="no fact"),
        pytest.param("  all:", "  al:", "a condition is {fact: PATH, OPERATOR: VALUE}, not", id="unknown connective"),
        pytest.param("severity: high\n", "", "key 'severity' is missing", id="missing key"),
        pytest.param(RULE, "- a list\n", "a rule file holds one mapping", id="list"),
        pytest.param(RULE, "", "a rule file holds one mapping", id="empty file"),
    ],
)
def test_other_errors_name_the_file(old: str, new: str, message: str, tmp_path: Path) -> None:
    error = refuse(tmp_path, old, new)
    assert error.message.startswith(message)
    assert str(tmp_path / "family" / "X001.yaml") in error.where[0]


@pytest.mark.parametrize("old, line", [(", le: ", 9), (", gt: ", 10)])
def test_unknown_operator_names_its_line(old: str, line: int, tmp_path: Path) -> None:
    assert line_of(refuse(tmp_path, old, ", gtt: ")) == line


def test_misspelt_required_key_is_suggested(tmp_path: Path) -> None:
    error = refuse(tmp_path, "severity: high", "serverity: high")
    assert error.message == "unknown key 'serverity'; did you mean 'severity'?"
    assert line_of(error) == 5


@pytest.mark.parametrize("when", ["{all: []}", "{any: []}", "{not: [{fact: quantizer.bits, le: 8}]}", "[]", "true"])
def test_hollow_conditions_are_refused(when: str, tmp_path: Path) -> None:
    start, end = RULE.index("when:"), RULE.index("message:")
    refuse(tmp_path, RULE[start:end], f"when: {when}\n")


@pytest.mark.parametrize(
    "old, new",
    [
        pytest.param("absmax:.3g}", "absmax:.3g", id="open brace in the message"),
        pytest.param("gt: $wide", "gt: wide", id="text compared with gt"),
        pytest.param("gt: $wide", "in: 3", id="in without a list"),
        pytest.param("{data.values.absmax:.3g}", "{producer:.3g}", id="format that the fact cannot have"),
        pytest.param("gt: $wide", "op: gtt, value: 3", id="internal form with an unknown operator"),
        pytest.param("severity: high", "severity: high\nseverity: low", id="key given twice"),
    ],
)
def test_mistake_is_found_at_load_time(old: str, new: str, tmp_path: Path) -> None:
    refuse(tmp_path, old, new)


@pytest.mark.parametrize(
    "text, message, line",
    [
        pytest.param("- wide\n", "expected a mapping of names", None, id="list"),
        pytest.param("wide: {value: x, source: s, description: d}\n", "Input should be a valid number", 1, id="value"),
        pytest.param("wide:\n  value: 3\n  description: d\n", "key 'source' is missing", 1, id="missing"),
        pytest.param(
            "wide:\n  value: 3\n  source: s\n  description: d\n  unt: m\n",
            "unknown key 'unt'; did you mean 'unit'?",
            5,
            id="unknown",
        ),
        pytest.param("wide: {value: 3\n", "not a YAML file", 2, id="yaml"),
        pytest.param("wide:\n", "key 'value' is missing", 1, id="empty entry"),
    ],
)
def test_thresholds_are_checked(text: str, message: str, line: int | None, tmp_path: Path) -> None:
    error = refuse(tmp_path, thresholds=text)
    assert error.message.startswith(message)
    assert "thresholds.yaml" in error.where[0]
    if line is not None:
        assert line_of(error) == line


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"thresholds": "wide: 3\n"}, id="a number instead of a threshold"),
        pytest.param({"remedies": "narrow-it: do it\n"}, id="text instead of a remedy"),
        pytest.param({"hints": ""}, id="empty hints"),
        pytest.param({"hints": "- data.\n"}, id="hints as a list"),
        pytest.param({"hints": "data.: [1]\n"}, id="a hint that is no text"),
    ],
)
def test_tables_of_the_wrong_shape(files: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path, **files)
    try:
        load_rules([tmp_path])
    except RuleError as error:
        assert next(iter(files)) in error.where[0]


def test_empty_tables_are_no_error(tmp_path: Path) -> None:
    text = RULE.replace("$wide", "3")
    base = load_rules([write(tmp_path, text, thresholds="")])
    assert not base.thresholds


def test_duplicate_id_names_both_files(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b")
    with pytest.raises(RuleError, match="duplicate rule id X001") as caught:
        load_rules([tmp_path / "a", tmp_path / "b"])
    assert sorted(caught.value.where) == [str(tmp_path / f / "family" / "X001.yaml") for f in "ab"]


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="no such rule folder") as caught:
        load_rules([tmp_path / "nowhere"])
    assert caught.value.where == (str(tmp_path / "nowhere"),)


def test_file_that_is_no_text(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "family" / "X002.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RuleError, match="not a YAML file"):
        load_rules([tmp_path])


def test_later_folders_add_rules_and_override_thresholds(tmp_path: Path) -> None:
    write(tmp_path / "a")
    mine = write(tmp_path / "b", RULE.replace("X001", "X002"), "X002.yaml", hints="data.values.: ask me\n")
    (mine / "thresholds.yaml").write_text("wide: {value: 7, source: me, description: d}\n")
    (mine / "remedies.yaml").unlink()
    base = load_rules([tmp_path / "a", mine])
    assert [rule.id for rule in base.rules] == ["X001", "X002"]
    assert base.threshold("wide") == 7
    assert base.threshold("wider") == 9
    assert base.hint("data.values.absmax") == "ask me"


def test_errors_read_as_message_place_and_help(tmp_path: Path) -> None:
    text = str(refuse(tmp_path, "absmax, gt", "absmx, gt"))
    first, place, help_ = text.splitlines()
    assert first.startswith("unknown fact")
    assert place.startswith(f"  {tmp_path}")
    assert help_.startswith("help: ")


@pytest.fixture
def base(tmp_path: Path) -> RuleBase:
    names = {"X001": "values-too-wide", "X002": "values-too-narrow", "A001": "outliers-found", "A002": "negatives-lost"}
    for code, name in names.items():
        text = RULE.replace("X001", code).replace("values-too-wide", name).replace("wide-values", f"cause-of-{name}")
        write(tmp_path, text, f"{code}.yaml")
    return load_rules([tmp_path])


def ids(base: RuleBase) -> list[str]:
    return sorted(rule.id for rule in base.rules)


def test_thresholds_can_be_overridden(base: RuleBase) -> None:
    changed = base.with_thresholds({"wide": 5}, "command line")
    assert changed.threshold("wide") == 5.0
    assert changed.thresholds["wide"].source == "command line"
    assert changed.thresholds["wide"].unit == "value"
    assert changed.thresholds["wider"] == base.thresholds["wider"]
    assert base.threshold("wide") == 3.0, "the base itself is not changed"


def test_unknown_threshold_is_suggested(base: RuleBase) -> None:
    with pytest.raises(RuleError, match="unknown threshold 'widr'; did you mean 'wide") as caught:
        base.with_thresholds({"widr": 5}, "my.yaml")
    assert caught.value.where == ("my.yaml",)
    assert caught.value.help


@pytest.mark.parametrize("value", ["5", None, True, [5]])
def test_threshold_must_be_a_number(base: RuleBase, value: Any) -> None:
    with pytest.raises(RuleError, match="threshold wide must be a number, not"):
        base.with_thresholds({"wide": value}, "my.yaml")


def test_threshold_must_not_be_nan(base: RuleBase) -> None:
    with pytest.raises(RuleError):
        base.with_thresholds({"wide": float("nan")}, "my.yaml")


@pytest.mark.parametrize(
    "select, ignore, kept, ignored",
    [
        ((), (), ["A001", "A002", "X001", "X002"], []),
        (("X001",), (), ["X001"], []),
        (("X",), (), ["X001", "X002"], []),
        (("X001", "A"), (), ["A001", "A002", "X001"], []),
        (("outliers-found",), (), ["A001"], []),
        (("cause-of-outliers-found",), (), ["A001"], []),
        (("activations",), (), ["A001", "A002"], []),
        ((), ("A",), ["X001", "X002"], ["A001", "A002"]),
        (("X",), ("X002",), ["X001"], ["X002"]),
        (("X",), ("A001",), ["X001", "X002"], []),
        (("X001",), ("X001",), [], ["X001"]),
    ],
)
def test_choice(
    base: RuleBase, select: tuple[str, ...], ignore: tuple[str, ...], kept: list[str], ignored: list[str]
) -> None:
    chosen = base.choose(select, ignore)
    assert ids(chosen) == kept
    assert sorted(rule.id for rule in chosen.ignored) == ignored
    assert len(base.rules) == 4, "the base itself is not changed"


@pytest.mark.parametrize("option", ["select", "ignore"])
def test_unknown_selector_is_an_error(base: RuleBase, option: str) -> None:
    with pytest.raises(RuleError, match=r"no rule matches 'outlier-found'; did you mean 'outliers-found'\?"):
        base.choose(**{option: ["X001", "outlier-found"]})
    with pytest.raises(RuleError, match="no rule matches 'x'"):
        base.choose(**{option: ["x"]})


@pytest.mark.parametrize(
    "path, hint",
    [
        ("data.values.absmax", "give floats"),
        ("data.rounding.mse", "give data"),
        ("model.metric.drop", "give labels"),
        ("quantizer.bits", None),
        ("dat", None),
    ],
)
def test_hint_of_the_longest_prefix(base: RuleBase, path: str, hint: str | None) -> None:
    assert base.hint(path) == hint
