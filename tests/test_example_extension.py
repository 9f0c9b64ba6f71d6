"""The example of an extension: installed as any package is, and run by its models and settings."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quantmedic.demo import patient

pytestmark = pytest.mark.thorough
EXAMPLE = Path(__file__).parents[1] / "examples" / "extension"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which the example is installed."""
    pytest.importorskip("setuptools", reason="setuptools is not installed")
    folder = tmp_path_factory.mktemp("installed")
    copy = shutil.copytree(EXAMPLE, folder / "example")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*install, "--target", folder / "site", copy], check=True)
    path = os.pathsep.join(filter(None, [str(folder / "site"), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def test_the_example_reads_its_models_and_settings(installed: dict[str, str], tmp_path: Path) -> None:
    """The demo's models as files of the example are diagnosed as the demo's are."""
    models, _ = patient()
    for name, model in zip(("float", "int8"), models, strict=True):
        (tmp_path / f"{name}.acme").write_bytes(gzip.compress(model.read_bytes()))
        shutil.copy(model, tmp_path / f"{name}.onnx")
    (tmp_path / "acme.json").write_text(json.dumps({"acme": {"method": "minmax", "per_channel": True}}))
    verdicts = [diagnose(tmp_path, ending, installed) for ending in ("acme", "onnx")]
    assert verdicts[0] == verdicts[1] and verdicts[0][-1] == "minmax"


def diagnose(folder: Path, ending: str, environment: dict[str, str]) -> object:
    script = f"""
import json, quantmedic
from quantmedic.demo import patient
case = quantmedic.collect(
    "float.{ending}", "int8.{ending}", **patient()[1], samples=32, settings_files=["acme.json"], progress=False
)
found, asked = quantmedic.judge(case), case.record.model.settings.calibration_method
print(json.dumps([found.verdict, [cause.name for cause in found.causes], asked]))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
