"""What the readers of blocks of llama.cpp share: how a type is read, and what comes of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.from_checkpoint.weight_fields import Values

Bytes = NDArray[np.uint8]


class Unpacked(NamedTuple):
    """Some blocks ``[blocks, weights]``: codes or their numbers; scales, and offsets or None ``[blocks, groups]``."""

    codes: Array
    scale: Values
    offset: Values | None


@dataclass(frozen=True)
class BlockType:
    """How one type is read.

    Attributes:
        bits: Bits of a code.
        group: Weights that share a scale.
        signed: Codes are signed, and there are no offsets.
        unpack: Takes blocks ``[blocks, bytes]``.
        even: Codes have even steps.
    """

    bits: int
    group: int
    signed: bool
    unpack: Callable[[Bytes], Unpacked]
    even: bool = True

    @property
    def low(self) -> int | None:
        """Smallest code; None where steps are not even."""
        if not self.even:
            return None
        return -(2 ** (self.bits - 1)) if self.signed else 0

    @property
    def high(self) -> int | None:
        """Largest code; None where steps are not even."""
        low = self.low
        return None if low is None else low + 2**self.bits - 1


def read_halves(blocks: Bytes, start: int) -> Values:
    """A float16 of each block, ``[blocks, 1]``."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)
