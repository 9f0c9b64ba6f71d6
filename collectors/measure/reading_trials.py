"""Whether a reading of a detector's outputs is to be judged by: what the float model finds in it, and what is wrong."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.metrics.box_labels import are_shares
from quantmedic.collectors.metrics.box_readings import GIVEN, BoxReading, Numbers, Raw, ScoreKind
from quantmedic.collectors.metrics.detections import sample_rows
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.metrics.detection import LITTLE, OVERLAPS, mean_average_precision

Array = NDArray[np.generic]
Values = NDArray[np.float64]
Sides = tuple[float, float]
#: Where the classes of the labels are those of the outputs, boxes are not found this seldom with their class.
WITH_CLASS = 0.25
#: Classes with another number fit far better where boxes are found so many times as often with them.
FAR_BETTER = 2.0
#: Labelled boxes may reach beyond the picture by a rounding: so many pixels, or this share of its side.
_PIXEL, _SHARE = 1.0, 0.01


class Unread(Exception):
    """Boxes are not read: it is open how, or the labels do not fit.

    Attributes:
        reason: In words.
        help: What to do.
        fallback: How they are read where the metric was named all the same; None where that cannot be said.
    """

    def __init__(self, reason: str, help: str, fallback: BoxReading | None = None) -> None:
        super().__init__(reason)
        self.reason, self.help, self.fallback = reason, help, fallback


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


@dataclass(frozen=True)
class Trial:
    """Samples on which readings are tried.

    Attributes:
        samples: At least one.
        truths: The labelled boxes of each that have an area: left, top, right, bottom and class.
        classes: The least and the largest class of all labels.
    """

    samples: Sequence[Sample]
    truths: Sequence[Values]
    classes: tuple[int, int]

    @property
    def sides(self) -> Sides | None:
        """Width and height of the pictures; None where they differ, or inputs hold none."""
        sizes = {own.sides for own in self.samples}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def are_shares(self) -> bool:
        """Labelled boxes are shares of the picture."""
        return all(are_shares(own) for own in self.truths)

    def largest(self, columns: Sequence[int]) -> float:
        """The largest number in these columns of the labelled boxes."""
        return max(float(own[:, columns].max()) for own in self.truths)

    def precision(self, reading: BoxReading, *, with_class: bool, shift: int = 0) -> float:
        """Average precision at the overlap 0.5; of all boxes as if they were of one class where that does not count.

        ``shift`` is added to the labelled classes.
        """
        return _mean_precision(self.match_boxes(reading, with_class=with_class, shift=shift), [0])

    def match_boxes(self, reading: BoxReading, *, with_class: bool, shift: int = 0) -> Tally:
        """Which detections find which labelled boxes."""
        rows = []
        for own, truth in zip(self.samples, self.truths, strict=True):
            if with_class:
                rows.append(sample_rows(reading.detect(own.raw), truth + np.array([0, 0, 0, 0, shift])))
                continue
            boxes, scores, classes = own.raw
            if classes is not None:
                found = reading.detect(Raw(boxes, scores, np.where(classes < 0, classes, 0.0)))
            else:
                best = reading.kind.of(scores).max(axis=1, keepdims=True)
                found = replace(reading, kind=GIVEN).detect(Raw(boxes, best, None))
            rows.append(sample_rows(found, np.concatenate([truth[:, :4], np.zeros((len(truth), 1))], axis=1)))
        return Tally.of_samples(rows, 3)

    def refuse_far_labels(self, kinds: Sequence[ScoreKind]) -> None:
        """Refuse labels that reach beyond the input where the boxes of the float model do not follow them.

        Some models give boxes in pixels of the camera's picture: then their best boxes, as many as are labelled, reach
        beyond the input too, at least half as far as the labels do. The best ones are those of any of the ``kinds``.

        Raises:
            Unread: They do.
        """
        if self.sides is None or self.are_shares:
            return
        pairs = list(zip(self.samples, self.truths, strict=True))
        for axis, (side, word) in enumerate(zip(self.sides, ("wide", "high"), strict=True)):
            reach = self.largest([axis, axis + 2])
            if reach <= side + max(_PIXEL, _SHARE * side):
                continue
            if max(_largest_number(own.raw, len(truth), kind) for kind in kinds for own, truth in pairs) < (
                (side + reach) / 2
            ):
                raise Unread(
                    f"labels reach {reach:.4g}, the input is {side:g} {word}",
                    "give them in pixels of the input; where the float model gives boxes in their unit: "
                    "--metric map --metric-option unit=labels",
                )

    def refuse_poor(self, reading: BoxReading, words: str, *, is_only: bool) -> None:
        """Refuse a reading in which the float model finds little, or boxes of other classes than are labelled.

        Args:
            reading: The one that was chosen.
            words: What it says of boxes.
            is_only: There was no other, so that classes say nothing of it.

        Raises:
            Unread: It does; the reading is its fallback.
        """
        rows = self.match_boxes(reading, with_class=True)
        if not is_only:
            self._refuse_other_classes(reading, _mean_precision(rows, [0]))
        value = _mean_precision(rows, range(len(OVERLAPS)))
        if value < LITTLE:  # then a drop says nothing
            raise Unread(
                f"labels or preprocessing may be wrong: the float model's mAP is {100 * value:.1f} % (mAP50 "
                f"{100 * _mean_precision(rows, [0]):.1f} %) on {len(self.samples)} samples",
                f"boxes were read as {words}; judge all the same: --metric map --expected-float-metric VALUE, "
                "the mAP that the model is known to have on such data",
                reading,
            )

    def _refuse_other_classes(self, reading: BoxReading, found: float) -> None:
        """Refuse where boxes are found and seldom with their class; ``found`` is the precision with it.

        So it is where labels that are numbered one higher or lower fit far better: some agree by chance.
        """
        best = self.precision(reading, with_class=False)
        is_seldom = found < WITH_CLASS * best
        enough = WITH_CLASS * best if is_seldom else FAR_BETTER * found
        # No precision exceeds 1: where most boxes have their class, nothing is matched again.
        shifts = self._shifts(reading) if enough <= 1.0 else []
        shift = next((s for s in shifts if self.precision(reading, with_class=True, shift=s) >= enough), None)
        if not is_seldom and shift is None:
            return
        values = f"(mAP50 {100 * best:.1f} %), and seldom with their class ({100 * found:.1f} %)"
        text = f"the float model finds the labelled boxes {values}"
        if shift is not None:
            text += f": labels {'- 1' if shift < 0 else '+ 1'} would fit"
        raise Unread(text, "number the labels as the model does, or judge all the same: --metric map", reading)

    def _shifts(self, reading: BoxReading) -> list[int]:
        """By what labels may be off; a class below 0 would be padding, and labels in a circle are not shifted."""
        (least, largest), raw = self.classes, self.samples[0].raw
        count = reading.kind.classes_among(raw.scores.shape[1]) if raw.classes is None else None
        return [s for s in (-1, 1) if least + s >= 0 and (count is None or largest + s < count)]


def _mean_precision(tally: Tally, overlaps: Sequence[int]) -> float:
    tally = tally.take(np.flatnonzero(tally.known))
    if not len(tally):
        return 0.0
    return float(mean_average_precision(overlaps)(tally)(np.ones((1, len(tally))))[0])


def _largest_number(raw: Raw, count: int, kind: ScoreKind) -> float:
    """The largest of the numbers of the best boxes, in whatever order they stand."""
    scores = raw.scores if raw.classes is not None else kind.of(raw.scores).max(axis=1)
    return float(raw.boxes[np.argsort(-scores, kind="stable")[:count]].max(initial=0.0))
