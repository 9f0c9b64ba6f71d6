"""How the outputs of a detector are read as boxes, scores and classes, and what may make scores of its numbers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.metrics.reading import OWN, Background, LabelLayout, Reading, Scores, shapes_of
from quantmedic.engine.errors import DataError
from quantmedic.engine.special_functions import sigmoid, softmax

Values = NDArray[np.float64]
#: Scores up to which a box is no detection, the overlap of suppression, detections of a sample, and boxes that are
#: looked at, as Ultralytics' validation has them.
CONFIDENCE, OVERLAP, MOST, CANDIDATES = 0.001, 0.7, 300, 30000
_BOX = 4
_LAYOUTS = (
    "name boxes [samples, boxes, 4], scores [samples, boxes] and classes [samples, boxes], --metric-option "
    "output=boxes,scores,classes; or boxes and scores [samples, boxes, classes]; or one output [samples, boxes, 6] of "
    f"corners, score and class; else {OWN}"
)
#: Boxes that are compared with each other at a time.
_BLOCK = 256
#: Probabilities may lie beside 0 and 1, and their sum beside 1, by a rounding.
_ROUNDING = 1e-3
#: The column of "no object" has the best score of more boxes than not: there are more places than objects.
_LEADS = 0.5
#: Backgrounds that a function leaves open where none is named, the likeliest first.
_OPEN: dict[Scores, tuple[Background, ...]] = {
    "given": ("none", "first", "last"),
    "sigmoid": ("none",),
    "softmax": ("last", "first"),
}


class Found(NamedTuple):
    """Detections of one sample: corners ``[boxes, 4]``, scores and classes ``[boxes]``."""

    boxes: Values
    scores: Values
    classes: Values


class Raw(NamedTuple):
    """What an output says of one sample: boxes ``[boxes, 4]`` in its own order and unit, and their scores.

    ``scores`` are ``[boxes]`` with ``classes`` beside them, or ``[boxes, classes]`` without.
    """

    boxes: Values
    scores: Values
    classes: Values | None


@dataclass(frozen=True)
class Columns:
    """Which columns of one output hold what; the box stands in the first four.

    Attributes:
        output: Its name.
        axis: Axis of the columns.
        scores: First column of the scores, and the one behind the last.
        objectness: Column that the scores are multiplied with.
        classes: Column of the class, where a single score belongs to it.
    """

    output: str
    axis: int
    scores: tuple[int, int]
    objectness: int | None = None
    classes: int | None = None


class ScoreKind(NamedTuple):
    """What makes scores of numbers ``[boxes, columns]``, and which column is no class."""

    scores: Scores = "given"
    background: Background = "none"

    def of(self, numbers: Values) -> Values:
        """Scores ``[boxes, classes]``."""
        match self.scores:
            case "sigmoid":
                numbers = sigmoid(numbers)
            case "softmax":
                numbers = softmax(numbers)
        match self.background:
            case "last":
                return numbers[:, :-1]
            case "first":
                return numbers[:, 1:]
            case "class-0":
                return np.concatenate([np.zeros((len(numbers), 1)), numbers[:, 1:]], axis=1)
        return numbers

    def classes_among(self, columns: int) -> int:
        """The largest number of a class that so many columns may have, and 1."""
        return columns - (self.background in ("last", "first"))


GIVEN = ScoreKind()


@dataclass(frozen=True)
class BoxReading:
    """How boxes are read.

    Attributes:
        order: Order of the four numbers of a box.
        columns: Where one output holds everything; None where boxes, scores and classes are found by their shapes.
        factor: Width and height by which boxes become what the labels are in.
        kind: What makes scores of the numbers.
        overlap: Overlap of the suppression; None where there is none: then of every box the best class counts.
        confidence: Score up to which a box is no detection.
        labels: Layout of the labels.
        words: All of it for reports; empty where it is just what was named.
    """

    order: str = "xyxy"
    columns: Columns | None = None
    factor: tuple[float, float] = (1.0, 1.0)
    kind: ScoreKind = GIVEN
    overlap: float | None = None
    confidence: float = 0.0
    labels: LabelLayout = "corners"
    words: str = ""

    def detect(self, raw: Raw) -> Found:
        """The detections of a sample; NaN where any of its numbers is none."""
        if any(np.isnan(own).any() for own in raw if own is not None):
            return Found(np.full((1, _BOX), np.nan), np.full(1, np.nan), np.full(1, np.nan))
        boxes = corners(raw.boxes, self.order) * np.tile(self.factor, 2)
        if raw.classes is not None:
            return Found(boxes, raw.scores, raw.classes)
        scores = self.kind.of(raw.scores)
        return self._best_classes(boxes, scores) if self.overlap is None else self._suppress_boxes(boxes, scores)

    def _best_classes(self, boxes: Values, scores: Values) -> Found:
        best = scores.max(axis=1)
        counts = best > self.confidence
        return Found(boxes[counts], best[counts], scores.argmax(axis=1)[counts].astype(np.float64))

    def _suppress_boxes(self, boxes: Values, scores: Values) -> Found:
        """Every class of a box that its score is high enough for is a detection of its own."""
        assert self.overlap is not None
        places, classes = np.nonzero(scores > self.confidence)
        own = scores[places, classes]
        if len(own) > CANDIDATES:
            best = np.argsort(-own, kind="stable")[:CANDIDATES]
            places, classes, own = places[best], classes[best], own[best]
        kept = suppress(boxes[places], own, classes.astype(np.float64), self.overlap, MOST)
        return Found(boxes[places[kept]], own[kept], classes[kept].astype(np.float64))


def raw_boxes(columns: Columns | None, named: Mapping[str, Array], samples: int) -> Iterator[Raw]:
    """What the outputs say of each sample.

    Args:
        columns: Where one output holds everything, if one does.
        named: Outputs by name, samples along axis 0.
        samples: Number of samples.

    Raises:
        DataError: Boxes, scores and classes are not found in the shapes.
    """
    if columns is None:
        yield from _of_shapes(named, samples)
        return
    array = named[columns.output]
    rows = np.moveaxis(array, columns.axis, -1).reshape(samples, -1, array.shape[columns.axis])
    first, stop = columns.scores
    for row in rows:
        own = row.astype(np.float64)
        scores = own[:, first:stop]
        if columns.classes is not None:
            yield Raw(own[:, :_BOX], scores[:, 0], own[:, columns.classes])
        elif columns.objectness is not None:
            yield Raw(own[:, :_BOX], scores * own[:, [columns.objectness]], None)
        else:
            yield Raw(own[:, :_BOX], scores, None)


def corners(boxes: Values, order: str) -> Values:
    """Boxes as left, top, right, bottom."""
    first, second = boxes[..., :2], boxes[..., 2:]
    match order:
        case "yxyx":
            return boxes[..., [1, 0, 3, 2]]
        case "xywh":
            return np.concatenate([first, first + second], axis=-1)
        case "cxcywh":
            return np.concatenate([first - second / 2, first + second / 2], axis=-1)
    return boxes


def _of_shapes(named: Mapping[str, Array], samples: int) -> Iterator[Raw]:
    """Boxes, scores and classes among outputs, told apart by their shapes."""
    fitting = {name: array for name, array in named.items() if array.ndim in (2, 3) and len(array) == samples}
    whole = [array for array in fitting.values() if array.ndim == 3 and array.shape[2] == 6]
    if len(whole) == 1:
        rows = whole[0].astype(np.float64)
        return (Raw(row[:, :4], row[:, 4], row[:, 5]) for row in rows)
    boxes = next((name for name, array in fitting.items() if array.ndim == 3 and array.shape[2] == _BOX), None)
    # Scores of four classes look like boxes: the first of the two is taken for the boxes.
    if boxes is None:
        raise _layout_error(named)
    own = fitting.pop(boxes).astype(np.float64)
    rest = {name: array for name, array in fitting.items() if array.shape[1] == own.shape[1]}
    by_class = [array for array in rest.values() if array.ndim == 3]
    if len(by_class) == 1:
        scores = by_class[0].astype(np.float64)
        return (Raw(a, b, None) for a, b in zip(own, scores, strict=True))
    lists = {name: array.astype(np.float64) for name, array in rest.items() if array.ndim == 2}
    if len(lists) != 2:
        raise _layout_error(named)
    return (Raw(*row) for row in zip(own, *_scores_and_classes(lists, named), strict=True))


def _scores_and_classes(lists: Mapping[str, Values], named: Mapping[str, Array]) -> tuple[Values, Values]:
    """Which of two lists holds the classes: integers, or else the one whose name says so."""
    first, second = lists
    integers = [name for name in lists if named[name].dtype.kind in "iu"]
    called = [name for name in lists if any(word in name.lower() for word in ("class", "label", "categor"))]
    for classes in (integers, called):
        if len(classes) == 1:
            return lists[second if classes[0] == first else first], lists[classes[0]]
    return lists[first], lists[second]


def _layout_error(named: Mapping[str, Array]) -> DataError:
    return DataError("boxes, scores and classes were not found in the outputs", where=shapes_of(named), help=_LAYOUTS)


def suppress(boxes: Values, scores: Values, classes: Values, overlap: float, most: int) -> NDArray[np.int64]:
    """Places of the boxes that stay, by falling score; of equal scores the earlier box is the better one.

    A box falls where a better one of its class that stays overlaps it by more than ``overlap`` (intersection over
    union). This is greedy suppression as torchvision's ``batched_nms`` has it. Boxes are taken block by block and the
    search ends once ``most`` stay, so that the long tail of poor scores costs nothing.

    Args:
        boxes: Corners, ``[boxes, 4]``.
        scores: ``[boxes]``.
        classes: ``[boxes]``.
        overlap: Overlap up to which boxes of a class stand beside each other.
        most: Boxes that stay at most.
    """

    def overlapping(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.bool_]:
        of_one_class = classes[first, np.newaxis] == classes[np.newaxis, second]
        return of_one_class & (box_overlaps(boxes[first], boxes[second]) > overlap)

    order = np.argsort(-scores, kind="stable")
    kept = np.zeros(0, np.int64)
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        block = block[~overlapping(block, kept).any(axis=1)]
        kept = np.concatenate([kept, block[_first_ones(overlapping(block, block))]])
        if len(kept) >= most:
            break
    return kept[:most]


def box_overlaps(first: Values, second: Values) -> Values:
    """Intersection over union of every box of one list with every one of the other, given by corners.

    Boxes without an area overlap nothing.
    """
    low = np.maximum(first[:, np.newaxis, :2], second[np.newaxis, :, :2])
    high = np.minimum(first[:, np.newaxis, 2:], second[np.newaxis, :, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=2)
    areas = [np.prod(own[:, 2:] - own[:, :2], axis=1) for own in (first, second)]
    union = areas[0][:, np.newaxis] + areas[1][np.newaxis] - shared
    overlaps: Values = np.divide(shared, union, out=np.zeros_like(shared), where=(shared > 0) & (union > 0))
    return overlaps


def _first_ones(overlapping: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Of boxes in order, those that no earlier one that stays overlaps."""
    stays = np.ones(len(overlapping), np.bool_)
    for i in range(len(stays)):
        if stays[i]:
            stays[i + 1 :] &= ~overlapping[i, i + 1 :]
    return stays


class Numbers(NamedTuple):
    """What the numbers ``[boxes, columns]`` of a sample, which are to become scores, are like.

    Attributes:
        columns: How many columns there are.
        are_probabilities: All lie in 0…1.
        sum_to_one: Those of each box do so together, as behind a softmax.
        first: Share of the boxes of which the first column is the largest.
        last: The same of the last column.
    """

    columns: int
    are_probabilities: bool
    sum_to_one: bool
    first: float
    last: float


def describe_numbers(numbers: Values) -> Numbers:
    """What numbers ``[boxes, columns]`` are like."""
    columns = numbers.shape[1]
    best = numbers.argmax(axis=1)
    return Numbers(
        columns,
        not np.any(np.abs(numbers - 0.5) > 0.5 + _ROUNDING),
        columns > 1 and bool(np.all(np.abs(numbers.sum(axis=1) - 1.0) <= _ROUNDING)),
        float(np.mean(best == 0)),
        float(np.mean(best == columns - 1)),
    )


def told_kinds(told: Reading, scores: Scores) -> list[ScoreKind]:
    """What the options leave open, the likeliest first; ``scores`` where they do not say what makes scores."""
    function = cast(Scores, told.text("scores", scores))
    named = cast(Background, told.text("background", ""))
    return [ScoreKind(function, each) for each in ([named] if named else _OPEN[function])]


def fitting_kinds(found: Sequence[Numbers], told: Reading) -> list[ScoreKind]:
    """What makes scores of such numbers, as far as neither they nor the options tell.

    Numbers beyond 0…1 are no probabilities: a sigmoid or a softmax was left to the application. A column of "no object"
    that is not named stands first or last, in a softmax, and is the largest of most boxes.

    Args:
        found: Of every sample.
        told: Options that were named.
    """
    plain = all(own.are_probabilities for own in found)
    kinds = told_kinds(told, "given") if plain else [*told_kinds(told, "sigmoid"), *told_kinds(told, "softmax")]
    kinds = list(dict.fromkeys(kinds))
    if "background" in told.options:
        return kinds
    return [kind for kind in kinds if _fits(kind, found)] or kinds[:1]


def _fits(kind: ScoreKind, found: Sequence[Numbers]) -> bool:
    if kind.background == "none":
        return True
    is_softmax = kind.scores == "softmax" or all(own.sum_to_one for own in found)
    leads = np.mean([own.first if kind.background == "first" else own.last for own in found])
    return found[0].columns > 1 and is_softmax and bool(leads > _LEADS)
