"""The split of the samples: two halves, classes even, equal samples together, the same for ever."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.datasets import InputSpec, open_dataset
from quantmedic.trials.split import CROSS_FITTED_BELOW, folds, read_pool, samples_of


def pool(values: np.ndarray, labels: np.ndarray | None = None, size: int = 8) -> list[Batch]:
    return [
        Batch({"x": values[i : i + size]}, None if labels is None else labels[i : i + size])
        for i in range(0, len(values), size)
    ]


def seen(batches: tuple[Batch, ...]) -> list[float]:
    return [float(x) for batch in batches for x in batch.inputs["x"][:, 0]]


@given(st.lists(st.integers(0, 40), min_size=2, max_size=200), st.integers(0, 3))
def test_every_sample_falls_into_one_half_and_equal_ones_into_the_same(values, seed):
    samples = np.array(values, np.float32)[:, None]
    first = folds(pool(samples), 1, seed)[0]
    fitted, judged = seen(first.fitted), seen(first.judged)
    if len(set(values)) == 1:  # One sample over and over cannot be split.
        assert fitted == judged == [float(v) for v in values]
        return
    assert sorted(fitted + judged) == sorted(map(float, values))
    assert not set(fitted) & set(judged)


@given(st.integers(64, 200), st.integers(2, 7), st.integers(0, 5))
def test_classes_fall_evenly_into_both_halves(count, classes, seed):
    labels = np.sort(np.arange(count) % classes)
    (fold,) = folds(pool(np.arange(count, dtype=np.float32)[:, None], labels), 1, seed)
    halves = [np.concatenate([batch.labels for batch in part]) for part in (fold.fitted, fold.judged)]
    counts = np.array([np.bincount(half, minlength=classes) for half in halves])
    assert abs(counts[0] - counts[1]).max() <= 1


def test_few_samples_are_fitted_on_and_judged_on_in_turn():
    for count, turns in [(CROSS_FITTED_BELOW - 1, 2), (CROSS_FITTED_BELOW, 1)]:
        found = folds(pool(np.arange(count, dtype=np.float32)[:, None]), 1, 0)
        assert len(found) == turns
        judged = [x for fold in found for x in seen(fold.judged)]
        assert len(judged) == len(set(judged)) == (count if turns == 2 else count // 2)


def test_a_fixed_batch_stays_together():
    samples = np.arange(40, dtype=np.float32)[:, None]
    (first, second) = folds(pool(samples, size=4), 4, 0)
    assert {batch.samples for batch in (*first.fitted, *first.judged)} == {4}
    assert first.fitted == second.judged


def test_the_same_seed_gives_the_same_split():
    samples = pool(np.arange(100, dtype=np.float32)[:, None])
    again, other = folds(samples, 1, 3)[0], folds(samples, 1, 4)[0]
    assert seen(folds(samples, 1, 3)[0].judged) == seen(again.judged) != seen(other.judged)


def test_a_pool_is_spread_over_the_whole_set():
    spec = InputSpec("x", (None, 1), np.dtype(np.float32))
    values = np.arange(1000, dtype=np.float32)[:, None]
    dataset = open_dataset({"x": values}, [spec], role="validation")
    found = read_pool(dataset, 1000, None, 100, 0)
    assert 90 <= samples_of(found) <= 110
    drawn = np.sort(np.concatenate([batch.inputs["x"][:, 0] for batch in found]))
    assert drawn[0] < 50
    assert drawn[-1] > 950
    assert np.diff(drawn).max() < 60
