"""Grids of activations and of the K and V cache: values quantized and dequantized as a runtime does.

The formulas are those of compressed-tensors, in float32; what they give equals its numbers bit for bit.
"""

from dataclasses import dataclass, replace
from typing import Literal, Self

import torch

Strategy = Literal["tensor", "head", "token", "group"]
#: Scales of groups: as they are; E4M3 with a step in front, of NVFP4; powers of two, of MX formats, which the largest
#: value may exceed by what its rounding reaches (compressed-tensors), or which it never exceeds (ModelOpt).
Scales = Literal["real", "e4m3", "power", "power-up"]
#: Values that a scale is made of while running.
Source = Literal["token", "text"]
#: Largest number of E4M3 and of E2M1.
_LARGEST = {8: 448.0, 4: 6.0}
#: Numbers of E2M1 from 0 on; a magnitude that lies in the middle goes to the one with an even code.
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_PLACES = {"tensor": "per tensor", "head": "per head", "token": "per token"}
#: Exponent of the largest power of two among E4M3 and among E2M1.
_EXPONENTS = {8: 8, 4: 2}
#: What is added to the exponent of a scale in E8M0, and the largest sum.
_BIAS, _LARGEST_CODE = 127, 255


@dataclass(frozen=True)
class Grid:
    """How values are quantized.

    Attributes:
        bits: Of a code.
        is_float: Codes are E4M3 or E2M1, else integers.
        strategy: What shares a scale; of a group, values of a token in a row.
        is_dynamic: Scales are made of the values while running. Those of groups always are: then what is in front of
            them is.
        is_symmetric: Without zero points.
        size: Values of a group.
        scale: Of all values, or one per head; of groups what their scales are multiplied by before they become E4M3.
        zero: Zero point of all values.
        scales: How scales of groups are kept.
        source: What the scale in front of those of groups is made of, where it is made while running.
    """

    bits: int
    is_float: bool
    strategy: Strategy
    is_dynamic: bool
    is_symmetric: bool = True
    size: int = 0
    scale: torch.Tensor | None = None
    zero: torch.Tensor | None = None
    scales: Scales = "real"
    source: Source = "token"

    def __str__(self) -> str:
        kind = f"float{self.bits}" if self.is_float else f"int{self.bits}"
        place = _PLACES.get(self.strategy) or f"per group of {self.size}"
        if self.strategy != "group":
            return f"{kind} {place}, {'scales made while running' if self.is_dynamic else 'stored scales'}"
        front = "one made while running" if self.is_dynamic else "a stored one"
        kept = {"real": "", "e4m3": f", float8 times {front}"}.get(self.scales, ", powers of two")
        return f"{kind} {place}, scales made while running{kept}"

    @property
    def needs_scale(self) -> bool:
        """It cannot be used without a stored scale."""
        return not self.is_dynamic

    def with_scale(self, scale: torch.Tensor, zero: torch.Tensor | None = None) -> Self:
        return replace(self, scale=scale, zero=zero)

    def on(self, device: torch.device) -> Self:
        """The same for values that lie there."""
        scale, zero = (None if own is None else own.to(device) for own in (self.scale, self.zero))
        return replace(self, scale=scale, zero=zero)

    def per_token(self) -> Self:
        """The same codes with a scale per token, made while running; groups keep their own, and what is stored in front
        of these is made of each token.
        """
        if self.strategy == "group":
            return self._with_source("token")
        return replace(self, strategy="token", is_dynamic=True, scale=None, zero=None)

    def per_text(self) -> Self:
        """The same codes with scales made of the values while running; of groups as with ``per_token``."""
        if self.strategy == "group":
            return self._with_source("text")
        return replace(self, strategy="tensor", is_dynamic=True, scale=None)

    def _with_source(self, source: Source) -> Self:
        return self if self.scale is None else replace(self, is_dynamic=True, scale=None, source=source)

    def round(self, values: torch.Tensor) -> torch.Tensor:
        """The values as the grid keeps them.

        Args:
            values: ``[batch, tokens, channels]``, or of a cache ``[batch, heads, tokens, channels]``.
        """
        if self.strategy == "group":
            return self._round(values.unflatten(-1, (-1, self.size))).flatten(-2)
        return self._round(values)

    def find_clipped(self, values: torch.Tensor) -> torch.Tensor | None:
        """Which of the values lie so far beyond the last code that rounding would not reach them.

        None where no scale is stored: one that is made of the values covers them.
        """
        if self.scale is None:
            return None
        if self.strategy == "group":
            groups = values.unflatten(-1, (-1, self.size))
            return (groups.abs() > (self.last_code + self._half_step) * self._of_groups(groups)).flatten(-2)
        scale, zero = self._of_values(values)
        low, high = self._ends
        codes = values / scale if zero is None else values / scale + zero
        return (codes < low - self._half_step) | (codes > high + self._half_step)

    @property
    def stored(self) -> float | None:
        """The largest scale that is stored; of NVFP4 what scales of groups are multiplied with behind E4M3."""
        if self.scale is None:
            return None
        return float(1 / self.scale.min()) if self.strategy == "group" else float(self.scale.max())

    def scale_of(self, largest: float) -> float:
        """The stored scale with which this magnitude is the last code, of NVFP4 in a group with the last scale."""
        return largest / (self.last_code * (_LARGEST[8] if self.scales == "e4m3" else 1.0))

    @property
    def last_code(self) -> float:
        """The largest code."""
        return self._ends[1]

    @property
    def _half_step(self) -> float:
        """Half of the last step between codes."""
        if not self.is_float:
            return 0.5
        return 16.0 if self.bits == 8 else 1.0

    @property
    def _ends(self) -> tuple[float, float]:
        if self.is_float:
            return -_LARGEST[self.bits], _LARGEST[self.bits]
        return -(2.0 ** (self.bits - 1)), 2.0 ** (self.bits - 1) - 1

    def _round(self, values: torch.Tensor) -> torch.Tensor:
        scale, zero = self._of_values(values)
        codes = values / scale
        codes = codes if zero is None else codes + zero
        codes = self._nearest(codes.clamp(*self._ends))
        return (codes if zero is None else codes - zero) * scale

    def _nearest(self, codes: torch.Tensor) -> torch.Tensor:
        if not self.is_float:
            return codes.round()
        if self.bits == 8:
            return codes.to(torch.float8_e4m3fn).to(codes.dtype)
        return _nearest_e2m1(codes)

    def _of_values(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Scale and zero point for values."""
        if self.strategy == "group":
            return self._of_groups(values), None
        if self.is_dynamic:
            return self._make_scale(values)
        assert self.scale is not None  # a static grid is used with its scale
        return (self.scale.reshape(-1, 1, 1) if self.strategy == "head" else self.scale), self.zero

    def _make_scale(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        axes = (-1,) if self.strategy == "token" else tuple(range(values.ndim))
        low, high = values.amin(axes, keepdim=True).clamp(max=0), values.amax(axes, keepdim=True).clamp(min=0)
        first, last = self._ends
        if self.is_symmetric:
            return _positive(torch.maximum(-low, high) / ((last - first) / 2)), None
        scale = (high - low) / (last - first)
        zero = (first - low / scale).clamp(first, last)
        return _positive(scale), torch.where(scale == 0, torch.zeros_like(zero), zero).round()

    def _of_groups(self, values: torch.Tensor) -> torch.Tensor:
        """Scales of groups as they are kept."""
        largest = values.abs().amax(-1, keepdim=True)
        if self.scales in ("power", "power-up"):
            return self._power_of_two(largest)
        scale = largest / self.last_code
        if self.scales == "real":
            return _positive(scale)
        step = self.scale if self.scale is not None else self._step(largest)
        kept = (step * scale).clamp(max=_LARGEST[8]).to(torch.float8_e4m3fn).to(scale.dtype)
        kept = torch.where(kept == 0, torch.full_like(kept, torch.finfo(torch.float8_e4m3fn).eps), kept)
        return kept / step

    def _step(self, largest: torch.Tensor) -> torch.Tensor:
        """What scales of groups are multiplied by, so that the largest of all becomes the last number of E4M3."""
        own = largest.amax((-2, -1), keepdim=True) if self.source == "token" else largest.max()
        return _LARGEST[8] * self.last_code / own.clamp(min=torch.finfo(own.dtype).tiny)

    def _power_of_two(self, largest: torch.Tensor) -> torch.Tensor:
        """Scales in E8M0: the exponent of the largest value less that of the last power of two among the codes.

        From 1.75 times a power of two on, the next is taken (compressed-tensors, ``generate_mx_scales``); or that with
        which no value is cut off (ModelOpt, ``MXFP8QTensor``).
        """
        if self.scales == "power":
            part, exponent = torch.frexp(largest)  # the part lies between a half and 1
            own = (exponent - 1 + (part >= 0.875) - _EXPONENTS[self.bits]).to(largest.dtype)
            own = torch.where(largest == 0, torch.full_like(own, -_BIAS), own)
            return 2.0 ** own.clamp(-_BIAS, _LARGEST_CODE - _BIAS)
        own = torch.ceil(torch.log2(largest / self.last_code))
        return 2.0 ** own.clamp(-_BIAS, _BIAS)


class UnroundedGrid(Grid):
    """Leaves values as they are: to watch what would be quantized."""

    def round(self, values: torch.Tensor) -> torch.Tensor:
        """The values themselves."""
        return values


def _positive(scale: torch.Tensor) -> torch.Tensor:
    return torch.where(scale == 0, torch.full_like(scale, torch.finfo(scale.dtype).eps), scale)


def _nearest_e2m1(codes: torch.Tensor) -> torch.Tensor:
    grid = torch.tensor(_E2M1, dtype=codes.dtype, device=codes.device)
    middles = (grid[1:] + grid[:-1]) / 2
    size = codes.abs()
    below, above = torch.bucketize(size, middles), torch.bucketize(size, middles, right=True)
    # Both differ in the very middle alone: there the even one is taken.
    place = torch.where(below % 2 == 0, below, above)
    return grid[place] * torch.sign(codes)
