"""Rules that name no figure, fire without harm, or lack a page or examples."""

from pathlib import Path
from typing import Any

from quantmedic.engine.rules.lint import Remark, lint
from quantmedic.engine.rules.remedies import Remedy
from quantmedic.engine.rules.rule import Rule
from quantmedic.engine.rules.rulebase import RuleBase, Threshold

PAGE = "# some-defect (U001)\n"
THRESHOLDS = {"ten": 10.0}
HARMED = {"fact": "model.harmed", "is": True}
RATIO, SHARE, BITS, OP = "weight.channel_range_ratio", "output.data.clipping.share", "weight.quantizer.bits", "op_type"
GRANULARITY = "weight.quantizer.granularity"


def remedy(name: str) -> Remedy:
    return Remedy(id=name, title="t", changes="c", cost="c", unsafe="u")


def rule(when: Any, **changes: Any) -> Rule:
    fields = {
        "id": "U001",
        "name": "some-defect",
        "cause": "some-defect",
        "scope": "layer",
        "severity": "low",
        "confidence": 0.5,
        "when": when,
        "message": f"{{{RATIO}}}",
        "remedies": ["some-remedy"],
    }
    return Rule.model_validate(fields | changes)


def base(*rules: Rule) -> RuleBase:
    thresholds = {
        name: Threshold(name=name, value=value, source="test", description="d") for name, value in THRESHOLDS.items()
    }
    return RuleBase(rules=rules, thresholds=thresholds, remedies={"some-remedy": remedy("some-remedy")})


def remarks(when: Any, page: str | None = PAGE, **changes: Any) -> list[Remark]:
    own = rule(when, **changes)
    return lint(base(own), {own.id: page} if page is not None else {}, base())


def every(*conditions: dict[str, Any]) -> dict[str, Any]:
    return {"all": list(conditions)}


def either(*conditions: dict[str, Any]) -> dict[str, Any]:
    return {"any": list(conditions)}


def test_sound_rule_gets_no_remark() -> None:
    assert remarks(every({"fact": RATIO, "gt": "$ten"}, HARMED), severity="high") == []


def test_severe_rule_about_layers_asks_for_harm() -> None:
    ask = {"fact": RATIO, "gt": 3}
    (found,) = remarks(ask, severity="medium")
    assert "without asking for harm" in found.message
    (found,) = remarks(either(ask, every({"fact": SHARE, "gt": 0.1}, HARMED)), severity="high")
    assert "without asking for harm" in found.message, "one alternative is enough to fire"
    assert remarks(every(ask, HARMED), severity="high") == []
    assert remarks(ask, severity="low") == []
    model = {"scope": "model", "message": "{output_sqnr_db}", "severity": "high"}
    assert remarks({"fact": "output_sqnr_db", "lt": 3}, **model) == []


def test_words_and_ids() -> None:
    ask = {"fact": RATIO, "gt": 3}
    assert "names no fact" in remarks(ask, message="something is wrong")[0].message
    assert "is that of a fix" in remarks(ask, name="use-other-range")[0].message
    assert "belong to the built-in rules about weights" in remarks(ask, PAGE.replace("U", "W"), id="W901")[0].message


def test_name_of_a_builtin_rule_is_taken() -> None:
    other, own = rule(HARMED, id="W001"), rule(HARMED)
    (found,) = lint(base(other, own), {"U001": PAGE}, base(other))
    assert (found.level, found.rule) == ("error", "U001")
    assert "W001 is called 'some-defect' already" in found.message


def test_a_page_and_both_kinds_of_examples_are_wanted(tmp_path: Path) -> None:
    ask = {"fact": RATIO, "gt": 3}
    assert [r.message for r in remarks(ask, page=None)] == ["it has no page"]
    (found,) = remarks(ask, PAGE.replace("# some-defect (U001)", "# Something"))
    assert (found.level, found.message) == ("warning", "its page does not begin with its name")
    (tmp_path / "U001.yaml").write_text("id: U001\n---\n- fires: {op_type: Add}\n")
    (found,) = remarks(ask, path=tmp_path / "U001.yaml")
    assert (found.level, found.message) == ("error", "it has no example on which it stays silent")


def test_unused_thresholds_and_remedies_of_the_folder() -> None:
    own, more = base(rule({"fact": RATIO, "gt": 3})), {"other-remedy": remedy("other-remedy")}
    more["some-remedy"] = remedy("some-remedy").model_copy(update={"title": "another title"})
    asking = {"fact": "opset", "lt": "$twelve"}
    more["last-remedy"] = Remedy.model_validate(
        {"id": "last-remedy", "title": "t", "changes": "c", "cost": "c", "unsafe": "u", "in_force": asking}
    )
    threshold = own.thresholds["ten"].model_copy(update={"name": "eleven"})
    thresholds = {**own.thresholds, "eleven": threshold, "twelve": threshold.model_copy(update={"name": "twelve"})}
    folder = own.model_copy(update={"remedies": own.remedies | more, "thresholds": thresholds})
    found = lint(folder, {"U001": PAGE}, base())
    assert {r.message for r in found} == {
        "nothing uses the threshold eleven",
        "no rule prescribes the remedy other-remedy",
        "no rule prescribes the remedy last-remedy",
        "the remedy some-remedy replaces the built-in one",
    }
    assert all(r.level == "warning" for r in found)
