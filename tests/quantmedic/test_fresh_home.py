"""Nothing is written outside of the output and quantmedic's own cache: shown with a home that was never used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

#: Variables that would lead elsewhere than to the home.
LEADING = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "NUMBA_CACHE_DIR", "ORT_DISABLE_TELEMETRY")


def written(folder: Path, *command: str, **more: str) -> set[str]:
    """Folders and files that a command leaves in a fresh home, temporary directory and working directory."""
    places = {name: folder / name for name in ("home", "temporary", "work")}
    for place in places.values():
        place.mkdir(parents=True)
    clean = {name: value for name, value in os.environ.items() if name not in LEADING}
    own = {"HOME": str(places["home"]), "TMPDIR": str(places["temporary"])}
    done = subprocess.run(
        [sys.executable, *command], cwd=places["work"], env=clean | own | more, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.nightly
def test_a_run_writes_its_output_and_its_cache_alone(tmp_path: Path) -> None:
    found = written(tmp_path, "-m", "quantmedic", "demo", "--output", "report", "--prove")
    assert "work/report/report.json" in found
    assert any(path.startswith("home/.cache/quantmedic/kernels/") for path in found)
    assert {path for path in found if not path.startswith(("work/report/", "home/.cache/quantmedic/"))} == set()


def test_importing_onnxruntime_writes_no_telemetry(tmp_path: Path) -> None:
    code = "import quantmedic, quantmedic.collectors.from_onnx.onnx_session"
    assert written(tmp_path / "ours", "-c", code) == set()


def test_who_wants_telemetry_keeps_it() -> None:
    code = "import os, quantmedic; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"ORT_DISABLE_TELEMETRY": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "0\n"
