"""GitHub Actions: commands read back as the runner documents it, and summaries that it does not drop."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from builders.gates import accepted, check_report, unmeasured, with_check

from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.errors import OutputError
from quantmedic.reports.context import build_context
from quantmedic.reports.machines.github import annotations, append_summary, job_summary
from quantmedic.reports.write import render_markdown

COMMAND = re.compile(r"::(error|warning|notice) ([^:]*)::(.*)")


class Annotation(NamedTuple):
    """An annotation as the runner understands it."""

    command: str
    properties: dict[str, str]
    message: str


def read(line: str) -> Annotation:
    """Undo the escapes of data (%25, %0D, %0A) and of properties (also %3A, %2C)."""
    match = COMMAND.fullmatch(line)
    assert match is not None, "one line, one command"
    pairs = (pair.partition("=") for pair in match[2].split(","))
    return Annotation(match[1], {key: undone(value, ":,") for key, _, value in pairs}, undone(match[3], ""))


def undone(text: str, more: str) -> str:
    known = {f"%{ord(char):02X}": char for char in f"\r\n{more}"}
    for escape, char in known.items():
        text = text.replace(escape, char)
    assert re.fullmatch(r"(?s)(%25|[^%])*", text), "no other escapes"
    return text.replace("%25", "%")


def test_gates_then_causes_then_exemptions(checked: Diagnosis) -> None:
    found = [read(line) for line in annotations(checked)]
    assert [(note.command, note.properties["title"], note.properties["line"]) for note in found] == [
        ("error", "accuracy top1", "5"),
        ("warning", "agreement", "14"),
        ("error", "findings", "2"),
        ("error", "W001 channel-range-imbalance", "2"),
        ("warning", "D001 too-few-samples", "2"),
        ("warning", "exemption of A004", "20"),
        ("warning", "exemption of W009", "25"),
        ("warning", "exemption of W010", "30"),
    ]
    assert {note.properties["file"] for note in found} == {"ci/quantmedic.toml"}
    assert all(set(note.properties) == {"file", "line", "title"} for note in found), "no columns"
    assert found[1].message == "98.8 % (97.9 … 99.4), required 99.0 %."
    assert found[3].message.splitlines()[:2] == [
        "One scale serves weight channels whose ranges differ 134x.",
        "- features.3.conv.0.0: weight.channel_range_ratio 148 > 16, new",
    ]
    said = [note.message.partition(":")[0] for note in found[5:]]
    assert said == ["Expires in 9 days", "Expired 314 days ago", "Matches nothing, remove it"]


def test_causes_stand_by_severity(checked: Diagnosis) -> None:
    turned = checked.model_copy(update={"causes": checked.causes[::-1]})
    titles = [read(line).properties["title"] for line in annotations(with_check(turned, gates=(), exemptions=()))]
    assert titles == ["W001 channel-range-imbalance", "D001 too-few-samples"]


def test_what_the_baseline_knows_is_a_notice_unless_it_counts(checked: Diagnosis) -> None:
    for gated, command in ((False, "notice"), (True, "error")):
        known = tuple(f.model_copy(update={"status": "known", "gated": gated}) for f in check_report(checked).findings)
        first, *_ = annotations(with_check(checked, findings=known, gates=(), exemptions=()))
        assert read(first).command == command


def test_what_is_exempted_throughout_is_not_annotated(checked: Diagnosis) -> None:
    findings = tuple(f.model_copy(update={"exemption": 0}) for f in check_report(checked).findings)
    assert annotations(with_check(checked, findings=findings, gates=(), exemptions=())) == []


def test_an_accepted_model_without_causes_is_not_annotated(healthy: Diagnosis) -> None:
    assert annotations(accepted(healthy.model_copy(update={"causes": ()}))) == []


def test_at_most_ten_of_a_kind_and_the_tenth_tells_of_the_rest(checked: Diagnosis) -> None:
    first = checked.causes[0]
    causes = tuple(
        first.model_copy(update={"cause": f"{severity}-{place}", "severity": severity})
        for severity in ("high", "medium", "low")
        for place in range(12)
    )
    found = [read(line) for line in annotations(with_check(checked.model_copy(update={"causes": causes}), findings=()))]
    kinds = {kind: [note for note in found if note.command == kind] for kind in ("error", "warning", "notice")}
    assert {kind: len(notes) for kind, notes in kinds.items()} == {"error": 10, "warning": 10, "notice": 10}
    assert {kind: notes[-1].message.splitlines()[-1].partition(" ")[0] for kind, notes in kinds.items()} == {
        "error": "4",
        "warning": "6",
        "notice": "2",
    }
    assert not any("more of this kind" in note.message for notes in kinds.values() for note in notes[:-1])
    assert kinds["error"][0].properties["title"] == "accuracy top1", "gates are not cut off"


def test_hostile_names_are_inert(hostile_checked: Diagnosis) -> None:
    lines = annotations(hostile_checked)
    assert len(lines) == 20
    for line in lines:
        assert line.isprintable()
        note = read(line)
        assert note.message.replace("\n", "").isprintable() and note.message.strip()
        assert set(note.properties) == {"file", "line", "title"} and all(note.properties.values())
        assert len(line.encode()) < 40_000


def test_escapes_come_back(checked: Diagnosis) -> None:
    name = "100%25: a,b=c::error::x%0A"
    gate = check_report(checked).gates[0].model_copy(update={"name": name, "message": name})
    line, *_ = annotations(with_check(checked, gates=(gate,), location=f"ci/{name}.toml"))
    note = read(line)
    assert note.properties == {"file": f"ci/{name}.toml", "line": "5", "title": name}
    assert note.message == f"{name}."


def test_a_report_is_its_own_summary_without_links_to_files(checked: Diagnosis) -> None:
    report = render_markdown(build_context(checked, {"W001": "# W001\n"}))
    text = job_summary(report)
    assert "](manual/W001.md)" in report and "](graphs/" in report
    assert "](manual/" not in text and "](graphs/" not in text
    assert text.startswith(report.splitlines()[0]) and "*Left out, since" not in text


def test_a_long_summary_loses_whole_sections_from_the_end(tmp_path: Path) -> None:
    row = "| é | `" + "x" * 90 + "` |\n"
    fenced = "```text\n## not a heading\n```\n"
    layers, run = f"## Layers\n\n{fenced}{row * 9_000}\n", "## Run\n\nversions\n"
    text = job_summary(f"# Report\n\n## Causes\n\n{fenced}\n{layers}{run}")
    assert text == (
        f"# Report\n\n## Causes\n\n{fenced}\n"
        "\n*Left out, since it is too long for a job summary: Layers, Run. See the report.*\n"
    )
    fits = job_summary(f"# Report\n\n## Causes\n\n{row * 8_000}\n{layers}{run}")
    assert fits.count(row) == 8_000 and 800_000 < len(fits.encode()) <= 900_000 and "Layers, Run" in fits


@pytest.mark.thorough
def test_a_summary_that_is_one_long_section_is_cut_by_lines() -> None:
    text = job_summary("é" * 40 + "\n" + ("line é\n" * 200_000))
    assert len(text.encode()) <= 900_000 and text.count("line é\n") > 100_000
    assert text.endswith("\n\n*Shortened: the whole text is in the report.*\n")
    assert set(text.splitlines()[1:-2]) == {"line é"}


def test_summaries_of_a_step_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    append_summary(path, "# Eins é")
    append_summary(path, "# Two\n")
    assert path.read_bytes() == "# Eins é\n# Two\n".encode()


def test_a_summary_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write the job summary") as caught:
        append_summary(tmp_path / "missing" / "summary.md", "x")
    assert "GITHUB_STEP_SUMMARY" in (caught.value.help or "") and caught.value.where


def test_what_was_not_measured_is_a_warning_where_the_verdict_rests_on_it(healthy: Diagnosis) -> None:
    note = read(annotations(unmeasured(healthy))[0])
    assert (note.command, note.properties["title"], note.properties["line"]) == ("warning", "accuracy top1", "5")
