"""What is read of the outputs of a detector, against the same computed plainly."""

import numpy as np
import pytest
from builders.metrics import detections
from builders.properties import examples
from builders.suppression import loop
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.collectors.metrics.box_labels import count_flat_boxes, label_layout, labelled_boxes
from quantmedic.collectors.metrics.box_readings import (
    BoxReading,
    Columns,
    Raw,
    ScoreKind,
    corners,
    describe_numbers,
    fitting_kinds,
    raw_boxes,
)
from quantmedic.collectors.metrics.metric import load_metric
from quantmedic.collectors.metrics.reading import Reading
from quantmedic.engine.errors import DataError


def decoded(array, columns, reading):
    """The detections of every sample."""
    return [reading.detect(raw) for raw in raw_boxes(columns, {"y": array}, len(array))]


def as_order(boxes, order):
    """Corners in another order."""
    left, top, right, bottom = np.moveaxis(boxes, -1, 0)
    columns = {
        "xyxy": (left, top, right, bottom),
        "yxyx": (top, left, bottom, right),
        "xywh": (left, top, right - left, bottom - top),
        "cxcywh": ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top),
    }[order]
    return np.stack(columns, axis=-1)


@examples(30)
@given(seed=st.integers(0, 2**32 - 1), order=st.sampled_from(["xyxy", "yxyx", "xywh", "cxcywh"]))
def test_orders_are_undone(seed, order):
    boxes = np.sort(np.random.default_rng(seed).uniform(0, 50, (9, 2, 2)), axis=1).reshape(9, 4)
    np.testing.assert_allclose(corners(as_order(boxes, order), order), boxes, atol=1e-12)


@examples(25)
@given(
    seed=st.integers(0, 2**32 - 1),
    cells=st.integers(1, 60),
    classes=st.integers(1, 4),
    axis=st.sampled_from([1, 2]),
    objectness=st.booleans(),
    masks=st.integers(0, 3),
)
def test_columns_are_read_as_the_plain_loop_reads_them(seed, cells, classes, axis, objectness, masks):
    """Every class whose score is above 0.001 is a detection, a class is suppressed by itself, the best 300 stay."""
    rng = np.random.default_rng(seed)
    start = 5 if objectness else 4
    array = rng.uniform(0, 1, (2, cells, start + classes + masks)).astype(np.float32)
    array[..., :4] = rng.integers(2, 20, (2, cells, 4))
    array[..., 4:] *= rng.random((2, cells, array.shape[2] - 4)) < 0.7
    columns = Columns("y", axis, (start, start + classes), 4 if objectness else None)
    # No two boxes of halves overlap by just so much: which side of the bound a tie falls on is rounding.
    reading = BoxReading("cxcywh", columns, overlap=0.7003, confidence=0.001)
    found = decoded(array if axis == 2 else array.swapaxes(1, 2), columns, reading)
    for own, sample in zip(found, array.astype(float), strict=True):
        rows = []
        for cell in sample:
            x, y, w, h = cell[:4]
            for k in range(classes):
                score = cell[start + k] * (cell[4] if objectness else 1)
                if score > 0.001:
                    rows.append((x - w / 2, y - h / 2, x + w / 2, y + h / 2, score, k))
        table = np.array(rows).reshape(-1, 6)
        kept = table[loop(table[:, :4], table[:, 4], table[:, 5], 0.7003, 300)]
        np.testing.assert_array_equal(np.column_stack([own.boxes, own.scores, own.classes]), kept)


def test_queries_have_their_best_class_and_no_suppression():
    array = np.array([[[5, 5, 2, 2, 0.2, 0.9], [5, 5, 2, 2, 0.8, 0.1], [5, 5, 2, 2, 0.0, 0.0005]]])
    columns = Columns("y", 2, (4, 6))
    (found,) = decoded(array, columns, BoxReading("cxcywh", columns, confidence=0.001))
    assert found.scores.tolist() == [0.9, 0.8] and found.classes.tolist() == [1, 0]
    assert found.boxes.tolist() == [[4, 4, 6, 6]] * 2


def test_a_class_may_stand_beside_its_score():
    array = np.array([[[1, 2, 3, 4, 0.5, 7]]])
    columns = Columns("y", 2, (4, 5), classes=5)
    (found,) = decoded(array, columns, BoxReading("xyxy", columns, factor=(10.0, 100.0)))
    assert found.boxes.tolist() == [[10, 200, 30, 400]] and found.scores.tolist() == [0.5]
    assert found.classes.tolist() == [7]


def test_what_is_left_to_the_application_is_named():
    boxes, logits = np.tile([1.0, 1, 3, 3], (1, 2, 1)), np.array([[[2.0, 0.0, 5.0], [1.0, 3.0, -9.0]]])
    (raw,) = raw_boxes(None, {"boxes": boxes, "logits": logits}, 1)
    sigmoid = BoxReading(kind=ScoreKind("sigmoid")).detect(raw)
    assert sigmoid.classes.tolist() == [2, 1] and sigmoid.scores[0] == pytest.approx(1 / (1 + np.exp(-5)))
    softmax = BoxReading(kind=ScoreKind("softmax", "last")).detect(raw)
    assert softmax.classes.tolist() == [0, 1]
    assert softmax.scores[0] == pytest.approx(np.exp(2) / (np.exp(2) + 1 + np.exp(5)))


@examples(30)
@given(seed=st.integers(0, 2**32 - 1), columns=st.integers(2, 6))
def test_a_column_of_no_object_is_no_class(seed, columns):
    """The same scores wherever that column stands; numbers of classes count on behind it, or are those of columns."""
    logits = np.random.default_rng(seed).normal(0, 3, (7, columns))
    plain = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(ScoreKind("softmax", "none").of(logits), plain)
    np.testing.assert_allclose(ScoreKind("softmax", "last").of(logits), plain[:, :-1])
    np.testing.assert_allclose(ScoreKind("softmax", "first").of(logits), plain[:, 1:])
    counted = ScoreKind("softmax", "class-0").of(logits)
    np.testing.assert_allclose(counted[:, 1:], plain[:, 1:])
    assert not counted[:, 0].any()
    found = BoxReading(kind=ScoreKind("given", "class-0")).detect(Raw(np.tile([0.0, 0, 1, 1], (7, 1)), plain, None))
    assert (found.classes >= 1).all()


def test_what_may_make_scores_is_told_by_the_numbers_and_the_options():
    for numbers, options, kinds in (
        ([[0.1, 0.2], [0.9, 0.1]], {}, [("given", "none")]),
        ([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], {}, [("given", "none"), ("given", "first")]),
        ([[0.1, 0.9], [0.2, 0.8], [0.7, 0.3]], {}, [("given", "none"), ("given", "last")]),
        ([[-3.0, 2.0], [-5.0, 4.0], [2.0, 0.0]], {}, [("sigmoid", "none"), ("softmax", "last")]),
        ([[5.0, -2.0], [5.0, -4.0], [0.0, 2.0]], {}, [("sigmoid", "none"), ("softmax", "first")]),
        ([[-3.0], [2.0]], {}, [("sigmoid", "none")]),
        ([[5.0, -2.0], [5.0, -4.0], [0.0, 2.0]], {"scores": "sigmoid"}, [("sigmoid", "none")]),
        (
            [[5.0, -2.0], [5.0, -4.0], [0.0, 2.0]],
            {"background": "class-0"},
            [("sigmoid", "class-0"), ("softmax", "class-0")],
        ),
        ([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], {"background": "none"}, [("given", "none")]),
    ):
        found = fitting_kinds([describe_numbers(np.array(numbers))], Reading("map", None, options))
        assert found == kinds, (numbers, options)


def test_a_number_that_is_none_leaves_the_sample_out():
    labels, outputs = detections(np.random.default_rng(0), samples=4, classes=2)
    scores = np.repeat(outputs["scores"][..., None], 2, axis=2)
    scores[2, 0, 1] = np.nan
    tally = load_metric("map").tally({"boxes": outputs["boxes"], "scores": scores}, labels)
    assert tally.known.tolist() == [True, True, False, True]


def test_memory_does_not_hold_what_was_not_detected():
    """A row per detection, at most 300 and 100 of a class."""
    rng = np.random.default_rng(1)
    array = rng.uniform(0.5, 1, (1, 6, 4000))
    array[:, :2], array[:, 2:4] = rng.uniform(0, 1e4, (1, 2, 4000)), 1
    columns = Columns("y", 1, (4, 6))
    (found,) = decoded(array, columns, BoxReading("cxcywh", columns, overlap=0.7, confidence=0.001))
    assert len(found.scores) == 300


# --- labels ----------------------------------------------------------------------------------------------------------


def yolo_of(labels, width, height):
    """Labels as the text files of YOLO have them."""
    centre, sides = (labels[..., :2] + labels[..., 2:4]) / 2, labels[..., 2:4] - labels[..., :2]
    sizes = np.array([width, height])
    found = np.concatenate([labels[..., 4:], centre / sizes, sides / sizes], axis=-1)
    return np.where(labels[..., 4:] >= 0, found, -1.0)


@examples(20)
@given(seed=st.integers(0, 2**32 - 1))
def test_both_layouts_of_labels_mean_the_same_and_boxes_without_area_are_padding(seed):
    rng = np.random.default_rng(seed)
    labels, _ = detections(rng, samples=5, classes=3)
    labels = np.where(labels[..., 4:] >= 0, labels, -1.0)
    told, real = yolo_of(labels, 80, 100), labels[..., 4] >= 0
    assert (label_layout(labels), label_layout(told)) == ("corners", "yolo")
    scaled = labelled_boxes(told, "yolo") * np.array([80, 100, 80, 100, 1])
    np.testing.assert_allclose(scaled[real], labels[real], atol=1e-9)
    assert (labelled_boxes(told, "yolo")[..., 4] == labels[..., 4]).all()

    flat = real & (rng.random(real.shape) < 0.4)
    labels[flat, 2], told[flat, 4] = labels[flat, 0], 0
    for own, layout in ((labels, "corners"), (told, "yolo")):
        assert count_flat_boxes(own, layout) == flat.sum()
        assert ((labelled_boxes(own, layout)[..., 4] >= 0) == (real & ~flat)).all()


def test_labels_that_are_no_boxes_are_refused_with_the_next_step():
    for labels, complaint in (
        (np.zeros((3, 5)), "labels are not boxes"),
        (np.zeros((3, 2, 4)), "labels are not boxes"),
        (np.full((3, 2, 5), "disc"), "labels are not boxes"),
        (np.full((3, 2, 5), 0.5), "no column of the labelled boxes holds classes"),
    ):
        with pytest.raises(DataError, match=complaint) as error:
            label_layout(labels)
        assert "give [samples, boxes, 5]" in str(error.value)
