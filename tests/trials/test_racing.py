"""Races: nothing that may be the best drops out, and a race of all samples ends as an exhaustive comparison does."""

import math
from collections.abc import Sequence

import numpy as np
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from quantmedic.trials.racing import STRICT, Gap, Race, median_interval, part_sizes, race

Floats = NDArray[np.float64]


class Scores:
    """Candidates with a score for each sample, compared by their median differences."""

    def __init__(self, scores: Floats, sizes: Sequence[int], failing: Sequence[int] = ()) -> None:
        self.scores, self.failing = scores, failing
        self.ends = np.cumsum(sizes)
        self.seen = [0] * len(scores)
        self.runs = 0
        self.asked: list[tuple[int, int, Gap]] = []

    def judge(self, candidate: int, part: int) -> bool:
        if candidate in self.failing:
            return False
        self.runs += int(self.ends[part]) - self.seen[candidate]
        self.seen[candidate] = int(self.ends[part])
        return True

    def value(self, candidate: int) -> float:
        return float(np.median(self.scores[candidate, : self.seen[candidate]]))

    def gap(self, leader: int, other: int) -> Gap:
        n = min(self.seen[leader], self.seen[other])
        difference = self.scores[leader, :n] - self.scores[other, :n]
        found = Gap(float(np.median(difference)), *median_interval(difference, STRICT))
        self.asked.append((leader, other, found))
        return found


def run(scores: Floats, first: int = 16, negligible: float = 0.0, failing: Sequence[int] = ()) -> tuple[Race, Scores]:
    sizes = part_sizes(scores.shape[1], first)
    contest = Scores(scores, sizes, failing)
    return race(contest, range(len(scores)), sizes, negligible), contest


@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.integers(1, 200), st.floats(0, 5))
@examples(60)
def test_what_overlaps_the_leader_is_never_dropped(seed: int, candidates: int, samples: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, spread, (candidates, 1)) + rng.normal(0, 1, (candidates, samples))
    found, contest = run(scores)
    for each in found.dropped:
        last = [gap for _, other, gap in contest.asked if other == each][-1]
        assert last.low > 0
    overlapping = {other for _, other, gap in contest.asked if gap.low <= 0} - {
        other for _, other, gap in contest.asked if gap.low > 0
    }
    assert overlapping <= set(found.left)
    assert {*found.left} | {*found.dropped} == {*range(candidates)}
    assert found.leader in found.left


@given(st.integers(0, 2**32 - 1), st.integers(2, 8), st.integers(1, 16))
@examples(60)
def test_small_races_end_as_exhaustive_comparisons(seed: int, candidates: int, samples: int) -> None:
    """All samples fit into the first part."""
    scores = np.random.default_rng(seed).normal(0, 3, (candidates, samples))
    found, contest = run(scores)
    assert found.leader == int(np.argmax(np.median(scores, axis=1)))
    assert contest.runs == candidates * samples


def test_the_best_is_found_early_where_it_is_far_ahead() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(0, 1, (12, 512)) + rng.normal(0, 4, 512) - np.arange(12)[:, np.newaxis] * 3.0
    found, contest = run(scores)
    assert found.leader == 0 and found.left == (0,) and found.ending == "one"
    assert contest.runs < 0.1 * scores.size


def test_differences_that_do_not_matter_end_a_race() -> None:
    rng = np.random.default_rng(1)
    common = rng.normal(30, 5, 4096)
    scores = common + rng.normal(0, 0.01, (4, 4096))
    found, contest = run(scores, negligible=0.1)
    assert found.ending == "close" and len(found.left) == 4
    assert contest.runs == 4 * 16


def test_ties_are_given_up_before_all_samples_are_used() -> None:
    scores = np.random.default_rng(2).normal(0, 1, (3, 1024))
    found, _ = run(scores)
    assert found.ending == "tied"
    assert found.dropped == {} and found.left == (0, 1, 2)


def test_candidates_that_fail_are_out() -> None:
    scores = np.array([[9.0] * 20, [1.0] * 20, [0.0] * 20])
    found, _ = run(scores, failing=[0])
    assert found.failed == (0,) and found.leader == 1 and found.left == (1,)
    nobody, _ = run(scores, failing=[0, 1, 2])
    assert nobody.leader is None and nobody.ending == "none" and nobody.left == ()


def test_parts_are_all_samples() -> None:
    for samples in (1, 15, 16, 17, 40, 64, 100, 512, 1000):
        sizes = part_sizes(samples, 16)
        assert sum(sizes) == samples and min(sizes) > 0
        assert sizes[0] == min(16, samples)


def test_median_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    found = [median_interval(rng.exponential(1, 50), 0.95) for _ in range(2000)]
    covered = np.mean([low <= math.log(2) <= high for low, high in found])
    assert 0.945 < covered < 0.99
    for few in (np.arange(5.0), np.zeros(0)):
        assert median_interval(few, 0.95) == (-math.inf, math.inf)
    # Of six values the least and the largest: outside with probability 2 / 64.
    assert median_interval(np.arange(6.0), 0.95) == (0.0, 5.0)
