"""Unseen sets of the fault zoo: networks, faults and controls of each are in no other part, sound, and can be built.

Every run of a set builds all of its cases and looks at them; here it is one of each sort, with seeds that no figure
comes from.
"""

import ast
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fault_zoo
import numpy as np
import pytest
from numpy.typing import NDArray
from zoo import pictures, signals
from zoo.cases import UNSEEN_PAIRS, Built, Spec, build, drawn_networks
from zoo.fault import CONTROLS, FAMILIES, FAULTS, ROWS, Fault
from zoo.metrics import class_map
from zoo.mild import (
    CLEAR_DB,
    FAINTEST_DB,
    FATAL_DB,
    LEAST_DB,
    MOST_DB,
    OFF_DB,
    clear_loss,
    severe_loss,
    sqnr,
    wanted_loss,
)
from zoo.networks import FRESH_NETWORKS, NETWORKS, REAL_NETWORKS, known_network
from zoo.patient import healthy, standing
from zoo.pictures import (
    acres,
    beads,
    fabrics,
    kites,
    mazes,
    moths,
    orchards,
    plots,
    prints,
    reefs,
    signatures,
    signs,
    slides,
    weaves,
)
from zoo.quantizing import run
from zoo.signals import (
    bells,
    dials,
    groves,
    hearts,
    kilns,
    last_words,
    machines,
    orders,
    pens,
    solids,
    swirls,
    tables,
    trips,
    webs,
    words,
)

#: Sets that are whole.
SETS = "lmno"
#: Not every kind costs something with the settings that one seed draws.
SEEDS = (11, 12, 13)
#: Of some sets, a kind and a control that are built.
BUILT = {
    "e": ("cut-at-the-first-gap", "ends-on-round-numbers"),
    "f": ("mean-over-a-padded-length", "hardly-a-percentile"),
}


def names_of(rows: Mapping[str, Fault], *sets: str) -> set[str]:
    return {name for name, row in rows.items() if row.set in sets}


def test_a_set_is_in_no_other_part_and_covers_what_it_should() -> None:
    parts = ("all", "real", *fault_zoo.UNSEEN)
    specs = {part: fault_zoo.chosen(part, "*", 200) for part in parts}
    for letter in "cdeflmno":
        own, controls, kinds = FRESH_NETWORKS[letter], names_of(CONTROLS, letter), names_of(FAULTS, letter)
        others = [spec for part in parts if part != f"unseen-{letter}" for spec in specs[part]]
        earlier = {spec.network for part in parts[: parts.index(f"unseen-{letter}")] for spec in specs[part]}
        assert not set(own) & (earlier | set(NETWORKS) | set(REAL_NETWORKS)), letter
        assert not controls & {spec.control for spec in others}, letter
        assert not kinds & {kind for spec in others for kind in spec.kinds}, letter
        if letter in SETS:
            assert len(kinds) >= 30 and len(controls) >= 10, letter
            assert {FAULTS[kind].family for kind in kinds} >= set(FAMILIES) - {"runtime"}, letter
        assert all(network.path.stat().st_size <= 300_000 for network in own.values()), letter


def test_each_seed_draws_all_kinds_and_controls() -> None:
    for letter in SETS:
        known = names_of(FAULTS | CONTROLS, letter)
        drawn = {seed: fault_zoo.chosen(f"unseen-{letter}", "*", seed) for seed in (None, 1, 200)}
        for own in drawn.values():
            assert {spec.control or spec.kinds[0] for spec in own if spec.group != "double"} == known, letter
            assert {spec.network for spec in own} == set(FRESH_NETWORKS[letter]), letter
            assert all(known_network(spec.network).unseen and not spec.tuning for spec in own), letter
            assert len({spec.name for spec in own}) == len(own), letter
        assert {spec.name for spec in drawn[1]} != {spec.name for spec in drawn[200]}, letter


def test_pairs_are_of_their_set_and_have_a_network_in_common() -> None:
    assert set(UNSEEN_PAIRS) == set(SETS)
    for letter, pairs in UNSEEN_PAIRS.items():
        assert all({FAULTS[kind].set for kind in pair} == {letter} for pair in pairs), letter
        specs = [spec for spec in fault_zoo.chosen(f"unseen-{letter}", "double", 200) if spec.group == "double"]
        assert [spec.kinds for spec in specs] == list(pairs)
        for spec in specs:
            assert all(spec.network in (FAULTS[kind].networks or FRESH_NETWORKS[letter]) for kind in spec.kinds)


def test_the_table_names_networks_of_its_set() -> None:
    assert all(set(row.networks) <= set(FRESH_NETWORKS[row.set]) for row in ROWS if row.networks)
    assert len({row.kind for row in ROWS}) == len(ROWS)


def test_samples_follow_from_the_seed() -> None:
    made: list[Callable[..., Sequence[NDArray[Any]]]] = [
        *(plots, words, tables),
        *(beads, machines, prints, weaves),
        *(last_words, orders, signatures, solids, swirls),
        *(dials, fabrics, groves, mazes, webs),
        *(signs, slides, trips),
        *(kites, orchards, pens),
        *(acres, bells, kilns),
        *(hearts, moths, reefs),
    ]
    for make in made:
        first, again, other = (make(np.random.default_rng(seed), 4) for seed in (1, 1, 2))
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True)), make
        assert not np.array_equal(first[0], other[0]), make


def test_no_network_takes_a_constant_of_another() -> None:
    for module in (pictures, signals):
        parsed = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
        targets = (target for node in parsed.body if isinstance(node, ast.Assign) for target in node.targets)
        names = Counter(name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
        assert not [name for name, times in names.items() if times > 1], module.__name__


def test_a_pixel_whose_score_is_no_number_has_no_class() -> None:
    scores = np.stack([np.zeros((1, 2, 2)), np.ones((1, 2, 2))], 1)
    scores[0, :, 0, 0] = np.nan
    assert class_map(scores)[0].tolist() == [[-1, 1], [1, 1]]


def test_losses_reach_from_few_to_many_decibels() -> None:
    """A third of the severe ones is mild."""
    assert wanted_loss(0.1) == LEAST_DB and wanted_loss(30) == pytest.approx(MOST_DB)
    assert LEAST_DB < wanted_loss(1.0) < wanted_loss(3.0) < MOST_DB
    assert clear_loss(0.1) == CLEAR_DB > 6 and clear_loss(30) == pytest.approx(MOST_DB)
    losses = np.array([severe_loss(strength) for strength in np.geomspace(0.1, 30, 300)])
    assert losses[0] == pytest.approx(FAINTEST_DB) and losses[-1] == pytest.approx(FATAL_DB)
    assert (np.diff(losses) > 0).all()
    assert 0.25 < (losses < MOST_DB * 0.75).mean() < 0.4


@pytest.mark.nightly
def test_a_sound_quantization_does_not_hurt() -> None:
    for network in (network for networks in FRESH_NETWORKS.values() for network in networks.values()):
        found = standing(healthy(network))
        assert not found.hurts and (found.float_score is None or found.float_score > 0.8), network.name


@pytest.mark.nightly
def test_a_mild_fault_keeps_the_function_and_costs_what_it_should() -> None:
    sound = healthy(FRESH_NETWORKS["c"]["keywords"]).with_(strength=3.0)
    ill = FAULTS["bound-far-above"].apply(sound)
    (expected,), (given,) = (run(p.network, p.model, p.validation[:32]) for p in (sound, ill))
    np.testing.assert_allclose(given, expected, atol=0.002 * np.abs(expected).max())
    assert sqnr(sound) - sqnr(ill) == pytest.approx(wanted_loss(3.0), abs=OFF_DB)
    assert ill.places


def first_built(specs: Any, folder: Path) -> Built:
    """The first case that has a place in its network, and costs something there."""
    built = (build(spec, folder) for spec in specs)
    return next(case for case in built if case.status not in ("inapplicable", "unhealed"))


@pytest.mark.nightly
def test_a_kind_costs_something_and_heals_and_a_control_costs_nothing(tmp_path: Path) -> None:
    for letter, (kind, control) in BUILT.items():
        drawn = ((seed, network) for seed in SEEDS for network in drawn_networks(letter, kind, seed))
        ill = first_built((Spec(network, (kind,), seed=seed) for seed, network in drawn), tmp_path)
        assert ill.status != "broken", ill.reason
        assert max(ill.recovery_db, ill.recovery_worst_db) >= LEAST_DB - 1 and not ill.healed.hurts, kind
        networks = CONTROLS[control].networks or FRESH_NETWORKS[letter]
        sound = first_built((Spec(network, control=control, seed=SEEDS[0]) for network in networks), tmp_path)
        assert sound.status == "control", control
