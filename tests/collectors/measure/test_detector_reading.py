"""How outputs of detectors are read without anything named: a trained one in the forms that exporters write."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.metrics import detections
from builders.onnx_models import Array, run
from builders.suppression import loop
from builders.tiers import others_nightly
from builders.yolo import CLASSES, SIDE, Form, labels, pictures, yolo, yolo_labels

from quantmedic.api.opening import open_metric, open_pair
from quantmedic.api.options import CollectOptions
from quantmedic.collectors.metrics.metric import Metric, load_metric
from quantmedic.engine.errors import DataError

pytestmark = pytest.mark.thorough

SAMPLES = 96
WORDS: dict[Form, str] = {
    "columns": "boxes cxcywh in pixels, 3 classes, NMS at 0.7",
    "rows": "boxes cxcywh in pixels, 3 classes, NMS at 0.7",
    "shares": "boxes cxcywh in 0…1, 3 classes, NMS at 0.7",
    "objectness": "boxes cxcywh in pixels, objectness, 3 classes, NMS at 0.7",
    "apart": "boxes cxcywh in pixels, 3 classes, NMS at 0.7",
    "selected": "boxes xyxy in pixels, a score and a class each, no NMS",
    "masks": "boxes cxcywh in pixels, 3 classes, masks left out, NMS at 0.7",
}


def opened(model: onnx.ModelProto, folder: Path, truth: Array | None = None, **options: object) -> Metric | None:
    """The metric that is chosen for a float model and labels; notices are left in ``opened.notices``."""
    path = folder / "float.onnx"
    onnx.save(model, str(path))
    given = {"images": pictures("validation", SAMPLES), "labels": labels(SAMPLES) if truth is None else truth}
    data = CollectOptions(validation=given, **options)
    models, datasets = open_pair(path, path, data)
    try:
        return open_metric(data, datasets.values(), models)
    finally:
        opened.notices = datasets["validation"].notices


def reference(found: Array, start: int = 4, *, suppressed: bool = True) -> float:
    """mAP of an output ``[n, cells, columns]`` in pixels: every class of every cell, in plain loops."""
    boxes = np.zeros((len(found), 300, 4))
    scores, classes = np.zeros((len(found), 300)), np.full((len(found), 300), -1.0)
    for i, cells in enumerate(found.astype(float)):
        low, high = cells[:, :2] - cells[:, 2:4] / 2, cells[:, :2] + cells[:, 2:4] / 2
        each = np.repeat(np.concatenate([low, high], axis=1), CLASSES, axis=0)
        score = (cells[:, start : start + CLASSES] * (cells[:, 4:5] if start == 5 else 1)).reshape(-1)
        kind = np.tile(np.arange(CLASSES), len(cells)).astype(float)
        each, score, kind = (own[score > 0.001] for own in (each, score, kind))
        kept = loop(each, score, kind, 0.7, 300) if suppressed else np.argsort(-score)[:300]
        boxes[i, : len(kept)], scores[i, : len(kept)], classes[i, : len(kept)] = each[kept], score[kept], kind[kept]
    metric = load_metric("map")
    return metric.aggregate(metric.tally({"boxes": boxes, "scores": scores, "classes": classes}, labels(len(found))))


@pytest.mark.parametrize("form", others_nightly(WORDS))
def test_forms_of_a_detector_are_told_apart_and_have_the_map_of_plain_loops(form: Form, tmp_path: Path) -> None:
    model = yolo(form)
    metric = opened(model, tmp_path)
    assert metric is not None and (metric.name, metric.words) == ("map", WORDS[form])
    found = run(model, {"images": pictures("validation", SAMPLES)})
    value = metric.aggregate(metric.tally(found, labels(SAMPLES)))
    assert value > (0.5 if form == "selected" else 0.8)
    if form == "selected":
        whole = load_metric("map")
        assert value == whole.aggregate(whole.tally(found, labels(SAMPLES)))
        return
    cells = {
        "columns": lambda: found["output0"].swapaxes(1, 2),
        "rows": lambda: found["rows"],
        "shares": lambda: found["output0"].swapaxes(1, 2) * np.array([*[SIDE] * 4, *[1] * CLASSES]),
        "objectness": lambda: found["found"],
        "apart": lambda: np.concatenate([found["b"], found["s"]], axis=2),
        "masks": lambda: found["found"].swapaxes(1, 2),
    }[form]()
    assert value == pytest.approx(reference(cells, 5 if form == "objectness" else 4), abs=1e-6)


def test_suppression_matters_here(tmp_path: Path) -> None:
    """Several cells find each object: without suppression it would be another figure."""
    found = run(yolo(), {"images": pictures("validation", 32)})["output0"].swapaxes(1, 2)
    assert reference(found) > reference(found, suppressed=False) + 0.1


@pytest.mark.parametrize("form", ["columns", "shares"])
def test_labels_of_yolo_mean_the_same(form: Form, tmp_path: Path) -> None:
    model = yolo(form)
    found = run(model, {"images": pictures("validation", SAMPLES)})
    plain, told = opened(model, tmp_path), opened(model, tmp_path, yolo_labels(SAMPLES))
    assert plain is not None and told is not None and plain.words is not None
    assert told.words == f"{plain.words}; labels read as class, centre and sides in 0…1"
    values = [
        own.aggregate(own.tally(found, truth))
        for own, truth in ((plain, labels(SAMPLES)), (told, yolo_labels(SAMPLES)))
    ]
    assert values[0] == pytest.approx(values[1], abs=2e-3)


def test_labels_in_pixels_of_another_picture(tmp_path: Path) -> None:
    """The camera's picture is ten times as large, and the exported model gives boxes in its pixels."""
    model = yolo("columns")
    metric = opened(yolo("columns", 64), tmp_path, labels(SAMPLES, 640))
    assert metric is None, "boxes in pixels of the input find none of the labelled ones"
    assert any("labels reach 628.9, the input is 64 wide" in notice for notice in opened.notices)
    strides = next(own for own in model.graph.initializer if own.name == "strides")
    strides.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(strides) * 10, "strides"))
    metric = opened(model, tmp_path, labels(SAMPLES, 640))
    assert metric is not None and metric.words == "boxes cxcywh in the unit of the labels, 3 classes, NMS at 0.7"


@pytest.mark.parametrize(("form", "side"), [("columns", 80), ("shares", 70), ("selected", 640)])
def test_labels_beyond_the_input_are_not_judged(form: Form, side: int, tmp_path: Path) -> None:
    """By chance another order of the numbers may find some of them: 80 made a degraded pair healthy."""
    truth = labels(SAMPLES, side)
    assert opened(yolo(form), tmp_path, truth) is None
    (notice,) = opened.notices
    assert "labels reach" in notice and "the input is 64 wide; give them in pixels of the input" in notice
    if form != "selected":
        for options in ({}, {"boxes": "cxcywh", "unit": "pixels"}, {"boxes": "cxcywh", "unit": "shares"}):
            with pytest.raises(DataError, match=r"labels reach .* the input is 64 wide"):
                opened(yolo(form), tmp_path, truth, metric="map", metric_options=options)


def test_labels_beyond_one_side_are_named_with_that_side(tmp_path: Path) -> None:
    for axis, side in enumerate(("wide", "high")):
        truth = labels(SAMPLES)
        truth[..., [axis, axis + 2]] = np.where(truth[..., 4:] >= 0, truth[..., [axis, axis + 2]] * 1.5, -1)
        assert opened(yolo(), tmp_path, truth) is None
        assert any(f"the input is 64 {side}" in notice for notice in opened.notices)


def test_labels_beyond_the_input_by_a_rounding_are_judged(tmp_path: Path) -> None:
    truth = labels(SAMPLES)
    truth[..., 2:4] += np.where(truth[..., 4:] >= 0, 65 - truth[..., 2:4].max(), 0)
    metric = opened(yolo(), tmp_path, truth)
    assert metric is not None and metric.words == WORDS["columns"]


def test_a_float_model_that_finds_little_is_not_judged_unless_the_metric_is_named(tmp_path: Path) -> None:
    """Labels a tenth too small: some boxes are found at the overlap 0.5, and few at any above."""
    said = "labels or preprocessing may be wrong: the float model's mAP is "
    assert opened(yolo(), tmp_path, labels(SAMPLES, 57)) is None
    (notice,) = opened.notices
    assert said in notice and "boxes were read as cxcywh in pixels; judge all the same: --metric map" in notice
    for side, options in ((57, {}), (640, {"boxes": "cxcywh", "unit": "labels"})):
        metric = opened(yolo(), tmp_path, labels(SAMPLES, side), metric="map", metric_options=options)
        assert metric is not None and metric.words is not None
        (notice,) = opened.notices
        assert notice.startswith(said)
        assert ("mAP is 0.0 % (mAP50 0.0 %)" in notice) == (side == 640)


@pytest.mark.parametrize("layout", others_nightly(["corners", "yolo"]))
def test_labels_that_are_filled_up_with_zeros(layout: str, tmp_path: Path) -> None:
    """A box of class 0 without area is none, and how many there are is said."""
    truth = labels(SAMPLES) if layout == "corners" else yolo_labels(SAMPLES)
    padding = truth[..., :1] < 0
    padded = np.where(padding, 0.0, truth)
    plain, metric = opened(yolo(), tmp_path, truth), opened(yolo(), tmp_path, padded)
    assert plain is not None and metric is not None
    assert opened.notices == [
        f"{padding.sum()} labelled boxes have no area and were ignored; fill up with boxes of class -1"
    ]
    found = run(yolo(), {"images": pictures("validation", SAMPLES)})
    assert metric.aggregate(metric.tally(found, padded)) == plain.aggregate(plain.tally(found, truth)) > 0.8
    assert opened(yolo(), tmp_path, np.zeros((SAMPLES, 3, 5))) is None
    assert any("none of the first 256 samples has a labelled box" in notice for notice in opened.notices)


def test_what_was_named_wins(tmp_path: Path) -> None:
    options = {"nms": "0.5", "confidence": "0.25"}
    metric = opened(yolo(), tmp_path, metric_options=options)
    assert metric is not None and metric.words == "boxes cxcywh in pixels, 3 classes, NMS at 0.5"
    assert metric.options == "confidence=0.25, nms=0.5"
    none = opened(yolo(), tmp_path, metric_options={"nms": "none"}, metric="map50")
    assert none is not None and (none.name, none.words) == ("map50", "boxes cxcywh in pixels, 3 classes, no NMS")
    named = opened(yolo(), tmp_path, metric="map", metric_options={"boxes": "xyxy", "unit": "pixels"})
    assert named is not None and named.words == "boxes xyxy in pixels, 3 classes, NMS at 0.7"
    found = run(yolo(), {"images": pictures("validation", 8)})
    assert named.aggregate(named.tally(found, labels(8))) < 0.05


def test_a_model_that_finds_nothing_is_not_judged(tmp_path: Path) -> None:
    model = yolo()
    for own in model.graph.initializer:
        if own.name == "heads.0.boxes.1.weight":
            own.CopyFrom(onnx.numpy_helper.from_array(0 * onnx.numpy_helper.to_array(own), own.name))
    shuffled = labels(SAMPLES)[::-1].copy()
    assert opened(model, tmp_path, shuffled) is None
    (notice,) = opened.notices
    assert "in no reading of its boxes the float model finds the labelled ones" in notice
    assert "--metric map --metric-option boxes=" in notice
    with pytest.raises(DataError, match="in no reading of its boxes"):
        opened(model, tmp_path, shuffled, metric="map")


def test_classes_in_another_order_are_not_judged_unless_the_metric_is_named(tmp_path: Path) -> None:
    truth = labels(SAMPLES)
    truth[..., 4] = np.where(truth[..., 4] >= 0, (truth[..., 4] + 1) % CLASSES, -1)
    assert opened(yolo(), tmp_path, truth) is None
    assert any("seldom with their class" in notice for notice in opened.notices)
    # The padding behind class 0 is no class that a label may become.
    assert not any("would fit" in notice for notice in opened.notices)
    named = opened(yolo(), tmp_path, truth, metric="map")
    assert named is not None and any("seldom with their class" in notice for notice in opened.notices)


def test_a_shift_of_the_classes_is_advised_where_all_stay_classes(tmp_path: Path) -> None:
    """Only two of the three classes are labelled, so that a shift stays among them; later labels may forbid it."""
    for kept, shift, advice in ((0, 1, "labels - 1"), (1, -1, "labels + 1"), (0, 1, None)):
        truth = labels(SAMPLES)
        chosen = (truth[..., 4:] == kept) | (truth[..., 4:] == kept + 1)
        truth = np.where(chosen, truth + np.array([0, 0, 0, 0, shift]), -1.0)
        if advice is None:
            truth[-1, 0] = [1, 1, 9, 9, 0]
        assert opened(yolo(), tmp_path, truth) is None
        said = [notice for notice in opened.notices if "would fit" in notice]
        assert bool(said) == bool(advice) and all(f"{advice} would fit" in notice for notice in said)


def test_labels_that_count_from_one_are_an_error(tmp_path: Path) -> None:
    truth = labels(SAMPLES)
    truth[..., 4] += truth[..., 4] >= 0
    with pytest.raises(DataError, match="label is not a class of the model"):
        opened(yolo(), tmp_path, truth)


def test_labels_of_a_detector_that_are_no_boxes_are_an_error(tmp_path: Path) -> None:
    for truth in (labels(SAMPLES)[..., :4], labels(SAMPLES)[:, 0], np.zeros((SAMPLES, 3, 6))):
        with pytest.raises(DataError, match="labels are not boxes") as error:
            opened(yolo(), tmp_path, truth)
        assert "[samples, boxes, 5]" in str(error.value)
        assert f"labels  {list(truth.shape)}  float64  arrays" in str(error.value), "of all samples, not of a batch"


def test_samples_without_boxes_are_passed_over(tmp_path: Path) -> None:
    truth = labels(SAMPLES)
    truth[:40] = -1
    metric = opened(yolo(), tmp_path, truth)
    assert metric is not None and metric.words == WORDS["columns"]
    assert opened(yolo(), tmp_path, np.full((SAMPLES, 3, 5), -1.0)) is None
    assert any("none of the first 256 samples has a labelled box" in notice for notice in opened.notices)


def found_by(metric: Metric | None, model: onnx.ModelProto, truth: Array) -> float:
    assert metric is not None
    return metric.aggregate(metric.tally(run(model, {"images": pictures("validation", SAMPLES)}), truth))


LEFT: dict[Form, str] = {
    "logits": "boxes cxcywh in 0…1, 3 classes, scores by sigmoid, NMS at 0.7",
    "no-object": "boxes cxcywh in 0…1, 3 classes, scores by softmax, no object last, NMS at 0.7",
    "background": "boxes xyxy in 0…1, 3 classes, background first, NMS at 0.7",
}


@pytest.mark.parametrize("form", others_nightly(LEFT))
def test_scores_that_are_left_to_the_application_are_found_by_trying(form: Form, tmp_path: Path) -> None:
    """Against scores that are computed by hand, beside the same boxes."""
    model = yolo(form)
    metric = opened(model, tmp_path)
    assert metric is not None and metric.words == LEFT[form]
    found = run(model, {"images": pictures("validation", SAMPLES)})
    numbers, boxes = found["s"].astype(float), found["b"].astype(float) * SIDE
    powers = np.exp(numbers)
    scores = {
        "logits": 1 / (1 + np.exp(-numbers)),
        "no-object": (powers / powers.sum(axis=2, keepdims=True))[..., :-1],
        "background": numbers[..., 1:],
    }[form]
    if form == "background":
        boxes = np.concatenate([(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]], axis=2)
    value = metric.aggregate(metric.tally(found, labels(SAMPLES)))
    assert value == pytest.approx(reference(np.concatenate([boxes, scores], axis=2)), abs=1e-6)
    assert value > 0.8


@pytest.mark.parametrize("form", others_nightly(["no-object", "background"]))
def test_where_the_column_of_no_object_stands_follows_from_the_numbers_too(form: Form, tmp_path: Path) -> None:
    """Where only one class is labelled, the number of columns does not tell."""
    truth = np.where(labels(SAMPLES)[..., 4:] == 1, labels(SAMPLES), -1.0)
    metric = opened(yolo(form), tmp_path, truth)
    assert metric is not None and metric.words == LEFT[form]
    assert found_by(metric, yolo(form), truth) > 0.7


@pytest.mark.nightly
def test_classes_behind_a_background_may_count_from_one(tmp_path: Path) -> None:
    """As torchvision and TensorFlow number them; the last class shows it, and without it what is found."""
    truth = labels(SAMPLES)
    truth[..., 4] += truth[..., 4] >= 0
    model = yolo("background")
    for own in (truth, np.where(truth[..., 4:] == 1, truth, -1.0)):
        metric = opened(model, tmp_path, own)
        assert metric is not None
        assert metric.words == LEFT["background"].replace("background first", "background as class 0")
        assert found_by(metric, model, own) > 0.7
    named = opened(model, tmp_path, truth, metric_options={"background": "class-0"})
    assert named is not None and found_by(named, model, truth) == found_by(opened(model, tmp_path, truth), model, truth)
    with pytest.raises(DataError, match="label is not a class of the model"):
        opened(model, tmp_path, truth + np.where(truth[..., 4:] >= 0, [0, 0, 0, 0, 1], 0.0))


@pytest.mark.nightly
def test_scores_that_fit_in_two_ways_are_asked_for(tmp_path: Path) -> None:
    """A last column of zeros: a class that nobody labelled, or no object. Both find the same, and neither is taken."""
    model = yolo("no-object")
    for node in model.graph.node:
        if node.name == "nothing":
            node.op_type = "Mul"
            node.input.append("nought")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0), "nought"))
    assert opened(model, tmp_path) is None
    (notice,) = opened.notices
    assert "scores by sigmoid" in notice and "scores by softmax, no object last" in notice
    assert "fit the labels little better than" in notice and "--metric-option scores=sigmoid" in notice
    for options in ({"scores": "sigmoid"}, {"scores": "softmax"}, {"background": "last", "scores": "softmax"}):
        metric = opened(model, tmp_path, metric_options=options)
        assert found_by(metric, model, labels(SAMPLES)) > 0.8


def test_lists_of_boxes_are_read_as_before_where_the_metric_is_named(tmp_path: Path) -> None:
    """A reading that cannot be told does not take away what was computed without one."""
    truth, _ = detections(np.random.default_rng(3), samples=SAMPLES, classes=3)
    metric = opened(yolo("apart"), tmp_path, truth, metric="map", metric_options={"boxes": "cxcywh"})
    assert metric is not None and metric.words is None
