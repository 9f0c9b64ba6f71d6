"""The fourth unseen set: its networks are small and sound, its faults and controls are in no other part."""

from itertools import product

import fault_zoo
import numpy as np
import pytest
from builders.unseen_sets import check_apart, check_control, check_kind, check_samples, check_sound_quantization
from zoo.cases import UNSEEN_CONTROLS, Spec
from zoo.fault import FAMILIES, FAULTS
from zoo.mild import FAINTEST_DB, FATAL_DB, MOST_DB, severe_loss
from zoo.networks import FRESH_NETWORKS, REAL_NETWORKS, known_network
from zoo.unseen_d.plan import FITS, PUBLISHED, drawn_pairs
from zoo.unseen_d.samples import bags, beads, machines, prints, weaves

KINDS = {name: fault for name, fault in FAULTS.items() if fault.unseen == "d"}
OWN = FRESH_NETWORKS["d"]
#: Seeds that no figure comes from: not every kind costs something with the settings that one draws.
SEEDS = (11, 12, 13)
#: One kind in four is built here: every run of the set builds all of them.
SOME = sorted(KINDS)[::4]


def test_networks_and_controls_are_in_no_other_part() -> None:
    parts = ("all", "real", "unseen-a", "unseen-b", "unseen-c")
    check_apart("d", parts)


def test_the_set_covers_what_it_should() -> None:
    assert len(KINDS) >= 40 and len(UNSEEN_CONTROLS["d"]) >= 12
    assert {fault.family for fault in KINDS.values()} >= set(FAMILIES) - {"runtime"}
    assert all(network.path.stat().st_size <= 300_000 for network in OWN.values())


@pytest.mark.parametrize("seed", [None, 1, 200])
def test_each_seed_draws_all_kinds_and_controls(seed: int | None) -> None:
    own = fault_zoo.chosen("unseen-d", "*", seed)
    assert {spec.control or spec.kinds[0] for spec in own} == {*KINDS, *UNSEEN_CONTROLS["d"]}
    assert {spec.network for spec in own} == {*OWN, *PUBLISHED}
    assert all(known_network(spec.network).unseen and not spec.tuning for spec in own)
    assert len({spec.name for spec in own}) == len(own) == len(drawn_pairs(seed))


def test_places_and_published_cases_name_what_there_is() -> None:
    known = {*KINDS, *UNSEEN_CONTROLS["d"]}
    assert set(FITS) <= known
    assert all(isinstance(found, tuple) and found and set(found) <= set(OWN) for found in FITS.values())
    assert set(PUBLISHED) <= set(REAL_NETWORKS) and {name for found in PUBLISHED.values() for name in found} <= known


@pytest.mark.parametrize("make", [bags, beads, machines, prints, weaves])
def test_samples_follow_from_the_seed(make) -> None:
    check_samples(make)


def test_a_third_of_severe_losses_is_mild() -> None:
    strengths = np.geomspace(0.1, 30, 300)
    losses = np.array([severe_loss(strength) for strength in strengths])
    assert losses[0] == pytest.approx(FAINTEST_DB) and losses[-1] == pytest.approx(FATAL_DB)
    assert (np.diff(losses) > 0).all()
    assert 0.25 < (losses < MOST_DB * 0.75).mean() < 0.4


@pytest.mark.thorough
@pytest.mark.parametrize("name", OWN)
def test_a_sound_quantization_does_not_hurt(name: str) -> None:
    check_sound_quantization(OWN[name])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", SOME)
def test_a_kind_costs_something_and_heals(kind: str, tmp_path) -> None:
    places = product(SEEDS, FITS.get(kind, OWN))
    check_kind((Spec(network, (kind,), seed=seed) for seed, network in places), tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(UNSEEN_CONTROLS["d"])[::4])
def test_controls_cost_nothing(name: str, tmp_path) -> None:
    check_control((Spec(network, control=name, seed=SEEDS[0]) for network in FITS.get(name, OWN)), tmp_path)
