"""Pictures of samples: real PNG files, one window for both sets, within their budget."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import quantmedic
from quantmedic.engine.case import Case
from quantmedic.reports.png import png
from quantmedic.reports.samples import BUDGET, samples_of


def decoded(file: bytes) -> np.ndarray:
    image = Image.open(io.BytesIO(file))
    assert image.format == "PNG"
    return np.asarray(image)


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), st.sampled_from([1, 3]), st.integers(0, 3))
def test_a_png_holds_its_pixels(height: int, width: int, channels: int, kind: int) -> None:
    rng = np.random.default_rng(height * 61 + width)
    ramp = np.add.outer(np.arange(height), np.arange(width))[..., np.newaxis] * np.arange(1, channels + 1)
    noise = rng.integers(0, 256, (height, width, channels))
    pixels = [ramp % 256, noise, np.zeros_like(noise), (noise // 64 + ramp) % 256][kind].astype(np.uint8)
    found = decoded(png(pixels))
    assert np.array_equal(found.reshape(pixels.shape), pixels)


@pytest.fixture(scope="module")
def demo_case() -> Case:
    from quantmedic.demo import patient

    models, options = patient()
    return quantmedic.collect(*models, threads=1, samples=64, **options)


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


def test_noise_of_full_size_stays_within_the_budget(demo_case: Case) -> None:
    rng = np.random.default_rng(0)
    for statistics in demo_case.statistics.values():
        kept = statistics.thumbnails
        kept.pixels = [rng.uniform(0, 1, (48, 48, 3)).astype(np.float16) for _ in kept.pixels]
        kept.pixels[0][3, 4] = np.nan
    samples = samples_of(demo_case)
    strips = samples.strips()
    assert sum(len(picture.uri) for strip in strips.values() for picture in strip.pictures) <= BUDGET + 1000
    assert "Magenta is no finite number" in samples.window and "red, green and blue" in samples.window
    kinds = {decoded(base64.b64decode(p.uri.partition(",")[2])).shape for s in strips.values() for p in s.pictures}
    assert kinds == {(24, 24, 3)}


def test_a_case_without_thumbnails_shows_none(demo_case: Case, tmp_path: Path) -> None:
    from quantmedic.engine.thumbnails import Thumbnails

    for statistics in demo_case.statistics.values():
        statistics.thumbnails = Thumbnails()
    samples = samples_of(demo_case)
    assert (samples.strips(), samples.window, list(samples.files())) == ({}, "", [])
    quantmedic.write_report(quantmedic.judge(demo_case), tmp_path, case=demo_case)
    assert "<img" not in (tmp_path / "index.html").read_text()
    assert not list((tmp_path / "graphs").glob("samples-*"))
