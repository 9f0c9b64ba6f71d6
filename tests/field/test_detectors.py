"""A trained detector with the head of YOLOv8, quantized as people quantize theirs, and nothing named.

The float model and the labelled boxes are all that is given: the metric, the reading of the outputs, the cause and the
remedy are found.
"""

from pathlib import Path

import numpy as np
import pytest
from builders.field_patients import diagnose, first, named_layers, quantize, serious
from builders.onnx_models import Array, Feed, run
from builders.suppression import loop
from builders.yolo import JOINT, feeds, labels, yolo

from quantmedic.collectors.metrics.metric import load_metric
from quantmedic.engine.contract.diagnosis import Diagnosis

pytestmark = pytest.mark.thorough

SAMPLES = 64
#: What computes boxes from bins, and scores.
DECODING = (
    *("/Softmax", "/bins/Conv", "/Reshape_1", "/Slice", "/Slice_1", "/Sub", "/Add_1", "/Add_2", "/Div_1", "/Sub_1"),
    *("/Concat_3", "/Mul_2", "/Sigmoid"),
)
DECODER = "keep what decodes boxes and scores in float"


def plain_map(outputs: Array, validation: Feed) -> float:
    """mAP of an output ``[n, 7, cells]`` in pixels, decoded and suppressed in plain loops."""
    found = []
    for cells in outputs.swapaxes(1, 2).astype(float):
        box = np.concatenate([cells[:, :2] - cells[:, 2:4] / 2, cells[:, :2] + cells[:, 2:4] / 2], axis=1)
        rows = np.array([[*box[i], cells[i, 4 + k], k] for i in range(len(cells)) for k in range(3)])
        rows = rows[rows[:, 4] > 0.001]
        kept = rows[loop(rows[:, :4], rows[:, 4], rows[:, 5], 0.7, 300)] if len(rows) else rows
        found.append(np.pad(kept, ((0, 300 - len(kept)), (0, 0))))
    metric = load_metric("map")
    return metric.aggregate(metric.tally({"found": np.array(found)}, validation["labels"]))


def judged(
    folder: Path, side: int = 64, excluded: tuple[str, ...] = (), **options: object
) -> tuple[tuple[float, float], Diagnosis]:
    """mAP of the float and of the quantized model by plain loops, and the diagnosis."""
    model = yolo("columns", side)
    representative, validation = feeds(SAMPLES if side == 64 else SAMPLES // 2, side)
    quantized = quantize(model, representative, folder, per_channel=True, nodes_to_exclude=list(excluded))
    found = [run(net, {"images": validation["images"]}) for net in (model, quantized)]
    values = [plain_map(own["output0"], validation) for own in found]
    diagnosis = diagnose(model, quantized, representative, validation, folder, **options)
    return (values[0], values[1]), diagnosis


def best_proven(diagnosis: Diagnosis) -> tuple[str, float]:
    """The remedy whose prescription gave the most, run as printed, and how much of the metric it brought back."""
    assert diagnosis.proof is not None
    gains = [
        (own.trial.metric.gain, own.titles[0])
        for own in diagnosis.proof.executions
        if own.trial.metric is not None and own.trial.metric.gain is not None
    ]
    gain, title = max(gains)
    return title, gain


@pytest.mark.nightly
def test_boxes_in_pixels_and_scores_share_a_step(tmp_path: Path) -> None:
    """All scores fall into one step of the joint grid: nothing is detected, and leaving the decoder in float heals."""
    (before, after), diagnosis = judged(tmp_path, side=640, prove=True)
    assert before > 0.8 and after == 0
    metrics = diagnosis.metrics
    assert metrics.name == "map"
    assert metrics.float_value == pytest.approx(before, abs=1e-3) and metrics.quantized_value == 0
    assert diagnosis.run["metric_reading"] == "boxes cxcywh in pixels, 3 classes, NMS at 0.7"
    assert first(diagnosis) == "unbalanced-concatenation"
    assert diagnosis.causes[0].rules[0] == "G002"
    assert named_layers(diagnosis, "unbalanced-concatenation") == [JOINT]
    title, gain = best_proven(diagnosis)
    assert title == DECODER and gain > 0.95 * (before - after)


def test_boxes_as_shares_without_a_quantized_decoder_are_healthy(tmp_path: Path) -> None:
    """The same network as exporters leave it: what decodes is in float."""
    model = yolo()
    tail = []
    for node in reversed(model.graph.node):
        tail.append(node.name)
        if node.name == "/heads.0/Concat":
            break
    (before, after), diagnosis = judged(tmp_path, excluded=tuple(tail))
    assert before - after < 0.02
    assert diagnosis.metrics.quantized_value == pytest.approx(after, abs=0.01)
    assert serious(diagnosis) == []


@pytest.mark.nightly
def test_a_decoder_alone_in_eight_bits_is_named_and_heals(tmp_path: Path) -> None:
    """The joint of boxes and scores is not quantized; joints of maps make most of the noise, which no run divides."""
    joints = ("/heads.0/Concat", "/heads.1/Concat", "/Concat", "/Split", "/Reshape", "/Transpose")
    rest = tuple(node.name for node in yolo().graph.node if node.name not in joints + DECODING)
    (before, after), diagnosis = judged(tmp_path, excluded=rest, prove=True, attribution=True)
    assert before - after > 0.04
    assert diagnosis.verdict == "degraded"
    assert first(diagnosis) == "quantized-decoder"
    title, gain = best_proven(diagnosis)
    assert gain > 0.9 * (before - after)
    assert title == "keep named layers in float"


def labelled_with(folder: Path, truth: Array, **options: object) -> Diagnosis:
    """The diagnosis of a detector whose decoder is quantized, with other labels."""
    representative, validation = feeds(SAMPLES)
    quantized = quantize(yolo(), representative, folder, per_channel=True)
    return diagnose(yolo(), quantized, representative, {**validation, "labels": truth}, folder, **options)


def test_labels_of_a_larger_picture_do_not_make_it_healthy(tmp_path: Path) -> None:
    """Read in another order of the numbers, both models found the same few boxes of a picture of 80 x 80."""
    diagnosis = labelled_with(tmp_path, labels(SAMPLES, 80))
    assert diagnosis.metrics.name is None and diagnosis.verdict == "degraded"
    (said,) = [own for own in diagnosis.warnings if "labels reach" in own]
    assert "the input is 64 wide; give them in pixels of the input" in said


@pytest.mark.nightly
def test_a_float_model_that_finds_few_boxes_is_judged_only_by_name_and_with_a_word(tmp_path: Path) -> None:
    """Of labels a tenth too small both models find as few: no drop is no health."""
    said = "labels or preprocessing may be wrong: the float model's mAP is "
    diagnosis = labelled_with(tmp_path, labels(SAMPLES, 57))
    assert diagnosis.metrics.name is None and diagnosis.verdict == "degraded"
    assert any(said in own for own in diagnosis.warnings)
    named = labelled_with(tmp_path, labels(SAMPLES, 57), metric="map")
    value = named.metrics.float_value
    assert value is not None and value < 0.1
    assert any(own.startswith(said) for own in named.warnings)
    assert named.metrics.drop is None and named.verdict == "degraded"
    assert any(cause.rules == ("S048",) for cause in named.causes)
    expected = labelled_with(tmp_path, labels(SAMPLES, 57), metric="map", expected_float_metric=value)
    assert expected.metrics.drop is not None
    assert not any("S048" in cause.rules for cause in expected.causes)
