"""Errors name parameters in Python, and options on the command line."""

import inspect
import math

import pytest
from builders.commands import run_quantmedic

from quantmedic import collect, diagnose, load_rulebase, search
from quantmedic.api.arguments import CollectArguments
from quantmedic.api.keywords import FLAGS, NAMES, for_python, with_parameters
from quantmedic.api.options import DEFAULT_BUDGET, ProofOptions
from quantmedic.demo import patient
from quantmedic.engine.errors import QuantmedicError


def test_options_become_parameters() -> None:
    for text, found in [
        ("pass --labels with --metric, or set the goal", "pass labels=… with metric=…, or set the goal"),
        ("give --metric f1; pick another", 'give metric="f1"; pick another'),
        ("write --metric module:function", 'write metric="module:function"'),
        ("pick one with --metric-option output=NAME, or", "pick one with metric_output=NAME, or"),
        ("--metric-option direction=higher or lower", 'metric_direction="higher" or lower'),
        ("--expected-float-metric 0.75", "expected_float_metric=0.75"),
        ("pass --budget 12s or more", "pass prove=12 or more"),
        ("give --max-drop 1.0 (points) or --min-sqnr 30 (dB)", "give max_drop=1.0 (points) or min_sqnr_db=30 (dB)"),
        ("without --step-error rounding is measured", "without step_error=True rounding is measured"),
        (
            "--preprocess validation.scale=255 (or so)",
            'preprocessing={"validation": quantmedic.Preprocessing(scale=255)} (or so)',
        ),
        (
            "for both: -p scale=255 -p mean=… (one: -p validation.scale=…)",
            "for both: preprocessing=quantmedic.Preprocessing(scale=255, mean=…) "
            '(one: preprocessing={"validation": quantmedic.Preprocessing(scale=…)})',
        ),
        (
            "are last, pass --preprocess layout=NHWC",
            "are last, pass preprocessing=quantmedic.Preprocessing(layout=NHWC)",
        ),
        ("--stage a=float.onnx --stage b=x.onnx", 'stages={"a": "float.onnx"} stages={"b": "x.onnx"}'),
        ("leave --static out", "leave collect_static out"),
        ("with: quantmedic explain --new-rule x --rules y", "with: quantmedic explain --new-rule x --rules y"),
        ("pip install --upgrade quantmedic", "pip install --upgrade quantmedic"),
        ("the array a--b", "the array a--b"),
    ]:
        assert with_parameters(text) == found


def test_an_error_says_in_python_what_python_takes() -> None:
    def fail() -> None:
        raise QuantmedicError("no labels", where="--expected-float-metric 0.5", help="pass --labels")

    with pytest.raises(QuantmedicError) as error:
        fail()
    assert str(error.value) == "no labels\n  --expected-float-metric 0.5\nhelp: pass --labels"
    with pytest.raises(QuantmedicError) as error:
        for_python(fail)()
    assert str(error.value) == "no labels\n  expected_float_metric=0.5\nhelp: pass labels=…"


def test_the_parameters_exist() -> None:
    functions = (collect, diagnose, search, load_rulebase)
    known = {name for function in functions for name in inspect.signature(function).parameters}
    known |= CollectArguments.__annotations__.keys()
    assert {name.replace("-", "_") for name in FLAGS} | set(NAMES.values()) <= known


@pytest.mark.thorough
def test_python_and_the_command_line_are_told_their_own_words() -> None:
    (source, quantized), data = patient()
    with pytest.raises(QuantmedicError) as error:
        collect(source, quantized, validation=data["validation"])
    assert "quantmedic.Preprocessing(scale=255, mean=…, std=…)" in str(error.value) and "--" not in str(error.value)
    done = run_quantmedic("diagnose", source, quantized, "-v", data["validation"])
    assert done.returncode == 2 and "-p scale=255" in done.stderr


def test_true_is_the_usual_budget() -> None:
    assert ProofOptions(prove=True).budget == DEFAULT_BUDGET
    assert ProofOptions(prove=False).budget is None
    assert ProofOptions(prove=None).budget is None
    assert ProofOptions(prove=False, write_fixed="fixed.onnx").budget == DEFAULT_BUDGET
    assert ProofOptions(prove=5.0, write_fixed="fixed.onnx").budget == 5.0
    assert ProofOptions(prove=math.inf).budget == math.inf
