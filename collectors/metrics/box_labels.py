"""Labelled boxes, in the two layouts in which people keep them."""

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.metrics.reading import LabelLayout
from quantmedic.engine.errors import DataError

Values = NDArray[np.float64]
#: Numbers of a labelled box.
NUMBERS = 5
_PADDING = -1.0
#: Boxes may reach beyond the picture by a rounding.
_SHARE = 1.01
_HELP = (
    "give [samples, boxes, 5]: left, top, right, bottom and class, or class, centre, width and height in 0…1 as in the "
    "text files of YOLO; fill up with boxes of class -1"
)


def may_be_boxes(labels: Array) -> bool:
    """The labels have the shape of boxes ``[samples, boxes, 5]``."""
    return labels.dtype.kind in "fiub" and labels.ndim == 3 and labels.shape[2] == NUMBERS


def no_boxes_error(what: str, *why: str) -> DataError:
    """The error for labels that have another shape; ``what`` describes them, ``why`` says what asks for boxes."""
    return DataError("labels are not boxes", where=[f"labels  {what}", *why], help=_HELP)


def shape_of_batch(labels: Array) -> str:
    """Shape and type of labels of which only some are at hand."""
    return f"[{', '.join(['samples', *map(str, labels.shape[1:])])}]  {labels.dtype}"


def label_layout(labels: Array) -> LabelLayout:
    """Which of the two layouts it is: the class is a whole number, behind the box or in front of it.

    Raises:
        DataError: They are no boxes, or no column holds classes.
    """
    if not may_be_boxes(labels):
        raise no_boxes_error(shape_of_batch(labels))
    last, first = labels[labels[..., 4] >= 0], labels[labels[..., 0] >= 0]
    if _is_whole(labels[..., 4]) and (last[:, 2:4] >= last[:, :2]).all():
        return "corners"
    if _is_whole(labels[..., 0]) and len(first) and (first[:, 1:] >= 0).all() and (first[:, 1:] <= _SHARE).all():
        return "yolo"
    if _is_whole(labels[..., 4]):
        return "corners"
    raise DataError(
        "no column of the labelled boxes holds classes",
        where=f"box  {', '.join(f'{number:g}' for number in labels.reshape(-1, NUMBERS)[0])}",
        help=_HELP,
    )


def labelled_boxes(labels: Array, layout: LabelLayout = "corners") -> Values:
    """Left, top, right, bottom and class, ``[samples, boxes, 5]``; a negative class is padding.

    Boxes without area, which nothing can overlap, are how some fill up their labels: they become padding.

    Raises:
        DataError: They have another shape, or a box ends before it begins.
    """
    if not may_be_boxes(labels):
        raise no_boxes_error(shape_of_batch(labels))
    boxes = labels.astype(np.float64)
    if layout == "yolo":
        centre, sides = boxes[..., 1:3], boxes[..., 3:]
        boxes = np.concatenate([centre - sides / 2, centre + sides / 2, boxes[..., :1]], axis=-1)
    real = boxes[boxes[..., 4] >= 0]
    if np.any(real[:, 2:4] < real[:, :2]):
        wrong = real[(real[:, 2:4] < real[:, :2]).any(axis=1)][0]
        raise DataError(
            "a labelled box ends before it begins",
            where=f"box  {', '.join(f'{number:g}' for number in wrong[:4])}",
            help="give left, top, right, bottom: of a corner and the sides add the corner to the sides",
        )
    boxes[(boxes[..., 2:4] == boxes[..., :2]).any(axis=-1), 4] = _PADDING
    return boxes


def count_flat_boxes(labels: Array, layout: LabelLayout) -> int:
    """How many labelled boxes have no area, of labels ``[samples, boxes, 5]``."""
    classes = labels[..., 0 if layout == "yolo" else 4]
    sides = labels[..., 3:] if layout == "yolo" else labels[..., 2:4] - labels[..., :2]
    return int(((classes >= 0) & (sides == 0).any(axis=-1)).sum())


def are_shares(boxes: Values) -> bool:
    """Labelled boxes are shares of the picture: none reaches beyond 1."""
    real = boxes[boxes[..., 4] >= 0]
    return bool((real[:, :4] <= _SHARE).all())


def _is_whole(numbers: Array) -> bool:
    return bool(np.array_equal(numbers, np.floor(numbers)))
