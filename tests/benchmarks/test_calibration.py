"""Whether confidences come true, on answers made by hand."""

import numpy as np
import pytest
from builders.zoo_rows import control, fault
from zoo.protocol.calibration import calibration_error, reliability, stated
from zoo.protocol.row import Cause, Row, Said


def answer(*causes: tuple[str, str, float]) -> Said:
    return Said("degraded", tuple(Cause(name, severity, confidence) for name, severity, confidence in causes))


def test_confidences_count_where_they_claim_a_loss() -> None:
    rows: list[Row] = [
        fault(answer(("wide-range", "low", 0.9), ("x", "medium", 0.4))),
        fault(answer(("poor-range", "high", 0.7))),
        fault(answer(("x", "high", 0.6)), gain_db=0.0, hurts=False),
        control(answer(("x", "low", 0.3))),
        control(answer(("x", "high", 0.8))),
    ]
    assert stated(rows, first=True) == [(0.9, True), (0.7, True), (0.8, False)]
    assert stated(rows, first=False) == [(0.4, False), (0.7, True), (0.8, False)]


def test_the_error_is_the_weighted_distance_of_the_bins() -> None:
    pairs = [(0.95, True), (0.95, False), (0.5, True), (1.0, True)]
    found = reliability(pairs)
    assert found is not None
    assert [(b.low, b.count, b.right) for b in found.bins] == [(0.5, 1, 1.0), (0.9, 3, pytest.approx(2 / 3))]
    assert found.error == pytest.approx((0.5 + abs(2.9 - 2.0)) / 4)
    assert found.brier == pytest.approx((0.05**2 + 0.95**2 + 0.25) / 4)
    assert reliability([]) is None


def test_a_calibrated_expert_shows_the_error_of_chance() -> None:
    rng = np.random.default_rng(1)
    confidence = rng.random(4000)
    assert calibration_error(confidence, rng.random(4000) < confidence) < 0.03
    few = reliability([(float(c), bool(rng.random() < c)) for c in confidence[:40]])
    assert few is not None and 0.05 < few.by_chance < 0.25
