"""Relu and Clip that OpenVINO drops in front of quantizers are read back, where the float model has them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders.onnx_models import Net, images, random, save_pair, without_relu
from builders.openvino_models import fake_quantize, openvino
from builders.tiers import others_nightly
from numpy.typing import NDArray

import quantmedic
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_models import graph_runner
from quantmedic.collectors.from_openvino.openvino_file import read_ir
from quantmedic.collectors.from_openvino.openvino_graph import OpenVINOGraph, graph_of
from quantmedic.collectors.from_openvino.openvino_models import OpenVINOModels, open_models
from quantmedic.collectors.from_openvino.openvino_session import Session

pytestmark = [pytest.mark.thorough, pytest.mark.attributed]

Array = NDArray[Any]
X = images()
#: Steps in front of the Relu, and behind it.
COARSE, FINE = 4.0, 0.1


def net(quantized: bool) -> onnx.ModelProto:
    """Two convolutions with a Relu between them, of which operands are quantized, but no weights."""
    made = Net()

    def rounded(x: str, scale: float, zero: np.generic) -> str:
        return made.quantize(x, scale, zero) if quantized else x

    x = made.conv(rounded(made.input("image", ["n", 3, 8, 8]), 0.05, np.int8(0)), random(0, 4, 3, 3, 3), out="first")
    x = made.add("Relu", rounded(x, COARSE, np.int8(0)), out="rectified")
    made.output(made.conv(rounded(x, FINE, np.uint8(0)), random(1, 2, 4, 3, 3), out="second"))
    return made.model()


def converted(folder: Path, *pair: onnx.ModelProto) -> OpenVINOModels:
    made = []
    for path in save_pair(folder, *pair):
        made.append(path.with_suffix(".xml"))
        openvino().save_model(openvino().convert_model(path), made[-1], compress_to_fp16=False)
    kinds = [op.get_type_name() for op in openvino().Core().read_model(made[1]).get_ordered_ops()]
    assert "Relu" not in kinds and kinds.count("FakeQuantize") == 3
    return open_models(*made)


def translated(graph: OpenVINOGraph, x: Array = X) -> tuple[list[Array], list[Array]]:
    """Outputs of OpenVINO and of the translation."""
    found = graph_runner(graph, graph.outputs, 1)(Batch({graph.inputs[0]: x}))
    return Session(graph, [], 1).run([x])[0], found


def assert_translated(graph: OpenVINOGraph) -> None:
    """A value in the middle between two codes may be rounded either way."""
    for expected, found in zip(*translated(graph), strict=True):
        assert np.median(np.abs(found - expected)) < 1e-5 and np.abs(found - expected).mean() < 1e-2


def test_each_quantizer_has_its_operator_and_the_coarse_steps_take_the_loss(tmp_path):
    models = converted(tmp_path, net(False), net(True))
    twins = {pair.twin: float(pair.tap.quantizer.scale) for pair in models.pairs if pair.tap.quantizer is not None}
    assert twins["first"] == pytest.approx(COARSE) and twins["rectified"] == pytest.approx(FINE)
    assert len(models.match.operators) == len(models.quantized.operators) == 3
    assert_translated(models.quantized)
    paths = models.float_graph.path, models.quantized.path
    budget = quantmedic.diagnose(*paths, representative=X, validation=X, threads=1).loss_budget
    assert budget is not None
    first = budget.lines[0]
    assert list(first.places) == ["first"]
    assert first.share > 0.9


def test_two_quantizers_in_a_row_round_twice(tmp_path):
    """onnxruntime makes one of them, though their steps differ."""
    package = openvino()
    from openvino import opset13 as ops

    x = ops.parameter([-1, 64], np.float32, name="x")
    rounded = fake_quantize(fake_quantize(x, -128.0, 127.0), -12.8, 12.7)
    package.save_model(package.Model([ops.result(rounded)], [x], "net"), tmp_path / "net.xml", compress_to_fp16=False)
    values = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32) * 3
    (expected,), (found,) = translated(graph_of(read_ir(tmp_path / "net.xml")), values)
    np.testing.assert_allclose(expected, np.clip(np.rint(values), -12.8, 12.7), atol=1e-4)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.nightly
def test_where_the_float_model_has_no_relu_none_is_read(tmp_path):
    """The second quantizer cuts off what the first one holds, and that is the cause."""
    models = converted(tmp_path, without_relu(net(False)), without_relu(net(True)))
    assert [op.op_type for op in models.quantized.operators] == ["Conv", "Conv"]
    paths = models.float_graph.path, models.quantized.path
    causes = quantmedic.diagnose(*paths, representative=X, validation=X, threads=1).causes
    assert causes[0].cause == "negative-activations" and causes[0].subjects[0].startswith("first")


CLIP = ("Clip", 0.0, 6.0)


def bounded(quantized: bool, *, act: tuple[str, ...], scale: float = 6 / 255, beside: bool = False) -> onnx.ModelProto:
    """A sum of two convolutions, behind it a Relu or Clip; only what convolutions read is quantized.

    ``beside``: the sum is returned too, so that something reads it before it is bounded.
    """
    made = Net()

    def rounded(x: str, step: float, zero: np.generic) -> str:
        return made.quantize(x, step, zero) if quantized else x

    image = rounded(made.input("image", ["n", 3, 8, 8]), 0.05, np.int8(0))
    parts = [made.conv(image, random(k, 4, 3, 3, 3), out=f"part{k}") for k in range(2)]
    total = made.add("Add", *parts, out="total")
    kind, *ends = act
    x = made.add(kind, total, *[made.const(f"end{k}", np.float32(end)) for k, end in enumerate(ends)], out="bounded")
    made.output(made.conv(rounded(x, scale, np.uint8(0)), random(2, 2, 4, 3, 3), out="last"))
    if beside:
        made.output(made.add("Sigmoid", total, out="beside"))
    return made.model()


def opened(folder: Path, **options: Any) -> tuple[Path, Path, OpenVINOModels]:
    """The pair as IRs."""
    made = []
    for path in save_pair(folder, bounded(False, **options), bounded(True, **options)):
        made.append(path.with_suffix(".xml"))
        openvino().save_model(openvino().convert_model(path), made[-1], compress_to_fp16=False)
    return made[0], made[1], open_models(*made)


def kinds(graph: OpenVINOGraph) -> list[str]:
    return [op.op_type for op in graph.operators]


@pytest.mark.parametrize(("act", "beside"), others_nightly([(("Relu",), True), (CLIP, False), (CLIP, True)]))
def test_a_relu_or_clip_behind_a_sum_is_read_back(tmp_path, act, beside):
    _, path, models = opened(tmp_path, act=act, beside=beside)
    assert not {"Relu", "Clamp"} & {op.get_type_name() for op in read_ir(path).model.get_ordered_ops()}
    assert kinds(models.quantized).count(act[0]) == 1
    assert sorted(kinds(models.quantized)) == sorted(kinds(models.float_graph))
    assert {pair.root.split(":")[0]: pair.twin for pair in models.pairs if pair.tap.quantizer is None}[
        "total"
    ] == "total"
    rounded = {pair.twin for pair in models.pairs if pair.tap.quantizer is not None}
    assert rounded == {"image", "bounded"}
    assert_translated(models.quantized)


@pytest.mark.nightly
def test_a_clip_that_the_quantizer_does_not_stand_for_is_kept_by_openvino_and_read_once(tmp_path):
    _, _, models = opened(tmp_path, act=CLIP, scale=0.05)
    assert kinds(models.quantized).count("Clip") == 1
    assert models.match.unmatched == []


@pytest.mark.nightly
def test_a_clip_that_the_quantized_model_has_lost_is_not_read_back(tmp_path):
    """Its quantizer reaches beyond: what the Clip cut off is let through."""
    made = []
    pair = bounded(False, act=CLIP), bounded(True, act=("Relu",), scale=0.2)
    for path in save_pair(tmp_path, *pair):
        made.append(path.with_suffix(".xml"))
        openvino().save_model(openvino().convert_model(path), made[-1], compress_to_fp16=False)
    assert not {"Clip", "Relu"} & set(kinds(open_models(*made).quantized))
