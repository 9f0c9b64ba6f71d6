"""What the gate's statistics promise, by simulation: how often a drop is called a regression, on how many samples.

Runs of two models on labelled samples are drawn with a real drop and a discordance (share of samples that only one of
both gets right), and judged by the functions that ``quantmedic check`` uses. Printed as Markdown:

1. shares of REGRESSION, INSUFFICIENT_DATA and ACCEPT over samples and discordance, at no drop, at a drop of the limit
   and at twice the limit;
2. the largest share of REGRESSION at a drop of the limit, which may be 2.5 % and what chance adds, for the interval in
   use and for those that it was chosen over;
3. the share of drops of twice the limit that are found with as many samples as the tool proposes, given the true
   discordance, and given that of a pilot sample;
4. the same level for other metrics, by the seeded bootstrap.

A drop adds losses to what a harmless model of the given discordance loses and gains.

How to run, from the repository root (a minute; the same seed, the same numbers)::

    python benchmarks/power.py
    python benchmarks/power.py --runs 2000 --limit 0.005
"""

import argparse
import math
from collections.abc import Callable, Iterable
from statistics import NormalDist
from typing import Any

import numpy as np

from quantmedic.engine.formulas.power import power, sizes_of_counts, sizes_of_interval
from quantmedic.engine.metrics.paired import drop_interval, null_moments, score_interval

SAMPLES = (100, 300, 1000, 3000, 10000, 20000)
#: Of a model without a drop; 0: whatever it changes is a loss.
DISCORDANCES = (0.0, 0.005, 0.02, 0.1, 0.3)
LIMITS = (0.002, 0.005, 0.01, 0.02, 0.05)
PILOTS = (100, 1000)
PROMISED = 0.025
Array = Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000, help="simulated runs of each point")
    parser.add_argument("--bootstraps", type=int, default=200, help="simulated runs of each point of the bootstrap")
    parser.add_argument("--limit", type=float, default=0.01, help="limit of the power curve, as a share")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = Draw(np.random.default_rng(arguments.seed), arguments.runs)
    curve(draw, arguments.limit)
    level(draw)
    proposals(draw)
    bootstrap(draw.rng, arguments.bootstraps)


class Draw:
    """Simulated runs: losses and gains of each."""

    def __init__(self, rng: np.random.Generator, runs: int):
        self.rng, self.runs = rng, runs

    def counts(self, samples: int, drop: float, discordance: float) -> tuple[Array, Array]:
        gain = discordance / 2
        losses, gains, _ = self.rng.multinomial(samples, [gain + drop, gain, 1 - discordance - drop], self.runs).T
        return losses, gains

    def verdicts(self, samples: int, drop: float, discordance: float, limit: float) -> tuple[float, float, float]:
        """Shares of REGRESSION, INSUFFICIENT_DATA and ACCEPT."""
        low, high = judged(score_interval, *self.counts(samples, drop, discordance), samples)
        regression, accept = float((low > limit).mean()), float((high <= limit).mean())
        return regression, 1 - regression - accept, accept


def judged(
    method: Callable[..., tuple[Array, Array]], losses: Array, gains: Array, samples: int
) -> tuple[Array, Array]:
    """Intervals of all runs; equal counts are judged once."""
    pairs, inverse = np.unique(losses * (samples + 1) + gains, return_inverse=True)
    low, high = method(pairs // (samples + 1), pairs % (samples + 1), samples)
    return low[inverse], high[inverse]


def curve(draw: Draw, limit: float) -> None:
    print(f"## Power at a limit of {100 * limit:g} points\n")
    print(f"REGRESSION / INSUFFICIENT_DATA / ACCEPT in % of {draw.runs} runs, confidence 95 %.\n")
    drops = (0.0, limit, 2 * limit)
    heads = [f"drop {100 * drop:g}" for drop in drops]
    table(("discordance at no drop", "samples", *heads, "largest error of `power`"), curve_rows(draw, limit, drops))


def curve_rows(draw: Draw, limit: float, drops: Iterable[float]) -> Iterable[list[str]]:
    for discordance in DISCORDANCES:
        for samples in SAMPLES:
            found = [draw.verdicts(samples, drop, discordance, limit) for drop in drops]
            guessed = [power(samples, drop, limit, discordance + drop) for drop in drops]
            error = np.abs(np.array(found) - np.array(guessed)).max()
            cells = [" / ".join(f"{100 * share:.1f}" for share in shares) for shares in found]
            yield [f"{100 * discordance:g} %", str(samples), *cells, f"{100 * error:.1f}"]


def level(draw: Draw) -> None:
    """The largest share of wrong verdicts at a drop of the limit, over limits, samples and discordances."""
    methods: dict[str, Callable[..., tuple[Array, Array]]] = {
        "in use: Tango's, corrected": score_interval,
        "Tango 1998": tango,
        "Newcombe 1998, method 10": newcombe,
    }
    worst = {name: [(0.0, ""), (0.0, "")] for name in methods}
    means: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
    for limit in LIMITS:
        for discordance in DISCORDANCES:
            for samples in SAMPLES:
                losses, gains = draw.counts(samples, limit, discordance)
                where = (
                    f"{samples} samples, limit {100 * limit:g} points, discordance {100 * (discordance + limit):g} %"
                )
                for name, method in methods.items():
                    low, high = judged(method, losses, gains, samples)
                    wrong = float((low > limit).mean()), float((high < limit).mean())
                    means[name].append(wrong)
                    worst[name] = [max(old, (new, where)) for old, new in zip(worst[name], wrong, strict=True)]
    points = len(LIMITS) * len(DISCORDANCES) * len(SAMPLES)
    # Of so many points, the largest lies about so far above what they all share.
    chance = PROMISED + NormalDist().inv_cdf(1 - 0.05 / points) * math.sqrt(PROMISED * (1 - PROMISED) / draw.runs)
    print(f"\n## Wrong verdicts at a drop of the limit: {points} points, {draw.runs} runs each\n")
    print(f"Promised: {100 * PROMISED:g} %; by chance the largest of {points} may reach {100 * chance:.2f} %.\n")
    rows = []
    for name, ((regression, there), (accept, elsewhere)) in worst.items():
        mean = np.mean(means[name], axis=0)
        figures = [f"{100 * regression:.2f} % ({there})", f"{100 * accept:.2f} % ({elsewhere})"]
        rows.append([name, *figures, " / ".join(f"{100 * share:.2f}" for share in mean)])
    table(("interval", "most REGRESSION", "most ACCEPT", "means, %"), rows)


def proposals(draw: Draw) -> None:
    """Whether the number of samples that is proposed finds twice the limit in 9 of 10 runs."""
    print("\n## Found at twice the limit with the samples proposed\n")
    rows, truths, pilots = [], [], []
    for limit in LIMITS:
        for discordance in DISCORDANCES:
            cells = []
            for pilot in (None, *PILOTS):
                found, accepted, size = proposed(draw, limit, discordance, pilot)
                (truths if pilot is None else pilots).append((found, accepted))
                cells.append(f"{size:.0f}: {100 * found:.1f} / {100 * accepted:.1f}")
            rows.append([f"{100 * limit:g}", f"{100 * discordance:g} %", *cells])
    for name, shares in (("true discordance", truths), ("that of a pilot", pilots)):
        found, accepted = np.min(shares, axis=0)
        print(f"- {name}: REGRESSION at twice the limit in at least {100 * found:.1f} % of the runs,")
        print(f"  ACCEPT at no drop in at least {100 * accepted:.1f} %")
    print("\nMedian of the proposal: found / accepted at no drop, in %. Pilots are drawn with twice the limit, too.\n")
    heads = [f"pilot of {pilot}" for pilot in PILOTS]
    table(("limit, points", "discordance at no drop", "discordance known", *heads), rows)


def proposed(draw: Draw, limit: float, discordance: float, pilot: int | None) -> tuple[float, float, float]:
    """Shares found and accepted with the proposal, and its median; each run has a pilot of its own."""
    if pilot is None:  # as good as known
        many = 10**9
        gains = np.full(draw.runs, round(many * discordance / 2))
        losses, now = gains + round(many * 2 * limit), many
    else:
        (losses, gains), now = draw.counts(pilot, 2 * limit, discordance), pilot
    # The proposal depends on the gains alone.
    values, first, inverse = np.unique(gains, return_index=True, return_inverse=True)
    sizes = [sizes_of_counts(int(losses[i]), int(gains[i]), now, limit, 0.95).at_twice for i in first]
    assert all(size is not None for size in sizes), (limit, discordance, values)
    samples = np.array(sizes, np.int64)[inverse]
    found, accepted = [], []
    for drop, into in ((2 * limit, found), (0.0, accepted)):
        gain = discordance / 2
        fresh = draw.rng.multinomial(samples, [gain + drop, gain, 1 - discordance - drop])
        low, high = score_interval(fresh[:, 0], fresh[:, 1], samples)
        into.append(float((low > limit).mean() if drop else (high <= limit).mean()))
    return found[0], accepted[0], float(np.median(samples))


#: Differences of one sample by name: (draw of an array of the given shape, mean). Worse is positive.
DIFFERENCES: dict[str, tuple[Callable[[np.random.Generator, tuple[int, int]], Array], float]] = {
    "normal": (lambda rng, shape: rng.normal(0, 1, shape), 0.0),
    "absolute errors, 30 % of noise on top": (
        lambda rng, shape: np.abs((e := rng.normal(0, 1, shape)) + 0.3 * rng.normal(0, 1, shape)) - np.abs(e),
        math.sqrt(2 / math.pi) * (math.sqrt(1.09) - 1),
    ),
    "few large losses (exponential)": (lambda rng, shape: rng.exponential(1, shape), 1.0),
    "few large gains (exponential)": (lambda rng, shape: -rng.exponential(1, shape), -1.0),
    "few huge gains (log-normal)": (lambda rng, shape: -np.exp(rng.normal(0, 1, shape)), -math.exp(0.5)),
    "gains on 5 % of the samples": (
        lambda rng, shape: (rng.random(shape) < 0.05) * -rng.exponential(1, shape),
        -0.05,
    ),
}


def bootstrap(rng: np.random.Generator, runs: int) -> None:
    chance = math.sqrt(PROMISED * (1 - PROMISED) / runs)
    print(f"\n## Other metrics: REGRESSION / ACCEPT at a drop of the limit, {runs} runs each\n")
    print(
        f"Seeded studentized bootstrap; promised: 2.5 %, one standard deviation of chance: {100 * chance:.1f} points.\n"
    )
    sizes = (50, 200)
    rows = []
    for name, (differences, mean) in DIFFERENCES.items():
        cells = []
        for samples in sizes:
            ends = [
                drop_interval(np.zeros(samples), row, higher_is_better=False)[1:]
                for row in differences(rng, (runs, samples))
            ]
            low, high = np.array(ends).T
            cells.append(f"{100 * (low > mean).mean():.1f} / {100 * (high < mean).mean():.1f}")
        rows.append([name, *cells])
    table(("differences", *(f"{samples} samples" for samples in sizes)), rows)
    found, accepted = [], []
    for _ in range(runs):
        limit, pilot = 0.05, 100
        errors, worse = absolute_errors(rng, pilot, 2 * limit)
        drop, low, high = drop_interval(errors, worse, higher_is_better=False)
        size = sizes_of_interval(drop, low, high, pilot, limit, 0.95).at_twice
        assert size is not None
        found.append(drop_interval(*absolute_errors(rng, size, 2 * limit), higher_is_better=False)[1] > limit)
        accepted.append(drop_interval(*absolute_errors(rng, size, 0.0), higher_is_better=False)[2] <= limit)
    shares = f"found {100 * np.mean(found):.1f} %, no drop accepted {100 * np.mean(accepted):.1f} %"
    print(f"\nWith the samples that a pilot of 100 proposes for mean absolute errors: twice the limit {shares}.")


def absolute_errors(rng: np.random.Generator, samples: int, drop: float) -> tuple[Array, Array]:
    """Of both models: the quantized one's differ by a normal deviate, and are larger by the drop on average."""
    errors = np.abs(rng.normal(0, 1, samples))
    return errors, errors + drop + 0.2 * rng.normal(0, 1, samples)


def tango(losses: Array, gains: Array, samples: int) -> tuple[Array, Array]:
    """Tango's interval, by bisection of the score test without corrections."""
    z = NormalDist().inv_cdf(0.975)

    def lower(b: Array, c: Array) -> Array:
        low, high = np.full(b.shape, -1.0), (b - c) / samples
        for _ in range(40):
            middle = (low + high) / 2
            variance, _ = null_moments(b, c, samples, middle)
            out = b - c - samples * middle > z * np.sqrt(samples * variance)
            low, high = np.where(out, middle, low), np.where(out, high, middle)
        return high

    return lower(losses, gains), -lower(gains, losses)


def newcombe(losses: Array, gains: Array, samples: int, float_share: float = 0.75) -> tuple[Array, Array]:
    """Newcombe's method 10; both models are right on what makes the float model's metric ``float_share``."""
    both = np.clip(np.round(float_share * samples) - losses, 0, samples - losses - gains)
    neither = samples - losses - gains - both
    first, second = (both + losses) / samples, (both + gains) / samples
    (low1, high1), (low2, high2) = (wilson(share, samples) for share in (first, second))
    product = (both + losses) * (gains + neither) * (both + gains) * (losses + neither)
    excess = both * neither - 1.0 * losses * gains
    excess = np.where(excess > 0, np.maximum(excess - samples / 2, 0), excess)
    phi = np.divide(excess, np.sqrt(product), out=np.zeros(len(excess)), where=product > 0)
    below = (first - low1) ** 2 - 2 * phi * (first - low1) * (high2 - second) + (high2 - second) ** 2
    above = (high1 - first) ** 2 - 2 * phi * (high1 - first) * (second - low2) + (second - low2) ** 2
    drop = first - second
    return drop - np.sqrt(np.maximum(below, 0)), drop + np.sqrt(np.maximum(above, 0))


def wilson(share: Array, samples: int) -> tuple[Array, Array]:
    z = NormalDist().inv_cdf(0.975)
    middle = share + z * z / (2 * samples)
    half = z * np.sqrt(share * (1 - share) / samples + z * z / (4 * samples * samples))
    return (middle - half) / (1 + z * z / samples), (middle + half) / (1 + z * z / samples)


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    heads = list(heads)
    print(f"| {' | '.join(heads)} |\n|{'|'.join('---' for _ in heads)}|")
    for row in rows:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
