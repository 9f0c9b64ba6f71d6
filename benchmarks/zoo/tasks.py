"""The tasks of the zoo's networks: what an answer is, and when it is right."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .metrics import (
    character_errors,
    class_map,
    detections,
    f_measure,
    nearest_topic,
    pixels_right,
    read_digits,
)

Array = NDArray[Any]


@dataclass(frozen=True)
class Task:
    """How outputs become right or wrong.

    Attributes:
        answers: From the outputs to one answer per sample.
        right: Which answers are those of the labels; None: nobody knows the right ones.
        same: Which answers are those of the float model; None: there are no answers, only noise tells.
        metric: What quantmedic is told (None: top1 by default).
    """

    answers: Callable[[list[Array]], Array]
    right: Callable[[Array, Array], Array] | None
    same: Callable[[Array, Array], Array] | None
    metric: str | None = None


def _class(outputs: list[Array]) -> Array:
    scores = outputs[0]
    return np.where(np.isfinite(scores).all(1), scores.argmax(1), -1)


def _tail_class(outputs: list[Array]) -> Array:
    return _class([outputs[0][:, -10:]])


def _equal(answers: Array, labels: Array) -> Array:
    return answers == labels


TOP1 = Task(_class, _equal, _equal)
#: Boxes and scores in one output: the last ten columns are the scores.
TAIL = Task(_tail_class, _equal, _equal, "zoo.metrics:tail_top1")


def _close(answers: Array, pitches: Array) -> Array:
    wanted = pitches[:, None] if pitches.ndim == 1 else pitches
    cents = 1200 * np.abs(np.log2(np.maximum(answers, 1e-6) / np.maximum(wanted, 1e-6)))
    return (cents < 50).mean(1) > 0.5


PITCH = Task(lambda outputs: outputs[0][:, 3:-3], _close, _close, "zoo.metrics:pitch_accuracy")


def _all_found(found: Array, wanted: Array) -> Array:
    return f_measure(found, wanted) >= 0.8


def _read_alike(found: Array, wanted: Array) -> Array:
    return character_errors(found, wanted) == 0


#: Boxes, objectness and scores of all cells in one output: all things found, and no more than one too many.
DETECTION = Task(lambda outputs: detections(outputs[0]), _all_found, _all_found, "zoo.metrics:things_found")
READING = Task(lambda outputs: read_digits(outputs[0]), _read_alike, _read_alike, "zoo.metrics:characters_read")
TOPIC = Task(lambda outputs: nearest_topic(outputs[0]), _equal, _equal, "zoo.metrics:topic_found")


def _chances_alike(found: Array, wanted: Array) -> Array:
    """Within two points of a hundred."""
    return np.asarray(np.abs(found - wanted) < 0.02)


def _opinions_alike(found: Array, wanted: Array) -> Array:
    """A fifth of a point on a scale of one to five: what a panel of listeners does not tell apart."""
    return np.asarray(np.abs(found - wanted) < 0.2)


#: The probability in the last column; nobody knows the right one.
PROBABILITY = Task(lambda outputs: outputs[0].reshape(len(outputs[0]), -1)[:, -1], None, _chances_alike)
#: A mean opinion score; nobody knows the right one.
OPINION = Task(lambda outputs: outputs[0].reshape(len(outputs[0]), -1)[:, 0], None, _opinions_alike)
#: Outputs that are no answers: only noise tells.
NO_ANSWER = Task(lambda outputs: outputs[0], None, None)
#: Nearly all pixels have to be right, and more of them those of the float model.
MAPS = Task(
    lambda outputs: class_map(outputs[0]),
    lambda found, wanted: pixels_right(found, wanted) >= 0.9,
    lambda found, wanted: pixels_right(found, wanted) >= 0.97,
    "zoo.metrics:pixels_mapped",
)
