"""Constants of a graph: numbers that are stored, dequantized where they are stored as codes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.pair.quantizer import Quantizer, SmallFloats


@dataclass(frozen=True)
class Constant:
    """An initializer, or what is computed from initializers alone.

    Attributes:
        name: Name of the initializer that it comes from.
        values: Real values, dequantized where it is stored as codes; None where they are not known.
        quantizer: How it was quantized.
        codes: Integers of a type that codes are stored in.
        small_floats: How it was quantized, where its codes are no integers.
        integers: What an int64 constant holds: a shape, axes, indexes.
    """

    name: str
    values: NDArray[np.float32] | None
    quantizer: Quantizer | None = None
    codes: NDArray[np.generic] | None = None
    integers: NDArray[np.int64] | None = None
    small_floats: SmallFloats | None = None

    @property
    def bits(self) -> tuple[int, bool]:
        """Bits of the stored codes, and whether they are signed; uint8 where nothing is stored."""
        return (8, False) if self.codes is None else type_bits(str(self.codes.dtype))


def type_bits(kind: str) -> tuple[int, bool]:
    """Bits and sign of an integer type by its name, as in ``uint4``."""
    digits = "".join(ch for ch in kind if ch.isdigit())
    return (int(digits) if digits else 8), not kind.lower().startswith("uint")
