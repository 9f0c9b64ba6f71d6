"""Commands that need neither models nor data load nothing that is only needed for them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import quantmedic

pytestmark = pytest.mark.thorough

MEASURING = {"numba", "onnx", "onnxruntime", "PIL"}
PRINTING = {"jinja2", "markdown", "rich"}
#: All that takes its time.
SLOW = MEASURING | PRINTING | {"pydantic", "scipy"}
SCRIPT = """
import sys
from quantmedic.cli.main import main
try:
    main()
finally:
    print("loaded", *sys.modules)
"""


def loaded(*arguments: str, folder: Path, script: str = SCRIPT) -> set[str]:
    """Packages loaded once a command is done."""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *_, last = done.stdout.splitlines()
    word, *modules = last.split()
    assert word == "loaded" and "quantmedic" in modules
    return {module.partition(".")[0] for module in modules}


def test_what_only_prints_loads_no_framework(tmp_path: Path) -> None:
    assert not loaded(folder=tmp_path, script="import sys, quantmedic; print('loaded', *sys.modules)") & SLOW
    assert not loaded("--help", folder=tmp_path) & SLOW
    assert not loaded("explain", "--list", "rules", folder=tmp_path) & (MEASURING | PRINTING | {"scipy"})
    assert not loaded("explain", "D005", folder=tmp_path) & (MEASURING | PRINTING)


def test_a_report_from_a_case_needs_no_framework(tmp_path: Path) -> None:
    demo = Path(quantmedic.__file__).parent / "demo"
    images = np.random.default_rng(0).random((8, 1, 28, 28), np.float32)
    case = quantmedic.collect(demo / "float.onnx", demo / "int8.onnx", validation=images)
    quantmedic.save_case(case, tmp_path / "a.case")
    found = loaded("diagnose", "a.case", "--output", "report", "--quiet", folder=tmp_path)
    assert (tmp_path / "report" / "index.html").is_file()
    assert {"jinja2", "markdown"} <= found
    assert not found & MEASURING
