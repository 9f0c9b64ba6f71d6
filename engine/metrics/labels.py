"""Labels that do not fit: classes shifted by one, in another order or unrelated to the predictions; boxes."""

from importlib import import_module
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.metrics.paired import share_interval

Integers = NDArray[np.int64]
LabelFault = Literal["none", "shifted", "reordered", "chance", "weak", "few", "turned"]
#: What each fault means for the metric, in words.
FAULT_WORDS: dict[LabelFault, str] = {
    "turned": "the labels stand in another order than what the model puts out",
    "shifted": "the labels are shifted against the model's classes by one",
    "reordered": "the labels number the classes in another order than the model",
    "chance": "the float model does no better on these labels than chance",
    "weak": "the float model does hardly better on these labels than chance",
    "few": "the float model finds few of the labelled boxes, and no loss is proven",
}
#: Name of the order in which labels were given.
AS_GIVEN = "as given"
#: Labels that agree more often than this are not looked at further.
_MOSTLY = 0.5
#: A change of the labels has to explain as many times the margin more than chance.
_CLEARLY = 2
#: Of more classes the best order is not searched: it takes minutes.
_MOST_CLASSES = 2000


class LabelFit(NamedTuple):
    """How labels and predicted classes fit together.

    Attributes:
        fault: What is wrong; ``none`` where the predictions tell something of the labels.
        chance: Share of equal classes that chance would give, from how often each is labelled and predicted.
        share: Share of samples where both are equal after the repair of a fault; None without one.
        shift: What has to be added to the labels, where they are shifted.
        kappa: Cohen's: what share of what chance leaves is right beyond it.
    """

    fault: LabelFault
    chance: float
    share: float | None = None
    shift: int | None = None
    kappa: float | None = None


def fit_of_labels(
    labels: Integers, predicted: Integers, halves: NDArray[np.bool_], margin: float, slight: float
) -> LabelFit | None:
    """How well labels and classes fit; None where the samples are too few to tell, or all of one class.

    The chance agreement is Cohen's (1960). Labels are shifted or reordered where the agreement afterwards is proven to
    exceed it by twice the margin, and the present agreement by the margin. An order is fitted on one half of the
    samples and counted on the other, for a fit to many classes finds one in noise as well. Ends of 95 % intervals
    decide. Else the model is weak where it is right beyond chance in no more than a slight share of what chance leaves
    (Cohen's kappa, as measured), and at chance where its agreement is also proven to exceed chance by less than the
    margin.

    Args:
        labels: Class of each sample, at least one.
        predicted: Class that the float model gives it.
        halves: Which half each sample belongs to.
        margin: Share by which a model has to exceed chance.
        slight: Kappa up to which a model is weak.
    """
    if (labels == labels[0]).all():  # answers to one class do not show whether the model tells classes apart
        return None
    chance = chance_agreement(labels, predicted)
    kappa = (float((labels == predicted).mean()) - chance) / (1.0 - chance)
    fault = _fault_of(labels, predicted, chance, kappa, halves, margin, slight)
    return fault._replace(kappa=kappa) if fault is not None else None


def _fault_of(
    labels: Integers,
    predicted: Integers,
    chance: float,
    kappa: float,
    halves: NDArray[np.bool_],
    margin: float,
    slight: float,
) -> LabelFit | None:
    """What is wrong with the labels, without kappa."""
    low, high = _interval(labels == predicted)
    if kappa > slight and low > max(_MOSTLY, chance + margin):
        return LabelFit("none", chance)

    def explains(moved: Integers) -> bool:
        needed = max(chance_agreement(moved, predicted) + _CLEARLY * margin, high + margin)
        return _interval(moved == predicted)[0] > needed

    for shift in (-1, 1):
        if explains(labels + shift):
            return LabelFit("shifted", chance, float((labels + shift == predicted).mean()), shift)
    renamed = _rename_classes(labels, predicted, halves)
    if renamed is not None and explains(renamed):
        return LabelFit("reordered", chance, float((renamed == predicted).mean()))
    if kappa <= slight:  # of rare classes chance leaves so little that a margin of it alone is no measure
        return LabelFit("chance" if high <= chance + margin else "weak", chance)
    return LabelFit("none", chance) if low > chance + margin else None


def chance_agreement(labels: Integers, predicted: Integers) -> float:
    """Share of equal classes, were labels and predictions independent (Cohen 1960)."""
    names, places = np.unique(np.concatenate([labels, predicted]), return_inverse=True)
    own = np.bincount(places[: len(labels)], minlength=len(names))
    other = np.bincount(places[len(labels) :], minlength=len(names))
    return float(own @ other) / len(labels) ** 2


def _interval(equal: NDArray[np.bool_]) -> tuple[float, float]:
    low, high = share_interval(equal.sum(), len(equal))
    return float(low), float(high)


def _rename_classes(labels: Integers, predicted: Integers, halves: NDArray[np.bool_]) -> Integers | None:
    """Labels renamed so that they agree best with the predictions of the other half."""
    names, places = np.unique(np.concatenate([labels, predicted]), return_inverse=True)
    own, other = places[: len(labels)], places[len(labels) :]
    if len(names) > _MOST_CLASSES:
        return None
    assign = import_module("scipy.optimize").linear_sum_assignment  # takes 0.2 seconds, and is needed for faults only
    renamed = own.copy()
    for half in (halves, ~halves):
        counts = np.zeros((len(names), len(names)))
        np.add.at(counts, (own[half], other[half]), 1)
        rows, columns = assign(-counts)
        order = np.arange(len(names))
        order[rows] = columns
        renamed[~half] = order[own[~half]]
    return np.asarray(names[renamed], np.int64)
