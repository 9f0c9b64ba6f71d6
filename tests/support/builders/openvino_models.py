"""Small OpenVINO IRs through its own opset, quantized by FakeQuantize that are placed by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Array = NDArray[Any]
CHANNELS = 8


def openvino() -> Any:
    """The package, or the test is skipped."""
    return pytest.importorskip("openvino", reason="openvino is not installed")


def fake_quantize(
    node: Any, low: Any, high: Any, levels: int = 256, output: tuple[Any, Any] | None = None, name: str | None = None
) -> Any:
    """A FakeQuantize with these ranges, which may be arrays of the rank of what it reads."""
    from openvino import opset13 as ops

    low_out, high_out = output or (low, high)
    ends = [ops.constant(np.asarray(end, np.float32)) for end in (low, high, low_out, high_out)]
    made = ops.fake_quantize(node, *ends, levels)
    if name is not None:
        made.set_friendly_name(name)
    return made


def rounded_weights(values: Array, *, bits: int = 8, stored: bool = True, per_channel: bool = True) -> Any:
    """Weights ``[out, …]`` on symmetric grids: as NNCF stores them, codes behind Convert and Multiply, or faked."""
    from openvino import opset13 as ops

    axes = tuple(range(1, values.ndim)) if per_channel else None
    top = np.abs(values).max(axes, keepdims=True).astype(np.float32)
    most = 2 ** (bits - 1) - 1
    if not stored:
        return fake_quantize(ops.constant(values.astype(np.float32)), -top, top, 2 * most + 1)
    scale = (top / most).astype(np.float32)
    codes = np.clip(np.rint(values / scale), -most, most).astype(np.int8)
    return ops.multiply(ops.convert(ops.constant(codes), "f32"), ops.constant(scale))


def conv_net(
    quantized: bool = False,
    *,
    ranges: Sequence[tuple[Any, Any]] = ((-4, 4), (0, 3), (0, 3), (0, 3)),
    stored: bool = True,
    per_channel: bool = True,
    seed: int = 0,
) -> Any:
    """Convolution with a bias, depthwise convolution, pooling, and a dense layer, of images ``[N, 3, 16, 16]``."""
    openvino()
    from openvino import Model
    from openvino import opset13 as ops

    rng = np.random.default_rng(seed)

    def weights(*shape: int) -> Any:
        values = (rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        if not quantized:
            return ops.constant(values)
        return rounded_weights(values, stored=stored, per_channel=per_channel)

    def activation(node: Any, place: int) -> Any:
        low, high = ranges[place]
        if not quantized:
            return node
        # Signed codes have one more below 0 than above.
        low = -high * 128 / 127 if np.any(np.asarray(low) < 0) else low
        return fake_quantize(node, low, high, name=f"{node.get_friendly_name()}/fq")

    def named(node: Any, name: str) -> Any:
        node.set_friendly_name(name)
        return node

    image = ops.parameter([-1, 3, 16, 16], np.float32, name="image")
    x = activation(image, 0)
    bias = ops.constant(rng.normal(size=(1, CHANNELS, 1, 1)).astype(np.float32))
    x = named(ops.convolution(x, weights(CHANNELS, 3, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1]), "conv/WithoutBiases")
    x = activation(named(ops.relu(named(ops.add(x, bias), "conv")), "relu"), 1)
    w = weights(CHANNELS, 1, 1, 3, 3)
    x = named(ops.group_convolution(x, w, [2, 2], [1, 1], [1, 1], [1, 1]), "depthwise")
    x = activation(named(ops.relu(x), "relu_2"), 2)
    x = named(ops.reduce_mean(x, ops.constant(np.array([2, 3], np.int64)), keep_dims=False), "mean")
    x = activation(x, 3)
    x = named(ops.matmul(x, weights(5, CHANNELS), False, True), "dense")
    return Model([ops.result(x)], [image], "net")


def save_openvino_pair(folder: Path, float_model: Any = None, quantized: Any = None) -> tuple[Path, Path]:
    """Write ``float.xml`` and ``int8.xml`` with their weights."""
    save_model = openvino().save_model
    paths = folder / "float.xml", folder / "int8.xml"
    for path, model in zip(paths, (float_model or conv_net(), quantized or conv_net(True)), strict=True):
        save_model(model, path, compress_to_fp16=False)
    return paths


def images(count: int = 40, seed: int = 1) -> Array:
    """Images ``[count, 3, 16, 16]``."""
    return np.random.default_rng(seed).normal(size=(count, 3, 16, 16)).astype(np.float32)
