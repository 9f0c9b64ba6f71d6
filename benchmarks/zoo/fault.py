"""What a fault is, and the list of all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .patient import Patient

Unseen = Literal["", "a", "b", "c", "d", "e", "f"]
FAMILIES = ("sanity", "data", "weights", "activations", "graph", "precision", "runtime")


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        kind: Its name.
        family: Family of the rules that should find it.
        expected: Names of the causes of which any counts as right; the first is the best name.
        apply: Makes a patient ill; raises ``Inapplicable`` where the network has no place for it.
        heal: Carries out the remedy on the ill patient; None: the fault is undone.
        harms: False for faults that cost no accuracy, such as a model that is not quantized.
        graded: It can be made worse (``Patient.strength``) where a robust network does not mind it.
        also: Causes that follow from the expected one or say the same less exactly: true, but not right.
        unseen: The set of faults that tuning never sees to which this one belongs; empty for all others.
    """

    kind: str
    family: str
    expected: tuple[str, ...]
    apply: Callable[[Patient], Patient]
    heal: Callable[[Patient], Patient] | None = None
    harms: bool = True
    graded: bool = False
    also: tuple[str, ...] = ()
    unseen: Unseen = ""


FAULTS: dict[str, Fault] = {}


def fault(
    kind: str,
    family: str,
    *expected: str,
    heal: Callable[[Patient], Patient] | None = None,
    harms: bool = True,
    graded: bool = False,
    also: tuple[str, ...] = (),
    unseen: Unseen = "",
):
    """Register a function as a fault."""

    def register(apply: Callable[[Patient], Patient]) -> Callable[[Patient], Patient]:
        if kind in FAULTS:
            raise ValueError(f"two faults are named {kind!r}: give one of them another name")
        FAULTS[kind] = Fault(kind, family, expected, apply, heal, harms, graded, also, unseen)
        return apply

    return register
