"""The noise inside a product of a tensor with a function of itself, against the same arithmetic on the values."""

import math
from typing import Any

import numpy as np
import pytest
from builders.cases import bins_of
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.case.records import GATE_STEPS, GateRecord, GateStep
from quantmedic.engine.formulas.simulate import Grid, product_error

FINE = (0.0, 1.0, 1 / 255)
_erf = np.vectorize(math.erf)


def gate(*steps: GateStep, first: tuple[GateStep, ...] = ()) -> GateRecord:
    return GateRecord(source=0, factors=(first, steps))


def test_every_step_of_a_gate_is_computed() -> None:
    for name, constants in GATE_STEPS.items():
        step = GateStep(op_type=name, constants=(1.0,) * constants)
        assert np.isfinite(product_error(bins_of(np.array([-1.0, 2.0])), gate(step), None)).all(), name
    huge = product_error(bins_of(np.array([-1e30, -1e4, 1e4])), gate(GateStep(op_type="Sigmoid")), None)
    assert np.isfinite(huge).all(), "huge values do no harm"


def on(x: Any, grid: Grid) -> Any:
    return np.clip(np.rint(x / grid.step) * grid.step, grid.low, grid.high)


@given(st.integers(0, 1000), st.floats(-4, 2), st.floats(0.5, 6), st.sampled_from([4, 6, 8]))
@examples(30)
def test_noise_is_that_of_the_values(seed: int, mean: float, width: float, bits: int) -> None:
    x = (mean + width * np.random.default_rng(seed).standard_normal(40_000)).astype(np.float32).astype(np.float64)
    source = Grid.over(x.min(), x.max(), bits, symmetric=False)
    noise, power = product_error(bins_of(x), gate(GateStep(op_type="Sigmoid", grid=FINE)), source)
    exact = x / (1 + np.exp(-x))
    rounded = on(x, source)
    found = rounded * on(1 / (1 + np.exp(-rounded)), Grid(*FINE))
    assert power == pytest.approx((exact**2).mean(), rel=0.05)
    assert 10 * math.log10(noise / ((found - exact) ** 2).mean()) == pytest.approx(0, abs=0.7)


#: Steps of a gate, and what the product with it computes.
FUNCTIONS: dict[str, tuple[tuple[GateStep, ...], Any]] = {
    "swish": ((GateStep(op_type="Sigmoid"),), lambda x: x / (1 + np.exp(-x))),
    "hard-swish": (
        (GateStep(op_type="HardSigmoid", constants=(1 / 6, 0.5)),),
        lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    ),
    "gelu": (
        (
            GateStep(op_type="Div", constants=(math.sqrt(2),)),
            GateStep(op_type="Erf"),
            GateStep(op_type="Add", constants=(1.0,)),
            GateStep(op_type="Mul", constants=(0.5,)),
        ),
        lambda x: x * (1 + _erf(x / math.sqrt(2))) / 2,
    ),
    "mish": (
        (GateStep(op_type="Softplus"), GateStep(op_type="Tanh")),
        lambda x: x * np.tanh(np.log1p(np.exp(x))),
    ),
    "reversed": (
        (GateStep(op_type="Sub", constants=(1.0,), reverse=True), GateStep(op_type="Clip", constants=(0.0, 3.0))),
        lambda x: x * np.clip(1 - x, 0, 3),
    ),
}


def test_functions() -> None:
    x = np.random.default_rng(1).normal(0, 2, 20_000)
    for name, (steps, function) in FUNCTIONS.items():
        noise, power = product_error(bins_of(x), gate(*steps), None)
        assert noise == 0, name
        assert power == pytest.approx((function(x) ** 2).mean(), rel=0.02), name
