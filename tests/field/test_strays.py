"""One sample of other units among many: named, left out by the prescription as printed, and no alarm without it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders.field_patients import assert_nothing_lost, demo, diagnose, first, quantize, rules, serious, split
from builders.onnx_models import Array, conv_net, random

import quantmedic
from quantmedic.engine.formulas.strays import words_of

pytestmark = pytest.mark.thorough

PLACES = (17, 90, 150)


def spoiled(x: Array, count: int, factor: float) -> Array:
    x = x.copy()
    x[list(PLACES[:count])] *= factor
    return x


@pytest.mark.parametrize(("count", "factor"), [(1, 10.0), (3, 40.0), (1, 1000.0)])
def test_representative_strays_lead(count: int, factor: float, tmp_path: Path) -> None:
    model = demo()
    feed, validation = split(model, 200)
    bad = {"image": spoiled(feed["image"], count, factor)}
    found = diagnose(model, quantize(model, bad, tmp_path), bad, validation, tmp_path / "d")
    assert first(found) == "stray-samples" and found.causes[0].severity == "high"
    assert words_of(PLACES[:count]) in found.causes[0].message


@pytest.mark.parametrize(("count", "factor"), [(1, 40.0)])
def test_representative_strays_lead_and_the_prescription_leaves_them_out(
    count: int, factor: float, tmp_path: Path
) -> None:
    model = demo()
    feed, validation = split(model, 200)
    bad = {"image": spoiled(feed["image"], count, factor)}
    quantized = quantize(model, bad, tmp_path)
    onnx.save(model, str(tmp_path / "float.onnx"))
    onnx.save(quantized, str(tmp_path / "int8.onnx"))
    paths = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    found = quantmedic.diagnose(*paths, representative=bad, validation=validation, rules=rules(), prove=120)
    assert found.causes[0].cause == "stray-samples" and found.causes[0].severity == "high"
    assert found.proof is not None and found.causes[0].proven and found.proof.best is not None
    run = found.proof.executions[found.proof.best]
    assert f"The feeds without {words_of(PLACES[:count])}:" in run.code
    assert run.trial.failed is None and run.trial.sqnr_after is not None and run.trial.sqnr_after > 27, run.trial


@pytest.mark.parametrize(("count", "factor"), [(1, 40.0), (3, 40.0), (1, 1000.0)])
def test_validation_strays_are_said_before_all_figures(count: int, factor: float, tmp_path: Path) -> None:
    model = demo()
    feed, validation = split(model, 200)
    bad = {**validation, "image": spoiled(validation["image"], count, factor)}
    found = diagnose(model, quantize(model, feed, tmp_path), feed, bad, tmp_path / "d")
    assert first(found) == "stray-validation-samples"
    assert "domain-shift" not in serious(found), "ranges that hold the sample would harm all others"


def wide(kind: str, seed: int, n: int = 200) -> Array:
    """Inputs whose size spreads over decades from sample to sample, or not at all."""
    rng = np.random.default_rng(seed)
    size = {"sound": np.exp(rng.standard_normal(n)), "embeddings": np.exp(2 * rng.standard_normal(n)), "even": 1.0}
    return (random(seed, n, 3, 8, 8) * np.reshape(size[kind] * np.ones(n), (n, 1, 1, 1))).astype(np.float32)


@pytest.mark.parametrize("kind", ["sound", "embeddings", "even"])
def test_data_that_are_wide_by_nature_have_no_strays(kind: str, tmp_path: Path) -> None:
    model = conv_net()
    feed, validation = {"image": wide(kind, 1)}, {"image": wide(kind, 2)}
    found: Any = diagnose(model, quantize(model, feed, tmp_path), feed, validation, tmp_path / "d")
    assert not {"stray-samples", "stray-validation-samples", "preprocessing-mismatch"} & {c.cause for c in found.causes}


def test_a_stray_that_costs_nothing_is_no_cause(tmp_path: Path) -> None:
    model = demo()
    feed, validation = split(model, 200)
    bad = {"image": spoiled(feed["image"], 1, 4.0)}
    assert_nothing_lost(diagnose(model, quantize(model, bad, tmp_path), bad, validation, tmp_path / "d"))


@pytest.mark.parametrize("change", ["factor", "raw", "affine", "shift"])
def test_noise_that_was_prepared_otherwise_is_named(change: str, tmp_path: Path) -> None:
    """The relation is certain, whether or not neighbouring values are related."""
    maps = {
        "factor": lambda x: x / 255,
        "raw": lambda x: x * 255,
        "affine": lambda x: 0.3 * x + 1,
        "shift": lambda x: x + 3,
    }
    model = conv_net()
    feed, validation = {"image": maps[change](random(1, 200, 3, 8, 8))}, {"image": random(2, 200, 3, 8, 8)}
    found = diagnose(model, quantize(model, feed, tmp_path), feed, validation, tmp_path / "d")
    # Where no loss is proven, it is listed with what is to be had.
    assert found.causes[0].cause == "preprocessing-mismatch"
    assert "blank-samples" not in [cause.cause for cause in found.causes]
