"""The command ``compare``: two cases side by side."""

from pathlib import Path

import click

from quantmedic.api.comparisons import FORMATS, write_comparison
from quantmedic.api.comparisons import compare as compare_cases
from quantmedic.api.options import RuleOptions
from quantmedic.api.rulebase import rules_in_force
from quantmedic.cli.groups import Command
from quantmedic.cli.options import PRINTED_FORMATS, ReportOptions, printing_options, rule_options
from quantmedic.cli.streams import print_report
from quantmedic.cli.terminal import ascii_only, print_wrote, with_color
from quantmedic.reports.comparison_formats import COMPARISON_TEXTS, render_comparison


@click.command(cls=Command)
@click.argument("before", type=click.Path(path_type=Path), metavar="BEFORE")
@click.argument("after", type=click.Path(path_type=Path), metavar="AFTER")
@rule_options.only("folders", "thresholds")
@printing_options(PRINTED_FORMATS)
def compare(before: Path, after: Path, rules: RuleOptions, report: ReportOptions) -> None:
    """Put two cases side by side: what healed, what broke, what was changed in between.

    BEFORE and AFTER are case files, or folders of reports. Both are judged by the same rules. Without --output, one
    format is printed: text unless --format says otherwise.

    Exit codes: 0 compared, whatever the answer; 2 could not do its job.

    \b
    Examples:
      quantmedic compare report second
      quantmedic compare before.case after.case --format json > compare.json
      quantmedic compare before.case after.case -o comparison
    """
    report.check()
    comparison = compare_cases(before, after, rules_in_force(rules))
    if report.printed_format == "text":
        text = render_comparison(comparison, verbosity=report.verbosity, color=with_color(), ascii_only=ascii_only())
    else:
        text = COMPARISON_TEXTS[report.printed_format](comparison)
    print_report(text)
    if report.output is not None:
        files = write_comparison(comparison, report.output, formats=report.formats or FORMATS)
        print_report("" if report.quiet else "\n")
        print_wrote((file.path, file.size) for file in files)
