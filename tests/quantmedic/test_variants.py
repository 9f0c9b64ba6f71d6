"""Variants of a quantized model beside each other."""

import numpy as np
import pytest

import quantmedic
from quantmedic.demo import patient

pytestmark = pytest.mark.thorough


def given() -> tuple[str, str, str, dict[str, object]]:
    (float_model, quantized), options = patient()
    (_, healthy), _ = patient(healthy=True)
    shown = {name: options[name] for name in ("validation", "preprocessing") if name in options}
    return str(float_model), str(quantized), str(healthy), shown


def test_each_variant_is_measured_against_the_first() -> None:
    float_model, quantized, healthy, data = given()
    variants = {"as it is": lambda: quantized, "healthy": lambda: healthy, "again": quantized}
    found = quantmedic.what_if(float_model, variants, samples=128, **data)
    first, better, same = found.rows
    assert (first.gain_db, same.gain_db) == (0.0, 0.0)
    assert better.gain_db is not None and better.low_db is not None and 20 < better.low_db < better.gain_db
    assert better.metric is not None and better.metric.low > 0.5 and better.proven
    assert better.sqnr_after is not None and first.sqnr_after is not None
    assert np.isclose(better.sqnr_after - first.sqnr_after, better.gain_db)
    table = str(found)
    assert table.startswith("WHAT IF  3 variants on the same ")
    assert [line.split("  ")[1] for line in table.splitlines()[3:6]] == ["as it is", "healthy", "again"]
    assert all(len(line) <= 120 for line in table.splitlines())
