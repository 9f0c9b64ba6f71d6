"""What one gets who does not look: the cause that tuning meets most often, and guesses in its proportions."""

import zlib
from collections import Counter
from collections.abc import Iterable

import numpy as np

from .row import Row, Said
from .scores import THREE, Answers


def frequencies(expected: Iterable[tuple[tuple[str, ...], ...]]) -> Counter[str]:
    """How often each cause is the best name of a fault."""
    return Counter(names[0] for faults in expected for names in faults)


def constant_guess(known: Counter[str]) -> Answers:
    """Always the three most frequent causes, in their order."""
    said = Said.by_name(name for name, _ in known.most_common(THREE))
    return lambda row: said


def random_guess(known: Counter[str]) -> Answers:
    """Three different causes, drawn in the proportions in which they occur; for a case always the same."""
    names = sorted(known)
    chances = np.array([known[name] for name in names], float)

    def answer(row: Row) -> Said:
        rng = np.random.default_rng(zlib.crc32(row.name.encode()))
        drawn = rng.choice(len(names), min(THREE, len(names)), replace=False, p=chances / chances.sum())
        return Said.by_name(names[i] for i in drawn)

    return answer
