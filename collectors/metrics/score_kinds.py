"""What may make scores of the numbers of a detector: told by the options, and by the numbers themselves."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.metrics.box_readings import Background, ScoreKind, Scores
from quantmedic.collectors.metrics.reading import Reading

Values = NDArray[np.float64]
#: Probabilities may lie beside 0 and 1, and their sum beside 1, by a rounding.
_ROUNDING = 1e-3
#: The column of "no object" has the best score of more boxes than not: there are more places than objects.
_MOST = 0.5
_BACKGROUNDS: tuple[Background, ...] = ("none", "last", "first", "class-0")
#: Backgrounds that a function leaves open where none is named, the likeliest first.
_OPEN: dict[Scores, tuple[Background, ...]] = {
    "given": ("none", "first", "last"),
    "sigmoid": ("none",),
    "softmax": ("last", "first"),
}


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
    named = told.text("scores", scores)
    function: Scores = "sigmoid" if named == "sigmoid" else "softmax" if named == "softmax" else "given"
    background = told.text("background", "")
    return [ScoreKind(function, each) for each in [own for own in _BACKGROUNDS if own == background] or _OPEN[function]]


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
    return found[0].columns > 1 and is_softmax and bool(leads > _MOST)
