"""The command ``import``: files that toolchains leave behind, as a case."""

from collections.abc import Sequence
from pathlib import Path

import click

from quantmedic.api.cases import case_path, save_case
from quantmedic.api.imports import import_files
from quantmedic.cli.groups import Command
from quantmedic.cli.options import case_option
from quantmedic.cli.streams import print_line, print_report
from quantmedic.cli.terminal import ascii_only, size_text
from quantmedic.reports.terminal.imported import import_lines
from quantmedic.reports.terminal.lines import terminal_text


@click.command("import", cls=Command)
@click.argument("files", nargs=-1, required=True, metavar="FILE…", type=click.Path(path_type=Path))
@case_option
def import_(files: Sequence[Path], output: Path) -> None:
    """Read what a toolchain left behind: settings, logs, calibration tables, encodings, tables of a debugger.

    The format of a FILE is recognized by its content. All files of one model go into one case, which `diagnose` judges.
    One FILE may be a case that was measured with both models, or the folder of its report: what the other files say is
    added to it by name.

    \b
    Examples:
      quantmedic import model.encodings -o imported.case
      quantmedic import config.yaml conversion.log -o imported.case
      quantmedic import report calibration.cache -o merged.case
    """
    case = import_files(*files)
    path = case_path(output)
    save_case(case, path)
    print_report(terminal_text(import_lines(case.record), ascii_only=ascii_only()))
    print_line(f"wrote {path} ({size_text(path.stat().st_size)})")
    print_line(f"next: quantmedic diagnose {path}")
