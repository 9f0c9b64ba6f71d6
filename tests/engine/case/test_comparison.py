"""Sums that compare outputs: any division into parts gives what one pass gives, and the facts are what numpy says."""

import math

import numpy as np
import pytest
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.collectors.measure.outputs import ELEMENTS, column_axis, compare_outputs, thin_out
from quantmedic.engine.case.output_comparison import FIELDS, Comparison, affine_facts, comparison_facts, noise_ratio


def outputs(seed: int, n: int = 40, offset: float = 0.0):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((n, 4, 3)) * [[[1.0]], [[100.0]], [[0.01]], [[5.0]]][0] + offset).astype(np.float32)
    return x, (x + 0.1 * rng.standard_normal(x.shape)).astype(np.float32)


@examples(40)
@given(st.integers(0, 1000), st.lists(st.integers(1, 39), max_size=4), st.sampled_from([0.0, 1e4]))
def test_parts_merge_to_the_whole(seed: int, cuts: list[int], offset: float) -> None:
    x, y = outputs(seed, offset=offset)
    x[3, 1, 2], y[7, 0, 0] = np.nan, np.inf
    whole = compare_outputs(x, y, 1, classes=False)
    merged = Comparison.empty(4)
    for a, b in zip(np.split(x, sorted(cuts)), np.split(y, sorted(cuts)), strict=True):
        merged = merged.merge(compare_outputs(a, b, 1))
    np.testing.assert_allclose(merged.table, whole.table, rtol=1e-9, atol=1e-12)
    assert merged.votes.tolist() == whole.votes.tolist()
    exact = [FIELDS.index(name) for name in ("count", "max", "peak", "nonfinite")]
    assert merged.table[:, exact].tolist() == whole.table[:, exact].tolist()


def test_facts_are_those_of_numpy() -> None:
    x, y = outputs(1)
    facts = comparison_facts([compare_outputs(x, y, None)])
    d = y.astype(np.float64) - x
    assert facts.max_abs_difference == np.abs(d).max()
    assert facts.sqnr_db == pytest.approx(10 * np.log10((x.astype(np.float64) ** 2).sum() / (d**2).sum()))
    assert facts.samples == 40 and facts.agreement is None


def test_a_small_column_is_not_hidden_by_a_large_one() -> None:
    """Boxes up to 640 beside scores up to 1: scores that are all wrong must show."""
    x = np.concatenate([np.linspace(0, 640, 100)[:, None], np.linspace(0, 1, 100)[:, None]], axis=1)
    y = x.copy()
    y[:, 1] = 0
    assert comparison_facts([compare_outputs(x, y, 1)]).relative_difference == pytest.approx(1 / 6.4)
    assert comparison_facts([compare_outputs(x, y, None)]).relative_difference == pytest.approx(1 / 640)


def test_agreement_counts_classes_of_values_and_of_codes() -> None:
    scores = np.array([[1.0, 2.0, 0.0], [3.0, 1.0, 2.0]])
    codes = np.array([[10, 200, 3], [0, 9, 200]], np.uint8)
    assert comparison_facts([compare_outputs(scores, codes, None, classes=True)]).agreement == 0.5


def test_worst_output_counts() -> None:
    x, y = outputs(2)
    good, bad = compare_outputs(x, x, None), compare_outputs(x, y, None)
    facts = comparison_facts([good, bad])
    assert facts.sqnr_db == comparison_facts([bad]).sqnr_db
    assert comparison_facts([good]).sqnr_db == math.inf
    assert comparison_facts([good]).relative_difference == 0.0
    assert comparison_facts([Comparison.empty(1)]).samples is None


def test_noise_ratio_is_that_of_mean_squares() -> None:
    x = np.zeros((100, 3))
    two, one = compare_outputs(x, x + 2, None), compare_outputs(x[:50], x[:50] + 1, None)
    assert noise_ratio([two], [one]) == pytest.approx(4.0)
    assert noise_ratio([compare_outputs(x, x, None)], [compare_outputs(x, x, None)]) == 0.0
    assert noise_ratio([two], [compare_outputs(x, x, None)]) is None


def test_a_line_is_found() -> None:
    for slope, offset in ((23.0, -8.0), (0.1, 100.0), (-2.0, 0.0)):
        x = np.random.default_rng(0).standard_normal((500, 10)) + 1000
        facts = affine_facts(compare_outputs(x, slope * x + offset, None))
        assert facts.slope == pytest.approx(slope)
        assert facts.offset == pytest.approx(offset, abs=1e-5)
        assert facts.r2 == pytest.approx(1.0)
        assert facts.slope_mismatch == pytest.approx(max(abs(slope), 1 / abs(slope)))
    constant = np.ones((5, 2))
    assert affine_facts(compare_outputs(constant, constant, None)).slope is None


def test_columns_lie_on_the_shorter_fixed_axis() -> None:
    assert column_axis((None, 84, 8400)) == 1
    assert column_axis((None, 8400, 85)) == 2
    assert column_axis((None, 10)) == 1
    assert column_axis((None, None, 85)) == 2
    assert column_axis((None, None)) is None
    assert column_axis((None, 1)) is None
    assert column_axis((None, 9000)) is None
    assert column_axis(None) is None


def test_thinning_visits_every_column_and_forgets_the_batch() -> None:
    x = np.broadcast_to(np.arange(85.0), (3, 700, 85))
    kept = thin_out(x)
    assert kept.shape[1] <= ELEMENTS and set(kept[0]) == set(range(85))
    np.testing.assert_array_equal(np.concatenate([thin_out(x[:1]), thin_out(x[1:])]), kept)
    small = np.ones((2, 10))
    assert thin_out(small).shape == (2, 10)
