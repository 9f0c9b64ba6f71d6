"""How long two calls take, measured in turn so that what slows the machine slows both."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from timeit import timeit

import numpy as np

from quantmedic.engine.case.facts import KernelFacts

#: Seconds that the runs of one model may take, and of its warm-up.
SECONDS, WARM_UP = 2.0, 0.3
#: Fewest and most rounds of one run each.
ROUNDS = (5, 500)


@dataclass(frozen=True)
class Profile:
    """What timing told of two models.

    Attributes:
        facts: Fields of ``ModelFacts``.
        kernels: Time by kind of operator, slowest first; empty where it was not measured.
        times: Milliseconds by the index of the quantized model's operator.
    """

    facts: dict[str, float]
    kernels: tuple[KernelFacts, ...] = ()
    times: dict[int, float] | None = None


def latency_facts(
    float_run: Callable[[], object],
    quantized_run: Callable[[], object],
    *,
    threads: int,
    batch: int,
    seconds: float = SECONDS,
) -> dict[str, float]:
    """The latency fields of ``ModelFacts``.

    Args:
        float_run: Runs the float model once.
        quantized_run: Runs the quantized model once.
        threads: Processor threads that they use, for the record.
        batch: Samples of one run, for the record.
        seconds: How long each may be measured; slow models take five runs longer.
    """
    floats, quantized = in_turn(float_run, quantized_run, seconds)
    facts: dict[str, float] = {}
    for name, times in (("float", floats), ("quantized", quantized)):
        low, median, high = (float(q) for q in np.percentile(np.array(times) * 1e3, (25, 50, 75)))
        keys = (f"latency_{name}_low_ms", f"latency_{name}_ms", f"latency_{name}_high_ms")
        facts |= dict(zip(keys, (low, median, high), strict=True))
    return facts | {
        "latency_ratio": facts["latency_quantized_ms"] / facts["latency_float_ms"],
        "latency_runs": len(floats),
        "latency_threads": threads,
        "latency_batch": batch,
    }


def in_turn(a: Callable[[], object], b: Callable[[], object], seconds: float) -> tuple[list[float], list[float]]:
    """Seconds of each run of both, as many of the one as of the other; each goes first every other time."""
    for call in (a, b):
        _warm_up(call)
    times: tuple[list[float], list[float]] = ([], [])
    start = time.perf_counter()
    while len(times[0]) < ROUNDS[1]:
        if len(times[0]) >= ROUNDS[0] and time.perf_counter() - start >= 2 * seconds:
            break
        order: Sequence[int] = (0, 1) if len(times[0]) % 2 == 0 else (1, 0)
        for which in order:
            times[which].append(timeit((a, b)[which], number=1))
    return times


def _warm_up(call: Callable[[], object]) -> None:
    """Run until caches, allocators and clock rates have settled."""
    end = time.perf_counter() + WARM_UP
    for _ in range(ROUNDS[1]):
        call()
        if time.perf_counter() >= end:
            return
