"""A case judged, printed and written, as every command does that ends with a report."""

import os
import sys
from pathlib import Path
from typing import NamedTuple

import click

from quantmedic.api.cases import load_case
from quantmedic.api.judging import check_toolchain, inspect, judge, write_report
from quantmedic.api.options import RuleOptions
from quantmedic.api.rulebase import rules_in_force
from quantmedic.cli.options import DEFAULT_FORMATS, JudgingOptions, ReportOptions
from quantmedic.cli.streams import print_line, print_report
from quantmedic.cli.terminal import ascii_only, columns, interrupted_status, print_wrote, show_page, with_color
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.reports.terminal.console import render_console, warning_lines
from quantmedic.reports.terminal.lines import fit_text


class Judging(NamedTuple):
    """What is judged beside the case, opened and checked before anything is measured."""

    base: RuleBase
    previous: Case | None = None
    toolchain: str | None = None


def open_judging(rules: RuleOptions, judging: JudgingOptions) -> Judging:
    """Load rules and the previous case, and check the name of the toolchain.

    Raises:
        RuleError: A rule, threshold or toolchain is unknown or cannot be used.
        CaseError: The previous case cannot be read.
    """
    base = rules_in_force(rules)
    check_toolchain(judging.toolchain, base)
    previous = load_case(judging.previous) if judging.previous is not None else None
    return Judging(base, previous, judging.toolchain)


def report_case(case: Case, judging: Judging, report: ReportOptions) -> Diagnosis:
    """Judge a case, print the diagnosis, write the report."""
    assert report.output is not None
    opened = inspect(case, judging.base)
    diagnosis = judge(opened, previous=judging.previous, toolchain=judging.toolchain)
    formats = [*(report.formats or DEFAULT_FORMATS), *(["html"] if report.open_page else [])]
    written = report.output / "index.html" if "html" in formats else report.output
    _print(diagnosis, report, written)  # first: whatever happens to the files, the verdict is seen
    files = write_report(diagnosis, report.output, formats=formats, rules=judging.base, case=opened)
    print_wrote((path, size) for path, size in files if path.parent == report.output)
    if report.open_page:
        show_page(report.output / "index.html")
    return diagnosis


def end_if_interrupted(case: Case) -> None:
    """What was tried is reported by now; the exit code tells that it is not all."""
    if case.record.proof is not None and case.record.proof.stopped == "interrupted":
        print_line("interrupted: not everything was tried; --resume tries again and measures nothing anew", err=True)
        raise click.exceptions.Exit(interrupted_status())


def print_warnings(diagnosis: Diagnosis) -> None:
    """What the user should know, on standard error."""
    for line in warning_lines(diagnosis):
        print_line(line, err=True)


def _lead_to_one_place() -> bool:
    """Standard output and standard error are the same terminal, pipe or file."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):  # one that is only in memory
        return False


def _print(diagnosis: Diagnosis, report: ReportOptions, written: Path) -> None:
    if report.quiet or not _lead_to_one_place():
        print_warnings(diagnosis)  # in one place the same causes stand in the report
    text = render_console(
        diagnosis, verbosity=report.verbosity, color=with_color(), ascii_only=ascii_only(), written=written
    )
    print_report(text if report.verbose else fit_text(text, columns()))
    if report.verbose:
        print_line("")
