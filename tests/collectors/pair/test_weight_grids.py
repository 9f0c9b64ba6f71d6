"""Predictions about weights against really quantizing them, and predicted errors against the outputs of layers."""

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from builders.onnx_models import Net, Recipe, images, qdq, random, run, save_pair
from numpy.typing import NDArray
from onnx import numpy_helper

import quantmedic
from quantmedic.collectors.measure.weight_errors import code_facts, grid_predictions, scale_axis
from quantmedic.collectors.pair.constants import Constant
from quantmedic.collectors.pair.quantizer import Quantizer
from quantmedic.collectors.pair.weight_grids import (
    GridKind,
    best_noise,
    full_range,
    is_reordered,
    noise_on,
    outlier_ratios,
    similarity,
)
from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.formulas.derive import derive

Array = NDArray[Any]
WEIGHTS = {
    "gaussian": random(1, 24, 8, 3, 3),
    "heavy tail": np.random.default_rng(2).standard_t(2.5, (24, 8, 3, 3)).astype(np.float32),
    "imbalanced": random(3, 24, 8, 3, 3) * np.geomspace(1, 1e-3, 24).astype(np.float32)[:, None, None, None],
    "positive": np.abs(random(4, 24, 8, 3, 3)) + np.float32(0.2),
    "one dead channel": np.where(np.arange(24)[:, None, None, None] == 5, 0, random(5, 24, 8, 3, 3)).astype(np.float32),
    "long rows": random(6, 2, 70_000, 1, 1),
}
KINDS = [(8, True), (8, False), (4, True), (4, False), (2, True)]


def rounded(w: Array, low: float, high: float, bits: int, symmetric: bool) -> Array:
    """A round trip through integer codes in float64, as a quantizer makes it."""
    if symmetric:
        step = max(-low, high) / (2 ** (bits - 1) - 1)
        limit = 2 ** (bits - 1) - 1
        return np.clip(np.rint(w / step), -limit, limit) * step if step else 0 * w
    step = (high - low) / (2**bits - 1)
    if not step:
        return 0 * w
    zero = np.rint(-low / step)
    return (np.clip(np.rint(w / step) + zero, 0, 2**bits - 1) - zero) * step


def sqnr(w: Array, y: Array) -> float:
    w = w.astype(np.float64)
    return 10 * np.log10((w * w).sum() / ((y - w) ** 2).sum())


def ends(w: Array) -> tuple[float, float]:
    return min(float(w.min()), 0.0), max(float(w.max()), 0.0)


@pytest.mark.thorough
def test_noise_is_that_of_a_quantizer_and_the_best_is_the_least_of_all_shares():
    for name, kind in itertools.product(WEIGHTS, KINDS):
        rows = WEIGHTS[name].reshape(len(WEIGHTS[name]), -1)
        full, best = (
            noise_on(rows, *full_range(rows, GridKind(*kind)), GridKind(*kind)),
            best_noise(rows, GridKind(*kind)),
        )
        for row, noise, least in zip(rows.astype(np.float64), full, best, strict=True):
            low, high = ends(row)
            tried = [((rounded(row, s * low, s * high, *kind) - row) ** 2).sum() for s in np.arange(1, 21) / 20]
            assert noise == pytest.approx(tried[-1], rel=2e-3, abs=1e-12), (name, kind)
            assert least == pytest.approx(min(tried), rel=2e-3, abs=1e-12), (name, kind)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("bits, signed", [(8, True), (4, True), (8, False)])
def test_predicted_ratios_equal_those_of_quantized_weights(bits, signed, per_channel):
    for w in WEIGHTS.values():
        check_predictions(w, bits, signed, per_channel)


def check_predictions(w: Array, bits: int, signed: bool, per_channel: bool) -> None:
    low, high = (f(w.reshape(len(w), -1), axis=1) if per_channel else f(w) for f in (np.min, np.max))
    low, high = np.minimum(low, 0).astype(np.float64), np.maximum(high, 0).astype(np.float64)
    codes = 2**bits - 2 if signed else 2**bits - 1
    scale = 2 * np.maximum(-low, high) / codes if signed else (high - low) / codes
    scale = np.where(scale > 0, scale, 1.0)
    zero = np.zeros_like(scale) if signed else np.rint(-low / scale)
    axis = 0 if per_channel else None
    quantizer = Quantizer(scale.astype(np.float32), zero.astype(np.int64), bits, signed, axis)
    symmetric = signed or bool((zero == 2 ** (bits - 1)).all())
    found = grid_predictions(Constant("w", quantizer.quantize(w), quantizer), w, 0)

    def per_group(kind: tuple[int, bool], share: Array, channels: bool) -> Array:
        groups = w if channels else w[None]
        return np.stack(
            [
                rounded(g.astype(np.float64), *(s * e for e in ends(g)), *kind)
                for g, s in zip(groups, np.broadcast_to(share, len(groups)), strict=True)
            ]
        ).reshape(w.shape)

    channelwise = per_group((bits, True), np.ones(1), channels=True)
    assert found["predicted_per_channel_sqnr_db"] == pytest.approx(sqnr(w, channelwise), abs=0.02)
    tried = [per_group((bits, symmetric), np.full(1, s), channels=per_channel) for s in np.arange(1, 21) / 20]
    errors = np.array([((y - w) ** 2).reshape(len(w) if per_channel else 1, -1).sum(axis=1) for y in tried])
    best = 10 * np.log10((w.astype(np.float64) ** 2).sum() / errors.min(axis=0).sum())
    assert found["predicted_best_sqnr_db"] == pytest.approx(best, abs=0.02)
    assert ("predicted_8bit_sqnr_db" in found) == (bits < 8)
    if bits < 8:
        eight = per_group((8, symmetric), np.ones(1), channels=per_channel)
        assert found["predicted_8bit_sqnr_db"] == pytest.approx(sqnr(w, eight), abs=0.02)


def test_outlier_ratio_sees_single_weights_only():
    w = random(1, 16, 16, 9)
    usual = outlier_ratios(w).max()
    assert 3 < usual < 6
    gains = np.geomspace(1, 1000, 16).astype(np.float32)
    assert outlier_ratios(w * gains[:, None, None]).max() == pytest.approx(usual, rel=0.3)
    assert outlier_ratios(w * gains[None, :, None]).max() == pytest.approx(usual, rel=0.3)
    w[3, 4, 5] = 100
    assert outlier_ratios(w).argmax() == 3
    # A Gaussian has a median magnitude of 0.67, and that of the input channel is divided out.
    rest = np.sort(np.abs(w[3] / np.median(np.abs(w), axis=(0, 2))[:, None]).ravel())
    assert outlier_ratios(w)[3] == pytest.approx(rest[-1] / np.sqrt((rest[:-2] ** 2).mean()), rel=0.05)


def test_similarity_is_blind_to_gains_and_to_nothing_else():
    for seed in range(3):
        rng = np.random.default_rng(seed)
        w = random(seed, 12, 7, 9)
        gains = [rng.uniform(0.01, 10, n).astype(np.float32) for n in (12, 7)]
        assert similarity(w * gains[0][:, None, None] * gains[1][None, :, None], w) == pytest.approx(1, abs=1e-4)
        assert similarity(random(seed + 50, 12, 7, 9), w) < 0.2
        assert similarity(-w, w) < 0
        assert is_reordered(w[rng.permutation(12)].reshape(12, -1), w.reshape(12, -1), 0.8)
        assert not is_reordered(random(seed + 50, 12, 63), w.reshape(12, -1), 0.8)


# --- what the error of the weights does to the output -------------------------------------------------------------


def layer_net(kind: str) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """One layer with weights, after a ReLU, so that its input has a mean."""
    net = Net()
    if kind in ("Gemm", "MatMul"):
        net.const("before", random(4, 12, 12, scale=0.3))
        x = net.add("Relu", net.add("MatMul", net.input("x", ["n", 12]), "before", out="mixed"), out="positive")
        net.const("w", random(1, 12, 7))
        net.const("b", random(2, 7))
        inputs = (x, "w", "b") if kind == "Gemm" else (x, "w")
        net.output(net.add(kind, *inputs, out="y"))
        return net.model(), {"x": random(3, 200, 12) + np.float32(0.5)}
    groups = {"Conv": 1, "grouped": 3, "depthwise": 6}[kind]
    x = net.add("Relu", net.input("x", ["n", 6, 9, 9]), out="positive")
    net.output(net.conv(x, random(1, 12, 6 // groups, 3, 3), random(2, 12), out="y", group=groups))
    return net.model(), {"x": random(3, 20, 6, 9, 9) + np.float32(0.5)}


def stored(model: onnx.ModelProto) -> dict[str, Array]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


@pytest.mark.parametrize("kind", ["Conv", "grouped", "depthwise", "Gemm", "MatMul"])
def test_predicted_shift_and_noise_are_those_of_the_stored_weights(tmp_path, kind):
    model, feed = layer_net(kind)
    quantized = qdq(model, feed, Recipe(activation=np.int16, opset=21))
    case = quantmedic.collect(*save_pair(tmp_path, model, quantized), validation=feed, threads=1)
    facts = derive(case, quantmedic.load_rulebase())
    (layer,) = (layer for layer in facts.layers if layer.name == "y")
    # The same layer with the stored weights, in float.
    swapped = onnx.ModelProto()
    swapped.CopyFrom(model)
    held = stored(quantized)
    for tensor in swapped.graph.initializer:
        codes, scale = (held.get(f"{tensor.name}_q_{end}") for end in ("codes", "scale"))
        if codes is not None and tensor.name != "before":
            tensor.CopyFrom(numpy_helper.from_array((codes * scale).astype(np.float32), tensor.name))
    before, after = (run(m, feed)["y"].astype(np.float64) for m in (model, swapped))
    axes = tuple(i for i in range(before.ndim) if i != 1)
    mean = (after - before).mean(axis=axes)
    assert layer.weight_error.dataset == "validation"
    # Positions at the border of an unpadded convolution are seen less often than those inside.
    assert layer.weight_error.shift == pytest.approx(np.abs(mean).max(), rel=0.15, abs=1e-5)
    assert layer.weight_error.shift_share > 0.1
    noise = ((after - before) ** 2).mean(axis=axes).sum()
    power = (before**2).mean(axis=axes).sum()
    # Rounding errors have random signs, and there are few of them: the mean square is right on the average only.
    assert layer.weight_error.sqnr_db == pytest.approx(10 * np.log10(power / noise), abs=4)


def collected(folder: Any, data: Array) -> Any:
    model, feed = layer_net("Conv")
    quantized = qdq(model, feed, Recipe())
    return quantmedic.collect(*save_pair(folder, model, quantized), validation={"x": data}, threads=1)


@pytest.mark.thorough
def test_shards_predict_what_one_pass_does(tmp_path):
    _, feed = layer_net("Conv")
    whole, *parts = (collected(tmp_path, feed["x"][part]) for part in (slice(None), slice(0, 7), slice(7, None)))
    merged = parts[0].merge(parts[1])
    base = quantmedic.load_rulebase()
    one, other = (weight_error(derive(case, base)) for case in (whole, merged))
    for name, value in one.items():
        assert other[name] == (pytest.approx(value, rel=1e-5) if isinstance(value, float) else value)
    assert one["shift"] > 0


def weight_error(facts: CaseFacts) -> dict[str, Any]:
    return next(layer for layer in facts.layers if layer.name == "y").weight_error.model_dump()


def test_nothing_is_predicted_where_the_input_is_not_measured(tmp_path):
    """Weights alone are quantized, and the first layer reads an input whose channels are not known."""
    net = Net()
    net.const("w", random(1, 5, 4))
    x = net.add("Einsum", net.input("x", ["n", 5]), net.input("z", ["n", 5]), out="joined", equation="ni,ni->ni")
    net.output(net.add("MatMul", x, "w", out="y"))
    model, feed = net.model(), {"x": images(9).reshape(9, -1)[:, :5], "z": random(5, 9, 5)}
    quantized = qdq(model, feed, Recipe())
    case = quantmedic.collect(*save_pair(tmp_path, model, quantized), validation=feed, threads=1)
    (layer,) = (x for x in derive(case, quantmedic.load_rulebase()).layers if x.name == "y")
    assert layer.weight.rounding.sqnr_db > 30
    assert layer.weight_error.sqnr_db is None


def test_codes_in_use_tell_how_many_bits_there_are():
    w = random(4, 16, 64).reshape(16, 64)
    w /= np.abs(w).max()
    quantizer = Quantizer(np.float32([1 / 127]), np.zeros(1, np.int64), 8, True, None)
    for codes, bits in (
        (np.rint(127 * w), 8),
        (32 * np.clip(np.rint(127 * w / 32), -4, 3), 3),
        (np.rint(7 * w), 4),
        (np.sign(w) * 60, 1),
        # a range that is too wide: its codes end where those of no fewer bits do
        (np.rint(6 * w), 8),
    ):
        found = code_facts(Constant("w", w, quantizer, codes.astype(np.int8)), w)
        assert found["effective_bits"] == bits
        assert found["distinct_codes"] == len(np.unique(codes))


def test_scales_of_another_axis_are_recognized():
    w = random(5, 12, 12).reshape(12, 12) * np.linspace(1, 3, 12)[:, None] * np.linspace(1, 9, 12)
    for source, found in ((0, None), (1, 1)):
        scale = (np.abs(w).max(axis=1 - source) / 127).astype(np.float32)
        quantizer = Quantizer(scale, np.zeros(12, np.int64), 8, True, 0)
        stored = Constant("w", w, quantizer, np.clip(np.rint(w / scale[:, None]), -127, 127).astype(np.int8))
        assert scale_axis(stored, w, 0) == found


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_weights_that_training_let_decay_are_nothing_beside_the_others():
    """Pruned networks keep channels of 1e-20 and less, which float32 can neither square nor divide by."""
    for dead in (1e-20, 1e-38):
        w = random(1, 16, 16, 9)
        usual = outlier_ratios(w).max()
        w[:, 5] *= np.float32(dead)
        w[0, 5, 0] = np.float32(1e4 * dead)
        assert outlier_ratios(w).max() == pytest.approx(usual, rel=0.3)
        scaled = w * np.geomspace(1, 100, 16).astype(np.float32)[:, None, None]
        assert similarity(scaled, w) == pytest.approx(1, abs=1e-3)
