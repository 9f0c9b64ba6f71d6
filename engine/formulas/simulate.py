"""What a quantizer would do to a tensor, computed from its histogram alone.

Rounding noise is integrated bin by bin: step²/12 is wrong by 3 dB on a ReLU output (zeros cost nothing) and by more
than 20 dB for one outlier over a narrow bulk.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.histogram import Bins, BinTable
from quantmedic.engine.case.records import GateRecord, GateStep
from quantmedic.engine.decibels import sqnr_db
from quantmedic.engine.special_functions import error_function, sigmoid

#: Shrink factors tried on either end of the range: 1 to 1/64 in steps of about 1.5 dB.
SHRINK = 2.0 ** -np.arange(0.0, 6.01, 0.25)
PERCENTILES = (0.9999, 0.99999, 0.999)
#: Values that one block of a computation may hold: few enough for the processor's cache.
_BLOCK = 32_768
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


@dataclass(frozen=True)
class Grid:
    """A uniform quantizer per tensor: values are rounded to ``step`` and clipped to ``[low, high]``."""

    low: float
    high: float
    step: float

    @classmethod
    def over(cls, low: float, high: float, bits: int, *, symmetric: bool) -> "Grid":
        """Grid with 2**bits codes that covers ``[low, high]`` and holds 0.0 exactly; see ``grids_over``."""
        return cls(*grids_over(np.float64(low), np.float64(high), np.int64(bits), np.bool_(symmetric)).tolist())

    @property
    def codes(self) -> int:
        """How many values it has."""
        return round((self.high - self.low) / self.step) + 1


@dataclass(frozen=True)
class ChannelGrid:
    """A uniform quantizer for every channel along an axis."""

    axis: int
    grids: tuple[Grid, ...]

    @property
    def codes(self) -> int:
        """How many values the widest of them has."""
        return max(grid.codes for grid in self.grids)


AnyGrid = Grid | ChannelGrid


def predict_sqnr(bins: Bins, grids: Sequence[Grid]) -> Floats:
    """Predicted signal-to-quantization-noise ratio of each grid in dB; inf where there is no noise."""
    return predict_sqnrs(bins, np.zeros(len(grids), np.int64), grid_columns(grids))


def grid_columns(grids: Sequence[Grid]) -> Floats:
    """Rows of low, high and step with one column per grid."""
    return np.array([(grid.low, grid.high, grid.step) for grid in grids], np.float64).reshape(-1, 3).T


def noises(bins: BinTable, tensors: Integers, grids: Floats) -> Floats:
    """Mean squared error of grid ``k`` on tensor ``tensors[k]``, for all ``k``; within a bin values are even."""
    sizes = np.diff(bins.start)[tensors]
    ends = np.cumsum(sizes)
    found = []
    start = 0
    while start < len(tensors):
        before = ends[start] - sizes[start]
        stop = max(int(np.searchsorted(ends, before + _BLOCK, "right")), start + 1)
        found.append(_noises(bins, tensors[start:stop], grids[:, start:stop]))
        start = stop
    return np.concatenate([np.zeros(0), *found])


def predict_sqnrs(bins: BinTable, tensors: Integers, grids: Floats) -> Floats:
    """Predicted SQNR in dB of grid ``k`` on tensor ``tensors[k]``; inf where there is no noise."""
    return sqnr_db(bins.powers()[tensors], noises(bins, tensors, grids))


def best_grids(bins: BinTable, tensors: Integers, bits: Integers, symmetric: Booleans) -> tuple[Floats, Floats]:
    """Per tensor the least noisy of min-max, percentile and shrunken ranges: its grid, and its predicted SQNR in dB."""
    low, high = bins.lowest[tensors, None], bins.highest[tensors, None]
    shrunk = SHRINK[1:]
    tails = bins.quantiles([*(1 - p for p in PERCENTILES), *PERCENTILES])[tensors]
    same = np.ones(len(shrunk))
    bottom = np.hstack([low * SHRINK, low * same, low * shrunk, tails[:, :3]])
    top = np.hstack([high * SHRINK, high * shrunk, high * same, tails[:, 3:]])
    grids = grids_over(bottom, top, bits[:, None], symmetric[:, None])
    wanted = grids[2] > 0
    one_end = slice(len(SHRINK), len(SHRINK) + 2 * len(shrunk))
    wanted[:, one_end] &= ~symmetric[:, None] & (low < 0) & (high > 0)
    # What clips more than min-max makes of noise in all need not be integrated.
    limit = 1.01 * noises(bins, tensors[wanted[:, 0]], grids[:, wanted[:, 0], 0])
    wanted[wanted[:, 0], 1:] &= _least_clipping_errors(bins, tensors, grids)[wanted[:, 0], 1:] <= limit[:, None]
    row, column = np.nonzero(wanted)
    predicted = np.full(wanted.shape, -math.inf)
    predicted[row, column] = predict_sqnrs(bins, tensors[row], grids[:, row, column])
    best = predicted.argmax(axis=1)
    every = np.arange(len(tensors))
    known = wanted.any(axis=1)
    return np.where(known, grids[:, every, best], 0.0), np.where(known, predicted[every, best], math.inf)


def grids_over(
    low: Floats | np.float64, high: Floats | np.float64, bits: Integers | np.int64, symmetric: Booleans | np.bool_
) -> Floats:
    """Grids with 2**bits codes that cover ranges and hold 0.0 exactly: rows of low, high and step, in their shape.

    Symmetric grids follow the signed convention of onnxruntime: codes ``±(2**(bits-1) - 1)``.
    """
    low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    codes = 2.0**bits - 1
    reach = np.maximum(-low, high)
    with np.errstate(all="ignore"):  # the other kind of a single bit
        step = np.where(symmetric, reach / (2.0 ** (bits - 1) - 1), (high - low) / codes)
    below = np.rint(np.divide(-low, step, out=np.zeros_like(step), where=step > 0))
    return np.stack(
        [np.where(symmetric, -reach, 0.0 - below * step), np.where(symmetric, reach, (codes - below) * step), step]
    )


def _noises(bins: BinTable, tensors: Integers, grids: Floats) -> Floats:
    """One block of ``noises``: all bins of the first grid's tensor, then all of the second's, and so on."""
    sizes = np.diff(bins.start)[tensors]
    start = np.cumsum(sizes) - sizes
    place = np.arange(sizes.sum()) + np.repeat(bins.start[tensors] - start, sizes)
    low, high, step = np.repeat(grids, sizes, axis=1)
    near = bins.low[place]
    at_near = _integral(near, low, high, step)
    # Most bins begin where the one before ends, so that one integral serves both.
    error = np.append(at_near[1:], 0.0)
    alone = np.flatnonzero(bins.alone[place])
    error[alone] = _integral(bins.high[place[alone]], low[alone], high[alone], step[alone])
    error -= at_near
    np.maximum(error, 0.0, out=error)
    error *= bins.density[place]
    narrow = np.flatnonzero(bins.narrow[place])
    points = _squared_error(near[narrow], low[narrow], high[narrow], step[narrow])
    error[narrow] = points * bins.count[place[narrow]]
    return np.add.reduceat(error, start) / bins.totals[tensors]


def _squared_error(x: Floats, low: Floats, high: Floats, step: Floats) -> Floats:
    return (np.clip(np.round(x / step) * step, low, high) - x) ** 2


def _integral(x: Floats, low: Floats, high: Floats, step: Floats) -> Floats:
    """Antiderivative of the squared error: step³/12 · (n + 4o³) at o beyond the n-th code, cubic beyond the range.

    Powers are products, since numpy raises to the third power forty times slower than it multiplies.
    """
    inside = np.maximum(x, low)
    np.minimum(inside, high, out=inside)
    beyond = x - inside
    offset = inside
    offset /= step
    found = np.rint(offset)
    offset -= found
    found += 4.0 * offset * offset * offset
    found *= step * step * step / 12.0
    found += beyond * beyond * beyond / 3.0
    return found


def _least_clipping_errors(bins: BinTable, tensors: Integers, grids: Floats) -> Floats:
    """Mean squared error that clipping makes at least, in the shape of the grids: whole bins beyond a range alone."""
    size = np.maximum(np.abs(bins.lowest), np.abs(bins.highest))
    size = np.where(size > 0, size, 1.0)
    scale = size[tensors, None]
    low, high, _ = grids / scale
    upper = _Sums(bins, bins.low / size[bins.owner])
    lower = _Sums(bins, bins.high / size[bins.owner])
    beyond = upper.energy(upper.place(tensors, high), bins.start[1:][tensors, None], high)
    beyond += lower.energy(bins.start[:-1][tensors, None], lower.place(tensors, low), low)
    return (beyond - 1e-12) * scale * scale


class _Sums:
    """Running sums over one value per bin, each within [-1, 1], weighted by the bin's share of its tensor."""

    def __init__(self, bins: BinTable, values: Floats):
        share = bins.count / bins.totals[bins.owner]
        self.sums = np.zeros((3, len(values) + 1))
        np.cumsum([share, share * values, share * values * values], axis=1, out=self.sums[:, 1:])
        self.order = 4.0 * bins.owner + values

    def place(self, tensors: Integers, limits: Floats) -> Integers:
        """The first bin of each tensor whose value reaches the limit, which lies within (-2, 2)."""
        return np.searchsorted(self.order, 4.0 * tensors[:, None] + limits)

    def energy(self, start: Integers, stop: Integers, limits: Floats) -> Floats:
        """Mean of (value - limit)², taken over the bins ``start:stop`` alone."""
        ones, first, second = self.sums[:, stop] - self.sums[:, start]
        energy: Floats = second - limits * (2.0 * first - limits * ones)
        return energy


# --- Products of two functions of one tensor --------------------------------------------------------------------------
# Swish is x·sigmoid(x), GELU x·(1 + erf(x/√2))/2, hard-swish x·clip(x + 3, 0, 6)/6. In one piece they round once,
# behind the product. In pieces every factor is rounded as well, and since all of them are functions of one number, the
# error is one too.

#: Values that stand for one bin of a histogram.
_POINTS = 64
_FUNCTIONS: dict[str, Callable[..., Floats]] = {
    "Sigmoid": sigmoid,
    "HardSigmoid": lambda x, alpha, beta: np.clip(alpha * x + beta, 0.0, 1.0),
    "Tanh": np.tanh,
    "Erf": error_function,
    "Clip": np.clip,
    "Relu": lambda x: np.maximum(x, 0.0),
    "Softplus": lambda x: np.logaddexp(0.0, x),
    "Add": lambda x, c: x + c,
    "Sub": lambda x, c: x - c,
    "Mul": lambda x, c: x * c,
    "Div": lambda x, c: x / c,
}
_REVERSED: dict[str, Callable[..., Floats]] = {"Sub": lambda x, c: c - x, "Div": lambda x, c: c / x}


def product_error(bins: Bins, gate: GateRecord, source: Grid | None) -> tuple[float, float]:
    """Mean squared error of the product before it is rounded itself, and its mean square without any rounding.

    Args:
        bins: Histogram of the tensor that both factors are functions of.
        gate: The factors.
        source: Grid of that tensor; None where it is not rounded.
    """
    inside = (np.arange(_POINTS) + 0.5) / _POINTS
    x = bins.low[:, None] + inside * (bins.high - bins.low)[:, None]
    with np.errstate(all="ignore"):
        exact = _apply_steps(x, gate.factors[0], rounds=False) * _apply_steps(x, gate.factors[1], rounds=False)
        start = x if source is None else _round_to_grid(x, (source.low, source.high, source.step))
        found = _apply_steps(start, gate.factors[0], rounds=True) * _apply_steps(start, gate.factors[1], rounds=True)
    weights = bins.count / bins.total
    return tuple(float(weights @ (v * v).mean(axis=1)) for v in (found - exact, exact))  # type: ignore[return-value]


def _apply_steps(x: Floats, steps: Sequence[GateStep], *, rounds: bool) -> Floats:
    for step in steps:
        functions = _REVERSED if step.reverse else _FUNCTIONS
        x = functions[step.op_type](x, *step.constants)
        if rounds and step.grid is not None:
            x = _round_to_grid(x, step.grid)
    return x


def _round_to_grid(x: Floats, grid: tuple[float, float, float]) -> Floats:
    low, high, step = grid
    return np.clip(np.rint(x / step) * step, low, high)
