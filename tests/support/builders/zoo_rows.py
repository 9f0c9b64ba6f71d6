"""Rows of the fault zoo made by hand: a fault, a healthy control, and what a report says of them."""

from typing import Any

from zoo.protocol.row import Cause, Row, Said


def said(*names: str, severity: str = "high", verdict: str = "degraded", **more: Any) -> Said:
    return Said(verdict, tuple(Cause(name, severity, 0.8, "A001") for name in names), **more)


def fault(answer: Said, **more: Any) -> Row:
    known: dict[str, Any] = {"expected": (("wide-range",),), "also": ("poor-range",), "gain_db": 20.0} | more
    return Row("net/wide", "net", "single", "activations", answer, **known)


def control(answer: Said) -> Row:
    return Row("net/sound", "net", "control", "control", answer, harms=False)
