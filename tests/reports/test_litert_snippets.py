"""Snippets for ai-edge-quantizer are run as rendered for a LiteRT model; those that name layers change just these."""

import re
from typing import Any

import numpy as np
import pytest
from builders.recordings import RECORDINGS

from quantmedic import collect, load_rulebase
from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.diagnosis.advice import advise
from quantmedic.engine.diagnosis.prescription import complete_code
from quantmedic.engine.diagnosis.snippets import render_snippets
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.rules.evaluate import Finding
from quantmedic.engine.rules.rule import Rule

runtime = pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")
quantizer = pytest.importorskip("ai_edge_quantizer.quantizer", reason="ai-edge-quantizer is not installed")
recipe = pytest.importorskip("ai_edge_quantizer.recipe", reason="ai-edge-quantizer is not installed")

BASE = load_rulebase()
TOOLCHAINS = {toolchain.name: toolchain for toolchain in BASE.toolchains}
DATA = RECORDINGS / "debugger"
FLOAT = DATA / "float.tflite"
MARKED = [
    pytest.param(remedy.id, number, id=f"{remedy.id}-{number}")
    for remedy in BASE.remedies.values()
    for number, snippet in enumerate(remedy.snippets)
    if snippet.toolchain == "ai-edge-quantizer" and snippet.mark == "run"
]
POINT = "functional_1/point_1/BiasAdd;functional_1/point_1/convolution;functional_1/point_1/Squeeze1"
SIGMOID = "functional_1/gate_1/Sigmoid"


def samples() -> dict[str, list[dict[str, Any]]]:
    (array,) = np.load(DATA / "data.npz").values()
    return {"serving_default": [{"keras_tensor": sample[None]} for sample in array]}


@pytest.fixture(scope="module")
def facts() -> CaseFacts:
    return derive(collect(FLOAT, DATA / "int8.tflite", validation=DATA / "data.npz", threads=1), BASE)


@pytest.fixture(scope="module")
def calibration() -> Any:
    """What one calibration of the whole network gave."""
    return quantizer.Quantizer(str(FLOAT), recipe.static_wi8_ai8()).calibrate(samples())


def code_of(remedy: str, number: int, facts: CaseFacts, layer: str) -> str:
    """One snippet of a remedy, rendered for a layer with its imports; conditions left out."""
    rule = {"id": "X001", "name": "any-rule", "cause": "any-cause", "severity": "low", "confidence": 0.5, "message": ""}
    rule |= {"scope": "layer", "when": {"fact": "name", "known": True}, "remedies": [remedy]}
    finding = Finding(Rule.model_validate(rule), layer, layer, "", ())
    asked = BASE.remedies[remedy]
    snippet = asked.snippets[number].model_copy(update={"whole": False})
    asked = asked.model_copy(update={"in_force": None, "withheld": (), "snippets": (snippet,)})
    (advice,), _ = advise([finding], BASE.model_copy(update={"remedies": {remedy: asked}}), facts)
    (code,) = render_snippets(advice, ["X001"])
    return complete_code(code, "python", TOOLCHAINS[snippet.toolchain])


def number_of(remedy: str, toolchain: str = "ai-edge-quantizer") -> int:
    return next(i for i, s in enumerate(BASE.remedies[remedy].snippets) if s.toolchain == toolchain)


def quantized(code: str, calibration: Any) -> dict[str, str]:
    """Type of what each operator writes, by its name, after one more quantization with the calibration of before."""
    q = quantizer.Quantizer(str(FLOAT), recipe.static_wi8_ai8())
    exec(compile(code, "snippet", "exec"), {"q": q, "data": samples(), "model_bytes": FLOAT.read_bytes()})
    interpreter = runtime.Interpreter(model_content=bytes(q.quantize(calibration).quantized_model))
    found = {}
    for op in interpreter._get_ops_details():
        details = interpreter._get_tensor_details(op["outputs"][0], 0)
        if op["op_name"] not in ("QUANTIZE", "DEQUANTIZE"):
            found[details["name"]] = np.dtype(details["dtype"]).name
    return found


@pytest.mark.parametrize("remedy, number", MARKED)
def test_a_snippet_marked_as_run_runs(remedy: str, number: int, facts: CaseFacts, calibration: Any) -> None:
    assert quantized(code_of(remedy, number, facts, POINT), calibration)


@pytest.mark.parametrize("layer", [POINT, SIGMOID])
def test_a_named_layer_alone_stays_in_float_without_calibrating_again(
    layer: str, facts: CaseFacts, calibration: Any
) -> None:
    plain = quantized("", calibration)
    assert set(plain.values()) == {"int8"}
    kept = quantized(code_of("keep-layers-float", number_of("keep-layers-float"), facts, layer), calibration)
    assert {name for name, kind in kept.items() if kind == "float32"} == {layer}


def test_a_named_layer_alone_gets_sixteen_bits(facts: CaseFacts, calibration: Any) -> None:
    wide = quantized(code_of("activations-16-bit", number_of("activations-16-bit"), facts, POINT), calibration)
    assert {name for name, kind in wide.items() if kind == "int16"} == {POINT}


def test_all_layers_of_a_type_stay_in_float(facts: CaseFacts, calibration: Any) -> None:
    code = code_of("keep-operator-types-float", number_of("keep-operator-types-float"), facts, POINT)
    kept = quantized(code, calibration)
    convolutions = {name for name in kept if "convolution" in name or "depthwise" in name}
    assert {name for name, kind in kept.items() if kind == "float32"} == convolutions


@pytest.mark.parametrize("remedy", ["keep-layers-float", "keep-operator-types-float"])
def test_a_denylist_of_tensorflow_names_tensors_of_the_float_model(remedy: str, facts: CaseFacts) -> None:
    """The debugger ignores a name that is not one of its tensors, whole: so every name has to be one."""
    code = code_of(remedy, number_of(remedy, "TensorFlow converter"), facts, POINT)
    (listed,) = re.findall(r"denylisted_nodes=\[(.*)\]\)", code)
    names = re.findall(r'"([^"]*)"', listed)
    interpreter = runtime.Interpreter(str(FLOAT))
    known = {tensor["name"] for tensor in interpreter.get_tensor_details()}
    assert POINT in names and set(names) <= known
    assert len(names) == (1 if remedy == "keep-layers-float" else 4)
