"""What the tests of every unseen set of the fault zoo ask of its kinds, controls and networks."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import fault_zoo
import numpy as np
import pytest
from numpy.typing import NDArray
from zoo.cases import UNSEEN_CONTROLS, Spec, build, standing
from zoo.controls import CONTROLS
from zoo.fault import FAULTS
from zoo.mild import LEAST_DB
from zoo.networks import FRESH_NETWORKS, NETWORKS, REAL_NETWORKS, Network
from zoo.patient import healthy

#: Makes so many samples: inputs and labels.
Make = Callable[[np.random.Generator, int], Sequence[NDArray[Any]]]


def check_apart(letter: str, parts: Iterable[str]) -> None:
    """The networks, controls and kinds of a set are in none of the other parts."""
    specs = [spec for part in parts for spec in fault_zoo.chosen(part, "*", 200)]
    own = FRESH_NETWORKS[letter]
    assert not set(own) & ({spec.network for spec in specs} | set(NETWORKS) | set(REAL_NETWORKS))
    assert not set(UNSEEN_CONTROLS[letter]) & ({spec.control for spec in specs} | set(CONTROLS))
    assert not any(FAULTS[kind].unseen == letter for spec in specs for kind in spec.kinds)


def check_samples(make: Make) -> None:
    """They follow from the seed."""
    first, again, other = (make(np.random.default_rng(seed), 4) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])


def check_sound_quantization(network: Network) -> None:
    """It does not hurt, and the network itself is good."""
    found = standing(healthy(network))
    assert not found.hurts and (found.float_score is None or found.float_score > 0.8)


def check_kind(specs: Iterable[Spec], folder: Path) -> None:
    """A kind costs something and heals in one of its networks at least, drawn by the seed or not."""
    for spec in specs:
        built = build(spec, folder)
        if built.status in ("inapplicable", "unhealed"):
            continue
        assert built.status != "broken", built.reason
        assert max(built.recovery_db, built.recovery_worst_db) >= LEAST_DB - 1
        assert not built.healed.hurts
        return
    pytest.fail("it has no place in any network")


def check_control(specs: Iterable[Spec], folder: Path) -> None:
    """A control costs nothing in the first of its networks that has a place for it; runs of the zoo look at all."""
    for spec in specs:
        built = build(spec, folder)
        assert built.status in ("control", "inapplicable")
        if built.status == "control":
            return
    pytest.fail("it has no place in any network")
