"""What attribution costs beside collecting, told from the calls that show progress."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from .row import Cost

#: Stages of the attribution: the loss budget, and simulated remedies, with which it begins.
BUDGET = "loss budget"
ATTRIBUTION = frozenset({"remedies", BUDGET})


class Clock:
    """Takes the time of every call of ``progress``."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """Start; ``now`` gives the seconds."""
        self._now, self._started = now, now()
        self._calls: list[tuple[str, float]] = []

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """A step begins."""
        self._calls.append((stage, self._now() - self._started))

    def cost(self) -> Cost:
        """Seconds until the attribution begins, those of its loss budget, and those of all of it.

        It begins with the first call of its stages, and ends with the first later one of another stage, or now.
        """
        now = self._now() - self._started
        start = next((seconds for stage, seconds in self._calls if stage in ATTRIBUTION), None)
        if start is None:
            return Cost(now, 0.0, 0.0)
        later = (seconds for stage, seconds in self._calls if seconds > start and stage not in ATTRIBUTION)
        return Cost(start, self._budget(now), next(later, now) - start)

    def _budget(self, now: float) -> float:
        """Seconds from the first call of the loss budget to the next one of another stage, or to now."""
        start = next((seconds for stage, seconds in self._calls if stage == BUDGET), None)
        if start is None:
            return 0.0
        later = (seconds for stage, seconds in self._calls if seconds > start and stage != BUDGET)
        return next(later, now) - start


def write_cost(case: Path, cost: Cost) -> None:
    """Keep the cost beside a stored case."""
    _beside(case).write_text(json.dumps(asdict(cost)))


def read_cost(case: Path) -> Cost | None:
    """The cost of a stored case, where it is known."""
    path = _beside(case)
    return Cost(**json.loads(path.read_text())) if path.is_file() else None


def _beside(case: Path) -> Path:
    return case.with_name(f"{case.name}-cost.json")
