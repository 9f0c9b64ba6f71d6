"""What a prediction says where a part of the noise stays whatever is quantized otherwise."""

import math

from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.diagnosis.prediction import Prediction

GAINS = st.floats(-20.0, 60.0)
SHARES = st.floats(0.01, 1.0)


def predicted(gain_db: float) -> Prediction:
    share = 1.0 - 10.0 ** (-gain_db / 10.0)
    return Prediction(gain_db, gain_db - 1.0, gain_db + 1.0, share, 10.0 + gain_db, None)


@given(GAINS)
def test_where_nothing_stays_the_prediction_stands(gain_db: float) -> None:
    assert math.isclose(predicted(gain_db).beside(0.0).gain_db, gain_db, abs_tol=1e-9)


@given(GAINS, SHARES)
def test_what_stays_bounds_the_gain(gain_db: float, stays: float) -> None:
    found = predicted(gain_db).beside(stays)
    assert found.high_db <= -10.0 * math.log10(stays) + 1e-9
    assert found.low_db <= found.gain_db <= found.high_db
    # The share that goes and the level behind it say the same as the gain.
    assert math.isclose(found.share, 1.0 - 10.0 ** (-found.gain_db / 10.0), abs_tol=1e-9)
    assert math.isclose(found.sqnr_db, 10.0 + found.gain_db, abs_tol=1e-9)


@given(GAINS, GAINS, SHARES)
def test_the_better_repair_stays_the_better(one: float, other: float, stays: float) -> None:
    first, second = (predicted(gain).beside(stays).gain_db for gain in sorted((one, other)))
    assert first <= second
