"""Which of the thorough tests run this time.

``QUANTMEDIC_TURN=2/6`` runs the tests of one file in six of those that carry ``pytest.mark.thorough``, and another
value those of others: ``.ci/run`` derives it from the number of commits, so that six commits run them all. A file runs
as a whole, for its tests share what is slow to build. Without the variable, everything runs.
"""

import os
from collections.abc import Mapping
from zlib import crc32

import pytest

VARIABLE = "QUANTMEDIC_TURN"


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


def has_turn(test: str, turn: tuple[int, int]) -> bool:
    """Whether a thorough test, called FILE::NAME, runs in this turn."""
    number, of = turn
    return crc32(test.partition("::")[0].encode()) % of == number


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what has its turn another time."""
    turn = turn_of()
    if turn is None:
        return
    waiting = {
        item for item in items if item.get_closest_marker("thorough") is not None and not has_turn(item.nodeid, turn)
    }
    config.hook.pytest_deselected(items=[item for item in items if item in waiting])
    items[:] = [item for item in items if item not in waiting]
