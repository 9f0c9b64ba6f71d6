"""Faults of a chosen size: what a form is given is searched until the output loses a few decibels."""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps

import numpy as np

from ..draw import STRONGEST, WEAKEST
from ..patient import Patient
from ..quantizing import compare, run
from ..surgery import Inapplicable

#: What a mild fault costs at the least and the most, in dB of the output.
LEAST_DB, MOST_DB = 3.0, 12.0
#: How far off the wanted loss may be, steps of the search, and samples on which it is measured.
OFF_DB, STEPS, SAMPLES = 2.0, 8, 64

Form = Callable[[Patient, float], Patient]


def wanted_loss(strength: float) -> float:
    """Log of the strength, from the least to the most."""
    share = np.log(strength / WEAKEST) / np.log(STRONGEST / WEAKEST)
    return float(LEAST_DB + (MOST_DB - LEAST_DB) * np.clip(share, 0, 1))


def mild(least: float, most: float, *, worst: bool = False) -> Callable[[Form], Callable[[Patient], Patient]]:
    """A form that takes an amount becomes a fault whose amount is searched between two ends.

    With ``worst`` the column counts that loses most: a wide one hides the others.
    """

    def adapt(form: Form) -> Callable[[Patient], Patient]:
        @wraps(form)
        def apply(patient: Patient) -> Patient:
            return _searched(form, patient, (least, most), worst)

        return apply

    return adapt


def _searched(form: Form, patient: Patient, ends: tuple[float, float], worst: bool) -> Patient:
    wanted, sound = wanted_loss(patient.strength), sqnr(patient, worst)
    low, high = np.log(ends)
    best, off = None, OFF_DB
    for _ in range(STEPS):
        middle = (low + high) / 2
        found = form(patient, float(np.exp(middle)))
        lost = sound - sqnr(found, worst)
        if abs(lost - wanted) < off:
            best, off = found, abs(lost - wanted)
            if off < OFF_DB / 2:
                break
        low, high = (middle, high) if lost < wanted else (low, middle)
    if best is None:
        raise Inapplicable(f"no amount costs {wanted:.1f} dB")
    return best


def sqnr(patient: Patient, worst: bool = False) -> float:
    """Of the quantized outputs over a few samples, pooled or in the worst column."""
    few = replace(patient, validation=patient.validation[:SAMPLES])
    reference = run(few.network, few.shown_float or few.model, few.validation)
    found = compare(few.task, reference, run(few.network, few.quantized(), few.validation), None)
    return found.worst_column_db if worst else found.sqnr_db
