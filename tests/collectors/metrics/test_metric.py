"""Task metrics per sample, and the interval of their drop."""

import sys

import numpy as np
import pytest
from builders.properties import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quantmedic.collectors.metrics.metric import load_metric
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.errors import DataError
from quantmedic.engine.metrics.paired import drop_interval

SMALL = st.floats(-1e3, 1e3)
SCORES = hnp.arrays(np.float32, st.tuples(st.integers(1, 20), st.integers(7, 12)), elements=st.integers(-3, 3))


LENGTHS = st.integers(2, 40)


def pairs(elements=SMALL, shape=LENGTHS):
    return hnp.arrays(np.float64, st.tuples(st.just(2), shape), elements=elements)


def per_sample(metric, outputs, labels):
    """The one number that a mean keeps of each sample."""
    return metric.tally(outputs, labels).values[:, 0]


# --- built-in metrics


@pytest.mark.source("litert-accuracy")
@examples(40)
@given(SCORES, st.data())
def test_top1_is_argmax_and_top5_holds_it(scores, data):
    labels = data.draw(hnp.arrays(np.int64, len(scores), elements=st.integers(0, scores.shape[1] - 1)))
    top1 = per_sample(load_metric("top1"), {"out": scores}, labels)
    top5 = per_sample(load_metric("top5"), {"out": scores}, labels)
    order = np.argsort(-scores, axis=1, kind="stable")
    np.testing.assert_array_equal(top1, scores.argmax(axis=1) == labels)
    np.testing.assert_array_equal(top5, (order[:, :5] == labels[:, None]).any(axis=1))


def test_a_row_with_nan_is_never_right():
    scores = np.array([[np.nan, 1, 0], [0, 1, np.nan]])
    assert per_sample(load_metric("top1"), {"out": scores}, np.array([0, 1])).tolist() == [0, 0]


def test_labels_may_be_whole_floats_or_a_column():
    for labels in (np.array([1.0, 0.0]), np.array([[1], [0]])):
        assert per_sample(load_metric("top1"), {"y": np.eye(2)[::-1]}, labels).tolist() == [1, 1]


def test_outputs_and_labels_that_do_not_fit():
    for metric, scores, labels, message in (
        ("top1", np.zeros((2, 3, 4)), [0, 0], "module:function"),
        ("top1", np.zeros(2), [0, 0], "one row of class scores"),
        ("top1", np.zeros((2, 1)), [0, 0], "more than 1 class"),
        ("top5", np.zeros((2, 5)), [0, 0], "--metric top1"),
        ("top1", np.zeros((2, 3)), [0, 3], "label  3"),
        ("top1", np.zeros((2, 3)), [0, -1], "label  -1"),
        ("top1", np.zeros((2, 3)), [0, 0.5], "label  0.5"),
        ("top1", np.zeros((2, 3)), [0], "one class index per sample"),
        ("top1", np.zeros((2, 3)), 2 * np.eye(2, 3), "argmax"),
        ("mae", np.zeros((2, 3)), [0, 0], "shape of the output"),
        ("rmse", np.zeros((3, 2)), np.zeros((2, 3)), "shape of the output"),
    ):
        with pytest.raises(DataError) as error:
            per_sample(load_metric(metric), {"scores": scores}, np.array(labels))
        assert message in str(error.value)


@examples(40)
@given(pairs(shape=st.integers(1, 30)), st.integers(0, 30))
def test_errors_merge_by_concatenation(values, cut):
    output, labels = values
    for name, whole in (("mae", np.abs(output - labels).mean()), ("rmse", np.sqrt(np.square(output - labels).mean()))):
        metric = load_metric(name)
        parts = [
            per_sample(metric, {"y": output[part]}, labels[part])
            for part in (slice(cut), slice(cut, None))
            if len(output[part])
        ]
        assert metric.aggregate(Tally.of_numbers(np.concatenate(parts))) == pytest.approx(whole, rel=1e-12, abs=1e-12)
        assert not metric.higher_is_better


def test_several_numbers_per_sample_are_averaged():
    output = np.array([[[1.0], [3.0]], [[0.0], [0.0]]], np.float32)
    labels = np.zeros((2, 2))
    assert per_sample(load_metric("mae"), {"y": output}, labels).tolist() == [2, 0]
    assert per_sample(load_metric("rmse"), {"y": output}, labels).tolist() == [5, 0]


def test_output_is_picked_by_name():
    outputs = {"boxes": np.ones((1, 4)), "scores": np.array([[0.0, 1.0]])}
    assert per_sample(load_metric("top1", output="scores"), outputs, np.array([1])).tolist() == [1]
    with pytest.raises(DataError, match="did you mean scores"):
        per_sample(load_metric("top1", output="score"), outputs, np.array([1]))


def test_unknown_metrics_and_directions():
    for spec, direction, message in (
        ("topp1", None, "did you mean top1"),
        ("f2", None, "module:function"),
        ("mae", "higher", "other direction"),
        ("top1", "up", "--metric-option direction=higher or"),
        ("module:", None, "module:function"),
    ):
        with pytest.raises(DataError) as error:
            load_metric(spec, direction)
        assert message in str(error.value)


def test_built_in_directions_may_be_repeated():
    names = ("top1", "top5", "mae", "rmse")
    assert [load_metric(name).higher_is_better for name in names] == [True, True, False, False]
    assert load_metric("top1", "higher").higher_is_better
    assert np.isnan(load_metric("rmse").aggregate(Tally.of_numbers(np.array([]))))


# --- functions of the user


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes ``own_metric.py`` into the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "own_metric", raising=False)

    def write(text: str) -> None:
        (tmp_path / "own_metric.py").write_text("import numpy as np\n" + text)

    yield write
    sys.modules.pop("own_metric", None)


def test_own_function_gets_outputs_by_name(module):
    module("def f(outputs, labels):\n    return outputs['y'].sum(axis=1) == labels\nf.higher_is_better = True\n")
    metric = load_metric("own_metric:f")
    assert metric.higher_is_better
    result = per_sample(metric, {"y": np.array([[1, 2], [3, 4]])}, np.array([3, 0]))
    assert result.dtype == np.float64
    assert result.tolist() == [1, 0]


def test_option_decides_the_direction(module):
    module("def f(outputs, labels): return labels\nf.higher_is_better = True\ndef g(outputs, labels): return labels\n")
    assert load_metric("own_metric:f", "lower").higher_is_better is False
    with pytest.raises(DataError, match="--metric-option direction"):
        load_metric("own_metric:g")
    with pytest.raises(DataError, match="gets all outputs"):
        load_metric("own_metric:f", output="y")


def test_own_function_that_fails(module):
    failing = {
        "return 0.5": "one number per sample",
        "return [1]": r"returned \(1,\), expected \(2,\)",
        "return ['a', 'b']": "did not return numbers",
        "return outputs['z']": "KeyError",
    }
    module("".join(f"def f{i}(outputs, labels):\n    {body}\n" for i, body in enumerate(failing)))
    for i, message in enumerate(failing.values()):
        with pytest.raises(DataError, match=message):
            per_sample(load_metric(f"own_metric:f{i}", "higher"), {"y": np.zeros(2)}, np.zeros(2))


def test_missing_module_and_function(module):
    module("def accuracy(outputs, labels): return labels\n")
    with pytest.raises(DataError, match="did you mean accuracy"):
        load_metric("own_metric:acuracy", "higher")
    with pytest.raises(DataError, match="ModuleNotFoundError"):
        load_metric("no_such_module_here:f", "higher")


# --- the interval of the drop


def interval(floats, quantized, **options):
    options = {"higher_is_better": True} | options
    return drop_interval(np.asarray(floats, float), np.asarray(quantized, float), **options)


def table(both, only_float, only_quantized, neither):
    cells = (both, only_float, only_quantized, neither)
    return np.repeat([1, 1, 0, 0], cells), np.repeat([1, 0, 1, 0], cells)


def test_published_example():
    """The table 36, 12, 2, 0 of Newcombe 1998: wider than the 0.0569 … 0.3404 of his method 10, by what it corrects."""
    drop, low, high = interval(*table(36, 12, 2, 0))
    assert drop == pytest.approx(0.2)
    assert 0.045 < low < 0.0569 and 0.3404 < high < 0.36


@given(hnp.arrays(np.float64, st.integers(2, 40), elements=SMALL | st.sampled_from([0.0, 1.0])), st.booleans())
@examples(30)
def test_identical_models_do_not_drop(values, higher):
    drop, low, high = interval(values, values, higher_is_better=higher)
    assert drop == 0
    assert low <= 0 <= high


@examples(40)
@given(pairs(st.sampled_from([0.0, 1.0])))
def test_binary_interval_holds_the_drop_and_stays_in_range(values):
    drop, low, high = interval(*values)
    assert drop == pytest.approx(values[0].mean() - values[1].mean(), abs=1e-12)
    assert -1 - 1e-9 <= low <= drop + 1e-9
    assert drop - 1e-9 <= high <= 1 + 1e-9
    assert interval(*values, confidence=0.5)[2] <= high + 1e-12


@given(pairs())
@examples(30)
def test_direction_and_order_of_models_only_change_the_sign(values):
    assume(len(np.unique(values)) > 2)
    drop, low, high = interval(*values)
    assert interval(*values, higher_is_better=False) == pytest.approx((-drop, -high, -low), abs=1e-9)
    assert interval(*values[::-1]) == pytest.approx((-drop, -high, -low), abs=1e-9)


def test_worse_is_positive():
    worse = np.linspace(0, 1, 50)
    assert interval(worse + 1, worse)[1] > 0
    assert interval(worse, worse + 1, higher_is_better=False)[1] > 0
    assert interval(worse, worse + 1)[2] < 0


def test_root_is_taken_of_the_means():
    floats, quantized = np.full(20, 4.0), np.full(20, 9.0)
    assert interval(floats, quantized, higher_is_better=False, root=True) == pytest.approx((1, 1, 1))


def test_same_seed_same_interval():
    rng = np.random.default_rng(1)
    floats, quantized = rng.normal(size=(2, 30))
    assert interval(floats, quantized, seed=3) == interval(floats, quantized, seed=3)
    assert interval(floats, quantized, seed=3) != interval(floats, quantized, seed=4)


@pytest.mark.thorough
@pytest.mark.parametrize("binary", [True, False])
def test_coverage_is_near_its_name(binary):
    rng = np.random.default_rng(7)
    n, repeats, truth = 80, 100, 0.05
    hits = 0
    for _ in range(repeats):
        if binary:
            luck = rng.random(n)
            floats, quantized = luck < 0.75, (luck < 0.75 - truth - 0.03) | ((luck > 0.9) & (luck < 0.93))
        else:
            floats = rng.normal(size=n)
            quantized = floats - truth + 0.2 * rng.standard_t(5, size=n)
        _, low, high = interval(floats, quantized)
        hits += low <= truth <= high
    assert 0.88 <= hits / repeats <= 1
