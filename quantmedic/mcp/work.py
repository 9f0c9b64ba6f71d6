"""One call of a tool, in a process of its own: read as a line of JSON, answered in lines of JSON.

The end of standard input ends the work, so that nobody has to look for a process that is no longer wanted.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

import quantmedic
from quantmedic.api.checks import check, open_baseline, policy_in_force, rules_of
from quantmedic.api.explain import explanation
from quantmedic.api.fix import AFTER, BEFORE
from quantmedic.api.judging import write_report
from quantmedic.api.keywords import with_parameters
from quantmedic.api.notebooks import ProgressLine
from quantmedic.cli.check import DEFAULT_FORMATS, Limits
from quantmedic.cli.fix import result_lines
from quantmedic.cli.main import as_refusal
from quantmedic.collectors.data.preprocessing import parse_preprocessing
from quantmedic.collectors.data.progress import Progress
from quantmedic.engine.contract.advised_remedies import Prescription
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.errors import QuantmedicError
from quantmedic.reports.context import build_context
from quantmedic.reports.search_formats import render_search
from quantmedic.reports.sections.first_step import FirstStep
from quantmedic.reports.terminal.console import render_console
from quantmedic.reports.text import visible, with_page_names

Answer = dict[str, Any]
#: Seconds that the work gets to leave nothing behind, before it is killed with all that it started.
GRACE = 2.0
#: Entries of each list of an answer; the report has the rest.
SHOWN = 8
#: Files of a report that an answer names.
FILES = ("report.md", "index.html", "report.json", "prescription.py", "check.md", "quantmedic.case")


def answer_diagnose(progress: Progress, report: str, **given: Any) -> Answer:
    """``quantmedic diagnose``."""
    found = quantmedic.diagnose(progress=progress, output=report, **given)
    return {**_tell_judgement(found), **_list_files(report)}


def answer_fix(progress: Progress, report: str, output: str, **given: Any) -> Answer:
    """``quantmedic fix``."""
    found = quantmedic.fix(output=output, report=report, progress=progress, **given)
    return {
        "written": str(found.model) if found.model is not None else None,
        "refused": found.refused,
        "how": found.grade,
        "before": _tell_verdict(found.before),
        "after": _tell_verdict(found.after) if found.after is not None else None,
        "said": "\n".join(result_lines(found, Path(output))).strip(),
        "reports": [f"{report}/{part}" for part in (BEFORE, AFTER) if os.path.exists(f"{report}/{part}/report.md")],
    }


def answer_check(
    progress: Progress,
    report: str | None = None,
    case: str | None = None,
    config: str | None = None,
    baseline: str | None = None,
    **given: Any,
) -> Answer:
    """``quantmedic check``."""
    limits = Limits(**{name: given.pop(name, None) for name in ("max_drop", "min_agreement", "min_sqnr_db")})
    policy = policy_in_force(Path(config) if config is not None else None)
    base = rules_of(policy)
    # What is wrong with these is told before anything is measured.
    limits.added_to(policy, None)
    known = open_baseline(baseline, policy, base)
    opened = quantmedic.inspect(case or quantmedic.collect(rules=base, progress=progress, **given), base)
    metric = opened.facts.model.metric.name
    found = check(opened, limits.added_to(policy, metric), rules=base, baseline=known)
    assert found.check is not None
    gates = [{"name": own.name, "status": own.status, "message": own.message} for own in found.check.gates]
    answer = {"gate": found.gate, "exit_code": found.check.exit_code, "gates": gates, **_tell_judgement(found)}
    if report is not None:
        write_report(found, report, formats=DEFAULT_FORMATS, rules=base, case=opened)
    return {**answer, **(_list_files(report) if report is not None else {})}


def answer_search(progress: Progress, report: str, **given: Any) -> Answer:
    """``quantmedic search``."""
    record = quantmedic.search(progress=progress, **given)
    files = [str(path) for path, _ in quantmedic.write_search(record, report)]
    return {"verdict": getattr(record, "verdict", None), "said": render_search(record), "files": files}


def answer_explain(progress: Progress, word: str) -> Answer:
    """``quantmedic explain``."""
    return {"page": with_page_names(explanation(word))}


def _tell_verdict(found: Diagnosis) -> Answer:
    """The verdict, and what it rests on."""
    figures = {"name", "samples", "float_value", "quantized_value", "drop", "drop_low", "drop_high"}
    return {
        "verdict": found.verdict,
        "drop_is": found.evidence_strength.statement,
        "metric": found.metrics.model_dump(include=figures) if found.metrics.drop is not None else None,
        "said": render_console(found, verbosity="quiet"),
        "not_judged_count": len(found.not_judged),
    }


def _tell_judgement(found: Diagnosis) -> Answer:
    """The verdict, what to do first, the first cause with its evidence, and what was not judged."""
    context, causes = build_context(found, {}), found.causes
    return {
        **_tell_verdict(found),
        "do_first": _tell_step(context.first) if context.first is not None else None,
        "prescription": _tell_prescription(found.prescription) if found.prescription is not None else None,
        "first_cause": _tell_cause(causes[0]) if causes else None,
        "other_causes": [f"{'/'.join(own.rules)} {visible(own.shown)} ({own.severity})" for own in causes[1:SHOWN]],
        "not_judged": [with_parameters(f"{own.rule} {own.name}: {own.hint}") for own in found.not_judged[:SHOWN]],
        "warnings": list(context.warnings[:SHOWN]),
    }


def _tell_step(step: FirstStep) -> Answer:
    brings = step.gain.said if step.gain is not None else None
    return {"label": step.label, "what": step.named, "changes": step.detail, "brings": brings, "set": step.text}


def _tell_prescription(given: Prescription) -> Answer:
    """Its remedies, and what it recovered where it was run, else what the first of them did on a copy."""
    tried = given.executed.trial if given.executed is not None else next((step.measured for step in given.steps), None)
    return {
        "steps": [visible(step.title) for step in given.steps],
        "basis": given.basis,
        "grade": given.grade,
        "gain_db": tried.gain_db if tried is not None else None,
        "gain_metric": tried.metric.gain if tried is not None and tried.metric is not None else None,
    }


def _tell_cause(cause: CauseReport) -> Answer:
    return {
        **cause.model_dump(include={"rules", "severity", "harm", "doubt", "confidence"}),
        "name": visible(cause.shown),
        "message": visible(cause.message, 600),
        "where": [visible(subject) for subject in cause.subjects[:SHOWN]],
        "evidence": [each.model_dump(exclude={"source"}, exclude_none=True) for each in cause.evidence[:SHOWN]],
    }


def _list_files(folder: str) -> Answer:
    files = [path for name in FILES if os.path.exists(path := f"{folder}/{name}")]
    return {"files": files, "reports": [folder]}


#: What does the work of each tool.
WORK: Mapping[str, Callable[..., Answer]] = {
    "diagnose": answer_diagnose,
    "fix": answer_fix,
    "check": answer_check,
    "search": answer_search,
    "explain": answer_explain,
}


class Wire:
    """Where the lines of JSON go: what standard output was, which leads to standard error from here on."""

    def __init__(self) -> None:
        self._lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def send(self, kind: str, value: object) -> None:
        """One line, at once."""
        print(json.dumps({kind: value}, default=str), file=self._lines, flush=True)

    def update(self, data: Mapping[str, str], *, raw: bool = True) -> None:
        """Progress, in words."""
        self.send("progress", data["text/plain"])

    def first(self, data: Mapping[str, str]) -> "Wire":
        """The same the first time."""
        self.update(data)
        return self


def answer_call(call: Mapping[str, Any], wire: Wire) -> None:
    """Do the work, and send the answer, or what was wrong."""
    given = dict(call["arguments"])
    try:
        if "preprocessing" in given:
            given["preprocessing"] = parse_preprocessing(given["preprocessing"])
        wire.send("answer", WORK[call["tool"]](ProgressLine(wire.first).show, **given))
    except click.ClickException as error:
        wire.send("error", error.format_message())
    except Exception as error:
        wire.send("error", str(error if isinstance(error, QuantmedicError) else as_refusal(error)))


def end_with_input() -> None:
    """Wait for the end of standard input, which nothing else reads by then; then end this process."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    asked = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=end_with_input, daemon=True).start()
    answer_call(asked, Wire())
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is left is to end, which libraries do in their own way
