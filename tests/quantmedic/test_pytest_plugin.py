"""The fixture for teams that gate in their own tests."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from builders.tiers import others_nightly

TEST = """
from quantmedic.demo import patient

def test_it(quantmedic_check):
    models, options = patient(healthy={healthy})
    found = quantmedic_check(*models, **options, samples=64{more})
    assert found.gate == "ACCEPT"
"""


def run(folder: Path, *, healthy: bool, more: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "test_model.py").write_text(TEST.format(healthy=healthy, more=more))
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    if "quantmedic" not in entry_points(group="pytest11").names:  # an installation from before there was a plugin
        words += ["-p", "quantmedic.pytest_plugin"]
    return subprocess.run([*words, "test_model.py"], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.thorough
@pytest.mark.parametrize("healthy", others_nightly([False, True]))
def test_it_fails_where_the_command_would(healthy: bool, tmp_path: Path) -> None:
    done = run(tmp_path, healthy=healthy)
    assert done.returncode == (0 if healthy else 1), done.stdout
    if not healthy:
        assert "fail  findings" in done.stdout and "D005 representative" in done.stdout
        assert "REGRESSION  " in done.stdout and "Traceback" not in done.stdout


@pytest.mark.nightly
def test_a_policy_decides(tmp_path: Path) -> None:
    ignored = '[[ignore]]\nrule = "D005"\nlayers = ["*"]\nreason = "known"\nexpires = "never"\n'
    (tmp_path / "loose.toml").write_text(f"[check]\n{ignored}")
    assert "1 passed" in run(tmp_path, healthy=False, more=', policy="loose.toml"').stdout


def test_other_projects_pay_nothing_for_it() -> None:
    code = "import quantmedic.pytest_plugin, sys; print([name for name in ('numpy', 'onnx') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
