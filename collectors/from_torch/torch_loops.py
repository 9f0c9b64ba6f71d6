"""The statistics of one tensor by kernels of torch, on the device where it lies: only sums come back.

``statistics.numpy_loops`` states what is computed. Counts, extremes and histograms equal those of numpy to the bit.
Sums run in float64 and agree to twelve digits; on devices without float64 they run in float32, over values scaled by a
power of two so that their squares fit, and agree to four digits.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from quantmedic.collectors.from_torch.devices import SINGLE
from quantmedic.collectors.statistics.numpy_loops import Ends, Rounding, merge_moments
from quantmedic.engine.case.histogram import BINS, NONFINITE, SHIFT
from quantmedic.engine.case.statistics import ERROR_FIELDS, SHOWN_BUCKETS, TensorStatistics

#: Values that are widened at a time, so that copies stay small.
SLAB = 1 << 24


class DeployedTensor(NamedTuple):
    """What the quantized model computed, ``scale · (codes - zero)``: codes of any type, the rest per channel."""

    codes: torch.Tensor
    scale: NDArray[np.float32]
    zero: NDArray[np.float32]

    def values(self, device: torch.device) -> torch.Tensor:
        """The real values, in float32."""
        scale, zero = (_per_channel(v, device) for v in (self.scale, self.zero))
        return (self.codes.to(device).to(torch.float32) - zero) * scale


def widest(x: torch.Tensor) -> torch.dtype:
    """The type that sums run in."""
    return torch.float32 if x.device.type in SINGLE else torch.float64


def observe(
    x: torch.Tensor,
    into: TensorStatistics,
    buckets: NDArray[np.int64],
    rounding: Rounding | None = None,
    deployed: DeployedTensor | None = None,
) -> Ends:
    """See ``numpy_loops.observe``; ``x`` is float32 of shape ``[outer, channels, inner]``."""
    if not x.numel():
        return np.stack([np.full(len(buckets), np.inf), np.full(len(buckets), -np.inf)])
    x = _by_bucket(x, len(buckets))
    ends = _observe_values(x, into, buckets)
    if rounding is not None:
        _observe_rounding(x, rounding, into)
    if deployed is not None:
        values = _by_bucket(deployed.values(x.device), len(buckets))
        observe_error(x, values, into, "accumulated")
        _observe_deployed(values, into, buckets)
    return ends


def observe_error(x: torch.Tensor, y: torch.Tensor, into: TensorStatistics, kind: str) -> None:
    """See ``numpy_loops.observe_error``."""
    errors = into.errors[kind]
    seen, bad, top, *sums = _error_sums(x, y)
    errors["count"] += seen
    if kind != "rounding":  # there, y follows from x
        errors["nonfinite"] += bad
    np.maximum(errors["max"], top, out=errors["max"])
    for name, value in zip(ERROR_FIELDS[1:], sums, strict=True):
        errors[name] += value


def _by_bucket(x: torch.Tensor, buckets: int) -> torch.Tensor:
    """``[entries, channels, span]``: what belongs to each entry of the buckets; see ``numpy_loops.observe_values``."""
    if len(x) > 1 or buckets < 2:
        return x
    return x.reshape(x.shape[1], buckets, -1).transpose(0, 1)


def _observe_values(x: torch.Tensor, into: TensorStatistics, buckets: NDArray[np.int64]) -> Ends:
    counted, lows, highs, bins, (unit, near, first, second) = _seen_whole(x) or _seen_masked(x)
    into.nonfinite += len(x) * x.shape[2] - counted
    np.minimum(into.min, lows.min(axis=0), out=into.min)
    np.maximum(into.max, highs.max(axis=0), out=into.max)
    into.histogram += bins
    known = np.flatnonzero(counted)
    n, d, d2 = counted[known], first[known], second[known]
    mean, m2 = (near[known] + d / n) / unit[known], np.maximum(d2 - d * d / n, 0.0) / unit[known] ** 2
    merge_moments(into, known, n, mean, m2)
    ends = np.stack([lows.min(axis=1), highs.max(axis=1)])
    placed = buckets >= 0
    np.minimum.at(into.bucket_min, buckets[placed], ends[0, placed])
    np.maximum.at(into.bucket_max, buckets[placed], ends[1, placed])
    return ends


class _Seen(NamedTuple):
    """What one tensor tells: per channel the finite values, per row their extremes, the histogram, and the moments.

    The moments are the unit, the number near the mean, and Σd and Σd² of the differences from it, all times the unit.
    """

    counted: NDArray[Any]
    lows: NDArray[np.float64]
    highs: NDArray[np.float64]
    bins: NDArray[Any]
    moments: tuple[NDArray[np.float64], ...]


def _seen_whole(x: torch.Tensor) -> _Seen | None:
    """Of finite values in float64, in few kernels; None for others."""
    if widest(x) != torch.float64:
        return None
    lows, highs = _whole_extremes(x)
    if not (np.isfinite(lows).all() and np.isfinite(highs).all()):
        return None
    n = len(x) * x.shape[2]
    near = x.sum((0, 2), dtype=torch.float64) / n
    first, second = torch.zeros_like(near), torch.zeros_like(near)
    for (part,) in _slabs(x):
        d = part - near.reshape(1, -1, 1)
        first += d.sum((0, 2))
        second += _squares(d)
    near_, first_, second_, bins = _bring([near, first, second, _count_bins(x).to(torch.float64)])
    counted = np.full(x.shape[1], n)
    return _Seen(counted, lows, highs, bins.astype(np.int64), (np.ones_like(near_), near_, first_, second_))


def _seen_masked(x: torch.Tensor) -> _Seen:
    """Of any values, on any device."""
    finite = torch.isfinite(x)
    low, high = _extremes(x, finite)
    unit = _scale_for_squares(low, high)
    count = finite.sum((0, 2))
    near = torch.where(finite, x * unit, 0).sum((0, 2), dtype=widest(x)) / count.clamp(min=1)
    first, second = torch.zeros_like(near), torch.zeros_like(near)
    for part, kept in _slabs(x, finite):
        d = torch.where(kept, (part * unit).to(near.dtype) - near.reshape(1, -1, 1), 0)
        first += d.sum((0, 2))
        second += d.square_().sum((0, 2))
    counted, bins = _bring([count, _count_bins(x)])
    lows, highs = (np.asarray(found, np.float64) for found in _bring([low, high]))
    ones = unit.reshape(-1).expand(x.shape[1]).to(near.dtype)
    moments = tuple(np.asarray(found, np.float64) for found in _bring([ones, near, first, second]))
    return _Seen(counted, lows, highs, bins, moments)


def _observe_rounding(x: torch.Tensor, grid: Rounding, into: TensorStatistics) -> None:
    scale, low, high = (_per_channel(v, x.device) for v in grid)
    codes = torch.round(x / scale)
    outside = ((codes < low) | (codes > high)) & torch.isfinite(x)
    y = torch.minimum(torch.maximum(codes, low), high) * scale
    observe_error(x, y, into, "rounding")
    clipped = _bring([outside.sum((0, 2))])[0]
    if clipped.any():
        into.clipped += clipped
        into.clipped_energy += _error_sums(x, torch.where(outside, y, x))[_ENERGY]


def _observe_deployed(y: torch.Tensor, into: TensorStatistics, buckets: NDArray[np.int64]) -> None:
    low, high = _whole_extremes(y)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        low, high = (np.asarray(found, np.float64) for found in _bring(_extremes(y, torch.isfinite(y))))
    np.minimum(into.deployed_min, low.min(axis=0), out=into.deployed_min)
    np.maximum(into.deployed_max, high.max(axis=0), out=into.deployed_max)
    shown = np.flatnonzero(buckets < SHOWN_BUCKETS)
    if len(shown) < len(buckets):
        y = y[torch.from_numpy(shown).to(y.device)]
    if len(shown):
        into.quantized_histogram += _bring([_count_bins(y)])[0]


def _whole_extremes(x: torch.Tensor) -> list[NDArray[np.float64]]:
    """Smallest and largest value of each row, ``[entries, channels]``; neither is a number where one value is none."""
    return [np.asarray(found, np.float64) for found in _bring(list(torch.aminmax(x, dim=2)))]


def _extremes(x: torch.Tensor, finite: torch.Tensor) -> list[torch.Tensor]:
    """Smallest and largest finite value of each row, ``[entries, channels]``."""
    return [torch.where(finite, x, torch.inf).amin(2), torch.where(finite, x, -torch.inf).amax(2)]


def _count_bins(x: torch.Tensor) -> torch.Tensor:
    """Finite values by their leading bits, ``[BINS]``."""
    bits = x.contiguous().view(torch.int32).reshape(-1)
    counts = torch.bincount((bits >> SHIFT) & (BINS - 1), minlength=BINS)
    counts.view(2, -1)[:, NONFINITE:] = 0
    return counts


#: Place of Σd² among what ``_error_sums`` returns.
_ENERGY = 4


def _error_sums(x: torch.Tensor, y: torch.Tensor) -> list[NDArray[Any]]:
    """Finite pairs, non-finite ``y``, max|d|, Σd, Σd², Σx·d and Σx² of ``d = y - x``, per channel."""
    whole = _whole_error_sums(x, y) if widest(x) == torch.float64 else None
    return _masked_error_sums(x, y) if whole is None else whole


def _whole_error_sums(x: torch.Tensor, y: torch.Tensor) -> list[NDArray[Any]] | None:
    """Of finite pairs in float64, in few kernels; None where one is not finite, for then Σd² is no number either."""
    parts = []
    for a, b in _slabs(x, y):
        v = a.to(torch.float64)
        d = b - v
        sums = (d.sum((0, 2)), _squares(d), (v * d).sum((0, 2)), _squares(v))
        parts.append(torch.stack([torch.linalg.vector_norm(d, torch.inf, (0, 2)), *sums]))
    (found,) = _bring([torch.stack(parts)])
    if not np.isfinite(found).all():
        return None
    seen = np.full(x.shape[1], len(x) * x.shape[2])
    return [seen, np.zeros_like(seen), found[:, 0].max(axis=0), *found[:, 1:].sum(axis=0).reshape(4, -1)]


def _masked_error_sums(x: torch.Tensor, y: torch.Tensor) -> list[NDArray[Any]]:
    """Of any pairs, on any device."""
    good = torch.isfinite(y)
    both = good & torch.isfinite(x)
    unit, wide = _scale_for_squares(*_extremes(x, both), *_extremes(y, both)), widest(x)
    sums = torch.zeros((5, x.shape[1]), dtype=wide, device=x.device)
    for a, b, kept in _slabs(x, y, both):
        v = torch.where(kept, (a * unit).to(wide), 0)
        d = torch.where(kept, (b * unit).to(wide), 0) - v
        torch.maximum(sums[0], d.abs().amax((0, 2)), out=sums[0])
        for place, part in enumerate((d, d * d, v * d, v * v), 1):
            sums[place] += part.sum((0, 2))
    seen, bad = _bring([both.sum((0, 2)), torch.logical_not(good).sum((0, 2))])
    ones = unit.reshape(-1).expand(x.shape[1]).to(wide)
    scale, found = (np.asarray(part, np.float64) for part in _bring([ones, sums]))
    return [seen, bad, found[0] / scale, found[1] / scale, *(found[2:] / scale**2)]


def _squares(x: torch.Tensor) -> torch.Tensor:
    """Sum of squares per channel, without a copy of the tensor."""
    return torch.linalg.vector_norm(x, 2, (0, 2)).square()


def _scale_for_squares(*extremes: torch.Tensor) -> torch.Tensor:
    """What values are multiplied with so that squares of the largest fit the type of the sums: ``[1, channels, 1]``."""
    first = extremes[0]
    if widest(first) == torch.float64:
        return torch.ones((1, 1, 1), device=first.device)
    top = torch.stack([torch.where(torch.isfinite(e), e.abs(), 0).amax(0) for e in extremes]).amax(0)
    exponent = torch.floor(torch.log2(top.clamp(min=1e-37))).clamp(-120, 120)
    return torch.exp2(-exponent).reshape(1, -1, 1)


def _slabs(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Tensors of one shape in parts of a bounded size, along the rows or, of few long ones, within them."""
    first = tensors[0]
    if first.numel() <= SLAB:
        yield tensors
        return
    axis = 0 if len(first) >= first.shape[2] else 2
    sides = max(first.shape[axis] * SLAB // first.numel(), 1)
    yield from zip(*(tensor.split(sides, axis) for tensor in tensors), strict=True)


def _per_channel(values: NDArray[np.float32], device: torch.device) -> torch.Tensor:
    return _on_device(values.tobytes(), values.dtype.str, device)


@lru_cache(maxsize=4096)
def _on_device(values: bytes, dtype: str, device: torch.device) -> torch.Tensor:
    """One number per channel, ``[1, channels, 1]``: sent once, for grids are the same from batch to batch."""
    return torch.tensor(np.frombuffer(values, dtype), device=device).reshape(1, -1, 1)


def _bring(tensors: Sequence[torch.Tensor]) -> list[NDArray[Any]]:
    """Tensors of one type as arrays, by one transfer."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu().numpy()
    parts = np.split(flat, np.cumsum([tensor.numel() for tensor in tensors])[:-1])
    return [part.reshape(tuple(tensor.shape)) for part, tensor in zip(parts, tensors, strict=True)]
