"""Which outputs and labels each metric reads, and what it says of those that do not fit."""

import numpy as np
import pytest
from builders.metrics import LETTERS, ctc_scores, detections

from quantmedic.collectors.metrics.metric import load_metric
from quantmedic.engine.errors import DataError


def value(name, outputs, labels, **options):
    metric = load_metric(name, **options)
    return metric.aggregate(metric.tally(outputs, labels))


def refusal(name, outputs, labels, **options):
    with pytest.raises(DataError) as error:
        value(name, outputs, labels, **options)
    return str(error.value)


@pytest.fixture(scope="module")
def found():
    return detections(np.random.default_rng(0), samples=12, classes=3)


def test_boxes_are_found_whatever_their_layout(found):
    labels, outputs = found
    wanted = value("map", outputs, labels)
    assert 0.1 < wanted < 0.9
    renamed = {"a": outputs["scores"], "my_labels": outputs["classes"], "c": outputs["boxes"], "count": np.ones(12)}
    assert value("map", renamed, labels) == wanted
    assert value("map", renamed, labels, output="c, a, my_labels") == wanted
    whole = np.concatenate([outputs["boxes"], outputs["scores"][..., None], outputs["classes"][..., None]], axis=2)
    assert value("map", {"found": whole}, labels) == wanted
    by_class = np.where(np.arange(3) == outputs["classes"][..., None], outputs["scores"][..., None], 0.0)
    assert value("map", {"boxes": outputs["boxes"], "probabilities": by_class}, labels) == pytest.approx(wanted)


def test_orders_of_a_box(found):
    labels, outputs = found
    left, top, right, bottom = np.moveaxis(outputs["boxes"], -1, 0)
    orders = {
        "yxyx": (top, left, bottom, right),
        "xywh": (left, top, right - left, bottom - top),
        "cxcywh": ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top),
    }
    for order, columns in orders.items():
        given = {**outputs, "boxes": np.stack(columns, axis=-1)}
        assert value("map", given, labels, options={"boxes": order}) == pytest.approx(value("map", outputs, labels))


def test_padding_of_boxes_counts_for_nothing(found):
    labels, outputs = found
    longer = np.concatenate([labels, np.tile([0, 0, 9, 9, -1.0], (12, 2, 1))], axis=1)
    more = {name: np.concatenate([own, np.zeros_like(own[:, :2])], axis=1) for name, own in outputs.items()}
    assert value("map", more, longer) == value("map", outputs, labels)


def test_nan_is_no_number_of_its_sample(found):
    labels, outputs = found
    broken = {**outputs, "boxes": outputs["boxes"].copy()}
    broken["boxes"][3, 0, 0] = np.nan
    assert load_metric("map").tally(broken, labels).known.tolist() == [i != 3 for i in range(12)]


def test_sequences_of_ids_and_of_texts_agree():
    texts = np.array(["ab ba", "cab a"])
    heard = ["ab bc", "cb a"]
    ids = np.full((2, 6), -1)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = [LETTERS.index(letter) for letter in text]
    logits, space = {"y": ctc_scores(heard)}, str(LETTERS.index(" "))
    assert value("cer", logits, ids) == value("cer", logits, texts, options={"alphabet": LETTERS}) == 0.2
    words = value("wer", logits, texts, options={"alphabet": LETTERS})
    assert value("wer", logits, ids, options={"space": space}) == words == 0.5
    assert value("cer", {"y": ids[:, ::-1]}, ids[:, ::-1]) == 0
    assert (
        value("cer", {"y": np.eye(6)[[[1, 1, 5, 2]]]}, np.array([[1, 1]]), options={"blank": "none", "end": "5"}) == 0
    )


def test_labels_that_do_not_count():
    scores = np.moveaxis(np.eye(3)[[[[0, 1], [2, 2]]]], -1, 1)
    assert value("miou", {"y": scores}, np.array([[[0, 1], [2, 255]]])) == 1
    assert value("miou", {"y": scores}, np.array([[[0, 1], [2, 0]]]), options={"ignore": "0"}) == 1
    assert value("perplexity", {"y": np.zeros((1, 3, 7))}, np.array([[4, -100, 2]])) == pytest.approx(7)


def test_outputs_and_labels_that_do_not_fit():
    for metric, outputs, labels, options, message in (
        ("map", np.zeros((2, 5, 4)), np.zeros((2, 3, 5)), {}, "boxes, scores and classes were not found"),
        ("map", np.zeros((2, 5, 6)), np.zeros((2, 3, 4)), {}, "labels are not boxes"),
        ("map", np.zeros((1, 5, 6)), np.array([[[5, 5, 2, 2, 0.0]]]), {}, "ends before it begins"),
        ("map", np.zeros((2, 5, 6)), np.zeros((2, 3, 5)), {"boxes": "abcd"}, "one of xyxy"),
        ("miou", np.zeros((2, 3, 4, 4)), np.zeros((2, 8, 8)), {}, "different sizes"),
        ("miou", np.zeros((2, 3, 4, 4)), np.zeros(2), {}, "map of classes per sample"),
        ("miou", np.zeros((2, 3, 4, 4)), np.full((2, 4, 4), 3), {}, "labels - 1"),
        ("miou", np.full((2, 4, 4), 0.5), np.zeros((2, 4, 4)), {}, "at least two classes"),
        ("f1", np.zeros((2, 3, 4)), [0, 0], {}, "one row of class scores"),
        ("f1-binary", np.zeros((2, 3)), [0, 0], {}, "--metric f1"),
        ("f1-binary", np.full((2, 1), 3.0), [0, 1], {}, "threshold=0"),
        ("cer", np.zeros((4, 2, 9)), np.zeros((2, 3)), {}, "samples lie along axis 0"),
        ("cer", np.zeros((2, 4, 9)), np.array(["a", "b"]), {}, "alphabet"),
        ("wer", np.zeros((2, 4, 9)), np.zeros((2, 3)), {}, "space=28"),
        ("cer", np.zeros((2, 4, 9)), np.zeros((2, 3)), {"blank": "9"}, "0 to 8"),
        ("cer", np.zeros((2, 4, 9)), np.zeros((2, 3)), {"blanc": "1"}, "no such option"),
        ("recall@1", np.zeros((2, 3, 4)), [0, 1], {}, "one embedding per sample"),
        ("recall@1", np.zeros((2, 3)), np.zeros((2, 2)), {}, "one label per sample"),
        ("recall@1", np.zeros((2, 3)), [0.5, 1], {}, "whole number"),
        ("perplexity", np.zeros((2, 3, 4)), np.zeros((2, 2)), {}, "as many next tokens"),
        ("perplexity", np.zeros((2, 3, 4)), np.full((2, 3), 4), {}, "0 to 3"),
        ("top1", np.zeros((2, 3)), np.array(["cat", "dog"]), {}, "labels are words"),
        ("mae", np.zeros(2), np.array(["1", "2"]), {}, "shape of the output"),
    ):
        assert message in refusal(metric, {"out": outputs}, np.array(labels), options=options), message


def test_notices_are_said_once():
    metric = load_metric("f1")
    for _ in range(2):
        metric.tally({"y": np.zeros((3, 3))}, np.eye(3))
    assert len(metric.notices) == 1 and "one-hot" in metric.notices[0]
