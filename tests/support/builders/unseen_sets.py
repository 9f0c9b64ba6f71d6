"""What the tests of every unseen set of the fault zoo ask of its kinds, controls and networks."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from zoo.cases import Spec, build, standing
from zoo.mild import LEAST_DB
from zoo.networks import Network
from zoo.patient import healthy


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
