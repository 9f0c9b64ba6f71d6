"""The fifth unseen set: its networks are small and sound, its faults and controls in no other part."""

from itertools import product

import fault_zoo
import pytest
from builders.unseen_sets import check_apart, check_control, check_kind, check_samples, check_sound_quantization
from zoo.cases import UNSEEN_CONTROLS, Spec
from zoo.fault import FAMILIES, FAULTS
from zoo.networks import FRESH_NETWORKS, known_network
from zoo.unseen_e.plan import FITS, drawn_pairs
from zoo.unseen_e.samples import last_words, orders, signatures, solids, swirls

KINDS = {name: fault for name, fault in FAULTS.items() if fault.unseen == "e"}
OWN = FRESH_NETWORKS["e"]
#: Seeds that no figure comes from: not every kind costs something with the settings that one draws.
SEEDS = (11, 12, 13)
#: What is built in a test run: a few of each, since all of them take minutes.
SOME = ("pair-with-itself", "half-of-the-cloud", "siblings-on-one-scale")


def test_networks_and_controls_are_in_no_other_part() -> None:
    parts = ("all", "real", "unseen-a", "unseen-b", "unseen-c", "unseen-d")
    check_apart("e", parts)


def test_the_set_covers_what_it_should() -> None:
    assert len(KINDS) >= 40 and len(UNSEEN_CONTROLS["e"]) >= 14
    assert {fault.family for fault in KINDS.values()} == set(FAMILIES)
    assert all(network.path.stat().st_size <= 300_000 for network in OWN.values())


@pytest.mark.parametrize("seed", [None, 1, 200])
def test_each_seed_draws_all_kinds_and_controls(seed: int | None) -> None:
    own = fault_zoo.chosen("unseen-e", "*", seed)
    assert {spec.control or spec.kinds[0] for spec in own} == {*KINDS, *UNSEEN_CONTROLS["e"]}
    assert {spec.network for spec in own} == set(OWN)
    assert all(known_network(spec.network).unseen and not spec.tuning for spec in own)
    assert len({spec.name for spec in own}) == len(own) == len(drawn_pairs(seed)) <= 84


def test_seeds_draw_different_networks() -> None:
    assert drawn_pairs(1) == drawn_pairs(1) != drawn_pairs(2)


def test_places_name_what_there_is() -> None:
    assert set(FITS) <= {*KINDS, *UNSEEN_CONTROLS["e"]}
    assert all(isinstance(found, tuple) and found and set(found) <= set(OWN) for found in FITS.values())


@pytest.mark.parametrize("make", [last_words, orders, signatures, solids, swirls])
def test_samples_follow_from_the_seed(make) -> None:
    check_samples(make)


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
@pytest.mark.parametrize("name", UNSEEN_CONTROLS["e"])
def test_controls_cost_nothing(name: str, tmp_path) -> None:
    check_control((Spec(network, control=name, seed=SEEDS[0]) for network in FITS.get(name, OWN)), tmp_path)
