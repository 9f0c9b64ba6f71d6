"""Writing: all or nothing, and nothing that gives the author away."""

import errno
import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from builders.gates import with_check

from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.errors import OutputError, QuantmedicError, RuleError
from quantmedic.reports.machines.comment import render_comment
from quantmedic.reports.machines.github import annotations
from quantmedic.reports.machines.junit import render_junit
from quantmedic.reports.machines.sarif import render_sarif
from quantmedic.reports.page.html import LOADER, SCRIPTS, THEME, compress, program_of
from quantmedic.reports.terminal.check import render_check
from quantmedic.reports.write import FORMATS, write_report


def tree(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_all_formats(diagnosis: Diagnosis, manuals: Mapping[str, str], tmp_path: Path) -> None:
    written = write_report(diagnosis, manuals, tmp_path / "a" / "report", ("html", "markdown", "json"))
    files = tree(tmp_path / "a" / "report")
    assert {file.path.relative_to(tmp_path / "a" / "report").as_posix() for file in written} == files
    assert all(file.size == file.path.stat().st_size > 0 for file in written)
    assert [file.path.name for file in written[:3]] == ["index.html", "report.md", "report.json"]
    assert {f"graphs/{m}-{r}.svg" for m in ("mse", "cosine", "sqnr") for r in ("representative", "validation")} <= files
    assert {"manual/W001.html", "manual/W001.md", "manual/general/preprocessing.html", "manual/glossary.md"} <= files
    assert (tmp_path / "a" / "report" / "manual" / "W001.md").read_text() == manuals["W001"]


def test_the_manual_has_the_formats_of_what_links_to_it(
    diagnosis: Diagnosis, manuals: Mapping[str, str], tmp_path: Path
) -> None:
    write_report(diagnosis, manuals, tmp_path / "json", ("json",))
    assert tree(tmp_path / "json") == {"report.json", "prescription.py"}
    for form, ending in (("html", "html"), ("markdown", "md")):
        write_report(diagnosis, manuals, tmp_path / form, (form,))
        pages = {path.relative_to(tmp_path / form) for path in (tmp_path / form / "manual").rglob("*.*")}
        assert pages >= {Path(f"manual/W001.{ending}")} and {path.suffix for path in pages} == {f".{ending}"}


@pytest.mark.thorough
def test_pictures(diagnosis: Diagnosis, tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    few = diagnosis.model_copy(update={"histograms": diagnosis.histograms[:1]})
    write_report(few, {}, tmp_path, ("png",))
    pictures = sorted((tmp_path / "graphs").iterdir())
    assert len(pictures) == 8
    assert all(path.suffix == ".png" and path.read_bytes().startswith(b"\x89PNG") for path in pictures)


def test_pictures_without_the_package_say_what_to_install(
    diagnosis: Diagnosis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(QuantmedicError) as caught:
        write_report(diagnosis, {}, tmp_path / "report", ("html", "png"))
    assert caught.value.help == "pip install 'quantmedic[png]'"
    assert not (tmp_path / "report").exists()


def test_the_same_diagnosis_gives_the_same_bytes(
    diagnosis: Diagnosis, manuals: Mapping[str, str], tmp_path: Path
) -> None:
    for name in ("one", "two"):
        write_report(diagnosis, manuals, tmp_path / name, ("html", "markdown", "json"))
    for path in tree(tmp_path / "one"):
        assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "two" / path).read_bytes()


def test_foreign_files_stay_and_stale_graphs_go(diagnosis: Diagnosis, tmp_path: Path) -> None:
    (tmp_path / "graphs").mkdir()
    foreign = {"notes.txt", "graphs/mine.svg"}
    for name in (*foreign, "graphs/histogram-99.svg"):
        (tmp_path / name).write_text("x")
    write_report(diagnosis, {}, tmp_path, ("html",))
    assert foreign <= tree(tmp_path)
    assert "graphs/histogram-99.svg" not in tree(tmp_path)


def test_a_prescription_of_an_earlier_report_goes(diagnosis: Diagnosis, healthy: Diagnosis, tmp_path: Path) -> None:
    write_report(diagnosis, {}, tmp_path, ("markdown",))
    text = (tmp_path / "prescription.py").read_text()
    compile(text, "prescription.py", "exec")
    assert text.startswith("# Prescription of quantmedic for mobilenet_v2_int8.onnx and ONNX Runtime\n")
    write_report(healthy, {}, tmp_path, ("markdown",))
    assert not (tmp_path / "prescription.py").exists()


def test_a_file_in_the_way(diagnosis: Diagnosis, tmp_path: Path) -> None:
    (tmp_path / "report").write_text("mine")
    with pytest.raises(OutputError) as caught:
        write_report(diagnosis, {}, tmp_path / "report", ("json",))
    assert str(tmp_path / "report") in caught.value.where[0] and "exists" in caught.value.where[0].lower()
    assert (tmp_path / "report").read_text() == "mine"


def test_a_full_disk_leaves_nothing_half_written_and_keeps_the_old_report(
    diagnosis: Diagnosis, healthy: Diagnosis, tmp_path: Path
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(args[0]))

    write_report(diagnosis, {}, tmp_path / "old", ("json",))
    before = (tmp_path / "old" / "report.json").read_bytes()
    for owner, step in ((Path, "open"), (os, "replace")):
        for name in ("new", "old"):
            with pytest.MonkeyPatch.context() as patch, pytest.raises(OutputError, match="No space left on device"):
                patch.setattr(owner, step, full)
                write_report(healthy, {}, tmp_path / name, ("json",))
    assert not tree(tmp_path / "new")
    assert (tmp_path / "old" / "report.json").read_bytes() == before
    assert not [path for path in (tmp_path / "old").iterdir() if path.name.startswith(".quantmedic")]


def test_unknown_formats_and_page_names_are_errors(diagnosis: Diagnosis, tmp_path: Path) -> None:
    with pytest.raises(QuantmedicError, match="unknown report format 'pdf'"):
        write_report(diagnosis, {}, tmp_path, ("pdf",))
    for name in ("../evil", "/etc/evil", "a b", "", "a/../b", ".hidden"):
        with pytest.raises(RuleError, match="cannot be a file name"):
            write_report(diagnosis, {name: "# x"}, tmp_path, ("json",))


def test_hostile_names_are_inert_in_every_file(
    hostile_proven: Diagnosis, manuals: Mapping[str, str], tmp_path: Path
) -> None:
    written = write_report(hostile_proven, manuals, tmp_path, FORMATS[:3])
    for file in written:
        text = file.path.read_text(encoding="utf-8")
        for own in (program_of(THEME), program_of(LOADER)):
            text = text.replace(f"<script>{own}</script>", "")
        text = text.replace(f'<script type="text/plain" id="program">{compress(program_of(SCRIPTS))}</script>', "")
        assert "<script>" not in text and "</script>" not in text and "<img" not in text, file.path
        assert not [char for char in text if not char.isprintable() and char != "\n"], file.path
        assert not [line for line in text.splitlines() if line.lstrip().startswith("::")], file.path


def test_nothing_of_the_author_s_machine_is_told(
    checked: Diagnosis, manuals: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUANTMEDIC_CANARY", "canary-value-4711")
    monkeypatch.setenv("USER", "canary-user-4712")
    monkeypatch.chdir(tmp_path)
    moved = with_check(checked, location="/home/canary/ci/quantmedic.toml")
    texts = {"annotations": "\n".join(annotations(moved))}
    assert "file=quantmedic.toml" in texts["annotations"]
    for found, formats in ((checked, FORMATS[:3]), (moved, ("sarif", "junit"))):
        written = write_report(found, manuals, tmp_path / formats[0], formats)
        texts |= {file.path.name: file.path.read_text(encoding="utf-8") for file in written}
    for told in ("canary", str(tmp_path), str(Path(__file__).parents[2])):
        assert not [name for name, text in texts.items() if told in text], told
    for name in ("annotations", "check.sarif", "check.xml"):
        assert socket.gethostname() not in texts[name]


def test_the_verdict_of_a_gate_goes_beside_the_report(
    checked: Diagnosis, manuals: Mapping[str, str], tmp_path: Path
) -> None:
    written = write_report(checked, manuals, tmp_path, ("html", "json", "sarif", "junit"))
    names = [file.path.name for file in written[:4]]
    assert names == ["index.html", "report.json", "check.sarif", "check.xml"]
    assert json.loads((tmp_path / "check.sarif").read_text())["version"] == "2.1.0"
    assert (tmp_path / "check.xml").read_text(encoding="utf-8").startswith('<?xml version="1.0" encoding="UTF-8"?>\n')


def test_a_verdict_of_an_earlier_report_goes(checked: Diagnosis, diagnosis: Diagnosis, tmp_path: Path) -> None:
    (tmp_path / "check.md").write_text("earlier")
    (tmp_path / "check.txt").write_text("mine")
    write_report(checked, {}, tmp_path, ("sarif", "junit"))
    assert {"check.sarif", "check.xml", "check.txt"} <= tree(tmp_path) and "check.md" not in tree(tmp_path)
    write_report(diagnosis, {}, tmp_path, ("json",))
    assert {name for name in tree(tmp_path) if name.startswith("check.")} == {"check.txt"}


def test_a_verdict_that_was_not_asked_for_cannot_be_written(diagnosis: Diagnosis, tmp_path: Path) -> None:
    for form in ("sarif", "junit"):
        with pytest.raises(QuantmedicError, match=f"no verdict of a gate to write as {form}") as caught:
            write_report(diagnosis, {}, tmp_path / "report", ("html", form))
        assert "quantmedic check" in (caught.value.help or "")
    assert not (tmp_path / "report").exists()
    renderers = (render_comment, annotations, render_junit, lambda found: render_sarif(found, {}), check_lines)
    for render in renderers:
        with pytest.raises(QuantmedicError, match="no verdict of a gate"):
            render(diagnosis)


def check_lines(diagnosis: Diagnosis) -> str:
    return render_check(diagnosis, verbosity="normal")
