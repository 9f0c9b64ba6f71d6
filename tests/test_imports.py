"""Commands that need neither models nor data load nothing that is only needed for them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import quantmedic

MEASURING = {"numba", "onnx", "onnxruntime", "PIL"}
PRINTING = {"jinja2", "markdown", "rich"}
SCRIPT = """
import sys
from quantmedic.cli.main import main
try:
    main()
finally:
    print("loaded", *sys.modules)
"""


def loaded(*arguments: str, folder: Path) -> set[str]:
    """Packages loaded once a command is done."""
    command = [sys.executable, "-c", SCRIPT, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    *_, last = done.stdout.splitlines()
    word, *modules = last.split()
    assert word == "loaded" and "quantmedic" in modules
    return {module.partition(".")[0] for module in modules}


@pytest.mark.thorough
@pytest.mark.parametrize("arguments", [["--help"], ["explain", "D005"], ["rules"]], ids=lambda words: words[0])
def test_what_only_prints_loads_no_framework(arguments: list[str], tmp_path: Path) -> None:
    assert not loaded(*arguments, folder=tmp_path) & (MEASURING | PRINTING)


@pytest.mark.thorough
def test_a_report_from_a_case_needs_no_framework(tmp_path: Path) -> None:
    demo = Path(quantmedic.__file__).parent / "demo"
    images = np.random.default_rng(0).random((8, 1, 28, 28), np.float32)
    case = quantmedic.collect(demo / "float.onnx", demo / "int8.onnx", validation=images)
    quantmedic.save_case(case, tmp_path / "a.case")
    found = loaded("report", "a.case", "--output", "report", "--quiet", folder=tmp_path)
    assert (tmp_path / "report" / "index.html").is_file()
    assert {"jinja2", "markdown"} <= found
    assert not found & MEASURING
