"""Small detectors: boxes in pixels and scores between 0 and 1, joined in the ways in which people export them."""

from pathlib import Path
from typing import Literal

import numpy as np
import onnx

from builders.onnx_models import Net, images, random, save_pair, static

Form = Literal["rows", "columns", "scales", "flat", "nested", "apart", "bins", "fine", "masks", "selected", "scaled"]
CLASSES = 3
#: Pixels that boxes span: one step of 8 bits is wider than a score can be.
PIXELS = 640.0


def detector(form: Form = "rows") -> onnx.ModelProto:
    """Images ``[n, 3, 8, 8]`` to boxes and scores.

    ``rows`` ``[n, 16, 7]`` and ``columns`` ``[n, 7, 16]``: boxes and scores joined. ``scales`` ``[n, 20, 7]``: of two
    scales, each joined, joined once more. ``flat`` ``[n, 7]``: of the whole image. ``nested`` ``[n, 16, 8]``: scores
    joined with an objectness first. ``apart``: boxes and scores in two outputs. ``bins`` ``[n, 7, 16]``: each side of a
    box is the expectation over bins (DFL), as YOLOv8 has it. ``fine``: the same for boxes that are small beside the
    picture. ``masks`` ``[n, 13, 16]``: the same with coefficients of the maps of a second output. ``selected``
    ``[n, 5, 6]``: the best five boxes with score and class, as in YOLOv10. ``scaled`` ``[n, 7, 16]``: one Sigmoid makes
    both, a factor for each column brings boxes to pixels, and nothing is joined.
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
    elif form in ("bins", "fine", "masks", "selected"):
        _yolo(net, x, form)
    elif form == "scaled":
        raw = net.conv(x, random(2, 4 + CLASSES, 8, 1, 1), random(4, 4 + CLASSES), out="raw")
        sizes = np.array([PIXELS] * 4 + [1.0] * CLASSES, np.float32).reshape(1, -1, 1)
        shares = _reshaped(net, net.add("Sigmoid", raw, out="shares"), 4 + CLASSES, 16)
        net.output(net.add("Mul", shares, net.const("sizes", sizes), out="found"), shape=["n", 7, 16])
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
    """Float and int8 model and samples; the healthy one leaves what brings boxes and scores together in float."""
    model = detector(form)
    joints = (
        [node.name for node in model.graph.node if node.name == "found" or node.op_type == "Concat"] if healthy else []
    )
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


def _yolo(net: Net, x: str, form: Form) -> None:
    """The heads of Ultralytics: distances from the cell to the sides of its box, decoded in the network."""
    logits = net.conv(x, random(3, CLASSES, 8, 1, 1), random(4, CLASSES), out="logits")
    scores = net.add("Sigmoid", _reshaped(net, logits, CLASSES, 16), out="scores")
    parts = [_boxes_of_bins(net, x, 32.0 if form == "fine" else 1.0), scores]
    if form == "masks":
        parts.append(_reshaped(net, net.conv(x, random(6, 6, 8, 1, 1), out="coefficients"), 6, 16))
        net.output(net.conv(x, random(7, 6, 8, 1, 1), out="maps"), shape=["n", 6, 4, 4])
    if form != "selected":
        net.output(net.add("Concat", *parts, out="found", axis=1), shape=["n", 13 if form == "masks" else 7, 16])
        return
    boxes, scores = (net.add("Transpose", part, out=f"{part}_rows", perm=[0, 2, 1]) for part in parts)
    best = net.add("ReduceMax", scores, out="best", axes=[2], keepdims=0)
    count, axis = net.const("count", np.array([5])), net.const("behind", np.array([2]))
    net.nodes.append(onnx.helper.make_node("TopK", [best, count], ["top", "places"], name="top", axis=1))
    rows = net.add("Unsqueeze", "places", axis, out="place_rows")
    wide = net.add("Expand", rows, net.const("box_sides", np.array([1, 1, 4])), out="place_boxes")
    kind = net.add("ArgMax", scores, out="kind", axis=2, keepdims=0)
    kind = net.add("Cast", net.add("GatherElements", kind, "places", out="kinds", axis=1), out="numbers", to=1)
    taken = net.add("GatherElements", boxes, wide, out="taken", axis=1)
    ends = [net.add("Unsqueeze", name, axis, out=f"{name}_column") for name in ("top", kind)]
    net.output(net.add("Concat", taken, *ends, out="found", axis=2), shape=["n", 5, 6])


def _boxes_of_bins(net: Net, x: str, spacing: float, bins: int = 8) -> str:
    """Centre and size in pixels, ``[n, 4, 16]``, of distances that are expectations over bins of a cell's size."""
    # Where cells are many, boxes end near their own cell: in the first bins.
    near = -np.float32(np.log(spacing)) * np.tile(np.arange(bins, dtype=np.float32), 4)
    raw = net.conv(x, random(2, 4 * bins, 8, 1, 1, scale=2.0), random(8, 4 * bins) + near, out="distances")
    x = net.add("Transpose", _reshaped(net, raw, 4, bins, 16), out="bins", perm=[0, 2, 1, 3])
    x = net.conv(net.add("Softmax", x, out="shares", axis=1), np.arange(bins, dtype=np.float32)[None, :, None, None],
                 out="expected")  # fmt: skip
    x = _reshaped(net, x, 4, 16)
    ends = [net.const(f"end{k}", np.array([2 * k], np.int64)) for k in range(3)]
    first, second = (
        net.add("Slice", x, ends[k], ends[k + 1], net.const(f"side{k}", np.array([1])), out=f"half{k}") for k in (0, 1)
    )
    places = spacing * (np.arange(4) + 0.5)
    cells = np.stack(np.meshgrid(places, places)).reshape(1, 2, 16).astype(np.float32)
    low = net.add("Sub", net.const("cells", cells), first, out="low")
    high = net.add("Add", net.const("cells_again", cells), second, out="high")
    middle = net.add("Mul", net.add("Add", low, high, out="both"), net.const("middle", 0.5), out="centre")
    box = net.add("Concat", middle, net.add("Sub", high, low, out="size"), out="box", axis=1)
    return net.add("Mul", box, net.const("stride", PIXELS / (4 * spacing)), out="boxes")
