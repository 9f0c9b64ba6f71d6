"""Small classifiers of which one file ends with a function that the other lacks: is that named, and nothing else?"""

from pathlib import Path

import onnx
import pytest
from builders.onnx_models import Net, random, save_pair, static

import quantmedic

pytestmark = pytest.mark.thorough

DATA = random(3, 256, 16)


def classifier(*, ending: str | None = None) -> onnx.ModelProto:
    net = Net()
    net.const("first", random(1, 16, 24, scale=0.25))
    net.const("last", random(2, 24, 8, scale=0.5))
    x = net.add("Relu", net.add("MatMul", net.input("x", ["n", 16]), "first", out="product"), out="relu")
    head = net.add("MatMul", x, "last", out="head")
    net.output(net.add(ending or "Identity", head, out="scores"))
    return net.model()


def causes(folder: Path, *, float_ending: str | None, quantized_ending: str | None) -> list[tuple[str, ...]]:
    """The name and the rules of every cause, the first cause first."""
    quantized = static(classifier(ending=quantized_ending), {"x": DATA}, folder, per_channel=True)
    pair = save_pair(folder, classifier(ending=float_ending), quantized)
    diagnosis = quantmedic.judge(quantmedic.collect(*pair, validation=DATA, threads=1))
    return [(cause.cause, *cause.rules) for cause in diagnosis.causes]


def test_a_function_that_one_model_ends_with_is_named_first(tmp_path: Path) -> None:
    for ending in ("Softmax", "Sigmoid"):
        of_float = causes(tmp_path, float_ending=ending, quantized_ending=None)
        of_quantized = causes(tmp_path, float_ending=None, quantized_ending=ending)
        assert of_float[0] == of_quantized[0] == ("float-export-differs", "S030"), ending


@pytest.mark.nightly
def test_a_function_that_both_end_with_is_none(tmp_path: Path) -> None:
    for ending in ("Softmax", "Sigmoid"):
        found = causes(tmp_path, float_ending=ending, quantized_ending=ending)
        assert not [cause for cause in found if cause[0] == "float-export-differs"], ending
