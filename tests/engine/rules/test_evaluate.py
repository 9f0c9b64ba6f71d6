"""Evaluation: three-valued logic, evidence, missing facts, messages and scopes."""

import itertools
from typing import Any

import pytest
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.case.facts import CaseFacts, ModelFacts, OperandFacts, TensorFacts
from quantmedic.engine.rules.evaluate import evaluate, look_up, render_message, subject_name, subjects
from quantmedic.engine.rules.rule import Rule
from quantmedic.engine.rules.rulebase import RuleBase, Threshold

few = examples(100)
FLAGS = ("float_is_quantized", "input_nonfinite", "dead_output")
TRUTH = (True, False, None)
BASE = RuleBase(
    rules=(),
    thresholds={"limit": Threshold(name="limit", value=20, unit="dB", source="a book", description="d")},
    remedies={},
)


def rule(when: Any, scope: str = "model", message: str = "m", **options: Any) -> Rule:
    fields = {"id": "X001", "name": "some-rule", "cause": "some-cause", "scope": scope, "severity": "high"}
    fields |= {"confidence": 0.5, "when": when, "message": message, "remedies": ["do-it"]}
    return Rule.model_validate({**fields, **options})


def judge(when: Any, facts: dict[str, Any], scope: str = "model", message: str = "m", **options: Any) -> Any:
    base = BASE.model_copy(update={"rules": (rule(when, scope, message, **options),)})
    (result,) = evaluate(base, CaseFacts.model_validate(facts))
    return result


def verdict(when: Any, *flags: bool | None) -> bool | None:
    """Truth of a condition over the three flags."""
    result = judge(when, {"model": dict(zip(FLAGS, flags, strict=False))})
    assert len(result.findings) + len(result.unknown) <= 1
    assert result.judged == 1 - len(result.unknown)
    return True if result.findings else None if result.unknown else False


def flag(i: int) -> dict[str, Any]:
    return {"fact": FLAGS[i], "is": True}


def rank(value: bool | None) -> float:
    return 0.5 if value is None else float(value)


def kleene(node: Any, flags: tuple[bool | None, ...]) -> float:
    """Kleene's logic as arithmetic: false 0, unknown ½, true 1."""
    if "fact" in node:
        value = flags[FLAGS.index(node["fact"])]
        return float((value is not None) is node["known"]) if "known" in node else rank(value)
    if "not" in node:
        return 1 - kleene(node["not"], flags)
    ((name, parts),) = node.items()
    return (min if name == "all" else max)(kleene(part, flags) for part in parts)


@pytest.mark.parametrize("flags", list(itertools.product(TRUTH, repeat=2)))
def test_truth_tables(flags: tuple[bool | None, bool | None]) -> None:
    both = [flag(0), flag(1)]
    assert rank(verdict({"all": both}, *flags)) == min(map(rank, flags))
    assert rank(verdict({"any": both}, *flags)) == max(map(rank, flags))
    assert rank(verdict({"not": flag(0)}, *flags)) == 1 - rank(flags[0])


trees = st.recursive(
    st.sampled_from(
        [flag(i) for i in range(3)] + [{"fact": name, "known": k} for name in FLAGS for k in (True, False)]
    ),
    lambda parts: st.one_of(
        st.lists(parts, min_size=1, max_size=3).map(lambda nodes: {"all": nodes}),
        st.lists(parts, min_size=1, max_size=3).map(lambda nodes: {"any": nodes}),
        parts.map(lambda node: {"not": node}),
    ),
    max_leaves=8,
)
facts = st.tuples(*[st.sampled_from(TRUTH)] * 3)


@given(trees, facts)
@few
def test_any_tree_follows_kleene(tree: Any, flags: tuple[bool | None, ...]) -> None:
    assert rank(verdict(tree, *flags)) == kleene(tree, flags)


@given(trees, facts, facts)
@few
def test_supplying_the_missing_facts_decides(
    tree: Any, flags: tuple[bool | None, ...], answers: tuple[bool | None, ...]
) -> None:
    result = judge(tree, {"model": dict(zip(FLAGS, flags, strict=True))})
    for unknown in result.unknown:
        assert unknown.missing
        assert all(flags[FLAGS.index(name)] is None for name in unknown.missing)
        assert len(set(unknown.missing)) == len(unknown.missing)
        supplied = [
            bool(answer) if name in unknown.missing else value
            for name, value, answer in zip(FLAGS, flags, answers, strict=True)
        ]
        assert verdict(tree, *supplied) is not None


@given(trees, facts)
@few
def test_evidence_is_what_holds(tree: Any, flags: tuple[bool | None, ...]) -> None:
    """Every row of evidence is a comparison that is true by itself."""
    for finding in judge(tree, {"model": dict(zip(FLAGS, flags, strict=True))}).findings:
        for row in finding.evidence:
            value = flags[FLAGS.index(row.fact)]
            assert row.value is value
            assert (value is not None) is row.threshold if row.op == "known" else value is row.threshold


@pytest.mark.parametrize(
    "op, threshold, value, expected",
    [
        ("gt", 5, 5, False),
        ("gt", 5, 5.1, True),
        ("ge", 5, 5, True),
        ("ge", 5, 4.9, False),
        ("lt", 5, 5, False),
        ("lt", 5, 4.9, True),
        ("le", 5, 5, True),
        ("le", 5, 5.1, False),
        ("is", 5, 5, True),
        ("is", 5, 4, False),
        ("is_not", 5, 4, True),
        ("is_not", 5, 5, False),
        ("in", [4, 5], 5, True),
        ("in", [4, 5], 6, False),
        ("gt", 5, float("inf"), True),
        ("lt", 5, float("-inf"), True),
        ("gt", "$limit", 21, True),
        ("gt", "$limit", 20, False),
        ("known", True, 5, True),
        ("known", False, 5, False),
    ],
)
def test_comparisons(op: str, threshold: Any, value: float, expected: bool) -> None:
    result = judge({"fact": "output_sqnr_db", op: threshold}, {"model": {"output_sqnr_db": value}})
    assert bool(result.findings) is expected
    assert result.judged == 1


@pytest.mark.parametrize("op", ["is", "is_not", "gt", "ge", "lt", "le", "in"])
def test_no_comparison_judges_what_was_not_measured(op: str) -> None:
    result = judge({"fact": "output_sqnr_db", op: [1] if op == "in" else 1}, {})
    assert result.verdict == "not-judged"
    assert result.unknown[0].missing == ("output_sqnr_db",)


@pytest.mark.parametrize("known, value, expected", [(True, None, False), (False, None, True), (True, 0, True)])
def test_known_is_always_decided(known: bool, value: int | None, expected: bool) -> None:
    """Zero is a measurement; None is none."""
    result = judge({"fact": "opset", "known": known}, {"model": {"opset": value}})
    assert bool(result.findings) is expected
    assert not result.unknown


def test_evidence_holds_value_threshold_source_and_subject() -> None:
    when = {"all": [{"fact": "op_type", "is": "Conv"}, {"fact": "weight.channel_range_ratio", "gt": "$limit"}]}
    layer = {"name": "conv1", "op_type": "Conv", "weight": {"channel_range_ratio": 64.0}}
    (finding,) = judge(when, {"layers": [layer]}, "layer").findings
    assert (finding.subject, finding.layer) == ("conv1", "conv1")
    first, second = finding.evidence
    assert (first.fact, first.value, first.op, first.threshold, first.source) == ("op_type", "Conv", "is", "Conv", None)
    assert (second.fact, second.value, second.op) == ("weight.channel_range_ratio", 64.0, "gt")
    assert (second.threshold, second.source, second.subject) == (20.0, "a book", "conv1")


def test_evidence_of_any_is_the_parts_that_hold() -> None:
    when = {"any": [{"fact": "opset", "lt": 10}, {"fact": "operators", "gt": 5}, {"fact": "dropped_taps", "gt": 0}]}
    (finding,) = judge(when, {"model": {"opset": 9, "operators": 3}}).findings
    assert [row.fact for row in finding.evidence] == ["opset"]


def test_exclusion_is_no_evidence() -> None:
    when = {"all": [{"fact": "opset", "lt": 10}, {"not": {"fact": "operators", "gt": 5}}]}
    (finding,) = judge(when, {"model": {"opset": 9, "operators": 3}}).findings
    assert [row.fact for row in finding.evidence] == ["opset"]


def test_facts_shown_stand_before_those_compared() -> None:
    when = {"fact": "opset", "lt": 10}
    model = {"opset": 9, "toolchain": "t"}
    (finding,) = judge(when, {"model": model}, shows=["toolchain", "framework"]).findings
    rows = [(row.fact, row.value, row.op, row.threshold, row.source, row.subject) for row in finding.evidence]
    assert rows == [("toolchain", "t", "shown", None, None, "model"), ("opset", 9, "lt", 10, None, "model")]


def test_zero_is_shown() -> None:
    model = {"opset": 9, "dropped_taps": 0, "input_nonfinite": False}
    (finding,) = judge(
        {"fact": "opset", "lt": 10}, {"model": model}, shows=["dropped_taps", "input_nonfinite"]
    ).findings
    assert [row.value for row in finding.evidence] == [0, False, 9]


def test_missing_facts_are_those_that_leave_it_open() -> None:
    """A part that is already true does not ask for more, nor does a fact that was measured."""
    when = {
        "all": [
            {"fact": "opset", "lt": 10},
            {"any": [{"fact": "operators", "gt": 5}, {"fact": "dropped_taps", "gt": 0}]},
            {"any": [{"fact": "size_ratio", "gt": 5}, {"fact": "opset", "gt": 0}]},
            {"not": {"fact": "degraded_share", "gt": 0.5}},
            {"fact": "toolchain", "known": False},
        ]
    }
    result = judge(when, {"model": {"opset": 9, "operators": 3}})
    assert result.unknown[0].missing == ("dropped_taps", "degraded_share")
    assert judge(when, {"model": {"opset": 11}}).verdict == "passed", "one false part decides, whatever is missing"


def test_verdicts_of_a_rule() -> None:
    when = {"fact": "quantizer.bits", "le": 8}
    assert judge(when, {}, "tensor").verdict == "not-applicable"
    tensors = [{"name": "a", "quantizer": {"bits": 16}}, {"name": "b"}]
    result = judge(when, {"tensors": tensors}, "tensor")
    assert (result.verdict, result.judged, len(result.unknown)) == ("passed", 1, 1)
    assert judge(when, {"tensors": [{"name": "b"}]}, "tensor").verdict == "not-judged"
    tensors.append({"name": "c", "quantizer": {"bits": 8}})
    result = judge(when, {"tensors": tensors}, "tensor")
    assert (result.verdict, result.judged, [f.subject for f in result.findings]) == ("fired", 2, ["c"])


CONVOLUTIONS = {"fact": "op_type", "is": "Conv"}
RATIO = {"fact": "weight.channel_range_ratio", "gt": "$limit"}


def layer(name: str, op_type: str | None, ratio: float | None) -> dict[str, Any]:
    return {"name": name, "op_type": op_type, "weight": {"channel_range_ratio": ratio}}


def test_where_chooses_the_subjects() -> None:
    """Subjects that a rule is not asked of are neither judged nor unknown."""
    layers = [layer("a", "Conv", 64.0), layer("b", "Gemm", 64.0), layer("c", "Gemm", None), layer("d", "Conv", 2.0)]
    result = judge(RATIO, {"layers": layers}, "layer", where=CONVOLUTIONS)
    assert [finding.subject for finding in result.findings] == ["a"]
    assert (result.judged, result.unknown) == (2, ())
    assert [row.fact for row in result.findings[0].evidence] == ["weight.channel_range_ratio"]
    result = judge(RATIO, {"layers": layers[1:3]}, "layer", where=CONVOLUTIONS)
    assert result.verdict == "not-applicable"


def test_where_that_is_unknown_leaves_the_subject_unjudged() -> None:
    for ratio in (64.0, 2.0, None):
        result = judge(RATIO, {"layers": [layer("a", None, ratio)]}, "layer", where=CONVOLUTIONS)
        assert (result.verdict, result.unknown[0].missing) == ("not-judged", ("op_type",))
    result = judge(RATIO, {"layers": [layer("a", "Conv", None)]}, "layer", where=CONVOLUTIONS)
    assert result.unknown[0].missing == ("weight.channel_range_ratio",)


NO_DATA = [{"role": "representative"}, {"role": "validation"}]
HINTS = {"levels": "measured on --validation", "op_type": "read from the model"}


def of_operands(when: Any, *operands: dict[str, Any], datasets: Any = NO_DATA, **options: Any) -> Any:
    base = BASE.model_copy(update={"rules": (rule(when, "operand", **options),), "hints": HINTS})
    (result,) = evaluate(base, CaseFacts.model_validate({"operands": operands, "datasets": datasets}))
    return result


def test_without_data_a_rule_passes_only_where_all_was_judged() -> None:
    when, two = {"fact": "levels", "lt": 4}, ({"levels": 9}, {})
    assert of_operands(when, *two).verdict == "not-judged"
    assert of_operands(when, *two[:1]).verdict == "passed"
    assert of_operands(when, {"levels": 1}, {}).verdict == "fired"
    with_data = [{"role": "validation", "samples": 3}]
    assert of_operands(when, *two, datasets=with_data).verdict == "passed"


def test_without_data_nobody_can_say_that_a_fact_of_data_is_not_there() -> None:
    when = {"fact": "width", "gt": 1}
    asked = of_operands(when, {"width": 2.0}, where={"fact": "levels", "known": True})
    assert (asked.verdict, asked.unknown[0].missing) == ("not-judged", ("levels",))
    assert of_operands(when, {"width": 2.0}, where={"fact": "op_type", "known": True}).verdict == "not-applicable"
    with_data = [{"role": "validation", "samples": 3}]
    told = of_operands(when, {"width": 2.0}, where={"fact": "levels", "known": True}, datasets=with_data)
    assert told.verdict == "not-applicable"
    # That it is not known is true all the same: so a rule says what it makes of that.
    assert of_operands({"fact": "levels", "known": False}, {}).verdict == "fired"


def of_checkpoints(when: Any, *operands: dict[str, Any], framework: str = "gguf", **options: Any) -> Any:
    update = {"rules": (rule(when, "operand", **options),), "hints": HINTS}
    base = BASE.model_copy(update=update | {"checkpoint_hints": {"levels": "pass --tokens"}})
    facts = {"operands": operands, "datasets": NO_DATA, "model": {"framework": framework}}
    (result,) = evaluate(base, CaseFacts.model_validate(facts))
    return result


def test_what_cannot_be_given_to_checkpoints_makes_rules_not_applicable() -> None:
    few, narrow = {"fact": "levels", "lt": 4}, {"fact": "width", "lt": 4}
    assert of_checkpoints(few, {}).verdict == "not-judged"
    assert of_checkpoints(narrow, {}).verdict == "not-applicable"
    assert of_checkpoints(narrow, {}, framework="onnx").verdict == "not-judged"
    assert of_checkpoints({"all": [few, narrow]}, {}).verdict == "not-applicable"
    assert of_checkpoints({"any": [few, narrow]}, {}).verdict == "not-judged"
    assert of_checkpoints({"not": few}, {}).verdict == "not-judged"
    assert of_checkpoints({"not": narrow}, {}).verdict == "not-applicable"
    assert of_checkpoints({"any": [narrow, few]}, {"levels": 9}).verdict == "not-applicable"
    assert of_checkpoints(narrow, {"width": 9.0}, {}).verdict == "not-applicable", "the other one may have it"
    assert of_checkpoints(narrow, {"width": 1.0}, {}).verdict == "fired"


def test_texts_are_what_data_are_to_checkpoints() -> None:
    where = {"fact": "levels", "known": True}
    asked = of_checkpoints({"fact": "width", "gt": 1}, {"width": 2.0}, where=where)
    assert (asked.verdict, asked.unknown[0].missing) == ("not-judged", ("levels",))
    assert of_checkpoints({"fact": "width", "gt": 1}, {}, where=where).verdict == "not-applicable"


def test_results_keep_the_order_of_rules_and_subjects() -> None:
    rules = tuple(
        rule({"fact": "quantizer.bits", "le": 8}, "tensor").model_copy(update={"id": code}) for code in ("Z009", "A001")
    )
    tensors = [{"name": name, "quantizer": {"bits": 8}} for name in "cab"]
    results = evaluate(BASE.model_copy(update={"rules": rules}), CaseFacts.model_validate({"tensors": tensors}))
    assert [result.rule.id for result in results] == ["Z009", "A001"]
    assert [finding.subject for finding in results[0].findings] == ["c", "a", "b"]


def test_message_without_a_value_says_so() -> None:
    message = "opset {opset}, {size_ratio:.1%} of {operators:d} at {output_sqnr_db:.1f} dB, {{literal}}"
    when = {"fact": "opset", "known": True}
    (finding,) = judge(when, {"model": {"opset": 13, "operators": 7}}, message=message).findings
    assert finding.message == "opset 13, not measured of 7 at not measured dB, {literal}"


@pytest.mark.parametrize(
    "message, value, text",
    [
        ("{x:.1f} dB", float("inf"), "inf dB"),
        ("{x:.0%}", 0.5, "50%"),
        ("{x}", True, "True"),
        ("{x}", 0, "0"),
        ("{x:.3g}", 0.0, "0"),
        ("no field", None, "no field"),
        ("", None, ""),
    ],
)
def test_rendering(message: str, value: Any, text: str) -> None:
    assert render_message(message, lambda path: value) == text


def test_of_several_facts_the_first_that_has_a_value_is_written() -> None:
    known = {"b": 2.0, "c": 3.0}
    assert render_message("{a|b|c:.1f} {a|d}", known.get) == "2.0 not measured"


def test_a_list_is_written_as_its_entries() -> None:
    assert render_message("set: {a}", {"a": ("one: x", "two")}.get) == "set: one: x, two"


FACTS = {
    "model": {"opset": 13, "metric": {"drop": 0.1}},
    "datasets": [{"role": "representative", "samples": 8}, {"role": "validation", "samples": 99}],
    "layers": [{"name": "conv", "op_type": "Conv"}],
    "tensors": [{"name": "q", "float_name": "f", "producer_name": "conv"}, {"name": "q2", "float_name": "input"}],
    "operands": [{"layer": "cat", "index": 1, "tensor": "f"}],
    "outputs": [{"name": "logits", "tensor": {"producer_name": "fc"}}],
}
SCOPED = {
    "model": (["model"], [None]),
    "dataset": (["representative", "validation"], [None, None]),
    "layer": (["conv"], ["conv"]),
    "tensor": (["conv", "input"], ["conv", None]),
    "operand": (["cat[1]"], ["cat"]),
    "output": (["logits"], ["fc"]),
}


@pytest.mark.parametrize("scope", SCOPED)
def test_scopes_and_model_facts_from_everywhere(scope: str) -> None:
    names, layers = SCOPED[scope]
    prefix = "" if scope == "model" else "model."
    when = {"all": [{"fact": prefix + "opset", "ge": 13}, {"fact": prefix + "metric.drop", "gt": 0.05}]}
    result = judge(when, FACTS, scope, message=f"opset {{{prefix}opset}}")
    assert [finding.subject for finding in result.findings] == names
    assert [finding.layer for finding in result.findings] == layers
    assert {finding.message for finding in result.findings} == {"opset 13"}
    assert {row.subject for finding in result.findings for row in finding.evidence} == set(names)


def test_rule_of_one_data_set() -> None:
    when = {"all": [{"fact": "role", "is": "representative"}, {"fact": "samples", "lt": 100}]}
    result = judge(when, FACTS, "dataset")
    assert [finding.subject for finding in result.findings] == ["representative"]
    assert result.judged == 2


def test_the_other_data_set_of_a_tensor() -> None:
    tensor = {"name": "t", "representative": {"values": {"max": 1.0}}, "validation": {"values": {"max": 9.0}}}
    when = {"all": [{"fact": "validation.values.max", "gt": 5}, {"fact": "representative.values.max", "lt": 5}]}
    assert judge(when, {"tensors": [tensor]}, "tensor").verdict == "fired"
    assert judge(when, {"tensors": [{**tensor, "validation": {}}]}, "tensor").verdict == "not-judged"


def test_every_scope_has_subjects_even_on_an_empty_case() -> None:
    empty = CaseFacts()
    assert [len(subjects(scope, empty)) for scope in SCOPED] == [1, 0, 0, 0, 0, 0]


def test_names_of_subjects_without_a_name() -> None:
    assert subject_name(TensorFacts()) == "?"
    assert subject_name(TensorFacts(name="q")) == "q"
    assert subject_name(TensorFacts(name="q", float_name="f")) == "f"
    assert subject_name(OperandFacts(layer="add", index=0)) == "add[0]"
    assert subject_name(ModelFacts()) == "model"


def test_look_up_of_a_misspelt_path_is_an_error() -> None:
    with pytest.raises(AttributeError):
        look_up("data.values.absmx", TensorFacts(), ModelFacts())


def test_rule_yields_where_a_better_one_fires() -> None:
    """Only on the same subject, and only while the better one is in force."""
    better = rule({"fact": "channels", "gt": 4}, "tensor", id="X002", name="better-rule")
    weaker = rule({"fact": "channels", "gt": 1}, "tensor", yields_to=["X002"])
    facts = CaseFacts.model_validate({"tensors": [{"name": "a", "channels": 2}, {"name": "b", "channels": 8}]})

    def subjects(*rules: Rule) -> list[str]:
        (result, *_) = evaluate(BASE.model_copy(update={"rules": rules}), facts)
        return [finding.subject for finding in result.findings]

    assert subjects(weaker, better) == ["a"]
    assert subjects(weaker) == ["a", "b"]


def test_rule_whose_findings_are_all_explained_by_others_did_not_pass() -> None:
    better = rule({"fact": "channels", "gt": 4}, "tensor", id="X002", name="better-rule")
    weaker = rule({"fact": "channels", "gt": 1}, "tensor", yields_to=["X002"])

    def verdicts(channels: int) -> list[str]:
        facts = CaseFacts.model_validate({"tensors": [{"name": "a", "channels": channels}]})
        return [each.verdict for each in evaluate(BASE.model_copy(update={"rules": (weaker, better)}), facts)]

    assert verdicts(8) == ["not-applicable", "fired"]
    assert verdicts(2) == ["fired", "passed"]
    assert verdicts(1) == ["passed", "passed"]


def test_experiment_stands_in_for_the_symptom() -> None:
    """Where the symptom is not seen, or cannot be judged; not where the whole symptom of another cause is seen."""
    shown = {"when": {"fact": "source.share", "gt": 0.2}, "message": "makes {source.share:.0%}"}
    proven = rule({"fact": "channels", "gt": 4}, "tensor", message="declared", experiment=shown)
    declared = rule({"fact": "is_half", "is": True}, "tensor", id="X002", name="other-rule")
    tensors = [
        {"name": "loud", "channels": 2, "source": {"share": 0.5}},
        {"name": "quiet", "channels": 2, "source": {"share": 0.1}},
        {"name": "unknown", "source": {"share": 0.4}},
        {"name": "seen", "channels": 8, "source": {"share": 0.4}},
        {"name": "other", "channels": 2, "is_half": True, "source": {"share": 0.4}},
    ]
    facts = CaseFacts.model_validate({"tensors": tensors})
    result, _ = evaluate(BASE.model_copy(update={"rules": (proven, declared)}), facts)
    found = {finding.subject: (finding.message, finding.by_experiment) for finding in result.findings}
    assert found == {
        "loud": ("makes 50%", True),
        "unknown": ("makes 40%", True),
        "seen": ("declared", False),
    }
    assert not result.unknown
