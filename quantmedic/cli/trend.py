"""The command ``trend``: the figures of a history, run by run."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from quantmedic.cli.groups import Command, option
from quantmedic.cli.options import CONTEXT, PRINTED_FORMATS, ReportOptions, printing_options
from quantmedic.cli.streams import print_line, print_report
from quantmedic.cli.terminal import ascii_only, with_color, wrote_text
from quantmedic.engine.gate.history import select_figures
from quantmedic.reports.files import TREND_TEXTS
from quantmedic.reports.terminal.lines import WIDTH
from quantmedic.reports.terminal.trend import render_trend
from quantmedic.store.history_file import FORMATS, load_history, write_trend


@click.command(cls=Command, context_settings=CONTEXT)
@click.argument("history", type=click.Path(path_type=Path), metavar="HISTORY")
@option("--model", metavar="NAME", help="Whose runs. [default: the one model of the history]")
@option("--figure", "figures", multiple=True, metavar="NAME", help="Only this figure; repeat. [default: all]")
@option("--last", type=click.IntRange(1), default=50, show_default=True, help="At most this many runs.")
@printing_options(PRINTED_FORMATS).only("output", "formats")
def trend(history: Path, model: str | None, figures: Sequence[str], last: int, report: ReportOptions) -> None:
    """Plot the figures that `check --record HISTORY` kept, run by run.

    Without --output, one format is printed: text unless --format says otherwise.

    Exit codes: 0 plotted, whatever the figures; 2 could not do its job.

    \b
    Examples:
      quantmedic trend history.db
      quantmedic trend history.db --figure drop --figure sqnr_db --last 20
      quantmedic trend history.db --model int8.onnx -o trend
    """
    report.check()
    record = select_figures(load_history(history, model=model, last=last), figures)
    if report.printed_format == "text":
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
        text = render_trend(record, width=width, color=with_color(), ascii_only=ascii_only())
    else:
        text = TREND_TEXTS[report.printed_format](record)
    print_report(text)
    if report.output is not None:
        files = write_trend(record, report.output, formats=report.formats or FORMATS)
        print_line("")
        print_line(wrote_text((file.path, file.size) for file in files))
