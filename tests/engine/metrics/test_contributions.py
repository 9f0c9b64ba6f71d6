"""A metric as one number per sample, and the interval of what samples lose."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.metrics.contributions import contributions, loss_interval
from quantmedic.engine.metrics.kinds import kind_of
from quantmedic.engine.metrics.paired import drop_interval

COLUMNS = {"top1": 1, "mae": 1, "rmse": 1, "f1": 3, "cer": 2, "perplexity": 2}


def tally(columns: int, samples: int, seed: int) -> Tally:
    """Counts, as F1 and error rates keep them, or numbers."""
    rng = np.random.default_rng(seed)
    rows = [rng.integers(1, 4, (1, columns)).astype(np.float64) for _ in range(samples)]
    for row in rows:
        row[0, -1] = 4.0
    return Tally.of_samples(rows, columns)


@given(st.sampled_from(sorted(COLUMNS)), st.integers(2, 40), st.integers(0, 2**31))
def test_their_mean_is_the_metric(name: str, samples: int, seed: int) -> None:
    kept, kind = tally(COLUMNS[name], samples, seed), kind_of(name)
    assert contributions(kind, kept).mean() == pytest.approx(kind.value(kept))


def test_a_sample_without_a_metric_leaves_nothing_known() -> None:
    kept = Tally.of_numbers(np.array([1.0, np.nan, 1.0]))
    assert np.isnan(contributions(kind_of("mae"), kept)).all()


def test_whole_samples_have_the_paired_interval() -> None:
    rng = np.random.default_rng(1)
    before, after = ((rng.random(64) < share).astype(np.float64) for share in (0.9, 0.7))
    assert loss_interval(before - after, is_share=True) == drop_interval(before, after, higher_is_better=True)


@given(st.lists(st.floats(-1.0, 1.0), min_size=2, max_size=64))
def test_the_interval_of_a_share_holds_its_mean_and_has_a_width(losses: list[float]) -> None:
    found, low, high = loss_interval(np.array(losses), is_share=True)
    assert low <= found <= high
    assert high > low


@pytest.mark.thorough
def test_the_interval_of_a_part_covers_what_it_estimates() -> None:
    """Quarters of samples, as shares of several views are: the interval is no narrower than it has to be."""
    rng, inside = np.random.default_rng(3), 0
    for _ in range(300):
        losses = rng.choice([0.0, 0.25, 0.5, 1.0, -0.25], 64, p=[0.8, 0.08, 0.06, 0.04, 0.02])
        _, low, high = loss_interval(losses, is_share=True)
        inside += low <= 0.08 * 0.25 + 0.06 * 0.5 + 0.04 - 0.02 * 0.25 <= high
    assert inside >= 0.95 * 300
