"""Values of very different size in one tensor: the survey's group 1.

The detector is the demo network up to its last feature map. In each of its 49 cells it finds ten class scores, 0 … 1,
and the garment's bounding box in the pixels of a picture of 640 x 640.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.field_patients import (
    CLASSES,
    assert_healthy,
    body,
    constants,
    demo,
    diagnose,
    first,
    fit,
    images,
    labels,
    named_layers,
    pixels,
    quantize,
    serious,
    split,
    with_head,
)
from builders.onnx_models import Array, Net, every_tensor, random, run
from onnxruntime.quantization import QuantType

from quantmedic.engine.contract.diagnosis import Diagnosis

pytestmark = pytest.mark.thorough

FEATURES = "/head/pointwise/act/Relu_output_0"
CELLS, SIDE, SAMPLES = 49, 640, 160
REPRESENTATIVE, VALIDATION = ({"image": images(role, SAMPLES)} for role in ("representative", "validation"))


def boxes(role: str, n: int) -> Array:
    """Centre, width and height of the garment in each picture, in pixels of 640."""
    found = []
    for image in pixels(role)[:n, 0] > 40:
        rows, columns = np.flatnonzero(image.any(1)), np.flatnonzero(image.any(0))
        low, high = np.array([columns[0], rows[0]]), np.array([columns[-1] + 1, rows[-1] + 1])
        found.append([*(low + high) / 2, *(high - low)])
    return np.array(found) * SIDE / 28


def fitted_convolution(net: Net, targets: Array, *, out: str) -> str:
    """A 1 x 1 convolution on the features, fitted to (n, columns) or (n, columns, cells) targets."""
    features = every_tensor(body(demo(), FEATURES).model(), {"image": images("representative", len(targets))})[FEATURES]
    cells = features.transpose(0, 2, 3, 1).reshape(-1, features.shape[1])
    wanted = np.broadcast_to(targets[..., None], (*targets.shape, CELLS)) if targets.ndim == 2 else targets
    weight, bias = fit(cells, wanted.transpose(0, 2, 1).reshape(len(cells), -1))
    return net.conv(FEATURES, np.ascontiguousarray(weight.T[:, :, None, None]), bias, out=out)


def scores(net: Net) -> str:
    """Class scores by the demo's own classifier, one for each cell."""
    trained = constants(demo())
    weight = trained["classifier.weight"][:, :, None, None]
    return net.add("Sigmoid", net.conv(FEATURES, weight, trained["classifier.bias"], out="cls"), out="score")


def flat(net: Net, x: str, columns: int, *, last: bool = False) -> str:
    """(n, columns, 7, 7) as (n, columns, cells), or as (n, cells, columns)."""
    x = net.add("Reshape", x, net.const(f"{x}_shape", np.array([0, columns, CELLS], np.int64)), out=f"{x}_flat")
    return net.add("Transpose", x, out=f"{x}_last", perm=[0, 2, 1]) if last else x


def detector(*, side: float = SIDE) -> onnx.ModelProto:
    """The head as exporters write it, (n, 4 + classes, cells); boxes are shares of the picture if ``side`` is 1."""
    net = body(demo(), FEATURES)
    box = fitted_convolution(net, boxes("representative", 128) * side / SIDE, out="box")
    parts = flat(net, net.add("Relu", box, out="box_positive"), 4), flat(net, scores(net), CLASSES)
    net.output(net.add("Concat", *parts, out="detections", axis=1), shape=["n", 4 + CLASSES, CELLS])
    return net.model()


def found_classes(model: onnx.ModelProto, first: int = 4) -> float:
    """Share of pictures whose best score belongs to the right class."""
    score = run(model, VALIDATION)["detections"][:, first:]
    return float((score.mean(2).argmax(1) == labels("validation", SAMPLES)).mean())


def judged(model: onnx.ModelProto, quantized: onnx.ModelProto, folder: Path) -> Diagnosis:
    return diagnose(model, quantized, REPRESENTATIVE, VALIDATION, folder)


@pytest.mark.nightly
@pytest.mark.source("mct-unbalanced-concatenation")
def test_boxes_and_scores_in_one_output(tmp_path: Path) -> None:
    """ultralytics#1695: the int8 detector detects nothing, every score is 0."""
    model = detector()
    quantized = quantize(model, REPRESENTATIVE, tmp_path)
    assert found_classes(model) > 0.8
    assert not run(quantized, VALIDATION)["detections"][:, 4:].any()
    diagnosis = diagnose(model, quantized, REPRESENTATIVE, VALIDATION, tmp_path, attribution=True)
    assert serious(diagnosis)[0] == "unbalanced-concatenation"
    assert diagnosis.model.harmed is True, "it is seen in the worst column, whatever the boxes weigh"


@pytest.mark.nightly
@pytest.mark.source("mct-concatenation-remedies")
def test_boxes_as_shares_of_the_picture_are_healthy(tmp_path: Path) -> None:
    """The remedy that the maintainers chose."""
    model = detector(side=1)
    quantized = quantize(model, REPRESENTATIVE, tmp_path)
    assert found_classes(quantized) > found_classes(model) - 0.02
    assert_healthy(judged(model, quantized, tmp_path))


def test_cosine_of_the_whole_tensor_is_blind(tmp_path: Path) -> None:
    """ultralytics#25524: 0 of 672 000 scores are not zero, while the tensor as a whole looks perfect."""
    model = detector()
    quantized = quantize(model, REPRESENTATIVE, tmp_path, activation_type=QuantType.QInt8, per_channel=True)
    diagnosis = judged(model, quantized, tmp_path)
    (output,) = diagnosis.outputs
    assert output.tensor.data.accumulated.cosine is not None and output.tensor.data.accumulated.cosine > 0.9995
    assert diagnosis.causes[0].cause == "unbalanced-concatenation"
    assert diagnosis.causes[0].severity == "high"
    assert diagnosis.causes[0].subjects == ("detections[1]",), "the scores, not the boxes"


def _yolox() -> onnx.ModelProto:
    """Boxes, objectness and scores side by side in the last axis: (n, cells, 5 + classes)."""
    net = body(demo(), FEATURES)
    box = fitted_convolution(net, boxes("representative", 128), out="box")
    covered = (pixels("representative")[:128, 0].reshape(-1, 7, 4, 7, 4) > 40).mean((2, 4)).reshape(-1, 1, CELLS)
    seen = net.add("Sigmoid", fitted_convolution(net, 8 * covered - 4, out="obj"), out="objectness")
    parts = flat(net, box, 4, last=True), flat(net, seen, 1, last=True), flat(net, scores(net), CLASSES, last=True)
    net.output(net.add("Concat", *parts, out="detections", axis=-1), shape=["n", CELLS, 5 + CLASSES])
    return net.model()


@pytest.mark.nightly
def test_three_operands_in_the_last_axis(tmp_path: Path) -> None:
    """mmyolo#776: all scores are zero after onnxruntime's static quantization."""
    model = _yolox()
    diagnosis = judged(model, quantize(model, REPRESENTATIVE, tmp_path), tmp_path)
    assert first(diagnosis) == "unbalanced-concatenation"
    assert set(diagnosis.causes[0].subjects) == {"detections[1]", "detections[2]"}, "objectness and scores"


def _yolov5() -> onnx.ModelProto:
    """Boxes are decoded in the network: sigmoid, times the picture's side, then joined with the scores."""
    net = body(demo(), FEATURES)
    share = np.clip(boxes("representative", 128) / SIDE, 0.02, 0.98)
    box = net.add("Sigmoid", fitted_convolution(net, np.log(share / (1 - share)), out="box"), out="box_share")
    box = net.add("Mul", box, net.const("side", SIDE), out="decode")
    net.output(net.add("Concat", flat(net, box, 4), flat(net, scores(net), CLASSES), out="detections", axis=1))
    return net.model()


@pytest.mark.nightly
def test_leaving_the_named_layers_in_float_heals(tmp_path: Path) -> None:
    """onnxruntime#14233: maintainers exclude the Mul and Concat of the head by hand; the diagnosis names the Concat."""
    model = _yolov5()
    quantized = quantize(model, REPRESENTATIVE, tmp_path)
    diagnosis = judged(model, quantized, tmp_path)
    assert found_classes(quantized) < 0.3
    assert first(diagnosis) == "unbalanced-concatenation"
    named = named_layers(diagnosis, "unbalanced-concatenation")
    assert named == ["detections"]
    healed = quantize(model, REPRESENTATIVE, tmp_path, nodes_to_exclude=named)
    assert found_classes(healed) > found_classes(model) - 0.02


def _neck(loudness: float) -> onnx.ModelProto:
    """Two joins of two branches, the first ``loudness`` times as large, which the depthwise weights behind undo."""
    net = Net()
    x = net.input("image", ["n", 1, 28, 28])
    x = net.conv(x, random(1, 16, 1, 3, 3, scale=0.3), random(2, 16, scale=0.1), out="stem", strides=[2, 2])
    x = net.add("Relu", x, out="stem_relu")
    for i, channels in enumerate((16, 48)):
        loud = random(10 * i + 11, 24, channels, 1, 1, scale=(2 / channels) ** 0.5) * np.float32(loudness)
        quiet = random(10 * i + 12, 24, channels, 3, 3, scale=(2 / channels / 9) ** 0.5)
        a = net.add("Relu", net.conv(x, loud, out=f"loud{i}"), out=f"loud_relu{i}")
        b = net.add("Relu", net.conv(x, quiet, out=f"quiet{i}", pads=[1, 1, 1, 1]), out=f"quiet_relu{i}")
        x = net.add("Concat", a, b, out=f"join{i}", axis=1)
        weight = random(10 * i + 13, 48, 1, 3, 3, scale=0.3)
        weight[:24] /= np.float32(loudness)
        x = net.conv(x, weight, random(10 * i + 14, 48, scale=0.1), out=f"mix{i}", group=48, strides=[2, 2])
        x = net.add("Relu", x, out=f"mix_relu{i}")
    net.add("Flatten", x, out="features")
    return with_head(net, "features", {"image": images("representative", 500)}, labels("representative", 500))


def test_error_that_grows_with_every_concat(tmp_path: Path) -> None:
    """onnx2tf#244 and #269: the error of YOLOX jumps at every Concat."""
    model = _neck(100)
    representative, validation = split(model)
    quantized = quantize(model, representative, tmp_path, per_channel=True)
    diagnosis = diagnose(model, quantized, representative, validation, tmp_path)
    assert first(diagnosis) == "unbalanced-concatenation"
    assert sorted(named_layers(diagnosis, "unbalanced-concatenation")) == ["join0", "join1"]
    noise = {layer.name: layer.validation.accumulated.sqnr_db or 0.0 for layer in diagnosis.layers}
    assert noise["loud0"] > noise["mix0"] + 20, "the first operator behind a join shows what was lost in it"
    assert noise["mix0"] > noise["mix1"] + 3
    born = {f.subject for f in diagnosis.causes[0].evidence}
    assert born == {"join0[1]", "join1[1]"}, "the quiet operands"
