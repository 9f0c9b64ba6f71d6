"""Codes of a GPTQ file that are those of plain rounding are told, and those that GPTQ chose are not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import checkpoints as made
from hypothesis import given
from hypothesis import strategies as some

from quantmedic.collectors.from_checkpoint.layers.layer_facts import moved_share
from quantmedic.collectors.from_checkpoint.layers.weight_fields import Grid
from quantmedic.reports.context import build_context
from quantmedic.reports.write import render_markdown

GROUP = 32


@given(some.integers(2, 8), some.integers(0, 10**6), some.booleans())
def test_the_share_is_that_of_codes_which_are_not_the_nearest(bits: int, seed: int, is_rounded: bool) -> None:
    """By looking at all codes; scales are those of float16, and weights beyond the last code belong to it."""
    random = np.random.default_rng(seed)
    weights = random.normal(size=(8, 64)).astype(np.float32)
    scale = np.float16(random.uniform(0.5, 2.0, (8, 2)) * 2.0 ** (2 - bits)).astype(np.float32)
    zero = random.integers(0, 2**bits, (8, 2))
    wide = [np.repeat(part, 32, axis=1) for part in (scale, zero)]
    numbers = (np.arange(2**bits)[:, None, None] - wide[1]) * wide[0]
    far = np.abs(numbers - weights)
    nearest = far.argmin(axis=0)
    codes = nearest if is_rounded else random.integers(0, 2**bits, weights.shape)
    stored = np.take_along_axis(numbers, codes[None], 0)[0].astype(np.float32)
    grid = Grid(scale, (0 - zero) * scale, (2**bits - 1 - zero) * scale)
    share = moved_share(weights, stored, grid, np.array([0, 32, 64]))
    wrong = (codes != nearest) & (np.take_along_axis(far, codes[None], 0)[0] > far.min(axis=0) + 0.3 * wide[0])
    assert share is not None
    assert share == 0 if is_rounded else wrong.mean() - 0.02 <= share <= (codes != nearest).mean()


def test_scales_that_are_no_numbers_tell_nothing() -> None:
    one = np.ones((2, 1), np.float32)
    for step in (0.0, np.nan, np.inf):
        assert moved_share(np.ones((2, 4)), np.ones((2, 4)), Grid(step * one, -one, one), np.array([0, 4])) is None


def compensated(weights: Any, seed: int) -> Any:
    """Codes of 4 bits by GPTQ on inputs whose channels go together, column by column (Frantar et al. 2022)."""
    random = np.random.default_rng(seed)
    inputs = weights.shape[1]
    seen = random.normal(size=(512, inputs)) + 2 * random.normal(size=(512, 1)) * random.normal(size=inputs)
    power = seen.T @ seen
    upper = np.linalg.cholesky(np.linalg.inv(power + 0.01 * np.trace(power) / inputs * np.eye(inputs))).T
    left = weights.astype(np.float64)
    codes, scale, zero = made.quantize(weights, 4, GROUP, symmetric=False)
    found = np.empty_like(codes)
    steps, zeros = (np.repeat(np.asarray(part, np.float64), GROUP, axis=1) for part in (scale, zero))
    for k in range(inputs):
        found[:, k] = np.clip(np.rint(left[:, k] / steps[:, k]) + zeros[:, k], 0, 15)
        error = (left[:, k] - (found[:, k] - zeros[:, k]) * steps[:, k]) / upper[k, k]
        left[:, k:] -= error[:, None] * upper[k, k:]
    return found, scale, zero


def judged(folder: Path, kind: str, damage: Any = None) -> Any:
    floats = made.language_model(layers=2, seed=1)
    options = {} if damage is None else {"damage": lambda name, *parts: damage(floats, name)}
    packed = made.quantized_model(floats, kind, symmetric=False if kind == "gptq" else None, **options)
    return made.compare(folder, floats, packed, made.configuration(kind))


@pytest.mark.thorough
def test_plain_rounding_in_a_gptq_file_is_a_remark(tmp_path: Path) -> None:
    def rounded(floats: made.Tensors, name: str) -> Any:
        return made.quantize(made.from_bfloat16(floats[f"{name}.weight"][1]), 4, GROUP, symmetric=False)

    found = judged(tmp_path, "gptq", rounded)
    assert found.verdict == "healthy"
    assert [(cause.cause, cause.severity) for cause in found.causes] == [("no-gptq-compensation", "info")]
    assert found.model.checkpoint.gptq_moved_share == 0
    assert "no-gptq-compensation" in render_markdown(build_context(found, {}))


@pytest.mark.thorough
def test_codes_that_gptq_chose_are_not(tmp_path: Path) -> None:
    def choose(floats: made.Tensors, name: str) -> Any:
        return compensated(made.from_bfloat16(floats[f"{name}.weight"][1]), 1)

    found = judged(tmp_path, "gptq", choose)
    assert found.causes == () and found.model.checkpoint.gptq_moved_share > 0.1


@pytest.mark.thorough
def test_other_files_promise_nothing(tmp_path: Path) -> None:
    for kind in ("awq", "compressed"):
        found = judged(tmp_path, kind)
        assert found.model.checkpoint.gptq_moved_share is None and found.causes == (), kind
