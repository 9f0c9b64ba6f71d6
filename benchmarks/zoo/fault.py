"""The table of faults and controls, ``faults.csv``: what is put into networks, and which answers are right.

A row is carried out by the function of ``forms`` that has its name. Columns:

``set``
    ``tuning`` and ``reporting`` for what the rules are tuned on and what tuning does not see, ``real`` for what only
    networks have that others trained, ``a`` to ``f`` for the sets that tuning did not see when they were asked first.
``right``
    Names of the causes of which any counts as right; the first is the best name.
``also``
    Causes that follow from the right one or say the same less exactly: true, but not right.
``search``
    ``strength``: the strength that is drawn makes it worse. ``mild LEAST MOST``, ``severe LEAST MOST``, ``costly``: see
    ``mild.py``.
``heal``
    The function that carries out the remedy on the ill patient; empty: the fault is undone.
``harms``
    ``no`` for faults that cost no accuracy, such as a model that is not quantized.
``networks``
    Where it has a place, if not in every network of its set.
"""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .forms import activations, controls, data, graph, runtime, weights
from .mild import searched
from .patient import Patient

Unseen = Literal["", "a", "b", "c", "d", "e", "f"]
Form = Callable[[Patient], Patient]
FAMILIES = ("sanity", "data", "weights", "activations", "graph", "precision", "runtime")
TABLE = Path(__file__).with_name("faults.csv")


@dataclass(frozen=True)
class Fault:
    """A row of the table: one kind of fault, or a control; ``apply`` raises ``Inapplicable`` where it has no place."""

    set: str
    kind: str
    family: str
    expected: tuple[str, ...]
    also: tuple[str, ...]
    apply: Form
    heal: Form | None
    harms: bool
    graded: bool
    networks: tuple[str, ...]

    @property
    def unseen(self) -> Unseen:
        """The set of faults that tuning never sees to which this one belongs; empty for all others."""
        return self.set if len(self.set) == 1 else ""  # type: ignore[return-value]


def read_table() -> list[Fault]:
    """All rows, in the order in which cases are drawn."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        return [_fault(row) for row in csv.DictReader(file)]


def _fault(row: dict[str, str]) -> Fault:
    lists = {key: tuple(row[key].split()) for key in ("right", "also", "networks")}
    return Fault(
        row["set"],
        row["name"],
        row["family"],
        lists["right"],
        lists["also"],
        searched(FORMS[row["name"].replace("-", "_")], row["search"]),
        FORMS[row["heal"]] if row["heal"] else None,
        row["harms"] != "no",
        row["search"] not in ("", "costly"),
        lists["networks"],
    )


def _forms() -> dict[str, Form]:
    """Functions by name."""
    found = {name.replace("-", "_"): controls.with_recipe(changes) for name, changes in controls.RECIPES.items()}
    for module in (activations, controls, data, graph, runtime, weights):
        for name, form in vars(module).items():
            if getattr(form, "__module__", "") != module.__name__:
                continue
            if name in found:
                raise ValueError(f"two forms are named {name!r}: give one of them another name")
            found[name] = form
    return found


FORMS = _forms()
ROWS = read_table()
FAULTS = {row.kind: row for row in ROWS if row.family != "control"}
CONTROLS = {row.kind: row for row in ROWS if row.family == "control"}
