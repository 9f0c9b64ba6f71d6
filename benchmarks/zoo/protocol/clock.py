"""What attribution costs beside collecting, told from the calls that show progress."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from .row import Cost

#: The stage of the loss budget, which comes first, and of simulated remedies.
ATTRIBUTION = "remedies"


class Clock:
    """Takes the time of every call of ``progress``."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """Start; ``now`` gives the seconds."""
        self._now, self._started = now, now()
        self._calls: list[tuple[str, float]] = []

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """A step begins."""
        self._calls.append((stage, self._now() - self._started))

    def cost(self, budget_runs: int) -> Cost:
        """Seconds until the attribution begins, those of so many runs of the budget, and those of all of it.

        The attribution calls once when it begins, and before each of its runs. It ends with the first call of another
        stage, or now.
        """
        now = self._now() - self._started
        begun = next((i for i, (stage, _) in enumerate(self._calls) if stage == ATTRIBUTION), None)
        if begun is None:
            return Cost(now, 0.0, 0.0)
        later = self._calls[begun:]
        ended = next((seconds for stage, seconds in later if stage != ATTRIBUTION), now)
        start = later[0][1]
        steps = [seconds for stage, seconds in later if stage == ATTRIBUTION]
        budget_end = steps[budget_runs + 1] if budget_runs + 1 < len(steps) else ended
        return Cost(start, budget_end - start, ended - start)


def write_cost(case: Path, cost: Cost) -> None:
    """Keep the cost beside a stored case."""
    _beside(case).write_text(json.dumps(asdict(cost)))


def read_cost(case: Path) -> Cost | None:
    """The cost of a stored case, where it is known."""
    path = _beside(case)
    return Cost(**json.loads(path.read_text())) if path.is_file() else None


def _beside(case: Path) -> Path:
    return case.with_name(f"{case.name}-cost.json")
