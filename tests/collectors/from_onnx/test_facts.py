"""Facts of real pairs of models against the same numbers computed from their tensors with plain numpy."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from builders import plain_loops as reference
from builders.onnx_models import (
    Net,
    Recipe,
    attention_net,
    branch_net,
    codes_of,
    conv_net,
    deep_net,
    dynamic,
    every_tensor,
    images,
    qdq,
    random,
    real_of,
    renamed,
    residual_net,
    run,
    save_pair,
    section,
    static,
    token_net,
    two_way_net,
    without_relu,
)
from builders.tiers import others_nightly
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType

import quantmedic
from quantmedic.collectors.from_onnx.onnx_graph import attributes_of, node_of
from quantmedic.collectors.measure.record import readable_attributes
from quantmedic.collectors.pair.graph import Operator
from quantmedic.collectors.pair.weight_arrays import weight_arrays
from quantmedic.collectors.statistics import accumulate
from quantmedic.engine.case.facts import CaseFacts, ErrorFacts, LayerFacts, TensorFacts
from quantmedic.engine.case.histogram import BINS, SHIFT
from quantmedic.engine.case.records import (
    CHANNEL_BINS,
    WEIGHT_BINS,
    WEIGHT_CHANNELS,
    Case,
    OperatorRecord,
    WeightArrays,
)
from quantmedic.engine.case.statistics import SHOWN_BUCKETS, SetStatistics
from quantmedic.engine.diagnosis.inspection import Inspection
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.reports.page.data import page_sections

Array = NDArray[Any]
X = images(13)
FEEDS: dict[str, dict[str, Array]] = {
    "conv": {"image": X},
    "residual": {"image": X},
    "branch": {"image": X},
    "two way": {"a": random(1, 13, 4), "b": random(2, 13, 6)},
    "token": {"ids": np.random.default_rng(0).integers(0, 20, (13, 6))},
    "attention": {"x": random(1, 13, 5, 8)},
}
NETS = {
    "conv": conv_net(),
    "residual": residual_net(),
    "branch": branch_net(),
    "two way": two_way_net(),
    "token": token_net(),
    "attention": attention_net(),
}
RECIPES = {
    "uint8": Recipe(),
    "int8 per channel": Recipe(activation=np.int8, per_channel=True),
    "float weights": Recipe(weights="float"),
    "int16": Recipe(activation=np.int16, opset=21),
}


@dataclass(frozen=True)
class Measured:
    """A pair of models, what was fed to them, and what quantmedic says of it."""

    float_model: onnx.ModelProto
    quantized: onnx.ModelProto
    feed: Mapping[str, Array]
    case: Case
    facts: CaseFacts

    def tensor(self, float_name: str) -> TensorFacts:
        (found,) = (t for t in self.facts.tensors if t.float_name == float_name)
        return found

    def layer(self, name: str) -> LayerFacts:
        (found,) = (layer for layer in self.facts.layers if layer.name == name)
        return found

    def weights(self, name: str) -> WeightArrays:
        return self.case.weights[next(i for i, op in enumerate(self.case.record.operators) if op.name == name)]

    def record(self, float_name: str) -> int:
        return next(i for i, t in enumerate(self.case.record.tensors) if t.float_name == float_name)


@pytest.fixture(scope="module")
def rules() -> RuleBase:
    return quantmedic.load_rulebase()


@pytest.fixture
def measure(tmp_path, rules):
    """Measure a pair of models; the feed is the validation data unless told otherwise."""

    def run_once(
        float_model: onnx.ModelProto, quantized: onnx.ModelProto, feed: Mapping[str, Array], **options: Any
    ) -> Measured:
        if not {"representative", "validation"} & options.keys():
            options["validation"] = dict(feed)
        case = quantmedic.collect(*save_pair(tmp_path, float_model, quantized), **({"threads": 1} | options))
        return Measured(float_model, quantized, feed, case, derive(case, rules))

    return run_once


@pytest.fixture(scope="module")
def usual(tmp_path_factory, rules) -> Measured:
    """The plain network with ranges for two thirds of the data, in batches of 5."""
    quantized = qdq(NETS["conv"], {"image": X * np.float32(0.66)})
    paths = save_pair(tmp_path_factory.mktemp("usual"), NETS["conv"], quantized)
    case = quantmedic.collect(*paths, validation=X, batch_size=5, threads=1)
    return Measured(NETS["conv"], quantized, {"image": X}, case, derive(case, rules))


# --- the same numbers, by numpy ------------------------------------------------------------------------------------


def error_of(x: Array, y: Array, axis: int | None = None) -> dict[str, Any]:
    x, y = x.astype(np.float64), y.astype(np.float64)
    d = y - x
    found = {
        "mse": (d * d).mean(),
        "nmse": (d * d).sum() / (x * x).sum(),
        "sqnr_db": 10 * math.log10((x * x).sum() / (d * d).sum()),
        "cosine": (x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum() or 1.0),
        "mean": d.mean(),
        "std": d.std(),
        "max": np.abs(d).max(),
    }
    if axis is not None:
        others = tuple(i for i in range(x.ndim) if i != axis)
        power = (x * x).sum(axis=others)
        ratios = np.where(power > 1e-4 * power.max(), (d * d).sum(axis=others) / np.maximum(power, 1e-30), 0)
        found |= {"worst_channel": int(ratios.argmax()), "worst_channel_sqnr_db": -10 * math.log10(ratios.max())}
    return found


def assert_error(found: ErrorFacts, expected: Mapping[str, Any], rel: float = 1e-3) -> None:
    noise = math.sqrt(expected["mse"])
    for name, value in expected.items():
        tolerance = {
            "mean": {"abs": 2 * rel * noise},
            "cosine": {"abs": 1e-6},
            "sqnr_db": {"abs": 0.01},
            "worst_channel_sqnr_db": {"abs": 0.01},
            "max": {"abs": rel * noise},
        }.get(name, {"rel": rel})
        assert getattr(found, name) == pytest.approx(value, **tolerance), name


def bias_over_std(x: Array, y: Array, axis: int | None) -> float:
    d = y.astype(np.float64) - x
    channels = d.reshape(1, -1) if axis is None else np.moveaxis(d, axis, 0).reshape(d.shape[axis], -1)
    spread = channels.std(axis=1)
    return float((np.abs(channels.mean(axis=1))[spread > 0] / spread[spread > 0]).max())


def quantizers_of(model: onnx.ModelProto) -> dict[str, tuple[str, Array, Array]]:
    """Codes, scale and zero point by the tensor that is quantized."""
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type == "QuantizeLinear" and node.input[0] not in constants]
    return {node.input[0]: (node.output[0], *(constants[name] for name in node.input[1:3])) for node in nodes}


# --- activations ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("name", others_nightly(NETS))
def test_activations_equal_numpy(measure, name, subtests):
    """Distributions of the float values, and errors of values that were cut off and rounded in every way."""
    float_model, feed = NETS[name], FEEDS[name]
    floats = every_tensor(float_model, feed)
    narrow = {key: array * np.float32(0.7) if array.dtype.kind == "f" else array for key, array in feed.items()}
    for recipe in RECIPES if name in ("conv", "attention") else ("uint8", "int8 per channel"):
        with subtests.test(recipe):
            measured = measure(float_model, qdq(float_model, narrow, RECIPES[recipe]), feed, batch_size=5)
            # In 16 bits the error is so small that the resolution of float32 shows in it.
            assert_errors_of_activations(measured, floats, 0.01 if recipe == "int16" else 1e-3)
    for facts in measured.facts.tensors:
        assert_distribution(facts, floats[facts.float_name].astype(np.float64))


def assert_errors_of_activations(measured: Measured, floats: Mapping[str, Array], slack: float) -> None:
    assert not [notice for notice in measured.case.record.notices if "that simulation" in notice]
    quantizers = quantizers_of(measured.quantized)
    codes = run(measured.quantized, measured.feed, [names[0] for names in quantizers.values()])
    assert len(quantizers) >= 4
    for root, (coded, scale, zero) in quantizers.items():
        x = floats[root.removesuffix("_raw")]
        facts = measured.tensor(root.removesuffix("_raw"))
        axis = measured.case.record.tensors[measured.record(facts.float_name)].axis
        assert facts.quantizer.scale == pytest.approx(float(scale))
        deployed = real_of(codes[coded], scale, zero)
        assert_error(facts.data.accumulated, error_of(x, deployed, axis), slack)
        bias = bias_over_std(x, deployed, axis)
        assert facts.data.accumulated.bias_over_std == pytest.approx(bias, rel=0.01, abs=slack)
        rounded = codes_of(x, scale, zero)
        assert_error(facts.data.rounding, error_of(x, real_of(rounded, scale, zero), axis), slack)


def assert_distribution(facts: TensorFacts, x: Array) -> None:
    found = facts.data.values
    assert (found.count, found.samples, found.nonfinite_count) == (x.size, 13, 0)
    for key, value in (("min", x.min()), ("max", x.max()), ("absmax", np.abs(x).max()), ("std", x.std())):
        assert getattr(found, key) == pytest.approx(value, rel=1e-5), key
    assert found.mean == pytest.approx(x.mean(), abs=1e-5 * x.std())
    assert found.negative_share == pytest.approx((x < 0).mean())
    assert found.tail_share == pytest.approx((np.abs(x) > np.abs(x).max() / 2).mean(), abs=0.04)
    for key, q in (("p1", 0.01), ("p50", 0.5), ("p99", 0.99)):
        near = np.quantile(x, [max(q - 0.5 / x.size, 0), min(q + 0.5 / x.size, 1)], method="inverted_cdf")
        slack = 0.125 * np.abs(near).max()
        assert near[0] - slack <= getattr(found, key) <= near[1] + slack, key


def test_quantizers_and_clipping_equal_numpy(usual):
    floats = every_tensor(usual.float_model, {"image": X})
    clipped_somewhere = 0
    for root, (_, scale, zero) in quantizers_of(usual.quantized).items():
        tensor, step, zero = usual.tensor(root.removesuffix("_raw")), float(scale), int(zero)
        own = tensor.quantizer
        low, high = -step * zero, step * (255 - zero)
        assert (own.zero_point, own.bits, own.signed, own.granularity) == (zero, 8, False, "per_tensor")
        assert (own.low, own.high) == (pytest.approx(low), pytest.approx(high))
        x = floats[tensor.float_name].astype(np.float64)
        codes = np.rint(x / step) + zero
        outside = (codes < 0) | (codes > 255)
        d = (np.clip(codes, 0, 255) - zero) * step - x
        found = tensor.data.clipping
        assert found.share == pytest.approx(outside.mean())
        assert found.energy_share == pytest.approx((d[outside] ** 2).sum() / (d**2).sum(), rel=1e-3)
        assert found.overshoot == pytest.approx(max(x.max() - high, low - x.min(), 0) / (high - low), rel=1e-4)
        covered = min(x.max(), high) - max(x.min(), low)
        assert found.utilisation == pytest.approx(covered / (high - low), rel=1e-4)
        clipped_somewhere += outside.sum()
    assert clipped_somewhere > 100


def test_an_activation_folded_into_the_quantizer_does_not_clip(measure):
    """What the missing Relu cuts off is no clipping: the float tensor behind the Relu is what counts."""
    measured = measure(NETS["conv"], without_relu(qdq(NETS["conv"], {"image": X})), {"image": X})
    found = measured.tensor("relu1").data.clipping
    assert (found.share, found.energy_share) == (0, 0)
    assert (measured.tensor("relu1").channels, measured.tensor("relu2").channels) == (4, 6)


def test_halves_of_the_set_follow_the_content_of_the_samples(usual):
    buckets = np.array([hashlib.sha256(x.tobytes()).digest()[0] % 16 for x in X])
    halves = [X[buckets % 2 == half] for half in (0, 1)]
    assert all(len(half) for half in halves)
    widths = [half.max() - half.min() for half in halves]
    found = usual.tensor("image").data.values
    assert found.range_growth == pytest.approx(1 - sum(widths) / 2 / (X.max() - X.min()), rel=1e-5)
    assert found.halves_disagreement == pytest.approx(abs(widths[0] - widths[1]) / (X.max() - X.min()), rel=1e-5)


@pytest.mark.thorough
def test_ranges_of_single_samples_equal_numpy(measure):
    """Also where the channels come last, so that rows are gathered from several samples."""
    x = random(3, 9, 7, 8) * np.geomspace(0.1, 10, 9, dtype=np.float32)[:, None, None]
    model = attention_net()
    floats = every_tensor(model, {"x": x})
    for batch in (1, 5, 64):
        measured = measure(model, qdq(model, {"x": x}), {"x": x}, batch_size=batch)
        for name in ("x", "q", "kt", "dots", "mixed", "y"):
            values = floats[name].reshape(9, -1)
            expected = (values.max(axis=1) - values.min(axis=1)).mean() / (values.max() - values.min())
            found = measured.tensor(name).data.values.sample_range_ratio
            assert found == pytest.approx(expected, rel=1e-5), (batch, name)


def test_channels_are_measured_one_by_one(usual):
    floats = every_tensor(usual.float_model, {"image": X})
    for name, channels in (("image", 3), ("relu1", 4), ("relu2", 6), ("pool", 6)):
        view = usual.case.statistics["validation"].tensor(usual.record(name))
        x = np.moveaxis(floats[name], 1, 0).reshape(channels, -1)
        np.testing.assert_allclose(view.min, x.min(axis=1), rtol=1e-6)
        np.testing.assert_allclose(view.max, x.max(axis=1), rtol=1e-6)
        np.testing.assert_allclose(view.mean, x.mean(axis=1), atol=1e-6)
        tops = np.abs(x).max(axis=1)
        assert usual.tensor(name).data.values.channel_absmax_ratio == pytest.approx(tops.max() / np.median(tops))


@pytest.mark.thorough
@pytest.mark.parametrize("mode", others_nightly(["exact", "fast"]))
def test_deployed_values_of_a_quarter_of_the_samples_are_counted_in_any_order(measure, usual, mode):
    """Samples are chosen by their content: order, batches and shards do not matter."""
    shown = np.array([hashlib.sha256(x.tobytes()).digest()[0] % 16 < SHOWN_BUCKETS for x in X])
    assert 0 < shown.sum() < len(X)
    deployed = every_tensor(usual.quantized, {"image": X})
    others = [
        measure(usual.float_model, usual.quantized, {"image": x}, batch_size=4, mode=mode).case
        for x in (X[::-1].copy(), X[:6], X[6:])
    ]
    for name in ("image", "relu1", "relu2", "pool"):
        values = deployed[f"{name}_dq"][shown]
        expected = np.bincount(values.ravel().view(np.uint32) >> SHIFT, minlength=BINS)
        i = usual.record(name)
        found = [case.statistics["validation"].quantized_histograms[i] for case in (usual.case, others[0])]
        found.append(others[1].merge(others[2]).statistics["validation"].quantized_histograms[i])
        for counts in found:
            np.testing.assert_array_equal(counts, expected, err_msg=name)


def test_operands_of_a_concat_with_very_different_ranges(measure):
    net = Net()
    x = net.input("image", ["n", 3, 8, 8])
    wide = net.add("Mul", net.add("Sigmoid", x, out="share"), net.const("factor", 640.0), out="wide")
    narrow = net.add("Sigmoid", net.conv(x, random(1, 3, 3, 1, 1), out="conv"), out="narrow")
    net.output(net.conv(net.add("Concat", wide, narrow, out="cat", axis=1), random(2, 4, 6, 1, 1), out="y"))
    model = net.model()
    measured = measure(model, qdq(model, {"image": X}), {"image": X})
    floats = every_tensor(model, {"image": X})
    step, zero = quantizers_of(measured.quantized)["cat"][1:]
    assert [o.tensor for o in measured.facts.operands] == ["wide", "narrow"]
    for operand in measured.facts.operands:
        x = floats[operand.tensor].astype(np.float64)
        width = x.max() - x.min()
        assert (operand.layer, operand.op_type) == ("cat", "Concat")
        assert operand.width == pytest.approx(width, rel=1e-5)
        assert operand.range_ratio == pytest.approx(floats["wide"].max() / width, rel=1e-5), "zero is on the grid"
        assert operand.levels == pytest.approx(width / float(step), rel=1e-5)
        joint = error_of(x, real_of(codes_of(x, step, zero), step, zero))["sqnr_db"]
        assert operand.joint_sqnr_db == pytest.approx(joint, abs=0.7)
        own = np.float32(x.max() / 255)
        assert operand.own_sqnr_db == pytest.approx(
            error_of(x, real_of(codes_of(x, own, np.uint8(0)), own, 0))["sqnr_db"], abs=0.7
        )
    assert measured.facts.operands[1].range_ratio > 500
    assert measured.facts.operands[1].joint_sqnr_db < 5
    assert measured.facts.operands[1].own_sqnr_db > 40


def test_operands_of_a_sum(measure):
    measured = measure(NETS["residual"], qdq(NETS["residual"], {"image": X}), {"image": X})
    assert [o.tensor for o in measured.facts.operands if o.layer == "sum1"] == ["sum0", "b1"]


# --- the graph as it is drawn -------------------------------------------------------------------------------------


def operators_of(measured: Measured) -> dict[str, OperatorRecord]:
    return {op.name: op for op in measured.case.record.operators}


@pytest.mark.thorough
def test_attributes_are_short_texts(measure):
    net = Net()
    x = net.conv(
        net.input("image", ["n", 3, 8, 8]), random(1, 4, 3, 3, 3), out="conv", pads=[1, 1, 1, 1], strides=[2, 2]
    )
    x = net.add("LeakyRelu", x, out="leaky", alpha=0.1)
    x = net.add("Resize", x, "", net.const("factors", np.float32([1, 1, 2, 2])), out="large", mode="nearest")
    net.output(net.add("Softmax", x, out="y", axis=-1))
    measured = measure(net.model(), qdq(net.model(), {"image": X}), {"image": X})
    found = {name: op.attributes for name, op in operators_of(measured).items()}
    assert found["conv"] == {"pads": "1, 1, 1, 1", "strides": "2, 2"}
    assert found["leaky"] == {"alpha": "0.1"}
    assert found["large"] == {"mode": "nearest"}
    assert found["y"] == {"axis": "-1"}
    inspection = Inspection(measured.case, measured.facts, quantmedic.load_rulebase())
    graph = json.loads(page_sections(quantmedic.judge(measured.case), inspection)["graph"])
    assert graph["attributes"] == {str(place): texts for place, texts in enumerate(found.values()) if texts}


def test_long_attributes_weights_and_subgraphs_are_left_out():
    subgraph = helper.make_graph([], "inner", [], [])
    given = {
        "epsilon": 1e-5,
        "nothing": float("nan"),
        "names": ["a", "b"],
        "mode": "x" * 41,
        "shape": list(range(9)),
        "value": numpy_helper.from_array(np.float32([1])),
        "body": subgraph,
        "bytes": b"\xff\x00",
        "n" * 41: 1,
    }
    node = helper.make_node("Anything", [], ["y"], **given)
    op = Operator(0, "y", "Anything", [], ["y"], attributes_of(node), node_of(node))
    found = readable_attributes(op)
    assert found == {"epsilon": "1e-05", "nothing": "nan", "names": "a, b", "bytes": "\ufffd\x00"}
    many = helper.make_node("Anything", [], ["y"], **{f"a{i:02}": i for i in range(50)})
    op = Operator(0, "y", "Anything", [], ["y"], attributes_of(many), node_of(many))
    assert len(readable_attributes(op)) == 16


@pytest.mark.nightly
def test_every_operator_of_the_drawn_graph_is_fed_by_those_that_feed_it_in_the_model(measure, subtests):
    """Also where a product is only seen behind its activation, and where integers lie between."""
    for name in ("conv", "residual", "branch", "token", "attention"):
        with subtests.test(name):
            quantized = qdq(NETS[name], FEEDS[name])
            measured = measure(NETS[name], quantized, FEEDS[name])
            inspection = Inspection(measured.case, measured.facts, quantmedic.load_rulebase())
            names = [op.name for op in measured.case.record.operators]
            drawn = {(names[a], names[b]) for a, b in inspection.edges if a >= 0}
            model = NETS[name].graph
            writers = {output: node for node in model.node for output in node.output}
            expected = {
                (writers[source].output[0], node.output[0])
                for node in model.node
                for source in node.input
                if source in writers
            }
            assert drawn == expected
            assert any(a < 0 for a, _ in inspection.edges) == (name != "token")


# --- weights and biases --------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_weights_equal_numpy(measure, subtests):
    for per_channel in (False, True):
        for weights in ("codes", "float"):
            with subtests.test(f"{weights}, per channel {per_channel}"):
                recipe = Recipe(per_channel=per_channel, weights=weights)
                measured = measure(NETS["conv"], qdq(NETS["conv"], {"image": X}, recipe), {"image": X[:2]})
                constants = {t.name: numpy_helper.to_array(t) for t in NETS["conv"].graph.initializer}
                for layer, name, axis in (
                    ("conv1", "conv1.weight", 0),
                    ("conv2", "conv2.weight", 0),
                    ("scores", "fc.weight", 1),
                ):
                    w, found = constants[name].astype(np.float64), measured.layer(layer).weight
                    others = tuple(i for i in range(w.ndim) if i != axis)
                    tops = np.abs(w).max(axis=others)
                    scale = (tops if per_channel else tops.max()) / 127
                    shape = [1] * w.ndim
                    shape[axis] = -1
                    step = scale.reshape(shape) if per_channel else scale
                    assert_error(found.rounding, error_of(w, np.rint(w / step) * step, axis))
                    assert found.name == name
                    assert found.quantizer.granularity == ("per_channel" if per_channel else "per_tensor")
                    assert found.quantizer.scale == pytest.approx(scale.max())
                    assert (found.channels, found.dead_channels) == (len(tops), 0)
                    assert found.channel_range_ratio == pytest.approx(tops.max() / tops.min(), rel=1e-5)
                    assert (found.min, found.max) == (pytest.approx(w.min()), pytest.approx(w.max()))
                    assert found.absmax_over_std == pytest.approx(np.abs(w).max() / w.std(), rel=1e-5)
                    stored = np.rint(w / step) * step
                    assert (found.stored_min, found.stored_max) == (
                        pytest.approx(stored.min()),
                        pytest.approx(stored.max()),
                    )
                    assert found.stored_mean == pytest.approx(stored.mean(), abs=1e-6)
                    assert found.stored_std == pytest.approx(stored.std(), rel=1e-5)
                    assert_weight_arrays(measured.weights(layer), w, stored, axis)


def assert_weight_arrays(found: WeightArrays, w: Array, stored: Array, axis: int) -> None:
    """Channels from the worst to the best, and distributions of all weights over one range."""
    x, y = (np.moveaxis(a, axis, 0).reshape(a.shape[axis], -1) for a in (w, stored))
    levels = 10 * np.log10((x * x).sum(1) / ((y - x) ** 2).sum(1))
    assert sorted(found.index) == list(range(len(x)))
    np.testing.assert_allclose(found.sqnr_db, levels[found.index], atol=1e-3)
    assert (np.diff(found.sqnr_db) >= 0).all()
    for name, expected in (("low", x.min(1)), ("high", x.max(1)), ("stored_low", y.min(1)), ("stored_high", y.max(1))):
        np.testing.assert_allclose(getattr(found, name), expected[found.index], rtol=1e-6, atol=1e-7)
    assert (found.start, found.stop) == (pytest.approx(min(x.min(), y.min())), pytest.approx(max(x.max(), y.max())))
    assert found.floats.sum() == found.stored.sum() == w.size
    counts = np.histogram(x, WEIGHT_BINS, (found.start, found.stop))[0]
    assert np.abs(np.cumsum(found.floats - counts)).max() <= 1  # a weight on an edge may fall on either side
    assert found.heights is not None
    for channel, heights in zip(x[found.index], found.heights.astype(float), strict=True):
        counts = np.histogram(channel, CHANNEL_BINS, (found.start, found.stop))[0]
        assert heights.max() == 255
        shares = heights * counts.max() / 255 - counts
        assert np.abs(np.cumsum(shares)).max() <= 1 + len(heights) * counts.max() / 255


def test_a_dead_channel_of_weights(measure):
    net = Net()
    weight = random(1, 4, 3, 1, 1)
    weight[2] = 0
    net.output(net.conv(net.input("image", ["n", 3, 8, 8]), weight, out="y"))
    measured = measure(net.model(), qdq(net.model(), {"image": X}), {"image": X[:2]})
    assert measured.layer("y").weight.dead_channels == 1
    assert measured.layer("y").weight.channel_range_ratio < 100
    arrays = measured.weights("y")
    assert arrays.index[-1] == 2
    assert np.isnan(arrays.sqnr_db).tolist() == [False, False, False, True]
    assert arrays.heights is not None
    assert np.count_nonzero(arrays.heights[-1]) == 1  # all of its weights are 0


@pytest.mark.thorough
def test_of_many_channels_the_worst_are_kept(measure):
    net, count = Net(), WEIGHT_CHANNELS + 44
    weight = random(1, count, 3, 3, 3) * np.linspace(1, 0.1, count, dtype=np.float32).reshape(-1, 1, 1, 1)
    net.output(net.conv(net.input("image", ["n", 3, 8, 8]), weight, out="y"))
    measured = measure(net.model(), qdq(net.model(), {"image": X}), {"image": X})
    arrays = measured.weights("y")
    assert len(arrays.index) == WEIGHT_CHANNELS
    assert arrays.heights is not None
    assert (arrays.heights.shape, arrays.heights.dtype) == ((WEIGHT_CHANNELS, CHANNEL_BINS), np.uint8)
    assert arrays.sqnr_db[0] == pytest.approx(measured.layer("y").weight.rounding.worst_channel_sqnr_db, abs=1e-3)
    assert arrays.index[0] == measured.layer("y").weight.rounding.worst_channel
    assert arrays.floats.sum() == weight.size


def test_equal_weights_and_weights_that_are_not_finite():
    same = weight_arrays(np.full((2, 3), 0.5, np.float32), np.full((2, 3), 0.5, np.float32), 0)
    assert same is not None
    assert (same.start, same.stop, same.floats.sum()) == (0.0, 1.0, 6)
    assert np.isposinf(same.sqnr_db).all()
    for bad in (np.nan, np.inf, -np.inf):
        broken = np.ones((2, 3), np.float32)
        broken[1, 2] = bad
        assert weight_arrays(np.ones((2, 3), np.float32), broken, 0) is None
        assert weight_arrays(broken, np.ones((2, 3), np.float32), None) is None


def test_bias_codes_equal_numpy(usual):
    constants = {t.name: numpy_helper.to_array(t) for t in usual.quantized.graph.initializer}
    floats = {t.name: numpy_helper.to_array(t) for t in usual.float_model.graph.initializer}
    for layer, source, bias in (("conv1", "image", "conv1"), ("conv2", "relu1", "conv2"), ("scores", "flat", "fc")):
        step = float(constants[f"{source}_dq_codes_scale"]) * float(constants[f"{bias}.weight_q_scale"])
        b, found = floats[f"{bias}.bias"].astype(np.float64), usual.layer(layer).bias
        assert found.max_code == pytest.approx((np.abs(b) / step).max(), rel=1e-5)
        assert (found.bits, found.overflowing_channels) == (32, 0)
        assert found.max_error == pytest.approx(np.abs(np.rint(b / step) * step - b).max(), rel=1e-3)


def normed(gain: Array) -> onnx.ModelProto:
    net = Net()
    net.const("gain", gain)
    net.output(net.add("Mul", net.input("image", ["n", 3, 8, 8]), "gain", out="y"))
    return net.model()


@pytest.mark.thorough
def test_errors_of_other_constants_equal_numpy(measure, subtests):
    """Uint8 codes around 100; of the last two values, one was cut off and one is another."""
    for axis in (None, 0):
        with subtests.test(f"axis {axis}"):
            gain = random(8, 8)
            step = np.float32([0.01] * 8 if axis is None else np.geomspace(0.008, 0.03, 8))
            zero = np.uint8(100) if axis is None else np.full(8, 100, np.uint8)
            codes = np.clip(np.rint(gain / step) + 100, 0, 255).astype(np.uint8)
            gain[6], codes[6], codes[7] = 1000, 255, codes[7] + 40
            net = Net()
            x = net.input("image", ["n", 3, 8, 8])
            parameters = (np.float32(0.01), zero, {}) if axis is None else (step, zero, {"axis": axis})
            held = net.stored("gain", codes, *parameters[:2], **parameters[2])
            net.output(net.add("Mul", net.quantize(x, 0.03, np.uint8(128)), held, out="y"))
            found = measure(normed(gain), net.model(), {"image": X}).layer("y").constant
            stored = (codes.astype(np.float64) - 100) * step
            off = np.abs(stored - gain)
            cut = np.clip(gain, -100 * step.astype(np.float64), 155 * step.astype(np.float64))
            assert (found.name, found.bits) == ("gain", 8)
            assert found.max_error == pytest.approx(off.max(), rel=1e-5)
            assert found.max_error_steps == pytest.approx((off / step).max(), rel=1e-5)
            assert found.misplaced_steps == pytest.approx((np.abs(stored - cut) / step).max(), rel=1e-4)
            assert found.misplaced_steps == pytest.approx(40, abs=0.51)
            assert found.rounding.sqnr_db == pytest.approx(10 * np.log10((gain**2).sum() / (off**2).sum()), abs=1e-3)


@pytest.mark.thorough
def test_of_several_other_constants_the_one_that_is_furthest_off_is_told(measure):
    gain, offset = np.abs(random(1, 8)), random(2, 8)

    def layer_norm(factor: float) -> onnx.ModelProto:
        net = Net()
        net.const("gain", gain)
        net.const("offset", np.float32(offset * factor))
        x = net.input("image", ["n", 3, 8, 8])
        net.output(net.add("LayerNormalization", x, "gain", "offset", out="y", axis=-1))
        return net.model()

    net = Net()
    x = net.quantize(net.input("image", ["n", 3, 8, 8]), 0.03, np.uint8(128))
    held = [
        net.stored(name, codes_of(value, np.float32(0.03), np.int8(0)), 0.03)
        for name, value in (("gain", gain), ("offset", offset))
    ]
    net.output(net.add("LayerNormalization", x, *held, out="y", axis=-1))
    quantized = net.model()
    for factor, name in ((1.5, "offset"), (1.0, None)):
        found = measure(layer_norm(factor), quantized, {"image": X}).layer("y").constant
        assert (found.misplaced_steps > 5) == (name is not None)
        assert name in (found.name, None)


def test_constants_of_what_is_no_number_are_not_judged(measure):
    mask = np.float32([0, -np.inf] * 4)
    net, held = Net(), Net()
    net.const("mask", mask)
    net.output(net.add("Add", net.input("image", ["n", 3, 8, 8]), "mask", out="y"))
    x = held.quantize(held.input("image", ["n", 3, 8, 8]), 0.03, np.uint8(128))
    held.output(held.add("Add", x, held.stored("mask", np.int8([0, -127] * 4), 10.0), out="y"))
    found = measure(net.model(), held.model(), {"image": X}).layer("y").constant
    assert (found.name, found.bits, found.max_error_steps, found.rounding.sqnr_db) == ("mask", 8, None, None)


@pytest.mark.thorough
def test_bias_that_overflows_int32(measure):
    """A channel of tiny weights has a tiny step, on which its bias does not fit."""
    net = Net()
    weight = random(1, 4, 3, 3, 3)
    weight[2] *= 1e-6
    net.output(net.conv(net.input("image", ["n", 3, 8, 8]), weight, np.float32([1, 2, 30, -3]), out="y"))
    model = net.model()
    measured = measure(model, qdq(model, {"image": X}, Recipe(per_channel=True)), {"image": X})
    found = measured.layer("y").bias
    constants = {t.name: numpy_helper.to_array(t) for t in measured.quantized.graph.initializer}
    step = constants["image_dq_codes_scale"].astype(np.float64) * constants["y.weight_q_scale"]
    assert found.max_code == pytest.approx(30 / step[2], rel=1e-5)
    assert found.max_code > 2**31
    assert found.overflowing_channels == 1
    assert found.max_error == pytest.approx(30 - 2**31 * step[2], rel=1e-3)
    assert measured.tensor("y").data.accumulated.worst_channel == 2
    # One step for all channels is not so small.
    assert measure(model, qdq(model, {"image": X}), {"image": X}).layer("y").bias.overflowing_channels == 0
    # A tool that does not clamp stores whatever is left of the code: it overflows all the same.
    codes = constants["y.bias_q_codes"].copy()
    codes[2] = 12345
    (stored,) = (t for t in measured.quantized.graph.initializer if t.name == "y.bias_q_codes")
    stored.CopyFrom(numpy_helper.from_array(codes, stored.name))
    assert measure(model, measured.quantized, {"image": X}).layer("y").bias.overflowing_channels == 1


def test_folded_weights_are_not_compared_with_the_weights_before(measure):
    gamma = np.random.default_rng(1).uniform(0.7, 1.4, 4).astype(np.float32)
    weight = random(1, 4, 3, 3, 3)
    nets = []
    for folded in (False, True):
        net = Net()
        x = net.input("image", ["n", 3, 8, 8])
        if folded:
            x = net.conv(x, weight * gamma[:, None, None, None], np.zeros(4, np.float32), out="normed")
        else:
            x = net.conv(x, weight, out="conv")
            for name, value in (("gamma", gamma), ("zero", np.zeros(4, np.float32)), ("one", np.ones(4, np.float32))):
                net.const(name, value)
            x = net.add("BatchNormalization", x, "gamma", "zero", "zero", "one", out="normed", epsilon=0.0)
        net.output(net.add("Relu", x, out="y"))
        nets.append(net.model())
    found = measure(nets[0], qdq(nets[1], {"image": X}), {"image": X}).facts.layers[0].weight.rounding
    assert found.sqnr_db is None or found.sqnr_db > 35


def test_transposed_weights_are_compared(measure):
    models = []
    for transposed in (0, 1):
        net = Net()
        net.const("w", random(1, 6, 4).T.copy() if transposed else random(1, 6, 4))
        net.const("b", random(2, 4))
        net.output(net.add("Gemm", net.input("x", ["n", 6]), "w", "b", out="y", transB=transposed))
        models.append(net.model())
    feed = {"x": random(3, 9, 6)}
    found = measure(models[0], qdq(models[1], feed), feed).layer("y").weight
    assert found.rounding.sqnr_db == pytest.approx(45, abs=8)


# --- step error ----------------------------------------------------------------------------------------------------


def test_step_error_is_that_of_the_float_operator_on_deployed_inputs(measure):
    quantized = qdq(NETS["conv"], {"image": X}, RECIPES["int8 per channel"])
    measured = measure(NETS["conv"], quantized, {"image": X}, step_error=True, batch_size=5)
    quantizers = quantizers_of(quantized)
    deployed = run(quantized, {"image": X}, [codes for codes, *_ in quantizers.values()])
    real = {
        root: real_of(deployed[codes], scale, zero).astype(np.float32)
        for root, (codes, scale, zero) in quantizers.items()
    }
    # What the network is given reaches the float operator unrounded, as in LiteRT's debugger.
    for before, after in (("image", "relu1"), ("relu1", "relu2"), ("relu2", "pool"), ("flat", "scores_raw")):
        name = after.removesuffix("_raw")
        given = X if before == "image" else real[before]
        (alone,) = run(section(NETS["conv"], before, name), {before: given}).values()
        assert_error(measured.tensor(name).data.step, error_of(alone, real[after]), rel=1e-3)
    assert measured.tensor("image").data.step.mse is None


@pytest.mark.nightly
@pytest.mark.source("litert-whole-model")
def test_operators_of_other_nets_err_no_more_than_all_before_them(measure, subtests):
    for name in ("residual", "branch", "two way", "token", "attention"):
        with subtests.test(name):
            quantized = qdq(NETS[name], FEEDS[name])
            measured = measure(NETS[name], quantized, FEEDS[name], step_error=True)
            found = [facts.data for facts in measured.facts.tensors if facts.producer != "Input"]
            assert found and all(data.step.mse is not None for data in found)
            assert all(data.step.mse <= 1.5 * data.accumulated.mse + 1e-12 for data in found)


# --- what the runtime executes -------------------------------------------------------------------------------------


def kernels(measured: Measured) -> dict[str, str | None]:
    return {layer.name: layer.executed_as for layer in measured.facts.layers if layer.is_compute}


@pytest.mark.thorough
def test_integer_kernels_are_recognized(measure, tmp_path, subtests):
    """Of every format, and where nodes have no names."""
    nameless = qdq(NETS["conv"], {"image": X})
    for node in nameless.graph.node:
        node.name = ""
    formats = (QuantFormat.QDQ, QuantFormat.QOperator)
    models = {form.name: static(NETS["conv"], {"image": X}, tmp_path, quant_format=form) for form in formats}
    for name, quantized in (models | {"by hand, without names": nameless}).items():
        with subtests.test(name):
            measured = measure(NETS["conv"], quantized, {"image": X})
            assert list(kernels(measured).values()) == ["integer"] * 3
            assert measured.facts.model.integer_share == 1


def test_float_kernels_are_recognized(measure):
    """Nothing but the weights is quantized: every convolution runs in float."""
    tensors = [name for op in NETS["residual"].graph.node for name in op.output]
    quantized = qdq(NETS["residual"], {"image": X}, Recipe(skip=("image", *tensors)))
    measured = measure(NETS["residual"], quantized, {"image": X})
    assert set(kernels(measured).values()) == {"float"}
    assert measured.facts.model.integer_share == 0


# --- batches, order, threads, shards -------------------------------------------------------------------------------

EXACT = ("count", "nonfinite", "clipped", "accumulated.count", "rounding.count")
LATTICE = np.round(X * 20).clip(-100, 100).astype(np.float32) / 20


def assert_same_statistics(a: SetStatistics, b: SetStatistics, *, extremes: float = 0.0) -> None:
    """Counts, extremes and histograms are exact; ``extremes``: slack where float kernels depend on the batch."""
    np.testing.assert_array_equal(a.channels, b.channels)
    for name in a.columns:
        kind = name.rpartition(".")[2]
        if name in EXACT:
            np.testing.assert_array_equal(a.columns[name], b.columns[name], err_msg=name)
        elif kind in ("min", "max"):
            np.testing.assert_allclose(a.columns[name], b.columns[name], rtol=extremes, atol=extremes, err_msg=name)
        else:
            scale = np.abs(a.columns[name]).max(initial=1.0)
            np.testing.assert_allclose(a.columns[name], b.columns[name], rtol=1e-4, atol=1e-5 * scale, err_msg=name)
    for i in a.histograms:
        moved = np.abs(a.histograms[i] - b.histograms[i]).sum()
        assert moved <= (0 if extremes == 0 else 0.002 * a.histograms[i].sum()), i
    np.testing.assert_allclose(a.bucket_min, b.bucket_min, rtol=extremes, atol=extremes)
    np.testing.assert_allclose(a.bucket_max, b.bucket_max, rtol=extremes, atol=extremes)
    np.testing.assert_array_equal(a.tensor_samples, b.tensor_samples)
    assert sorted(a.samples["hash"]) == sorted(b.samples["hash"])
    for mine, theirs in zip(a.lattice, b.lattice, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for mine, theirs in zip(a.codes, b.codes, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert a.feature_count == b.feature_count
    np.testing.assert_allclose(a.feature_sum, b.feature_sum, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(a.feature_outer, b.feature_outer, rtol=1e-4, atol=1e-3)
    assert a.flipped_count == b.flipped_count
    np.testing.assert_allclose(a.flipped_sum, b.flipped_sum, rtol=1e-4, atol=1e-4)


def statistics_of(measure: Any, x: Array, **options: Any) -> SetStatistics:
    measured = measure(NETS["conv"], qdq(NETS["conv"], {"image": LATTICE}), {"image": x}, **options)
    return measured.case.statistics["validation"]


@pytest.mark.nightly
def test_batches_threads_and_the_order_of_samples_do_not_matter(measure, subtests):
    order = np.random.default_rng(3).permutation(len(LATTICE))
    whole = statistics_of(measure, LATTICE, batch_size=8)
    for options in ({"batch_size": 3}, {"batch_size": 50}, {"threads": 2}):
        with subtests.test(str(options)):
            assert_same_statistics(whole, statistics_of(measure, LATTICE, **options), extremes=1e-6)
    assert_same_statistics(whole, statistics_of(measure, LATTICE[order], batch_size=4), extremes=1e-6)
    # One sample at a time is exact.
    single = statistics_of(measure, LATTICE, batch_size=1)
    assert_same_statistics(whole, single, extremes=1e-6)
    again = statistics_of(measure, LATTICE[order], batch_size=1)
    assert_same_statistics(single, again)
    for name in single.samples.dtype.names:
        np.testing.assert_array_equal(again.samples[name], single.samples[name][order], err_msg=name)
    limited = statistics_of(measure, LATTICE, samples=5, batch_size=4)
    assert_same_statistics(limited, statistics_of(measure, LATTICE[:5], batch_size=4))


# --- data sets ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_one_data_set_is_enough(measure, subtests):
    for role in ("representative", "validation"):
        with subtests.test(role):
            measured = measure(NETS["conv"], qdq(NETS["conv"], {"image": X}), {}, **{role: X})
            other = {"representative": "validation", "validation": "representative"}[role]
            for facts in measured.facts.tensors:
                assert facts.data == getattr(facts, role)
                assert facts.data.dataset == role
                assert getattr(facts, other).values.count is None
            samples = {dataset.role: dataset.samples for dataset in measured.facts.datasets}
            assert samples == {role: len(X), other: None}
            quantmedic.judge(measured.case)


def test_non_finite_data_are_a_finding(measure):
    x = X.copy()
    x[3, 0, 0, 0], x[5], x[6, 1] = np.nan, np.nan, np.inf
    measured = measure(NETS["conv"], qdq(NETS["conv"], {"image": X}), {"image": x})
    found = measured.tensor("image").data
    finite = x[np.isfinite(x)].astype(np.float64)
    assert found.values.nonfinite_count == x.size - finite.size
    assert found.values.count == finite.size
    assert (found.values.min, found.values.max) == (finite.min(), finite.max())
    assert found.values.mean == pytest.approx(finite.mean())
    assert measured.facts.model.input_nonfinite
    assert measured.facts.datasets[1].nonfinite_samples == 3
    known = [t.data.accumulated.sqnr_db for t in measured.facts.tensors if t.data.accumulated.sqnr_db is not None]
    assert known and all(math.isfinite(sqnr_db) for sqnr_db in known)
    quantmedic.judge(measured.case)


@pytest.mark.filterwarnings("error")
def test_nothing_but_nan_is_a_finding_without_warnings(measure):
    measured = measure(NETS["conv"], qdq(NETS["conv"], {"image": X}), {"image": np.full_like(X, np.nan)})
    assert measured.tensor("image").data.values.nonfinite_count == X.size
    assert measured.tensor("image").data.values.max is None
    assert measured.tensor("scores").data.accumulated.mse is None
    quantmedic.judge(measured.case)


def test_nan_born_in_the_float_model_is_located(measure):
    net = Net()
    x = net.add("Sqrt", net.conv(net.input("image", ["n", 3, 8, 8]), random(1, 4, 3, 1, 1), out="conv"), out="root")
    net.output(net.conv(x, random(2, 2, 4, 1, 1), out="y"))
    float_model = net.model()
    quantized = qdq(float_model, {"image": np.abs(X)}, Recipe(skip=("root", "y")))
    measured = measure(float_model, quantized, {"image": X})
    assert measured.facts.model.first_nonfinite_layer == "root"
    assert not measured.facts.model.input_nonfinite


def test_a_mask_of_the_lowest_float_leaves_numbers(measure):
    net = Net()
    net.const("w", random(1, 6, 6))
    net.const("mask", np.float32([0, 0, np.finfo(np.float32).min, 0, 0, 0]))
    x = net.add("Add", net.add("MatMul", net.input("x", ["n", 6]), "w", out="h"), "mask", out="masked")
    net.output(net.add("Softmax", x, out="y"))
    feed = {"x": random(3, 9, 6)}
    measured = measure(net.model(), qdq(net.model(), feed, Recipe(skip=("masked",))), feed)
    found = measured.tensor("masked").data.accumulated
    assert 0.99 < found.cosine <= 1


# --- outputs -------------------------------------------------------------------------------------------------------


def outputs_of(kind: str) -> onnx.ModelProto:
    net = Net()
    x = net.conv(net.input("image", ["n", 3, 8, 8]), random(1, 4, 3, 3, 3), random(2, 4), out="conv")
    if kind == "classes":
        net.output(net.add("ArgMax", x, out="y", axis=1), TensorProto.INT64)
    elif kind == "one number":
        net.output(net.add("ReduceMean", x, out="y", axes=[1, 2, 3], keepdims=0))
    elif kind == "one number for all":
        net.output(net.add("ReduceMean", x, out="y", keepdims=0))
    elif kind == "one column":
        net.output(net.add("Flatten", net.add("ReduceMean", x, out="mean", axes=[1, 2, 3]), out="y"))
    elif kind == "indices":
        net.output(net.add("NonZero", net.add("Relu", x, out="relu"), out="y"), TensorProto.INT64)
    else:
        net.output(net.add("Relu", x, out="y"))
    return net.model()


@pytest.mark.nightly
def test_outputs_that_are_no_class_scores(measure, subtests):
    for kind in ("map", "classes", "one number", "one column", "indices", "one number for all"):
        with subtests.test(kind):
            model = outputs_of(kind)
            measured = measure(model, qdq(model, {"image": X}), {"image": X})
            assert measured.facts.model.output_agreement is None
            known = [
                t.data.accumulated.sqnr_db for t in measured.facts.tensors if t.data.accumulated.sqnr_db is not None
            ]
            assert known and min(known) > 25
            quantmedic.judge(measured.case)


def test_classes_margins_and_ties_equal_numpy(usual):
    scores = run(usual.float_model, {"image": X})["scores"]
    quantized = run(usual.quantized, {"image": X})["scores"]
    best = np.sort(scores, axis=1)
    found = usual.case.statistics["validation"].samples
    np.testing.assert_array_equal(found["class_float"], scores.argmax(axis=1))
    np.testing.assert_array_equal(found["class_quantized"], quantized.argmax(axis=1))
    np.testing.assert_allclose(found["margin"], best[:, -1] - best[:, -2], rtol=1e-4)
    agreement = (scores.argmax(axis=1) == quantized.argmax(axis=1)).mean()
    assert usual.facts.model.output_agreement == pytest.approx(agreement)
    (output,) = usual.facts.outputs
    assert output.distinct_levels_worst_column == min(len(np.unique(column)) for column in quantized.T)


def test_a_float_model_that_ends_on_its_own_input_is_measured(measure):
    """A session that is asked for no output gives all of them."""
    model = onnx.ModelProto()
    model.CopyFrom(NETS["conv"])
    del model.graph.output[:]
    model.graph.output.append(model.graph.input[0])
    found = measure(model, qdq(NETS["conv"], {"image": X}), {"image": X[:4]})
    assert found.case.record.datasets["validation"].seen == 4


def test_several_inputs_and_outputs(measure):
    quantized, _ = renamed(qdq(NETS["two way"], FEEDS["two way"]))
    measured = measure(NETS["two way"], quantized, FEEDS["two way"])
    expected, found = run(NETS["two way"], FEEDS["two way"]), run(quantized, FEEDS["two way"])
    assert [o.name for o in measured.facts.outputs] == ["first", "second"]
    for output in measured.facts.outputs:
        assert_error(output.tensor.data.accumulated, error_of(expected[output.name], found[output.name]))


@pytest.mark.thorough
def test_inputs_and_outputs_in_another_order_and_an_output_less(measure):
    quantized = qdq(NETS["two way"], FEEDS["two way"])
    straight = measure(NETS["two way"], quantized, FEEDS["two way"])
    for ends in (quantized.graph.input, quantized.graph.output):
        turned = list(ends)[::-1]
        del ends[:]
        ends.extend(turned)
    turned = measure(NETS["two way"], quantized, FEEDS["two way"])
    assert turned.facts.model.output_agreement == straight.facts.model.output_agreement
    assert [o.tensor.name for o in turned.facts.outputs] == [o.tensor.name for o in straight.facts.outputs]
    for tensor in turned.facts.tensors:
        noise = straight.tensor(tensor.float_name).data.accumulated.sqnr_db
        assert tensor.data.accumulated.sqnr_db == pytest.approx(noise, abs=1e-3), tensor.float_name
    del quantized.graph.output[1]
    (output,) = measure(NETS["two way"], quantized, FEEDS["two way"]).facts.outputs
    assert (output.name, output.tensor.float_name) == ("second", "second")


def test_integer_inputs_are_no_lost_measurements(measure):
    measured = measure(NETS["token"], qdq(NETS["token"], FEEDS["token"]), FEEDS["token"])
    assert not any("ids" in notice for notice in measured.case.record.notices)
    assert "ids" not in {t.float_name for t in measured.facts.tensors}
    assert measured.tensor("embedded").quantizer.bits == 8


# --- inputs of eight bits ------------------------------------------------------------------------------------------


def test_both_models_take_bytes(measure):
    net = Net()
    x = net.add("Cast", net.input("image", ["n", 3, 8, 8], TensorProto.UINT8), out="cast", to=TensorProto.FLOAT)
    x = net.add("Mul", x, net.const("factor", 1 / 255), out="scaled")
    net.output(net.conv(x, random(1, 4, 3, 3, 3), out="y"))
    feed = {"image": np.random.default_rng(0).integers(0, 256, (9, 3, 8, 8)).astype(np.uint8)}
    measured = measure(net.model(), qdq(net.model(), feed), feed)
    assert measured.tensor("scaled").data.values.max == pytest.approx(1)
    assert measured.tensor("y").data.accumulated.sqnr_db > 30


def test_quantized_model_takes_codes_where_the_float_one_takes_numbers(measure):
    quantized = qdq(NETS["conv"], {"image": X})
    first = next(node for node in quantized.graph.node if node.op_type == "QuantizeLinear")
    codes = first.output[0]
    quantized.graph.node.remove(first)
    quantized.graph.input[0].CopyFrom(helper.make_tensor_value_info(codes, TensorProto.UINT8, ["n", 3, 8, 8]))
    measured = measure(NETS["conv"], quantized, {"image": X})
    assert measured.tensor("scores").data.accumulated.sqnr_db > 30


# --- formats -------------------------------------------------------------------------------------------------------

STATIC = {
    "qdq": {"quant_format": QuantFormat.QDQ},
    "qdq int8": {
        "quant_format": QuantFormat.QDQ,
        "activation_type": QuantType.QInt8,
        "weight_type": QuantType.QInt8,
        "per_channel": True,
    },
    "qoperator": {"quant_format": QuantFormat.QOperator},
    "qoperator per channel": {"quant_format": QuantFormat.QOperator, "per_channel": True},
}


@pytest.mark.nightly
def test_statically_quantized_models(measure, tmp_path, subtests):
    """Facts of the scores equal numpy, and no tensor's error is larger than eight bits explain."""
    for name in ("residual", "branch"):
        for options in STATIC:
            with subtests.test(f"{name}, {options}"):
                quantized = static(NETS[name], {"image": X}, tmp_path, **STATIC[options])
                measured = measure(NETS[name], quantized, {"image": X}, batch_size=13)
                model = measured.facts.model
                assert model.format == ("QDQ" if "qdq" in options else "QOperator")
                assert model.quantized_share == 1
                assert not [notice for notice in measured.case.record.notices if "measured" in notice]
                expected, found = run(NETS[name], {"image": X})["scores"], run(quantized, {"image": X})["scores"]
                (output,) = measured.facts.outputs
                assert_error(output.tensor.data.accumulated, error_of(expected, found))
                for tensor in measured.facts.tensors:
                    assert tensor.data.accumulated.sqnr_db > 25, tensor.float_name
                    assert tensor.data.rounding.sqnr_db > 30, tensor.float_name
                weights = [layer.weight for layer in measured.facts.layers if layer.is_compute]
                assert all(35 < weight.rounding.sqnr_db < 60 for weight in weights)
                assert {weight.quantizer.granularity for weight in weights} == (
                    {"per_channel"} if STATIC[options].get("per_channel") else {"per_tensor"}
                )


@pytest.mark.thorough
def test_dynamically_quantized_models(measure, tmp_path, subtests):
    for name in ("conv", "two way"):
        with subtests.test(name):
            quantized = dynamic(NETS[name], tmp_path)
            measured = measure(NETS[name], quantized, FEEDS[name], batch_size=13)
            assert measured.facts.model.format == "dynamic"
            assert measured.facts.model.quantized_share == 1
            for output in measured.facts.outputs:
                expected, found = (run(model, FEEDS[name])[output.name] for model in (NETS[name], quantized))
                assert_error(output.tensor.data.accumulated, error_of(expected, found))
            for layer in measured.facts.layers:
                if layer.is_compute:
                    assert layer.weight.quantizer.bits == 8
                    assert layer.output.data.rounding.mse is None
            inputs = [t for t in measured.facts.tensors if t.producer == "Input"]
            assert all(t.quantizer.dynamic for t in inputs)
            # ConvInteger and MatMulInteger hold zero points alone: the scale stands in a multiplication behind them.
            weights = [layer.weight for layer in measured.facts.layers if layer.weight.quantizer.bits]
            stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in quantized.graph.initializer}
            scales = {float(value) for key, value in stored.items() if key.endswith("_scale") and value.size == 1}
            assert weights and all(np.float32(weight.quantizer.scale) in scales for weight in weights)
            assert all(weight.rounding.sqnr_db > 30 and weight.misplaced_share == 0 for weight in weights)


@pytest.mark.thorough
def test_codes_gathered_from_an_embedding_are_not_taken_for_numbers(measure, tmp_path, subtests):
    for kind in ("static", "dynamic"):
        with subtests.test(kind):
            if kind == "static":
                quantized = static(NETS["token"], FEEDS["token"], tmp_path, quant_format=QuantFormat.QOperator)
            else:
                quantized = dynamic(NETS["token"], tmp_path)
            measured = measure(NETS["token"], quantized, FEEDS["token"])
            found = [t.data.accumulated.sqnr_db for t in measured.facts.tensors if t.float_name == "embedded"]
            assert all(sqnr is None or sqnr > 30 for sqnr in found)


def test_codes_behind_pad_and_resize_are_not_taken_for_numbers(measure, tmp_path):
    net = Net(13)
    x = net.conv(net.input("image", ["n", 3, 8, 8]), random(1, 4, 3, 3, 3), out="conv")
    x = net.add("Pad", x, net.const("pads", np.array([0, 0, 1, 1, 0, 0, 1, 1])), out="pad", mode="reflect")
    net.const("none", np.float32([]))
    x = net.add("Resize", x, "none", net.const("scales", np.float32([1, 1, 2, 2])), out="up", mode="nearest")
    net.output(net.conv(x, random(2, 2, 4, 1, 1), out="y"))
    quantized = static(net.model(), {"image": X}, tmp_path, quant_format=QuantFormat.QOperator)
    measured = measure(net.model(), quantized, {"image": X})
    assert all(t.data.accumulated.sqnr_db > 25 for t in measured.facts.tensors if t.data.accumulated.mse is not None)


def test_activation_with_a_quantizer_per_channel(measure):
    net = Net()
    net.const("w", random(1, 4, 3))
    net.output(net.add("MatMul", net.input("x", ["n", 4]), "w", out="y"))
    float_model = net.model()
    net = Net()
    net.const("w", random(1, 4, 3))
    scale, zero = np.float32([0.01, 0.02, 0.03, 0.04]), np.full(4, 128, np.uint8)
    x = net.quantize(net.input("x", ["n", 4]), scale, zero, axis=1)
    net.output(net.add("MatMul", x, "w", out="y"))
    x = random(2, 9, 4)
    found = measure(float_model, net.model(), {"x": x}).tensor("x").data.rounding
    assert_error(found, error_of(x, real_of(codes_of(x, scale, zero, 1), scale, zero, 1)))


@pytest.mark.thorough
def test_every_opset_gives_the_same_facts(measure, usual, subtests):
    for opset in (10, 13, 21, 25):
        with subtests.test(f"opset {opset}"):
            quantized = qdq(conv_net(opset), {"image": X * np.float32(0.66)})
            measured = measure(conv_net(opset), quantized, {"image": X}, batch_size=5)
            assert measured.facts.model.opset == opset
            for mine, theirs in zip(measured.facts.tensors, usual.facts.tensors, strict=True):
                assert mine.float_name == theirs.float_name
                assert mine.data.accumulated.sqnr_db == pytest.approx(theirs.data.accumulated.sqnr_db, abs=1e-3)
            for mine, theirs in zip(measured.facts.layers, usual.facts.layers, strict=True):
                assert (mine.weight, mine.bias) == (theirs.weight, theirs.bias)


def test_external_data_and_renamed_nodes_give_the_same_facts(tmp_path, usual, rules):
    paths = tmp_path / "float.onnx", tmp_path / "quantized.onnx"
    for path, model in zip(paths, (usual.float_model, renamed(usual.quantized)[0]), strict=True):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        onnx.save(copy, path, save_as_external_data=True, location=f"{path.stem}.bin", size_threshold=0)
    case = quantmedic.collect(*paths, validation=X, batch_size=5, threads=1)
    facts = derive(case, rules)
    for mine, theirs in zip(facts.tensors, usual.facts.tensors, strict=True):
        assert mine.data == theirs.data
    assert facts.model.bytes_float >= usual.facts.model.bytes_float - 2000
    assert case.record.run["float_sha256"] != usual.case.record.run["float_sha256"]


# --- shapes --------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_fixed_batch_of_one(measure, usual):
    model = conv_net(batch=1)
    quantized = qdq(conv_net(), {"image": X * np.float32(0.66)})
    for value in (*quantized.graph.input, *quantized.graph.output):
        value.type.tensor_type.shape.dim[0].Clear()
        value.type.tensor_type.shape.dim[0].dim_value = 1
    measured = measure(model, quantized, {"image": X}, batch_size=8)
    for mine, theirs in zip(measured.facts.tensors, usual.facts.tensors, strict=True):
        assert mine.data.values.samples == len(X)
        assert mine.data.values.count == theirs.data.values.count
        assert mine.data.accumulated.sqnr_db == pytest.approx(theirs.data.accumulated.sqnr_db, abs=1e-3)
        assert mine.data.values.range_growth == pytest.approx(theirs.data.values.range_growth, abs=1e-5)


@pytest.fixture(params=["plain", "compiled"])
def loops(request, monkeypatch):
    """Either set of loops; the compiled ones do not check their indexes."""
    if request.param == "plain":
        monkeypatch.setattr(accumulate, "kernels", reference)


@pytest.mark.thorough
def test_time_before_samples(measure, loops):
    """A leading axis of 8 steps; 13 samples in batches of 8 leave one of 5."""
    net = Net()
    x = net.add("Transpose", net.input("x", ["n", 8, 4]), out="steps", perm=[1, 0, 2])
    net.output(net.add("Transpose", net.add("Tanh", x, out="tanh"), out="y", perm=[1, 0, 2]))
    feed = {"x": random(2, 13, 8, 4)}
    for batch in (5, 8):
        measured = measure(net.model(), qdq(net.model(), feed), feed, batch_size=batch)
        assert measured.tensor("tanh").data.values.count == 13 * 8 * 4
        assert not measured.case.record.tensors[measured.record("tanh")].bucketed


def lengths(*steps: int) -> Any:
    """Batches of 4 samples with these numbers of steps."""
    return lambda: iter([random(i, 4, n, 8) for i, n in enumerate(steps)])


def test_attention_over_samples_of_different_length(measure, loops):
    quantized = qdq(attention_net(), {"x": random(0, 4, 5, 8)})
    measured = measure(attention_net(), quantized, {}, validation=lengths(5, 9, 3), batch_size=4)
    assert measured.tensor("dots").data.values.count == 4 * (25 + 81 + 9)


def test_features_of_samples_of_different_length(measure):
    net = Net()
    for i, name in enumerate("ab"):
        net.const(name, random(i, 8, 8, scale=0.3))
    x = net.add("Relu", net.add("MatMul", net.input("x", ["n", "t", 8]), "a", out="h"), out="r")
    net.output(net.add("MatMul", x, "b", out="y"))
    quantized = qdq(net.model(), {"x": random(0, 4, 5, 8)})
    measured = measure(net.model(), quantized, {}, validation=lengths(70, 90), batch_size=4)
    assert measured.tensor("y").data.values.count == 4 * (70 + 90) * 8


def test_outputs_of_different_width(measure):
    net = Net()
    net.output(net.add("Tanh", net.add("Relu", net.input("x", ["n", "t"]), out="r"), out="y"))
    quantized = qdq(net.model(), {"x": random(0, 4, 5)})
    batches = lambda: iter([random(1, 4, 5), random(2, 4, 9)])  # noqa: E731
    measured = measure(net.model(), quantized, {}, validation=batches, batch_size=4)
    assert measured.tensor("y").data.values.count == 4 * (5 + 9)


# --- observation ---------------------------------------------------------------------------------------------------


def test_what_is_described_is_what_is_deployed(usual):
    """All but the tensors inside of fused kernels is measured in both models."""
    assert not [notice for notice in usual.case.record.notices if "simulation" in notice]
    seen = {t.float_name for t in usual.facts.tensors if t.data.accumulated.mse is not None}
    assert seen >= {"image", "relu1", "relu2", "pool", "flat", "scores"}
    assert usual.case.record.unmatched == ()


@pytest.mark.thorough
def test_dropped_taps_are_told_and_left_out(measure):
    model = deep_net()
    quantized = qdq(model, {"image": images(32)})
    x = images(128)
    measured = measure(model, quantized, {"image": x}, batch_size=128)
    record = measured.case.record
    dropped = [t.float_name for t in measured.facts.tensors if t.data.accumulated.mse is None]
    assert not dropped or record.notices[0].startswith(f"{len(dropped)} tensors are measured in the float model only")
    assert set(dropped) <= {f"conv{i}" for i in range(6)}
    assert all(name in record.notices[0] for name in dropped)
    found, expected = run(quantized, {"image": x})["scores"], run(model, {"image": x})["scores"]
    assert_error(measured.tensor("scores").data.accumulated, error_of(expected, found))


# --- records -------------------------------------------------------------------------------------------------------


def test_record_names_models_tools_and_settings(usual, tmp_path):
    record, model = usual.case.record, usual.facts.model
    assert record.run["samples"] is None
    assert record.run["batch_size"] == 5
    assert record.run["float_model"] == "float.onnx"
    assert len(record.run["quantized_sha256"]) == 64
    assert (model.format, model.toolchain, model.opset) == ("QDQ", "tests", 17)
    assert (model.operators, model.compute_operators) == (7, 3)
    assert model.size_ratio == pytest.approx(model.bytes_quantized / model.bytes_float)
    assert [layer.name for layer in usual.facts.layers if layer.is_last] == ["scores"]


def test_progress_counts_samples(measure):
    seen: list[tuple[str, int, int | None]] = []
    quantized = qdq(NETS["conv"], {"image": X})
    measure(
        *(NETS["conv"], quantized, {}),
        representative=X[:6],
        validation=X,
        batch_size=5,
        progress=lambda *step: seen.append(step),
    )
    assert [step for step in seen if step[0] in ("representative", "validation")] == [
        ("representative", 5, 6),
        ("representative", 6, 6),
        ("validation", 5, 13),
        ("validation", 10, 13),
        ("validation", 13, 13),
    ]
