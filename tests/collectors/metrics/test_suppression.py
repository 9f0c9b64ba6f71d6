"""Suppression is that of the plain loop, whatever the boxes."""

import numpy as np
import pytest
from builders.properties import examples
from builders.suppression import loop
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.collectors.metrics.box_readings import suppress


def drawn(seed, count, classes, crowded=False):
    """Boxes on a coarse lattice with few scores, so that overlaps and scores are equal now and then."""
    rng = np.random.default_rng(seed)
    corner = rng.integers(0, 6 if crowded else 40, (count, 2)) / 2
    boxes = np.concatenate([corner, corner + rng.integers(0, 16, (count, 2)) / 2], axis=1)
    return boxes, rng.integers(1, 12, count) / 12, rng.integers(0, classes, count).astype(float)


@examples(60)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(0, 90),
    classes=st.integers(1, 4),
    overlap=st.sampled_from([0.0, 0.25, 0.45, 0.5, 0.7, 1.0]),
    most=st.sampled_from([1, 7, 300]),
)
def test_suppression_is_that_of_the_plain_loop(seed, count, classes, overlap, most):
    given_boxes = drawn(seed, count, classes)
    assert suppress(*given_boxes, overlap, most).tolist() == loop(*given_boxes, overlap, most)


@pytest.mark.thorough
@pytest.mark.parametrize("crowded", [False, True])
def test_boxes_of_several_blocks(crowded):
    """More boxes than are compared at a time."""
    given_boxes = drawn(5, 700, 3, crowded)
    for most in (20, 700):
        assert suppress(*given_boxes, 0.6, most).tolist() == loop(*given_boxes, 0.6, most)


def test_classes_do_not_suppress_each_other():
    boxes = np.tile([[0.0, 0.0, 4.0, 4.0]], (3, 1))
    found = suppress(boxes, np.array([0.5, 0.9, 0.7]), np.array([0.0, 1.0, 1.0]), 0.7, 300)
    assert found.tolist() == [1, 0]
