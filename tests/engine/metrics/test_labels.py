"""Labels that do not fit the model's classes are told apart, and labels that do are left alone."""

import itertools

import numpy as np
import pytest

from quantmedic.api.rulebase import load_rulebase
from quantmedic.engine.case.facts import MetricFacts
from quantmedic.engine.formulas.task_metric import odd_set_reading
from quantmedic.engine.metrics.labels import chance_agreement, fit_of_labels

MARGIN = 0.05
SLIGHT = 0.2


def drawn(right, classes=10, samples=600, seed=1):
    """Labels, and predictions that are right so often."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, samples)
    predicted = np.where(rng.random(samples) < right, labels, rng.integers(0, classes, samples))
    return labels, predicted, rng.random(samples) < 0.5


def fit(labels, predicted, halves):
    return fit_of_labels(labels, predicted, halves, MARGIN, SLIGHT)


def test_labels_that_fit_and_shifted_ones_that_name_what_is_to_be_added() -> None:
    assert [fit(*drawn(right)).fault for right in (0.3, 0.7, 1.0)] == ["none"] * 3
    for shift in (-1, 1):
        labels, predicted, halves = drawn(0.7)
        found = fit(labels - shift, predicted, halves)
        assert (found.fault, found.shift) == ("shifted", shift)
        assert found.share == pytest.approx((labels == predicted).mean())


def test_reordered_labels_are_found_and_counted_on_samples_that_the_order_did_not_see():
    labels, predicted, halves = drawn(0.7)
    order = np.array([3, 1, 4, 0, 5, 9, 2, 6, 8, 7])
    found = fit(order[labels], predicted, halves)
    assert found.fault == "reordered"
    assert found.share == pytest.approx((labels == predicted).mean(), abs=0.02)


def test_noise_is_no_order() -> None:
    """Of 300 classes and 400 samples, the best order fits most of the samples that it was made from."""
    for classes, samples in ((10, 600), (300, 400)):
        found = [fit(*drawn(0.0, classes, samples, seed)) for seed in range(5)]
        assert {own.fault for own in found if own is not None} == {"chance"}
        assert all(own.share is None for own in found if own is not None)


def test_few_samples_leave_it_open():
    labels, predicted, halves = drawn(0.35, classes=2, samples=40, seed=3)
    assert 0.2 < kappa(labels, predicted) < 0.4
    assert fit(labels, predicted, halves) is None


def test_a_model_that_is_hardly_better_than_a_guess_is_weak() -> None:
    """Its kappa decides, whatever the number of classes and samples."""
    for classes, samples, right in itertools.product((2, 5, 10, 100), (32, 400, 3000), (0.08, 0.15, 0.5)):
        labels, predicted, halves = drawn(right, classes, samples, seed=classes + samples)
        found = fit(labels, predicted, halves)
        is_weak = found is not None and found.fault in ("chance", "weak")
        assert is_weak == (kappa(labels, predicted) <= SLIGHT), (classes, samples, right)


def kappa(labels, predicted):
    """Cohen's, by its own formula."""
    right = (labels == predicted).mean()
    names = np.union1d(labels, predicted)
    chance = sum((labels == name).mean() * (predicted == name).mean() for name in names)
    return (right - chance) / (1 - chance)


def test_which_of_two_sets_is_wrong_is_told_by_right_answers_on_the_validation_set() -> None:
    base = load_rulebase()
    for kappa, dataset, said in [
        (0.9, "validation", "the representative set is prepared wrongly"),
        (0.4, "validation", "one of both sets is prepared wrongly"),
        (0.1, "validation", "the validation set is prepared wrongly, if not both"),
        (None, "validation", "labels of the validation set would tell which"),
        (0.9, "representative", "labels of the validation set would tell which"),
    ]:
        assert said in odd_set_reading(MetricFacts(kappa=kappa, dataset=dataset), base)


def test_samples_of_one_class_do_not_tell_a_good_model_from_one_that_always_says_the_same():
    labels, halves = np.full(200, 3), np.arange(200) % 2 == 0
    assert fit(labels, np.where(np.arange(200) % 20 == 0, 1, 3), halves) is None


def test_a_model_that_always_says_the_same_is_at_chance_and_a_good_one_of_rare_classes_is_not():
    labels = (np.arange(2000) % 20 == 0).astype(np.int64)
    halves = np.arange(2000) % 3 == 0
    always = fit(labels, np.zeros(2000, np.int64), halves)
    assert always.fault == "chance" and always.chance == pytest.approx(0.95)
    assert fit(labels, labels, halves).fault == "none"


def test_chance_agreement_by_hand():
    assert chance_agreement(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 5])) == pytest.approx((2 * 1 + 1 * 2) / 16)


def test_a_useful_model_of_a_rare_class_is_not_at_chance():
    """It is right on 93 % where a guess is right on 90 %, so that a margin of five points says nothing."""
    rng = np.random.default_rng(2)
    labels = (rng.random(3000) < 0.05).astype(np.int64)
    predicted = np.where(labels == 1, rng.random(3000) < 0.5, rng.random(3000) < 0.045).astype(np.int64)
    assert kappa(labels, predicted) > SLIGHT
    found = fit(labels, predicted, rng.random(3000) < 0.5)
    assert found is None or found.fault == "none"
