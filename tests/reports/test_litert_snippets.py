"""Scripts for ai-edge-quantizer: nothing in force is lost, every snippet runs, and what names layers changes these."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.advised import advice_on
from builders.litert_models import every_operator, quantized
from builders.recordings import RECORDINGS

from quantmedic import collect, load_rulebase
from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.case.settings_in_force import SettingsInForce
from quantmedic.engine.diagnosis.prescription import complete_code
from quantmedic.engine.diagnosis.settings_in_force import settings_in_force
from quantmedic.engine.diagnosis.snippets import filled_options, render_snippet, render_snippets
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.rules.toolchain import options_in_force
from quantmedic.engine.rules.toolchain_options import Options, merge_all, write

pytestmark = pytest.mark.thorough

runtime = pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")
quantizer = pytest.importorskip("ai_edge_quantizer.quantizer", reason="ai-edge-quantizer is not installed")
recipe = pytest.importorskip("ai_edge_quantizer.recipe", reason="ai-edge-quantizer is not installed")

BASE = load_rulebase()
TOOLCHAINS = {toolchain.name: toolchain for toolchain in BASE.toolchains}
LITERT = TOOLCHAINS["ai-edge-quantizer"]
DATA = RECORDINGS / "debugger"
FLOAT = DATA / "float.tflite"
MARKED = [
    (remedy.id, number)
    for remedy in BASE.remedies.values()
    for number, snippet in enumerate(remedy.snippets)
    if snippet.toolchain == "ai-edge-quantizer" and snippet.mark == "run" and "repair" not in snippet.fields
]
POINT = "functional_1/point_1/BiasAdd;functional_1/point_1/convolution;functional_1/point_1/Squeeze1"
SUM = "functional_1/act_1/Relu;functional_1/sum_1/Add"
SIGMOID = "functional_1/gate_1/Sigmoid"
RESHAPE = "functional_1/flatten_1/Reshape"
HEAD = "functional_1/head_1/MatMul;functional_1/head_1/BiasAdd"
#: For cases that only settings are read from.
BRIEF: dict[str, Any] = {"threads": 1, "attribution": False}
Execute = Callable[[str], bytes]


def samples() -> dict[str, list[dict[str, Any]]]:
    (array,) = np.load(DATA / "data.npz").values()
    return {"serving_default": [{"keras_tensor": sample[None]} for sample in array]}


@pytest.fixture(scope="module")
def facts() -> CaseFacts:
    return derive(collect(FLOAT, DATA / "int8.tflite", validation=DATA / "data.npz", threads=1), BASE)


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Execute:
    """Runs a script in a folder with the float model and nothing else; returns the model that it writes."""
    (tmp_path / "float.tflite").write_bytes(FLOAT.read_bytes())
    monkeypatch.chdir(tmp_path)

    def run(code: str) -> bytes:
        (tmp_path / "int8.tflite").unlink(missing_ok=True)
        exec(compile(code, "prescription.py", "exec"), {"data": samples()})
        return (tmp_path / "int8.tflite").read_bytes()

    return run


def code_of(remedy: str, number: int, facts: CaseFacts, layer: str, settings: SettingsInForce | None = None) -> str:
    """The whole script for one snippet of a remedy, rendered for a layer."""
    advice = advice_on(BASE, remedy, facts, layer, BASE.remedies[remedy].snippets[number])
    (snippet,) = advice.snippets
    code = [render_snippet(snippet.code, advice.fields, "X001")] if snippet.code else []
    return script_of(
        filled_options(snippet, advice.fields, "X001")["recipe"], settings or settings_in_force(facts), code
    )


def script_of(options: Options, settings: SettingsInForce, code: Sequence[str] = ()) -> str:
    """The script with the settings in force and these options."""
    merged = merge_all([options, options_in_force(LITERT, "recipe", settings)])
    return complete_code("\n".join([*code, write("recipe", LITERT.forms["recipe"], merged)]), "python", LITERT)


def number_of(remedy: str, toolchain: str = "ai-edge-quantizer") -> int:
    return next(i for i, s in enumerate(BASE.remedies[remedy].snippets) if s.toolchain == toolchain)


def types_of(content: bytes) -> dict[str, str]:
    """Type of what each operator writes, by its name."""
    interpreter = runtime.Interpreter(
        model_content=content,
        experimental_op_resolver_type=runtime.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    found = {}
    for op in interpreter._get_ops_details():
        details = interpreter._get_tensor_details(op["outputs"][0], 0)
        if op["op_name"] not in ("QUANTIZE", "DEQUANTIZE"):
            found[details["name"]] = np.dtype(details["dtype"]).name
    return found


def kept_of(content: bytes) -> set[str]:
    return {name for name, kind in types_of(content).items() if kind == "float32"}


@pytest.mark.nightly
def test_the_settings_in_force_give_the_same_model_again(
    subtests: pytest.Subtests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = every_operator().litert()
    (shape,) = (each["shape"] for each in runtime.Interpreter(model_content=content).get_input_details())
    feed = {"image": np.random.default_rng(0).normal(size=(8, *shape[1:])).astype(np.float32)}
    (tmp_path / "float.tflite").write_bytes(content)
    modes = [("int8", False), ("int8", True), ("int16", False), ("dynamic", True), ("weights", False)]
    for mode, per_tensor in (*modes, ("float16", False)):
        with subtests.test(mode, per_tensor=per_tensor):
            patient = quantized(content, mode, feed, per_tensor=per_tensor)
            (tmp_path / "patient.tflite").write_bytes(patient)
            case = collect(tmp_path / "float.tflite", tmp_path / "patient.tflite", validation=feed, **BRIEF)
            code = script_of({}, settings_in_force(derive(case, BASE)))
            exec(compile(code, "prescription.py", "exec"), {"data": {"serving_default": [feed]}})
            assert (tmp_path / "int8.tflite").read_bytes() == patient, code


MIXED: dict[str, Options] = {
    "float-layer": {"float_layers": [POINT]},
    "float-ends": {"float_ends": ["INPUT", "OUTPUT"]},
    "float-input": {"float_ends": ["INPUT"]},
    "one-scale": {"layers": {POINT: {"weight_tensor_config": {"granularity": "=QuantGranularity.TENSORWISE"}}}},
    "four-bits": {"layers": {POINT: {"weight_tensor_config": {"num_bits": 4}}}},
    "wide-layer": {"layers": {POINT: {"activation_tensor_config": {"num_bits": 16, "symmetric": True}}}},
    "symmetric": {
        "config": {
            "OpQuantizationConfig()": {
                "activation_tensor_config": {"TensorQuantizationConfig()": {"symmetric": True}},
            }
        }
    },
}


@pytest.mark.nightly
def test_what_is_set_for_single_layers_is_kept(
    subtests: pytest.Subtests, facts: CaseFacts, execute: Execute, tmp_path: Path
) -> None:
    for name, options in MIXED.items():
        with subtests.test(name):
            patient = execute(script_of(options, settings_in_force(facts)))
            (tmp_path / "patient.tflite").write_bytes(patient)
            assert patient != (DATA / "int8.tflite").read_bytes()
            pair = tmp_path / "float.tflite", tmp_path / "patient.tflite"
            code = script_of({}, settings_in_force(derive(collect(*pair, validation=DATA / "data.npz", **BRIEF), BASE)))
            assert execute(code) == patient, code


def test_every_snippet_is_python_by_itself_and_one_that_no_patient_is_for_runs(
    subtests: pytest.Subtests, facts: CaseFacts, execute: Execute
) -> None:
    """All others heal a patient in test_litert_prescription."""
    for remedy, number in MARKED:
        with subtests.test(f"{remedy}-{number}"):
            for text in render_snippets(
                advice_on(BASE, remedy, facts, POINT, BASE.remedies[remedy].snippets[number]), ["X001"]
            ):
                compile(text, remedy, "exec")
            if remedy in ("per-tensor-for-named-weights", "calibrate-again", "learned-rounding", "bias-correction-on"):
                code = code_of(remedy, number, facts, POINT)
                assert execute(code), code


def test_a_named_layer_stays_in_float_with_its_readers(facts: CaseFacts, execute: Execute) -> None:
    assert not kept_of(execute(script_of({}, settings_in_force(facts))))
    for layer, around in ((POINT, {POINT, SUM}), (SIGMOID, {SIGMOID, RESHAPE, HEAD})):
        code = code_of("keep-layers-float", number_of("keep-layers-float"), facts, layer)
        assert kept_of(execute(code)) == around


def test_a_named_layer_alone_gets_sixteen_bits(facts: CaseFacts, execute: Execute) -> None:
    wide = types_of(execute(code_of("activations-16-bit", number_of("activations-16-bit"), facts, POINT)))
    assert {name for name, kind in wide.items() if kind == "int16"} == {POINT}


def test_all_layers_of_a_type_stay_in_float(facts: CaseFacts, execute: Execute) -> None:
    made = execute(code_of("keep-operator-types-float", number_of("keep-operator-types-float"), facts, POINT))
    assert kept_of(made) == {name for name in types_of(made) if "convolution" in name or "depthwise" in name}


def test_a_denylist_of_tensorflow_names_tensors_of_the_float_model(facts: CaseFacts) -> None:
    """The debugger ignores a name that is not one of its tensors, whole: so every name has to be one."""
    known = {tensor["name"] for tensor in runtime.Interpreter(str(FLOAT)).get_tensor_details()}
    for remedy, count in (("keep-layers-float", 1), ("keep-operator-types-float", 4)):
        snippet = BASE.remedies[remedy].snippets[number_of(remedy, "TensorFlow converter")]
        (code,) = render_snippets(advice_on(BASE, remedy, facts, POINT, snippet), ["X001"])
        (listed,) = re.findall(r"denylisted_nodes=\[(.*)\]\)", code)
        names = re.findall(r'"([^"]*)"', listed)
        assert POINT in names and set(names) <= known and len(names) == count
