"""The third unseen set: its networks are small and sound, its faults and controls are in no other part."""

import fault_zoo
import numpy as np
import pytest
from zoo.cases import UNSEEN_CONTROLS, standing
from zoo.controls import CONTROLS
from zoo.fault import FAMILIES, FAULTS
from zoo.mild import LEAST_DB, MOST_DB, OFF_DB, sqnr, wanted_loss
from zoo.networks import FRESH_NETWORKS, NETWORKS, REAL_NETWORKS
from zoo.patient import healthy
from zoo.quantizing import run
from zoo.surgery import Inapplicable
from zoo.unseen_c.metrics import all_joints, class_map, peaks
from zoo.unseen_c.samples import arms, plots, tables, words

OWN = FRESH_NETWORKS["c"]
KINDS = [fault for fault in FAULTS.values() if fault.unseen == "c"]
#: Forms that change the float model without changing what it computes.
KEEPING = ["spike-at-the-corner", "through-odds", "joined-with-their-sum", "decades-of-rows", "distance-for-a-product"]


def test_networks_and_controls_are_in_no_other_part() -> None:
    specs = [spec for part in ("all", "real", "unseen-a", "unseen-b") for spec in fault_zoo.chosen(part, "*", 200)]
    assert not set(OWN) & ({spec.network for spec in specs} | set(NETWORKS) | set(REAL_NETWORKS))
    assert not set(UNSEEN_CONTROLS["c"]) & ({spec.control for spec in specs} | set(CONTROLS))
    own = fault_zoo.chosen("unseen-c", "*")
    assert {spec.network for spec in own} > set(OWN)
    assert all((NETWORKS | REAL_NETWORKS | OWN)[spec.network].unseen for spec in own)
    assert not any(spec.tuning for spec in own)


def test_the_set_covers_what_it_should() -> None:
    assert len(KINDS) >= 40 and len(UNSEEN_CONTROLS["c"]) >= 12
    assert {fault.family for fault in KINDS} >= set(FAMILIES) - {"runtime"}
    assert all(network.path.stat().st_size <= 250_000 for network in OWN.values())


@pytest.mark.parametrize("make", [arms, plots, words, tables])
def test_samples_follow_from_the_seed(make) -> None:
    first, again, other = (make(np.random.default_rng(seed), 4) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])


def test_joints_are_found_where_it_is_hottest() -> None:
    heat = np.zeros((2, 1, 24, 24))
    heat[:, 0, 3, 7] = 1
    np.testing.assert_array_equal(peaks(heat)[0], [[7.5, 3.5]])
    assert all_joints(peaks(heat), np.array([[[8.0, 3.0]], [[12.0, 3.5]]])).tolist() == [True, False]
    heat[0, 0, 0, 0] = np.nan
    assert all_joints(peaks(heat), peaks(heat)).tolist() == [False, True]
    assert class_map(np.stack([heat[:, 0], heat[:, 0] + 1], 1))[0, :2, 0].tolist() == [-1, 1]


def test_losses_reach_from_few_to_many_decibels() -> None:
    assert wanted_loss(0.1) == LEAST_DB and wanted_loss(30) == pytest.approx(MOST_DB)
    assert LEAST_DB < wanted_loss(1.0) < wanted_loss(3.0) < MOST_DB


@pytest.mark.thorough
@pytest.mark.parametrize("name", OWN)
def test_a_sound_quantization_does_not_hurt(name: str) -> None:
    found = standing(healthy(OWN[name]))
    assert not found.hurts and found.float_score > 0.8


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KEEPING)
@pytest.mark.parametrize("name", ["keywords", "mixer"])
def test_a_mild_fault_keeps_the_function_and_costs_what_it_should(name: str, kind: str) -> None:
    sound = healthy(OWN[name]).with_(strength=3.0)
    try:
        ill = FAULTS[kind].apply(sound)
    except Inapplicable:
        pytest.skip("no place for it")
    (expected,), (given,) = (run(p.network, p.model, p.validation[:32]) for p in (sound, ill))
    np.testing.assert_allclose(given, expected, atol=0.002 * np.abs(expected).max())
    assert sqnr(sound) - sqnr(ill) == pytest.approx(wanted_loss(3.0), abs=OFF_DB)
    assert ill.places
