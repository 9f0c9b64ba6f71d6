"""Which toolchain a model comes from, and how users call it."""

import pytest

from quantmedic.api.rulebase import load_rulebase
from quantmedic.engine.case.facts import ModelFacts, SettingsFacts
from quantmedic.engine.case.settings_in_force import SettingsInForce
from quantmedic.engine.diagnosis.snippets import with_settings
from quantmedic.engine.errors import RuleError
from quantmedic.engine.rules.toolchain import InForce, Toolchain, choose, find_toolchain, options_in_force
from quantmedic.engine.rules.toolchain_options import Form

BASE = load_rulebase()
TOOLCHAINS = BASE.toolchains
ORT = "quantizer relu > relu_QuantizeLinear_Output > relu_DequantizeLinear_Output"


def test_names_as_users_say_them() -> None:
    for asked, name in {
        "ort": "onnxruntime",
        "ONNX-Runtime": "onnxruntime",
        "ONNX Runtime": "onnxruntime",
        "mct": "Sony MCT",
        "litert": "ai-edge-quantizer",
        "tflite": "TensorFlow converter",
        "inc": "Intel Neural Compressor",
        "horizon": "Horizon OpenExplorer",
        "quantize_": "torchao",
        "TensorRT": "NVIDIA ModelOpt",
        "autogptq": "GPTQModel",
        "awq": "AutoAWQ",
        "bnb": "bitsandbytes",
        "gguf": "llama.cpp",
    }.items():
        assert find_toolchain(asked, TOOLCHAINS).name == name


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(RuleError, match="unknown toolchain 'horizn'; did you mean 'horizon'") as error:
        find_toolchain("horizn", TOOLCHAINS)
    assert "ort" in error.value.help and "torchao" in error.value.help


def test_no_two_toolchains_share_a_name_and_snippets_know_theirs() -> None:
    names = [name for each in TOOLCHAINS for name in each.names]
    assert len(names) == len(set(names))
    used = {snippet.toolchain for remedy in BASE.remedies.values() for snippet in remedy.snippets}
    unknown = used - {each.name for each in TOOLCHAINS}
    assert not unknown, "snippets of rules/remedies.yaml name toolchains that rules/toolchains.yaml does not hold"


#: Producer and marks of a model, its toolchain, and how that was recognized.
MARKS: list[tuple[str | None, tuple[str, ...] | None, str | None, str]] = [
    ("onnx.quantize 0.1.0", (ORT,), "onnxruntime", "recognized by its producer onnx.quantize 0.1.0"),
    ("pytorch 2.4", ("metadata onnx.infer", ORT), "onnxruntime", "recognized by its metadata onnx.infer"),
    (
        "onnx.quantize 0.1.0",
        ("quantizer x_QuantizeInput > x_quantized > x",),
        "Intel Neural Compressor",
        "recognized by its names of quantizers (…_QuantizeInput)",
    ),
    (
        "pytorch 2.4",
        ("quantizer relu > q_output_relu_0 > dq_output_relu_0", "weights pass a QuantizeLinear"),
        "NNCF",
        "recognized by its names of quantizers (q_output_…, dq_output_…)",
    ),
    ("pytorch 2.4", ("domain mct_quantizers",), "Sony MCT", "recognized by its domain mct_quantizers"),
    ("x", ("operator HzDequantize",), "Horizon OpenExplorer", "recognized by its operator HzDequantize"),
    (
        "pytorch 2.4",
        ("weights pass a QuantizeLinear",),
        "NVIDIA ModelOpt",
        "guessed from its weights, which pass a QuantizeLinear as TensorRT wants it",
    ),
    ("pytorch 2.4", (), None, "not recognized from the model: the pytorch 2.4 that wrote it may be the exporter"),
    (None, (), None, "not recognized from the model: it names no producer"),
    (None, None, None, "not recognized from the model: it names no producer"),
]


def test_marks_of_models() -> None:
    for producer, marks, name, how in MARKS:
        found = choose(ModelFacts(toolchain=producer, toolchain_marks=marks), TOOLCHAINS)
        assert (found.name, found.how, found.named) == (name, how, False)


def test_a_configuration_that_was_read_tells_it() -> None:
    model = ModelFacts(toolchain="onnx.quantize 0.1.0", settings=SettingsFacts(toolchain="Horizon OpenExplorer"))
    found = choose(model, TOOLCHAINS)
    assert (found.name, found.named) == ("Horizon OpenExplorer", False)
    assert found.how == "recognized by its files"
    assert choose(model, TOOLCHAINS, "ort").name == "onnxruntime", "the user knows better"
    assert choose(model, TOOLCHAINS, "ort").named
    strange = model.model_copy(update={"settings": SettingsFacts(toolchain="no such tool")})
    assert choose(strange, TOOLCHAINS).name == "onnxruntime"


def test_settings_that_decide_together_and_what_is_stated_wherever_nothing_else_is_said() -> None:
    joined = InForce(
        setting="weight_type, per_channel_weights",
        values={"int8, True": {"config": {"Rows()": {}}}, "int4, False": {"config": {"Groups()": {}}}},
    )
    form = Form(defaults={"config": {"Default()": {}}, "names": []})
    toolchain = Toolchain(name="T", title="T", names=("t",), checked="1", forms={"f": form}, in_force={"f": (joined,)})
    shown = SettingsInForce(weight_type="int8", per_channel_weights=True)
    assert options_in_force(toolchain, "f", shown) == {"config": {"Rows()": {}}, "names": []}
    assert options_in_force(toolchain, "f", SettingsInForce())["config"] == {"Default()": {}}
    with pytest.raises(ValueError, match="unknown setting"):
        InForce(setting="weight_type, per_chanel_weights")


def test_forms_are_written_for_the_framework_of_the_models() -> None:
    """NNCF takes ONNX models and OpenVINO models by other calls, with the same options."""
    own, other = (
        find_toolchain("nncf", BASE.for_framework(framework).toolchains).forms["nncf.quantize"]
        for framework in ("openvino", "onnx")
    )
    assert own.positional[0] == '=openvino.Core().read_model("float.xml")' and "openvino.save_model" in own.after
    assert other == find_toolchain("nncf", TOOLCHAINS).forms["nncf.quantize"]
    written = [
        snippet.forms["nncf.quantize"].positional[0]
        for remedy in BASE.for_framework("openvino").remedies.values()
        for snippet in remedy.snippets
        if "nncf.quantize" in snippet.forms
    ]
    assert len(written) > 10 and set(written) == {own.positional[0]}
    assert BASE.for_framework("onnx") is BASE and BASE.for_framework(None) is BASE


def test_nncf_is_known_by_what_it_leaves_in_an_ir() -> None:
    marks = ("rt_info nncf/quantization/preset", "rt_info nncf/version")
    chosen = choose(ModelFacts(framework="openvino", toolchain_marks=marks), TOOLCHAINS)
    assert chosen.name == "NNCF" and chosen.how == "recognized by its entries in rt_info"


def test_gptq_keeps_what_the_configuration_of_the_checkpoint_says() -> None:
    toolchain = find_toolchain("gptqmodel", TOOLCHAINS)
    shown = SettingsInForce(weight_type="uint3", declared_group_size=-1, declared_symmetric=False, declared_order=False)
    kept = options_in_force(toolchain, "QuantizeConfig", shown)
    assert kept == {"bits": 3, "group_size": -1, "sym": False, "desc_act": False}
    assert options_in_force(toolchain, "QuantizeConfig", SettingsInForce(declared_group_size=64)) == {}


GROUPS = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "strategy": "group", "group_size": 64}}}


def test_llm_compressor_keeps_the_groups_and_the_cache_of_the_configuration() -> None:
    toolchain = find_toolchain("llm-compressor", TOOLCHAINS)
    cache = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    shown = SettingsInForce(declared_groups=GROUPS, declared_cache=cache, float_layers={"Gemm": ("lm_head",)})
    kept = options_in_force(toolchain, "QuantizationModifier", shown)
    assert kept == {"config_groups": GROUPS, "kv_cache_scheme": cache, "ignore": ("lm_head",)}
    assert options_in_force(toolchain, "QuantizationModifier", SettingsInForce()) == {
        "targets": "Linear", "scheme": "=scheme"
    }  # fmt: skip


def test_a_scheme_of_a_remedy_stands_in_the_place_of_groups() -> None:
    """The call refuses both."""
    toolchain = find_toolchain("llm-compressor", TOOLCHAINS)
    form = toolchain.forms["QuantizationModifier"]
    kept = options_in_force(toolchain, "QuantizationModifier", SettingsInForce(declared_groups=GROUPS))
    text = with_settings("QuantizationModifier", form, {"scheme": "FP8_DYNAMIC"}, kept)
    assert "config_groups=" not in text and 'targets="Linear"' in text
    assert 'scheme="FP8_DYNAMIC",  # changed by the remedy: in the place of config_groups' in text
    text = with_settings("QuantizationModifier", form, {"kv_cache_scheme": "=None"}, kept)
    assert "scheme=scheme" not in text and '"group_size": 64' in text and "kv_cache_scheme=None,  # changed" in text


def test_texts_of_a_configuration_are_no_code() -> None:
    toolchain = find_toolchain("llm-compressor", TOOLCHAINS)
    groups = {"=exit()": {"targets": ["=exit()", "x()"], "weights": {"type": "=exit()"}}}
    kept = options_in_force(toolchain, "QuantizationModifier", SettingsInForce(declared_groups=groups))
    text = with_settings("QuantizationModifier", toolchain.forms["QuantizationModifier"], {}, kept)
    assert text.count("exit()") == text.count('"=exit()"') == 3 and '"x()"' in text
