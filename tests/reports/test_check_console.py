"""What ``quantmedic check`` prints."""

import re
from collections.abc import Callable

import pytest
from builders.gates import accepted, regression, unmeasured

from quantmedic.engine.contract.check_report import GateLine
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.machines.comment import render_comment
from quantmedic.reports.terminal.check import FINDINGS_SHOWN, render_check
from quantmedic.reports.terminal.lines import WIDTH

Golden = Callable[[str, str], None]


def checked(diagnosis: Diagnosis, **changes: object) -> Diagnosis:
    """The diagnosis with parts of its check changed."""
    assert diagnosis.check is not None
    return diagnosis.model_copy(update={"check": diagnosis.check.model_copy(update=changes)})


def lines(diagnosis: Diagnosis, verbosity: str = "normal") -> list[str]:
    return render_check(diagnosis, verbosity=verbosity).splitlines()


def test_what_is_printed_is_what_the_golden_files_hold(proven: Diagnosis, healthy: Diagnosis, golden: Golden) -> None:
    golden("check.txt", render_check(regression(proven), verbosity="normal"))
    golden("check-accepted.txt", render_check(accepted(healthy), verbosity="normal"))
    text = render_check(regression(proven), verbosity="verbose", ascii_only=True)
    assert text.isascii()
    golden("check-verbose.txt", text)


def test_quiet_is_the_last_line(proven: Diagnosis) -> None:
    assert lines(regression(proven), "quiet") == lines(regression(proven))[-1:]


def test_colour_only_where_asked(proven: Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    plain = render_check(regression(proven), verbosity="normal")
    assert "\x1b" not in plain
    painted = render_check(regression(proven), verbosity="normal", color=True)
    assert painted.splitlines()[-1].startswith("\x1b[1;31mREGRESSION\x1b[0m  2 of 5 gates failed")
    assert re.sub(r"\x1b\[[\d;]*m", "", painted) == plain


def test_lines_fit_the_width(subtests: pytest.Subtests, proven: Diagnosis) -> None:
    for verbosity in ["normal", "verbose"]:
        with subtests.test(verbosity=verbosity):
            assert not [line for line in lines(regression(proven), verbosity) if len(line) > WIDTH]


@pytest.mark.thorough
def test_names_move_no_cursor_and_command_no_runner(
    hostile_gate: Callable[[Diagnosis], Diagnosis], hostile: Diagnosis
) -> None:
    for verbosity in ("quiet", "normal", "verbose"):
        text = render_check(hostile_gate(hostile), verbosity=verbosity)
        assert all(line.isprintable() for line in text.split("\n"))
        assert not [line for line in text.splitlines() if line.lstrip().startswith("::") or "##[" in line]
        assert len(text) < 200_000


def test_too_few_samples_say_once_how_many_would_decide(diagnosis: Diagnosis) -> None:
    message = "drop 1.20 points (-0.40 … 2.80) straddles the limit 1.00; about 64000 samples would decide (now 1000)"
    gate = GateLine(kind="accuracy", name="accuracy top1", status="undecided", message=message)
    found = checked(accepted(diagnosis), verdict="INSUFFICIENT_DATA", exit_code=3, gates=(gate,))
    assert lines(found)[-1] == "INSUFFICIENT_DATA  1 of 1 gate open (accuracy top1)"
    assert " ".join(" ".join(lines(found)).split()).count("would decide") == 1


def test_a_gain_is_odd(diagnosis: Diagnosis) -> None:
    gate = GateLine(kind="gain", name="gain", status="anomalous", message="gain 6.1 points, at most 5.00", value=6.1)
    found = checked(accepted(diagnosis), verdict="ANOMALOUS", exit_code=4, gates=(gate,))
    assert lines(found)[0] == "odd   gain      gain 6.1 points, at most 5.00"
    assert lines(found)[-1] == "ANOMALOUS  1 of 1 gate odd (gain)"


def test_an_exit_code_of_0_says_who_wanted_it(subtests: pytest.Subtests, diagnosis: Diagnosis) -> None:
    for warn_only, who in [(True, "--warn-only"), (False, "the policy")]:
        with subtests.test(warn_only=warn_only, who=who):
            found = checked(regression(diagnosis), exit_code=0, warn_only=warn_only)
            assert lines(found, "quiet")[0].endswith(f"; exit code 0 by {who}")
            assert "exit code" not in lines(regression(diagnosis), "quiet")[0]
            assert "exit code" not in lines(checked(accepted(diagnosis), warn_only=warn_only), "quiet")[0]


def test_a_static_check_says_what_it_leaves_out(diagnosis: Diagnosis) -> None:
    found = checked(accepted(diagnosis), static=True)
    hints = ("measured on --validation", "needs both sets, pass --representative and --validation", None)
    notes = tuple(diagnosis.not_judged[0].model_copy(update={"hint": hint}) for hint in hints)
    first = lines(found.model_copy(update={"not_judged": notes}))[0]
    assert first.startswith("static: weights, graph and quantization parameters only; needs data: 2 rules; ")
    assert lines(found.model_copy(update={"not_judged": notes[:2]}))[0].endswith("needs data: 2 rules")


def test_many_findings_are_counted(diagnosis: Diagnosis) -> None:
    found = regression(diagnosis)
    assert found.check is not None
    many = found.check.findings[:1] * (FINDINGS_SHOWN + 7)
    text = lines(checked(found, findings=many))
    assert sum("W001 features.3" in line for line in text) == FINDINGS_SHOWN
    assert "        7 more (--verbose)" in text
    assert sum("W001 features.3" in line for line in lines(checked(found, findings=many), "verbose")) == len(many)


def test_without_a_baseline_nothing_is_new(diagnosis: Diagnosis) -> None:
    text = "\n".join(lines(checked(regression(diagnosis), baseline=None)))
    assert "baseline" not in text and not re.search(r"\bnew\b|\bworse\b", text)


def test_without_a_number_the_finding_is_told(diagnosis: Diagnosis) -> None:
    found = regression(diagnosis)
    assert found.check is not None
    told = found.check.findings[0].model_copy(update={"fact": None, "value": None, "message": "no scale is a number"})
    assert any(
        re.search(r"features\.3\.conv\.0\.0  no scale is a number  new", line)
        for line in lines(checked(found, findings=(told,)))
    )


def test_an_expired_exemption_says_what_counts_again(diagnosis: Diagnosis) -> None:
    found = regression(diagnosis)
    assert found.check is not None
    expired = found.check.exemptions[1].model_copy(update={"findings": 2, "days": -1})
    today = found.check.exemptions[0].model_copy(update={"days": 0, "reason": "soon"})
    text = lines(checked(found, exemptions=(expired, today)))
    assert [line[21:] for line in text if line.startswith("warn  ignore")] == [
        "W009 * expired 1 day ago; 2 findings count again (2026-01-01): old",
        "A004 head/* expires today (2026-11-30): soon",
    ]


def test_advice_passes_over_what_is_exempted(proven: Diagnosis) -> None:
    found = regression(proven)
    assert found.check is not None
    lead = proven.causes[0].cause
    rows = tuple(row.model_copy(update={"exemption": 0}) if row.cause == lead else row for row in found.check.findings)
    assert any("do this first: Per-channel weights for W001" in line for line in lines(found))
    assert any(
        "do this first: More representative samples for D001" in line for line in lines(checked(found, findings=rows))
    )


def test_the_last_line_names_what_was_not_measured(healthy: Diagnosis) -> None:
    assert lines(unmeasured(healthy), "quiet") == ["INSUFFICIENT_DATA  1 of 2 gates not judged (accuracy top1)"]


def test_a_drop_that_no_budget_judges_is_told(proven: Diagnosis) -> None:
    """ACCEPT without a policy is no word on accuracy."""
    assert any(
        re.fullmatch(r"note  accuracy  top-1 .* → .*, drop .* points: no budget judges it", line)
        for line in lines(accepted(proven))
    )
    assert "no budget for this drop" in render_comment(accepted(proven))
    assert not [line for line in lines(regression(proven)) if "no budget" in line]
    assert "no budget for this drop" not in render_comment(regression(proven))


def test_the_next_command_stands_above_the_verdict(diagnosis: Diagnosis) -> None:
    quiet = diagnosis.model_copy(update={"causes": (), "advice": (), "prescription": None, "loss_budget": None})
    level = GateLine(kind="sqnr", name="sqnr", status="fail", message="29.0 dB, required 40.0 dB", limit=40.0)
    found = checked(accepted(quiet), verdict="REGRESSION", exit_code=1, gates=(level,))
    assert lines(found)[-2] == "next: quantmedic search fallback FLOAT QUANT -v DATA --min-sqnr 40"
    doubtful = diagnosis.causes[0].model_copy(update={"rules": ("S018",), "doubt": "labels do not fit"})
    data = GateLine(kind="data", name="data", status="not-judged", message="labels do not fit")
    unsure = accepted(diagnosis.model_copy(update={"causes": (doubtful,)}))
    found = checked(unsure, verdict="INSUFFICIENT_DATA", exit_code=3, gates=(data,))
    assert lines(found)[-2] == "next: quantmedic explain S018"
    assert not any(text.startswith("next: ") for text in lines(accepted(diagnosis)))
