"""Which remedies are advised, for which layers, and which are held back with which reason."""

from pathlib import Path
from typing import Any

import pytest

from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.contract.advised_remedies import Advice, Withheld
from quantmedic.engine.diagnosis.advice import advise
from quantmedic.engine.errors import RuleError
from quantmedic.engine.rules.evaluate import evaluate
from quantmedic.engine.rules.load import load_rules

THRESHOLDS = "limit: {value: 1.0, source: a guess, description: d, unit: ratio}"
RULE = """\
id: {id}
name: some-rule-{name}
cause: some-cause
scope: {scope}
severity: high
confidence: 0.5
when: {when}
message: message
remedies: [the-remedy]
"""
TENSOR_RULE = ("A001", "tensor", "{fact: data.values.zscore_max, gt: $limit}")
LAYER_RULE = ("W001", "layer", "{fact: weight.channel_range_ratio, gt: $limit}")
OPERAND_RULE = ("G001", "operand", "{fact: range_ratio, gt: $limit}")
MODEL_RULE = ("M001", "model", "{fact: degraded_share, gt: $limit}")
DATA_RULE = ("D001", "dataset", "{fact: range_growth, gt: $limit}")
NAMING_RULE = ("S001", "model", "{fact: first_nonfinite_layer, known: true}")


def base(tmp_path: Path, remedy: str, *rules: tuple[str, str, str]) -> Any:
    for of_another_base in tmp_path.iterdir():
        of_another_base.unlink()
    (tmp_path / "thresholds.yaml").write_text(THRESHOLDS)
    head = "the-remedy: {title: the remedy, changes: c, cost: none, unsafe: u, "
    (tmp_path / "remedies.yaml").write_text(f"{head}{remedy}}}")
    for id, scope, when in rules:
        (tmp_path / f"{id}.yaml").write_text(RULE.format(id=id, name=id.lower(), scope=scope, when=when))
    return load_rules([tmp_path])


def run(
    tmp_path: Path, remedy: str, facts: dict[str, Any], *rules: tuple[str, str, str]
) -> tuple[list[Advice], list[Withheld]]:
    case, loaded = CaseFacts.model_validate(facts), base(tmp_path, remedy, *rules)
    findings = [finding for result in evaluate(loaded, case) for finding in result.findings]
    assert findings
    advised, withheld = advise(findings, loaded, case)
    return list(advised), list(withheld)


def tensor(name: str, layer: str | None, *, zscore: float = 2.0, bits: int | None = 8, **rest: Any) -> dict[str, Any]:
    data = {"values": {"zscore_max": zscore}, "predicted_best_low": -zscore, "predicted_best_high": 0.5}
    names = {"name": f"{name}_q", "float_name": name, "producer_name": layer}
    return names | {"quantizer": {"bits": bits}, "data": data, "readers": []} | rest


def layer(name: str, output: dict[str, Any], ratio: float = 2.0, bits: int | None = 8, **rest: Any) -> dict[str, Any]:
    weight = {"name": f"{name}.weight", "channel_range_ratio": ratio, "quantizer": {"bits": bits}}
    nodes = {"float_nodes": [name, f"{name}_relu"]}
    return {"name": name, "float_name": name, "output": output, "weight": weight} | nodes | rest


def case(**rest: Any) -> dict[str, Any]:
    """Two layers behind an input."""
    tensors = [
        tensor("image", None, zscore=0.5, readers=["a"]),
        tensor("x", "a", readers=["b"]),
        tensor("y", "b", zscore=0.5),
    ]
    layers = [layer("a", tensors[1]), layer("b", tensors[2], ratio=3.0)]
    return {"tensors": tensors, "layers": layers} | rest


def test_a_remedy_without_conditions_is_for_all_that_was_found(tmp_path: Path) -> None:
    (advice,), withheld = run(tmp_path, "", case(), LAYER_RULE)
    assert (advice.layers, advice.tensors) == (("a", "b"), ("x", "y"))
    assert advice.cost.says == "none" and advice.cost.latency is None
    assert not withheld
    advised, (held,) = run(tmp_path, "scope: layer", {"tensors": [tensor("image", None, zscore=9.0)]}, TENSOR_RULE)
    assert not advised
    assert held.because == "it needs a layer, and this cause names none in the float model"


def test_where_it_is_in_force_it_is_not_advised(tmp_path: Path) -> None:
    remedy = "scope: layer, now: [weight.quantizer.bits], in_force: {fact: weight.quantizer.bits, ge: 8}"
    advised, (held,) = run(tmp_path, remedy, case(), LAYER_RULE)
    assert not advised and held.layers == ()
    assert held.because == "already in force (weight.quantizer.bits is 8)"
    facts = case()
    facts["layers"][0]["weight"]["quantizer"] = {"bits": 4}
    (advice,), withheld = run(tmp_path, remedy, facts, LAYER_RULE)
    assert (advice.layers, advice.tensors) == (("a",), ("x",))
    assert [(row.fact, row.value, row.subjects) for row in advice.now] == [("weight.quantizer.bits", 4, ("a",))]
    assert not withheld
    facts = case()
    facts["layers"][1]["weight"]["quantizer"] = {}
    (advice,), withheld = run(tmp_path, remedy, facts, LAYER_RULE)
    assert (advice.layers, advice.unsure) == (("b",), ("weight.quantizer.bits",)), "said, where it is not known"
    assert not withheld


def test_what_is_out_of_place_on_a_layer_is_withheld_there_with_the_reason(tmp_path: Path) -> None:
    reason = "{when: {fact: weight.channel_range_ratio, gt: 2.5}, because: 'differ {weight.channel_range_ratio:.1f}x'}"
    (advice,), (held,) = run(tmp_path, f"scope: layer, withheld: [{reason}]", case(), LAYER_RULE)
    assert advice.layers == ("a",)
    assert (held.id, held.because, held.layers) == ("the-remedy", "differ 3.0x", ("b",))


def test_a_remedy_of_another_scope_speaks_of_what_is_beside_the_finding(tmp_path: Path) -> None:
    (advice,), _ = run(tmp_path, "scope: layer, now: [weight.channel_range_ratio]", case(), TENSOR_RULE)
    assert (advice.layers, advice.tensors, advice.now[0].value) == (("a",), ("x",), 2.0), "the producer of a tensor"
    (advice,), _ = run(tmp_path, "scope: tensor, now: [data.values.zscore_max]", case(), LAYER_RULE, TENSOR_RULE)
    assert advice.tensors == ("x", "y"), "what a layer gives"
    operands = case(operands=[{"layer": "b", "index": 1, "range_ratio": 20.0}])
    (advice,), _ = run(tmp_path, "scope: tensor", operands, OPERAND_RULE)
    assert (advice.layers, advice.tensors) == (("b",), ("y",)), "the layer that joins an operand"
    loud_input = case()
    loud_input["tensors"][0] = tensor("image", None, zscore=9.0, readers=["a"])
    rule = ("A001", "tensor", "{fact: data.values.zscore_max, gt: 8}")
    (advice,), _ = run(tmp_path, "scope: layer", loud_input, rule)
    assert (advice.layers, advice.tensors) == (("a",), ("x",)), "the layers that read an input of the network"
    (advice,), _ = run(tmp_path, "scope: layer", case(model={"first_nonfinite_layer": "b"}), NAMING_RULE)
    assert advice.layers == ("b",), "the layer that a fact of the model names"


def test_for_the_whole_model_it_is_in_force_only_if_it_is_everywhere(tmp_path: Path) -> None:
    facts = case(model={"degraded_share": 2.0})
    remedy = "scope: tensor, in_force: {fact: quantizer.bits, ge: 16}"
    for view in facts["tensors"][:2]:
        view["quantizer"] = {"bits": 16}
    (advice,), withheld = run(tmp_path, remedy, facts, MODEL_RULE)
    assert (advice.layers, advice.tensors, withheld) == ((), (), [])
    facts["tensors"][2]["quantizer"] = {"bits": None}
    advised, (held,) = run(tmp_path, remedy, facts, MODEL_RULE)
    assert not advised, "a tensor without a quantizer says nothing about bits"
    assert held.because == "already in force (quantizer.bits is 16)"


def test_a_data_set_s_remedy_shows_that_set(tmp_path: Path) -> None:
    sets = [{"role": "representative", "samples": 32, "range_growth": 2.0}, {"role": "validation", "samples": 500}]
    (advice,), _ = run(tmp_path, "scope: dataset, now: [samples]", case(datasets=sets), DATA_RULE)
    assert [(row.value, row.subjects) for row in advice.now] == [(32, ("representative",))]


def test_names_for_snippets_are_those_of_the_float_graph(tmp_path: Path) -> None:
    facts = case()
    facts["layers"][1]["feeders"] = ["a"]
    code = "{layers} {nodes} {around} {group} {tensors} {weights}"
    (advice,), _ = run(tmp_path, f"snippets: [{{toolchain: t, code: '{code}'}}]", facts, TENSOR_RULE)
    names = {field: advice.fields[field] for field in ("layers", "nodes", "around", "group", "tensors", "weights")}
    assert names == {
        "layers": ("a",),
        "nodes": ("a", "a_relu"),
        "around": ("a", "a_relu", "b"),
        "group": ("a", "a_relu"),
        "tensors": ("x",),
        "weights": ("a.weight",),
    }
    rule = ("W001", "layer", "{fact: weight.channel_range_ratio, gt: 2.5}")
    (advice,), _ = run(tmp_path, "snippets: [{toolchain: t, code: '{group}'}]", facts, rule)
    assert advice.fields["group"] == ("b", "b_relu", "a", "a_relu"), "feeders belong to the group"


def test_nodes_without_a_name_make_no_snippet(tmp_path: Path) -> None:
    """An option that takes names would ignore them in silence."""
    facts = case()
    facts["layers"][0]["float_nodes"] = []
    advised, (held,) = run(tmp_path, "snippets: [{toolchain: t, code: '{nodes}'}]", facts, TENSOR_RULE)
    assert not advised
    assert held.because == "nothing in the float model has a name that its options could take"
    two = "snippets: [{toolchain: t, code: '{nodes}'}, {toolchain: t, code: '{tensors}'}]"
    (advice,), _ = run(tmp_path, two, facts, TENSOR_RULE)
    assert [snippet.code for snippet in advice.snippets] == ["{tensors}"]


def test_a_snippet_for_the_whole_model_is_not_shown_for_named_layers(tmp_path: Path) -> None:
    remedy = "snippets: [{toolchain: t, code: all, whole: true}, {toolchain: t, code: '{layers}'}]"
    (advice,), _ = run(tmp_path, remedy, case(), LAYER_RULE)
    assert [snippet.code for snippet in advice.snippets] == ["{layers}"]
    (advice,), _ = run(tmp_path, remedy, case(model={"degraded_share": 2.0}), MODEL_RULE)
    assert [snippet.code for snippet in advice.snippets] == ["all"]


def test_values_are_bounds_or_tables(tmp_path: Path) -> None:
    facts = case()
    facts["tensors"][0] = tensor("image", None, zscore=2.0004, readers=["a"])
    values = "{most: data.values.zscore_max, ranges: [data.predicted_best_low, data.predicted_best_high]}"
    code = "{most} {ranges}"
    remedy = f"scope: tensor, values: {values}, snippets: [{{toolchain: t, code: '{code}'}}]"
    (advice,), _ = run(tmp_path, remedy, facts, TENSOR_RULE)
    assert advice.fields["most"] == 2.01, "rounded up, so that it still bounds the fact"
    assert advice.fields["ranges"] == {"image": (-2.0004, 0.5), "x": (-2.0, 0.5)}
    for view in facts["tensors"]:
        view["data"]["predicted_best_low"] = None
    advised, (held,) = run(tmp_path, remedy, facts, TENSOR_RULE)
    assert not advised and "nothing" in held.because


def test_a_rule_whose_findings_name_no_layer_cannot_have_a_remedy_that_only_names_layers(tmp_path: Path) -> None:
    remedy = "snippets: [{toolchain: t, code: 'exclude={layers}'}]"
    with pytest.raises(RuleError, match="every snippet of 'the-remedy' names layers or tensors, but M001 finds none"):
        base(tmp_path, remedy, MODEL_RULE)
    base(tmp_path, f"snippets: [{{toolchain: t, code: all, whole: true}}, {remedy[11:-1]}]", MODEL_RULE)
    base(tmp_path, remedy, NAMING_RULE)


#: A remedy, and what is wrong with it.
WRONG = {
    "now: [quantizer.bit], scope: tensor": "unknown fact 'quantizer.bit'; did you mean 'quantizer.bits'?",
    "in_force: {fact: quantizer.bits, ge: 8}, scope: layer": "unknown fact 'quantizer.bits'",
    "in_force: {fact: opset, ge: many}": "opset cannot be compared with ge: 'many'",
    "in_force: {fact: opset, ge: $limt}": "unknown threshold 'limt'; did you mean 'limit'?",
    "withheld: [{when: {fact: opset, lt: 13}, because: 'opset {opsett}'}]": "unknown fact 'opsett'",
    "withheld: [{when: {fact: opset, lt: 13}, because: '{name:.1f}'}]": "name cannot be written with the format",
    "withheld: [{when: {fact: opset, lt: 13}, because: 'opset {'}]": "the reason is not a valid format string",
    "values: {most: weight.absmax}, scope: layer": "unknown fact 'weight.absmax'",
    "snippets: [{toolchain: t, code: '{layer_names}'}]": "unknown field 'layer_names'",
    "simulate: more-bits": "unknown kind of change 'more-bits'",
    "snippets: [{toolchain: t, code: c, mark: seen}]": "Input should be 'run', 'source' or 'documentation'",
    "scope: operand": "Input should be 'model'",
}


def test_a_remedy_that_cannot_work_is_refused_when_it_is_read(tmp_path: Path) -> None:
    for remedy, message in WRONG.items():
        with pytest.raises(RuleError) as error:
            base(tmp_path, remedy, LAYER_RULE)
        assert message in error.value.message
        assert "remedies.yaml:1" in error.value.where[0]
