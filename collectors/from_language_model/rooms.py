"""Places on disk for the hidden states of both models."""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_language_model.unfinished import Work

Values = NDArray[np.float32]


@dataclass(frozen=True)
class States:
    """Hidden states of both models, ``[tokens, width]``, text after text."""

    floats: Values
    quantized: Values


@dataclass(frozen=True)
class Rooms:
    """Two places for the states, which blocks take in turns: one that was interrupted finds what went into it.

    Attributes:
        work: Holds them.
        turns: Block k reads the one of k modulo 2 and writes the other.
        kept: What went into the quantized block that makes the most noise so far.
        routes: The experts that are chosen in the block that runs, ``[tokens, chosen]``, and their shares beside them;
            no later block reads them. None where there are none.
    """

    work: Work
    turns: tuple[States, States]
    kept: Values
    routes: Values | None = None

    @classmethod
    def in_work(cls, work: Work, tokens: int, width: int, chosen: int | None = None) -> "Rooms":
        """Open them, with what is in them.

        Args:
            work: Holds them.
            tokens: Tokens of all texts.
            width: Of the hidden states.
            chosen: Experts that are chosen for each token in a block; None where there are none.

        Raises:
            OutputError: There is not enough room on the disk.
        """
        shape = (tokens, width)
        first, second = (
            States(*(work.room(f"{side}-{turn}", shape) for side in ("float", "quantized"))) for turn in (0, 1)
        )
        routes = None if chosen is None else work.room("routes", (tokens, 2 * chosen))
        return cls(work, (first, second), work.room("noisiest", shape), routes)

    @property
    def noisiest(self) -> int | None:
        """The quantized block that makes the most noise so far."""
        return self.work.done.get("noisiest")

    def before(self, step: int) -> States:
        """What goes into a step."""
        return self.turns[step % 2]

    def behind(self, step: int) -> States:
        """What comes out of it."""
        return self.turns[(step + 1) % 2]

    def keep_before(self, block: int) -> None:
        """Keep what goes into this block of the quantized model, the noisiest so far, which counts once it is done."""
        self.work.keep(noisiest=None)  # what was kept before is lost
        values = self.before(block).quantized
        step = max((1 << 20) // values.shape[1], 1)
        for start in range(0, len(values), step):
            self.kept[start : start + step] = values[start : start + step]
            let_go(self.kept)
            let_go(values)
        self.work.done["noisiest"] = block

    def let_go(self) -> None:
        """What was read and written need not stay in memory: it is on disk, or on its way there."""
        for states in self.turns:
            let_go(states.floats)
            let_go(states.quantized)
        if self.routes is not None:
            let_go(self.routes)


@dataclass(frozen=True)
class TrialRooms:
    """Two places for the hidden states of the quantized model on the texts of trials, which blocks take in turns.

    Attributes:
        turns: See ``Rooms``.
        spans: Where these texts stand among the tokens of all.
        rooms: Those of all texts.
    """

    turns: tuple[Values, Values]
    spans: Sequence[slice]
    rooms: Rooms

    @classmethod
    def of_spans(cls, rooms: Rooms, spans: Sequence[slice]) -> "TrialRooms":
        """Open them, with what is in them.

        Raises:
            OutputError: There is not enough room on the disk.
        """
        shape = sum(span.stop - span.start for span in spans), rooms.kept.shape[1]
        first, second = (rooms.work.room(f"trial-{turn}", shape) for turn in (0, 1))
        return cls((first, second), spans, rooms)

    def before(self, step: int) -> Values:
        """What goes into a step."""
        return self.turns[step % 2]

    def behind(self, step: int) -> Values:
        """What comes out of it."""
        return self.turns[(step + 1) % 2]

    def first_of_trial(self, block: int) -> int:
        """The block that a trial begins at which changes this one and none before it."""
        return block if self.rooms.noisiest == block else 0


def let_go(values: Values) -> None:
    """Pages of a mapped file need not stay in memory; without this, the process seems to grow with the file."""
    if isinstance(values.base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        values.base.madvise(mmap.MADV_DONTNEED)
