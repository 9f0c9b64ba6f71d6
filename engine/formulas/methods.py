"""The ranges that calibration methods would choose for a tensor, and the noise there, from its histogram alone."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.histogram import Bins
from quantmedic.engine.formulas.simulate import PERCENTILES, Grid, best_grid, predict_sqnr
from quantmedic.engine.special_functions import divergence

Floats = NDArray[np.float64]
#: Even bins over the magnitudes, and levels to which a candidate is reduced (Migacz 2017, "8-bit inference with
#: TensorRT"; onnxruntime counts 128 bins and quantizes to 128).
KL_BINS, KL_LEVELS = 2048, 128
#: Share of the values inside the range, by the name of the method.
_SHARES = {f"percentile-{100 * share:g}": share for share in sorted(PERCENTILES)}
#: Count that an empty bin gets.
SMOOTHING = 1e-4


def method_grids(bins: Bins, bits: int, *, symmetric: bool) -> dict[str, Grid]:
    """Grid by the name of the method: min-max, percentile-99.9 and finer, mse, kl.

    Args:
        bins: Histogram of the tensor.
        bits: Bits of a code.
        symmetric: Codes of either sign around 0.0.
    """
    names = ("min-max", *_SHARES, "kl", "mse")
    found = {name: method_grid(name, bins, bits, symmetric=symmetric) for name in names}
    return {name: grid for name, grid in found.items() if grid is not None}


def method_grid(method: str, bins: Bins, bits: int, *, symmetric: bool) -> Grid | None:
    """The grid of one method of ``method_grids``; None where it has no step."""
    if method == "mse":
        grid, _ = best_grid(bins, bits, symmetric=symmetric)
    else:
        grid = Grid.over(*_ends(method, bins), bits, symmetric=symmetric)
    return grid if grid.step > 0 else None


def _ends(method: str, bins: Bins) -> tuple[float, float]:
    low, high = float(bins.lowest[0]), float(bins.highest[0])
    if method == "min-max":
        return low, high
    if method == "kl":
        reach = kl_threshold(bins)
        return max(low, -reach), min(high, reach)
    share = _SHARES[method]
    return min(bins.quantile(1 - share), 0.0), max(bins.quantile(share), 0.0)


def method_sqnrs_db(bins: Bins, grids: Mapping[str, Grid]) -> dict[str, float]:
    """Predicted SQNR in dB on each grid."""
    return dict(zip(grids, predict_sqnr(bins, list(grids.values())).tolist(), strict=True))


def kl_threshold(bins: Bins) -> float:
    """Magnitude at which clipping loses the least information by Kullback and Leibler's divergence.

    Every candidate keeps the values below it, the clipped ones in its last bin, and is compared with the same spread
    over ``KL_LEVELS`` levels.
    """
    magnitudes = bins.magnitudes()
    top = float(magnitudes.highest[0])
    if top <= 0:
        return 0.0
    edges = np.linspace(0.0, top, KL_BINS + 1)
    many = Bins(magnitudes.low, magnitudes.high, magnitudes.count, magnitudes.start).repeat(KL_BINS + 1)
    above = many.shares_above(edges)
    above[0] = 1.0
    counts = np.maximum(above[:-1] - above[1:], 0.0)
    kept = range(KL_LEVELS, KL_BINS + 1, KL_LEVELS // 8)
    divergences = [_divergence(counts, n) for n in kept]
    return float(edges[kept[int(np.argmin(divergences))]])


def _divergence(counts: Floats, kept: int) -> float:
    inside = counts[:kept]
    reference = inside.copy()
    reference[-1] += counts[kept:].sum()
    level = np.arange(kept) * KL_LEVELS // kept
    occupied = inside > 0
    sums = np.bincount(level, inside, KL_LEVELS)
    sizes = np.bincount(level, occupied, KL_LEVELS)
    spread = np.where(occupied, (sums / np.maximum(sizes, 1))[level], 0.0)
    p, q = _smooth(reference), _smooth(spread)
    return np.inf if p is None or q is None else divergence(p, q)


def _smooth(counts: Floats) -> Floats | None:
    """Shares in which no bin is empty, as onnxruntime smooths them; None where nothing is left."""
    empty = counts <= 0
    taken = SMOOTHING * empty.sum() / max((~empty).sum(), 1)
    filled = np.where(empty, SMOOTHING, counts - taken)
    return None if (filled <= 0).any() else filled / filled.sum()
