"""Which of the tests that take long run this time.

``QUANTMEDIC_TURN=2/4`` leaves three of every four tests that ``tests/turns.txt`` lists out, and another value others:
``.ci/run`` derives it from the number of commits, so that four commits run them all. Without it, everything runs.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from zlib import crc32

import pytest

VARIABLE = "QUANTMEDIC_TURN"
LISTED = Path(__file__).parents[1] / "turns.txt"


def listed() -> frozenset[str]:
    """Tests that take turns, without their parameters."""
    return frozenset(LISTED.read_text(encoding="utf-8").split())


def turn_of(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """Which turn it is, and of how many; None where everything runs.

    Raises:
        pytest.UsageError: The variable holds something else.
    """
    value = environment.get(VARIABLE)
    if not value:
        return None
    number, _, of = value.partition("/")
    if not (number.isdecimal() and of.isdecimal() and int(of) > 0):
        raise pytest.UsageError(f"{VARIABLE}={value} is not a turn: write 2/4 for the third of four")
    return int(number) % int(of), int(of)


def has_turn(test: str, turn: tuple[int, int], names: frozenset[str]) -> bool:
    """Whether a test runs in this turn: all that are not listed do. Parameters take turns of their own."""
    number, of = turn
    return test.partition("[")[0] not in names or crc32(test.encode()) % of == number


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what has its turn another time."""
    turn = turn_of()
    if turn is None:
        return
    names = listed()
    config.hook.pytest_deselected(items=[item for item in items if not has_turn(item.nodeid, turn, names)])
    items[:] = [item for item in items if has_turn(item.nodeid, turn, names)]
