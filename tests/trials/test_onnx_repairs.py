"""Bias correction and rounding search on deployed models, on the samples that they were fitted on and on others."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.onnx_models import Net, conv_net, images, random, run, save_pair, static
from onnx import numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_models import OnnxModels, open_models
from quantmedic.collectors.from_onnx.onnx_session import executed_types
from quantmedic.engine.decibels import sqnr_db
from quantmedic.engine.errors import ModelError
from quantmedic.trials.from_onnx.bias_correction import correct_model
from quantmedic.trials.from_onnx.rounding import round_model, windows_of

FORMS = [
    pytest.param({"quant_format": QuantFormat.QDQ}, id="QDQ"),
    pytest.param({"quant_format": QuantFormat.QOperator, "per_channel": True}, id="QOperator per channel"),
]
FITTED, JUDGED = images(48, seed=1), images(48, seed=2)


def models_of(model: onnx.ModelProto, quantized: onnx.ModelProto, folder: Path) -> OnnxModels:
    return open_models(*save_pair(folder, model, quantized))


def samples(data: np.ndarray, name: str = "image") -> Callable[[], list[Batch]]:
    return lambda: [Batch({name: data[i : i + 16]}) for i in range(0, len(data), 16)]


def noise_db(reference: onnx.ModelProto, model: onnx.ModelProto, data: np.ndarray) -> float:
    (wanted,), (found,) = (run(each, {"image": data}).values() for each in (reference, model))
    return sqnr_db(float(np.square(wanted).sum()), float(np.square(wanted - found).sum()))


def rounded_down(model: onnx.ModelProto) -> onnx.ModelProto:
    """Every weight code one lower: each layer is shifted to one side."""
    shifted = onnx.ModelProto()
    shifted.CopyFrom(model)
    for tensor in shifted.graph.initializer:
        codes = numpy_helper.to_array(tensor)
        if codes.dtype == np.int8 and codes.ndim > 1:
            tensor.CopyFrom(numpy_helper.from_array(np.maximum(codes, -126) - np.int8(1), tensor.name))
    return shifted


@pytest.mark.parametrize("options", FORMS)
def test_mean_errors_vanish_on_the_fitted_samples(tmp_path: Path, options: dict) -> None:
    model = conv_net()
    broken = rounded_down(static(model, {"image": FITTED}, tmp_path, **options))
    models = models_of(model, broken, tmp_path)
    corrected = correct_model(models, samples(FITTED), threads=1)
    onnx.checker.check_model(corrected.model)
    assert [layer.layer for layer in corrected.layers] == [
        op.name for op in models.quantized.operators if op.op_type in ("Conv", "Gemm")
    ]
    assert corrected.left == ()
    assert max(layer.error_before for layer in corrected.layers) > 0.1
    again = correct_model(models_of(model, corrected.model, tmp_path), samples(FITTED), threads=1)
    assert max(layer.error_before for layer in again.layers) < 0.01
    assert noise_db(model, corrected.model, JUDGED) > noise_db(model, broken, JUDGED) + 6


@pytest.mark.parametrize("options", FORMS)
def test_layers_without_a_bias_get_one(tmp_path: Path, options: dict) -> None:
    net = Net()
    x = net.conv(net.input("image", ["n", 3, 8, 8]), random(1, 8, 3, 3, 3), out="first")
    net.output(net.conv(net.add("Relu", x, out="act"), random(2, 4, 8, 1, 1), out="second"), shape=["n", 4, 6, 6])
    model = net.model()
    broken = rounded_down(static(model, {"image": FITTED}, tmp_path, activation_type=QuantType.QUInt8, **options))
    corrected = correct_model(models_of(model, broken, tmp_path), samples(FITTED), threads=1)
    assert len(corrected.layers) == 2
    again = correct_model(models_of(model, corrected.model, tmp_path), samples(FITTED), threads=1)
    assert max(layer.error_before for layer in again.layers) < 0.01


@pytest.mark.parametrize("options", FORMS)
def test_constants_behind_products_are_corrected(tmp_path: Path, options: dict) -> None:
    """One behind a hidden product and one at the end; the inputs are positive, so that errors have a mean."""
    fitted, judged = np.abs(FITTED), np.abs(JUDGED)
    net = Net()
    x = net.input("image", ["n", 3, 8, 8])
    x = net.add("MatMul", x, net.const("w1", random(1, 8, 16)), out="product")
    x = net.add("Add", net.const("b1", random(2, 16)), x, out="sum")
    x = net.add("MatMul", net.add("Relu", x, out="act"), net.const("w2", random(3, 16, 4)), out="last")
    net.output(net.add("Add", x, net.const("b2", random(4, 4)), out="scores"), shape=["n", 3, 8, 4])
    model = net.model()
    broken = rounded_down(static(model, {"image": fitted}, tmp_path, **options))
    corrected = correct_model(models_of(model, broken, tmp_path), samples(fitted), threads=1)
    assert [layer.layer.removesuffix("_quant") for layer in corrected.layers] == ["product", "last"]
    assert all(layer.error_after < 0.3 * layer.error_before for layer in corrected.layers)
    assert noise_db(model, corrected.model, judged) > noise_db(model, broken, judged) + 3


def test_a_product_without_anything_added_and_what_time_does_not_suffice_for_are_named(tmp_path: Path) -> None:
    net = Net()
    x = net.input("image", ["n", 3, 8, 8])
    net.output(net.add("MatMul", x, net.const("w", random(1, 8, 16)), out="scores"), shape=["n", 3, 8, 16])
    product = net.model()
    models = models_of(product, static(product, {"image": FITTED}, tmp_path), tmp_path)
    with pytest.raises(ModelError, match="no bias of the quantized model can be corrected"):
        correct_model(models, samples(FITTED), threads=1)
    model = conv_net()
    models = models_of(model, static(model, {"image": FITTED}, tmp_path, activation_type=QuantType.QUInt8), tmp_path)
    late = correct_model(models, samples(FITTED), threads=1, deadline=0.0)
    assert late.layers == () and len(late.left) == 3
    assert noise_db(models.quantized.model, late.model, JUDGED) > 100
    late_rounding = round_model(models, samples(FITTED), threads=1, deadline=0.0)
    assert late_rounding.layers == () and len(late_rounding.left) == 3
    kernels = sorted(executed_types(models.quantized, 1).values())
    models.quantized.model.CopyFrom(correct_model(models, samples(FITTED), threads=1).model)
    assert sorted(executed_types(models.quantized, 1).values()) == kernels, "integer kernels stay"


@pytest.mark.parametrize("options", FORMS)
def test_no_layer_is_rounded_worse(tmp_path: Path, options: dict) -> None:
    model = conv_net()
    sound = static(model, {"image": FITTED}, tmp_path, **options)
    for quantized in (sound, rounded_down(sound)):
        rounded = round_model(models_of(model, quantized, tmp_path), samples(FITTED), threads=1)
        onnx.checker.check_model(rounded.model)
        assert len(rounded.layers) == 3 and rounded.left == ()
        assert all(layer.error_after <= layer.error_before for layer in rounded.layers)
        # Random inputs have hardly anything in common that could be made use of.
        after, before = (
            sum(getattr(layer, f"error_{when}") for layer in rounded.layers) for when in ("after", "before")
        )
        assert after < 0.9 * before
        again = round_model(models_of(model, rounded.model, tmp_path), samples(FITTED), threads=1)
        # What later layers read has changed by then.
        assert again.layers[0].error_before == pytest.approx(rounded.layers[0].error_after, rel=1e-4)
        types = [(t.name, t.data_type, tuple(t.dims)) for t in quantized.graph.initializer]
        assert [(t.name, t.data_type, tuple(t.dims)) for t in rounded.model.graph.initializer] == types


def test_windows_times_weights_are_the_convolution(tmp_path: Path) -> None:
    for attributes, shape in [
        ({"pads": [1, 1, 1, 1]}, (4, 3, 3, 3)),
        ({"strides": [2, 1], "pads": [1, 0, 0, 1]}, (4, 3, 3, 2)),
        ({"dilations": [2, 1]}, (4, 3, 2, 3)),
        ({"group": 3, "pads": [1, 1, 1, 1]}, (6, 1, 3, 3)),
        ({"auto_pad": "SAME_UPPER", "strides": [2, 2]}, (4, 3, 3, 2)),
        ({"auto_pad": "SAME_LOWER"}, (4, 3, 2, 2)),
    ]:
        net = Net()
        weight = random(1, *shape)
        out = net.conv(net.input("image", ["n", 3, 8, 8]), weight, out="scores", **attributes)
        net.output(out, shape=["n", None, None, None])
        model = net.model()
        (wanted,) = run(model, {"image": FITTED}).values()
        (op,) = open_models(*save_pair(tmp_path, model, model)).float_graph.operators
        rows = windows_of(op, FITTED, weight)
        groups = attributes.get("group", 1)
        found = rows @ weight.reshape(groups, shape[0] // groups, -1).transpose(0, 2, 1)
        found = found.reshape(groups, len(FITTED), *wanted.shape[2:], -1)
        assert np.allclose(np.moveaxis(found, (0, -1), (1, 2)).reshape(wanted.shape), wanted, atol=1e-4), attributes
    every, some = windows_of(op, FITTED, weight)[0], windows_of(op, FITTED, weight, 100)[0]
    assert len(some) == 100 < len(every)
    assert {row.tobytes() for row in some} < {row.tobytes() for row in every}, "some of them are drawn"
    assert np.array_equal(some, windows_of(op, FITTED, weight, 100)[0])
