"""Faults of representative data on a real network: each is calibrated with onnxruntime, diagnosed, and told apart."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders.onnx_models import Net, own, run, save_pair, static
from builders.tiers import others_nightly
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType, quantize_static

import quantmedic
from quantmedic.api.rulebase import load_rulebase
from quantmedic.demo import patient
from quantmedic.engine.contract.diagnosis import Diagnosis, Verdict

pytestmark = pytest.mark.thorough

Array = np.ndarray[Any, Any]
FOLDER = patient()[0][0].parent
MEAN, STD = np.float32(0.286), np.float32(0.353)
#: Shares of red, green and blue in the colour variant of the images.
TINT = np.array([1.0, 0.7, 0.4], np.float32).reshape(1, 3, 1, 1)
MIN_MAX: dict[str, Any] = {"calibrate_method": CalibrationMethod.MinMax}
#: Blank and blurred images do no harm to extremes, but to everything that follows the bulk of the values.
#: Costs nothing on proper data, and wrong data shift every range of it.
PERCENTILE: dict[str, Any] = {
    "calibrate_method": CalibrationMethod.Percentile,
    "extra_options": {"CalibPercentile": 99.99, "CalibTensorRangeSymmetric": False},
}
DATA_CAUSES = {rule.cause for rule in load_rulebase().rules if rule.family == "data"}


class Reader(CalibrationDataReader):
    """Batches of equal size, which percentiles need."""

    def __init__(self, x: Array) -> None:
        size = next(size for size in range(32, 0, -1) if len(x) % size == 0)
        self._batches = iter([{"image": x[i : i + size]} for i in range(0, len(x), size)])

    def get_next(self) -> dict[str, Array] | None:
        return next(self._batches, None)


@cache
def pixels(role: str) -> Array:
    """Grey images as stored, ``[samples, 1, 28, 28]`` of 0 … 255."""
    name = "validation.npz" if role == "validation" else "representative_healthy.npz"
    images: Array = np.load(FOLDER / name)["image"].astype(np.float32)
    return images[:256] if role == "validation" else images


@cache
def coloured(role: str) -> Array:
    """The same in colours that vary from image to image, reddish on the whole, ``[samples, 3, 28, 28]``."""
    grey = pixels(role)
    tint = TINT + np.random.default_rng(len(grey)).uniform(-0.1, 0.0, (len(grey), 3, 1, 1)).astype(np.float32)
    images: Array = np.rint(grey * tint)
    return images


@cache
def predicted() -> Array:
    """Class of every representative image, by the float network."""
    scores = run(onnx.load(FOLDER / "float.onnx"), {"image": normalized(pixels("representative"))})["logits"]
    return scores.argmax(axis=1)


def normalized(x: Array) -> Array:
    result: Array = ((x / np.float32(255) - MEAN) / STD).astype(np.float32)
    return result


def colour_network(folder: Path) -> Path:
    """The demonstration network behind a layer that turns colours into grey."""
    model = onnx.load(FOLDER / "float.onnx")
    for node in model.graph.node:
        node.input[:] = ["grey" if name == "image" else name for name in node.input]
    # Of pixels normalized channel by channel: (Σ share · (x · STD + MEAN) - MEAN) / STD.
    share = np.array([0.8, 0.15, 0.05], np.float32) / (TINT.ravel() - 0.05)
    weight = numpy_helper.from_array(share.reshape(1, 3, 1, 1), "grey.weight")
    bias = numpy_helper.from_array(np.array([(share.sum() - 1) * MEAN / STD], np.float32), "grey.bias")
    model.graph.initializer.extend([weight, bias])
    model.graph.node.insert(0, helper.make_node("Conv", ["image", "grey.weight", "grey.bias"], ["grey"], name="grey"))
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 3
    path = folder / "colour.onnx"
    onnx.save(model, str(path))
    return path


def between(x: Array) -> Array:
    """Moved by a fraction of a pixel: the values leave their grid."""
    return np.asarray(0.7 * x + 0.3 * np.roll(x, 1, axis=3), np.float32)


def blurred(x: Array, size: int) -> Array:
    padded = np.pad(x, ((0, 0), (0, 0), (size // 2,) * 2, (size // 2,) * 2), mode="edge")
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(2, 3)).mean(axis=(4, 5)))


def blank(x: Array, share: float) -> Array:
    result = x.copy()
    result[: int(share * len(x))] = 0
    return result


def noise(x: Array) -> Array:
    return np.random.default_rng(0).random(x.shape).astype(np.float32)


def swapped_layout(x: Array) -> Array:
    """Numbers stored pixel by pixel, taken for planes."""
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).reshape(x.shape)


def diagnosed(
    folder: Path,
    model: Path,
    calibration: Array,
    validation: Array,
    options: dict[str, Any],
    shown: Array | None = None,
) -> Diagnosis:
    """The network calibrated on one set and diagnosed with it, or with another that is ``shown`` instead."""
    quantized = calibrated(folder, model, calibration, options)
    return diagnosed_file(model, quantized, validation, calibration if shown is None else shown)


def calibrated(folder: Path, model: Path, calibration: Array, options: dict[str, Any]) -> Path:
    """The quantized network."""
    quantized = folder / "int8.onnx"
    quantize_static(
        own(model, folder),
        quantized,
        Reader(calibration),
        per_channel=True,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        **options,
    )
    return quantized


def diagnosed_file(
    model: Path, quantized: Path, validation: Array, representative: Array | None, **more: Any
) -> Diagnosis:
    """The diagnosis with both sets, or with the validation set and no other; ``more``: options."""
    labels = np.load(FOLDER / "validation.npz")["labels"][: len(validation)].astype(np.int64)
    return quantmedic.diagnose(
        model,
        quantized,
        representative=None if representative is None else {"image": representative},
        validation={"image": validation, "labels": labels},
        **more,
    )


def weighty(diagnosis: Diagnosis) -> list[str]:
    """Causes that make a verdict, best first."""
    return [cause.cause for cause in diagnosis.causes if cause.severity in ("high", "medium")]


def check_is_told(diagnosis: Diagnosis, expected: str, verdict: Verdict, also: frozenset[str] = frozenset()) -> None:
    """The cause leads and no other fault of the data stands beside it: as an alarm only where the network suffers.

    Beside it stands what is ``also`` true of the data.
    """
    found = [cause.cause for cause in diagnosis.causes]
    assert diagnosis.verdict == verdict
    if verdict == "degraded":
        found = weighty(diagnosis)
    else:
        assert [cause.harm for cause in diagnosis.causes[:1]] == ["assumed"] and weighty(diagnosis) == []
    assert found[:1] == [expected]
    assert set(found) & DATA_CAUSES == {expected} | also


def verdict_of(fault: str) -> Verdict:
    return "healthy" if fault in WITHSTOOD else "degraded"


Fault = Callable[[Array], Array]
GREY: dict[str, tuple[str, Fault, dict[str, Any]]] = {
    "copies of one image": ("duplicate-samples", lambda x: normalized(x[3:4].repeat(64, axis=0)), MIN_MAX),
    "four images": ("too-few-samples", lambda x: normalized(x[[425, 318, 255, 134]]), MIN_MAX),
    "one class": ("low-diversity", lambda x: normalized(x[predicted() == 1]), PERCENTILE),
    "blank images": ("blank-samples", lambda x: normalized(blank(x, 0.97)), PERCENTILE),
    "over-exposed": ("blank-samples", lambda x: normalized(np.clip(x * 2.5 + 60, 0, 255)), MIN_MAX),
    "scaled only": ("preprocessing-mismatch", lambda x: x / np.float32(255), MIN_MAX),
    "normalized twice": ("preprocessing-mismatch", lambda x: normalized(normalized(x)), MIN_MAX),
    "deviation forgotten": ("preprocessing-mismatch", lambda x: x / np.float32(255) - MEAN, MIN_MAX),
    "blurred": ("resampling-mismatch", lambda x: normalized(np.rint(blurred(x, 5))), PERCENTILE),
    "noise": ("random-data", noise, MIN_MAX),
}
#: Of those, what is tried with each commit.
OFTEN = ("copies of one image", "four images", "blank images", "scaled only", "noise")
COLOUR: dict[str, tuple[str, Fault, dict[str, Any]]] = {
    "blue for red": ("channel-order-mismatch", lambda x: normalized(x)[:, ::-1], MIN_MAX),
    "pixels for planes": ("layout-mismatch", lambda x: normalized(swapped_layout(x)), PERCENTILE),
}
#: What the network withstands: the cause is named with what is to be had.
WITHSTOOD = {"copies of one image", "four images", "one class", "blank images", "blurred", "pixels for planes"}
#: Exposure is a factor, too.
ALSO_TRUE = {"over-exposed": frozenset({"preprocessing-mismatch"})}


@pytest.mark.source(
    "horizon-data-library",
    "horizon-data-processing",
    "horizon-data-exposure",
    "horizon-data-blank",
    "horizon-interpolation",
)
@pytest.mark.source("mct-representative-size", "mct-representative-diversity", "mct-preprocessing")
@pytest.mark.parametrize("fault", others_nightly(GREY, "scaled only"))
def test_fault_of_grey_images_is_told_from_the_others(fault: str, tmp_path: Path) -> None:
    expected, damage, options = GREY[fault]
    calibration = np.ascontiguousarray(damage(pixels("representative")), np.float32)
    model, validation = FOLDER / "float.onnx", normalized(pixels("validation"))
    found = diagnosed(tmp_path, model, calibration, validation, options)
    check_is_told(found, expected, verdict_of(fault), ALSO_TRUE.get(fault, frozenset()))


@pytest.mark.nightly
@pytest.mark.source("horizon-channel-sequence")
@pytest.mark.parametrize("fault", COLOUR)
def test_fault_of_colour_images_is_told_from_the_others(fault: str, tmp_path: Path) -> None:
    expected, damage, options = COLOUR[fault]
    calibration = np.ascontiguousarray(damage(coloured("representative")), np.float32)
    model, validation = colour_network(tmp_path), normalized(coloured("validation"))
    found = diagnosed(tmp_path, model, calibration, validation, options)
    check_is_told(found, expected, verdict_of(fault))


def repaired_by(text: str, feeds: list[dict[str, Array]]) -> list[dict[str, Array]]:
    """What the repairs that a prescription prints make of calibration data, one after the other."""
    for part in text.split("# To mend")[:-1]:
        names: dict[str, Any] = {"np": np}
        exec(compile(part[part.index("def repaired(") :], "repair", "exec"), names)
        feeds = names["repaired"](feeds)
    return feeds


@pytest.mark.parametrize("is_resized", [False, True])
def test_turned_channels_that_were_not_normalized_are_repaired_by_the_printed_text(
    is_resized: bool, tmp_path: Path
) -> None:
    """Blue first, divided by 255 and no more: channels are turned first, and then mapped, on grids and off them."""
    mine, other = (
        between(coloured(role)) if is_resized else coloured(role) for role in ("representative", "validation")
    )
    wrong, right = np.ascontiguousarray(mine[:, ::-1] / np.float32(255)), normalized(mine)
    found = diagnosed(tmp_path, colour_network(tmp_path), wrong, normalized(other), MIN_MAX)
    assert weighty(found)[0] == "preprocessing-mismatch"
    named = {cause.cause for cause in found.causes} | {own.name for cause in found.causes for own in cause.absorbs}
    assert "channel-order-mismatch" in named
    given = found.prescription
    assert given is not None
    text = next(each.code for each in given.configurations if each.language == "python")
    assert text.count("def repaired(") == 1 and "The reader has to yield" not in text
    (mended,) = repaired_by(text, [{"image": wrong}])
    assert np.abs(mended["image"] - right).max() < 0.05 * np.ptp(right)
    assert repaired_by(text, [mended])[0]["image"] is mended["image"], "what is right stays"
    healthy = diagnosed(tmp_path, colour_network(tmp_path), right, normalized(other), MIN_MAX)
    assert weighty(healthy) == [] and not healthy.datasets[0].relation.reordered


@pytest.mark.nightly
def test_turned_channels_are_seen_where_the_network_normalizes_them_itself(tmp_path: Path) -> None:
    """Pixels come as they are: a mean and a factor stand before the first layer that knows channels."""
    model = onnx.load(colour_network(tmp_path))
    first = [helper.make_node("Sub", ["image", "mean"], ["centred"], name="centre")]
    first += [helper.make_node("Mul", ["centred", "factor"], ["pixels"], name="scale")]
    for node in model.graph.node:
        node.input[:] = ["pixels" if name == "image" else name for name in node.input]
    for node in reversed(first):
        model.graph.node.insert(0, node)
    factor, mean = np.float32(1 / (255 * STD)), np.float32(255 * MEAN)
    model.graph.initializer.extend(
        [numpy_helper.from_array(np.full((1, 3, 1, 1), mean), "mean"), numpy_helper.from_array(factor, "factor")]
    )
    onnx.save(model, tmp_path / "raw.onnx")
    turned = np.ascontiguousarray(coloured("representative")[:, ::-1])
    found = diagnosed(tmp_path, tmp_path / "raw.onnx", turned, coloured("validation"), MIN_MAX)
    assert found.causes[0].cause == "channel-order-mismatch"


@pytest.mark.nightly
def test_another_layout_that_was_not_normalized_is_repaired_by_the_printed_text(tmp_path: Path) -> None:
    """Pixels taken for planes, and divided by 255 alone: read anew first, and then mapped."""
    x = coloured("representative")
    wrong = np.ascontiguousarray(swapped_layout(x / np.float32(255)), np.float32)
    found = diagnosed(tmp_path, colour_network(tmp_path), wrong, normalized(coloured("validation")), MIN_MAX)
    assert weighty(found) == ["layout-mismatch", "preprocessing-mismatch"]
    assert found.prescription is not None
    text = next(each.code for each in found.prescription.configurations if each.language == "python")
    (mended,) = repaired_by(text, [{"image": wrong}])
    assert text.count("def repaired(") == 2, text
    np.testing.assert_allclose(mended["image"], normalized(x), atol=1e-4)


@pytest.mark.nightly
@pytest.mark.parametrize("stale", ["scaled only", "copies of one image"])
def test_ranges_of_other_data_are_stale(stale: str, tmp_path: Path) -> None:
    """The data were repaired, but the old ranges are still in the model."""
    _, damage, options = GREY[stale]
    calibration = np.ascontiguousarray(damage(pixels("representative")), np.float32)
    model, validation = FOLDER / "float.onnx", normalized(pixels("validation"))
    shown = normalized(pixels("representative"))
    found = diagnosed(tmp_path, model, calibration, validation, options, shown)
    check_is_told(found, "stale-calibration", verdict_of(stale))


@pytest.mark.nightly
@pytest.mark.parametrize(("factor", "told"), [(255.0, "255 times"), (0.1, "1 / 10")])
def test_ranges_of_inputs_times_a_factor(factor: float, told: str, tmp_path: Path) -> None:
    """The samples shown are right, and the calibrator got them multiplied: one cause, with the factor."""
    shown, validation = normalized(pixels("representative")), normalized(pixels("validation"))
    model = FOLDER / "float.onnx"
    quantized = calibrated(tmp_path, model, (shown * np.float32(factor)).astype(np.float32), MIN_MAX)
    for representative in (shown, None):
        diagnosis = diagnosed_file(model, quantized, validation, representative)
        first = diagnosis.causes[0]
        assert weighty(diagnosis) == ["stale-calibration"]
        assert (first.rules, first.severity, first.remedies[0].id) == (("D018", "D013"), "high", "calibrate-again")
        assert f"(range {told}" in first.message
        assert {found.rule for found in first.absorbs} & {"A003", "A004"}, "clipping and poor ranges follow from it"
        facts = {data.role: data for data in diagnosis.datasets}
        for role in ("validation",) if representative is None else ("representative", "validation"):
            assert facts[role].input_range_ratio == pytest.approx(factor, rel=0.05), role


@pytest.mark.nightly
@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_ranges_of_other_data_where_the_input_is_in_float(factor: float, tmp_path: Path) -> None:
    shown, validation = normalized(pixels("representative")), normalized(pixels("validation"))
    readers = [node.name for node in onnx.load(FOLDER / "float.onnx").graph.node if "image" in node.input]
    options = MIN_MAX | {"nodes_to_exclude": readers}
    calibration = (shown * np.float32(factor)).astype(np.float32)
    diagnosis = diagnosed(tmp_path, FOLDER / "float.onnx", calibration, validation, options, shown)
    assert diagnosis.datasets[0].input_range_ratio is None
    assert weighty(diagnosis)[:1] == ["stale-calibration"]
    assert diagnosis.causes[0].rules == ("D013",)


def test_the_input_to_blame_is_named_and_repaired_among_several(tmp_path: Path) -> None:
    """The second of two inputs is ten times as large in the calibration set: the first stays as it is."""
    net, rng = Net(), np.random.default_rng(0)
    signal, state = net.input("signal", ["n", 16]), net.input("state", ["n", 8])
    joined = net.add("Concat", signal, state, out="joined", axis=1)
    hidden = net.add(
        "Relu",
        net.add("MatMul", joined, net.const("w", rng.normal(size=(24, 32)).astype(np.float32)), out="h"),
        out="r",
    )
    net.output(net.add("MatMul", hidden, net.const("v", rng.normal(size=(32, 4)).astype(np.float32)), out="scores"))
    right, validation = (
        {"signal": rng.normal(size=(n, 16)), "state": 1.0 + rng.gamma(2.0, size=(n, 8))} for n in (200, 256)
    )
    right, validation = (
        {name: np.asarray(x, np.float32) for name, x in given.items()} for given in (right, validation)
    )
    wrong = right | {"state": right["state"] * np.float32(10)}
    paths = save_pair(tmp_path, net.model(), static(net.model(), wrong, tmp_path))
    found = quantmedic.diagnose(*paths, representative=wrong, validation=validation)
    assert found.causes[0].cause == "preprocessing-mismatch" and "at input state" in found.causes[0].message
    given = found.prescription
    assert given is not None
    (mended,) = repaired_by(next(each.code for each in given.configurations if each.language == "python"), [wrong])
    np.testing.assert_array_equal(mended["signal"], right["signal"])
    assert np.abs(mended["state"] - right["state"]).max() < 0.1 * np.ptp(right["state"])
    paths = save_pair(tmp_path, net.model(), static(net.model(), right, tmp_path))
    healthy = quantmedic.diagnose(*paths, representative=right, validation=validation)
    assert weighty(healthy) == [] and healthy.datasets[0].relation.kind in ("same", None)


CLIPPING: dict[str, dict[str, Any]] = {
    "low percentile": PERCENTILE | {"extra_options": {"CalibPercentile": 94, "CalibTensorRangeSymmetric": False}},
    "entropy": {"calibrate_method": CalibrationMethod.Entropy},
    "moving average": MIN_MAX | {"extra_options": {"CalibMovingAverage": True}},
    "symmetric": MIN_MAX | {"extra_options": {"ActivationSymmetric": True}},
}


@pytest.mark.nightly
@pytest.mark.parametrize("method", CLIPPING)
def test_ranges_that_clip_on_purpose_are_of_these_data(method: str, tmp_path: Path) -> None:
    """These rules judge by ranges: how the loss is divided does not matter to them."""
    shown, validation = normalized(pixels("representative")), normalized(pixels("validation"))
    clipped = calibrated(tmp_path, FOLDER / "float.onnx", shown, CLIPPING[method])
    diagnosis = diagnosed_file(FOLDER / "float.onnx", clipped, validation, shown, attribution=False)
    assert not {"D013", "D018"} & {rule for cause in diagnosis.causes for rule in cause.rules}


def gated_network(folder: Path) -> Path:
    """A branch that is always active, and one for places whose surroundings are bright, on which the output hangs."""
    net, rng = Net(), np.random.default_rng(0)
    x = net.input("image", ["n", 2, 8, 8])
    always = net.add("Relu", net.conv(x, rng.normal(size=(4, 2, 3, 3)).astype(np.float32), out="c0"), out="r0")
    around = np.full((4, 2, 3, 3), 20 / 18, np.float32)
    bright = net.add("Relu", net.conv(x, around, np.float32([-15.0, -15.2, -15.4, -15.6]), out="c1"), out="r1")
    pools = [net.add("GlobalAveragePool", end, out=f"{end}.pool") for end in (always, bright)]
    flat = net.add("Flatten", net.add("Concat", *pools, out="cat", axis=1), out="flat")
    weight = rng.normal(size=(8, 6)) * np.repeat([0.1, 1.0], 4)[:, None]
    net.output("scores", shape=["n", 6])
    net.add("MatMul", flat, net.const("head.weight", weight.astype(np.float32)), out="scores")
    return net.save(folder / "float.onnx")


@pytest.mark.source("horizon-data-branches")
def test_branch_that_no_sample_reaches(tmp_path: Path) -> None:
    """All samples hold the same values; only where bright ones lie together does the second branch answer."""
    scattered = np.random.default_rng(1).random((64, 2, 8, 8)).astype(np.float32)
    together = np.sort(scattered[32:].reshape(32, -1), axis=1).reshape(32, 8, 8, 2).transpose(0, 3, 1, 2)
    validation = np.ascontiguousarray(np.concatenate([scattered[:32], together]))
    model = gated_network(tmp_path)
    quantize_static(model, tmp_path / "int8.onnx", Reader(scattered), per_channel=True)
    diagnosis = quantmedic.diagnose(model, tmp_path / "int8.onnx", representative=scattered, validation=validation)
    assert diagnosis.datasets[0].unseen_channel_share > 0.3
    assert weighty(diagnosis)[:1] == ["low-diversity"]
    assert "D015" in diagnosis.causes[0].rules
    quantize_static(model, tmp_path / "int8.onnx", Reader(validation), per_channel=True)
    healthy = quantmedic.diagnose(model, tmp_path / "int8.onnx", representative=validation, validation=validation)
    assert healthy.datasets[0].unseen_channel_share == 0
    assert weighty(healthy) == []


HEALTHY: dict[str, tuple[Fault, dict[str, Any]]] = {
    "all": (lambda x: x, PERCENTILE),
    "sixty-four": (lambda x: x[:64], MIN_MAX),
    "moved": (lambda x: np.roll(x, 2, axis=(2, 3)), PERCENTILE),
    "mirrored": (lambda x: x[..., ::-1], MIN_MAX),
}


@pytest.mark.parametrize("variant", others_nightly(HEALTHY, "mirrored"))
def test_healthy_images_are_left_alone(variant: str, tmp_path: Path) -> None:
    harmless, options = HEALTHY[variant]
    calibration = np.ascontiguousarray(normalized(harmless(pixels("representative"))))
    model, validation = FOLDER / "float.onnx", normalized(pixels("validation"))
    diagnosis = diagnosed(tmp_path, model, calibration, validation, options)
    assert weighty(diagnosis) == []
    assert not {cause.cause for cause in diagnosis.causes} & DATA_CAUSES
    assert [note.rule for note in diagnosis.not_judged if note.rule.startswith("D")] == []


@pytest.mark.nightly
def test_healthy_colour_images_are_left_alone(tmp_path: Path) -> None:
    calibration, validation = (normalized(coloured(role)) for role in ("representative", "validation"))
    diagnosis = diagnosed(tmp_path, colour_network(tmp_path), calibration, validation, MIN_MAX)
    assert diagnosis.metrics.float_value > 0.8, "the colours must not spoil the network"
    assert weighty(diagnosis) == []
    assert not {cause.cause for cause in diagnosis.causes} & DATA_CAUSES
    assert [note.rule for note in diagnosis.not_judged if note.rule.startswith("D")] == []
