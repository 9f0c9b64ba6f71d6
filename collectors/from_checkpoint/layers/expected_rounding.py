"""What rounding to nearest leaves of the float weights on a grid like that in force: what stored ones are held against.

Two bits leave a cosine of 0.75 of Gaussian weights, eight bits 0.9999: a limit for all would be wrong for most.
"""

from dataclasses import dataclass

import numpy as np

from quantmedic.collectors.from_checkpoint.layers.weight_fields import Floats, Grid, Integers, Values
from quantmedic.collectors.pair.weight_grids import DEAD, cosine, known_sqnr_db, power_of

#: An input channel is lost where the error of its weights has more than this share of their power.
_LOST = 0.5
#: Largest error of a scale in float16 or bfloat16 over the scale, and what float32 adds, in steps.
_SCALE_ERROR, _CLOSE = 2.0**-10, 0.01
#: Fewer output channels do not tell what is left of an input channel.
_MIN_ROWS = 32


@dataclass(frozen=True)
class Steps:
    """How the codes of a layer are laid out.

    Attributes:
        bits: Of a code.
        starts: First column of each group, and the number of columns.
        is_symmetric: Without zero points.
        span: Smallest and largest weight of the layer, where one scale serves all of it; else None.
    """

    bits: int
    starts: Integers
    is_symmetric: bool
    span: tuple[float, float] | None = None


def expected_rounding(x: Values, y: Values, steps: Steps) -> dict[str, float | None]:
    """Hold stored weights against what rounding to nearest would have stored: fields of ``WeightFacts``.

    Args:
        x: Float weights of some output channels ``[rows, inputs]``, with gains that were folded into the stored ones.
        y: The stored ones.
        steps: Their grid.
    """
    rounded = round_to_nearest(x, steps)
    return {
        "grid_similarity": cosine(rounded, x),
        "grid_gain_db": _rounding_gain_db(x, rounded, y),
        "lost_inputs": _rounding_loss(x, y),
    }


def _rounding_gain_db(x: Values, rounded: Values, y: Values) -> float | None:
    """How much more rounding leaves than is stored, in dB; None where either is exact."""
    power = float(power_of(x).sum())
    best, own = (known_sqnr_db(power, float(power_of(z - x).sum())) for z in (rounded, y))
    if best is None or own is None or not np.isfinite([best, own]).all():
        return None
    return best - own


def moved_share(x: Values, y: Values, grid: Grid, starts: Integers) -> float | None:
    """Share of the weights whose code is not the nearest one; None where a scale is no number, or 0.

    Scales were rounded to 16 bits when they were stored, and codes chosen before: what that moves does not count.

    Args:
        x: Float weights ``[rows, inputs]``, inputs in the order of the stored ones.
        y: The stored ones.
        grid: Step, lowest and highest number of each group, ``[rows, groups]``.
        starts: First column of each group, and the number of columns.
    """
    step, low, high = (np.repeat(part, np.diff(starts), axis=1) for part in (grid.step, grid.low, grid.high))
    if not (np.isfinite(step).all() and (step > 0).all()):
        return None
    nearest = np.clip(x, low, high)
    borne = 0.5 + _SCALE_ERROR * np.maximum(np.abs(x) / step, 1.0) + _CLOSE
    return float((np.abs(y - nearest) > borne * step).mean())


def round_to_nearest(x: Values, steps: Steps) -> Values:
    """The weights on a grid that reaches from their smallest to their largest, group by group."""
    sizes = np.diff(steps.starts)
    low, high = _span_of_groups(x, steps)
    top = 2**steps.bits - 1
    if steps.is_symmetric and steps.bits > 1:
        reach = np.maximum(-low, high)
        step, zero = reach / (2 ** (steps.bits - 1) - 1), np.full(reach.shape, 2.0 ** (steps.bits - 1))
    else:
        step = (high - low) / top
        zero = np.rint(np.divide(-low, step, out=np.zeros_like(low), where=step > 0))
    step, zero = (np.repeat(part, sizes, axis=1) for part in (step, zero))
    wanted = np.divide(x, step, out=np.zeros_like(step), where=step > 0)
    found: Values = ((np.clip(np.rint(wanted) + zero, 0, top) - zero) * step).astype(np.float32)
    return found


def _span_of_groups(x: Values, steps: Steps) -> tuple[Floats, Floats]:
    """Ends of each group, with 0 among them, ``[rows, groups]``."""
    shape = (len(x), len(steps.starts) - 1)
    if steps.span is not None:
        return np.full(shape, min(steps.span[0], 0.0)), np.full(shape, max(steps.span[1], 0.0))
    first = steps.starts[:-1]
    low, high = np.minimum.reduceat(x, first, axis=1), np.maximum.reduceat(x, first, axis=1)
    return np.minimum(low, 0).astype(np.float64), np.maximum(high, 0).astype(np.float64)


def _rounding_loss(x: Values, y: Values) -> float | None:
    """Share of the input channels of which less than half is stored; None where there are few outputs."""
    if len(x) < _MIN_ROWS:
        return None
    tops = np.abs(x).max(axis=0)
    alive = tops > DEAD * tops.max()
    if not alive.any():
        return None
    power, noise = ((z.astype(np.float64) ** 2).sum(axis=0)[alive] for z in (x, y - x))
    return float((noise > _LOST * power).mean())
