"""Whether a reading of a detector's outputs is to be judged by: what the float model finds in it, and what is wrong."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.metrics.box_labels import are_shares
from quantmedic.collectors.metrics.box_readings import GIVEN, BoxReading, Raw, ScoreKind
from quantmedic.collectors.metrics.detections import sample_rows
from quantmedic.collectors.metrics.score_kinds import Numbers
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.metrics.detection import LITTLE, OVERLAPS, mean_average_precision

Array = NDArray[np.generic]
Values = NDArray[np.float64]
Sides = tuple[float, float]
#: Where the classes of the labels are those of the outputs, boxes are not found this seldom with their class.
WITH_CLASS = 0.25
#: Labelled boxes may reach beyond the picture by a rounding: so many pixels, or this share of its side.
_PIXEL, _SHARE = 1.0, 0.01


@dataclass(frozen=True)
class Unread:
    """Why boxes are not read: it is open how, or the labels do not fit.

    Attributes:
        reason: In words.
        help: What to do.
        fallback: How they are read where the metric was named all the same; None where that cannot be said.
    """

    reason: str
    help: str
    fallback: BoxReading | None = None


class Sample(NamedTuple):
    """What a reading is tried on.

    Attributes:
        raw: The best boxes of a sample.
        numbers: What the numbers that are to become scores are like, of all of its boxes; None where each box has a
            class beside its score.
        labels: Its labels ``[boxes, 5]`` as they are.
        sides: Width and height of its picture.
    """

    raw: Raw
    numbers: Numbers | None
    labels: Array
    sides: Sides | None


def common_sides(samples: Sequence[Sample]) -> Sides | None:
    """Width and height of the pictures; None where they differ, or inputs hold none."""
    sizes = {own.sides for own in samples}
    return sizes.pop() if len(sizes) == 1 else None


def precision(samples: Sequence[Sample], truths: Sequence[Values], reading: BoxReading, *, with_class: bool) -> float:
    """Average precision at the overlap 0.5; of all boxes as if they were of one class where that does not count."""
    return _mean_precision(found_rows(samples, truths, reading, with_class=with_class), [0])


def _mean_precision(tally: Tally, overlaps: Sequence[int]) -> float:
    tally = tally.take(np.flatnonzero(tally.known))
    if not len(tally):
        return 0.0
    return float(mean_average_precision(overlaps)(tally)(np.ones((1, len(tally))))[0])


def found_rows(samples: Sequence[Sample], truths: Sequence[Values], reading: BoxReading, *, with_class: bool) -> Tally:
    """Which detections find which labelled boxes."""
    rows = []
    for own, truth in zip(samples, truths, strict=True):
        if with_class:
            rows.append(sample_rows(reading.detect(own.raw), truth))
            continue
        boxes, scores, classes = own.raw
        if classes is not None:
            found = reading.detect(Raw(boxes, scores, np.where(classes < 0, classes, 0.0)))
        else:
            best = reading.kind.of(scores).max(axis=1, keepdims=True)
            found = replace(reading, kind=GIVEN).detect(Raw(boxes, best, None))
        rows.append(sample_rows(found, np.concatenate([truth[:, :4], np.zeros((len(truth), 1))], axis=1)))
    return Tally.of_samples(rows, 3)


def reach_complaint(samples: Sequence[Sample], truths: Sequence[Values], kinds: Sequence[ScoreKind]) -> Unread | None:
    """What is wrong where labels reach beyond the input and the boxes of the float model do not follow them.

    Some models give boxes in pixels of the camera's picture: then their best boxes, as many as are labelled, reach
    beyond the input too, at least half as far as the labels do. The best ones are those of any of the ``kinds``.
    """
    sides = common_sides(samples)
    if sides is None or all(are_shares(own) for own in truths):
        return None
    for axis, (side, word) in enumerate(zip(sides, ("wide", "high"), strict=True)):
        reach = max(float(own[:, [axis, axis + 2]].max()) for own in truths)
        if reach <= side + max(_PIXEL, _SHARE * side):
            continue
        pairs = list(zip(samples, truths, strict=True))
        if max(_largest_number(own.raw, len(truth), kind) for kind in kinds for own, truth in pairs) >= (
            (side + reach) / 2
        ):
            continue
        return Unread(
            f"labels reach {reach:.4g}, the input is {side:g} {word}",
            "give them in pixels of the input; where the float model gives boxes in their unit: "
            "--metric map --metric-option unit=labels",
        )
    return None


def _largest_number(raw: Raw, count: int, kind: ScoreKind) -> float:
    """The largest of the numbers of the best boxes, in whatever order they stand."""
    scores = raw.scores if raw.classes is not None else kind.of(raw.scores).max(axis=1)
    return float(raw.boxes[np.argsort(-scores, kind="stable")[:count]].max(initial=0.0))


def few_complaint(rows: Tally, samples: int) -> str | None:
    """What is wrong where the float model itself finds few of the labelled boxes: then a drop says nothing."""
    value = _mean_precision(rows, range(len(OVERLAPS)))
    if value >= LITTLE:
        return None
    return (
        f"labels or preprocessing may be wrong: the float model's mAP is {100 * value:.1f} % (mAP50 "
        f"{100 * _mean_precision(rows, [0]):.1f} %) on {samples} samples"
    )


def class_complaint(
    samples: Sequence[Sample], truths: Sequence[Values], reading: BoxReading, classes: tuple[int, int], rows: Tally
) -> str | None:
    """What is wrong where boxes are found and their classes are others.

    ``classes`` are the least and the largest; ``rows`` what is found with its class.
    """
    best = precision(samples, truths, reading, with_class=False)
    found = _mean_precision(rows, [0])
    if found >= WITH_CLASS * best:
        return None
    values = f"(mAP50 {100 * best:.1f} %), and seldom with their class ({100 * found:.1f} %)"
    text = f"the float model finds the labelled boxes {values}"
    least, largest = classes
    raw = samples[0].raw
    count = reading.kind.classes_among(raw.scores.shape[1]) if raw.classes is None else None
    for shift in (-1, 1):
        # A class below 0 would be padding: labels in a circle are not shifted.
        if least + shift < 0 or (count is not None and largest + shift >= count):
            continue
        moved = [own + np.array([0, 0, 0, 0, shift]) for own in truths]
        if precision(samples, moved, reading, with_class=True) >= WITH_CLASS * best:
            return f"{text}: labels {'- 1' if shift < 0 else '+ 1'} would fit"
    return text
