"""Pictures of samples: real PNG files, one window for both sets, within their budget."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quantmedic
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.thumbnails import THUMBNAIL_DTYPE, Thumbnails
from quantmedic.reports.charts.png import fewer_colours, png
from quantmedic.reports.sections.samples import BUDGET, samples_of

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def decoded(file: bytes) -> np.ndarray:
    image = Image.open(io.BytesIO(file))
    assert image.format == "PNG"
    return np.asarray(image.convert("RGB") if image.mode == "P" else image)


@given(st.integers(1, 60), st.integers(1, 60), st.sampled_from([1, 3]), st.integers(0, 3))
def test_a_png_holds_its_pixels(height: int, width: int, channels: int, kind: int) -> None:
    rng = np.random.default_rng(height * 61 + width)
    ramp = np.add.outer(np.arange(height), np.arange(width))[..., np.newaxis] * np.arange(1, channels + 1)
    noise = rng.integers(0, 256, (height, width, channels))
    pixels = [ramp % 256, noise, np.zeros_like(noise), (noise // 64 + ramp) % 256][kind].astype(np.uint8)
    found = decoded(png(pixels))
    assert np.array_equal(found.reshape(pixels.shape), pixels)


@given(st.integers(1, 24), st.sampled_from([1, 3]), st.integers(1, 40), st.integers(1, 300))
def test_fewer_colours_are_few_and_near(size: int, channels: int, most: int, distinct: int) -> None:
    rng = np.random.default_rng(size * 41 + most)
    shades = rng.integers(0, 256, (distinct, channels))
    pixels = shades[rng.integers(0, distinct, (size, size))].astype(np.uint8)
    before, after = (len(np.unique(p.reshape(-1, channels), axis=0)) for p in (pixels, fewer_colours(pixels, most)))
    assert after <= most
    if before <= most:
        assert np.array_equal(fewer_colours(pixels, 256), pixels)
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    assert np.abs(fewer_colours(grey, most).astype(int) - grey).max() <= 256 / 2 ** (most.bit_length() - 1)


@pytest.fixture
def demo_case(patient_case: Path) -> Case:
    """A case of the test's own, which it may change."""
    return quantmedic.load_case(patient_case)


@pytest.mark.thorough
def test_both_sets_share_one_window(demo_case: Case) -> None:
    """Inputs without normalization are greyer than normalized ones: their pictures must be, too."""
    samples = samples_of(demo_case)
    strips = samples.strips()
    shades = {
        role: np.concatenate([decoded(base64.b64decode(p.uri.partition(",")[2])).ravel() for p in strip.pictures])
        for role, strip in strips.items()
    }
    assert (shades["representative"].min(), shades["validation"].min()) == (round(255 * 0.81 / 2.83), 0)
    assert shades["representative"].max() < 180 and shades["validation"].max() == 255
    assert "-0.81 is black and 2.02 is white" in samples.window


@pytest.mark.thorough
def test_pictures_say_what_they_show(demo_case: Case) -> None:
    strips = samples_of(demo_case).strips()
    captions = [picture.caption for picture in strips["validation"].pictures]
    assert any("→" in caption for caption in captions)
    odd = [picture for picture in strips["validation"].pictures if picture.odd]
    assert odd[0].caption == "least contrast"
    assert all(picture.alt.startswith("validation sample") for picture in strips["validation"].pictures)
    files = dict(samples_of(demo_case).files())
    assert set(files) == {strips[role].file for role in strips}
    assert decoded(files["graphs/samples-validation.png"]).shape[0] == 56


@pytest.mark.thorough
def test_noise_of_full_size_stays_within_the_budget(demo_case: Case) -> None:
    rng = np.random.default_rng(0)
    for statistics in demo_case.statistics.values():
        kept = statistics.thumbnails
        kept.pixels = [rng.uniform(0, 1, (48, 48, 3)).astype(np.float16) for _ in kept.pixels]
        kept.pixels[0][3, 4] = np.nan
    samples = samples_of(demo_case)
    strips = samples.strips()
    assert sum(len(picture.uri) for strip in strips.values() for picture in strip.pictures) <= BUDGET + 700
    assert "Magenta marks values that are not finite" in samples.window and "red, green and blue" in samples.window
    first = decoded(base64.b64decode(strips["validation"].pictures[0].uri.partition(",")[2]))
    assert (first == (255, 0, 255)).all(axis=2).any()
    kinds = {decoded(base64.b64decode(p.uri.partition(",")[2])).shape for s in strips.values() for p in s.pictures}
    assert kinds == {(24, 24, 3)}


@pytest.mark.thorough
def test_a_case_without_thumbnails_shows_none(demo_case: Case, tmp_path: Path) -> None:
    for statistics in demo_case.statistics.values():
        statistics.thumbnails = Thumbnails()
    samples = samples_of(demo_case)
    assert (samples.strips(), samples.window, list(samples.files())) == ({}, "", [])
    quantmedic.write_report(quantmedic.judge(demo_case), tmp_path, formats=["html"], case=demo_case)
    assert "<img" not in (tmp_path / "index.html").read_text()
    assert not list((tmp_path / "graphs").glob("samples-*"))


@pytest.mark.thorough
def test_blank_and_spoiled_samples_are_marked_and_the_rest_is_not(demo_case: Case) -> None:
    table = np.zeros(3, THUMBNAIL_DTYPE)
    table["hash"], table["deviation"], table["scale"] = (1, 2, 3), (0.0, 1.0, 0.9), 1.0
    table["nonfinite"][2] = 4
    pixels = [np.full((4, 4, 1), value, np.float16) for value in (0.5, 0.25, np.nan)]
    demo_case.statistics["validation"].thumbnails = Thumbnails(table, pixels)
    demo_case.statistics["representative"].thumbnails = Thumbnails()
    pictures = samples_of(demo_case).strips()["validation"].pictures
    told = [(picture.caption, picture.wrong) for picture in pictures]
    assert told == [("", False), ("blank", True), ("4 values not finite", True)]
