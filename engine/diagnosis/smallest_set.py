"""The smallest set of layers that must stay in float so that a goal is met, found on sets and in few evaluations.

Noise of many layers adds up at the output about as powers do. So one pass over the samples quantizes a few other layers
in every batch, and the noise of the batches, regressed on what was quantized in them, ranks all layers at once. A batch
quantizes few layers, since the louder it is, the less exact is what it contributes. Evaluated sets enter the regression
too. Sets are chosen along the ranking, and none is trusted before it was evaluated as a whole.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: Units by index, left in float together.
Units = frozenset[int]
#: Share of the units that a batch quantizes for the ranking. Units louder by this factor than those at the edge of the
#: set are quantized less often, since their noise would hide that of the quiet ones.
DENSITY, HEADROOM = 0.1, 4.0
#: Evaluated sets weigh this much more than as many batches with random ones: they are what is searched.
TRUST = 3.0
#: Pull of every estimate towards an even share; spread of the rankings that are drawn when the best one has failed.
RIDGE, SPREAD = 1.0, 0.5
#: Rounds in which rows are weighed by the noise that is expected of them, and steps of the regression in each.
ROUNDS, STEPS = 4, 300
#: Noise that counts as none.
TINY = 1e-12
#: A batch counts at most as much as this many average ones.
LOUD = 4.0
#: Rankings drawn for one set that was not evaluated yet.
DRAWS = 20
#: A set that holds another one and is noisier by this share of the noise power is reported.
REVERSAL = 0.02


@dataclass(frozen=True)
class Evaluation:
    """One evaluation: a pass over all samples with one set in float.

    Attributes:
        noise: Noise power at the output by batch, ``[batches]``, in any unit that all passes share.
        value: The quantity that the goal limits: SQNR in dB, or drop of a metric.
        met: Whether the goal is met.
        tolerable: Share of this noise that would just meet the goal, estimated from the value.
    """

    noise: Floats
    value: float
    met: bool
    tolerable: float


@dataclass(frozen=True)
class EvaluatedSet:
    """A set that was evaluated; ``share`` is its noise over that with nothing in float, ``tolerated`` what may stay."""

    units: Units
    value: float
    share: float
    met: bool
    tolerated: float


@dataclass
class SearchState:
    """What a search has found, at any time.

    Attributes:
        steps: All evaluated sets, in order.
        evaluations: Passes over all samples, those for the ranking included.
        interrupted: Ctrl-C came before the end.
    """

    steps: list[EvaluatedSet] = field(default_factory=list)
    evaluations: int = 0
    interrupted: bool = False

    @property
    def best(self) -> Units | None:
        """The smallest set that met the goal, of equal ones the least noisy; None where none did."""
        met = [step for step in self.steps if step.met]
        return min(met, key=lambda step: (len(step.units), step.share)).units if met else None

    @property
    def reversals(self) -> list[tuple[EvaluatedSet, EvaluatedSet]]:
        """Pairs of evaluated sets of which the second holds the first, and yet is noisier."""
        return [
            (a, b) for a in self.steps for b in self.steps if a.units < b.units and b.share > (1 + REVERSAL) * a.share
        ]


def allowance(units: int, size: int) -> int:
    """Evaluations that a search for a set of this size may take."""
    return math.floor(max(units / 5, 2 * size + math.log2(units)))


def one_at_a_time(units: int) -> int:
    """Evaluations of the usual way: one per unit for the ranking, then bisection along it."""
    return units + math.ceil(math.log2(units + 1))


def smallest_set(
    units: int,
    evaluate: Callable[[Units], Evaluation],
    probe: Callable[[Sequence[Units]], Floats],
    *,
    seed: int = 0,
    progress: Callable[[SearchState], None] = lambda found: None,
) -> SearchState:
    """Search for the smallest set of units that must be left in float.

    Args:
        units: Their number.
        evaluate: One pass over all samples with one set in float.
        probe: One pass with another set for every batch; noise by batch as in ``Evaluation.noise``.
        seed: Seed of the random sets.
        progress: Called after every pass.
    """
    search = _Search(units, evaluate, probe, seed, progress)
    try:
        search.run()
    except KeyboardInterrupt:
        search.found.interrupted = True
    return search.found


class _Search:
    def __init__(
        self,
        units: int,
        evaluate: Callable[[Units], Evaluation],
        probe: Callable[[Sequence[Units]], Floats],
        seed: int,
        progress: Callable[[SearchState], None],
    ) -> None:
        self.found = SearchState()
        self._units, self._evaluate, self._probe, self._progress = units, evaluate, probe, progress
        self._rng = np.random.default_rng(seed)
        self._model = _NoiseModel(units)
        self._full = np.zeros(0)

    def run(self) -> None:
        if self._try(frozenset()).met or not self._full.any():
            return
        while True:
            best = self.found.best
            if best is None or self._affordable(2) < len(best):
                self._rank()
            chosen = self._next()
            if chosen is None or (not self._try(chosen).met and len(chosen) == self._units):
                return

    def _affordable(self, passes: int) -> int:
        """Size of the smallest set that so many more passes may be spent on."""
        needed = self.found.evaluations + passes
        return next(size for size in range(needed) if allowance(self._units, size) >= needed)

    def _try(self, chosen: Units) -> EvaluatedSet:
        outcome = self._evaluate(chosen)
        if not self.found.steps:
            self._full = outcome.noise
        share = float(outcome.noise.sum() / (self._full.sum() or 1.0))
        self.found.steps.append(EvaluatedSet(chosen, outcome.value, share, outcome.met, share * outcome.tolerable))
        self._model.add([chosen], np.array([share]), np.array([TRUST * len(self._full)]))
        self._count_pass()
        return self.found.steps[-1]

    def _rank(self) -> None:
        """One pass in which every batch quantizes other units, each of them over all batches as often as planned."""
        self._model.fit()
        shares, batches = self._model.shares, len(self._full)
        edge = np.sort(shares)[::-1][min(self._guess(), self._units - 1)]
        planned = DENSITY * np.minimum(1.0, HEADROOM * edge / shares)
        place = np.argsort(self._rng.random((self._units, batches)), axis=1)
        quantized = (place + self._rng.random((self._units, 1))) / batches < planned[:, np.newaxis]
        chosen = [frozenset(np.flatnonzero(~column).tolist()) for column in quantized.T]
        noise = np.divide(self._probe(chosen), self._full, out=np.zeros(batches), where=self._full > 0)
        # A batch that is loud by itself is a larger part of the whole, but no single one may decide.
        self._model.add(chosen, noise, np.minimum(self._full / self._full.mean(), LOUD))
        self._count_pass()

    def _count_pass(self) -> None:
        self.found.evaluations += 1
        self._progress(self.found)

    def _tolerated_share(self) -> float:
        """Share of the noise that may stay, estimated from the evaluation nearest to the goal."""
        steps = [step for step in self.found.steps if step.share > TINY]
        least = min((step.share for step in steps if not step.met), default=1.0)
        most = max((step.share for step in steps if step.met), default=0.0)
        near = min(steps, key=lambda step: abs(math.log(max(step.tolerated, TINY) / step.share)))
        if most <= near.tolerated <= least:
            return max(near.tolerated, TINY)
        return max(math.sqrt(least * max(most, least / 16)), TINY)

    def _guess(self) -> int:
        """Size of the smallest set along the ranking that should meet the goal."""
        rest = np.flip(np.append(0.0, np.cumsum(np.sort(self._model.shares))))
        return int(np.argmax(rest <= self._tolerated_share()))

    def _next(self) -> Units | None:
        """A set along the ranking: of the size that should do, or half-way between what failed and the best.

        Where the best is but one larger than what failed, another ranking is drawn, for the smaller set may only have
        been the wrong one. None where nothing new comes up, or no more passes are allowed.
        """
        self._model.fit()
        best, steps = self.found.best, self.found.steps
        size = self._guess()
        if best is None:
            # At least twice as far with every miss, so that all units in float are reached soon.
            most = max(len(step.units) for step in steps)
            return self._model.loudest(min(max(size, most + 2 ** (len(steps) - 1)), self._units))
        failed = max(k for k in range(len(best)) if self._is_hopeless(self._model.loudest(k)))
        if not failed < size < len(best):
            size = (failed + len(best)) // 2
        size = max(size, self._affordable(1), 1)
        if failed + 1 == len(best):
            size = max(size, failed)
        tried = {step.units for step in steps}
        draws = (self._model.loudest(size, self._rng if draw else None) for draw in range(DRAWS))
        return next((chosen for chosen in draws if chosen not in tried), None) if size < len(best) else None

    def _is_hopeless(self, chosen: Units) -> bool:
        """Part of a set that has failed."""
        return any(chosen <= step.units for step in self.found.steps if not step.met)


class _NoiseModel:
    """Shares of the noise by unit, from what was quantized and how noisy it was."""

    def __init__(self, units: int) -> None:
        self.shares: Floats = np.full(units, 1.0 / max(units, 1))
        self._quantized = np.zeros((0, units))
        self._noise, self._weight = np.zeros(0), np.zeros(0)
        self._precision = np.eye(units)

    def add(self, chosen: Sequence[Units], noise: Floats, weight: Floats) -> None:
        """Rows: the units in float, the noise in shares of that with none, and how much the row counts."""
        rows = np.ones((len(chosen), len(self.shares)))
        for row, units in zip(rows, chosen, strict=True):
            row[list(units)] = 0.0
        self._quantized = np.concatenate([self._quantized, rows])
        self._noise = np.concatenate([self._noise, noise])
        self._weight = np.concatenate([self._weight, weight])

    def fit(self) -> None:
        """Least squares without negative shares, by multiplicative updates (Lee and Seung 2001).

        A row's error grows with its noise: the noisier it should be, the less it counts.
        """
        rows, even = self._quantized, 1.0 / len(self.shares)
        for _ in range(ROUNDS):
            weighed = rows.T * (self._weight / np.maximum(rows @ self.shares, even / 2) ** 2)
            pull = RIDGE / (self.shares + even) ** 2
            self._precision, towards = weighed @ rows + np.diag(pull), weighed @ self._noise + pull * even
            for _ in range(STEPS):
                self.shares = np.maximum(self.shares * towards / (self._precision @ self.shares), TINY)

    def loudest(self, size: int, rng: np.random.Generator | None = None) -> Units:
        """The units with the largest shares; with a generator, of shares drawn as they may also be."""
        shares = self.shares
        if rng is not None:
            spread = np.linalg.cholesky(np.linalg.inv(self._precision))
            shares = shares + SPREAD * spread @ rng.standard_normal(len(shares))
        return frozenset(np.argsort(-shares, kind="stable")[:size].tolist())
