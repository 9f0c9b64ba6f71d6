"""How a run collects."""

from dataclasses import dataclass
from typing import Literal

#: More batches side by side would wait for each other at the interpreter.
MAX_LANES = 8


@dataclass(frozen=True)
class Options:
    """How to collect.

    Attributes:
        samples: At most this many samples per data set; None for all.
        batch_size: Samples per run; None for as many as suit the processor's cache.
        threads: Processor threads to use.
        step_error: Also measure each operator against the float one on deployed inputs (one more run per batch).
        seed: Seed of the slices, and of the intervals that are bootstrapped over samples.
        mode: ``exact`` measures every tensor on every sample, ``fast`` on some of them.
        most_lanes: Batches side by side at most: as many as fit into memory.
        thumbnails: Keep small versions of a few samples, where they are images.
    """

    samples: int | None = None
    batch_size: int | None = None
    threads: int = 1
    seed: int = 0
    mode: Literal["exact", "fast"] = "exact"
    thumbnails: bool = True
    step_error: bool = False
    most_lanes: int = MAX_LANES

    @property
    def run(self) -> dict[str, object]:
        """Entries of the run record: what the figures of a case depend on."""
        names = ("samples", "batch_size", "mode", "step_error", "seed")
        return {name: getattr(self, name) for name in names}

    @property
    def lanes(self) -> int:
        """Batches side by side: one batch does not keep several cores busy all the time, several do."""
        return min(self.threads, self.most_lanes, MAX_LANES)

    @property
    def session_threads(self) -> int:
        """Threads of one batch, so that all lanes together use ``threads``."""
        return max(self.threads // self.lanes, 1)
