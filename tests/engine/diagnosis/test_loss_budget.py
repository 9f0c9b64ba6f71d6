"""The division of the noise among its sources: what must hold of any network, and what is exact of simple ones."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from quantmedic.engine.diagnosis.noise_division import Division, divide

few = examples(40)
Floats = NDArray[np.float64]
Noise = Callable[[frozenset[int]], Floats]


def divided(noise: Noise, parts: Sequence[Sequence[int]], runs: int = 1000, **options: Any) -> Division:
    """The division of what a function of the quantized sources gives."""
    every = frozenset(i for part in parts for i in part)
    return divide(
        parts,
        lambda members: noise(frozenset(members)),
        lambda members: noise(every - frozenset(members)),
        whole=noise(every),
        runs=runs,
        **options,
    )


def powers_add(powers: Sequence[float]) -> Noise:
    """Sources that know nothing of each other."""
    return lambda members: np.array([sum(powers[i] for i in members)])


def amplitudes_add(amplitudes: Sequence[float]) -> Noise:
    """Sources whose errors all point in one direction."""
    return lambda members: np.array([sum(amplitudes[i] for i in members) ** 2])


def shares(found: Division, sources: int) -> Floats:
    """The share of each source; those of a group that was not taken apart get as much each."""
    each = np.zeros(sources)
    for group in found.groups:
        each[list(group.members)] = group.share[0] / len(group.members)
    return each


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=20), st.integers(0, 2**31))
@few
def test_powers_that_add_up_are_found_as_they_are(powers: list[float], seed: int) -> None:
    """What is expected decides how often is run, and not what is found."""
    expected = np.random.default_rng(seed).random(len(powers)).tolist()
    for options in ({}, {"expected": expected}):
        found = divided(powers_add(powers), [list(range(len(powers)))], **options)
        exact = np.array(powers) / sum(powers)
        for group in found.groups:
            assert group.share[0] == pytest.approx(exact[list(group.members)].sum(), abs=1e-9)


@given(st.lists(st.floats(0.01, 10.0), min_size=2, max_size=12))
@few
def test_of_errors_in_one_direction_each_gets_its_amplitude(amplitudes: list[float]) -> None:
    found = divided(amplitudes_add(amplitudes), [list(range(len(amplitudes)))])
    exact = np.array(amplitudes) / sum(amplitudes)
    for group in found.groups:
        assert group.share[0] == pytest.approx(exact[list(group.members)].sum(), abs=1e-9)


@given(st.integers(2, 16), st.integers(0, 2**31), st.integers(4, 60))
@few
def test_shares_sum_up_to_the_whole_whatever_sources_do_to_each_other(sources: int, seed: int, runs: int) -> None:
    table: dict[frozenset[int], Floats] = {frozenset(): np.zeros(2)}
    rng = np.random.default_rng(seed)

    def noise(members: frozenset[int]) -> Floats:
        return table.setdefault(members, rng.random(2) + 0.1)

    middle = sources // 2
    found = divided(noise, [list(range(middle)), list(range(middle, sources))], runs)
    assert sorted(i for group in found.groups for i in group.members) == list(range(sources))
    np.testing.assert_allclose(np.sum([group.share for group in found.groups], axis=0), 1.0)
    assert found.runs <= runs


def test_of_sources_that_know_nothing_of_each_other_one_half_tells_the_other() -> None:
    """Two runs take a group apart instead of four."""
    asked: list[frozenset[int]] = []

    def noise(members: frozenset[int]) -> Floats:
        asked.append(members)
        return np.array([float(len(members))])

    found = divided(noise, [list(range(8))])
    assert found.complete
    assert found.runs == 2 * 7
    assert len(asked) == found.runs + 1


def test_a_half_that_hides_as_much_as_it_makes_does_not_tell_the_other() -> None:
    """Two sources cancel each other: what each does alone, it takes away on top of the other."""
    errors = [1.0, -0.5, 0.01, 0.01]
    found = divided(amplitudes_add(errors), [list(range(4))])
    exact = np.array(errors) / sum(errors)
    assert shares(found, 4) == pytest.approx(exact, abs=1e-9)


def test_two_sources_that_spoil_everything_each_share_the_noise() -> None:
    """Put in float alone, neither takes anything away."""
    found = divided(lambda members: np.array([float(bool({2, 5} & members))]), [list(range(8))])
    assert shares(found, 8)[[2, 5]] == pytest.approx([0.5, 0.5])


def test_an_output_that_is_almost_clean_does_not_decide_what_is_taken_apart() -> None:
    def noise(members: frozenset[int]) -> Floats:
        return np.array([1.0 * (0 in members), 1e-6 * len(members)])

    found = divided(noise, [list(range(64))])
    assert found.complete
    assert found.groups[0].members == (0,)
    assert found.runs <= 4 * 7


def test_without_time_what_was_not_taken_apart_is_left_together() -> None:
    found = divided(powers_add([1.0] * 16), [list(range(16))], runs=8)
    assert not found.complete
    assert 4 < found.runs <= 8
    assert max(len(group.members) for group in found.groups) > 1


@given(st.integers(2, 16), st.integers(0, 2**31), st.integers(4, 60), st.booleans())
@few
def test_what_the_task_loses_sums_up_with_the_interaction(sources: int, seed: int, runs: int, counts: bool) -> None:
    """Whatever sources do to each other, sample by sample."""
    samples, rng = 5, np.random.default_rng(seed)
    table: dict[frozenset[int], Floats] = {frozenset(): np.zeros(1 + samples)}

    def judged(members: frozenset[int]) -> Floats:
        losses = rng.integers(-1, 2, samples) + (1.0 if counts else 0.0)
        return table.setdefault(members, np.concatenate([rng.random(1) + 0.1, losses]))

    every = frozenset(range(sources))
    whole = judged(every)
    counts = counts and bool(whole[1:].sum())
    found = divided(judged, [list(range(sources))], runs, samples=samples, loss_counts=counts)
    total = np.sum([group.share for group in found.groups], axis=0)
    np.testing.assert_allclose(total[:1], 1.0)
    np.testing.assert_allclose(total[1:] + found.interaction, whole[1:], atol=1e-9)


def lost(*losses: Noise, sources: int = 4) -> Division:
    """The division of a network of sources that make noise everywhere, and lose as these functions say."""

    def judged(members: frozenset[int]) -> Floats:
        return np.concatenate([[float(len(members))], *(loss(members) for loss in losses)])

    return divided(judged, [list(range(sources))], 100, samples=len(losses), loss_counts=True)


def losses(found: Division) -> dict[int, float]:
    return {group.members[0]: float(group.share[1:].mean()) for group in found.groups if len(group.members) == 1}


def test_a_loss_that_one_source_makes_is_its_own_whatever_noise_others_make() -> None:
    found = lost(powers_add([0.0, 0.0, 0.5, 0.0]), powers_add([0.0, 0.0, 0.0, 0.0]))
    assert losses(found)[2] == pytest.approx(0.25)
    np.testing.assert_allclose(found.interaction, 0.0)


def test_sources_that_each_lose_all_share_the_loss() -> None:
    found = lost(lambda members: np.array([float(bool(members))]))
    assert losses(found) == pytest.approx({0: 0.25, 1: 0.25, 2: 0.25, 3: 0.25})
    np.testing.assert_allclose(found.interaction, 0.0)


def test_what_half_of_the_sources_lose_together_is_nobodys_share() -> None:
    """One more or less changes nothing, in front of all others and behind them."""
    found = lost(lambda members: np.array([float(len(members) >= 4)]), sources=8)
    assert found.interaction.tolist() == pytest.approx([1.0])
    assert losses(found) == pytest.approx(dict.fromkeys(range(8), 0.0))


def test_a_group_that_takes_a_good_part_of_the_loss_is_taken_apart_though_it_is_quiet() -> None:
    def judged(members: frozenset[int]) -> Floats:
        return np.array([float(0 in members) + 1e-6 * len(members), float(50 in members)])

    found = divided(judged, [list(range(64))], 100, samples=1, loss_counts=True)
    assert found.complete
    assert (50,) in [group.members for group in found.groups]


def test_a_half_that_does_nothing_leaves_the_rest_to_the_other_without_a_run() -> None:
    powers = [0.001] * 64
    powers[40] = 10.0
    asked: list[frozenset[int]] = []

    def noise(members: frozenset[int]) -> Floats:
        asked.append(members)
        return powers_add(powers)(members)

    expected = [1.0 if i == 40 else 1e-6 for i in range(64)]
    found = divided(noise, [list(range(64))], nothing=0.01, expected=expected)
    assert found.groups[0].members == (40,)
    assert found.groups[0].share[0] == pytest.approx(10.0 / sum(powers))
    assert found.runs == len(asked) - 1 <= 8
