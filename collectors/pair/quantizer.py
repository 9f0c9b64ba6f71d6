"""The quantizer: the grid on which integer codes stand for real values."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.facts import QuantizerFacts


def code_ends(bits: int, signed: bool) -> tuple[int, int]:
    """Lowest and highest code of so many bits."""
    low = -(1 << (bits - 1)) if signed else 0
    return low, low + (1 << bits) - 1


def unpack_codes(content: NDArray[np.uint8], bits: int, size: int, *, signed: bool) -> NDArray[np.int8 | np.uint8]:
    """Codes of up to 8 bits that stand packed in bytes, the first in the lowest bits, one to a byte."""
    if bits == 8:
        return content[:size].view(np.int8 if signed else np.uint8)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = ((content[:, None] >> shifts) & (2**bits - 1)).reshape(-1)[:size]
    half = np.int8(1 << (bits - 1))
    return (codes.astype(np.int8) ^ half) - half if signed else codes


@dataclass(frozen=True)
class Quantizer:
    """real = scale · (code - zero_point); arrays are scalars, or ``[channels]`` along ``axis``, or blocks."""

    scale: NDArray[np.float32]
    zero_point: NDArray[np.int64]
    bits: int
    signed: bool
    axis: int | None = None
    block_size: int | None = None
    dynamic: bool = False

    @classmethod
    def at_run_time(cls) -> "Quantizer":
        """One whose uint8 grid is computed anew for every batch."""
        return cls(np.asarray(np.nan, np.float32), np.zeros((), np.int64), 8, False, dynamic=True)

    @property
    def qmin(self) -> int:
        """Lowest code."""
        return code_ends(self.bits, self.signed)[0]

    @property
    def qmax(self) -> int:
        """Highest code."""
        return code_ends(self.bits, self.signed)[1]

    def same_grid(self, other: "Quantizer") -> bool:
        """Equal codes stand for equal values, everywhere in a tensor."""
        uniform = all(q.axis is None and not q.dynamic for q in (self, other))
        equal = np.array_equal(self.scale, other.scale) and np.array_equal(self.zero_point, other.zero_point)
        return uniform and equal and (self.bits, self.signed) == (other.bits, other.signed)

    def dequantize(self, codes: NDArray[np.generic]) -> NDArray[np.float32]:
        """Real values of an array of codes."""
        scale, zero = self._broadcast_grid(codes.ndim, codes.shape)
        return ((codes.astype(np.float32) - zero) * scale).astype(np.float32)

    def encode(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Codes of real values, rounded half to even and saturated; whole numbers in float32."""
        scale, zero = self._broadcast_grid(values.ndim, values.shape)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.clip(np.rint(values / scale) + zero, self.qmin, self.qmax), np.float32)

    def quantize(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Values after a round trip through the codes."""
        return self.dequantize(self.encode(values))

    def steps(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Scale of each value of an array, in a shape that broadcasts to it."""
        return self._broadcast_grid(len(shape), shape)[0]

    def ends(self, shape: tuple[int, ...]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Lowest and highest value that each value of an array can be stored as, in a shape that broadcasts to it."""
        scale, zero = self._broadcast_grid(len(shape), shape)
        return (self.qmin - zero) * scale, (self.qmax - zero) * scale

    def with_factors(self, factors: NDArray[np.float32], shape: tuple[int, ...]) -> "Quantizer":
        """The grid of an array that is multiplied by factors, which broadcast to it: one scale for each value."""
        scale, zero = (np.broadcast_to(own, shape) for own in self._broadcast_grid(len(shape), shape))
        return replace(
            self,
            scale=np.asarray(scale * factors, np.float32),
            zero_point=np.asarray(zero, np.int64),
            axis=0,
            block_size=1,
        )

    def transpose(self, order: Sequence[int]) -> "Quantizer":
        """The grid of an array whose axes are put in another order."""
        if self.axis is None:
            return self
        moved = replace(self, axis=list(order).index(self.axis % len(order)))
        if not self.block_size:
            return moved
        return replace(moved, scale=self.scale.transpose(order), zero_point=self.zero_point.transpose(order))

    def _broadcast_grid(self, rank: int, shape: tuple[int, ...]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        scale, zero = self.scale, np.broadcast_to(self.zero_point.astype(np.float32), self.scale.shape)
        if scale.ndim == 0 or scale.size == 1:
            return scale.reshape(()), zero.reshape(())
        if self.block_size:
            axis = self.axis or 0
            repeat = [np.repeat(a, self.block_size, axis)[_prefix(shape, axis)] for a in (scale, zero)]
            return repeat[0], repeat[1]
        target = [1] * rank
        target[self.axis or 0] = scale.size
        return scale.reshape(target), zero.reshape(target)


@dataclass(frozen=True)
class SmallFloats:
    """Codes that are small floats, such as float8e4m3fn: real = scale · code.

    Attributes:
        code_type: Name of their type.
        reach: Largest magnitude that they stand for, in a shape that broadcasts to the tensor.
    """

    code_type: str
    reach: NDArray[np.float32]


class Rounding(NamedTuple):
    """Codes ``low … high``, relative to the zero point, with a step of ``scale``; each of shape ``[channels]``."""

    scale: NDArray[np.float32]
    low: NDArray[np.float32]
    high: NDArray[np.float32]


class Deployed(NamedTuple):
    """What the quantized model computed, ``scale · (codes - zero)``: codes of any type, the rest per channel."""

    codes: NDArray[np.generic]
    scale: NDArray[np.float32]
    zero: NDArray[np.float32]

    def values(self) -> NDArray[np.float32]:
        """The real values, in float32."""
        scale, zero = (v.reshape(1, -1, 1) for v in (self.scale, self.zero))
        return (self.codes.astype(np.float32) - zero) * scale


def _prefix(shape: tuple[int, ...], axis: int) -> tuple[slice, ...]:
    return (*([slice(None)] * (axis % len(shape))), slice(0, shape[axis]))


def quantizer_facts(quantizer: Quantizer | None, small_floats: SmallFloats | None = None) -> QuantizerFacts:
    """Facts of one quantizer, or of codes that are small floats; empty where there is neither."""
    if small_floats is not None:
        return QuantizerFacts(code_type=small_floats.code_type, reach=float(small_floats.reach.max()))
    if quantizer is None:
        return QuantizerFacts()
    if quantizer.dynamic:
        return QuantizerFacts(bits=quantizer.bits, signed=quantizer.signed, dynamic=True, granularity="per_tensor")
    scale = np.atleast_1d(np.asarray(quantizer.scale, np.float64)).ravel()
    zero = int(np.atleast_1d(quantizer.zero_point).ravel()[0])
    per_tensor = scale.size == 1
    middle = 0 if quantizer.signed else 2 ** (quantizer.bits - 1)
    return QuantizerFacts(
        scale=float(scale.max()),
        zero_point=zero,
        bits=quantizer.bits,
        signed=quantizer.signed,
        symmetric=bool(np.all(quantizer.zero_point == middle)) or (not quantizer.signed and zero == 0),
        granularity="per_tensor" if per_tensor else "per_block" if quantizer.block_size else "per_channel",
        axis=quantizer.axis,
        low=float(scale[0] * (quantizer.qmin - zero)) if per_tensor else None,
        high=float(scale[0] * (quantizer.qmax - zero)) if per_tensor else None,
        dynamic=False,
        power_of_two=bool(np.all(np.frexp(scale)[0] == 0.5)),
    )
