"""Tensors measured on some of the samples; and observers that leave the network as it is."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders.onnx_models import (
    Net,
    Recipe,
    branch_net,
    conv_net,
    deep_net,
    every_tensor,
    images,
    qdq,
    random,
    residual_net,
    run,
    save_pair,
    section,
    session,
    static,
    two_way_net,
)
from builders.tiers import others_nightly
from onnxruntime.quantization import QuantFormat, QuantType

import quantmedic
from quantmedic.collectors.data.batches import Batch, Part
from quantmedic.collectors.data.datasets import open_dataset
from quantmedic.collectors.from_onnx.onnx_models import OnnxView, open_models
from quantmedic.collectors.measure import collect_pair
from quantmedic.collectors.measure.collect_pair import MAX_SHARE, OTHER_PARTS, parts_of, share_of
from quantmedic.demo import patient
from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.derive import derive

pytestmark = pytest.mark.thorough

X = images(100)
RULES = quantmedic.load_rulebase()
NETS = {
    "conv": conv_net(),
    "residual": residual_net(),
    "branch": branch_net(),
    "deep": deep_net(width=16, depth=8),
}


@pytest.fixture
def collect(tmp_path) -> Callable[..., Case]:
    """Measure a network and its quantized version, in fast mode unless told otherwise."""

    def measured(model: onnx.ModelProto, x: Any, quantized: onnx.ModelProto | None = None, **options: Any) -> Case:
        paths = save_pair(tmp_path, model, quantized or qdq(model, {"image": X}))
        return quantmedic.collect(*paths, **({"validation": x, "threads": 2, "mode": "fast"} | options))

    return measured


def facts_of(case: Case) -> CaseFacts:
    return derive(case, RULES)


# --- how many samples are measured -----------------------------------------------------------------------------------

SIZES = {1: 1, 31: 1, 63: 1, 64: 2, 95: 2, 96: 3, 1023: 31, 1024: 32, 1025: 32, 50_000: 32}


def test_at_least_32_samples_are_measured_and_one_of_32():
    assert {samples: share_of(samples) for samples in SIZES} == SIZES


def test_parts_of_a_set_are_all_of_it():
    for unit, others, share in itertools.product((1, 3), (1, OTHER_PARTS), (2, 5, MAX_SHARE)):
        parts = [replace(part, unit=unit) for part in parts_of(share, 7, others)]
        assert len(parts) == 1 + min(others, share - 1)
        rows = [part.indexes(0, 1000) for part in parts]
        assert sorted(np.concatenate(rows).tolist()) == list(range(1000))
        assert len(rows[0]) == pytest.approx(1000 / share, abs=unit)
        lengths = [len(own) for own in rows[1:]]
        assert max(lengths) <= 2 * min(lengths) + unit


@pytest.mark.parametrize("kind", others_nightly(["array", "function", "limited", "limited function"]))
def test_as_many_are_measured_as_the_samples_that_are_read_allow(collect, kind):
    for samples in (1, 64, 270):
        x = images(300 if kind.startswith("limited") else samples)

        def pieces(x: Any = x) -> Iterator[Any]:
            yield from np.array_split(x, 3) if len(x) > 3 else [x]

        options = {"samples": samples} if kind.startswith("limited") else {}
        case = collect(NETS["conv"], pieces if kind.endswith("function") else x, batch_size=32, **options)
        record, statistics = case.record.datasets["validation"], case.statistics["validation"]
        share = max(1, samples // 32)
        assert len(record.parts) == 1 + min(1 if kind.endswith("function") else OTHER_PARTS, share - 1)
        assert sum(record.parts) == record.seen == samples
        assert record.parts[0] == pytest.approx(samples / share, abs=1)
        assert (statistics.tensor_samples >= record.parts[0]).all()
        assert (statistics.tensor_samples <= samples).all()
        assert len(np.unique(statistics.samples["hash"])) == samples


# --- which samples ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", others_nightly(NETS))
def test_tensors_are_measured_on_the_first_part_and_the_ends_of_the_network_on_every_sample(collect, name):
    case = collect(NETS[name], X, batch_size=8)
    measured = Part(0, 3, 0).indexes(0, len(X))
    assert case.record.datasets["validation"].parts[0] == len(measured)
    floats, statistics = every_tensor(NETS[name], {"image": X}), case.statistics["validation"]
    ends = [i for i, record in enumerate(case.record.tensors) if record.is_input]
    ends += [output.tensor for output in case.record.outputs if output.tensor is not None]
    assert len(ends) == 2
    for i, record in enumerate(case.record.tensors):
        x, view = floats[record.float_name].astype(np.float64), statistics.tensor(i)
        rows = x if i in ends else x[measured]
        assert statistics.tensor_samples[i] == len(rows)
        assert view.count.sum() == rows.size
        mean = (view.mean * view.count).sum() / view.count.sum()
        assert mean == pytest.approx(rows.mean(), abs=1e-6 * x.std()), record.float_name


def test_several_inputs_and_outputs_are_seen_on_every_sample(collect):
    feed = {"a": random(1, 100, 4), "b": random(2, 100, 6)}
    case = collect(two_way_net(), feed, qdq(two_way_net(), feed))
    statistics = case.statistics["validation"]
    for i, record in enumerate(case.record.tensors):
        full = record.is_input or i in [output.tensor for output in case.record.outputs]
        assert statistics.tensor_samples[i] in ([100] if full else [33, 34])


@pytest.mark.nightly
def test_a_fixed_batch_is_measured_as_a_whole_and_a_large_one_leaves_no_tensor_out(collect):
    x = images(256)
    for fixed in (4, 20, 32, 48, 64):
        model = conv_net(batch=fixed)
        case = collect(model, x, qdq(model, {"image": x[:fixed]}))
        parts, samples = case.record.datasets["validation"].parts, case.statistics["validation"].tensor_samples
        assert min(parts) >= 32 and (samples >= 32).all()
        if fixed in (4, 32):
            assert parts == (32,) * 8 and sorted(set(samples)) == [32, 256]


# --- how many at a time -----------------------------------------------------------------------------------------------


def one_at_a_time() -> onnx.ModelProto:
    """Declared for any number of samples; flattening writes down that it is one."""
    net = Net()
    x = net.add("Relu", net.conv(net.input("image", ["n", 3, 8, 8]), random(1, 4, 3, 3, 3), out="conv"), out="relu")
    x = net.add("Reshape", x, net.const("shape", np.array([1, 144], np.int64)), out="flat")
    net.const("fc.weight", random(2, 144, 5))
    net.output(net.add("MatMul", x, "fc.weight", out="scores"))
    return net.model()


@pytest.mark.parametrize(("model", "passing"), [(deep_net(width=16, depth=8), 5), (one_at_a_time(), 1)])
def test_samples_that_are_not_measured_pass_together_where_models_take_them(collect, monkeypatch, model, passing):
    monkeypatch.setattr(collect_pair, "BATCH_BYTES", 1)
    monkeypatch.setattr(collect_pair, "WORTHWHILE_VALUES", 0)
    done = [0]
    case = collect(
        model,
        X,
        qdq(model, {"image": X[:1]}),
        progress=lambda stage, samples, total: done.append(samples),
        attribution=False,
    )
    sizes = np.diff(done)
    measured = case.record.datasets["validation"].parts[0]
    assert set(sizes[:measured]) == {1}
    assert sizes[measured:].max() == passing
    assert case.record.run["batch_size"] == 1


def test_the_users_batch_size_is_kept(collect):
    done = [0]
    collect(NETS["deep"], X, batch_size=2, progress=lambda stage, samples, total: done.append(samples))
    assert np.diff(done).max() == 2


# --- what is estimated ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo() -> tuple[Case, Case]:
    """The patient, measured exactly and fast."""
    models, options = patient()
    exact, fast = (quantmedic.collect(*models, **options, threads=2, mode=mode) for mode in ("exact", "fast"))
    return exact, fast


@pytest.mark.nightly
def test_every_sample_of_the_demo_is_judged_as_in_exact_mode(demo):
    exact, fast = demo
    assert all(record.parts[0] == 32 for record in fast.record.datasets.values())
    for role, statistics in exact.statistics.items():
        mine, theirs = (np.sort(s.samples, order="hash") for s in (statistics, fast.statistics[role]))
        for name in mine.dtype.names:
            if name == "margin":
                np.testing.assert_allclose(theirs[name], mine[name], rtol=1e-4, atol=1e-4)
            else:
                np.testing.assert_array_equal(theirs[name], mine[name], err_msg=name)
    a, b = (facts_of(case).model for case in demo)
    assert a.metric.float_value == b.metric.float_value
    assert a.metric.quantized_value == b.metric.quantized_value


@pytest.mark.nightly
def test_estimates_of_the_demo_are_close(demo):
    exact, fast = (facts_of(case) for case in demo)
    for a, b in zip(exact.tensors, fast.tensors, strict=True):
        for role in ("representative", "validation"):
            x, y = getattr(a, role), getattr(b, role)
            assert y.values.samples >= 32
            assert abs(x.values.mean - y.values.mean) < 0.05 * x.values.std, (a.float_name, role)
            assert y.values.std == pytest.approx(x.values.std, rel=0.1), (a.float_name, role)
            assert x.values.min <= y.values.min <= y.values.max <= x.values.max
        assert b.data.clipping.share == pytest.approx(a.data.clipping.share, rel=0.2, abs=2e-3), a.float_name
    for kind in ("rounding", "accumulated"):
        a, b = ([getattr(tensor.data, kind).sqnr_db for tensor in facts.tensors] for facts in (exact, fast))
        away = np.subtract(b, a)
        # A single clipped image moves several decibels where it is measured and where it is not, but of few tensors.
        assert np.quantile(np.abs(away), 0.9) < 1.5, kind
        assert np.abs(away).max() < 6, kind
        assert np.abs(np.median(away)) < 0.25, kind


def test_the_demo_gets_the_same_diagnosis(demo):
    exact, fast = (quantmedic.judge(case, RULES) for case in demo)
    assert exact.verdict == fast.verdict
    assert exact.causes[0].cause == fast.causes[0].cause


@pytest.mark.parametrize("period", others_nightly([2, 8, None]))
def test_neither_sorted_nor_periodic_data_make_the_measured_samples_differ(collect, period):
    """Brightness rises through the set, or again and again."""
    x = images(256)
    steps = np.arange(256) if period is None else np.arange(256) % period * (256 // period)
    x *= (0.05 + steps / 256).astype(np.float32).reshape(-1, 1, 1, 1)
    exact, fast = (collect(NETS["deep"], x, mode=mode).statistics["validation"] for mode in ("exact", "fast"))
    assert (fast.tensor_samples == 32).sum() >= 3
    for i in range(len(exact.channels)):
        a, b = exact.tensor(i), fast.tensor(i)
        energies = [((v.m2 + v.count * v.mean**2).sum() / v.count.sum()) for v in (a, b)]
        assert energies[1] == pytest.approx(energies[0], rel=0.15 if period is None else 0.5), i


@pytest.mark.parametrize("seed", others_nightly([1, 2**63]))
def test_another_seed_measures_other_samples(collect, seed):
    a, b = (collect(NETS["conv"], X, seed=s) for s in (0, seed))
    mine, theirs = (case.statistics["validation"] for case in (a, b))
    np.testing.assert_array_equal(np.sort(mine.samples["hash"]), np.sort(theirs.samples["hash"]))
    assert (mine.samples["hash"] != theirs.samples["hash"]).any()
    assert (mine.columns["mean"] != theirs.columns["mean"]).any()


# --- operators alone --------------------------------------------------------------------------------------------------


def ending_in_relu() -> onnx.ModelProto:
    """A network whose output is the activation behind a convolution."""
    net = Net()
    x, channels = net.input("image", ["n", 3, 8, 8]), 3
    for i, out in enumerate(("r0", "r1", "r2", "scores")):
        weight = random(10 + i, 8, channels, 3, 3, scale=1.3 * (channels * 9) ** -0.5)
        x = net.add("Relu", net.conv(x, weight, out=f"conv{i}", pads=[1, 1, 1, 1]), out=out)
        channels = 8
    net.output(x)
    return net.model()


OPERATORS = {
    "deep int8": (NETS["deep"], Recipe(activation=np.int8)),
    "residual": (residual_net(4), Recipe()),
    "ending in relu": (ending_in_relu(), Recipe()),
    "every other without quantizer": (NETS["deep"], Recipe(skip=("relu1", "relu3", "relu5", "relu7"))),
}


@pytest.mark.parametrize("name", others_nightly(OPERATORS))
def test_operators_alone_err_as_in_exact_mode(collect, name):
    model, recipe = OPERATORS[name]
    x = images(256)
    quantized = qdq(model, {"image": x}, recipe)
    exact, fast = (facts_of(collect(model, x, quantized, mode=mode, step_error=True)) for mode in ("exact", "fast"))
    steps = [(a.data.step.sqnr_db, b.data.step.sqnr_db) for a, b in zip(exact.tensors, fast.tensors, strict=True)]
    known = [(a, b) for a, b in steps if b is not None]
    assert len(known) >= 4
    assert all(b == pytest.approx(a, abs=1.0) for a, b in known)


# --- observing leaves the network as it is ----------------------------------------------------------------------------


def _int8(name: str) -> onnx.ModelProto:
    return qdq(NETS[name], {"image": X * np.float32(0.7)}, Recipe(activation=np.int8, per_channel=True))


def _static(folder: Path) -> onnx.ModelProto:
    return static(
        NETS["deep"],
        {"image": X},
        folder,
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
    )


def views_of(models: Any, first: Batch) -> Iterator[OnnxView]:
    """Views of all tensors, of each half, and of every third."""
    pairs = dict(enumerate(models.pairs))
    whole = OnnxView(models, pairs, first, 1)
    yield whole
    half = len(pairs) // 2
    for wanted in (range(half), range(half, len(pairs)), range(0, len(pairs), 3), range(1, len(pairs), 2)):
        yield OnnxView(models, {i: pairs[i] for i in wanted}, first, 1, whole.observed.plain)


def check_outputs(paths: tuple[Path, Path], batches: list[Batch]) -> None:
    models = open_models(*paths)
    deployed = session(onnx.load(paths[1]))
    expected = [deployed.run(None, dict(batch.inputs)) for batch in batches]
    for view in views_of(models, batches[0]):
        assert not view.observed.simulated
        for batch, outputs in zip(batches, expected, strict=True):
            for found, output in zip(view.read_tensors(batch).outputs[1], outputs, strict=True):
                np.testing.assert_array_equal(found, output)


@pytest.mark.parametrize("name", [*NETS, "static"])
def test_int8_networks_compute_on_every_batch_what_is_deployed(name, tmp_path):
    quantized = _static(tmp_path) if name == "static" else _int8(name)
    paths = save_pair(tmp_path, NETS["deep" if name == "static" else name], quantized)
    x = np.concatenate([X, X[:20] * 3, X[:20] * np.float32(0.01), np.zeros_like(X[:5])])
    check_outputs(paths, [Batch({"image": x[i : i + 16]}) for i in range(0, len(x), 16)])


@pytest.mark.nightly
def test_the_demo_computes_on_every_batch_what_is_deployed():
    paths, options = patient(healthy=True)
    models = open_models(*paths)
    data = open_dataset(
        options["validation"],
        models.input_specs,
        preprocessing=options["preprocessing"]["validation"],
        role="validation",
    )
    check_outputs(paths, list(data.batches(32)))


@pytest.mark.parametrize(("name", "kind"), [("conv", np.int8), ("deep", np.uint8)])
def test_codes_that_are_read_lead_to_the_deployed_output(name, kind, tmp_path):
    """Whatever a tap shows, the rest of the deployed network makes the deployed output of it, to the bit."""
    quantized = qdq(NETS[name], {"image": X * np.float32(0.7)}, Recipe(activation=kind))
    models = open_models(*save_pair(tmp_path, NETS[name], quantized))
    batches = [Batch({"image": X[i : i + 25]}) for i in (0, 25, 50, 75)]
    for view in list(views_of(models, batches[0]))[:3]:
        assert len(view.taps) == len(view.pairs) >= 3
        for batch in batches:
            expected, codes = run(quantized, batch.inputs)["scores"], view.read_tensors(batch).codes
            for number, tap in view.taps.items():
                assert tap.quantizer is not None
                step, zero = np.float32(tap.quantizer.scale), np.float32(tap.quantizer.zero_point)
                values = (codes[number].astype(np.float32) - zero) * step
                root = view.pairs[number].root
                if root == "scores_raw":
                    np.testing.assert_array_equal(values, expected)
                    continue
                rest = section(quantized, root, "scores")
                np.testing.assert_array_equal(run(rest, {root: values})["scores"], expected, err_msg=root)
