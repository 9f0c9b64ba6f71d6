"""A factor that OpenVINO folds into the weights of the float model alone is an operator of both models again."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from builders.onnx_models import Net, images, random, save_pair, static
from builders.openvino_models import openvino
from numpy.typing import NDArray

import quantmedic
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_models import graph_runner
from quantmedic.collectors.from_openvino.folded_factors import channel_places
from quantmedic.collectors.from_openvino.openvino_models import open_models
from quantmedic.collectors.from_openvino.openvino_session import Session

pytestmark = [pytest.mark.thorough, pytest.mark.attributed]

Array = NDArray[Any]
X = images()
CHANNELS = 8
#: One channel is far wider than its neighbours; the reader's weights make up for it.
FACTOR = np.float32([1, 1, 300, 1, 1, 1, 1, 1])


def net(kind: str, factor: Array = FACTOR) -> onnx.ModelProto:
    """A factor for each channel behind a convolution, a sum, or a Relu of one; or a batch norm behind a convolution."""
    made = Net()
    image = made.input("image", ["n", 3, 8, 8])
    bias = random(7, CHANNELS) if kind in ("normed", "pooled") else None
    x = made.conv(image, random(0, CHANNELS, 3, 3, 3) / 3, bias, out="first")
    if kind.startswith("sum"):
        x = made.add("Add", x, made.conv(image, random(3, CHANNELS, 3, 3, 3) / 3, out="other"), out="total")
    if kind == "sum, relu":
        x = made.add("Relu", x, out="act")
    if kind == "normed":
        gain = 1 + np.arange(CHANNELS, dtype=np.float32) / CHANNELS
        parts = enumerate([gain, random(4, CHANNELS), random(5, CHANNELS), np.ones(CHANNELS, np.float32)])
        x = made.add("BatchNormalization", x, *[made.const(f"p{k}", part) for k, part in parts], out="scaled")
    else:
        x = made.add("Mul", x, made.const("factor", factor.reshape(1, -1, 1, 1)), out="scaled")
    if kind == "pooled":
        x = made.add("GlobalAveragePool", made.add("Relu", x, out="act"), out="pool")
    weights = random(1, 5, CHANNELS, *((1, 1) if kind == "pooled" else (3, 3)))
    made.output(made.conv(x, weights / factor.reshape(1, -1, 1, 1), out="second"))
    return made.model()


def converted(folder: Path, *pair: onnx.ModelProto) -> tuple[list[Path], list[Path]]:
    """Both models as ONNX files and as IRs."""
    paths = list(save_pair(folder, *pair))
    made = [path.with_suffix(".xml") for path in paths]
    for path, target in zip(paths, made, strict=True):
        openvino().save_model(openvino().convert_model(path), target, compress_to_fp16=False)
    return paths, made


def quantized(kind: str, folder: Path, factor: Array = FACTOR) -> onnx.ModelProto:
    return static(net(kind, factor), {"image": X}, folder)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["conv", "sum", "sum, relu", "normed", "pooled"])
def test_the_factor_is_an_operator_of_both_models(tmp_path, kind):
    """Each has its twin, the translation computes what OpenVINO does, and tensors have the ONNX model's values."""
    paths, made = converted(tmp_path, net(kind), quantized(kind, tmp_path))
    models = open_models(*made)
    graph = models.float_graph
    assert "scaled" in graph.producers
    kinds = {op.get_type_name() for op in graph.file.model.get_ordered_ops()}
    assert "Multiply" not in kinds, "OpenVINO folds it"
    assert models.match.unmatched == []
    assert len(models.match.operators) == len(models.quantized.operators) == len(graph.operators)
    # What a Relu reads is fused away with it.
    names = ["first", "act" if kind == "pooled" else "scaled"]
    assert {*names} <= {pair.twin for pair in models.pairs}
    (found,) = graph_runner(graph, graph.outputs, 1)(Batch({"image": X}))
    expected = Session(graph, [], 1).run([X])[0][0]
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
    floats = models.view(dict(enumerate(models.pairs)), Batch({"image": X}), 1).read_tensors(Batch({"image": X})).floats
    model = onnx.load(paths[0])
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for name, expected in zip(names, session.run(names, {"image": X}), strict=True):
        # Codes of the factor may have stood for other numbers where the weights do not tell.
        off = np.abs(floats[name] - expected).max((0, 2, 3)) / np.abs(expected).max((0, 2, 3))
        assert np.median(off) < 2e-2


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["conv", "sum, relu"])
def test_the_fault_has_the_cause_of_its_onnx_twin(tmp_path, kind):
    forms = converted(tmp_path, net(kind), quantized(kind, tmp_path))
    found = [quantmedic.diagnose(*paths, representative=X, validation=X, threads=1, prove=False) for paths in forms]
    first, second = ([(cause.cause, cause.subjects) for cause in each.causes[:2]] for each in found)
    assert first == second
    assert first[0][0] == "channel-outliers"


@pytest.mark.nightly
def test_a_factor_that_only_the_quantized_model_has_is_not_read_into_the_float_model(tmp_path):
    """The weights of the layers around it are the same, so that none of them holds it."""
    plain = np.ones(CHANNELS, np.float32)
    _, made = converted(tmp_path, net("conv", plain), quantized("conv", tmp_path, 2 * plain))
    second = open_models(*made)
    assert second.match.unmatched == []  # the reader's weights are half as large: the factor was folded
    other = net("conv", 2 * plain)
    for each in other.graph.initializer:
        if each.name.startswith("second"):
            each.CopyFrom(next(t for t in net("conv", plain).graph.initializer if t.name == each.name))
    _, made = converted(tmp_path, net("conv", plain), static(other, {"image": X}, tmp_path))
    assert open_models(*made).match.unmatched == ["scaled"]


def test_channels_of_weights_are_those_that_a_layer_reads_and_writes():
    """Against the definition: of group g, output channels read the input channels of that group."""
    out, read = 8, 4
    for groups in (1, 2, 4):
        shape = (out, read // groups, 3, 3)
        before, behind = (channel_places("Conv", shape, side, groups) for side in ("before", "behind"))
        for o in range(out):
            for i in range(read // groups):
                assert (before[o, i] == o).all()
                assert (behind[o, i] == o // (out // groups) * (read // groups) + i).all()
    before, behind = (channel_places("MatMul", (3, 5), side) for side in ("before", "behind"))
    assert np.array_equal(before, np.tile(np.arange(5), (3, 1)))
    assert np.array_equal(behind, np.tile(np.arange(3), (5, 1)).T)
