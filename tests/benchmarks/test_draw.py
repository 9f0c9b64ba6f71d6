"""What a seed draws of the zoo's cases: the same for the same seed, other things for another."""

from dataclasses import replace
from pathlib import Path

import fault_zoo
import numpy as np
import pytest
from zoo.cases import Spec, build
from zoo.draw import LABELLED, STRONGEST, WEAKEST, case_seed, draw_recipes, draw_strength
from zoo.fault import FAULTS
from zoo.networks import NETWORKS, REAL_NETWORKS, VALIDATION
from zoo.paste import known, load_arrays
from zoo.patient import NORMAL, healthy
from zoo.quantizing import compare
from zoo.tasks import Task


def test_draws_follow_from_the_seed_and_the_case() -> None:
    assert case_seed(1, "demo/wide-ranges") == case_seed(1, "demo/wide-ranges")
    assert len({case_seed(seed, name) for seed in (1, 2) for name in ("demo/a", "demo/b")}) == 4
    assert list(draw_recipes(5)) == list(draw_recipes(5))
    assert list(draw_recipes(5))[-1] == NORMAL
    assert len({str(recipe) for seed in range(20) for recipe in draw_recipes(seed)}) > 10


def test_strengths_reach_from_harmless_to_fatal() -> None:
    drawn = [draw_strength(seed) for seed in range(200)]
    assert WEAKEST <= min(drawn) < 0.2 and 15 < max(drawn) <= STRONGEST
    assert np.median(np.log(drawn)) == pytest.approx(np.log(WEAKEST * STRONGEST) / 2, abs=0.5)


def test_samples_are_drawn_and_keep_their_labels() -> None:
    fixed, drawn = (Spec("demo", ("wide-ranges",), seed=seed).base for seed in (None, 7))
    (images, labels), (others, names) = fixed.validation(), drawn.validation()
    assert len(images) == VALIDATION and len(others) == drawn.labelled
    stored, stored_labels = fixed.pixels("validation")
    known = {image.tobytes(): label for image, label in zip(stored, stored_labels, strict=True)}
    pixels = drawn.pixels("validation")[0][: drawn.labelled]
    assert [known[image.tobytes()] for image in pixels] == names.tolist()
    assert labels.tolist() != names[: len(labels)].tolist()


def test_labels_are_few_many_or_none() -> None:
    drawn = {spec.base.labelled for seed in range(1, 4) for spec in fault_zoo.chosen("all", "demo/*", seed)}
    assert drawn == set(LABELLED) and 0 in drawn


def test_noise_tells_where_outputs_are_no_answers() -> None:
    reference = np.random.default_rng(0).normal(size=(50, 8))
    for noise, sound_db, hurts in (
        (0.1, None, False),
        (0.5, None, True),
        (0.1, 25.0, False),
        (0.1, 60.0, True),
        (0.05, 60.0, False),
    ):
        outputs = reference + noise * np.random.default_rng(1).normal(size=reference.shape)
        found = compare(Task(lambda outputs: outputs[0], None, None), [reference], [outputs], None)
        assert (found.agreement, found.score, found.float_score, found.proven_drop) == (None, None, None, False)
        assert replace(found, sound_db=sound_db).hurts == hurts, (noise, sound_db)


def test_places_are_drawn_from_the_seed_and_fixed_without_one() -> None:
    found = list("abcdefghij")
    assert healthy(NETWORKS["demo"]).pick(found, 0.25, 0.6) == ["c", "g"]
    picks = {tuple(healthy(Spec("demo", (), seed=seed).base).pick(found, 0.25, 0.6)) for seed in range(1, 6)}
    assert len(picks) > 2 and all(len(pick) == 2 for pick in picks)


def test_some_cases_are_chosen_by_chance() -> None:
    everything, some = (fault_zoo.chosen("all", "single", 101, sample) for sample in (None, 30))
    assert len(some) == 30 and set(some) < set(everything)
    assert some == fault_zoo.chosen("all", "single", 101, 30) != fault_zoo.chosen("all", "single", 102, 30)


def test_real_networks_are_a_part_of_their_own() -> None:
    real, everything = fault_zoo.chosen("real", "*"), fault_zoo.chosen("all", "*")
    assert {spec.network for spec in real} == set(REAL_NETWORKS)
    assert not any(spec.network in ("resnet8", "magika") for spec in everything)
    assert all(FAULTS[kind].set in ("tuning", "reporting") for spec in everything for kind in spec.kinds)
    assert {kind for spec in real for kind in spec.kinds} > {kind for spec in everything for kind in spec.kinds}


def test_unseen_kinds_are_in_no_other_part() -> None:
    sets = [{kind for s in fault_zoo.chosen(f"unseen-{which}", "*") for kind in s.kinds} for which in "abc"]
    seen = {kind for part in ("all", "real") for spec in fault_zoo.chosen(part, "*") for kind in spec.kinds}
    assert all(sets) and len(set().union(*sets)) == sum(map(len, sets)) and not set().union(*sets) & seen


@pytest.mark.thorough
def test_the_same_seed_builds_the_same_case(tmp_path: Path) -> None:
    spec = Spec("gru", ("narrow-range",), seed=4)
    first, second = (build(spec, tmp_path / name) for name in "ab")
    assert first.status in ("fault", "harmless")
    assert (first.before, first.healed, first.recipe) == (second.before, second.healed, second.recipe)
    assert (first.folder / "quantized.onnx").read_bytes() == (second.folder / "quantized.onnx").read_bytes()
    assert first.strength == draw_strength(case_seed(4, spec.name))


@pytest.mark.thorough
def test_the_expert_is_not_told_labels_that_are_not_drawn(tmp_path: Path) -> None:
    spec = Spec("gru", ("wide-ranges",), seed=1)
    assert spec.base.labelled == 0
    built = build(spec, tmp_path)
    assert built.usable or built.status == "harmless"
    assert built.before is not None and built.before.float_score is not None and not built.told_metric
    shown, everything = load_arrays(built.folder / "validation.npz"), known(built)
    assert set(everything) - set(shown) == {"labels"} and len(everything["labels"]) == VALIDATION
