"""Products of two functions of one tensor: what rounding on the way costs, from the tensor's histogram alone.

Swish is x·sigmoid(x), GELU x·(1 + erf(x/√2))/2, hard-swish x·clip(x + 3, 0, 6)/6. In one piece they round once, behind
the product. In pieces every factor is rounded as well, and since all of them are functions of one number, the error is
one too.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.histogram import Bins
from quantmedic.engine.case.records import GateRecord, GateStep
from quantmedic.engine.formulas.simulate import Grid
from quantmedic.engine.special_functions import error_function, sigmoid

Floats = NDArray[np.float64]
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
