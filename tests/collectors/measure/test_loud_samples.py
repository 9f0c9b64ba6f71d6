"""Noise that few samples hold: it is looked for where it is, and counts in shares of the signal of all samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.api.remedies import _few_noisy_samples
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.measure.output_noise import OutputNoise
from quantmedic.collectors.measure.simulation import QUIET, _loudest_first
from quantmedic.engine.case.records import RunRecord, SimulationRecord

levels = st.lists(st.floats(0, 1e6), min_size=2, max_size=20)


def outputs(seed: int, samples: int, scale: float) -> list[list[np.ndarray]]:
    return [[np.random.default_rng(seed).normal(0, scale, (samples, 5)).astype(np.float32)]]


@given(levels, st.integers(1, 20))
def test_the_first_batches_hold_something_of_the_noise(noise: list[float], first: int) -> None:
    first = min(first, len(noise))
    order = _loudest_first(np.array(noise), first) or list(range(len(noise)))
    assert sorted(order) == list(range(len(noise)))
    held = np.array(noise)[order][:first].sum()
    assert held * len(noise) >= QUIET * sum(noise) * first * (1 - 1e-9)


def test_batches_that_are_about_as_loud_keep_their_order() -> None:
    assert _loudest_first(np.ones(8), 2) is None
    assert _loudest_first(np.zeros(8), 2) is None
    assert _loudest_first(np.array([0.1, 0.1, 1.0, 1.0]), 2) is None
    assert _loudest_first(np.array([0.0, 0.0, 0.0, 3.0, 1.0, 0.0]), 2) == [3, 4, 0, 1, 2, 5]


def test_two_halves_are_judged_as_the_whole_is() -> None:
    """A half of next to no signal: by itself, a step of the output's grid there was noise of 140 dB."""
    halves = [(outputs(1, 6, 1.0), outputs(2, 6, 1.1)), (outputs(3, 4, 1e-9), outputs(4, 4, 1e-3))]
    batches = [Batch({"x": np.zeros((len(floats[0][0]), 1), np.float32)}) for floats, _ in halves]
    parts = [
        OutputNoise([batch], floats, found, classes=False)
        for batch, (floats, found) in zip(batches, halves, strict=True)
    ]
    alone = [noise for part, (_, found) in zip(parts, halves, strict=True) for noise in part.compare(found).noise]
    OutputNoise.share_signal(parts)
    shared = [noise for part, (_, found) in zip(parts, halves, strict=True) for noise in part.compare(found).noise]
    floats, found = ([*a, *b] for a, b in zip(*halves, strict=True))
    whole = OutputNoise(batches, floats, found, classes=False)
    assert shared == pytest.approx(whole.compare(found).noise)
    assert np.concatenate([part.power for part in parts]) == pytest.approx(whole.power)
    assert max(alone) > 1e10 > 10 > max(shared)


def test_it_is_said_where_few_samples_hold_nearly_all_of_the_noise() -> None:
    def said(noise: tuple[float, ...], numbers: range | None = None) -> list[str]:
        run = RunRecord(noise=noise)
        record = SimulationRecord(dataset="validation", power=noise, deployed=run, simulated=run)
        return list(_few_noisy_samples(record, numbers))

    few = [said((0.001,) * (12 - loud) + (1.0,) * loud, range(12)) for loud in (1, 2, 3)]
    assert "1 of 12 samples of the validation set (number 11) has nearly all" in few[0][0]
    assert "(number 10, number 11) have nearly all" in few[1][0] and not few[2]
    assert "set has nearly all" in said((0.001,) * 11 + (1.0,))[0]
    assert not said((1.0, 0.0, 0.0, 0.0)) and not said((0.0,) * 12)
