"""Multiply-adds and bytes of operators, against numbers counted by hand."""

from pathlib import Path

from builders.onnx_models import Net, conv_net, images, qdq, random, save_pair, static

from quantmedic.collectors.from_onnx.onnx_models import open_models
from quantmedic.collectors.pair.operations import sizes_of


def test_convolutions_and_gemm(tmp_path: Path) -> None:
    model = conv_net()
    models = open_models(*save_pair(tmp_path, model, qdq(model, {"image": images()})))
    found = {op.op_type + op.name: size for op, size in zip(models.quantized.operators, sizes_of(models), strict=True)}
    assert found["Convconv1"].operations == 4 * 64 * 3 * 9
    assert found["Convconv2"].operations == 6 * 64 * 4 * 9
    assert found["Gemmscores"].operations == 6 * 5
    assert found["Convconv1"].bytes_as_float == 3 * 4 * 3 * 9
    assert all(size.operations == 0 for name, size in found.items() if not name.startswith(("Conv", "Gemm")))


def test_strides_and_groups_are_counted(tmp_path: Path) -> None:
    net = Net()
    x = net.input("image", ["n", 4, 8, 8])
    x = net.conv(x, random(1, 8, 2, 3, 3), out="grouped", group=2, strides=[2, 2], pads=[1, 1, 1, 1])
    net.output(net.conv(x, random(2, 3, 8, 1, 1), out="last"), shape=["n", 3, 4, 4])
    model = net.model()
    models = open_models(*save_pair(tmp_path, model, static(model, {"image": random(3, 4, 4, 8, 8)}, tmp_path)))
    found = {op.name: size.operations for op, size in zip(models.quantized.operators, sizes_of(models), strict=True)}
    assert found == {"grouped": 8 * 16 * 2 * 9, "last": 3 * 16 * 8}


def test_products_of_two_activations(tmp_path: Path) -> None:
    net = Net()
    left, right = net.input("left", ["n", 2, 5, 8]), net.input("right", ["n", 2, 8, 3])
    net.output(net.add("MatMul", left, right, out="product"), shape=["n", 2, 5, 3])
    model, feed = net.model(), {"left": random(1, 4, 2, 5, 8), "right": random(2, 4, 2, 8, 3)}
    (size,) = sizes_of(open_models(*save_pair(tmp_path, model, static(model, feed, tmp_path))))
    assert size.operations == 2 * 5 * 3 * 8 and size.weights == 0 and size.bytes_as_float == 0


def test_unknown_shapes_are_not_counted_as_nothing(tmp_path: Path) -> None:
    net = Net()
    x = net.input("image", ["n", 3, "height", "width"])
    net.output(net.conv(x, random(1, 4, 3, 3, 3), out="conv"))
    model = net.model()
    models = open_models(*save_pair(tmp_path, model, static(model, {"image": images()}, tmp_path)))
    (size,) = sizes_of(models)
    assert size.operations is None and size.weights == 108
