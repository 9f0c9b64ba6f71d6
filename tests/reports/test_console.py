"""The terminal report."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import quantmedic
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.blocks import Code, Tabs
from quantmedic.reports.terminal.block_lines import block_lines
from quantmedic.reports.terminal.console import render_console, warning_lines
from quantmedic.reports.terminal.fixed import fixed_lines
from quantmedic.reports.terminal.lines import WIDTH, fit_text
from quantmedic.reports.terminal.summary import LINES

Golden = Callable[[str, str], None]


def test_what_is_printed_is_what_the_golden_files_hold(
    diagnosis: Diagnosis, proven: Diagnosis, healthy: Diagnosis, golden: Golden
) -> None:
    golden("console.txt", render_console(diagnosis))
    golden("console-proven.txt", render_console(proven))
    golden("console-healthy.txt", render_console(healthy))
    golden("console-quiet.txt", render_console(diagnosis, verbosity="quiet"))
    text = render_console(diagnosis, verbosity="verbose", ascii_only=True)
    assert text.isascii()
    golden("console-verbose.txt", text)


def test_one_screen_holds_it(subtests: pytest.Subtests, request: pytest.FixtureRequest) -> None:
    """With the line that names the files: twenty lines, whatever was found."""
    for name in ["diagnosis", "proven", "healthy", "hostile_proven"]:
        with subtests.test(name=name):
            lines = render_console(request.getfixturevalue(name)).splitlines()
            assert len(lines) <= LINES and max(map(len, lines)) <= WIDTH
            assert "--verbose" in lines[-1]


def test_many_causes_and_warnings_are_counted(proven: Diagnosis) -> None:
    many = proven.model_copy(update={"causes": (*proven.causes, *proven.causes[1:] * 20), "warnings": ("said",) * 9})
    lines = render_console(many).splitlines()
    assert len(lines) <= LINES and lines[-3].endswith("more causes and warnings")


def test_colour_only_where_asked(diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    plain = render_console(diagnosis)
    assert "\x1b" not in plain
    painted = render_console(diagnosis, color=True)
    assert "\x1b[1;31mDEGRADED\x1b[0m" in painted
    assert re.sub(r"\x1b\[[\d;]*m", "", painted) == plain


def test_lines_but_snippets_and_layers_fit_the_width(subtests: pytest.Subtests, request: pytest.FixtureRequest) -> None:
    for name in ["diagnosis", "proven", "healthy"]:
        with subtests.test(name=name):
            text = render_console(request.getfixturevalue(name), verbosity="verbose")
            long = [line for line in text.splitlines() if len(line) > WIDTH]
            assert not [line for line in long if not re.match(" {2}quantize| +\\d+  | +#  ", line)]


def test_names_move_no_cursor_and_command_no_runner(hostile_proven: Diagnosis) -> None:
    for verbosity in ("quiet", "normal", "verbose"):
        text = render_console(hostile_proven, verbosity=verbosity) + "\n".join(warning_lines(hostile_proven))
        assert all(line.isprintable() for line in text.split("\n"))
        assert not [line for line in text.splitlines() if line.lstrip().startswith("::") or "##[" in line]


def test_a_message_cannot_begin_a_runner_s_command(diagnosis: Diagnosis) -> None:
    first, *rest = diagnosis.causes
    evil = first.model_copy(update={"message": "\n::error::owned"})
    text = render_console(diagnosis.model_copy(update={"causes": (evil, *rest)}), verbosity="verbose")
    assert "\\u003a:error::owned" in text


def test_one_warning_per_cause(diagnosis: Diagnosis) -> None:
    assert warning_lines(diagnosis) == [
        "WARNING W001 channel-range-imbalance: one scale serves weight channels whose ranges differ 134x; "
        "quantmedic explain W001",
        "WARNING D001 too-few-samples: ranges still widen at the end of the set; quantmedic explain D001",
    ]


def test_a_drop_without_cause_names_the_pages_to_read(diagnosis: Diagnosis) -> None:
    bare = diagnosis.model_copy(update={"causes": (), "advice": ("preprocessing",), "advice_place": "open"})
    assert "To read: quantmedic explain preprocessing\n" in render_console(bare)
    text = render_console(bare, verbosity="verbose")
    assert "Try these in order; the size of the drop sets the order.\n 1. quantmedic explain preprocessing\n" in text


@pytest.mark.thorough
def test_operators_without_a_twin_are_counted(subtests: pytest.Subtests, patient_case: Path) -> None:
    for names, said in [
        (("a",), "1 operator has no twin in the float model and is not measured: a"),
        (
            tuple("abcdefg"),
            "7 operators have no twin in the float model and are not measured: a, b, c, d, e and 2 more",
        ),
    ]:
        with subtests.test(names=names, said=said):
            case = quantmedic.load_case(patient_case)
            lacking = replace(case, record=case.record.model_copy(update={"unmatched": names}))
            assert said in quantmedic.judge(lacking).warnings


def test_golden_files_are_all_in_use() -> None:
    names = {path.name for path in (Path(__file__).parent / "golden").iterdir()}
    console = {f"console{name}.txt" for name in ("", "-verbose", "-quiet", "-healthy", "-proven")}
    sensitivity = {f"sensitivity.{suffix}" for suffix in ("md", "svg", "txt")}
    compare = {f"compare.{suffix}" for suffix in ("json", "md", "txt")}
    check = {"check.txt", "check-verbose.txt", "check-accepted.txt", "check.md", "check-accepted.md", "report-gate.md"}
    report = {"report.md", "report-proven.md", "report-healthy.json"}
    assert names == console | sensitivity | compare | check | report


def renamed(found: Diagnosis, name: str) -> Diagnosis:
    """The diagnosis with another subject of the first evidence."""
    first = found.causes[0]
    evidence = tuple(row.model_copy(update={"subject": name}) for row in first.evidence)
    return found.model_copy(update={"causes": (first.model_copy(update={"evidence": evidence}), *found.causes[1:])})


def test_a_long_name_stands_whole(diagnosis: Diagnosis) -> None:
    name = "backbone/stage_3/block_12/" + "expanded_" * 6 + "convolution"
    text = render_console(renamed(diagnosis, name), verbosity="verbose")
    assert name in text


def test_a_change_of_many_names_says_where_it_is_to_be_copied_from() -> None:
    code = f"quantize_static(nodes_to_exclude={[f'layer_{k}' for k in range(78)]})"
    (line,) = block_lines([Tabs("a", [("ONNX Runtime", [Code(code)])])])
    assert line == "  with ONNX Runtime: the change is long, copy it from report.md or index.html"
    assert list(block_lines([Tabs("a", [("FX", [Code("correct()")]), ("PT2E", [])])])) == ["  with FX:", "  correct()"]


def test_a_repair_shows_what_it_did_to_the_worst_part_of_the_outputs(diagnosis: Diagnosis, healthy: Diagnosis) -> None:
    """Boxes beside scores: the outputs as a whole were never bad."""
    before, after = (
        found.model_copy(update={"model": found.model.model_copy(update={"output_worst_sqnr_db": level})})
        for found, level in ((diagnosis, 0.0), (healthy, 29.6))
    )
    assert "  worst part   0.0 dB → 29.6 dB   of all outputs, columns and operands" in [
        *fixed_lines(before, after, "x")
    ]


def test_a_repair_says_which_causes_are_left(diagnosis: Diagnosis, healthy: Diagnosis) -> None:
    assert [*fixed_lines(diagnosis, healthy, "x")][-1] == (
        "  serious causes  2 → 0 (1 low left: A001 activation-outliers)"
    )
    assert "2 → 2 (W001 channel-range-imbalance, D001" in [*fixed_lines(diagnosis, diagnosis, "x")][-1]


def test_what_a_model_gains_is_no_negative_drop(healthy: Diagnosis) -> None:
    gain = {"drop": -0.0039, "drop_low": -0.0143, "drop_high": 0.0045}
    found = healthy.model_copy(update={"metrics": healthy.metrics.model_copy(update=gain)})
    assert "gain 0.39 points, 95 % interval -0.45 … 1.43 points" in render_console(found)


def test_where_the_whole_report_lies(healthy: Diagnosis) -> None:
    text = render_console(healthy, written=Path("d/index.html"))
    assert text.endswith("All causes and layers: --verbose. The whole report: d/index.html\n")
    assert "to hold it in CI: quantmedic check d --max-drop 1" in text


def test_lines_fit_a_narrow_terminal(subtests: pytest.Subtests, proven: Diagnosis) -> None:
    for columns in [40, 60, 80, 120]:
        with subtests.test(columns=columns):
            text = render_console(proven)
            narrow = fit_text(text, columns)
            assert max(map(len, narrow.splitlines())) <= columns
            assert narrow.split() == text.split()
