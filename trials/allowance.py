"""How much may be tried: seconds where the user set a limit, else counted runs, as many on every machine."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from quantmedic.collectors.measure.simulation import values_per_sample
from quantmedic.engine.case.records import Case

#: Values of measured tensors that both networks compute in a counted second, about what two cores do.
VALUES_PER_SECOND = 2e8
#: Dividing the noise and simulating what heals it takes about so many runs of one sample, however many there are.
RUNS_TO_DIVIDE = 300
#: Measuring a sample, which runs both networks and counts every value, takes about as long as so many runs of both.
RUNS_PER_MEASURED = 2


@dataclass
class Allowance:
    """What trials may take, in seconds of the machine's clock or of one that counts what work is expected to take.

    Attributes:
        seconds: All of it.
        counted: The same trials on the same samples, however fast the machine is; no clock is read, and records state
            no seconds.
    """

    seconds: float
    counted: bool = False
    _counted: float = 0.0

    @classmethod
    def like_measuring(cls, case: Case, at_least: float) -> "Allowance":
        """About what measuring the case and dividing its noise took, and ``at_least`` so many counted seconds."""
        seen = sum(known.seen for known in case.record.datasets.values())
        return cls(max((seen * RUNS_PER_MEASURED + RUNS_TO_DIVIDE) * _per_sample(case), at_least), counted=True)

    def now(self) -> float:
        """Seconds on its clock."""
        return self._counted if self.counted else time.monotonic()

    def count(self, seconds: float) -> None:
        """Work was done that is expected to take so long."""
        self._counted += seconds

    def per_sample(self, case: Case, measure: Callable[[], float]) -> float:
        """Seconds that both networks take for a sample; ``measure`` tells what they take on this machine."""
        return _per_sample(case) if self.counted else measure()

    def by_the_clock(self, seconds: float) -> float | None:
        """Seconds, or a moment, as the machine's clock has them; None where work is counted and no clock is read."""
        return None if self.counted else seconds


def _per_sample(case: Case) -> float:
    return max(values_per_sample(case), 1.0) / VALUES_PER_SECOND
