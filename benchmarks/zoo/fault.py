"""The table of faults and controls, ``faults.csv``: what is put into networks, and which answers are right.

A row is carried out by the function of ``forms`` that has its name, or by that in its last column. Columns:

``set``
    ``tuning`` and ``reporting`` for what the rules are tuned on and what tuning does not see, ``real`` for what only
    networks have that others trained, ``a`` to ``f`` and ``l`` to ``o`` for the sets that tuning did
    not see when they were asked first.
``right``
    Names of the causes of which any counts as right; the first is the best name.
``also``
    Causes that follow from the right one or say the same less exactly: true, but not right.
``search``
    ``strength``: the strength that is drawn makes it worse. ``mild LEAST MOST``, ``clear LEAST MOST``,
    ``severe LEAST MOST``, ``costly``: see ``mild.py``.
``heal``
    The function that carries out the remedy on the ill patient; empty: the fault is undone.
``harms``
    ``no`` for faults that cost no accuracy, such as a model that is not quantized.
``networks``
    Where it has a place, if not in every network of its set.
``form``
    Function and arguments, such as ``narrow_ranges 0.12 0.25 0.6``; those with a name are written ``name=value``.
"""

import ast
import csv
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from . import forms
from .mild import searched
from .patient import Patient

#: Sets that tuning did not see when they were asked first; of g to k nothing is left.
SETS = "abcdeflmno"
#: All modules of forms, in the order of their names.
FORM_MODULES = tuple(import_module(f"{forms.__name__}.{found.name}") for found in iter_modules(forms.__path__))
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
        searched(_form(row["form"] or row["name"].replace("-", "_")), row["search"]),
        FORMS[row["heal"]] if row["heal"] else None,
        row["harms"] != "no",
        row["search"] not in ("", "costly"),
        lists["networks"],
    )


def _form(text: str) -> Callable[..., Patient]:
    """A function with its arguments, behind the patient and the amount that is searched for it."""
    name, *words = text.split()
    named = {key: _value(word) for key, is_named, word in (each.partition("=") for each in words) if is_named}
    others = [_value(word) for word in words if "=" not in word]
    form = FORMS[name]
    return (lambda patient, *amount: form(patient, *amount, *others, **named)) if words else form


def _value(word: str) -> Any:
    """A number or a word."""
    try:
        return ast.literal_eval(word)
    except ValueError:
        return word


def _forms() -> dict[str, Callable[..., Patient]]:
    """Functions by name."""
    found: dict[str, Callable[..., Patient]] = {}
    for module in FORM_MODULES:
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
