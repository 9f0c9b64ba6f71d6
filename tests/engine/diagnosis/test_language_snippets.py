"""What is printed for language models can be pasted: it compiles, and every name in it is defined or told."""

import re
from pathlib import Path
from typing import Any

from builders.python_names import undefined_names

from quantmedic.api.rulebase import load_rulebase
from quantmedic.engine.case.facts import CaseFacts, LayerFacts
from quantmedic.engine.case.settings_in_force import SettingsInForce
from quantmedic.engine.contract.advised_remedies import Advice
from quantmedic.engine.diagnosis.group_options import group_fields
from quantmedic.engine.diagnosis.prescription import complete_code
from quantmedic.engine.diagnosis.snippets import own_names, render_snippets
from quantmedic.engine.rules.remedies import NAME_FIELDS, WEIGHT_FILES, Remedy, Snippet
from quantmedic.engine.rules.toolchain import options_in_force

BASE = load_rulebase()
LAYERS = ("model.layers.0.mlp.gate", "model.layers.1.mlp.gate")
INPUTS = {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": False}
GROUPS: dict[str, Any] = {
    "group_0": {
        "targets": ["Linear"],
        "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 64},
        "input_activations": INPUTS,
    }
}
CASE = CaseFacts.model_validate(
    {
        "model": {"language": {"activation_block": {"input_layer": "model.layers.0.mlp.down_proj"}}},
        "layers": [{"float_name": name, "weight": {"group_size": 64}} for name in LAYERS],
    }
)
TOOLCHAINS = {each.name: each for each in BASE.toolchains}
SNIPPETS = [
    (remedy, snippet)
    for remedy in BASE.remedies.values()
    for snippet in remedy.snippets
    if set(snippet.frameworks) & {*WEIGHT_FILES}
]
#: Settings in force of the forms of these toolchains: then a card is the whole call.
IN_FORCE = {
    form: options_in_force(toolchain, form, SettingsInForce(weight_type="uint4", declared_groups=GROUPS))
    for toolchain in BASE.toolchains
    for form in toolchain.in_force
}


def advice_of(remedy: Remedy, snippet: Snippet) -> Advice:
    fields = {
        **dict.fromkeys(NAME_FIELDS, LAYERS),
        **group_fields(CASE, LAYERS, GROUPS),
        **{field: {"a": 0.5} for field in remedy.values},
    }
    named = {"id": remedy.id, "title": remedy.title, "changes": "", "cost": {"says": "none"}, "unsafe": ""}
    return Advice.model_validate({**named, "scope": remedy.scope, "snippets": (snippet,), "fields": fields})


def test_undefined_names_are_found() -> None:
    assert undefined_names("import re\nre.escape(x)\ny = len(z)\nmtq.quantize(y, y=y)") == {"x", "z", "mtq"}


def test_a_card_defines_or_tells_every_name() -> None:
    wrong = {}
    for remedy, snippet in SNIPPETS:
        for in_force in ({}, IN_FORCE):  # alone, and as a whole call
            advice = advice_of(remedy, snippet).model_copy(update={"in_force": in_force})
            (code,) = render_snippets(advice, ["W000"])
            told = set(re.findall(r"^# (\w+): ", code, re.MULTILINE))
            if undefined_names(code) != told:
                wrong[remedy.id, snippet.toolchain] = (undefined_names(code), told)
    assert not wrong


def test_a_prescription_defines_every_name_but_those_that_it_asks_for() -> None:
    wrong = {}
    for remedy, snippet in SNIPPETS:
        toolchain = TOOLCHAINS[snippet.toolchain]
        (text,) = render_snippets(advice_of(remedy, snippet), ["W000"])
        code = complete_code("\n".join([text, *(form.after for form in snippet.forms.values())]), "python", toolchain)
        if undefined_names(code) != (asked := own_names(code, toolchain.given).keys()):
            wrong[remedy.id, snippet.toolchain] = (undefined_names(code), asked)
    assert not wrong


def test_no_model_is_overwritten() -> None:
    for remedy, snippet in SNIPPETS:
        texts = [snippet.code, *(form.after for form in snippet.forms.values())]
        saving = [
            row for text in texts for row in text.splitlines() if re.search(r"\.save|export_dir|\.gguf\", \"Q", row)
        ]
        assert all("unused(" in row for row in saving), remedy.id


def test_a_name_that_is_taken_gets_a_number(tmp_path: Path) -> None:
    names: dict[str, Any] = {"Path": Path}
    exec(TOOLCHAINS["llm-compressor"].helpers["unused"], names)  # text of the rules of this repository
    folder = tmp_path / "quantized-new"
    assert names["unused"](str(folder)) == str(folder)
    folder.mkdir()
    (tmp_path / "quantized-new-2").mkdir()
    assert names["unused"](str(folder)) == str(tmp_path / "quantized-new-3")
    (tmp_path / "m.gguf").touch()
    assert names["unused"](str(tmp_path / "m.gguf")) == str(tmp_path / "m-2.gguf")


def test_names_of_arguments_and_of_results_are_not_asked_for() -> None:
    asked: dict[str, set[str]] = {
        "f(scheme=1)": set(),
        "f(scheme=scheme)": {"scheme"},
        "scheme = 1\nf(scheme)": set(),
        "scheme = scheme + 1": {"scheme"},
        'f("scheme")': set(),
        "scheme.append(1)": {"scheme"},
        "for scheme in x:\n    scheme(1)": set(),
    }
    assert {code: set(own_names(code, {"scheme": "a scheme"})) for code in asked} == asked


def fields_of(groups: dict[str, Any], layers: tuple[str, ...] = LAYERS, case: CaseFacts = CASE) -> dict[str, Any]:
    return group_fields(case, layers, groups)


def group(**weights: Any) -> dict[str, Any]:
    own = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128, **weights}
    return {"targets": ["Linear"], "weights": own}


def test_groups_are_halved_where_that_is_allowed() -> None:
    for size, packed, others in [(128, 64, 64), (64, 32, 32), (32, 16, None), (16, None, None)]:
        case = CaseFacts(layers=(LayerFacts.model_validate({"weight": {"group_size": size}}),))
        found = fields_of({"a": group(group_size=size)}, case=case)
        assert found["smaller_group"] == others
        assert found["finer_groups"] == (None if packed is None else {"a": group(group_size=packed)})


def test_only_what_is_changed_differs() -> None:
    assert fields_of({"a": group(strategy="channel", group_size=None)})["finer_groups"] == {"a": group()}
    assert fields_of({"a": group(type="float", group_size=16)})["finer_groups"] is None
    assert fields_of({"a": group(group_size=32)})["zero_point_groups"] == {"a": group(group_size=32, symmetric=False)}
    assert fields_of({"a": group(symmetric=False)})["zero_point_groups"] is None
    without = [name for name, value in fields_of({}).items() if value is None]
    assert without == ["finer_groups", "zero_point_groups", "wider_groups", "token_groups", "open_groups"]


def test_named_layers_get_a_group_with_more_bits() -> None:
    found = fields_of({"group_0": group()})["wider_groups"]
    assert found == {"group_0": group(), "group_1": {**group(num_bits=8), "targets": [*LAYERS]}}
    assert fields_of({"group_0": group(num_bits=8)})["wider_groups"] is None
    assert fields_of({"group_0": group()}, layers=())["wider_groups"] is None


def test_a_group_of_nothing_but_named_layers_is_changed_itself() -> None:
    own = {**group(num_bits=2), "targets": [*LAYERS]}
    assert fields_of({"a": group(), "b": own})["wider_groups"] == {
        "a": group(),
        "b": {**own, "weights": group(num_bits=8)["weights"]},
    }
    more = {**own, "targets": [*LAYERS, "x.y"]}
    found = fields_of({"a": group(), "b": more})["wider_groups"]
    assert found["b"]["targets"] == ["x.y"] and found["group_0"]["targets"] == [*LAYERS]
    pattern = {**group(), "targets": ["re:.*gate$"]}
    assert fields_of({"a": group(), "b": pattern})["wider_groups"] is None, "which group is meant is not known here"


def test_inputs_get_scales_per_token_of_a_type_that_suits_the_weights() -> None:
    of_groups = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "dynamic": "local"}
    found = fields_of({"a": {**group(num_bits=8), "input_activations": of_groups}})["token_groups"]["a"]
    tokens = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
    assert found["input_activations"] == {**tokens, "group_size": None} and found["weights"]["num_bits"] == 8
    found = fields_of({"a": {**group(type="float", num_bits=8), "input_activations": INPUTS}})["token_groups"]["a"]
    assert found["input_activations"] == {**tokens, "type": "float"}
    assert fields_of({"a": {**group(), "input_activations": {**tokens, "type": "float"}}})["token_groups"] is None
    assert fields_of({"a": group()})["token_groups"] is None


def test_the_layer_whose_inputs_lose_most_keeps_them_in_float_in_every_block() -> None:
    found = fields_of(GROUPS)
    assert found["input_layers"] == (r"re:.*mlp\.down_proj$",)
    assert found["input_quantizers"] == ("*mlp.down_proj.input_quantizer",)
    new = found["open_groups"]["group_1"]
    assert new == {**GROUPS["group_0"], "targets": [r"re:.*mlp\.down_proj$"], "input_activations": None}
    assert found["open_groups"]["group_0"] == GROUPS["group_0"]
    named = {**GROUPS, "group_1": {**GROUPS["group_0"], "targets": ["model.layers.0.mlp.down_proj"]}}
    assert fields_of(named)["open_groups"] is None
