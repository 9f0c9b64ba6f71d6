"""Faults of a chosen size: what a form is given is searched until the output loses a chosen number of decibels."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from .draw import STRONGEST, WEAKEST
from .patient import Patient
from .quantizing import compare, run
from .surgery import Inapplicable

#: What a mild fault costs at the least and the most, in dB of the output.
LEAST_DB, MOST_DB = 3.0, 12.0
#: The same of one that is to count as a fault where no answer changes: twice as loud and more.
CLEAR_DB = 8.5
#: The same of a severe one, a third of which are below nine.
FAINTEST_DB, FATAL_DB = 4.0, 40.0
#: How far off the wanted loss may be, in dB and as a share; steps of the search, and samples on which it is measured.
OFF_DB, OFF_SHARE, STEPS, SAMPLES = 2.0, 0.15, 8, 64

Form = Callable[[Patient, float], Patient]


def wanted_loss(strength: float) -> float:
    """Log of the strength, from the least to the most."""
    return float(LEAST_DB + (MOST_DB - LEAST_DB) * _share(strength))


def clear_loss(strength: float) -> float:
    """The same, beginning where noise alone is harm."""
    return float(CLEAR_DB + (MOST_DB - CLEAR_DB) * _share(strength))


def severe_loss(strength: float) -> float:
    """Log-uniform from the faintest loss to a fatal one where strengths are."""
    return float(FAINTEST_DB * (FATAL_DB / FAINTEST_DB) ** _share(strength))


def _share(strength: float) -> float:
    return float(np.clip(np.log(strength / WEAKEST) / np.log(STRONGEST / WEAKEST), 0, 1))


@dataclass(frozen=True)
class _Aim:
    """What a search looks for.

    Attributes:
        ends: Between which amounts.
        loss: From the strength to the wanted loss.
        nearest: Whether the nearest real loss will do where no amount gives the wanted one.
    """

    ends: tuple[float, float]
    loss: Callable[[float], float]
    nearest: bool


def searched(form: Callable[..., Patient], how: str) -> Callable[[Patient], Patient]:
    """A form as the column ``search`` of the table wants it.

    ``mild LEAST MOST`` searches an amount between two ends that puts in a few decibels, ``clear LEAST MOST`` one that
    puts in so many that noise alone is harm, ``severe LEAST MOST`` a few to fatally many, and the nearest that costs
    something where no amount gives it. ``costly`` takes a form without an amount, where it costs at least as much as
    the mildest fault does. All others are taken as they are.
    """
    match how.split():
        case ["mild" | "clear" | "severe" as kind, least, most]:
            loss = {"mild": wanted_loss, "clear": clear_loss, "severe": severe_loss}[kind]
            aim = _Aim((float(least), float(most)), loss, kind == "severe")
            return lambda patient: _searched(form, patient, aim)
        case ["costly"]:
            return lambda patient: _costly(form, patient)
        case _:
            return form


def _costly(form: Callable[[Patient], Patient], patient: Patient) -> Patient:
    found = form(patient)
    if max(sqnr(patient, worst) - sqnr(found, worst) for worst in (False, True)) < LEAST_DB:
        raise Inapplicable(f"it costs less than {LEAST_DB} dB")
    return found


def _searched(form: Form, patient: Patient, aim: _Aim) -> Patient:
    wanted, sound = aim.loss(patient.strength), sqnr(patient)
    near = max(OFF_DB, OFF_SHARE * wanted)
    low, high = np.log(aim.ends)
    best, off = None, np.inf if aim.nearest else near
    for _ in range(STEPS):
        middle = (low + high) / 2
        found = form(patient, float(np.exp(middle)))
        lost = sound - sqnr(found)
        if abs(lost - wanted) < off and (not aim.nearest or lost >= LEAST_DB):
            best, off = found, abs(lost - wanted)
            if off < near / 2:
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
