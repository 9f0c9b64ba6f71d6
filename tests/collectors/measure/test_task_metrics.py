"""Task metrics that are no means, measured of real pairs: kept, merged, judged, tried; and labels that do not fit."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.onnx_models import conv_net, images, qdq, run, save_pair
from builders.tiers import others_nightly

import quantmedic
from quantmedic.collectors.measure import collect_pair
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import CaseError, DataError
from quantmedic.engine.formulas.derive import derive

X = images(96)
BASE = quantmedic.load_rulebase()


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> tuple[Path, Path]:
    net = conv_net()
    scores = run(net, {"image": X})["scores"]
    for tensor in net.graph.initializer:
        if tensor.name == "fc.bias":
            even = onnx.numpy_helper.to_array(tensor) - scores.mean(axis=0)  # so that every class is seen
            tensor.CopyFrom(onnx.numpy_helper.from_array(even.astype(np.float32), tensor.name))
    return save_pair(tmp_path_factory.mktemp("pair"), net, qdq(net, {"image": X}))


@pytest.fixture(scope="module")
def scores(paths):
    return [run(onnx.load(str(path)), {"image": X})["scores"] for path in paths]


@pytest.fixture(scope="module")
def labels(scores):
    """Classes of the float model, a quarter of them replaced."""
    rng = np.random.default_rng(0)
    classes = scores[0].argmax(axis=1)
    return np.where(rng.random(len(X)) < 0.25, rng.integers(0, 5, len(X)), classes)


def measured(paths, labels, rows=slice(None), **options) -> Case:
    data = {"image": X[rows], "labels": labels[rows]}
    return quantmedic.collect(*paths, **{"validation": data, "threads": 1, "rules": BASE} | options)


def metric_of(case: Case):
    return derive(case, BASE).model.metric


@pytest.mark.thorough
@pytest.mark.parametrize("name", others_nightly(["f1", "recall@1"]))
def test_shards_merge_and_files_keep_what_is_measured(paths, labels, name, tmp_path):
    whole = metric_of(measured(paths, labels, metric=name))
    parts = [measured(paths, labels, rows, metric=name) for rows in (slice(0, 40), slice(40, None))]
    merged = parts[1].merge(parts[0])
    assert metric_of(merged) == whole
    assert whole.samples == 96 and whole.drop_low < whole.drop_high
    quantmedic.save_case(merged, tmp_path / "m.case")
    assert metric_of(quantmedic.load_case(tmp_path / "m.case")) == whole


def test_f1_is_that_of_the_classes(paths, labels, scores):
    found = metric_of(measured(paths, labels, metric="f1"))
    for own, value in zip(scores, (found.float_value, found.quantized_value), strict=True):
        classes = own.argmax(axis=1)
        hits = [
            2 * ((classes == c) & (labels == c)).sum() / ((classes == c).sum() + (labels == c).sum()) for c in range(5)
        ]
        assert value == pytest.approx(np.mean(hits))


@pytest.mark.thorough
def test_samples_without_labels_have_no_metric_beside_those_that_have(paths, labels):
    bare = quantmedic.collect(*paths, validation=X[40:], threads=1, rules=BASE)
    assert metric_of(bare).name is None
    with pytest.raises(CaseError):
        measured(paths, labels, slice(0, 40), metric="f1").merge(bare)


@pytest.mark.thorough
def test_one_hot_labels_are_taken_as_classes_and_said(paths, labels):
    case = measured(paths, np.eye(5)[labels])
    assert case.record.metric == "top1"
    assert metric_of(case).float_value == metric_of(measured(paths, labels)).float_value
    assert any("one-hot" in notice for notice in case.record.notices)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rule", "change"), [("S016", lambda y: y + 1), ("S017", lambda y: np.array([2, 0, 3, 4, 1])[y])]
)
def test_labels_that_do_not_fit_are_said_instead_of_judged(paths, labels, rule, change):
    wrong = change(labels)
    keep = wrong < 5
    data = {"image": X[keep], "labels": wrong[keep]}
    case = quantmedic.collect(*paths, validation=data, threads=1, rules=BASE)
    diagnosis = quantmedic.judge(case, BASE)
    assert rule in {own for cause in diagnosis.causes for own in cause.rules}
    assert diagnosis.metrics.drop is None and diagnosis.drop_class is None
    assert diagnosis.metrics.float_value is not None
    assert rule not in {own for cause in quantmedic.judge(measured(paths, labels), BASE).causes for own in cause.rules}


def test_labels_that_count_from_one_are_told_so(paths, labels):
    with pytest.raises(DataError, match="labels - 1"):
        measured(paths, np.where(labels == 0, 5, labels))


def test_options_belong_to_the_metric(paths, labels):
    with pytest.raises(DataError, match="has no such option"):
        measured(paths, labels, metric="top1", metric_options={"blank": "3"})
    case = measured(paths, labels, metric="perplexity", metric_options={"ignore": "0"})
    assert case.record.run["metric_options"] == "ignore=0"


@pytest.mark.thorough
def test_what_is_counted_survives_every_checkpoint(paths, labels, tmp_path, monkeypatch):
    wanted = metric_of(measured(paths, labels, metric="f1"))
    monkeypatch.setattr(collect_pair, "CHECKPOINT_SECONDS", 0.0)
    case = measured(paths, labels, metric="f1", batch_size=16, checkpoint=tmp_path / "c.case")
    assert metric_of(case) == wanted
    assert len(case.statistics["validation"].tallies["float"]) == 96


def test_labels_in_another_order_judge_no_drop(paths, scores):
    """Those of another order fit far better as they are not given; those that fit are left alone."""
    wanted = scores[0] + 0.01 * np.random.default_rng(2).standard_normal(scores[0].shape)
    turned = metric_of(measured(paths, wanted[:, ::-1], metric="mae"))
    assert (turned.label_fault, turned.label_turn, turned.drop) == ("turned", "backwards along axis 1", None)
    assert turned.turned_value < 0.02 < turned.float_value
    as_given = metric_of(measured(paths, wanted, metric="mae"))
    assert as_given.label_turn is None and as_given.drop is not None
