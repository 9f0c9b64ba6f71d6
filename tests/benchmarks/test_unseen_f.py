"""The sixth unseen set: its networks are small and sound, its faults and controls in no other part."""

from itertools import product

import fault_zoo
import pytest
from builders.unseen_sets import check_apart, check_control, check_kind, check_samples, check_sound_quantization
from zoo.cases import UNSEEN_CONTROLS, Spec
from zoo.fault import FAMILIES, FAULTS
from zoo.networks import FRESH_NETWORKS, known_network
from zoo.unseen_f.plan import FITS, drawn_pairs
from zoo.unseen_f.samples import dials, fabrics, groves, mazes, webs

KINDS = {name: fault for name, fault in FAULTS.items() if fault.unseen == "f"}
OWN = FRESH_NETWORKS["f"]
#: Seeds that no figure comes from: not every kind costs something with the settings that one draws.
SEEDS = (11, 12, 13)
#: What is built in a test run: one kind in six that harms.
SOME = sorted(name for name, fault in KINDS.items() if fault.harms)[::6]


def test_networks_and_controls_are_in_no_other_part() -> None:
    parts = ("all", "real", *(part for part in fault_zoo.UNSEEN if part != "unseen-f"))
    check_apart("f", parts)


def test_the_set_covers_what_it_should() -> None:
    assert len(KINDS) >= 45 and len(UNSEEN_CONTROLS["f"]) >= 15
    assert {fault.family for fault in KINDS.values()} == set(FAMILIES)
    assert all(network.path.stat().st_size <= 100_000 for network in OWN.values())


@pytest.mark.parametrize("seed", [None, 1, 200])
def test_each_seed_draws_all_kinds_and_controls(seed: int | None) -> None:
    own = fault_zoo.chosen("unseen-f", "*", seed)
    assert {spec.control or spec.kinds[0] for spec in own} == {*KINDS, *UNSEEN_CONTROLS["f"]}
    assert {spec.network for spec in own} == set(OWN)
    assert all(known_network(spec.network).unseen and not spec.tuning for spec in own)
    assert len({spec.name for spec in own}) == len(own) == len(drawn_pairs(seed)) <= 84


def test_seeds_draw_different_networks() -> None:
    assert drawn_pairs(1) == drawn_pairs(1) != drawn_pairs(2)


def test_places_name_what_there_is() -> None:
    assert set(FITS) <= {*KINDS, *UNSEEN_CONTROLS["f"]}
    assert all(isinstance(found, tuple) and found and set(found) <= set(OWN) for found in FITS.values())


@pytest.mark.parametrize("make", [dials, fabrics, groves, mazes, webs])
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
@pytest.mark.parametrize("name", sorted(UNSEEN_CONTROLS["f"])[::6])
def test_controls_cost_nothing(name: str, tmp_path) -> None:
    check_control((Spec(network, control=name, seed=SEEDS[0]) for network in FITS.get(name, OWN)), tmp_path)
