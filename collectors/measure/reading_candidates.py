"""Readings of a detector's boxes, one of which the float model's own values and the labels choose."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.measure.reading_trials import Sample, Unread, precision
from quantmedic.collectors.metrics.box_readings import BoxReading, ScoreKind
from quantmedic.collectors.metrics.reading import BOXES

Values = NDArray[np.float64]
#: A reading is taken that finds this share of what is labelled, and so many times what any other one finds.
LEAST, AHEAD = 0.1, 2.0


class Candidate(NamedTuple):
    """A reading, and its unit in words."""

    reading: BoxReading
    unit: str

    @property
    def words(self) -> str:
        return f"{self.reading.order} {self.unit}"

    def with_kind(self, kind: ScoreKind) -> "Candidate":
        """The same with scores of another kind."""
        return Candidate(replace(self.reading, kind=kind), self.unit)


def choose_best(
    samples: Sequence[Sample], truths: Sequence[Values], candidates: Sequence[Candidate]
) -> Candidate | Unread:
    """The reading in which most is found, and so much more than in any other that it is no chance."""
    values = [precision(samples, truths, own.reading, with_class=False) for own in candidates]
    order = np.argsort(-np.array(values), kind="stable")
    chosen, best = candidates[order[0]], values[order[0]]
    if best < LEAST:
        return Unread(
            "in no reading of its boxes the float model finds the labelled ones (the best one, "
            f"{chosen.words}, has mAP50 {100 * best:.1f} % whatever the class)",
            f"where the labels are those of pictures of another size, give them in pixels of the input; else "
            f"{_name_reading()}",
        )
    rivals = [i for i in order[1:] if AHEAD * values[i] > best]
    others = [i for i in rivals if candidates[i].words != chosen.words]
    if others:
        return Unread(
            f"boxes {chosen.words} (mAP50 {100 * best:.1f} % whatever the class) fit the labels little better than "
            f"{candidates[others[0]].words} ({100 * values[others[0]]:.1f} %)",
            _name_reading(),
        )
    return _best_by_class(samples, truths, [chosen, *(candidates[i] for i in rivals)]) if rivals else chosen


def _best_by_class(
    samples: Sequence[Sample], truths: Sequence[Values], candidates: Sequence[Candidate]
) -> Candidate | Unread:
    """Of readings that differ in what makes scores, the one in which most is found with its class."""
    values = [precision(samples, truths, own.reading, with_class=True) for own in candidates]
    first, second = np.argsort(-np.array(values), kind="stable")[:2]
    if AHEAD * values[second] <= values[first]:
        return candidates[first]
    kinds = [kind_in_words(candidates[i].reading.kind) or "scores as they are" for i in (first, second)]
    return Unread(
        f"{kinds[0]} (mAP50 {100 * values[first]:.1f} %) fit the labels little better than {kinds[1]} "
        f"({100 * values[second]:.1f} %)",
        _name_scores(),
    )


def with_numbering(
    samples: Sequence[Sample], truths: Sequence[Values], classes: tuple[int, int], chosen: Candidate
) -> Candidate | Unread:
    """The reading with what the first class behind a background in front is called: 0 or 1.

    A labelled 0 is no background, and the number of columns less 1 has no column where the first one is left out.
    """
    kind, columns = chosen.reading.kind, samples[0].raw.scores.shape[-1]
    if kind.background != "first" or classes[0] == 0:
        return chosen
    counted = chosen.with_kind(kind._replace(background="class-0"))
    if max(float(own[:, 4].max()) for own in truths) >= kind.classes_among(columns):
        return counted
    ordered = _best_by_class(samples, truths, [chosen, counted])
    if isinstance(ordered, Unread):
        why = "it is open whether the first class behind the background has the number 0 or 1"
        return replace(ordered, reason=why, help="name it: --metric-option background=first, or class-0")
    return ordered


def _name_reading() -> str:
    return (
        f"name it: --metric map --metric-option boxes=… ({', '.join(BOXES)}) --metric-option unit=… (pixels, shares); "
        "see: quantmedic explain metrics"
    )


def _name_scores() -> str:
    return (
        "name what makes scores: --metric map --metric-option scores=sigmoid, or softmax, and where the column of no "
        "object stands: --metric-option background=last, first or none; see: quantmedic explain metrics"
    )


def kind_in_words(kind: ScoreKind) -> str:
    """What makes scores, in words; empty where they are taken as they are."""
    parts = [] if kind.scores == "given" else [f"scores by {kind.scores}"]
    match kind.background:
        case "last":
            parts.append("no object last")
        case "first":
            parts.append("background first")
        case "class-0":
            parts.append("background as class 0")
    return ", ".join(parts)
