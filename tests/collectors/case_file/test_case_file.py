"""The case file: what comes back is what was written, and nothing else is ever taken for a case."""

import contextlib
import io
import json
import math
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.onnx_models import Recipe, conv_net, images, qdq, save_pair, token_net

import quantmedic
from quantmedic.collectors.case_file.archive import read_case, write_case
from quantmedic.engine.case.records import CASE_SCHEMA, Case
from quantmedic.engine.case.statistics import FEATURES, SAMPLE_DTYPE, SLOTS, slots_of
from quantmedic.engine.errors import CaseError
from quantmedic.engine.reading_limits import LimitError

Files = dict[str, bytes]
PLAIN = (
    *("channels", "bucket_min", "bucket_max", "feature_sum", "feature_outer", "flipped_sum", "tensor_samples"),
    *("sample_width", "sample_count", "slot_min", "slot_max", "spatial"),
)
R, V = "representative/", "validation/"


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Case:
    """Two data sets, labels, non-finite values, step errors."""
    x = images(20)
    x[3, 0, 0, 0] = np.nan
    paths = save_pair(tmp_path_factory.mktemp("models"), conv_net(), qdq(conv_net(), {"image": images()}))
    validation = {"image": x, "labels": np.arange(20) % 5}
    extra = {"step_error": True}
    return quantmedic.collect(*paths, representative=images(6), validation=validation, threads=1, **extra)


@pytest.fixture(scope="module")
def saved(case, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("case") / "quantmedic.case"
    write_case(case, path)
    return path


def assert_same(a: Case, b: Case) -> None:
    assert a.record == b.record
    assert a.weights.keys() == b.weights.keys()
    for place, own in a.weights.items():
        for name, found in vars(b.weights[place]).items():
            np.testing.assert_array_equal(found, getattr(own, name), err_msg=name)
            assert np.asarray(found).dtype == np.asarray(getattr(own, name)).dtype
    assert a.statistics.keys() == b.statistics.keys()
    for role, mine in a.statistics.items():
        theirs = b.statistics[role]
        for name, array in mine.columns.items():
            np.testing.assert_array_equal(theirs.columns[name], array, err_msg=name)
            assert theirs.columns[name].dtype == array.dtype
        assert theirs.columns.keys() == mine.columns.keys()
        for attribute in ("histograms", "quantized_histograms"):
            one, other = getattr(mine, attribute), getattr(theirs, attribute)
            used = {i for i, counts in one.items() if counts.any()}
            assert used == {i for i, counts in other.items() if counts.any()}
            for i in used:
                np.testing.assert_array_equal(other[i], one[i])
        for name in PLAIN:
            np.testing.assert_array_equal(getattr(theirs, name), getattr(mine, name), err_msg=name)
        assert theirs.samples.dtype == mine.samples.dtype
        for name in mine.samples.dtype.names:
            np.testing.assert_array_equal(theirs.samples[name], mine.samples[name], err_msg=name)
        assert theirs.comparisons.keys() == mine.comparisons.keys() != set()
        for name, found in mine.comparisons.items():
            np.testing.assert_array_equal(theirs.comparisons[name].table, found.table, err_msg=name)
            np.testing.assert_array_equal(theirs.comparisons[name].votes, found.votes, err_msg=name)
            assert theirs.comparisons[name].metric == found.metric
        assert (theirs.feature_count, theirs.flipped_count) == (mine.feature_count, mine.flipped_count)
        for name in ("lattice", "codes"):
            for x, y in zip(getattr(theirs, name), getattr(mine, name), strict=True):
                np.testing.assert_array_equal(x, y)


# --- there and back ------------------------------------------------------------------------------------------------


def test_a_case_comes_back_equal(case, saved):
    assert len(case.weights) == 3
    assert_same(case, read_case(saved))


def test_slots_hold_the_extremes_of_their_samples(case):
    found, x = case.statistics["validation"], images(20)
    x[3, 0, 0, 0] = np.nan
    slots, place = slots_of(found.samples), case.record.input_tensor
    for slot in range(SLOTS):
        own = x[slots == slot]
        low, high = (np.nanmin(own), np.nanmax(own)) if own.size else (np.inf, -np.inf)
        assert (found.slot_min[place, slot], found.slot_max[place, slot]) == (low, high)


def test_a_case_without_codes_lattices_or_histograms(tmp_path):
    """Integer inputs and float outputs leave those arrays empty."""
    ids = np.random.default_rng(0).integers(0, 20, (5, 6))
    model = token_net()
    quantized = qdq(model, {"ids": ids}, Recipe(outputs=False))
    case = quantmedic.collect(*save_pair(tmp_path, model, quantized), validation=ids, threads=1)
    write_case(case, tmp_path / "a.case")
    assert_same(case, read_case(tmp_path / "a.case"))


def test_infinite_facts_come_back(case, tmp_path):
    """Weights that lie on their grid have an infinite SQNR."""
    first, *others = case.record.operators
    rounding = first.weight.rounding.model_copy(update={"sqnr_db": math.inf})
    weight = first.weight.model_copy(update={"rounding": rounding})
    operators = (first.model_copy(update={"weight": weight}), *others)
    infinite = replace(case, record=case.record.model_copy(update={"operators": operators}))
    write_case(infinite, tmp_path / "a.case")
    assert read_case(tmp_path / "a.case").record.operators[0].weight.rounding.sqnr_db == math.inf


# --- what is refused -------------------------------------------------------------------------------------------------


def refused(path: Path) -> CaseError | LimitError:
    with pytest.raises((CaseError, LimitError)) as error:
        read_case(path)
    assert str(path) in str(error.value)
    return error.value


@pytest.fixture
def rebuilt(saved, tmp_path) -> Callable[[Callable[[Files], object]], Path]:
    """A sound zip whose members were edited."""

    def rebuild(edit: Callable[[Files], object]) -> Path:
        with zipfile.ZipFile(saved) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        edit(files)
        with zipfile.ZipFile(tmp_path / "edited.case", "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return tmp_path / "edited.case"

    return rebuild


def npy(array: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def record(**changes: Any) -> Callable[[Files], object]:
    def edit(files: Files) -> None:
        files["case.json"] = json.dumps(json.loads(files["case.json"]) | changes).encode()

    return edit


def first_tensor(quantizer: dict[str, Any] | None = None, **changes: Any) -> Callable[[Files], object]:
    def edit(files: Files) -> None:
        found = json.loads(files["case.json"])
        found["tensors"][0] |= changes
        found["tensors"][0]["quantizer"] |= quantizer or {}
        files["case.json"] = json.dumps(found).encode()

    return edit


def float_operator(**changes: Any) -> Callable[[Files], object]:
    return record(float_operators=[{"name": "conv", "op_type": "Conv", "reads": [-1], "twin": 0} | changes])


def member(name: str, content: bytes) -> Callable[[Files], object]:
    return lambda files: files.update({name: content})


def changed(name: str, change: Callable[[Any], Any]) -> Callable[[Files], object]:
    return lambda files: files.update({name: npy(change(np.load(io.BytesIO(files[name]))))})


def source(**noise: Any) -> Callable[[Files], object]:
    """A loss budget with this source of noise."""
    piece = {"sources": [noise], "shares": [1.0], "alone": [1.0], "last": [1.0]}
    ends: dict[str, Any] = {"outputs": [{"output": 0}], "simulated": [0.1], "deployed": [0.1]}
    return record(
        loss_budget={"dataset": "validation", "samples": 1, "runs": 1, **ends, "pieces": [piece], "complete": True}
    )


def test_files_that_are_none(tmp_path):
    assert "no such" in refused(tmp_path / "none.case").message
    refused(tmp_path)
    for content in (b"", b"hello", b"PK\x03\x04" + bytes(200), b"{}", bytes(5000)):
        (tmp_path / "a.case").write_bytes(content)
        assert refused(tmp_path / "a.case").help, content[:9]


def damaged(raw: bytes, seed: int) -> bytes:
    rng, content = np.random.default_rng(seed), bytearray(raw)
    at, length = int(rng.integers(len(raw))), int(rng.integers(1, 60))
    if seed % 3 == 0:
        content[at : at + length] = rng.bytes(length)
    elif seed % 3 == 1:
        del content[at : at + length]
    else:
        content[at:at] = rng.bytes(length)
    return bytes(content)


@pytest.mark.thorough
def test_damaged_files(case, saved, tmp_path):
    """A damaged file is refused, or the damage lies where nothing is stored."""
    raw, path = saved.read_bytes(), tmp_path / "a.case"
    for seed in range(90):
        path.write_bytes(damaged(raw, seed))
        with contextlib.suppress(CaseError, LimitError):
            assert_same(case, read_case(path))


def test_other_schemas(rebuilt):
    newer = refused(rebuilt(record(schema_version=CASE_SCHEMA + 1)))
    assert "newer" in newer.message and "upgrade" in newer.help
    older = refused(rebuilt(record(schema_version=CASE_SCHEMA - 1)))
    assert "older" in older.message and "quantmedic collect" in older.help


class Explosive:
    """Writes a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_pickled_code_does_not_run(rebuilt, tmp_path):
    proof = tmp_path / "ran"
    pickled = npy(np.array([Explosive(proof)], object), allow_pickle=True)
    for name, content in (("samples", pickle.dumps(Explosive(proof))), ("samples", pickled), ("extra", pickled)):
        refused(rebuilt(member(f"{V}{name}.npy", content)))
    assert not proof.exists()


def without(name: str) -> Callable[[Files], object]:
    return lambda files: files.pop(name)


W, DEPLOYED = "weights/", f"{V}quantized_histogram"
#: Archives that are whole, of which one member is missing, of another kind, or does not fit the others.
UNFIT = {
    "an unknown field": record(surprise=1),
    "a bottomless record": member("case.json", b"[" * 100_000),
    "samples of another version": member(f"{V}samples.npy", npy(np.zeros(3, [("other", "f4")]))),
    "no channels": without(f"{V}channels.npy"),
    "fewer bins than counts": member(f"{V}histogram.bin.npy", npy(np.zeros(3, np.uint16))),
    "shapes of other codes": member(f"{V}codes.shapes.npy", npy(np.array([[3, 7]]))),
    "deployed values of a tensor that is not there": member(f"{DEPLOYED}.tensor.npy", npy(np.array([999] * 3))),
    "deployed values without counts": without(f"{DEPLOYED}.count.npy"),
    "an operator fed by one that is not there": lambda files: files.update(
        {"case.json": files["case.json"].replace(b'"sources": []', b'"sources": [99]', 1)}
    ),
    "weights of an operator twice": member(f"{W}operator.npy", npy(np.array([0, 1, 1], np.int32))),
    "weights of half an operator": member(f"{W}operator.npy", npy(np.array([0, 0.5, 1]))),
    "weights of other lengths": member(f"{W}lengths.npy", npy(np.array([1, 2, 3], np.int32))),
    "weights of negative lengths": member(f"{W}lengths.npy", npy(np.array([-3, 2, 14], np.int32))),
    "weights as text": member(f"{W}low.npy", npy(np.array(["a"] * 13))),
    "weights in too few bins": member(f"{W}floats.npy", npy(np.zeros((3, 9), np.int64))),
    "histograms of too few channels": member(f"{W}heights.npy", npy(np.zeros((2, 32), np.uint8))),
    "a column is missing": without(f"{V}columns.mean.npy"),
    "a column is too short": member(f"{V}columns.mean.npy", npy(np.zeros(1))),
    "a data set is missing in the record": record(datasets={}),
    "a tensor index out of range": record(input_tensor=99),
    "samples in a table of two dimensions": member(f"{V}samples.npy", npy(np.zeros((1, 1), SAMPLE_DTYPE))),
    "features that are no numbers": member(f"{V}feature_sum.npy", npy(np.full(FEATURES, np.nan))),
    "counts that are no integers": changed(f"{V}columns.nonfinite.npy", lambda counts: counts - 0.5),
    "dates instead of codes": changed(f"{V}codes.used.npy", lambda codes: codes.astype("m8[s]")),
    "a float operator with a twin that is not there": float_operator(twin=99),
    "a float operator fed by one before the first": float_operator(reads=[-2]),
    "a seed that is none": record(run={"seed": None}),
    "codes of less than no bits": first_tensor(quantizer={"bits": -8}),
    "channels without end": first_tensor(channels=1 << 40),
    "a source of noise that is nowhere": source(kind="activation"),
    "a source of noise in a tensor that is not there": source(kind="activation", tensors=[10**6]),
    "a source of noise in an operator that is not there": source(kind="weight", operators=[-1]),
    "histograms that count nothing": changed(f"{V}histogram.count.npy", np.zeros_like),
    "histograms of infinities alone": changed(f"{V}histogram.bin.npy", lambda bins: np.full_like(bins, 0x7F8)),
    "histograms that count less than nothing": changed(f"{V}histogram.count.npy", np.negative),
    "values without extremes": changed(f"{V}columns.min.npy", lambda low: low * np.nan),
    "a comparison without rows": changed(f"{V}comparison.output.0.table.npy", lambda table: table[:0]),
    "distinct values that are not distinct": changed(f"{V}lattice.values.npy", np.zeros_like),
}


@pytest.mark.nightly
def test_halves_that_do_not_fit_are_refused(rebuilt, subtests):
    for name, edit in UNFIT.items():
        with subtests.test(name):
            refused(rebuilt(edit))
    (own,) = read_case(rebuilt(float_operator())).record.float_operators
    assert (own.name, own.reads, own.twin) == ("conv", (-1,), 0)
    assert read_case(rebuilt(source(kind="activation", tensors=[1]))).record.loss_budget is not None


def test_only_gates_that_can_be_computed_are_read(rebuilt, subtests):
    for step, source in (
        ({"op_type": "Explode"}, 0),
        ({"op_type": "Sigmoid", "constants": [1.0]}, 0),
        ({"op_type": "Mul", "constants": [1.0], "reverse": True}, 0),
        ({"op_type": "Sigmoid"}, 10**6),
    ):
        with subtests.test(source=source, **step):
            path = rebuilt(first_tensor(gate={"source": source, "factors": [[], [step]]}))
            assert refused(path).message == "not a readable case file"
    steps = [{"op_type": "Sub", "constants": [1.0], "reverse": True}, {"op_type": "Sigmoid"}]
    assert quantmedic.judge(read_case(rebuilt(first_tensor(gate={"source": 0, "factors": [[], steps]})))).layers


# --- bombs -----------------------------------------------------------------------------------------------------------


def with_member(saved: Path, path: Path, name: str, size: int, declared: int | None = None) -> Path:
    """The case with one more member of so many zeros, which may declare another size."""
    shutil.copy(saved, path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, bytes(size))
    if declared is not None:
        real, lie = struct.pack("<I", size), struct.pack("<I", declared)
        content = path.read_bytes()
        assert content.count(real) == 2  # before the member, and in the table of contents
        path.write_bytes(content.replace(real, lie))
    return path


def peak_of_reading(path: Path) -> int:
    tracemalloc.start()
    try:
        with contextlib.suppress(CaseError, LimitError):
            read_case(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.thorough
def test_bombs_take_no_memory(case, saved, rebuilt, tmp_path, monkeypatch):
    """Members that no case has, that are larger than a case may be, or that lie about their size."""
    usual, path = peak_of_reading(saved), tmp_path / "bomb.case"
    with_member(saved, path, "payload.bin", 64 << 20)
    assert path.stat().st_size < saved.stat().st_size + (1 << 20)
    assert peak_of_reading(path) < usual + (16 << 20) and read_case(path).record == case.record
    with_member(saved, path, f"{V}payload.npy", 0x03EDCBA9, declared=300)
    assert peak_of_reading(path) < usual + (16 << 20) and refused(path)
    monkeypatch.setenv("QUANTMEDIC_MAX_CASE_BYTES", str(48 << 20))
    with_member(saved, path, f"{V}payload.npy", 64 << 20)
    assert peak_of_reading(path) < usual + (16 << 20)
    assert "a case file, decompressed, has too many bytes: 64." in refused(path).message
    small = rebuilt(member(f"{V}payload.npy", npy(np.zeros(1 << 20, np.uint8))))
    monkeypatch.setenv("QUANTMEDIC_MAX_CASE_BYTES", str(4 << 20))
    assert "too many bytes" in refused(small).message


def test_a_table_of_contents_without_end_is_not_read(saved, monkeypatch):
    monkeypatch.setattr("quantmedic.collectors.data.archives.STEP", 1000)
    monkeypatch.setenv("QUANTMEDIC_MAX_ZIP_TABLE_BYTES", "1000")
    assert "the table of contents of an archive has too many bytes" in refused(saved).message


@pytest.mark.thorough
def test_compressions_that_cannot_be_bounded_are_refused(saved, tmp_path):
    with zipfile.ZipFile(saved) as archive, zipfile.ZipFile(tmp_path / "lzma.case", "w", zipfile.ZIP_LZMA) as made:
        for name in archive.namelist():
            made.writestr(name, archive.read(name))
    assert "compressed by method 14" in str(refused(tmp_path / "lzma.case"))


# --- writing ---------------------------------------------------------------------------------------------------------


def not_written(case: Case, path: Path) -> None:
    with pytest.raises(CaseError) as error:
        write_case(case, path)
    assert str(path) in str(error.value)


def test_an_existing_case_is_replaced(case, tmp_path):
    path = tmp_path / "new" / "folder" / "a.case"
    write_case(case, path)
    first = path.read_bytes()
    path.write_bytes(b"old")
    write_case(case, path)
    assert_same(case, read_case(path))
    assert len(first) == path.stat().st_size
    assert list(path.parent.iterdir()) == [path]


def test_files_and_folders_in_the_way_stay(case, tmp_path):
    (tmp_path / "a.case").mkdir()
    (tmp_path / "file").write_text("x")
    not_written(case, tmp_path / "a.case")
    not_written(case, tmp_path / "file" / "a.case")
    assert {p.name for p in tmp_path.iterdir()} == {"a.case", "file"} and (tmp_path / "file").read_text() == "x"


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from quantmedic.collectors.case_file.archive import read_case, write_case
from quantmedic.engine.errors import CaseError

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
case = read_case(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    write_case(case, Path(sys.argv[2]))
except CaseError as error:
    sys.exit(0 if "a.case" in str(error) else 3)
sys.exit(4)
"""


@pytest.mark.thorough
def test_a_full_disk_leaves_what_was_there(case, tmp_path):
    """In a process of its own: no file of it may grow beyond 4 kB, and its output is a pipe."""
    write_case(case, tmp_path / "source.case")
    path = tmp_path / "target" / "a.case"
    path.parent.mkdir()
    path.write_bytes(b"old")
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "source.case"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]
