"""Declared preprocessing: the formula, the options of the command line, and image files."""

import sys
from pathlib import Path

import numpy as np
import pytest
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quantmedic.collectors.data.preprocessing import (
    Preprocessing,
    layout_of,
    parse_preprocessing,
    preprocessing_by_role,
    read_image,
)
from quantmedic.engine.errors import DataError

FINITE = st.floats(-100, 100, width=32)
POSITIVE = st.floats(0.01, 100)


def images(channels: int = 3) -> hnp.arrays:
    return hnp.arrays(np.float32, st.tuples(st.integers(1, 3), st.just(channels), st.integers(1, 4)), elements=FINITE)


# --- the formula


@examples(40)
@given(images(), st.tuples(FINITE, FINITE, FINITE), st.tuples(POSITIVE, POSITIVE, POSITIVE), POSITIVE)
def test_formula_runs_per_channel(x, mean, std, scale):
    declared = Preprocessing(mean, std, scale)
    m, s = (np.array(v, np.float64).reshape(1, 3, 1) for v in (mean, std))
    expected = (x.astype(np.float64) / scale - m) / s
    error = 1e-5 * (np.abs(x / scale) + np.abs(m)) / s + 1e-6
    assert np.all(np.abs(declared.apply(x) - expected) <= error)


@examples(40)
@given(images(), st.tuples(FINITE, FINITE, FINITE))
def test_channels_last_gives_the_same_numbers(x, mean):
    last = Preprocessing(mean, layout="NHWC").apply(np.moveaxis(x, 1, -1))
    np.testing.assert_array_equal(np.moveaxis(last, -1, 1), Preprocessing(mean).apply(x))


@examples(40)
@given(hnp.arrays(np.float32, (2, 3), elements=st.floats(width=32, allow_nan=True)))
def test_nothing_declared_is_identity(x):
    np.testing.assert_array_equal(Preprocessing().apply(x), x)


def test_bytes_become_floats_and_the_array_is_left_alone():
    x = np.array([[0, 255]], np.uint8)
    result = Preprocessing(scale=255, mean=(0.5,), std=(0.5,)).apply(x)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, [[-1, 1]])
    np.testing.assert_array_equal(x, [[0, 255]])
    floats = np.ones((2, 2), np.float32)
    Preprocessing(scale=2).apply(floats)
    assert (floats == 1).all()


def test_number_of_channels_must_agree_with_the_data():
    with pytest.raises(DataError, match="mean has another number of channels") as error:
        Preprocessing((1, 2, 3)).apply(np.zeros((4, 8, 8, 3), np.uint8))
    assert "--preprocess layout=NHWC" in str(error.value)


def test_impossible_declarations_are_refused():
    for fields, message in (
        ({"mean": (float("nan"),)}, "mean must be finite"),
        ({"std": (0.0,)}, "std must be positive"),
        ({"scale": 0.0}, "scale must be positive"),
        ({"scale": -1.0}, "scale must be positive"),
        ({"mean": (1.0, 2.0), "std": (1.0, 2.0, 3.0)}, "different numbers of channels"),
        ({"layout": "CHW"}, "layout must be NCHW or NHWC"),
        ({"channel_order": "RBG"}, "channel order must be RGB or BGR"),
        ({"resize": (0, 4)}, "resize must be"),
    ):
        with pytest.raises(DataError, match=message):
            Preprocessing(**fields)


def test_layout_is_told_by_the_axis_of_a_few_entries():
    layouts = {
        (None, 3, 224, 224): "NCHW",
        (None, 3, None, None): "NCHW",
        (1, 28, 28, 1): "NHWC",
        (None, None, None, None): None,
        (1, 3, 4, 4): None,
        (1, 3): None,
    }
    assert {shape: layout_of(shape) for shape in layouts} == layouts


# --- options


def test_options_without_a_role_hold_for_both():
    sets = parse_preprocessing(["mean=0.485, 0.456,0.406", "scale=255 resize=224x320"])
    assert sets["representative"] == sets["validation"]
    assert sets["validation"] == Preprocessing((0.485, 0.456, 0.406), None, 255.0, resize=(224, 320))


def test_role_wins_over_the_value_for_both():
    sets = parse_preprocessing(["mean=0.286", "representative.mean=0", "validation.channel-order=bgr"])
    assert sets["representative"] == Preprocessing((0.0,))
    assert sets["validation"] == Preprocessing((0.286,), channel_order="BGR")


def test_no_options_declare_nothing():
    nothing = Preprocessing()
    assert parse_preprocessing([]) == {"representative": nothing, "validation": nothing}


def test_one_declaration_is_that_of_both_sets():
    declared = Preprocessing(scale=255)
    assert preprocessing_by_role(declared) == {"representative": declared, "validation": declared}
    assert preprocessing_by_role({"validation": declared}) == {"validation": declared}
    assert preprocessing_by_role(None) == {}


def test_what_declares_nothing_is_refused_by_name():
    for wrong in ({"scale": 255}, {"validation": {"scale": 255}}, {"val": Preprocessing()}, 255, "x / 255"):
        with pytest.raises(DataError, match="neither a Preprocessing nor a mapping") as error:
            preprocessing_by_role(wrong)
        assert repr(wrong)[:80] in error.value.where
        assert "quantmedic.Preprocessing(scale=255" in error.value.help


def test_one_side_is_a_square():
    assert parse_preprocessing(["resize=32"])["validation"].resize == (32, 32)


def test_bad_options_say_what_to_write():
    for texts, message, words in (
        (["mean=a"], "mean cannot be read", "0.485"),
        (["mean="], "mean cannot be read", "0.485"),
        (["mean=1", "mean=2"], "mean is given twice", "validation.mean=VALUE"),
        (["validation.mean=1 validation.mean=1"], "twice for the validation data", "validation"),
        (["vaildation.mean=1"], "'vaildation' is no data set", "validation.mean=1"),
        (["representative.std=0"], "representative data: std must be positive", None),
        (["scale=1/255"], "scale cannot be read", "divided by"),
        (["scale=inf"], "scale must be positive", None),
        (["layout=HWC"], "layout cannot be read", "NCHW or NHWC"),
        (["resize=1x2x3"], "resize cannot be read", "height first"),
        (["resize=0"], "resize must be", None),
        (["normalise=1"], "unknown preprocessing 'normalise'", "channel_order"),
        (["scal=255"], "did you mean scale", "[ROLE.]KEY=VALUE"),
        (["255"], "unknown preprocessing '255'", "scale=255"),
        ([""], "unknown preprocessing ''", "scale=255"),
    ):
        with pytest.raises(DataError, match=message) as error:
            parse_preprocessing(texts)
        assert words is None or words in error.value.help


@examples(40)
@given(st.lists(FINITE, min_size=1, max_size=4))
def test_numbers_survive_the_command_line(values):
    text = ",".join(map(repr, values))
    assert parse_preprocessing([f"mean={text}"])["validation"].mean == tuple(values)


# --- image files


def save(path: Path, pixels: np.ndarray) -> Path:
    Image = pytest.importorskip("PIL.Image")
    Image.fromarray(pixels).save(path)
    return path


def test_colours_in_the_declared_order(tmp_path):
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    path = save(tmp_path / "a.png", pixels)
    np.testing.assert_array_equal(read_image(path, 3, Preprocessing()), pixels)
    np.testing.assert_array_equal(read_image(path, None, Preprocessing(channel_order="BGR")), pixels[..., ::-1])


def test_transparency_stays_last(tmp_path):
    path = save(tmp_path / "a.png", np.full((1, 1, 4), [1, 2, 3, 255], np.uint8))
    assert read_image(path, 4, Preprocessing(channel_order="BGR")).tolist() == [[[3, 2, 1, 255]]]


def test_grey_and_size(tmp_path):
    path = save(tmp_path / "a.png", np.full((4, 6), 7, np.uint8))
    image = read_image(path, 1, Preprocessing(resize=(2, 5), channel_order="BGR"))
    assert image.shape == (2, 5, 1)
    assert (image == 7).all()


def test_unreadable_images_are_named(tmp_path):
    whole = save(tmp_path / "a.png", np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8))
    cut = tmp_path / "cut.png"
    cut.write_bytes(whole.read_bytes()[:500])
    with pytest.raises(DataError, match=r"cannot be decoded\n.*cut.png"):
        read_image(cut, 3, Preprocessing())


def test_sixteen_bit_images_are_refused(tmp_path):
    path = save(tmp_path / "a.png", np.full((2, 2), 40000, np.uint16))
    with pytest.raises(DataError, match="8 bits per channel"):
        read_image(path, 1, Preprocessing())


def test_odd_numbers_of_channels_are_refused(tmp_path):
    path = save(tmp_path / "a.png", np.zeros((2, 2), np.uint8))
    with pytest.raises(DataError, match="1, 3 or 4 channels"):
        read_image(path, 13, Preprocessing())


def test_missing_pillow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match="Pillow") as error:
        read_image(tmp_path / "a.png", 3, Preprocessing())
    assert error.value.help == "pip install 'quantmedic[images]'"
