"""Pairs of IRs: what is read of them, what is observed, and that outputs are those of the untouched model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.onnx_models import conv_net as onnx_net
from builders.onnx_models import images as onnx_images
from builders.onnx_models import qdq, save_pair
from builders.openvino_models import (
    conv_net,
    fake_quantize,
    images,
    openvino,
    rounded_weights,
    save_openvino_pair,
)
from builders.tiers import others_nightly

import quantmedic
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_openvino import exposing, openvino_file
from quantmedic.collectors.from_openvino.openvino_models import OpenVINOModels, open_models
from quantmedic.collectors.measure.host import EXACT_KERNELS
from quantmedic.collectors.measure.models import Kernel
from quantmedic.collectors.pair.originals import weight_of
from quantmedic.engine.errors import ModelError

pytestmark = pytest.mark.thorough

X = images(16)


@pytest.fixture
def models(tmp_path: Path) -> OpenVINOModels:
    return open_models(*save_openvino_pair(tmp_path))


def plain_outputs(path: Path, x: Any) -> Any:
    """What an application gets with float32 hinted."""
    core = openvino().Core()
    return core.compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(x)[0]


def test_what_is_read_of_both_files(models):
    """Every layer matches, biases behind convolutions are their own, and grids and kernels are those that there are."""
    assert len(models.match.operators) == len(models.quantized.operators) == 6
    assert {op.name for op in models.quantized.operators} >= {"conv/WithoutBiases", "depthwise", "dense"}
    for graph in (models.float_graph, models.quantized):
        (conv,) = [op for op in graph.operators if op.name == "conv/WithoutBiases"]
        assert len(conv.inputs) == 3 and conv.outputs == ["conv"]
    grids = {name: taps[0].quantizer for name, taps in models.quantized.quantizers.items()}
    assert set(grids) == {"image", "relu", "relu_2", "mean"}
    image, relu = grids["image"], grids["relu"]
    assert image.signed and image.bits == 8 and float(image.scale) == pytest.approx(4 / 127)
    assert not relu.signed and int(relu.zero_point) == 0 and float(relu.scale) == pytest.approx(3 / 255)
    kernels = models.kernels(1)
    assert kernels["conv"] == Kernel.INTEGER and kernels["depthwise"] == Kernel.INTEGER


def test_weights_are_codes_on_a_grid(tmp_path, subtests):
    for stored, per_channel in ((True, True), (True, False), (False, True), (False, False)):
        with subtests.test(f"stored {stored}, per channel {per_channel}"):
            quantized = conv_net(True, stored=stored, per_channel=per_channel)
            models = open_models(*save_openvino_pair(tmp_path, quantized=quantized))
            weights = [(op, weight_of(op, models.quantized)) for op in models.quantized.operators]
            assert sum(found is not None for _, found in weights) == 3
            for op, found in weights:
                if found is None:
                    continue
                assert found.quantizer is not None and found.quantizer.bits == 8 and found.quantizer.signed
                assert (found.quantizer.axis is not None) == per_channel
                twin = weight_of(models.match.operators[op.index], models.float_graph)
                step = found.quantizer.steps(found.values.shape)
                assert (np.abs(found.values - twin.values) <= 0.5001 * step).all()


@pytest.mark.nightly
def test_a_bias_of_codes_is_its_own_in_what_was_converted_from_onnx(tmp_path):
    """It was an operator of its own without a twin, and the convolution in front of it was not measured."""
    convert = openvino().convert_model
    samples = onnx_images(40)
    made = []
    for path in save_pair(tmp_path, onnx_net(), qdq(onnx_net(), {"image": samples})):
        made.append(path.with_suffix(".xml"))
        openvino().save_model(convert(path), made[-1], compress_to_fp16=False)
    models = open_models(*made)
    assert len(models.match.operators) == len(models.quantized.operators)
    convs = [op for op in models.quantized.operators if op.op_type == "Conv"]
    held = [models.quantized.constants[models.quantized.root(op.inputs[2])] for op in convs]
    assert held and all(own.quantizer is not None and own.quantizer.bits == 32 for own in held)


def test_codes_and_outputs_are_those_of_the_untouched_model(models, monkeypatch):
    monkeypatch.delenv(EXACT_KERNELS)
    batch = Batch({"image": X})
    view = models.view(dict(enumerate(models.pairs)), batch, 1)
    reading = view.read_tensors(batch)
    for graph, outputs in zip((models.float_graph, models.quantized), reading.outputs, strict=True):
        np.testing.assert_array_equal(outputs[0], plain_outputs(graph.path, X))
    assert not view.observed.simulated and view.observed.difference == 0
    for number, tap in view.taps.items():
        if tap.quantizer is None:
            continue
        codes, values = reading.codes[number], reading.floats[view.pairs[number].twin]
        assert codes.dtype == (np.int8 if tap.quantizer.signed else np.uint8) and codes.shape == values.shape


def test_the_search_leaves_out_what_changes_the_outputs(models, monkeypatch):
    """Where a tensor changes them, a second copy shows it, and how far its outputs depart is said."""
    batch = Batch({"image": X[:2]})
    codes = sorted({models.quantized.places[p.tap.tensor] for p in models.pairs if p.tap.quantizer is not None})
    session = models.sessions.session

    class Departing:
        """A copy whose outputs depart where it shows the second tensor."""

        def __init__(self, inner: Any, departs: bool) -> None:
            self.inner, self.departs, self.list_kernels = inner, departs, inner.list_kernels

        def run(self, feed: Any) -> Any:
            outputs, shown = self.inner.run(feed)
            return [y * np.float32(1.01) for y in outputs] if self.departs else outputs, shown

    monkeypatch.setattr(
        models.sessions,
        "session",
        lambda file, threads, exposed=(): Departing(session(file, threads, exposed), codes[1] in exposed),
    )
    view = models.view(dict(enumerate(models.pairs)), batch, 1)
    assert view.observed.simulated and view.observed.difference == pytest.approx(0.01, rel=0.01)
    places = {number: models.quantized.places.get(tap.tensor) for number, tap in view.taps.items()}
    assert {*places.values()} >= set(codes)
    assert {*view.taps} - {*view.faithful} == {number for number, place in places.items() if place == codes[1]}
    monkeypatch.setattr(exposing, "SEARCH_LIMIT", 1)
    assert models.view(dict(enumerate(models.pairs)), batch, 1).observed.simulated


def test_a_healthy_pair_is_not_called_ill_and_a_cut_range_is(tmp_path):
    ill = conv_net(True, ranges=((-4, 4), (0, 0.3), (0, 3), (0, 3)))
    for name, quantized in (("healthy", conv_net(True)), ("ill", ill)):
        (tmp_path / name).mkdir()
        paths = save_openvino_pair(tmp_path / name, quantized=quantized)
        found = quantmedic.diagnose(*paths, representative=X, validation=X, prove=False, threads=1)
        # The range is a tenth of what the representative data reach: it clips, and was not made from them.
        named = [cause for cause in found.causes if {"A003", "D013"} & {*cause.rules}]
        assert bool(named) == (name == "ill"), [cause.cause for cause in found.causes]
        assert all("relu" in str(cause) for cause in named)


@pytest.mark.parametrize("shape", others_nightly([[-1, 3, -1, -1], [1, 3, 16, 16], None]))
def test_other_shapes_of_the_input(tmp_path, shape):
    """Open sides are fed as the data have them; a batch of one takes one sample at a time; without a rank, a reason."""
    pair = [conv_net(), conv_net(True)]
    for model in pair:
        model.reshape(shape if shape is not None else openvino().PartialShape.dynamic(4))
    paths = save_openvino_pair(tmp_path, *pair)
    case = quantmedic.collect(*paths, validation=X[:4], threads=1)
    assert case.record.datasets["validation"].seen == 4


def saved_dense(folder: Path, make: Callable[..., Any], low: Any, high: Any, *more: str) -> tuple[Path, Path]:
    """A dense layer behind what ``make(opset, x)`` makes of the input ``[N, 4]``; that is quantized in one of both."""
    package = openvino()
    from openvino import opset13 as ops

    pair = []
    for quantized in (False, True):
        x = ops.parameter([-1, 4], np.float32, name="x")
        others = [ops.parameter([], np.float32, name=name) for name in more]
        y = make(ops, x, *others)
        y = fake_quantize(y, low, high) if quantized else y
        w = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
        y = ops.matmul(y, rounded_weights(w) if quantized else ops.constant(w), False, True)
        pair.append(package.Model([ops.result(y)], [x, *others]))
    return save_openvino_pair(folder, *pair)


def test_ranges_that_differ_along_channels(tmp_path):
    ends = np.array([[1, 2, 3, 4]])
    models = open_models(*saved_dense(tmp_path, lambda ops, x: ops.relu(x), np.zeros((1, 4)), ends))
    ((tap,),) = models.quantized.quantizers.values()
    assert tap.quantizer.axis == 1
    np.testing.assert_allclose(tap.quantizer.scale, ends[0] / 255, rtol=1e-6)
    x = np.abs(np.random.default_rng(1).normal(size=(8, 4)) * 2).astype(np.float32)
    case = quantmedic.collect(models.float_graph.path, models.quantized.path, validation=x, threads=1)
    assert case.record.datasets["validation"].seen == 8


def test_a_scalar_is_fed_as_a_scalar(tmp_path, monkeypatch):
    """It was fed as an array of one value, which the plugin refuses: the model failed on data on which it runs well."""
    monkeypatch.delenv(EXACT_KERNELS)
    paths = saved_dense(tmp_path, lambda ops, x, limit: ops.minimum(ops.relu(x), limit), 0, 3, "limit")
    rng = np.random.default_rng(1)
    x, limits = rng.normal(size=(8, 4)).astype(np.float32) * 2, np.float32([1, 1, 2, 2, 3, 3, 3, 3])
    np.savez(tmp_path / "validation.npz", x=x, limit=limits)
    case = quantmedic.collect(*paths, validation=tmp_path / "validation.npz", threads=1)
    assert case.record.datasets["validation"].seen == 8
    models = open_models(*paths)
    view = models.view(dict(enumerate(models.pairs)), Batch({"x": x, "limit": limits[0]}), 1)
    for path, found in zip(paths, view.read_tensors(Batch({"x": x, "limit": limits[5]})).outputs, strict=True):
        np.testing.assert_array_equal(found[0], plain_outputs(path, [x, limits[5]]))


def test_a_translation_that_onnxruntime_refuses_is_not_needed_to_measure(tmp_path):
    """Its kernels know no maximum of 16-bit codes; until now that ended the diagnosis of a model that runs well."""

    def short(ops: Any, x: Any) -> Any:
        return ops.convert(ops.maximum(ops.convert(ops.abs(x), "u16"), ops.constant(np.uint16(1))), "f32")

    paths = saved_dense(tmp_path, short, 0, 5)
    x = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32) * 3
    case = quantmedic.collect(*paths, validation=x, threads=1)
    assert case.record.datasets["validation"].seen == 8
    assert case.record.model.runtime and case.record.model.integer_kernel_noise is None


def test_without_the_package_it_says_how_to_install_it(tmp_path, monkeypatch):
    import builtins

    paths = save_openvino_pair(tmp_path)
    original = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "openvino":
            raise ImportError(name)
        return original(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ModelError) as caught:
        openvino_file.read_ir(paths[0])
    assert caught.value.help == "pip install 'quantmedic[openvino]'"


def test_a_translation_that_departs_is_not_simulated(models):
    models.first = Batch({"image": X[:2]})
    assert models.editable().difference < 0.2
    changed = [*models.float_graph.model.graph.initializer]
    bias = next(t for t in changed if t.dims == [8])
    bias.raw_data = (np.frombuffer(bias.raw_data, np.float32) * 3).tobytes()
    del models.__dict__["_difference"]
    with pytest.raises(ModelError, match="departs"):
        replace(models, first=models.first).editable()
