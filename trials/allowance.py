"""How much may be tried: seconds where the user set a limit, else counted runs, as many on every machine."""

import time
from collections.abc import Callable
from typing import Protocol

from quantmedic.collectors.measure.simulation import values_per_sample
from quantmedic.engine.case.records import Case

#: Values of measured tensors that both networks compute in a counted second, about what two cores do.
VALUES_PER_SECOND = 2e8
#: Dividing the noise and simulating what heals it takes about so many runs of one sample, however many there are.
RUNS_TO_DIVIDE = 300
#: Measuring a sample, which runs both networks and counts every value, takes about as long as so many runs of both.
RUNS_PER_MEASURED = 2


class Allowance(Protocol):
    """What trials may take, in seconds of a clock that runs or of one that is counted on.

    Attributes:
        seconds: All of it.
    """

    seconds: float

    def now(self) -> float:
        """Seconds on its clock."""

    def count(self, seconds: float) -> None:
        """Work was done that is expected to take so long."""

    def per_sample(self, case: Case, measure: Callable[[], float]) -> float:
        """Seconds that both networks take for a sample; ``measure`` tells what they take on this machine."""

    def deadline(self, moment: float) -> float | None:
        """``time.monotonic()`` at a moment of its clock, at which to give up; None: never."""

    def shown_seconds(self, seconds: float) -> float | None:
        """Seconds as a record states them; None where they were not measured."""


class TimeAllowance:
    """The user's own limit: what is tried within it depends on the machine, and records state it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def now(self) -> float:
        """Seconds of the machine's clock."""
        return time.monotonic()

    def count(self, seconds: float) -> None:
        """Nothing: the clock runs by itself."""

    def per_sample(self, case: Case, measure: Callable[[], float]) -> float:
        """What is measured."""
        return measure()

    def deadline(self, moment: float) -> float | None:
        """The moment itself."""
        return moment

    def shown_seconds(self, seconds: float) -> float | None:
        """The seconds themselves."""
        return seconds


class CountedAllowance:
    """A limit in runs: the same trials on the same samples, however fast the machine is."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._now = 0.0

    @classmethod
    def like_measuring(cls, case: Case, at_least: float) -> "CountedAllowance":
        """About what measuring the case and dividing its noise took, and ``at_least`` so many counted seconds."""
        seen = sum(known.seen for known in case.record.datasets.values())
        return cls(max((seen * RUNS_PER_MEASURED + RUNS_TO_DIVIDE) * _per_sample(case), at_least))

    def now(self) -> float:
        """What was counted."""
        return self._now

    def count(self, seconds: float) -> None:
        """Add it."""
        self._now += seconds

    def per_sample(self, case: Case, measure: Callable[[], float]) -> float:
        """By the values that the networks compute."""
        return _per_sample(case)

    def deadline(self, moment: float) -> float | None:
        """None: nothing that was begun is given up."""
        return None

    def shown_seconds(self, seconds: float) -> float | None:
        """None: no clock was read."""
        return None


def _per_sample(case: Case) -> float:
    return max(values_per_sample(case), 1.0) / VALUES_PER_SECOND
