"""Small detectors: boxes in pixels and scores between 0 and 1, joined in the ways in which people export them."""

from pathlib import Path
from typing import Literal

import numpy as np
import onnx

from builders.onnx_models import Net, images, random, save_pair, static

Form = Literal["rows", "columns", "scales", "flat", "nested", "apart"]
CLASSES = 3
#: Pixels that boxes span: one step of 8 bits is wider than a score can be.
PIXELS = 640.0


def detector(form: Form = "rows") -> onnx.ModelProto:
    """Images ``[n, 3, 8, 8]`` to boxes and scores.

    ``rows`` ``[n, 16, 7]`` and ``columns`` ``[n, 7, 16]``: boxes and scores joined. ``scales`` ``[n, 20, 7]``: of two
    scales, each joined, joined once more. ``flat`` ``[n, 7]``: of the whole image. ``nested`` ``[n, 16, 8]``: scores
    joined with an objectness first. ``apart``: boxes and scores in two outputs.
    """
    net = Net()
    x = net.input("image", ["n", 3, 8, 8])
    x = net.conv(x, random(1, 8, 3, 3, 3, scale=0.3), out="stem", pads=[1, 1, 1, 1], strides=[2, 2])
    x = net.add("Relu", x, out="relu")
    if form == "flat":
        x = net.add("GlobalAveragePool", x, out="pool")
        parts = [net.add("Flatten", part, out=f"{part}_flat") for part in _heads(net, x)]
        net.output(net.add("Concat", *parts, out="found", axis=1), shape=["n", 7])
    elif form == "columns":
        parts = [_reshaped(net, part, -1, 16) for part in _heads(net, x)]
        net.output(net.add("Concat", *parts, out="found", axis=1), shape=["n", 7, 16])
    elif form == "apart":
        for part, width in zip(_heads(net, x), (4, CLASSES), strict=True):
            net.output(_rows(net, part, width, 16), shape=["n", 16, width])
    elif form == "scales":
        coarse = net.add("MaxPool", x, out="coarse", kernel_shape=[2, 2], strides=[2, 2])
        ends = [_joined(net, x, 16, "joined_a", "_a"), _joined(net, coarse, 4, "joined_b", "_b")]
        net.output(net.add("Concat", *ends, out="found", axis=1), shape=["n", 20, 7])
    elif form == "nested":
        boxes, scores = _heads(net, x)
        there = net.add("Sigmoid", net.conv(x, random(5, 1, 8, 1, 1), out="there_raw"), out="there")
        inner = net.add("Concat", _rows(net, there, 1, 16), _rows(net, scores, CLASSES, 16), out="inner", axis=-1)
        net.output(net.add("Concat", _rows(net, boxes, 4, 16), inner, out="found", axis=-1), shape=["n", 16, 8])
    else:
        net.output(_joined(net, x, 16, "found"), shape=["n", 16, 7])
    return net.model()


def detector_pair(folder: Path, form: Form = "rows", *, healthy: bool = False, n: int = 24) -> tuple[Path, Path, Path]:
    """Float and int8 model and samples; the healthy one leaves what joins boxes and scores in float."""
    model = detector(form)
    joints = [node.name for node in model.graph.node if node.op_type == "Concat"] if healthy else []
    feed = {"image": images(n)}
    quantized = static(model, feed, folder, per_channel=True, nodes_to_exclude=joints)
    data = folder / "images.npz"
    np.savez(data, **feed)
    return *save_pair(folder, model, quantized), data


def _heads(net: Net, x: str, name: str = "") -> tuple[str, str]:
    """Boxes and scores ``[n, 4, h, w]`` and ``[n, CLASSES, h, w]``."""
    share = net.add("Sigmoid", net.conv(x, random(2, 4, 8, 1, 1), out=f"boxes_raw{name}"), out=f"boxes_share{name}")
    boxes = net.add("Mul", share, net.const(f"pixels{name}", PIXELS), out=f"boxes{name}")
    logits = net.conv(x, random(3, CLASSES, 8, 1, 1), random(4, CLASSES), out=f"logits{name}")
    return boxes, net.add("Sigmoid", logits, out=f"scores{name}")


def _reshaped(net: Net, part: str, *sides: int) -> str:
    shape = net.const(f"{part}_sides", np.array([0, *sides], np.int64))
    return net.add("Reshape", part, shape, out=f"{part}_flat")


def _rows(net: Net, part: str, width: int, cells: int) -> str:
    return net.add("Transpose", _reshaped(net, part, width, cells), out=f"{part}_rows", perm=[0, 2, 1])


def _joined(net: Net, x: str, cells: int, out: str, name: str = "") -> str:
    rows = [_rows(net, part, width, cells) for part, width in zip(_heads(net, x, name), (4, CLASSES), strict=True)]
    return net.add("Concat", *rows, out=out, axis=2)
