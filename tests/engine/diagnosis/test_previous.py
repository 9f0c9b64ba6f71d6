"""Against the previous case: what changed, what it brought, which remedies were tried, and the order that follows."""

import math
from typing import Any

import pytest
import yaml

from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.contract.previous_report import Changed, Previous, Tried
from quantmedic.engine.diagnosis.assemble import Provenance, make_diagnosis
from quantmedic.engine.diagnosis.previous import PreviousCase, compare_with_previous, differs
from quantmedic.engine.rules.remedies import Remedy
from quantmedic.engine.rules.rule import Rule
from quantmedic.engine.rules.rulebase import RuleBase, Threshold

THRESHOLDS = {
    "drop_large": 0.04,
    "drop_moderate": 0.015,
    "degrade_layer_ratio": 0.5,
    "previous_effect_db": 1.0,
    "grave_share": 0.5,
    "carried_share": 0.2,
    "notable_share": 0.05,
}
GRANULARITY = "weight.quantizer.granularity"
#: What remedies say of themselves: where they act, what they set, when they are in force, which range they aim at.
REMEDIES: dict[str, dict[str, Any]] = {
    "split-weights": {"scope": "layer", "in_force": {"fact": GRANULARITY, "is": "per_channel"}},
    "float-layers": {"scope": "layer", "in_force": {"fact": "executed_as", "is": "float"}},
    "turn-axis": {"scope": "layer", "now": ("weight.quantizer.axis",)},
    "clip-range": {"scope": "tensor", "now": ("quantizer.low", "quantizer.high"), "simulate": "best-range"},
    "widen-range": {"scope": "tensor", "now": ("quantizer.low", "quantizer.high"), "simulate": "full-range"},
    "more-data": {"scope": "dataset", "now": ("samples",)},
    "follow-noise": {"scope": "layer", "now": ("output.data.accumulated.sqnr_db",)},
}
RULES: list[dict[str, Any]] = yaml.safe_load("""
- {id: W001, cause: weight-spread, scope: layer, severity: high, remedies: [split-weights, float-layers, follow-noise],
   when: {fact: weight.channel_range_ratio, gt: 16}}
- {id: A001, cause: far-outliers, scope: tensor, severity: medium, remedies: [clip-range, widen-range],
   when: {fact: data.values.zscore_max, gt: 8}}
- {id: D001, cause: few-samples, scope: dataset, severity: medium, remedies: [more-data],
   when: {fact: range_growth, gt: 0.05}}
""")


def rule_base() -> RuleBase:
    common = {"confidence": 0.5, "message": "bad"}
    return RuleBase(
        rules=tuple(Rule.model_validate({"name": row["cause"], **common, **row}) for row in RULES),
        thresholds={k: Threshold(name=k, value=v, source="test", description="d") for k, v in THRESHOLDS.items()},
        remedies={
            name: Remedy.model_validate({"id": name, "title": name, "changes": "c", "cost": "c", "unsafe": "u", **says})
            for name, says in REMEDIES.items()
        },
    )


BASE = rule_base()


def tensor(name: str, low: float = -1.0, high: float = 1.0, zscore: float = 3.0, **quantizer: Any) -> dict[str, Any]:
    grid = {"scale": (high - low) / 255, "low": low, "high": high, "bits": 8, "symmetric": False, **quantizer}
    data = {"values": {"zscore_max": zscore}, "predicted_best_low": -0.5, "predicted_best_high": 0.5}
    return {"name": f"{name}_q", "float_name": f"{name}_out", "producer_name": name, "quantizer": grid, "data": data}


def layer(name: str, ratio: float = 2.0, granularity: str = "per_tensor", **fields: Any) -> dict[str, Any]:
    grid = {"granularity": granularity, "bits": 8, "scale": fields.pop("scale", 0.1), "axis": fields.pop("axis", None)}
    weight = {"name": f"{name}.weight", "channel_range_ratio": ratio, "quantizer": grid}
    return {"name": name, "float_name": name, "weight": weight, "executed_as": "integer", **fields}


def facts(
    layers: list[dict[str, Any]] | None = None,
    tensors: list[dict[str, Any]] | None = None,
    growth: float = 0.0,
    samples: int = 50,
    sqnr: float | None = 10.0,
    drop: tuple[float, float, float] | None = (0.3, 0.25, 0.35),
    **model: Any,
) -> CaseFacts:
    metric = {"name": "top1", "drop": drop[0], "drop_low": drop[1], "drop_high": drop[2]} if drop else {}
    data = {"role": "representative", "samples": samples, "range_growth": growth, "mean": (0.5, 0.4)}
    return CaseFacts.model_validate(
        {
            "layers": layers or [layer("a"), layer("b")],
            "tensors": tensors or [tensor("a"), tensor("b")],
            "datasets": [data],
            "model": {"output_sqnr_db": sqnr, "harmed": True, "metric": metric, **model},
        }
    )


def judge(measured: CaseFacts, past: PreviousCase | None = None, base: RuleBase = BASE) -> Diagnosis:
    return make_diagnosis(
        base, measured, lambda findings: (), lambda change, outcome: measured, provenance=Provenance("1"), previous=past
    )


def before(measured: CaseFacts, *, shared: float = 1.0, same_data: bool = True) -> PreviousCase:
    return PreviousCase(measured, judge(measured).causes, {"representative": shared}, same_data)


def previous(then: CaseFacts, now: CaseFacts, **options: Any) -> Previous:
    return compare_with_previous(before(then, **options), now, BASE)


def changes(then: CaseFacts, now: CaseFacts, **options: Any) -> dict[str, Changed]:
    return {f"{row.of}: {row.setting}": row for row in previous(then, now, **options).changed}


def tried(then: CaseFacts, now: CaseFacts, **options: Any) -> dict[tuple[str, str], Tried]:
    return {(row.cause, row.remedy): row for row in previous(then, now, **options).tried}


# What changed


def test_what_counts_as_another_setting() -> None:
    other = [(1.0, 1.02), (-2.0, 2.0), (100, 101), (None, 3), (True, False), ("per_tensor", "per_channel")]
    other += [((0.0, 1.0), (0.02, 1.0)), ((0.0, 1.0), (0.0, 1.0, 2.0))]
    same = [(1.0, 1.009), (None, None), ((0.0, 1.0), (0.005, 1.0)), (0.0, 0.0)]
    assert all(differs(then, now) and differs(now, then) for then, now in other)
    assert not any(differs(then, now) or differs(now, then) for then, now in same)
    found = previous(facts(), facts())
    assert (found.changed, found.tried, found.effect.gain_db, found.effect.helped) == ((), (), 0.0, False)


def test_settings_of_layers_activations_and_data_are_told() -> None:
    now = facts(
        [layer("a", granularity="per_channel", scale=0.05), layer("b", scale=0.2, executed_as="float")],
        [tensor("a", -2, 2), tensor("b") | {"quantizer": {}}],
        samples=500,
    )
    found = changes(facts(), now, shared=0.25)
    assert {name: row.count for name, row in found.items()} == {
        "layer: weight granularity": 1,
        "layer: weight scale": 1,
        "layer: kernel": 1,
        "activation: range": 1,
        "activation: quantizer": 1,
        "data set: samples": 1,
        "data set: share of the same samples": 1,
    }
    (change,) = found["activation: range"].examples
    assert (change.subject, change.before, change.after) == ("a_out", (-1.0, 1.0), (-2.0, 2.0))
    (change,) = found["layer: weight scale"].examples
    assert change.subject == "b", "a scale per channel is another scale anyway"
    (change,) = found["activation: quantizer"].examples
    assert (change.before, change.after) == ("static", "none")
    (change,) = found["data set: share of the same samples"].examples
    assert change.after == 0.25


def test_stored_scales_of_language_models_and_group_sizes_are_told() -> None:
    def case(size: int, inputs: float, key: float) -> CaseFacts:
        weight = {"name": "a.weight", "group_size": size, "quantizer": {"bits": 4, "granularity": "per_block"}}
        rows = [{"layer": "blocks.0.up", "scale": 1.0}, {"layer": "blocks.0.down", "scale": inputs}]
        block = {"name": "blocks.0", "inputs": rows, "key_scale": key}
        named = [{"name": "a", "float_name": "a", "weight": weight}]
        return facts(named, language={"blocks": [{**block, "value_scale": 1.0}]})

    found = changes(case(32, 0.1, 2.0), case(128, 0.9, 4.0))
    assert found.keys() == {"layer: weight group size", "layer: stored scale of inputs", "block: stored scale of keys"}
    example = found["layer: stored scale of inputs"].examples[0]
    assert (example.subject, example.before, example.after) == ("blocks.0.down", 0.1, 0.9)
    assert not changes(case(32, 0.1, 2.0), case(32, 0.1, 2.0))


def test_cases_of_older_versions_tell_the_scale_of_the_layer_that_loses_most() -> None:
    def case(scale: float, name: str = "blocks.0.down") -> CaseFacts:
        return facts(language={"blocks": [{"name": "blocks.0", "input_layer": name, "input_scale": scale}]})

    assert changes(case(0.1), case(0.9)).keys() == {"layer: stored scale of inputs"}
    assert not changes(case(0.1), case(0.9, "blocks.0.up"))


def test_how_all_weights_of_a_checkpoint_are_stored_is_no_setting() -> None:
    """Any other run of a toolchain writes another text there, whatever was asked for."""
    finer = Remedy.model_validate(
        {"id": "finer-weights", "title": "t", "changes": "c", "cost": "c", "unsafe": "u", "now": ("format",)}
    )
    rule = {**RULES[0], "name": "coarse-weights", "confidence": 0.5, "message": "bad", "scope": "model"}
    rule |= {"when": {"fact": "harmed", "is": True}, "remedies": [finer.id]}
    base = BASE.model_copy(update={"rules": (Rule.model_validate(rule),), "remedies": {finer.id: finer}})
    for framework, is_tried in [("onnx", True), ("safetensors", False), ("gguf", False)]:
        then, now = (facts(framework=framework, format=text) for text in ("4-bit in groups of 32", "4-bit"))
        past = PreviousCase(then, judge(then, base=base).causes, {"representative": 1.0}, True)
        assert bool(compare_with_previous(past, now, base).tried) == is_tried, framework


def test_weights_left_in_float_and_layers_without_a_twin() -> None:
    float_weight = layer("a")
    float_weight["weight"]["quantizer"] = {}
    found = changes(facts(), facts([float_weight, layer("other")]))
    (change,) = found["layer: weights"].examples
    assert (change.subject, change.before, change.after) == ("a", "8 bit", "float")
    assert set(found) == {"layer: weights"}


# What it brought


def test_effect() -> None:
    known: list[tuple[dict[str, Any], dict[str, Any], float | None, bool | None]] = [
        ({"sqnr": 10.0}, {"sqnr": 10.9}, 0.9, False),
        ({"sqnr": 10.0}, {"sqnr": 11.0}, 1.0, True),
        ({"sqnr": 10.0}, {"sqnr": 4.0}, -6.0, False),
        ({"sqnr": math.inf}, {"sqnr": math.inf}, 0.0, False),
        ({"sqnr": 10.0}, {"sqnr": math.inf}, math.inf, True),
        ({"sqnr": None, "drop": None}, {"sqnr": 10.0, "drop": None}, None, None),
        ({"sqnr": None}, {"sqnr": 10.0}, None, False),
        ({}, {"drop": (0.26, 0.2, 0.3)}, 0.0, False),
        ({}, {"drop": (0.24, 0.2, 0.3)}, 0.0, True),
        ({"drop": None}, {}, 0.0, False),
    ]
    for then, now, gain, helped in known:
        effect = previous(facts(**then), facts(**now)).effect
        expected = pytest.approx(gain) if gain is not None else None
        assert (effect.gain_db, effect.helped) == (expected, helped), (then, now)


def test_other_samples_and_metrics_are_not_compared() -> None:
    effect = previous(facts(drop=None), facts(sqnr=30.0, drop=None), same_data=False).effect
    assert (effect.gain_db, effect.helped) == (None, None)
    effect = previous(facts(), facts(sqnr=30.0, drop=(0.1, 0.05, 0.2)), same_data=False).effect
    assert (effect.gain_db, effect.helped) == (None, True), "a drop is one of the task, whatever the samples"
    now = facts()
    other = now.model.metric.model_copy(update={"name": "top5", "drop": 0.0})
    now = now.model_copy(update={"model": now.model.model_copy(update={"metric": other})})
    effect = previous(facts(), now).effect
    assert (effect.metric, effect.drop, effect.helped) == (None, None, False)


# What was tried

SPREAD = [layer("a", 64), layer("b", 40)]


def test_remedy_that_came_into_force_was_tried() -> None:
    split = [layer("a", 64, "per_channel"), layer("b", 40)]
    noisy = layer("a", 64, output={"data": {"accumulated": {"sqnr_db": 9.0}}})
    assert tried(facts(SPREAD), facts([noisy, layer("b", 40)])) == {}, "noise changes with every remedy"
    row = tried(facts(SPREAD), facts(split))["weight-spread", "split-weights"]
    assert (row.subjects, row.everywhere, row.helped, row.effect_db) == (("a",), False, False, 0.0)
    assert set(tried(facts(SPREAD), facts(split))) == {("weight-spread", "split-weights")}
    assert tried(facts(SPREAD), facts(split, sqnr=20.0))["weight-spread", "split-weights"].helped is True


def test_range_counts_for_the_remedy_that_moves_it_so() -> None:
    """Any calibration changes ranges; only one that came nearer to the best or covers more is that remedy."""
    then = facts(tensors=[tensor("a", zscore=20), tensor("b")])
    for low, high, remedy in [
        (-0.8, 0.8, "clip-range"),
        (-1.5, 1.0, "widen-range"),
        (-1.5, 0.5, None),
        (-1.004, 1.0, None),
    ]:
        expected = {("far-outliers", remedy)} if remedy else set()
        assert set(tried(then, facts(tensors=[tensor("a", low, high, zscore=20), tensor("b")]))) == expected
        other = facts(tensors=[tensor("a", zscore=20), tensor("b", low, high)])
        assert tried(then, other) == {}, "another tensor"


def test_data_count_by_number_and_content() -> None:
    then, now = facts(growth=0.2), facts(growth=0.2, samples=400)
    assert tried(then, then) == {}
    row = tried(then, now)["few-samples", "more-data"]
    assert (row.subjects, row.everywhere) == (("representative",), True)
    assert set(tried(then, then, shared=0.5)) == {("few-samples", "more-data")}
    past = PreviousCase(then, judge(then).causes, {}, same_data=False)
    assert compare_with_previous(past, now, BASE).tried == (), "a set that one case lacks tells of no remedy"


def test_remedies_of_absorbed_findings_count() -> None:
    then = facts(SPREAD)
    (cause,) = judge(then).causes
    found = {"rule": "A001", "name": "far-outliers", "subject": "b", "message": "bad"}
    absorbing = type(cause).model_validate({**cause.model_dump(), "remedies": (), "absorbs": [found]})
    past = PreviousCase(then, (absorbing,), {"representative": 1.0}, True)
    now = facts(SPREAD, [tensor("a"), tensor("b", -2, 2)])
    assert [(row.cause, row.remedy) for row in compare_with_previous(past, now, BASE).tried] == [
        ("far-outliers", "widen-range")
    ]


# The order


def both(**options: Any) -> CaseFacts:
    """Spread weights and outliers; the weights lead."""
    tensors = options.pop("tensors", [tensor("a", zscore=20), tensor("b")])
    return facts(options.pop("layers", SPREAD), tensors, **options)


def test_cause_that_was_tried_in_vain_goes_last_with_that_remedy() -> None:
    first = judge(both())
    assert [cause.cause for cause in first.causes] == ["weight-spread", "far-outliers"] and first.previous is None
    split = [layer("a", 64, "per_channel"), layer("b", 40, "per_channel")]
    found = judge(both(layers=split, sqnr=10.2), before(both()))
    assert [cause.cause for cause in found.causes] == ["far-outliers", "weight-spread"]
    last = found.causes[-1]
    assert [(row.remedy, row.helped) for row in last.tried] == [("split-weights", False)]
    assert last.tried[0].effect_db == pytest.approx(0.2)
    assert "split-weights" not in [remedy.id for remedy in last.remedies][:-1]
    assert found.advice_place == "folded", "a cause is left that was not tried"
    assert found.previous is not None
    assert Previous.model_validate_json(found.previous.model_dump_json()).tried == found.previous.tried


def test_what_helped_keeps_its_place() -> None:
    split = [layer("a", 64, "per_channel"), layer("b", 40, "per_channel")]
    found = judge(both(layers=split, sqnr=20.0), before(both()))
    assert [cause.cause for cause in found.causes] == ["weight-spread", "far-outliers"]
    assert not any(cause.tried for cause in found.causes)
    assert found.previous is not None
    assert [row.helped for row in found.previous.tried] == [True]


def test_remedy_on_few_of_the_layers_does_not_speak_against_the_cause() -> None:
    many = [layer(name, 64) for name in "abcde"]
    found = judge(both(layers=[layer("a", 64, "per_channel"), *many[1:]]), before(both(layers=many)))
    assert found.causes[0].cause == "weight-spread"
    assert found.causes[0].tried == ()
    assert found.previous is not None
    assert [row.subjects for row in found.previous.tried] == [("a",)], "it is told all the same"
