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
WHEN = RULE[RULE.index("when:") : RULE.index("message:")]
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


def test_where_and_facts_to_show_are_checked_like_when(tmp_path: Path) -> None:
    text = RULE.replace("when:", "where: {fact: producer, is: Conv}\nwhen:")
    (rule,) = load_rules([write(tmp_path / "a", text)]).rules
    assert [c.fact for c in rule.conditions()] == ["producer", "quantizer.bits", "data.values.absmax"]
    assert load_rules([write(tmp_path / "b", RULE + "shows: [producer]\n")]).rules[0].shows == ("producer",)


#: What is replaced in the sound rule, and by what; the message, and the line that the error points at.
MISTAKES: list[tuple[str, str, str, int]] = [
    ("when:", "where: {fact: producr, is: Conv}\nwhen:", "unknown fact 'producr'; did you mean 'producer'?", 7),
    ("[narrow-it]\n", "[narrow-it]\nshows: [producr]\n", "unknown fact 'producr'; did you mean 'producer'?", 13),
    ("absmax, gt", "absmx, gt", "unknown fact 'data.values.absmx'; did you mean 'data.values.absmax'?", 10),
    ("absmax:.3g", "absmx:.3g", "unknown fact 'data.values.absmx'; did you mean 'data.values.absmax'?", 11),
    ("scope: tensor", "scope: layer", "unknown fact 'quantizer.bits'; did you mean 'weight.quantizer.bits'?", 9),
    ("$wide", "$wiide", "unknown threshold 'wiide'; did you mean 'wide'?", 10),
    ("[narrow-it]", "[narow-it]", "unknown remedy 'narow-it'; did you mean 'narrow-it'?", 12),
    ("[narrow-it]\n", "[narrow-it]\nshow: [name]\n", "unknown key 'show'; did you mean 'shows'?", 13),
    ("severity: high", "serverity: high", "unknown key 'serverity'; did you mean 'severity'?", 5),
    ("severity: high", "severity: hihg", "Input should be 'high', 'medium', 'low' or 'info'", 5),
    ("confidence: 0.5", "confidence: 1.5", "Input should be less than or equal to 1", 6),
    ("id: X001", "id: X1", r"String should match pattern '^[A-Z]\d{3}$'", 1),
    ("[narrow-it]", "[narrow-it", "not a YAML file", 13),
    (" le: ", " lee: ", "unknown operator 'lee'; did you mean 'le'?; known: is,", 9),
    (" gt: ", " gtt: ", "unknown operator 'gtt'; did you mean 'gt'?; known: is,", 10),
]
#: The same of errors that name the file.
OF_THE_FILE: list[tuple[str, str, str]] = [
    (" gt: ", " ~: ", "unknown operator None; known: is,"),
    (", le: 8", "", "a condition is {fact: PATH, OPERATOR: VALUE}, not"),
    (", le: 8", ", le: 8, gt: 2", "a condition is {fact: PATH, OPERATOR: VALUE}, not"),
    ("fact: quantizer.bits, ", "", "a condition is {fact: PATH, OPERATOR: VALUE}, not"),
    ("  all:", "  al:", "a condition is {fact: PATH, OPERATOR: VALUE}, not"),
    ("severity: high\n", "", "key 'severity' is missing"),
    (RULE, "- a list\n", "a rule file holds one mapping"),
    (RULE, "", "a rule file holds one mapping"),
    # What else is refused when rules are loaded, and not only when they are asked.
    ("absmax:.3g}", "absmax:.3g", ""),
    ("gt: $wide", "gt: wide", ""),
    ("gt: $wide", "in: 3", ""),
    ("{data.values.absmax:.3g}", "{producer:.3g}", ""),
    ("gt: $wide", "op: gtt, value: 3", ""),
    ("severity: high", "severity: high\nseverity: low", ""),
    *((WHEN, f"when: {hollow}\n", "") for hollow in ("{all: []}", "{any: []}", "{not: [{fact: name}]}", "[]", "true")),
]


def test_errors_name_the_line_and_the_nearest_name(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for old, new, message, line in MISTAKES:
        with subtests.test(new):
            error = refuse(tmp_path, old, new)
            assert error.message.startswith(message)
            assert line_of(error) == line
    for old, new, message in OF_THE_FILE:
        with subtests.test(new):
            error = refuse(tmp_path, old, new)
            assert error.message.startswith(message)
            assert str(tmp_path / "family" / "X001.yaml") in error.where[0]


def test_errors_read_as_message_place_and_help(tmp_path: Path) -> None:
    text = str(refuse(tmp_path, "absmax, gt", "absmx, gt"))
    first, place, help_ = text.splitlines()
    assert first.startswith("unknown fact")
    assert place.startswith(f"  {tmp_path}")
    assert help_.startswith("help: ") and "TensorFacts" in help_


def test_every_operator_is_read(tmp_path: Path) -> None:
    for op in COMPARISONS:
        value = {"in": "[3, 4]", "known": "true"}.get(op, "4")
        (rule,) = load_rules([write(tmp_path, RULE.replace("le: 8", f"{op}: {value}"))]).rules
        assert next(iter(rule.conditions())).op == op


#: Text of the thresholds, the message, and the line that the error points at.
WRONG_THRESHOLDS: list[tuple[str, str, int | None]] = [
    ("- wide\n", "expected a mapping of names", None),
    ("wide: {value: x, source: s, description: d}\n", "Input should be a valid number", 1),
    ("wide:\n  value: 3\n  description: d\n", "key 'source' is missing", 1),
    (f"{THRESHOLDS}last:\n  value: 3\n  source: s\n  description: d\n  unt: m\n", "unknown key 'unt'; did you mean", 7),
    ("wide: {value: 3\n", "not a YAML file", 2),
    ("wide:\n", "key 'value' is missing", 1),
    ("wide: 3\n", "wide must be a mapping, not 3", 1),
]


def test_tables_are_checked(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for text, message, line in WRONG_THRESHOLDS:
        with subtests.test(message):
            error = refuse(tmp_path, thresholds=text)
            assert error.message.startswith(message)
            assert "thresholds.yaml" in error.where[0]
            assert line is None or line_of(error) == line
    assert refuse(tmp_path, remedies="narrow-it: do it\n").message == "narrow-it must be a mapping, not 'do it'"
    assert refuse(tmp_path, hints="- data.\n").message == "expected a mapping of fact prefixes to text"
    assert refuse(tmp_path, hints="data.: [1]\n").message == "the hint for 'data.' must be text, not [1]"
    empty = load_rules([write(tmp_path, RULE.replace("$wide", "3"), thresholds="", hints="")])
    assert not empty.thresholds and not empty.hints


def test_duplicate_id_names_both_files(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b")
    with pytest.raises(RuleError, match="duplicate rule id X001") as caught:
        load_rules([tmp_path / "a", tmp_path / "b"])
    assert sorted(caught.value.where) == [str(tmp_path / f / "family" / "X001.yaml") for f in "ab"]


def test_what_is_no_folder_and_what_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="no such rule folder") as caught:
        load_rules([tmp_path / "nowhere"])
    assert caught.value.where == (str(tmp_path / "nowhere"),)
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


@pytest.fixture
def base(tmp_path: Path) -> RuleBase:
    names = {"X001": "values-too-wide", "X002": "values-too-narrow", "A001": "outliers-found", "A002": "negatives-lost"}
    for code, name in names.items():
        text = RULE.replace("X001", code).replace("values-too-wide", name).replace("wide-values", f"cause-of-{name}")
        write(tmp_path, text, f"{code}.yaml")
    return load_rules([tmp_path])


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


def test_threshold_must_be_a_number(base: RuleBase) -> None:
    values: list[Any] = ["5", None, True, [5], float("nan")]
    for value in values:
        with pytest.raises(RuleError, match=r"wide.* number"):
            base.with_thresholds({"wide": value}, "my.yaml")


#: What is selected and ignored, the rules that are kept, and those that are told to be ignored.
CHOICES: list[tuple[tuple[str, ...], tuple[str, ...], list[str], list[str]]] = [
    ((), (), ["A001", "A002", "X001", "X002"], []),
    (("X001",), (), ["X001"], []),
    (("X001", "A"), (), ["A001", "A002", "X001"], []),
    (("outliers-found",), (), ["A001"], []),
    (("cause-of-outliers-found",), (), ["A001"], []),
    (("activations",), (), ["A001", "A002"], []),
    ((), ("A",), ["X001", "X002"], ["A001", "A002"]),
    (("X",), ("X002",), ["X001"], ["X002"]),
    (("X",), ("A001",), ["X001", "X002"], []),
    (("X001",), ("X001",), [], ["X001"]),
]


def test_choice(base: RuleBase) -> None:
    for select, ignore, kept, ignored in CHOICES:
        chosen = base.choose(select, ignore)
        assert sorted(rule.id for rule in chosen.rules) == kept, (select, ignore)
        assert sorted(rule.id for rule in chosen.ignored) == ignored, (select, ignore)
    assert len(base.rules) == 4, "the base itself is not changed"
    for option in ("select", "ignore"):
        with pytest.raises(RuleError, match=r"no rule matches 'outlier-found'; did you mean 'outliers-found'\?"):
            base.choose(**{option: ["X001", "outlier-found"]})
        with pytest.raises(RuleError, match="no rule matches 'x'"):
            base.choose(**{option: ["x"]})


def test_hint_of_the_longest_prefix(base: RuleBase) -> None:
    paths = ("data.values.absmax", "data.rounding.mse", "model.metric.drop", "quantizer.bits", "dat")
    assert [base.hint(path) for path in paths] == ["give floats", "give data", "give labels", None, None]
