"""Data sets: every kind of source, real files, and what users are told when something does not fit."""

import io
import pickle
import sys
import tempfile
import tracemalloc
import zipfile
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.collectors.data.arrays import as_array
from quantmedic.collectors.data.batches import Selection
from quantmedic.collectors.data.datasets import Batch, InputSpec, Part, open_dataset
from quantmedic.collectors.data.preprocessing import Preprocessing
from quantmedic.engine.errors import DataError
from quantmedic.engine.reading_limits import LimitError

F32, I64 = np.dtype(np.float32), np.dtype(np.int64)
IMAGE = InputSpec("image", (None, 3, 6, 5), F32)
VECTOR = InputSpec("x", (None, 2), F32)
TWO = (InputSpec("a", (None, 2), F32), InputSpec("b", (None, 3), F32))


def opened(source: Any, *specs: InputSpec, **options: Any):
    return open_dataset(source, specs or (VECTOR,), **({"role": "validation"} | options))


def everything(dataset, size: int = 4, limit: int | None = None) -> Batch:
    batches = list(dataset.batches(size, limit))
    assert all(0 < batch.samples <= size for batch in batches)
    labels = None if batches[0].labels is None else np.concatenate([batch.labels for batch in batches])
    return Batch({k: np.concatenate([b.inputs[k] for b in batches]) for k in batches[0].inputs}, labels)


def refusal(*args: Any, **options: Any) -> str:
    """The message for data that are refused at once or in the first pass."""
    with pytest.raises(DataError) as error:
        list(opened(*args, **options).batches(4))
    assert error.value.help, "every refusal names a next step"
    return str(error.value)


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def in_form(form: str, folder: Path) -> Any:
    """Ten labelled samples for two inputs, in every form in which whole arrays come."""
    arrays = {"a": numbers(10, 2), "b": -numbers(10, 3), "labels": np.arange(10)}
    if form == "mapping":
        return arrays
    folder.mkdir()
    if form == "folder":
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)
        return folder
    if form == "fortran":
        arrays["a"] = np.asfortranarray(arrays["a"])
    save = np.savez if form == "savez" else np.savez_compressed
    save(folder / "val.npz", **arrays)
    return str(folder / "val.npz")


# --- whole arrays


def test_every_form_gives_the_same_samples(tmp_path):
    for form in ("savez", "savez_compressed", "fortran", "folder", "mapping"):
        dataset = opened(in_form(form, tmp_path / form), *TWO)
        assert (dataset.samples, dataset.labelled, dataset.notices) == (10, True, []), form
        for size in (1, 3, 64):
            found = everything(dataset, size)
            np.testing.assert_array_equal(found.inputs["a"], numbers(10, 2), err_msg=form)
            np.testing.assert_array_equal(found.inputs["b"], -numbers(10, 3), err_msg=form)
            assert found.labels.tolist() == list(range(10)), form
            batches = dataset.batches(size)
            assert all(a.flags.aligned and a.flags.c_contiguous for own in batches for a in own.inputs.values()), form


@given(st.integers(1, 30), st.integers(1, 12), st.none() | st.integers(1, 40))
@examples(50)
def test_limit_counts_samples(samples, size, limit):
    dataset = opened(numbers(samples, 2))
    found = everything(dataset, size, limit)
    np.testing.assert_array_equal(found.inputs["x"], numbers(samples, 2)[:limit])


def test_only_array_fits_the_only_input_whatever_its_name_and_holds(tmp_path):
    values = np.array([[np.nan, np.inf], [1, 2], [3, 4]], np.float32)
    np.savez(tmp_path / "a.npz", features=values, labels=[1, 2, 3])
    np.save(tmp_path / "a.npy", values)
    assert opened(tmp_path / "a.npz").labelled
    np.testing.assert_array_equal(everything(opened(tmp_path / "a.npy")).inputs["x"], values)


def test_labels_may_be_a_model_input():
    specs = (VECTOR, InputSpec("labels", (None,), I64))
    dataset = opened({"x": numbers(3, 2), "labels": np.arange(3)}, *specs)
    assert not dataset.labelled
    assert everything(dataset).inputs["labels"].tolist() == [0, 1, 2]


@pytest.mark.thorough
def test_memory_is_that_of_a_batch_whatever_is_passed_over(tmp_path):
    np.savez(tmp_path / "plain.npz", x=np.zeros((2000, 2000), np.float32))
    np.savez_compressed(tmp_path / "small.npz", x=np.zeros((2000, 2000), np.float32))
    passes = (
        ({"size": 10}, 2000, 2e6),
        ({"size": 4, "start": 1900}, 100, 6e6),
        ({"size": 4, "part": Part(3, 40, 0)}, 50, 6e6),
    )
    for name in ("plain", "small"):
        dataset = opened(tmp_path / f"{name}.npz", InputSpec("x", (None, 2000), F32))
        for options, samples, most in passes:
            tracemalloc.start()
            try:
                assert sum(batch.samples for batch in dataset.batches(**options)) == samples
                assert tracemalloc.get_traced_memory()[1] < most, (name, options)
            finally:
                tracemalloc.stop()


def test_batches_do_not_copy_arrays_in_memory():
    source = numbers(8, 2)
    for start in (0, 3):
        assert all(np.shares_memory(batch.inputs["x"], source) for batch in opened(source).batches(4, start=start))


# --- types


def test_floats_are_cast():
    for dtype in (np.float64, np.float16, ">f4"):
        found = everything(opened(numbers(4, 2, dtype=dtype))).inputs["x"]
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, numbers(4, 2))


def test_integers_arrive_unchanged_and_without_preprocessing():
    for have, want in ((np.int32, np.int64), (np.int64, np.int32), (np.uint8, np.int32)):
        spec = InputSpec("ids", (None, 2), np.dtype(want))
        dataset = opened(numbers(4, 2, dtype=have), spec, preprocessing=Preprocessing(scale=255))
        found = everything(dataset).inputs["ids"]
        assert found.dtype == want
        np.testing.assert_array_equal(found, numbers(4, 2))
        assert "the model takes integers" in dataset.notices[0]


def test_integers_that_do_not_fit_are_refused():
    spec = InputSpec("ids", (None, 1), np.dtype(np.int32))
    text = refusal(np.array([[2**31]]), spec)
    assert "2147483648" in text and "int32" in text


def test_bytes_for_floats_need_a_declaration():
    pixels = numbers(2, 3, 6, 5, dtype=np.uint8)
    text = refusal({"image": pixels}, IMAGE)
    assert "uint8" in text and "float32" in text and "-p scale=255 -p mean=… -p std=…" in text
    assert "-p validation.scale=…" in text and max(map(len, text.splitlines())) <= 100
    assert "no preprocessing" in refusal({"image": pixels}, IMAGE, preprocessing=Preprocessing(layout="NCHW"))
    dataset = opened({"image": pixels}, IMAGE, preprocessing=Preprocessing(scale=255, mean=(0.5,)))
    np.testing.assert_allclose(everything(dataset).inputs["image"], pixels / 255 - 0.5, atol=1e-6)


def test_what_is_not_a_number_or_not_of_the_models_kind_is_refused():
    text, ids = InputSpec("text", (None, 2), np.dtype(object)), InputSpec("ids", (None, 2), I64)
    for arguments, message in (
        ((np.array([["a", "b"]]),), "are not numbers"),
        ((np.array([[1j, 2]]),), "are not numbers"),
        ((np.array([[None, 1]]),), "Python objects"),
        ((np.zeros((2, 2), "datetime64[s]"),), "are not numbers"),
        ((numbers(3, 2), ids), "the model takes integers"),
        ((numbers(3, 2), text), "cannot hold"),
        ((numbers(3, 2), InputSpec("rate", (), F32)), "no sample axis"),
    ):
        assert message in refusal(*arguments)


# --- shapes and layouts


def test_layout_is_suggested_never_guessed():
    text = refusal({"image": numbers(7, 6, 5, 3)}, IMAGE)
    assert text.splitlines() == [
        "validation data do not fit the model input",
        "  array  image  (7, 6, 5, 3)",
        "  model  image  (N, 3, 6, 5)",
        "  note: the last axis has 3 entries: NHWC",
        "help: pass --preprocess validation.layout=NHWC",
    ]
    last = InputSpec("image", (None, None, None, 3), F32)
    assert "--preprocess representative.layout=NCHW" in refusal(numbers(7, 3, 6, 5), last, role="representative")
    square = InputSpec("image", (None, 8, 8, 3), F32)
    assert "axis 1 has 3 entries: NCHW" in refusal(numbers(7, 3, 8, 8), square)


def test_declared_layout_is_brought_into_the_models():
    """Channels of a model that takes them last need no declaration."""
    pixels = numbers(2, 6, 5, 3)
    wanted = pixels - [1, 2, 3]
    for shape, stored, expected in (
        ((None, 3, 6, 5), "NHWC", (2, 3, 6, 5)),
        ((None, None, None, None), "NHWC", (2, 3, 6, 5)),
        ((None, 6, 5, 3), "NHWC", (2, 6, 5, 3)),
        ((None, 6, 5, 3), None, (2, 6, 5, 3)),
    ):
        declared = Preprocessing(mean=(1, 2, 3), layout=stored)
        found = everything(opened(pixels, InputSpec("image", shape, F32), preprocessing=declared)).inputs["image"]
        assert found.shape == expected
        np.testing.assert_array_equal(found, wanted if expected[3] == 3 else wanted.transpose(0, 3, 1, 2))


def test_means_that_do_not_fit_name_the_array():
    text = refusal({"image": numbers(2, 3, 6, 5)}, IMAGE, preprocessing=Preprocessing(mean=(1, 2)))
    assert "mean has another number of channels" in text and "image" in text and "validation.layout=NHWC" in text


def test_wrong_shapes(tmp_path):
    for shape, advice in (
        ((3, 6, 5), "without a sample axis"),
        ((90,), "1 axes, the model takes 4"),
        ((2, 3, 9, 9), "preprocess the samples"),
        ((0, 3, 6, 5), "hold no samples"),
        ((), "no sample axis"),
    ):
        np.savez(tmp_path / "val.npz", image=np.zeros(shape, np.float32))
        text = refusal(tmp_path / "val.npz", IMAGE)
        assert advice in text and "val.npz" in text and "image" in text
    assert "are empty" in refusal(np.zeros((3, 0), np.float32), InputSpec("x", (None, None), F32))


# --- names and counts


def test_missing_and_extra_inputs_are_listed_with_near_names(tmp_path):
    np.savez(tmp_path / "val.npz", input_a=numbers(3, 2), c=numbers(3, 3))
    specs = (InputSpec("input_A", (None, 2), F32), TWO[1])
    text = refusal(tmp_path / "val.npz", *specs)
    assert "missing  input_A, did you mean input_a?" in text
    assert "missing  b" in text and "extra    c" in text
    assert "input_A, b" in text.splitlines()[-1]


def test_sample_counts_must_agree(tmp_path):
    assert "different numbers of samples" in refusal({"a": numbers(3, 2), "b": numbers(4, 3)}, *TWO)
    np.savez(tmp_path / "val.npz", x=numbers(3, 2), labels=[0, 1])
    text = refusal(tmp_path / "val.npz")
    assert "different numbers of samples" in text and "(2,)" in text


# --- damaged and foreign files


def test_missing_file_names_its_neighbour(tmp_path):
    np.savez(tmp_path / "validation.npz", x=numbers(3, 2))
    assert "did you mean" in refusal(tmp_path / "validaton.npz")
    assert "cannot be found" in refusal(tmp_path / "nowhere" / "a.npz")


def test_pickles_are_never_loaded(tmp_path):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(numbers(3, 2)))
    assert "never loaded" in refusal(tmp_path / "a.pkl")
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", x=np.array([[1], [1, 2]], object))
        text = refusal(tmp_path / "a.npz")
        assert "Python objects" in text and "a.npz  x" in text


def test_damaged_files_and_files_of_something_else(tmp_path):
    values = np.random.default_rng(0).random((5000, 2))
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", x=values)
        whole = (tmp_path / "a.npz").read_bytes()
        (tmp_path / "a.npz").write_bytes(whole[: len(whole) // 2])
        assert "damaged or was cut off" in refusal(tmp_path / "a.npz")
    hole = bytearray(whole)
    hole[len(hole) // 2 : len(hole) // 2 + 50] = bytes(50)
    (tmp_path / "a.npz").write_bytes(hole)
    assert "damaged or was cut off" in refusal(tmp_path / "a.npz")
    np.save(tmp_path / "a.npy", numbers(100, 2))
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:300])
    assert "a.npy" in refusal(tmp_path / "a.npy")
    (tmp_path / "a.csv").write_text("1,2\n")
    assert "not an .npz archive" in refusal(tmp_path / "a.csv")
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("data.pkl", b"")
    assert "holds no arrays" in refusal(tmp_path / "model.pt")


# --- folders


def test_one_sample_per_file_sorted_by_name(tmp_path):
    for i, shape in enumerate([(2,), (1, 2), (2,)]):
        np.save(tmp_path / f"s{i}.npy", np.full(shape, i, np.float32))
    np.save(tmp_path / "labels.npy", [5, 6, 7])
    dataset = opened(tmp_path)
    assert (dataset.samples, dataset.labelled, dataset.origin) == (3, True, tmp_path.name + "/")
    found = everything(dataset, 2)
    assert found.inputs["x"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert found.labels.tolist() == [5, 6, 7]


def test_samples_of_different_length_stay_apart(tmp_path):
    for i, length in enumerate([2, 2, 3, 3, 3]):
        np.save(tmp_path / f"s{i}.npy", np.zeros(length, np.float32))
    dataset = opened(tmp_path, InputSpec("x", (None, None), F32))
    assert [batch.inputs["x"].shape for batch in dataset.batches(2)] == [(2, 2), (2, 3), (1, 3)]


def test_files_that_do_not_hold_one_sample_are_named(tmp_path):
    np.save(tmp_path / "s0.npy", numbers(1, 2))
    np.save(tmp_path / "s1.npy", numbers(3, 2))
    text = refusal(tmp_path)
    assert "s1.npy" in text and "x.npy" in text
    np.save(tmp_path / "s1.npy", numbers(1, 3))
    assert "s1.npy" in refusal(tmp_path)


def test_folder_without_data(tmp_path):
    (tmp_path / "README").write_text("nothing")
    assert "neither .npy files nor images" in refusal(tmp_path)


@pytest.fixture
def pictures(tmp_path):
    """Writes small colour images; returns their pixels by relative path."""
    Image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)

    def write(*names: str, size: tuple[int, int] = (6, 5)) -> dict[str, np.ndarray]:
        pixels = {name: rng.integers(0, 256, (*size, 3), np.uint8) for name in names}
        for name, array in pixels.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(array).save(path)
        return pixels

    return write


SCALED = Preprocessing(scale=255)


def test_flat_folder_of_images(tmp_path, pictures):
    pixels = pictures("b.png", "a.png", "c.bmp")
    (tmp_path / "notes.txt").write_text("ignored")
    (tmp_path / ".hidden.png").write_text("ignored")
    declared = Preprocessing((0.1, 0.2, 0.3), (0.5, 0.6, 0.7), 255, channel_order="BGR")
    dataset = opened(tmp_path, IMAGE, preprocessing=declared)
    assert (dataset.samples, dataset.labelled) == (3, False)
    rows = np.stack([pixels[name] for name in ("a.png", "b.png", "c.bmp")])[..., ::-1]
    expected = ((rows / 255 - [0.1, 0.2, 0.3]) / [0.5, 0.6, 0.7]).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(everything(dataset, 2).inputs["image"], expected, atol=1e-5)


def test_class_folders_give_sorted_labels(tmp_path, pictures):
    pictures("names/dog/1.png", "names/cat/2.png", "names/cat/deep/1.png", "names/eel/x.jpg")
    dataset = opened(tmp_path / "names", IMAGE, preprocessing=SCALED)
    assert everything(dataset).labels.tolist() == [0, 0, 1, 2]
    assert dataset.notices == []
    pictures("numbers/2/a.png", "numbers/10/a.png")
    dataset = opened(tmp_path / "numbers", IMAGE, preprocessing=SCALED)
    assert everything(dataset).labels.tolist() == [0, 1]
    assert "alphabetical order (10, 2" in dataset.notices[0]


def test_images_for_a_channels_last_integer_model(tmp_path, pictures):
    pixels = pictures("a.png")
    spec = InputSpec("image", (1, 6, 5, 3), np.dtype(np.uint8))
    np.testing.assert_array_equal(everything(opened(tmp_path, spec), 1).inputs["image"][0], pixels["a.png"])


def test_layout_of_images_is_that_of_the_model_where_its_shape_leaves_it_open(tmp_path, pictures):
    pictures("a.png")
    spec = InputSpec("image", (None,) * 4, F32)
    for layout, shape in ((None, (1, 3, 6, 5)), ("NHWC", (1, 6, 5, 3))):
        declared = Preprocessing(scale=1, layout=layout)
        assert everything(opened(tmp_path, spec, preprocessing=declared)).inputs["image"].shape == shape


def test_images_of_another_size(tmp_path, pictures):
    pictures("a.png")
    pictures("b.png", size=(8, 8))
    text = refusal(tmp_path, IMAGE, preprocessing=SCALED)
    assert "b.png" in text and "--preprocess validation.resize=6x5" in text
    resized = Preprocessing(scale=255, resize=(6, 5))
    assert everything(opened(tmp_path, IMAGE, preprocessing=resized)).samples == 2


def test_images_that_cannot_be_read_so_are_refused(tmp_path, pictures, monkeypatch):
    pictures("a.png")
    assert "no preprocessing is declared" in refusal(tmp_path, IMAGE)
    assert "no preprocessing is declared" in refusal(tmp_path, IMAGE, preprocessing=Preprocessing(resize=(6, 5)))
    assert "one input of four axes" in refusal(tmp_path, *TWO, preprocessing=SCALED)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "PIL", None)
        assert "pip install 'quantmedic[images]'" in refusal(tmp_path, IMAGE, preprocessing=SCALED)
    pictures("cat/b.png")
    assert "beside and inside" in refusal(tmp_path, IMAGE, preprocessing=SCALED)


def test_resize_and_channel_order_of_arrays_are_reported():
    dataset = opened(numbers(2, 3, 6, 5), IMAGE, preprocessing=Preprocessing(resize=(6, 5), channel_order="BGR"))
    assert "image files only" in dataset.notices[0]


# --- functions


def test_forms_of_a_batch():
    for item, labelled in (
        (numbers(3, 2), False),
        ([numbers(3, 2)], False),
        ({"x": numbers(3, 2)}, False),
        ({"x": numbers(3, 2), "labels": [1, 2, 3]}, True),
        ((numbers(3, 2), [1, 2, 3]), True),
        ([numbers(3, 2), np.array([1, 2, 3])], True),
        (({"x": numbers(3, 2)}, [1, 2, 3]), True),
        ((numbers(3, 2), None), False),
    ):
        dataset = opened(lambda item=item: iter([item, item]))
        assert (dataset.samples, dataset.labelled, dataset.fingerprint()) == (None, labelled, None)
        for _ in range(2):
            found = everything(dataset, 4)
            np.testing.assert_array_equal(found.inputs["x"], np.concatenate([numbers(3, 2)] * 2))
            assert found.labels is None or found.labels.tolist() == [1, 2, 3, 1, 2, 3]


def test_two_arrays_are_the_two_inputs_of_a_model():
    a, b = numbers(3, 2), numbers(3, 3)
    assert not opened(lambda: [(a, b)], *TWO).labelled
    dataset = opened(lambda: [((a, b), [0, 1, 2])], *TWO)
    np.testing.assert_array_equal(everything(dataset).inputs["b"], b)
    assert dataset.labelled


def test_iterables_are_batches_and_huge_ones_are_cut():
    class Loader:
        def __iter__(self):
            return iter([numbers(10, 2)])

    assert [batch.samples for batch in opened(Loader()).batches(4)] == [4, 4, 2]


def test_function_runs_once_per_pass():
    calls = []

    def load():
        calls.append(1)
        yield numbers(2, 2)

    dataset = opened(load)
    for _ in range(3):
        list(dataset.batches(2))
    assert len(calls) == 3


def test_iterator_that_is_kept_cannot_be_read_twice():
    for read in (1, 2):
        generator = (numbers(2, 2) for _ in range(3))
        dataset = opened(lambda own=generator: own)
        passed = dataset.batches(2)
        for _ in range(read):
            next(passed)
        with pytest.raises(DataError, match="iterator of an earlier call") as error:
            list(dataset.batches(2))
        assert "new iterator at every call" in error.value.help


def test_function_that_has_nothing_left():
    left = [numbers(2, 2)]
    dataset = opened(lambda: iter([left.pop()] if left else []))
    list(dataset.batches(2))
    with pytest.raises(DataError, match="yielded no samples"):
        list(dataset.batches(2))


def test_functions_that_fail():
    for load, message in (
        (lambda: [], "yielded no samples"),
        (lambda: [np.zeros((0, 2))], "yielded no samples"),
        (lambda: None, "TypeError"),
        (lambda n: [n], "called without arguments"),
        (lambda: [numbers(2, 2), {}["x"]], "KeyError"),
        (lambda: sys.exit(0), "SystemExit"),
        (lambda: [(numbers(2, 2), [1])], "differ in length"),
        (lambda: [(numbers(2, 2), [1, 2]), numbers(2, 2)], "others none"),
        (lambda: [(numbers(2, 2), [b"a", b"b"])], "labels are neither numbers nor texts"),
        (lambda: [(numbers(2, 2),) * 3], "3 arrays, the model takes 1"),
        (lambda: [numbers(2, 2), numbers(2, 3)], "batch 1"),
        (lambda: [{"y": 1, "z": 2}], "missing"),
        (lambda: [1.5], "single number"),
        (lambda: [[[1], [1, 2]], 1], "batch"),
        (iter([]), "not the generator"),
        (5, "unrecognized kind of validation data"),
    ):
        assert message in refusal(load)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes ``own_loader.py`` into the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    sys.modules.pop("own_loader", None)

    def write(text: str) -> None:
        (tmp_path / "own_loader.py").write_text("import numpy as np\n" + text)

    yield write
    sys.modules.pop("own_loader", None)


@pytest.mark.source("litert-data-function")
def test_module_and_function(module):
    module("def batches():\n    yield np.ones((3, 2)), [1, 0, 1]\n")
    dataset = opened("own_loader:batches")
    assert (dataset.origin, dataset.labelled) == ("own_loader:batches", True)
    assert everything(dataset).labels.tolist() == [1, 0, 1]


def test_module_that_fails(module):
    module("raise OSError('no camera')\n")
    assert "no camera" in refusal("own_loader:batches")
    module("def batch(): pass\n")
    assert "did you mean batch?" in refusal("own_loader:batches")


# --- labels in a file of their own


def test_kinds_of_label_files(tmp_path):
    np.save(tmp_path / "l.npy", [3, 1, 2])
    np.savez(tmp_path / "l.npz", labels=[3, 1, 2])
    np.savez(tmp_path / "other.npz", y=[3, 1, 2])
    (tmp_path / "l.csv").write_text("label\n3\n1\n\n2\n")
    (tmp_path / "l.txt").write_text("3\n1\n2")
    for path in tmp_path.iterdir():
        labels = everything(opened(numbers(3, 2), labels=path)).labels
        assert labels.tolist() == [3, 1, 2] and labels.dtype.kind == "i", path.name


def test_labels_may_be_numbers_or_an_array(tmp_path):
    (tmp_path / "l.txt").write_text("0.5\n-1e3\n2\n")
    assert everything(opened(numbers(3, 2), labels=tmp_path / "l.txt")).labels.tolist() == [0.5, -1000, 2]
    assert everything(opened(numbers(3, 2), labels=np.array([[1], [2], [3]]))).labels.tolist() == [1, 2, 3]


def test_label_file_wins_and_says_so():
    dataset = opened({"x": numbers(2, 2), "labels": np.array([0, 0])}, labels=np.array([1, 2]))
    assert everything(dataset).labels.tolist() == [1, 2]
    assert "not those of" in dataset.notices[0]


def test_bad_label_files(tmp_path):
    for content, message in (
        (b"1\n2\n", "2 labels"),
        (b"1,2\n3,4\n5,6\n", "l.csv:1"),
        (b"a\n1\nb\n", "l.csv:3"),
        (b"\xff\xfe\x00", "not text"),
    ):
        (tmp_path / "l.csv").write_bytes(content)
        text = refusal(numbers(3, 2), labels=tmp_path / "l.csv")
        assert message in text and "l.csv" in text
    assert "labels cannot be found" in refusal(numbers(3, 2), labels=tmp_path / "l.npy")
    np.savez(tmp_path / "l.npz", a=[1], b=[2])
    assert "none named labels" in refusal(numbers(3, 2), labels=tmp_path / "l.npz")
    (tmp_path / "l.json").write_text("[]")
    assert "unrecognized format of a labels file" in refusal(numbers(3, 2), labels=tmp_path / "l.json")


def npy_header(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def test_a_mapped_file_is_not_read_at_once_beyond_the_limit(tmp_path):
    """It is all hole: a terabyte that takes no room on the disk."""
    header = npy_header((4, 1 << 36))
    with (tmp_path / "large.npy").open("wb") as file:
        file.write(header)
        file.truncate(len(header) + (1 << 40))
    with pytest.raises(LimitError, match="an array that is read at once has too many bytes"):
        opened(numbers(4, 2), labels=tmp_path / "large.npy")
    with pytest.raises(LimitError, match="an array that is read at once has too many bytes"):
        next(opened(tmp_path / "large.npy", InputSpec("x", (None, 1 << 36), F32)).batches(1))


def test_an_array_that_its_file_does_not_hold_is_refused(tmp_path):
    shapes = [((), "<f4"), ((), "|V2000000000"), ((-3,), "<f4"), ((1 << 62, 4), "<f4"), ((0, 1 << 63), "<f4")]
    for shape, dtype in (*shapes, ((5,), "<f4")):
        (tmp_path / "labels.npy").write_bytes(npy_header(shape, dtype) + b"12")
        with pytest.raises(DataError, match="damaged or was cut off"):
            opened(numbers(4, 2), labels=tmp_path / "labels.npy")


def test_labels_for_a_function_are_counted_in_the_pass():
    for count, message in ((3, "at least 4"), (6, "5 samples")):
        dataset = opened(lambda: [numbers(2, 2), numbers(2, 2), numbers(1, 2)], labels=np.arange(count))
        assert dataset.labelled
        with pytest.raises(DataError, match="another number of labels") as error:
            list(dataset.batches(2))
        assert message in str(error.value)
        assert everything(dataset, 2, limit=2).labels.tolist() == [0, 1]


# --- models with a fixed batch


def test_fixed_batch_of_one():
    dataset = opened(numbers(3, 2), InputSpec("x", (1, 2), F32))
    assert [batch.samples for batch in dataset.batches(32)] == [1, 1, 1]
    assert dataset.notices == []


def test_fixed_batch_drops_the_rest_with_a_notice():
    for source in (numbers(10, 2), lambda: [numbers(7, 2), numbers(3, 2)]):
        dataset = opened(source, InputSpec("x", (4, 2), F32))
        for _ in range(2):
            assert [batch.samples for batch in dataset.batches(1)] == [4, 4]
        assert dataset.notices == ["validation data: 2 samples were left out, the model takes exactly 4 at a time"]


def test_fixed_batch_larger_than_the_set():
    assert "fixed batch of 4" in refusal(numbers(3, 2), InputSpec("x", (4, 2), F32))
    assert "fixed batch of 4" in refusal(lambda: [numbers(3, 2)], InputSpec("x", (4, 2), F32))


def test_inputs_with_different_fixed_batches():
    specs = (InputSpec("a", (4, 2), F32), InputSpec("b", (2, 3), F32))
    text = refusal({"a": numbers(4, 2), "b": numbers(4, 3)}, *specs)
    assert "different fixed first axes" in text and "give one array per sample" in text


STATE = InputSpec("state", (1, 2, None, 4), F32, whole=True)
RATE = InputSpec("rate", (1,), I64, whole=True)


@pytest.mark.parametrize("per_sample", [False, True])
def test_inputs_without_sample_axis_are_one_array_per_sample_or_one_for_all(tmp_path, per_sample):
    state, rate = numbers(5, 2, 1, 4), np.arange(5)
    if not per_sample:
        state, rate = state[0], rate[3]
    arrays = {"x": numbers(5, 2), "state": state, "rate": rate}
    np.savez(tmp_path / "plain.npz", **arrays)
    np.savez_compressed(tmp_path / "small.npz", **arrays)
    for source in (arrays, tmp_path / "plain.npz", tmp_path / "small.npz", lambda: [arrays]):
        dataset = opened(source, VECTOR, STATE, RATE)
        batches = list(dataset.batches(3))
        assert [batch.samples for batch in batches] == [1] * 5
        for i, batch in enumerate(batches):
            np.testing.assert_array_equal(batch.inputs["x"], arrays["x"][i : i + 1])
            np.testing.assert_array_equal(batch.inputs["state"], state[i : i + 1] if per_sample else state[np.newaxis])
            np.testing.assert_array_equal(batch.inputs["rate"], rate[i : i + 1] if per_sample else rate[np.newaxis])


def test_data_show_that_an_input_is_taken_whole():
    """Nothing in the model says that the first axis of a state counts layers where its others are fixed too."""
    fixed = InputSpec("state", (2, 1, 4), F32)
    states = numbers(5, 2, 1, 4)
    batches = list(opened({"x": numbers(5, 2), "state": states}, VECTOR, fixed).batches(3))
    assert [batch.inputs["state"].shape for batch in batches] == [(1, 2, 1, 4)] * 5
    as_ever = opened({"x": numbers(6, 2), "state": numbers(6, 1, 4)}, VECTOR, fixed)
    assert [batch.samples for batch in as_ever.batches(3)] == [2, 2, 2]


def test_an_array_that_is_neither_says_what_to_save():
    text = refusal({"x": numbers(5, 2), "state": numbers(5, 1, 4), "rate": np.arange(5)}, VECTOR, STATE, RATE)
    assert "save one array (2, ?, 4) per sample, or a single one for all" in text


def test_wrong_use_is_a_value_error():
    with pytest.raises(ValueError):
        opened(numbers(3, 2)).batches(0)
    with pytest.raises(ValueError):
        open_dataset(numbers(3, 2), (), role="validation")


# --- parts, and passes that go on


@st.composite
def parts(draw) -> Part:
    count = draw(st.integers(1, 7))
    return Part(draw(st.integers(0, count - 1)), count, draw(st.integers(-(2**70), 2**70)), draw(st.integers(1, 4)))


def siblings(part: Part) -> list[Part]:
    return [Part(index, part.count, part.seed, part.unit) for index in range(part.count)]


@given(parts(), st.integers(0, 200))
@examples(60)
def test_parts_are_disjoint_even_and_together_everything(part, samples):
    found = [each.indexes(0, samples) for each in siblings(part)]
    assert sorted(np.concatenate(found)) == list(range(samples))
    lengths = [len(indexes) for indexes in found]
    assert max(lengths) - min(lengths) <= part.unit


@given(parts(), st.lists(st.integers(0, 200), min_size=2, max_size=9))
@examples(60)
def test_a_part_is_the_same_however_the_set_is_cut(part, edges):
    edges = sorted(edges)
    pieces = [part.indexes(start, stop) for start, stop in pairwise(edges)]
    np.testing.assert_array_equal(np.concatenate(pieces), part.indexes(edges[0], edges[-1]))


@given(parts(), st.integers(0, 100))
@examples(60)
def test_position_in_a_part_counts_the_samples_before_it(part, number):
    position = part.position(number)
    assert len(part.indexes(0, position)) == number
    assert part.indexes(position, position + 1).tolist() == [position]


@given(parts(), st.integers(0, 20), st.integers(1, 5))
@examples(60)
def test_parts_are_read_a_batch_at_a_time_wherever_a_pass_begins(part, units, batch):
    """Batches then need not be joined from pieces."""
    size = batch * part.unit
    pieces = list(Selection(part.position(units * part.unit), None, part).rows(size, 300))
    assert all(len(rows) == size for rows in pieces[:-1])
    assert [i for rows in pieces for i in rows] == part.indexes(0, 300)[units * part.unit :].tolist()


def test_no_part_prefers_a_phase_of_periodic_data():
    """Each sample is in each of three parts with probability 1/3; the bound is six standard deviations."""
    for part in siblings(Part(0, 3, seed=4)):
        for period in (2, 3, 30):
            phases = np.bincount(part.indexes(0, 90_000) % period, minlength=period)
            expected = 30_000 / period
            assert np.abs(phases - expected).max() < 6 * np.sqrt(expected)


def test_all_orders_of_a_block_are_equally_likely():
    places = np.stack([part.indexes(0, 18_000) % 3 for part in siblings(Part(0, 3, seed=9))], axis=1)
    orders, counts = np.unique(places, axis=0, return_counts=True)
    assert len(orders) == 6
    assert np.abs(counts - 1000).max() < 6 * np.sqrt(1000)


def test_parts_stay_what_they_are():
    """Later versions read the same samples: a collection may be resumed after an update."""
    assert Part(0, 3, seed=0).indexes(0, 18).tolist() == [0, 3, 7, 9, 13, 17]
    assert Part(0, 3, seed=1).indexes(0, 300).tolist() != Part(0, 3, seed=0).indexes(0, 300).tolist()


def test_impossible_parts():
    for wrong in ((0, 0, 0), (3, 3, 0), (-1, 3, 0), (0, 3, 0, 0)):
        with pytest.raises(ValueError):
            Part(*wrong)


KINDS = ["savez", "savez_compressed", "compressed fortran", "npy", "files", "images", "mapping", "callable", "iterable"]


def numbered(kind: str, folder: Path, samples: int, fixed: int | None, chunk: int = 3, **options: Any):
    """A data set whose sample ``i`` holds the number i, in any form; where the form allows it, with the label -i."""
    x, labels = np.repeat(numbers(samples, 1), 4, axis=1).reshape(samples, 1, 2, 2), -np.arange(samples)
    spec = InputSpec("x", (fixed, 1, 2, 2), F32)
    chunks = [(x[i : i + chunk], labels[i : i + chunk]) for i in range(0, samples, chunk)]
    options |= {"preprocessing": Preprocessing(scale=1)}
    if kind.startswith(("savez", "compressed")):
        save = np.savez if kind == "savez" else np.savez_compressed
        save(folder / "x.npz", x=np.asfortranarray(x) if "fortran" in kind else x, labels=labels)
        return opened(folder / "x.npz", spec, **options)
    if kind == "npy":
        np.save(folder / "any.npy", x)
        return opened(folder / "any.npy", spec, **{"labels": labels} | options)
    if kind == "mapping":
        return opened({"x": x, "labels": labels}, spec, **options)
    if kind in ("callable", "iterable"):
        return opened(chunks if kind == "iterable" else lambda: iter(chunks), spec, **options)
    if kind == "files":
        for name, array in [("labels", labels), *((f"{i:03}", sample) for i, sample in enumerate(x))]:
            np.save(folder / f"{name}.npy", array)
        return opened(folder, spec, **options)
    for i, sample in enumerate(x.astype(np.uint8)):
        pytest.importorskip("PIL.Image").fromarray(sample[0]).save(folder / f"{i:03}.png")
    return opened(folder, spec, **{"labels": labels} | options)


def flat(batches: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(batches))


def read(dataset, *args: Any, **options: Any) -> list[list[int]]:
    """The numbers of the samples in each batch, which must fit their labels."""
    batches = [(batch.inputs["x"][:, 0, 0, 0].astype(int), batch.labels) for batch in dataset.batches(*args, **options)]
    assert all((ids == -labels).all() for ids, labels in batches)
    return [ids.tolist() for ids, _ in batches]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
@examples(12)
def test_every_source_can_be_read_in_parts_and_resumed(kind, data):
    fixed = data.draw(st.sampled_from([None, None, 1, 2, 3]))
    samples, chunk = data.draw(st.integers(fixed or 1, 25)), data.draw(st.integers(1, 9))
    size, limit = data.draw(st.integers(1, 6)), data.draw(st.none() | st.integers(fixed or 1, 30))
    count, seed = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 99))
    options = data.draw(st.sampled_from([{}, {"labels": -np.arange(samples)}]))
    with tempfile.TemporaryDirectory() as folder:
        dataset = numbered(kind, Path(folder), samples, fixed, chunk, **options)
        whole = read(dataset, size, limit)
        found = []
        for part in (None, *(Part(index, count, seed) for index in range(count))):
            batches = read(dataset, size, limit, part=part)
            found.append(flat(batches))
            assert all(len(batch) == (fixed or size) for batch in batches[:-1])
            for done, start in enumerate(accumulate(map(len, batches), initial=0)):
                assert read(dataset, size, limit, part=part, start=start) == batches[done:]
    assert found[0] == flat(whole)
    assert sorted(flat(found[1:])) == found[0], "the parts together are the whole"
    assert found[1:] == [sorted(ids) for ids in found[1:]]
    lengths = [len(ids) for ids in found[1:]]
    assert max(lengths) - min(lengths) <= (fixed or 1)


@pytest.mark.parametrize("kind", ["files", "callable"])
@given(st.data())
@examples(30)
def test_passes_go_on_where_shapes_and_types_change(kind, data):
    """A fixed batch drops what is left before each change, wherever the pass began."""
    fixed, size = data.draw(st.sampled_from([None, 1, 2, 3])), data.draw(st.integers(1, 4))
    lengths = data.draw(st.lists(st.sampled_from([2, 2, 2, 3]), min_size=fixed or 1, max_size=20))
    types = data.draw(st.lists(st.sampled_from(["f4", "f4", "f8"]), min_size=len(lengths), max_size=len(lengths)))
    part = data.draw(st.none() | st.builds(Part, st.just(0), st.integers(1, 3), st.integers(0, 9)))
    samples = [np.full((1, n), i, t) for i, (n, t) in enumerate(zip(lengths, types, strict=True))]
    with tempfile.TemporaryDirectory() as folder:
        for i, sample in enumerate(samples):
            np.save(Path(folder) / f"{i:03}.npy", sample)
        source = folder if kind == "files" else lambda: samples
        dataset = opened(source, InputSpec("x", (fixed, None), F32), labels=np.arange(len(samples)))
        # The error for too few samples concerns whole passes alone.
        part = part or Part(0, 1, 0)
        batches = list(dataset.batches(size, part=part))
        notices = dataset.notices[:]
        for done, start in enumerate(accumulate((batch.samples for batch in batches), initial=0)):
            rest = list(dataset.batches(size, part=part, start=start))
            assert len(rest) == len(batches) - done
            for one, other in zip(rest, batches[done:], strict=True):
                np.testing.assert_array_equal(one.inputs["x"], other.inputs["x"])
                np.testing.assert_array_equal(one.labels, other.labels)
                assert (one.inputs["x"][:, 0] == one.labels).all()
        assert dataset.notices == notices, "a pass that goes on leaves out no more and no fewer"


@pytest.mark.parametrize(("kind", "fixed"), [("files", None), ("images", 2)])
def test_files_of_other_parts_and_outside_the_limits_are_not_opened(tmp_path, kind, fixed):
    dataset, part = numbered(kind, tmp_path, 20, fixed), Part(1, 3, seed=5)
    expected = read(dataset, 2, part=part)
    for i, path in enumerate(sorted(tmp_path.glob("0*"))):
        if i not in flat(expected) and not 8 <= i < 14:
            path.write_bytes(b"damaged")
    assert read(dataset, 2, part=part) == expected
    with pytest.raises(DataError):
        read(dataset, 2)
    assert flat(read(dataset, 2, 14, start=8)) == list(range(8, 14))


def test_what_is_passed_over_is_not_converted():
    """Converting the first sample would fail."""
    spec = InputSpec("ids", (None, 1), np.dtype(np.int32))
    for source in (np.array([[2**31], [1], [2]]), lambda: [np.array([[2**31], [1], [2]])]):
        (batch,) = opened(source, spec).batches(4, start=1)
        assert batch.inputs["ids"].tolist() == [[1], [2]]


def test_parts_that_hold_nothing_are_no_error():
    for source in (numbers(3, 2), lambda: [numbers(3, 2)]):
        found = [list(opened(source).batches(2, part=Part(index, 9, 0))) for index in range(9)]
        assert sorted(map(len, found)) == [0] * 6 + [1] * 3
        assert list(opened(source).batches(2, start=3)) == []


def test_no_samples_at_all_are_an_error_in_every_part():
    filled = [[numbers(1, 2)], []]
    dataset = opened(lambda: filled.pop(0))
    next(dataset.batches(1))
    with pytest.raises(DataError, match="no samples"):
        list(dataset.batches(1, part=Part(0, 2, 0)))


def test_labels_and_fixed_batches_of_a_function_are_counted_in_every_part():
    for index in range(3):
        for count, message in ((4, "at least"), (6, "5 samples")):
            dataset = opened(lambda: [numbers(2, 2), numbers(2, 2), numbers(1, 2)], labels=np.arange(count))
            with pytest.raises(DataError, match="another number of labels") as error:
                list(dataset.batches(2, start=1, part=Part(index, 3, 0)))
            assert message in str(error.value)
        dataset = opened(lambda: [numbers(3, 2)], InputSpec("x", (4, 2), F32))
        with pytest.raises(DataError, match="fewer samples"):
            list(dataset.batches(1, part=Part(index, 3, 0)))


def test_only_the_part_with_the_end_of_the_set_leaves_samples_out():
    found = []
    for index in range(3):
        dataset = opened(lambda: [numbers(7, 2), numbers(3, 2)], InputSpec("x", (4, 2), F32))
        found.append(([b.samples for b in dataset.batches(1, part=Part(index, 3, 0))], dataset.notices))
    note = "validation data: 2 samples were left out, the model takes exactly 4 at a time"
    assert sorted(found) == [([], [note]), ([4], []), ([4], [])]


def test_a_start_between_fixed_batches_is_a_value_error():
    dataset = opened(numbers(8, 2), InputSpec("x", (4, 2), F32))
    for start in (-4, 3):
        with pytest.raises(ValueError, match="start"):
            dataset.batches(4, start=start)


# --- identity


def test_fingerprint_of_an_archive_follows_every_value(tmp_path):
    values, labels = numbers(100, 2), np.arange(100)
    changed = values.copy()
    changed[33] += 1
    for name, write in (("plain", np.savez), ("packed", np.savez_compressed)):
        write(tmp_path / f"{name}.npz", x=values, labels=labels)
    np.savez(tmp_path / "values.npz", x=changed, labels=labels)
    np.savez(tmp_path / "labels.npz", x=values, labels=labels[::-1])
    names = ("plain", "packed", "values", "labels")
    plain, packed, *others = (opened(tmp_path / f"{name}.npz").fingerprint() for name in names)
    assert plain == packed and len({plain, *others}) == 3
    assert opened(tmp_path / "plain.npz", labels=labels[::-1]).fingerprint() not in (plain, None)


def test_fingerprint_of_arrays_and_files_follows_first_and_last_sample(tmp_path, pictures):
    values = numbers(100, 2)
    found = {opened(values).fingerprint(), opened(values[:99]).fingerprint()}
    for place in (0, 99):
        changed = values.copy()
        changed[place] += 1
        np.save(tmp_path / f"{place}.npy", changed)
        assert opened(changed).fingerprint() == opened(tmp_path / f"{place}.npy").fingerprint()
        found.add(opened(changed).fingerprint())
    assert len(found) == 4
    folder = tmp_path / "images"
    pictures("images/a.png", "images/b.png")
    first = opened(folder, IMAGE, preprocessing=SCALED).fingerprint()
    assert opened(folder, IMAGE, preprocessing=SCALED).fingerprint() == first
    (folder / "a.png").rename(folder / "c.png")
    renamed = opened(folder, IMAGE, preprocessing=SCALED).fingerprint()
    pictures("images/b.png")
    assert len({first, renamed, opened(folder, IMAGE, preprocessing=SCALED).fingerprint()}) == 3
    assert opened(lambda: iter([values])).fingerprint() is None


def test_origin_hides_the_folder(tmp_path):
    np.savez(tmp_path / "val.npz", x=numbers(3, 2))
    dataset = opened(tmp_path / "val.npz")
    assert dataset.origin == "val.npz"
    assert dataset.role == "validation"
    assert str(Path(tmp_path)) not in dataset.origin


def test_an_object_that_ends_the_process_when_it_is_read_is_refused() -> None:
    class Odd:
        def __init__(self, raised: BaseException) -> None:
            self.raised = raised

        def __array__(self, *given: object, **options: object) -> None:
            raise self.raised

    for raised in (ValueError("bad"), SystemExit(1), BaseException("base"), GeneratorExit()):
        with pytest.raises(DataError, match="cannot be turned into an array"):
            as_array(Odd(raised), "data")
