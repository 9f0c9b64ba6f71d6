"""Samples made small: area means, bounded size, kept beside the statistics and through the case file."""

from pathlib import Path

import numpy as np
import pytest
from builders.onnx_models import conv_net, dynamic, images, qdq, save_pair, token_net
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

import quantmedic
from quantmedic.collectors.case_file.archive import read_case
from quantmedic.collectors.statistics.accumulate import sample_rows, shrunk, with_batch
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.thumbnails import SIDE, TYPICAL, Thumbnails
from quantmedic.engine.errors import CaseError

X = images(40)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_pair(tmp_path_factory.mktemp("pair"), conv_net(), qdq(conv_net(), {"image": X}))


def collected(models: tuple[Path, Path], x: np.ndarray, **options: object) -> Case:
    return quantmedic.collect(*models, representative={"image": x}, threads=1, **options)


def same(a: Thumbnails, b: Thumbnails) -> bool:
    pixels = zip(a.pixels, b.pixels, strict=True)
    return np.array_equal(a.table, b.table) and all(np.array_equal(x, y, equal_nan=True) for x, y in pixels)


@examples(40)
@given(st.integers(1, 130), st.integers(1, 130), st.sampled_from([1, 3]), st.sampled_from([0, 2]))
def test_no_side_is_longer_and_the_mean_is_kept(height: int, width: int, channels: int, axis: int) -> None:
    rng = np.random.default_rng(height * 131 + width)
    planes = rng.normal(3, 40, (height, width, channels)).astype(np.float32)
    small, scale = shrunk(np.moveaxis(planes, -1, 0) if axis == 0 else planes, axis)
    step = -(-max(height, width) // SIDE)
    assert small.shape == (-(-height // step), -(-width // step), channels) and max(small.shape[:2]) <= SIDE
    expected = [
        [planes[y : y + step, x : x + step].mean(axis=(0, 1)) for x in range(0, width, step)]
        for y in range(0, height, step)
    ]
    assert np.allclose(small.astype(np.float32) * scale, expected, rtol=1e-3, atol=1e-3 * scale)


def test_values_of_any_size_fit() -> None:
    for size in (1e-20, 1e5, 3e38):
        image = np.linspace(-size, size, 27, dtype=np.float32).reshape(3, 3, 3)
        small, scale = shrunk(image, 0)
        assert np.allclose(np.moveaxis(small.astype(np.float64) * scale, -1, 0) / size, image / size, atol=1e-3)


def test_a_value_that_is_not_finite_stays_so() -> None:
    image = np.ones((1, 96, 96), np.float32)
    image[0, 5, 70] = np.nan
    small, scale = shrunk(image, 0)
    assert np.argwhere(~np.isfinite(small[..., 0])).tolist() == [[2, 35]]
    assert float(small[0, 0, 0]) * scale == 1.0


@pytest.mark.thorough
def test_batches_make_no_difference(models: tuple[Path, Path]) -> None:
    whole, pieces = collected(models, X, batch_size=40), collected(models, X[::-1].copy(), batch_size=3)
    kept = whole.statistics["representative"].thumbnails
    assert same(kept, pieces.statistics["representative"].thumbnails)
    assert TYPICAL <= len(kept.table) <= TYPICAL + 2
    by_hash = {row["hash"]: sample for row, sample in zip(sample_rows(X, None), X, strict=True)}
    for place, row in enumerate(kept.table):
        assert np.allclose(kept.values(place), np.moveaxis(by_hash[row["hash"]], 0, -1), atol=1e-2)


@pytest.mark.thorough
def test_shards_keep_what_one_pass_keeps_and_equal_samples_once(models: tuple[Path, Path], tmp_path: Path) -> None:
    for number, part in enumerate((X[:9], X[9:])):
        quantmedic.save_case(collected(models, part), tmp_path / f"{number}.case")
    merged = quantmedic.load_case(tmp_path / "0.case", tmp_path / "1.case")
    whole = collected(models, X).statistics["representative"].thumbnails
    assert same(merged.statistics["representative"].thumbnails, whole)
    assert len(collected(models, np.repeat(X[:3], 9, axis=0)).statistics["representative"].thumbnails.table) == 3


@pytest.mark.thorough
def test_blank_and_spoiled_samples_are_kept(models: tuple[Path, Path]) -> None:
    x = X.copy()
    x[17], x[23, :, :2] = 0.5, x[23].max()
    kept = collected(models, x).statistics["representative"].thumbnails
    rows = sample_rows(x, None)
    assert kept.table["hash"][kept.faintest] == rows["hash"][17]
    assert kept.table["hash"][kept.most_spoiled] == rows["hash"][23]


@pytest.mark.thorough
def test_none_are_kept_where_none_are_wanted_or_samples_are_no_images(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    assert not len(collected(models, X, thumbnails=False).statistics["representative"].thumbnails.table)
    ids = {"ids": np.arange(60).reshape(10, 6) % 20}
    pair = save_pair(tmp_path, token_net(), dynamic(token_net(), tmp_path))
    case = quantmedic.collect(*pair, representative=ids, threads=1)
    assert not len(case.statistics["representative"].thumbnails.table)


@pytest.mark.thorough
def test_a_file_whose_thumbnails_do_not_fit_is_refused(models: tuple[Path, Path], tmp_path: Path) -> None:
    case = collected(models, X)
    kept = case.statistics["representative"].thumbnails
    quantmedic.save_case(case, tmp_path / "good.case")
    assert same(read_case(tmp_path / "good.case").statistics["representative"].thumbnails, kept)
    kept.pixels[0] = np.zeros((SIDE + 1, 2, 3), np.float16)
    quantmedic.save_case(case, tmp_path / "bad.case")
    with pytest.raises(CaseError, match="not a readable case file"):
        read_case(tmp_path / "bad.case")


def test_only_kept_samples_cost_anything() -> None:
    """Later batches hold few samples with smaller hashes than those known: the others are never made small."""
    rng = np.random.default_rng(0)
    known, touched = Thumbnails(), 0
    for _ in range(60):
        x = rng.normal(size=(16, 3, 8, 8)).astype(np.float32)
        rows = sample_rows(x, None)
        before = set(known.table["hash"].tolist())
        known = with_batch(known, rows, x, 1)
        touched += len(set(known.table["hash"].tolist()) - before)
    assert touched < 100
