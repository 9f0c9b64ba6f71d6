"""Which of the cases of a test run with each commit."""

from collections.abc import Iterable
from typing import Any

import pytest


def others_nightly(cases: Iterable[Any], *of_each_commit: Any) -> list[Any]:
    """Parameters of a test: those named, or the first, run with each commit, all others with the nightly tests."""
    listed = list(cases)
    chosen = of_each_commit or listed[:1]
    assert all(case in listed for case in chosen), "no such case"
    return [case if case in chosen else _at_night(case) for case in listed]


def _at_night(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly)
