"""An output that cannot be written is refused before models and data are opened, which are missing here."""

import os
from pathlib import Path

import numpy as np
import pytest
from builders.commands import run_quantmedic
from builders.onnx_models import conv_net, images, qdq, save_pair
from click.testing import CliRunner

import quantmedic
from quantmedic.cli.main import cli
from quantmedic.engine.case.facts import ModelFacts
from quantmedic.engine.case.records import Case, CaseRecord
from quantmedic.engine.errors import CaseError, OutputError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Holds ``file``, ``folder``, and ``loop``, a link to itself."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    return tmp_path


#: What a command says of a place that it cannot write to.
PLACES = {
    "diagnose PAIR -o file": "the output folder is a file",
    "diagnose PAIR -o file/report": "a part of the path is a file",
    "diagnose PAIR --write-fixed folder": "is a folder, not a file",
    "demo -o file": "the output folder is a file",
    "check PAIR -o file": "the output folder is a file",
    "collect PAIR -o file/c.case": "is a file",
    "fix PAIR -o folder": "is a folder, not a file",
    "fix PAIR -o fixed.onnx --report file": "the output folder is a file",
    "search sensitivity PAIR -o file": "the output folder is a file",
    "search fallback PAIR --min-sqnr 30 -o file": "the output folder is a file",
    "search calibrations float.onnx -v val.npz -r r.npz -o file": "is a file",
    "search debugger PAIR -o file": "the output folder is a file",
    "diagnose c.case -o file": "the output folder is a file",
    "collect PAIR -o loop": "the output is a link",
    "collect PAIR --outputs-only loop": "the output is a link",
    "collect PAIR --outputs-only loop/r.npz": "leads nowhere",
    "diagnose c.case -o loop": "leads nowhere",
    "fix PAIR -o fixed.onnx --report loop/r": "leads nowhere",
}


def call(line: str) -> BaseException | None:
    """The error of a command."""
    return CliRunner().invoke(cli, line.replace("PAIR", "float.onnx int8.onnx -v val.npz").split()).exception


def test_commands_refuse_it_first(folder: Path) -> None:
    for line, said in PLACES.items():
        error = call(line)
        assert isinstance(error, OutputError), (line, error)
        assert said in str(error), line
        assert sorted(path.name for path in folder.rglob("*")) == ["file", "folder", "loop"]


def test_functions_of_python_refuse_it_first(folder: Path) -> None:
    with pytest.raises(OutputError, match="is a file"):
        quantmedic.collect("a.onnx", "b.onnx", validation="v.npz", checkpoint="file/c.case")
    (folder / "a.onnx").write_text("1")
    with pytest.raises(OutputError, match="is a file"):
        quantmedic.fix("a.onnx", "a.onnx", "fixed.onnx", validation="v.npz", report="file")


def test_a_link_in_the_place_of_a_case_leads_into_no_folder(folder: Path) -> None:
    (folder / "report").mkdir()
    (folder / "report/quantmedic.case").symlink_to(folder / "folder")
    case = Case(CaseRecord.of_files("0", ModelFacts(), (), {}), {})
    with pytest.raises(CaseError, match="it is a link"):
        quantmedic.save_case(case, "report/quantmedic.case")
    with pytest.raises(CaseError, match="it is a link"):
        quantmedic.save_case(case, "report")
    with pytest.raises(OutputError, match="the output is a link"):
        quantmedic.collect("a.onnx", "b.onnx", validation="v.npz", checkpoint="report/quantmedic.case")
    with pytest.raises(OutputError, match="the output is a link"):
        quantmedic.collect(folder, folder, tokens="t.jsonl", checkpoint="report/quantmedic.case")
    assert not list((folder / "folder").iterdir())
    quantmedic.save_case(case, "folder")
    assert [path.name for path in (folder / "folder").iterdir()] == ["quantmedic.case"]


def test_what_is_read_is_never_written_over(folder: Path) -> None:
    names = ("float.onnx", "int8.onnx", "val.npz", "x.case", "known.json", "names.csv")
    for name in names:
        (folder / name).write_text("mine")
    (folder / "link.case").hardlink_to("x.case")
    for line in (
        "collect PAIR --stage mid=x.case -o x.case",
        "collect PAIR --settings x.case -o link.case",
        "import x.case deploy.yaml -o x.case",
        "fix PAIR -o int8.onnx",
        "diagnose PAIR --write-fixed float.onnx",
        "check known.json --write-baseline known.json",
        "search debugger PAIR --denylist @names.csv -o names.csv",
    ):
        error = call(line)
        assert isinstance(error, OutputError) and "would replace what is read" in error.message, line
        assert {(folder / name).read_text() for name in names} == {"mine"}


def test_a_name_of_another_kind_of_file_is_refused() -> None:
    for line, name in (
        ("collect PAIR -o file.npz", "file.case"),
        ("import deploy.yaml -o file.html", "file.case"),
        ("fix PAIR -o file.npz", "file.onnx"),
        ("check x.case --write-baseline file.case", "file.json"),
    ):
        error = call(line)
        assert isinstance(error, OutputError) and "named like a file of another kind" in error.message
        assert error.help == f"name it {name}"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("command", "output", "said"), [("collect", "place/c.case", ""), ("check", "place/report", "ACCEPT")]
)
def test_what_was_measured_outlives_an_output_that_cannot_be_written(
    command: str, output: str, said: str, folder: Path
) -> None:
    """The place is taken while data are read, after it was found to be free."""
    model = conv_net()
    save_pair(folder, model, qdq(model, {"image": images()}))
    np.save(folder / "x.npy", images(16))
    (folder / "late.py").write_text(
        "import numpy as np, pathlib\n"
        "def batches():\n"
        "    pathlib.Path('place').write_text('taken')\n"
        "    yield np.load('x.npy')\n"
    )
    (folder / "temporary").mkdir()
    quick = ("--no-attribution",) if command == "collect" else ()
    words = (command, "float.onnx", "quantized.onnx", "-v", "late:batches", *quick, "-o", output)
    done = run_quantmedic(*words, cwd=folder, env=os.environ | {"TMPDIR": str(folder / "temporary")})
    assert done.returncode == 2, done.stderr
    (kept,) = (folder / "temporary").iterdir()
    again = "check" if command == "check" else "diagnose"
    assert f"what was measured is kept in the case {kept}" in done.stderr
    assert f"write the output elsewhere with: quantmedic {again} {kept} -o FOLDER" in done.stderr
    assert quantmedic.load_case(kept).record.datasets["validation"].seen == 16
    assert said in done.stdout  # the verdict comes first
