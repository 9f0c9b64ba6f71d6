"""Evaluation: three-valued logic, evidence, missing facts, messages and scopes."""

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
            assert (value is not None) is row.threshold if row.comparison == "known" else value is row.threshold


#: Operator and its threshold, with values for which it holds and for which it does not.
COMPARISONS: list[tuple[str, Any, list[float], list[float]]] = [
    ("gt", 5, [5.1, float("inf")], [5]),
    ("ge", 5, [5], [4.9]),
    ("lt", 5, [4.9, float("-inf")], [5]),
    ("le", 5, [5], [5.1]),
    ("is", 5, [5], [4]),
    ("is_not", 5, [4], [5]),
    ("in", [4, 5], [5], [6]),
    ("gt", "$limit", [21], [20]),
    ("known", True, [5, 0], []),
    ("known", False, [], [5, 0]),
]


def test_comparisons_and_what_was_not_measured() -> None:
    """Whether a fact is known is always decided: zero is a measurement, None is none."""
    for op, threshold, holding, failing in COMPARISONS:
        when = {"fact": "output_sqnr_db", op: threshold}
        for value in (*holding, *failing):
            result = judge(when, {"model": {"output_sqnr_db": value}})
            assert (bool(result.findings), result.judged) == (value in holding, 1), (op, threshold, value)
        missing = judge(when, {})
        if op == "known":
            assert (bool(missing.findings), missing.unknown) == (not threshold, ())
        else:
            assert (missing.verdict, missing.unknown[0].missing) == ("not-judged", ("output_sqnr_db",)), op


def test_evidence_holds_value_threshold_source_and_subject() -> None:
    when = {"all": [{"fact": "op_type", "is": "Conv"}, {"fact": "weight.channel_range_ratio", "gt": "$limit"}]}
    layer = {"name": "conv1", "op_type": "Conv", "weight": {"channel_range_ratio": 64.0}}
    (finding,) = judge(when, {"layers": [layer]}, "layer").findings
    assert (finding.subject, finding.layer) == ("conv1", "conv1")
    first, second = finding.evidence
    assert (first.fact, first.value, first.comparison, first.threshold, first.source) == (
        "op_type",
        "Conv",
        "is",
        "Conv",
        None,
    )
    assert (second.fact, second.value, second.comparison) == ("weight.channel_range_ratio", 64.0, "gt")
    assert (second.threshold, second.source, second.subject) == (20.0, "a book", "conv1")


def test_evidence_is_the_parts_that_hold_and_no_exclusion() -> None:
    any_of = {"any": [{"fact": "opset", "lt": 10}, {"fact": "operators", "gt": 5}, {"fact": "training_nodes", "gt": 0}]}
    exclusion = {"all": [{"fact": "opset", "lt": 10}, {"not": {"fact": "operators", "gt": 5}}]}
    for when in (any_of, exclusion):
        (finding,) = judge(when, {"model": {"opset": 9, "operators": 3}}).findings
        assert [row.fact for row in finding.evidence] == ["opset"]


def test_facts_shown_stand_before_those_compared() -> None:
    """What was not measured is not shown; zero is."""
    when, shows = {"fact": "opset", "lt": 10}, ["toolchain", "framework", "training_nodes"]
    model = {"opset": 9, "toolchain": "t", "training_nodes": 0}
    (finding,) = judge(when, {"model": model}, shows=shows).findings
    rows = [(row.fact, row.value, row.comparison, row.threshold, row.source, row.subject) for row in finding.evidence]
    assert rows == [
        ("toolchain", "t", "shown", None, None, "model"),
        ("training_nodes", 0, "shown", None, None, "model"),
        ("opset", 9, "lt", 10, None, "model"),
    ]


def test_missing_facts_are_those_that_leave_it_open() -> None:
    """A part that is already true does not ask for more, nor does a fact that was measured."""
    when = {
        "all": [
            {"fact": "opset", "lt": 10},
            {"any": [{"fact": "operators", "gt": 5}, {"fact": "training_nodes", "gt": 0}]},
            {"any": [{"fact": "size_ratio", "gt": 5}, {"fact": "opset", "gt": 0}]},
            {"not": {"fact": "degraded_share", "gt": 0.5}},
            {"fact": "toolchain", "known": False},
        ]
    }
    result = judge(when, {"model": {"opset": 9, "operators": 3}})
    assert result.unknown[0].missing == ("training_nodes", "degraded_share")
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


def test_rendering() -> None:
    """Of several facts the first that has a value is written; a list is written as its entries."""
    facts = {"end": float("inf"), "half": 0.5, "yes": True, "zero": 0, "texts": ("one: x", "two"), "b": 2.0, "c": 3.0}
    message = "{end:.1f} dB {half:.0%} {yes} {zero} {zero:.3g} {a|b|c:.1f} {a|d} {texts}"
    assert render_message(message, facts.get) == "inf dB 50 % True 0 0 2.0 not measured one: x, two"
    assert render_message("no field", facts.get) == "no field"


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


def test_scopes_and_model_facts_from_everywhere() -> None:
    for scope, (names, layers) in SCOPED.items():
        prefix = "" if scope == "model" else "model."
        when = {"all": [{"fact": prefix + "opset", "ge": 13}, {"fact": prefix + "metric.drop", "gt": 0.05}]}
        result = judge(when, FACTS, scope, message=f"opset {{{prefix}opset}}")
        assert [finding.subject for finding in result.findings] == names, scope
        assert [finding.layer for finding in result.findings] == layers, scope
        assert {finding.message for finding in result.findings} == {"opset 13"}
        assert {row.subject for finding in result.findings for row in finding.evidence} == set(names)
        assert bool(subjects(scope, CaseFacts())) == (scope == "model"), "of an empty case"


def test_names_of_subjects_without_a_name() -> None:
    assert subject_name(TensorFacts()) == "?"
    assert subject_name(TensorFacts(name="q")) == "q"
    assert subject_name(TensorFacts(name="q", float_name="f")) == "f"
    assert subject_name(OperandFacts(layer="add", index=0)) == "add[0]"
    assert subject_name(ModelFacts()) == "model"


def test_look_up_of_a_misspelt_path_is_an_error() -> None:
    with pytest.raises(AttributeError):
        look_up("data.values.absmx", TensorFacts(), ModelFacts())
