"""The networks of the zoo: small, good at their tasks, sound when quantized, and apart where tuning must not look."""

import numpy as np
import pytest
from fault_zoo import chosen
from onnx import numpy_helper
from zoo import metrics
from zoo.fault import FAULTS
from zoo.metrics import character_errors, detections, directions, f_measure, read_digits
from zoo.networks import NETWORKS, REAL_NETWORKS
from zoo.patient import healthy, standing
from zoo.pictures import scenes, strips
from zoo.quantizing import run
from zoo.signals import sentences, sounds


def test_no_case_on_an_unseen_network_is_for_tuning() -> None:
    unseen = {name for name, network in (NETWORKS | REAL_NETWORKS).items() if network.unseen}
    assert unseen >= {"ocr", "squeeze", "denoiser", "sounds"}
    assert not unseen & {spec.network for spec in chosen("tuning", "*")}
    for part, networks in (("all", NETWORKS), ("real", REAL_NETWORKS)):
        assert not unseen & {spec.network for spec in chosen(part, "*", 3)}
        assert {spec.network for spec in chosen(part, "*", 200)} == set(networks)


def test_composed_samples_follow_from_the_seed() -> None:
    images, labels = NETWORKS["demo"].images("validation")
    for make in (
        lambda rng: scenes(rng, images, labels, 4),
        *(lambda rng, f=f: f(rng, 4) for f in (strips, sentences, sounds)),
    ):
        first, again, other = (make(np.random.default_rng(seed)) for seed in (1, 1, 2))
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
        assert not np.array_equal(first[0], other[0])


def test_a_detector_is_right_with_the_right_class_and_half_of_the_box() -> None:
    wanted = np.array([[[3, 0.1, 0.1, 0.5, 0.5], [-1] * 5, [-1] * 5]])
    near, other, off = (wanted.copy() for _ in range(3))
    near[0, 0, 1:] += 0.05
    other[0, 0, 0] = 4
    off[0, 0, 1:] += 0.2
    assert [f_measure(x, wanted)[0] for x in (wanted, near, other, off, np.full((1, 3, 5), -1.0))] == [1, 1, 0, 0, 0]
    dense = np.zeros((1, 49, 15))
    dense[0, 7, :5], dense[0, 7, 5 + 3] = (0.1, 0.1, 0.5, 0.5, 0.9), 0.8
    assert f_measure(detections(dense), wanted)[0] == 1


def test_repeated_digits_count_once_unless_a_blank_parts_them() -> None:
    steps = np.eye(11)[[[10, 1, 1, 10, 1, 2, 2, 10]]]
    found = read_digits(steps)
    assert found[0].tolist() == [1, 1, 2, -1, -1, -1, -1, -1]
    assert character_errors(found, np.array([[1, 1, 2, -1]]))[0] == 0
    assert character_errors(found, np.array([[1, 2, -1, -1]]))[0] == 1
    assert character_errors(found, np.array([[3, 4, 5, 6]]))[0] == 4


def test_directions_of_topics_are_at_right_angles() -> None:
    np.testing.assert_allclose(directions(32) @ directions(32).T, np.eye(32), atol=1e-12)


@pytest.mark.nightly
def test_a_sound_quantization_does_not_hurt() -> None:
    """Of one network for each task; a run of the zoo has all of them as controls."""
    for name in ("demo", "detector", "ocr", "sentence", "f0", "denoiser"):
        if (NETWORKS | REAL_NETWORKS)[name].available:
            found = standing(healthy((NETWORKS | REAL_NETWORKS)[name]))
            assert not found.hurts, name
            assert found.float_score is None or found.float_score > 0.6, name


def test_a_mask_is_found_where_it_is_stored_and_where_it_is_computed() -> None:
    for name in ("vit", "sentence"):
        sound = healthy(NETWORKS[name])
        ill = FAULTS["attention-mask"].apply(sound)
        changed = [
            min(numpy_helper.to_array(a).min(), numpy_helper.to_array(b).min())
            for a, b in zip(sound.model.graph.initializer, ill.model.graph.initializer, strict=True)
            if a != b
        ]
        assert changed and set(changed) == {-1e9}
        before, after = (p.task.answers(run(p.network, p.model, p.validation[:64])) for p in (sound, ill))
        assert (before == after).mean() > 0.95


@pytest.mark.thorough
def test_what_quantmedic_is_told_is_what_the_zoo_counts() -> None:
    """What the zoo calls right, and only that, has nearly the highest score of the metric."""
    for network in (NETWORKS[name] for name in ("detector", "ocr", "sentence", "f0")):
        if not network.available:
            continue
        inputs, labels = network.validation()
        outputs = run(network, network.model(), inputs)
        names = [value.name for value in network.model().graph.output]
        told = getattr(metrics, str(network.task.metric).split(":")[1])(dict(zip(names, outputs, strict=True)), labels)
        right = network.task.right(network.task.answers(outputs), labels)
        assert told[right].min() >= 0.5 and told[~right].max(initial=0) < 1, network.name
        assert told.mean() == pytest.approx(right.mean(), abs=0.2), network.name
