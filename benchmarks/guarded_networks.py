"""Networks of the guard, made here without downloads: one of dynamic shapes, and a sick one of fixed shapes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from networks import SEED, Builder
from numpy.typing import NDArray
from onnx import TensorProto, helper
from published_costs import quantize

Floats = NDArray[np.float32]
#: Samples that calibrate.
CALIBRATED = 8
#: Height of a row of text, its length while calibrating and judging, and the classes of a letter.
ROW, LENGTH, LETTERS = 32, 192, 40
#: Channels of the reader's attention; side of the classifier's images, and its channels.
WIDE, SIDE = 64, 64


@dataclass(frozen=True)
class Guarded:
    """One network of the guard.

    Attributes:
        make: Makes its float model.
        samples: Of each of both data sets.
        shape: Of a sample.
        contrast: Samples that calibrate, as a multiple of the real ones: below 1 the ranges clip, and it is sick.
    """

    make: Callable[[], onnx.ModelProto]
    samples: int
    shape: tuple[int, ...]
    contrast: float = 1.0


def make_reader() -> onnx.ModelProto:
    """Reads rows of text of any length: convolutions, attention over the columns, scores of letters per column."""
    net = Builder()
    x = net.relu(net.conv("image", 3, 16, 3, 2))
    before = 16
    for after, stride in ((24, 1), (32, 2), (WIDE, 2)):
        y = net.relu(net.conv(x, before, before, 3, stride, groups=before))
        x = net.relu(net.conv(y, before, after, 1))
        for _ in range(3):
            y = net.relu(net.conv(x, after, after, 3, groups=after))
            x = net.add("Add", x, net.conv(y, after, after, 1, gain=0.3))
        before = after
    x = net.add("ReduceMean", x, axes=[2], keepdims=0)
    x = net.add("Transpose", x, perm=[0, 2, 1])
    for _ in range(2):
        x = net.norm(net.add("Add", x, add_attention(net, x)), WIDE)
        x = net.norm(net.add("Add", x, net.linear(net.relu(net.linear(x, WIDE, 2 * WIDE)), 2 * WIDE, WIDE)), WIDE)
    scores = net.add("Softmax", net.linear(x, WIDE, LETTERS, gain=4), axis=-1)
    value = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, ROW, "length"])
    return net.model(value, scores, ["N", "columns", LETTERS])


def add_attention(net: Builder, x: str) -> str:
    """One head over as many columns as there are; the result is reshaped by a shape that is read at run time."""
    q, k, v = (net.linear(x, WIDE, WIDE) for _ in range(3))
    scores = net.add("MatMul", q, net.add("Transpose", k, perm=[0, 2, 1]))
    shares = net.add("Softmax", net.add("Mul", scores, net.constant(np.float32(WIDE**-0.5))), axis=-1)
    mixed = net.add("MatMul", shares, v)
    return net.linear(net.add("Reshape", mixed, net.add("Shape", x)), WIDE, WIDE)


def make_classifier() -> onnx.ModelProto:
    """Classifies images of one size: eight residual blocks."""
    net = Builder()
    x = net.relu(net.conv("image", 3, SIDE, 3, 2))
    for _ in range(8):
        y = net.relu(net.conv(x, SIDE, SIDE, 3))
        x = net.relu(net.add("Add", x, net.conv(y, SIDE, SIDE, 3, gain=0.2)))
    value = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, SIDE, SIDE])
    return net.model(value, net.classifier(x, SIDE, LETTERS), ["N", LETTERS])


NETWORKS = {
    "rows of text, dynamic shapes": Guarded(make_reader, 48, (3, ROW, LENGTH)),
    "images, ranges too narrow": Guarded(make_classifier, 24, (3, SIDE, SIDE), contrast=0.25),
}


def draw(network: Guarded, seed: int) -> Floats:
    """Smooth pictures with noise, ``[samples, *shape]``."""
    rng = np.random.default_rng(seed)
    channels, height, width = network.shape
    coarse = rng.standard_normal((network.samples, channels, height // 8, width // 8))
    smooth = coarse.repeat(8, axis=2).repeat(8, axis=3)
    return (smooth + 0.2 * rng.standard_normal(smooth.shape)).astype(np.float32)


def build(network: Guarded, folder: Path) -> None:
    """Write float and int8 model and both data sets of a network."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(network.make(), folder / "float.onnx")
    data = {part: draw(network, seed) for part, seed in (("rep", SEED), ("val", SEED + 1))}
    for part, samples in data.items():
        np.savez(folder / f"{part}.npz", allow_pickle=False, image=samples)
    # Every processor computes the same, so that each runs the same trials.
    quantize(folder, "image", data["rep"][:CALIBRATED] * np.float32(network.contrast), reduce_range=True)
