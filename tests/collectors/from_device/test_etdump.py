"""Dumps of ExecuTorch, as its portable runtime wrote them (executorch 1.5.1, torch 2.13).

``tests/recordings/executorch`` holds runs of ``torch_models.pair("pt2e")`` on its first two samples: ``own`` of the
quantized module as it is, ``altered`` with the channels of the stored weights of ``conv2`` in another order,
``xnnpack`` with the layers that XNNPACK takes in delegates, and in ``own-out.npy`` what the first returned.
"""

import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders.device_dumps import BASE, collected, departing, facts_of
from builders.recordings import RECORDINGS

from quantmedic.collectors.from_device import etdump
from quantmedic.collectors.from_device.dump import open_dump
from quantmedic.collectors.from_device.etdump import FlatBuffer
from quantmedic.engine.errors import DataError
from quantmedic.engine.formulas.derive import derive

RECORDED = RECORDINGS / "executorch"


def folder_of(path: Path, kind: str = "own") -> Path:
    """The three files of a recording; the altered module has the record of the other."""
    shutil.copytree(RECORDED / kind, path)
    if not (path / "etrecord.bin").exists():
        shutil.copy(RECORDED / "own" / "etrecord.bin", path)
    return path


def change_record(folder: Path, change: Callable[[dict[str, bytes]], object]) -> None:
    path = folder / "etrecord.bin"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def change_handles(folder: Path, change: Callable[[dict[str, object]], object]) -> None:
    def changed(members: dict[str, bytes]) -> None:
        content = json.loads(members["debug_handle_map"])
        change(content["forward"])
        members["debug_handle_map"] = json.dumps(content).encode()

    change_record(folder, changed)


def test_tensors_have_the_names_of_the_exported_program() -> None:
    dump = open_dump(RECORDED / "own")
    found = {tensor.name: tensor.column for tensor in dump.tensors}
    assert [name for name in found if not name.startswith("b__")] == [
        *("image", "conv2d", "relu", "conv2d_1", "add", "silu", "cat", "mean", "linear")
    ]
    assert found["relu"].info.shape == (2, 4, 8, 8) and dump.notices == []
    assert np.array_equal(found["linear"].load(), np.load(RECORDED / "own-out.npy"))
    assert np.array_equal(found["linear"].load()[1:], next(found["linear"].blocks([slice(1, 2)])))
    values = {name: column.load() for name, column in found.items()}  # behind quantizers
    assert len(np.unique(values["mean"])) < 2 * 8 and len(np.unique(values["relu"])) <= 256


@pytest.mark.thorough
def test_the_layer_that_departs_is_named(tmp_path: Path) -> None:
    """Operators of a module cannot be fed: the first tensor that departs is named, and nothing behind it is judged."""
    pytest.importorskip("torch", reason="torch is not installed")
    from builders import torch_models  # needs torch

    *pair, samples = torch_models.pair("pt2e")
    for kind, layers in ("own", []), ("altered", [("conv2",)]), ("xnnpack", []):
        case = collected(tuple(pair), folder_of(tmp_path / kind, kind), validation=np.asarray(samples))
        assert case.record.device.samples == 2 and len(case.record.device.tensors) >= 5
        assert departing(derive(case, BASE)) == layers, kind


def test_nothing_but_json_is_read_of_the_record(tmp_path: Path) -> None:
    """Weights and inputs are pickles: they may hold anything, or be missing."""
    folder = folder_of(tmp_path / "d")

    def spoil(members: dict[str, bytes]) -> None:
        for name in list(members):
            if name.endswith(("_state_dict", "_constants")):
                members[name] = b"cposix\nsystem\n(S'false'\ntR."
            elif name.endswith("_example_inputs"):
                del members[name]

    change_record(folder, spoil)
    assert [t.name for t in open_dump(folder).tensors] == [t.name for t in open_dump(RECORDED / "own").tensors]


def test_a_quantizer_within_a_delegate(tmp_path: Path) -> None:
    """What the dump has of such a tensor is not rounded: it is left out, and said."""
    folder = folder_of(tmp_path / "d")

    def delegate(handles: dict[str, object]) -> None:
        last = max(handles, key=int)
        quantizers = [key for key in handles if key != last][-4:]
        handles[last] = [*(handles[key] for key in quantizers if isinstance(handles[key], int)), handles[last]]

    change_handles(folder, delegate)
    dump = open_dump(folder)
    assert any("mean: its quantizer runs in a delegate" in notice for notice in dump.notices)
    assert "mean" not in {tensor.name for tensor in dump.tensors}


def test_tensors_from_inside_of_a_delegate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delegates that log, such as Qualcomm's, give each tensor an identifier, which the record maps to handles."""
    folder = folder_of(tmp_path / "d")
    runs = etdump._read_runs(folder / "etdump.etdp")
    entry = next(entry for entry in runs[-1] if entry.sizes == (1, 4, 8, 8))

    def add_delegate(members: dict[str, bytes]) -> None:
        within = {"name": "QnnBackend", "delegate_map": {"17": [5], "18": []}}
        members["delegate_map"] = json.dumps({"forward": {"99": within}}).encode()
        handles = {"forward": {"99": [5]}}
        members["debug_handle_map"] = json.dumps(handles).encode()

    change_record(folder, add_delegate)
    logged = etdump._Entry(99, "17", entry.kind, entry.sizes, entry.strides, entry.offset)
    monkeypatch.setattr(etdump, "_read_runs", lambda path: [[], [logged], [logged]])
    (tensor,) = open_dump(folder).tensors
    assert tensor.name == "conv2d" and tensor.samples == 2


def test_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strides say where a value stands."""
    plain = {tensor.name: tensor.column.load() for tensor in open_dump(RECORDED / "own").tensors}
    runs = [
        [replace(entry, strides=(256, 1, 32, 4)) if entry.sizes == (1, 4, 8, 8) else entry for entry in run]
        for run in etdump._read_runs(RECORDED / "own" / "etdump.etdp")
    ]
    monkeypatch.setattr(etdump, "_read_runs", lambda path: runs)
    moved = {tensor.name: tensor.column.load() for tensor in open_dump(RECORDED / "own").tensors}
    assert np.array_equal(moved["relu"], plain["relu"].reshape(2, 8, 8, 4).transpose(0, 3, 1, 2))


def test_a_record_of_the_lowered_program(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "d")
    program = "edge_dialect_exported_program/forward"

    def drop_nodes(members: dict[str, bytes]) -> None:
        content = json.loads(members[program])
        graph = content["graph_module"]["graph"]
        graph["nodes"] = [node for node in graph["nodes"] if node["metadata"].get("debug_handle") == "5"]
        members[program] = json.dumps(content).encode()

    change_record(folder, drop_nodes)
    dump = open_dump(folder)
    assert [tensor.name for tensor in dump.tensors] == ["conv2d"]
    assert any("debug handles have no node" in n and "generate_etrecord=True" in n for n in dump.notices)


def test_a_debug_buffer_that_was_too_small(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "d")
    path = folder / "debug.bin"
    path.write_bytes(path.read_bytes()[:26_000])
    dump = open_dump(folder)
    assert any("the debug buffer ends before it" in notice for notice in dump.notices)
    assert "relu" in {tensor.name for tensor in dump.tensors}


def test_what_is_missing_or_damaged(tmp_path: Path, subtests: pytest.Subtests) -> None:
    def deep(members: dict[str, bytes]) -> None:
        members["debug_handle_map"] = b"[" * 9000

    spoils: list[tuple[Callable[[Path], object], str]] = [
        (lambda folder: (folder / "etrecord.bin").unlink(), "needs one ETRecord"),
        (lambda folder: (folder / "debug.bin").unlink(), "needs one debug buffer"),
        (lambda folder: shutil.copy(folder / "etdump.etdp", folder / "again.etdp"), "needs one ETDump"),
        (lambda folder: (folder / "notes.txt").write_text("seen"), "needs one debug buffer"),
        (lambda folder: change_record(folder, deep), "too many levels"),
        (lambda folder: change_record(folder, dict.clear), "holds no tensors"),
    ]
    for number, (spoil, message) in enumerate(spoils):
        folder = folder_of(tmp_path / str(number))
        spoil(folder)
        with subtests.test(number=number):
            with pytest.raises(Exception, match=message) as error:  # LimitError where it is too deep
                open_dump(folder)
            assert "PosixPath" not in str(error.value)


def test_an_etdump_alone(paths: tuple[Path, Path]) -> None:
    with pytest.raises(DataError, match="names an ETDump alone"):
        facts_of(paths, RECORDED / "own" / "etdump.etdp")


@pytest.mark.thorough
def test_an_etdump_of_another_model(paths: tuple[Path, Path]) -> None:
    """Of a module whose tensors have other names and shapes, but for a few names."""
    case = collected(paths, RECORDED / "own")
    assert any("conv2d" in notice for notice in case.record.notices) and departing(derive(case, BASE)) == []
    with pytest.raises(DataError, match="nowhere"):
        collected(paths, RECORDED / "own", device_names={"conv2d": "nowhere"})


def test_a_vector_that_many_share_is_refused() -> None:
    """Runs that are one table would be walked as often as there are runs: a small file, for hours."""
    count, number = 4000, lambda value: int(value).to_bytes(4, "little")
    schema = b"\x08\0\x08\0\0\0\x04\0"  # of a table whose second field stands at its byte 4
    root, runs = 16, 24
    shared = runs + 4 + 4 * count
    events = shared + 8
    content = number(root) + b"ED00" + schema + number(root - 8) + number(4)
    content += number(count) + b"".join(number(shared - (runs + 4 + 4 * k)) for k in range(count))
    content += number(shared - 8) + number(4) + number(count)
    content += b"".join(number(events + 4 + 4 * count - (events + 4 + 4 * k)) for k in range(count)) + bytes(8)
    flat = FlatBuffer(content)
    assert flat.tables(flat.root, 1) == [shared] * count
    with pytest.raises(ValueError, match="more tables than it has room for"):
        flat.tables(shared, 1)
