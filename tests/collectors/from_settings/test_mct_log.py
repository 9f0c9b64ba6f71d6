"""The log folder of MCT where there is nothing to read; tests/mct reads real ones."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from quantmedic.collectors.from_settings.mct_log import MctLog, _float_names, fitting_mct_log, read_mct_log, why_stale
from quantmedic.collectors.from_settings.mct_stage import MctNode, Stage
from quantmedic.engine.errors import DataError
from quantmedic.engine.limits import EVENT_BYTES, IMPORTED_LAYERS, LimitError

needs_tensorboard = pytest.mark.skipif(find_spec("tensorboard") is None, reason="needs tensorboard")


def log(written: float = 1000.0) -> MctLog:
    nodes = (MctNode(name="conv", op_type="Conv2d", threshold=2.0), MctNode(name="relu", op_type="relu"))
    return MctLog(folder="logs", written=written, stages=("initial_graph",), float_nodes=nodes, nodes=nodes)


def test_missing_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be found"):
        read_mct_log(tmp_path / "nothing")
    (tmp_path / "logs_01012026_000000" / "tensorboard_logs").mkdir(parents=True)
    with pytest.raises(DataError, match="holds no event files") as caught:
        read_mct_log(tmp_path)
    assert "set_log_folder" in str(caught.value)


@needs_tensorboard
def test_folders_without_a_log_are_said(tmp_path: Path) -> None:
    for folder, says in ((tmp_path / "nothing", "is missing"), (tmp_path, "no event files")):
        found, why = fitting_mct_log(folder, ["conv"])
        assert found is None and says in (why or "") and "not judged" in (why or "")
    file = tmp_path / "tensorboard_logs" / "initial_graph" / "events.out.tfevents.1700000000.host.1.0"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"no event file" * 10)
    with pytest.raises(DataError, match="event file"):
        read_mct_log(tmp_path)
    found, why = fitting_mct_log(tmp_path, ["conv"])
    assert found is None and "stale" in (why or "")


def written_graph(folder: Path, nodes: int) -> Path:
    """An event file with a graph of so many nodes."""
    from tensorboard.compat.proto.event_pb2 import Event  # optional package
    from tensorboard.compat.proto.graph_pb2 import GraphDef  # optional package
    from tensorboard.compat.proto.node_def_pb2 import NodeDef  # optional package
    from tensorboard.summary.writer.record_writer import RecordWriter  # optional package

    file = folder / "tensorboard_logs" / "initial_graph" / "events.out.tfevents.1700000000.host.1.0"
    file.parent.mkdir(parents=True)
    graph = GraphDef(node=[NodeDef(name=f"conv{number}", op="Conv2d") for number in range(nodes)])
    with file.open("wb") as stream:
        RecordWriter(stream).write(Event(graph_def=graph.SerializeToString()).SerializeToString())
    return file


@needs_tensorboard
def test_what_has_no_bounds_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large files, large graphs, and a pipe in place of a file."""
    file = written_graph(tmp_path, 20)
    assert len(read_mct_log(tmp_path).nodes) == 20
    limits = ((EVENT_BYTES, "an event file of MCT has too many bytes"), (IMPORTED_LAYERS, "tensors and layers"))
    for limit, said in limits:
        with monkeypatch.context() as lowered:
            lowered.setenv(limit.variable, "19")
            for read in (lambda: read_mct_log(tmp_path), lambda: fitting_mct_log(tmp_path, ["conv0"])):
                with pytest.raises(LimitError, match=said) as raised:
                    read()
                assert raised.value.where == (str(file),)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DataError, match="a pipe or a device"):
        read_mct_log(tmp_path)


def test_merged_nodes_are_known_by_their_parts() -> None:
    def stage(*names: str) -> Stage:
        before = ["", *names]
        return Stage(nodes={n: MctNode(name=n, op_type="x", inputs=(b,)) for n, b in zip(names, before, strict=False)})

    merged = _float_names(
        stage("conv", "bn", "a.b", "relu", "con"), stage("conv_bn", "xa.b_collapsed", "a.b_c", "relu")
    )
    assert merged == {"relu": ("relu",), "conv_bn": ("conv", "bn"), "a.b_c": ("a.b",)}


def test_without_tensorboard_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    file = tmp_path / "tensorboard_logs" / "initial_graph" / "events.out.tfevents.1700000000.host.1.0"
    file.parent.mkdir(parents=True)
    file.touch()
    for read in (lambda: read_mct_log(tmp_path), lambda: fitting_mct_log(tmp_path, ["conv"])):
        with pytest.raises(DataError, match="TensorBoard") as caught:
            read()
        assert "quantmedic[mct]" in str(caught.value)


def test_stale() -> None:
    cases: list[tuple[list[str], dict[str, float], float | None, str | None]] = [
        (["conv", "relu"], {"conv": 2.0000001}, 999.0, None),
        (["conv", "pool"], {}, None, "lacks 1 of 2 nodes of the model (pool)"),
        (["a", "b", "c", "d"], {}, None, "lacks 4 of 4 nodes of the model (a, b, c, …)"),
        (["conv"], {"conv": 4.0}, None, "the threshold of conv is 2 there and 4 in the model"),
        (["conv"], {"relu": 4.0}, None, None),
        (["conv"], {}, 1000.0 + 5 * 86400, "it was written 5 days before the model"),
    ]
    for names, thresholds, since, says in cases:
        why = why_stale(log(), names, thresholds, since)
        assert why is None if says is None else says in (why or ""), (names, thresholds, since)
