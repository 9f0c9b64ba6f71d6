"""Ranges by calibration method: predicted from a histogram against real values and a real quantizer."""

from typing import Any

import numpy as np
import pytest
from builders.cases import bins_of

from quantmedic.engine.formulas.methods import RangeEnd, Side, find_method, kl_ends, kl_threshold, percentile_ends
from quantmedic.engine.formulas.simulate import Grid, best_grids, predict_sqnr


def draw(kind: str) -> Any:
    rng = np.random.default_rng(17)
    if kind == "relu output":
        return np.maximum(rng.standard_normal(200_000), 0).astype(np.float32)
    if kind == "8-bit image":
        return ((rng.beta(1.5, 2.0, 200_000) * 255).round() / 255 / 0.353 - 0.81).astype(np.float32)
    x = rng.standard_normal(200_000).astype(np.float32) * np.float32(0.05)
    x[rng.integers(0, x.size, 40)] = rng.uniform(4, 9, 40)
    return x


@pytest.mark.parametrize("kind", ["relu output", "outliers over a narrow bulk", "8-bit image"])
def test_noise_of_every_method_is_within_one_decibel(kind: str) -> None:
    x = draw(kind)
    bins = bins_of(x)
    if kind == "8-bit image":
        bins = bins.on_points({0: np.unique(x)})
    wrong = {}
    for symmetric in (False, True):
        ends = {"min-max": (bins.lowest[0], bins.highest[0]), "percentile": percentile_ends(bins), "kl": kl_ends(bins)}
        grids = {name: Grid.over(float(low), float(high), 8, symmetric=symmetric) for name, (low, high) in ends.items()}
        best, _ = best_grids(bins, np.zeros(1, np.int64), np.array([8]), np.array([symmetric]))
        grids["mse"] = Grid(*best[:, 0].tolist())
        predicted = dict(zip(grids, predict_sqnr(bins, list(grids.values())).tolist(), strict=True))
        assert predicted["mse"] >= max(predicted.values()) - 0.01
        for name, grid in grids.items():
            y = np.clip(np.rint(x.astype(np.float64) / grid.step) * grid.step, grid.low, grid.high)
            square = (y - x) ** 2
            real = 10 * np.log10((x.astype(np.float64) ** 2).sum() / square.sum())
            clipped = square[(x < grid.low) | (x > grid.high)].sum() / square.sum() if square.any() else 0.0
            # How far clipped values lie beyond the range is known to within their bins only.
            if abs(predicted[name] - real) > (1.0 if clipped < 0.1 else 1.5):
                wrong[name, symmetric] = (round(predicted[name], 2), round(float(real), 2))
    assert not wrong


def test_kl_clips_outliers_and_keeps_what_is_full() -> None:
    outliers, even = draw("outliers over a narrow bulk"), np.random.default_rng(3).uniform(0, 6, 100_000)
    assert kl_threshold(bins_of(outliers)) < 1.0 < outliers.max()
    assert kl_threshold(bins_of(even.astype(np.float32))) > 5.0
    assert kl_ends(bins_of(np.zeros(10, np.float32))) == (0.0, 0.0), "nothing but zeros has no range"


@pytest.mark.thorough
def test_kl_agrees_with_onnxruntime() -> None:
    """The same divergence over finer bins: the thresholds are near each other, and so is the noise."""
    from onnxruntime.quantization.calibrate import HistogramCollector

    x = np.random.default_rng(5).laplace(0, 1, 200_000).astype(np.float32)
    collector = HistogramCollector("entropy", True, 2048, 128, 99.99, "same")
    collector.collect({"x": [x]})
    low, high = (float(np.ravel(v)[0]) for v in collector.compute_collection_result()["x"][:2])
    theirs, ours = max(-low, high), kl_threshold(bins_of(x))
    assert ours == pytest.approx(theirs, rel=0.35)


def test_no_percentile_cuts_the_values_of_an_image_off() -> None:
    """Black and white are many pixels each: ranges that leave the rarest values out keep the grid of the pixels."""
    x = np.random.default_rng(2).integers(0, 256, (20, 784)).astype("f4")
    x[:, ::5], x[:, ::7] = 0, 255
    x = (x / np.float32(255) - np.float32(0.5)) / np.float32(0.25)
    bins = bins_of(x).on_points({0: np.unique(x)})
    assert percentile_ends(bins) == (x.min(), x.max())
    assert percentile_ends(bins_of(x)) == (x.min(), x.max())


#: Tensors of ten samples, whose levels differ from tensor to tensor in what they mean for the extremes.
TENSORS = [
    np.abs(np.random.default_rng(i).standard_normal((10, 4000)) * np.linspace(1, 1 + i, 10)[:, None] ** 0.5).astype(
        "f4"
    )
    * np.float32(3.0**i)
    for i in range(8)
]


def range_end(x: Any, end: float) -> RangeEnd:
    return RangeEnd(end, Side(x.max(), 1, x.mean(), x.std(), bins_of(x)))


def test_the_method_that_gave_ranges_explains_them() -> None:
    ends = {
        "factor": [4 * x.max() for x in TENSORS],
        "one range": [40.0 for _ in TENSORS],
        "percentile": [np.quantile(x, 0.99) for x in TENSORS],
        "deviations": [x.mean() + 2 * x.std() for x in TENSORS],
    }
    for method, own in ends.items():
        found = find_method([range_end(x, float(end)) for x, end in zip(TENSORS, own, strict=True)])
        assert found is not None and found.miss < 0.03 and found.name == method


def test_no_method_explains_ranges_of_another_model() -> None:
    factors = np.exp(np.random.default_rng(1).standard_normal(len(TENSORS)))
    ends = [range_end(x, float(f * x.max())) for x, f in zip(TENSORS, factors, strict=True)]
    found = find_method(ends)
    assert found is not None and found.miss > 0.4
    assert find_method(ends[:3]) is None


def test_ranges_below_zero_are_explained_alike() -> None:
    ends = [range_end(x, float(np.quantile(x, 0.99))) for x in TENSORS]
    below = [
        RangeEnd(e.end, Side(e.side.value, -1, -e.side.mean, e.side.deviation, bins_of(-x)))
        for e, x in zip(ends, TENSORS, strict=True)
    ]
    found, mirrored = find_method(ends), find_method(below)
    assert found is not None and mirrored is not None
    assert mirrored.setting == pytest.approx(found.setting, rel=1e-2)
    assert mirrored.miss == pytest.approx(found.miss, abs=1e-3)
