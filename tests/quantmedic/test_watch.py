"""Watching: the diagnosis again when a model changes, and what healed."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from quantmedic.demo import patient

PATIENCE = 120


def wait_for(said: Callable[[], str], text: str) -> None:
    """Until the output holds a text."""
    end = time.monotonic() + PATIENCE
    while text not in said():
        assert time.monotonic() < end, f"{text!r} never came: {said()}"
        time.sleep(0.1)


@pytest.mark.thorough
def test_a_healed_model_is_seen(tmp_path: Path) -> None:
    (float_model, sick), data = patient(healthy=False)
    (_, well), _ = patient(healthy=True)
    shutil.copy(sick, tmp_path / "int8.onnx")
    shutil.copy(data["validation"], tmp_path / "val.npz")
    words = ["watch", str(float_model), "int8.onnx", "-v", "val.npz", "--samples", "64"]
    words += ["--scale", "255", "--mean", "0.286", "--std", "0.353", "--no-attribution", "-o", "out"]
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-m", "quantmedic", *words]
        watching = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT)
        try:
            said = (tmp_path / "log").read_text
            wait_for(said, "watching; Ctrl-C ends it")
            assert "since the run before" not in said()
            (tmp_path / "int8.onnx").write_bytes(b"half")
            wait_for(said, "error: ")
            shutil.copy(well, tmp_path / "int8.onnx")
            wait_for(said, "since the run before:")
            wait_for(said, "healed")
        finally:
            # A process of a shell's background ignores Ctrl-C, and so does what it starts.
            watching.send_signal(signal.SIGTERM)
            assert watching.wait(PATIENCE) == 143
