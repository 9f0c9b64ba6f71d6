"""Snippets: this model's names, and nothing that can fail or run."""

import ast
import json

import pytest

from quantmedic.engine.diagnosis import CauseReport, LayerName
from quantmedic.reports.snippets import layer_names, name_list, preferred, quote, render_snippet, tensor_names


def cause(subjects: tuple[str, ...], layers: tuple[LayerName, ...]) -> CauseReport:
    return CauseReport(
        cause="some-cause",
        rules=("X001",),
        severity="high",
        confidence=0.5,
        subjects=subjects,
        layers=layers,
        message="",
        evidence=(),
        remedies=(),
        manual="manual/X001",
    )


def test_layers_are_filled_in_and_doubled_braces_are_braces() -> None:
    code = 'quantize(nodes_to_exclude={layers}, extra_options={{"a": {{"b": 1}}}})'
    assert render_snippet(code, ["conv1", "conv2"], []) == (
        'quantize(nodes_to_exclude=["conv1", "conv2"], extra_options={"a": {"b": 1}})'
    )


def test_a_snippet_cannot_read_attributes_or_fail() -> None:
    assert render_snippet("{layers.__class__} {0} {oops} {", ["a"], []) == "{layers.__class__} {0} {oops} {"


def test_without_names_a_placeholder_stands() -> None:
    assert render_snippet("exclude={layers}", [], []) == "exclude=[...]"


@pytest.mark.parametrize(
    "name", ["plain", 'quo"te', "back\\slash", "new\nline", "</script>", "nul\x00", "\u202e", "層"]
)
def test_quoted_names_are_exact_in_python_and_json(name: str) -> None:
    assert ast.literal_eval(quote(name)) == name
    assert json.loads(quote(name)) == name
    assert not set("<>&\n\x00") & set(quote(name))


def test_toolchains_get_the_names_of_the_float_model() -> None:
    layers = (LayerName(float_name="conv", quantized_name="conv_quant"), LayerName(float_name=None, quantized_name="q"))
    assert layer_names(cause((), layers)) == ("conv", "q")
    assert name_list(layer_names(cause((), layers))) == '["conv", "q"]'


def test_a_layer_is_never_passed_off_as_a_tensor() -> None:
    layers = (LayerName(float_name="concat", quantized_name=None),)
    found = tensor_names(cause(("concat", "concat[1]", "images", "model", "representative"), layers))
    assert found == ("output of concat", "images")


def test_the_toolchain_of_the_model_comes_first() -> None:
    offered = ["Sony MCT", "onnxruntime", "Intel Neural Compressor"]
    assert preferred(offered, "onnx.quantize") == 1
    assert preferred(offered, "neural_compressor") == 2
    assert preferred(offered, "something else") == 0
    assert preferred(offered, None) == 0
