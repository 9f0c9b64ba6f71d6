"""A trained detector with the head of YOLOv8, as Ultralytics exports it, in the forms that other exporters write.

Trained by ``benchmarks/train_yolo.py`` of commit 3c9fb382 on pictures and labels of ``quantmedic demo --detection``.
"""

from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
from onnx import helper, numpy_helper

import quantmedic
from builders.field_patients import set_constant
from builders.onnx_models import Array, Feed

FLOAT = Path(__file__).parents[2] / "recordings" / "yolo" / "yolo_float.onnx"
DEMO = Path(quantmedic.__file__).parent / "demo"
SIDE, CLASSES, CELLS = 64, 3, 80
#: What joins boxes and scores, and both.
JOINT, BOXES, SCORES, LOGITS = "/Concat_4", "/Mul_2_output_0", "/Sigmoid_output_0", "/Split_output_1"
#: Forms with boxes in 0…1.
_SHARES = ("shares", "logits", "no-object", "background")
Form = Literal[
    "columns", "rows", "shares", "objectness", "apart", "selected", "masks", "logits", "no-object", "background"
]


def yolo(form: Form = "columns", side: int = SIDE) -> onnx.ModelProto:
    """The float model.

    ``columns`` ``[n, 7, 80]`` is how Ultralytics exports it: centre and sides in pixels, and scores. ``rows`` has the
    columns last, ``shares`` boxes in 0…1. ``objectness`` ``[n, 80, 8]`` has the best score in front of the others.
    ``apart``: boxes ``[n, 80, 4]`` and scores ``[n, 80, 3]`` in two outputs. ``selected`` ``[n, 20, 6]``: the cells of
    the best scores with corners, score and class, as end-to-end exports have it. ``masks`` has two more columns and an
    output of two maps. Of three the scores are left to the application, and boxes are shares of the picture in an
    output of their own: ``logits`` ``[n, 80, 3]`` for a sigmoid, as RT-DETR has it; ``no-object`` ``[n, 80, 4]`` for a
    softmax, with a last column that is as large as the best class is small, as DETR has it; ``background``
    ``[n, 80, 4]`` has that column first and the softmax behind it, and corners, as SSD has it.

    Args:
        form: The form of the outputs.
        side: Pixels of the picture, a multiple of 64: larger ones are made smaller first.
    """
    model = onnx.load(str(FLOAT))
    strides = next(numpy_helper.to_array(own) for own in model.graph.initializer if own.name == "strides")
    set_constant(model, "strides", strides * (1 / SIDE if form in _SHARES else side / SIDE))
    if side != SIDE:
        _shrink(model, side)
    match form:
        case "rows":
            _end(model, [_node("Transpose", "output0", "rows", perm=[0, 2, 1])], {"rows": [CELLS, 7]})
        case "objectness":
            nodes = [
                _node("ReduceMax", LOGITS, "best", axes=[1], keepdims=1),
                _node("Sigmoid", "best", "objectness"),
                _node("Concat", [BOXES, "objectness", SCORES], "joined", axis=1),
                _node("Transpose", "joined", "found", perm=[0, 2, 1]),
            ]
            _end(model, nodes, {"found": [CELLS, 8]})
        case "apart":
            nodes = [_node("Transpose", own, name, perm=[0, 2, 1]) for own, name in ((BOXES, "b"), (SCORES, "s"))]
            _end(model, nodes, {"b": [CELLS, 4], "s": [CELLS, CLASSES]})
        case "masks":
            weight = numpy_helper.from_array(np.ones((2, CLASSES, 1), np.float32), "mask_weight")
            maps = numpy_helper.from_array(np.ones((2, 32, 3, 3), np.float32), "map_weight")
            model.graph.initializer.extend([weight, maps])
            nodes = [
                _node("Conv", [LOGITS, "mask_weight"], "coefficients"),
                _node("Conv", ["/stem/stem.3/act/Mul_output_0", "map_weight"], "maps"),
                _node("Concat", [BOXES, SCORES, "coefficients"], "found", axis=1),
            ]
            _end(model, nodes, {"found": [9, CELLS], "maps": [2, 6, 6]})
        case "logits":
            nodes = [_node("Transpose", own, name, perm=[0, 2, 1]) for own, name in ((BOXES, "b"), (LOGITS, "s"))]
            _end(model, nodes, {"b": [CELLS, 4], "s": [CELLS, CLASSES]})
        case "no-object":
            nodes = [
                *_nothing(),
                _node("Concat", [LOGITS, "nothing"], "joined", axis=1),
                *(_node("Transpose", own, name, perm=[0, 2, 1]) for own, name in ((BOXES, "b"), ("joined", "s"))),
            ]
            _end(model, nodes, {"b": [CELLS, 4], "s": [CELLS, CLASSES + 1]})
        case "background":
            nodes = [
                *_nothing(),
                _node("Concat", ["nothing", LOGITS], "joined", axis=1),
                _node("Softmax", "joined", "shares_of_one", axis=1),
                *_corners(model),
                *(
                    _node("Transpose", own, name, perm=[0, 2, 1])
                    for own, name in (("corners", "b"), ("shares_of_one", "s"))
                ),
            ]
            _end(model, nodes, {"b": [CELLS, 4], "s": [CELLS, CLASSES + 1]})
        case "selected":
            _end(model, _selection(model), {"found": [20, 6]})
    return model


def _nothing() -> list[onnx.NodeProto]:
    """The logit of no object: the less the best class of a cell has, the more."""
    return [_node("ReduceMax", LOGITS, "best", axes=[1], keepdims=1), _node("Neg", "best", "nothing")]


def _corners(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Corners of the boxes, channels first."""
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "half"))
    return [
        _node("Split", BOXES, ["middle", "size"], axis=1),
        _node("Mul", ["size", "half"], "reach"),
        _node("Sub", ["middle", "reach"], "low"),
        _node("Add", ["middle", "reach"], "high"),
        _node("Concat", ["low", "high"], "corners", axis=1),
    ]


def _selection(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The twenty cells of the best scores, by TopK."""
    for name, value in (("count", [20]), ("behind", [2]), ("sides", [1, 1, 4])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))
    return [
        *_corners(model),
        _node("Transpose", "corners", "corner_rows", perm=[0, 2, 1]),
        _node("Transpose", SCORES, "score_rows", perm=[0, 2, 1]),
        _node("ReduceMax", "score_rows", "best", axes=[2], keepdims=0),
        _node("TopK", ["best", "count"], ["top", "places"], axis=1),
        _node("Unsqueeze", ["places", "behind"], "place_rows"),
        _node("Expand", ["place_rows", "sides"], "place_boxes"),
        _node("ArgMax", "score_rows", "kind", axis=2, keepdims=0),
        _node("GatherElements", ["kind", "places"], "kinds", axis=1),
        _node("Cast", "kinds", "numbers", to=1),
        _node("GatherElements", ["corner_rows", "place_boxes"], "taken", axis=1),
        _node("Unsqueeze", ["top", "behind"], "top_column"),
        _node("Unsqueeze", ["numbers", "behind"], "kind_column"),
        _node("Concat", ["taken", "top_column", "kind_column"], "found", axis=2),
    ]


def _node(kind: str, reads: str | list[str], writes: str | list[str], **options: object) -> onnx.NodeProto:
    lists = [[own] if isinstance(own, str) else own for own in (reads, writes)]
    return helper.make_node(kind, *lists, name=lists[1][0], **options)


def _end(model: onnx.ModelProto, nodes: list[onnx.NodeProto], outputs: dict[str, list[int]]) -> None:
    """Let the model end otherwise; what nothing reads any more goes."""
    model.graph.node.extend(nodes)
    del model.graph.output[:]
    for name, shape in outputs.items():
        model.graph.output.append(helper.make_tensor_value_info(name, 1, ["batch", *shape]))
    wanted = set(outputs)
    for node in reversed(list(model.graph.node)):
        if wanted & set(node.output):
            wanted |= set(node.input)
        else:
            model.graph.node.remove(node)


def _shrink(model: onnx.ModelProto, side: int) -> None:
    """Let it take larger pictures."""
    step = side // SIDE
    for node in model.graph.node:
        node.input[:] = ["small" if name == "images" else name for name in node.input]
    pool = helper.make_node("AveragePool", ["images"], ["small"], name="shrink", kernel_shape=[step] * 2,
                            strides=[step] * 2)  # fmt: skip
    model.graph.node.insert(0, pool)
    for dim in model.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.dim_value = side


@cache
def _stored(role: str) -> dict[str, Array]:
    with np.load(DEMO / f"detection_{role}.npz") as stored:
        return dict(stored)


def pictures(role: str, n: int, side: int = SIDE) -> Array:
    """Pictures ``[n, 1, side, side]`` as the network takes them."""
    x = (_stored(role)["image"][:n].astype(np.float32) / 255 - 0.5) / 0.5
    return x.repeat(side // SIDE, axis=2).repeat(side // SIDE, axis=3)


def labels(n: int, side: int = SIDE) -> Array:
    """Labelled boxes of the validation pictures, in pixels: left, top, right, bottom and class."""
    found = _stored("validation")["labels"][:n].astype(np.float64)
    return np.where(found[..., 4:] >= 0, found * [*[side / 640] * 4, 1], -1.0)


def yolo_labels(n: int) -> Array:
    """The same as in text files of YOLO: class, centre and sides in 0…1."""
    own = labels(n, 1)
    box = np.concatenate([own[..., 4:], (own[..., :2] + own[..., 2:4]) / 2, own[..., 2:4] - own[..., :2]], axis=-1)
    return np.where(own[..., 4:] >= 0, box, -1.0)


def feeds(n: int = 96, side: int = SIDE) -> tuple[Feed, Feed]:
    """Representative and labelled validation pictures."""
    validation = {"images": pictures("validation", n, side), "labels": labels(n, side)}
    return {"images": pictures("representative", n, side)}, validation
