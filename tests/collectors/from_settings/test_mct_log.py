"""The log folder of MCT where there is nothing to read; tests/mct reads real ones."""

import sys
from pathlib import Path

import pytest

from quantmedic.collectors.from_settings.mct_log import MctLog, MctNode, fitting_mct_log, read_mct_log, why_stale
from quantmedic.engine.errors import DataError


def log() -> MctLog:
    nodes = (MctNode(name="conv", op_type="Conv2d", threshold=2.0), MctNode(name="relu", op_type="relu"))
    return MctLog(folder="logs", nodes=nodes)


def test_missing_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be found"):
        read_mct_log(tmp_path / "nothing")
    (tmp_path / "logs_01012026_000000" / "tensorboard_logs").mkdir(parents=True)
    with pytest.raises(DataError, match="holds no event files") as caught:
        read_mct_log(tmp_path)
    assert "set_log_folder" in str(caught.value)


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
    cases: list[tuple[list[str], dict[str, float], str | None]] = [
        (["conv", "relu"], {"conv": 2.0000001}, None),
        (["conv", "pool"], {}, "lacks 1 of 2 nodes of the model (pool)"),
        (["a", "b", "c", "d"], {}, "lacks 4 of 4 nodes of the model (a, b, c, …)"),
        (["conv"], {"conv": 4.0}, "the threshold of conv is 2 there and 4 in the model"),
        (["conv"], {"relu": 4.0}, None),
    ]
    for names, thresholds, says in cases:
        why = why_stale(log(), names, thresholds)
        assert why is None if says is None else says in (why or ""), (names, thresholds)
