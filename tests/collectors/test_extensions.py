"""Extensions of other packages: found where they are installed, and reported by name where they are broken."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quantmedic.demo import patient

pytestmark = pytest.mark.thorough
BROKEN = {
    "raises": "raise OSError('libacme.so: no such file')",
    "gives something else": "FRONT_END = FORMATS = REMEDIES = object()",
}


def install(folder: Path, module: str) -> Path:
    """A package with a front end and a format, of which importing the module leaves a trace."""
    info = folder / "acme_quantmedic-2.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-quantmedic\nVersion: 2.1\n")
    (info / "entry_points.txt").write_text(
        "[quantmedic.front_ends]\nacme = acme_quantmedic:FRONT_END\n"
        "[quantmedic.formats]\nacme = acme_quantmedic:FORMATS\n"
        "[quantmedic.remedies]\nonnx = acme_quantmedic:REMEDIES\n"
    )
    (folder / "acme_quantmedic.py").write_text(f"open({str(folder / 'imported')!r}, 'w').close()\n{module}\n")
    return folder


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command, where packages of a folder are installed too."""
    return start(folder, "-m", "quantmedic", *words)


def start(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python there."""
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=env)


@pytest.mark.parametrize("module", BROKEN.values(), ids=BROKEN)
def test_a_broken_extension_is_named_where_it_may_be_needed(tmp_path: Path, module: str) -> None:
    installed = install(tmp_path / "site", module)
    model = tmp_path / "model.acme"
    model.write_text("an acme model")
    data = patient()[1]["validation"]
    for words in (["diagnose", model, model, "--validation", data], ["import", model]):
        said = run(installed, *map(str, words)).stderr
        assert "acme-quantmedic 2.1" in said and "pip uninstall acme-quantmedic" in said, said
        assert "Traceback" not in said


@pytest.mark.parametrize("module", BROKEN.values(), ids=BROKEN)
def test_broken_remedies_leave_those_of_others(tmp_path: Path, module: str) -> None:
    script = "from quantmedic.trials.edit import remedies_named; print(remedies_named('onnx').learns)"
    assert start(install(tmp_path / "site", module), "-c", script).stdout == "True\n"


def test_the_environment_lists_extensions(tmp_path: Path) -> None:
    said = run(install(tmp_path / "site", ""), "show", "--environment").stdout
    assert "acme-quantmedic 2.1: formats acme, front_ends acme, remedies onnx\n" in said


def test_an_extension_is_not_imported_for_models_of_others(tmp_path: Path) -> None:
    installed = install(tmp_path / "site", BROKEN["raises"])
    done = run(installed, "demo", "--samples", "8", "--no-prove", "--quiet", "-o", "report")
    assert done.returncode in (0, 1), done.stderr
    assert not (installed / "imported").exists()


def test_an_extension_that_fails_on_a_model_is_named(tmp_path: Path) -> None:
    module = (
        "from quantmedic.collectors.front_ends import front_end_named\n"
        "class Acme(type(front_end_named('onnx'))):\n"
        "    def recognizes(self, given): raise KeyError('acme')\n"
        "FRONT_END = Acme()\nFORMATS = REMEDIES = ()"
    )
    model = tmp_path / "model.acme"
    model.write_text("an acme model")
    said = run(install(tmp_path / "site", module), "diagnose", str(model), str(model), "-v", "x.npz").stderr
    assert "acme_quantmedic" in said and "KeyError: 'acme'" in said and "internal error" not in said
