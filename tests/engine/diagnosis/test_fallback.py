"""The search for the smallest fallback set, on made-up noise of many kinds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quantmedic.engine.diagnosis.smallest_set import (
    EvaluatedSet,
    Evaluation,
    SearchState,
    Units,
    allowance,
    one_at_a_time,
    smallest_set,
)

pytestmark = pytest.mark.thorough

Floats = NDArray[np.float64]
BATCHES = 128
SEEDS = range(3)


@dataclass
class Network:
    """Errors of the units by batch, ``[units, batches, outputs]``, that add up where they are quantized.

    ``spoils`` is noise that a set brings by itself, in shares of that with nothing in float.
    """

    errors: Floats
    limit: float
    spoils: Callable[[Units], float] = lambda units: 0.0
    passes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.products = np.einsum("ibo,kbo->bik", self.errors, self.errors)
        self.total = self.products.sum(axis=0)
        self.full = float(self.total.sum())

    @property
    def units(self) -> int:
        return len(self.errors)

    def quantized(self, units: Units) -> Floats:
        kept = np.ones(self.units)
        kept[list(units)] = 0.0
        return kept

    def share(self, units: Units) -> float:
        kept = self.quantized(units)
        return float(kept @ self.total @ kept / (self.full or 1.0) + self.spoils(units))

    def noise(self, sets: Sequence[Units]) -> Floats:
        kept = np.array([self.quantized(units) for units in sets])
        own = ((kept[:, None] @ self.products)[:, 0] * kept).sum(axis=1)
        return own + np.array([self.spoils(units) for units in sets]) * self.full / BATCHES

    def evaluate(self, units: Units) -> Evaluation:
        self.passes.append("evaluate")
        noise, share = self.noise([units] * BATCHES), self.share(units)
        return Evaluation(noise, share, share <= self.limit, self.limit / max(share, 1e-9))

    def probe(self, sets: Sequence[Units]) -> Floats:
        self.passes.append("probe")
        assert len(sets) == BATCHES
        return self.noise(sets)

    def search(self, seed: int = 0, **options: Any) -> SearchState:
        return smallest_set(self.units, self.evaluate, self.probe, seed=seed, **options)


def greedy(network: Network) -> Units:
    """Greedy backward elimination: all in float, then back to int8 whatever harms least while the limit holds."""
    kept = frozenset(range(network.units))
    while kept:
        back = network.total @ network.quantized(kept)
        harm = {unit: 2 * back[unit] + network.total[unit, unit] for unit in kept}
        smaller = kept - {min(sorted(kept), key=harm.__getitem__)}
        if network.share(smaller) > network.limit:
            break
        kept = smaller
    return kept


def errors(seed: int, units: int, *, tail: float, outputs: int = 12, common: float = 0.0) -> Floats:
    """Random errors: loudness of the units is spread by ``tail``, and a part of them points the same way."""
    rng = np.random.default_rng(seed)
    loud = np.exp(tail * rng.standard_normal(units))
    batches = np.exp(0.4 * rng.standard_normal((1, BATCHES, 1)))
    own = rng.standard_normal((units, BATCHES, outputs))
    shared = rng.choice([-1.0, 1.0], (units, 1, 1)) * rng.standard_normal((1, BATCHES, outputs))
    return np.sqrt(loud)[:, None, None] * batches * (own + common * shared)


@pytest.mark.nightly
def test_sets_are_nearly_as_small_as_greedy_ones_within_the_allowance() -> None:
    for units, limit, common in [(50, 0.5, 0.0), (50, 0.25, 0.3), (70, 0.25, 0.0)]:  # errors add up, or partly cancel
        sizes, references = [], []
        for seed in range(4):
            network = Network(errors(seed, units, tail=1.5, common=common), limit)
            found = network.search(seed)
            assert found.best is not None and network.share(found.best) <= limit
            assert found.evaluations <= max(units / 5, 2 * len(found.best) + np.log2(units))
            sizes.append(len(found.best))
            references.append(len(greedy(network)))
        assert sum(sizes) <= 1.2 * sum(references), (units, limit, common)


@pytest.mark.nightly
def test_pair_that_matters_only_together_is_found() -> None:
    """Two layers round the same values: it helps nothing to leave one of them in float."""
    pair = {3, 40}
    for seed in SEEDS:
        network = Network(errors(seed, 50, tail=1.0), 0.2)
        network.spoils = lambda units: 0.0 if pair <= units else 4.0
        found = network.search(seed)
        assert found.best is not None and pair <= found.best, seed
        assert network.share(found.best) <= network.limit


def test_reversals_are_pairs_of_a_set_and_a_noisier_one_that_holds_it() -> None:
    sets = [(), (1,), (1, 2), (3,), (1, 2, 3)]
    shares = [1.0, 0.2, 0.5, 0.6, 0.505]
    steps = [EvaluatedSet(frozenset(units), 0.0, share, False, 0.1) for units, share in zip(sets, shares, strict=True)]
    found = SearchState(steps, len(steps))
    assert found.reversals == [(steps[1], steps[2]), (steps[1], steps[4])], "a rise of 1 % is not told"


def test_every_pass_is_counted_and_the_same_seed_searches_alike() -> None:
    network = Network(errors(3, 30, tail=1.0), 0.25)
    told: list[int] = []
    found = network.search(5, progress=lambda known: told.append(known.evaluations))
    assert found.evaluations == len(network.passes)
    assert told == list(range(1, found.evaluations + 1))
    assert len(found.steps) == network.passes.count("evaluate")
    again = network.search(5)
    assert again.steps == found.steps and again.evaluations == found.evaluations


def test_goals_that_all_or_nothing_meets_end_soon() -> None:
    met = Network(errors(0, 20, tail=1.0), 1.0).search()
    assert met.best == frozenset() and met.evaluations == 1
    for units in (1, 2, 3, 50):
        found = Network(errors(0, units, tail=1.0), -1.0).search()
        assert found.best is None and not found.interrupted
        assert frozenset(range(units)) in {step.units for step in found.steps}
        assert found.evaluations <= 4 + 2 * np.log2(units + 1)
    for units in (1, 2, 5):
        network = Network(errors(1, units, tail=1.0), 0.01)
        found = network.search()
        assert found.best is not None and network.share(found.best) <= 0.01


def test_layers_and_batches_without_noise() -> None:
    silent = errors(2, 40, tail=1.0)
    silent[5:] = 0.0
    silent[:, ::3] = 0.0
    network = Network(silent, 0.3)
    found = network.search()
    assert found.best is not None and found.best <= set(range(5))
    none = Network(np.zeros((10, BATCHES, 2)), -1.0).search()
    assert none.best is None and none.evaluations == 1


def test_interrupted_search_keeps_its_best_set() -> None:
    network = Network(errors(4, 50, tail=1.0), 0.2)
    for after in (1, 2, 5, 9):

        def stop(found: SearchState, after: int = after) -> None:
            if found.evaluations == after:
                raise KeyboardInterrupt

        found = network.search(progress=stop)
        assert found.interrupted and found.evaluations == after
        met = [step for step in found.steps if step.met]
        assert (found.best is not None) == bool(met)
        assert all(len(found.best or ()) <= len(step.units) for step in met)


def test_allowance_and_the_usual_way() -> None:
    assert allowance(100, 1) == 20 and allowance(100, 20) == 46 and allowance(64, 10) == 26
    assert one_at_a_time(50) == 56 and one_at_a_time(1) == 2
