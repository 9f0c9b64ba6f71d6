"""One sample of other units among many: named, left out by the prescription as printed, and no alarm without it."""

from pathlib import Path

import numpy as np
import pytest
from builders.field_patients import assert_nothing_lost, demo, diagnose, first, quantize, serious, split
from builders.onnx_models import Array, conv_net, random

from quantmedic.engine.formulas.strays import words_of

pytestmark = pytest.mark.thorough

PLACES = (17, 90, 150)


def spoiled(x: Array, count: int, factor: float) -> Array:
    x = x.copy()
    x[list(PLACES[:count])] *= factor
    return x


@pytest.mark.nightly
@pytest.mark.parametrize(("count", "factor"), [(1, 10.0), (3, 40.0)])
def test_representative_strays_lead(count: int, factor: float, tmp_path: Path) -> None:
    model = demo()
    feed, validation = split(model, 200)
    bad = {"image": spoiled(feed["image"], count, factor)}
    # Of one of them the prescription is run as printed, too.
    options = {"prove": 120 if count > 1 else False, "attribution": True}
    found = diagnose(model, quantize(model, bad, tmp_path), bad, validation, tmp_path / "d", **options)
    assert first(found) == "stray-samples" and found.causes[0].severity == "high"
    assert words_of(PLACES[:count]) in found.causes[0].message
    if count > 1:
        assert found.proof is not None and found.causes[0].proven and found.proof.best is not None
        run = found.proof.executions[found.proof.best]
        assert f"The feeds without {words_of(PLACES[:count])}:" in run.code
        assert run.trial.failed is None and run.trial.sqnr_after is not None and run.trial.sqnr_after > 27, run.trial


@pytest.mark.nightly
def test_validation_strays_are_said_before_all_figures(tmp_path: Path) -> None:
    model = demo()
    feed, validation = split(model, 200)
    bad = {**validation, "image": spoiled(validation["image"], 3, 40.0)}
    found = diagnose(model, quantize(model, feed, tmp_path), feed, bad, tmp_path / "d")
    assert first(found) == "stray-validation-samples"
    assert "domain-shift" not in serious(found), "ranges that hold the sample would harm all others"


def wide(kind: str, seed: int, n: int = 200) -> Array:
    """Inputs whose size spreads over decades from sample to sample, or not at all."""
    rng = np.random.default_rng(seed)
    size = {"embeddings": np.exp(2 * rng.standard_normal(n)), "even": 1.0}
    return (random(seed, n, 3, 8, 8) * np.reshape(size[kind] * np.ones(n), (n, 1, 1, 1))).astype(np.float32)


def test_data_that_are_wide_by_nature_have_no_strays(tmp_path: Path) -> None:
    model = conv_net()
    for kind in ("embeddings", "even"):
        feed, validation = {"image": wide(kind, 1)}, {"image": wide(kind, 2)}
        found = diagnose(model, quantize(model, feed, tmp_path), feed, validation, tmp_path / "d")
        named = {cause.cause for cause in found.causes}
        assert not {"stray-samples", "stray-validation-samples", "preprocessing-mismatch"} & named, kind


@pytest.mark.nightly
def test_a_stray_that_costs_nothing_is_no_cause(tmp_path: Path) -> None:
    model = demo()
    feed, validation = split(model, 200)
    bad = {"image": spoiled(feed["image"], 1, 4.0)}
    assert_nothing_lost(diagnose(model, quantize(model, bad, tmp_path), bad, validation, tmp_path / "d"))


def test_noise_that_was_prepared_otherwise_is_named(tmp_path: Path) -> None:
    """The relation is certain, whether or not neighbouring values are related."""
    model, noise, validation = conv_net(), random(1, 200, 3, 8, 8), {"image": random(2, 200, 3, 8, 8)}
    for change, x in {"factor": noise / 255, "affine": 0.3 * noise + 1}.items():
        feed = {"image": x.astype(np.float32)}
        found = diagnose(model, quantize(model, feed, tmp_path), feed, validation, tmp_path / "d")
        # Where no loss is proven, it is listed with what is to be had.
        assert found.causes[0].cause == "preprocessing-mismatch", change
        assert "blank-samples" not in [cause.cause for cause in found.causes], change
