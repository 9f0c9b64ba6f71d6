"""The command ``report``: stored cases judged again."""

from collections.abc import Sequence
from pathlib import Path

import click

from quantmedic.api.cases import load_case
from quantmedic.api.options import RuleOptions
from quantmedic.cli.groups import Command
from quantmedic.cli.options import (
    CONTEXT,
    JudgingOptions,
    ReportOptions,
    judging_options,
    report_options,
    rule_options,
)
from quantmedic.cli.reporting import open_judging, report_case


@click.command(cls=Command, context_settings=CONTEXT)
@click.argument("cases", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="CASE…")
@rule_options
@judging_options
@report_options
def report(cases: Sequence[Path], rules: RuleOptions, judging: JudgingOptions, report: ReportOptions) -> None:
    """Judge a stored case again, or several shards of one, without models or data.

    CASE is a case file, the folder of a report, which holds its case, or a folder of shards.

    \b
    Examples:
      quantmedic report quantmedic.case --threshold activation_zscore=8 -o report
      quantmedic report shards -o report
      quantmedic report report -o again
    """
    judged_by = open_judging(rules, judging)
    report_case(load_case(*cases), judged_by, report)
