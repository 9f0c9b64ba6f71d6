"""The command ``import``: files that toolchains leave behind, as a case."""

from collections.abc import Sequence
from pathlib import Path

import click

from quantmedic.cli.options import CONTEXT
from quantmedic.cli.terminal import ascii_only, size_text


@click.command("import", context_settings=CONTEXT)
@click.argument("files", nargs=-1, required=True, metavar="FILE…", type=click.Path(path_type=Path))
@click.option("--output", "-o", type=click.Path(path_type=Path), default="quantmedic.case", show_default=True)
@click.option("--quiet", "-q", is_flag=True, help="Print the file written only.")
def import_(files: Sequence[Path], output: Path, quiet: bool) -> None:
    """Read what a toolchain left behind: settings, logs, calibration tables, encodings, tables of a debugger.

    Each FILE is recognised by what it holds; all of one model go into one case, which `report` judges. One FILE may be
    a case that was measured with both models: what the others tell is added to it by name.

    \b
    Examples:
      quantmedic import model.encodings -o imported.case
      quantmedic import config.yaml conversion.log -o imported.case
      quantmedic import report/quantmedic.case calibration.cache -o merged.case
    """
    from quantmedic import import_files, save_case
    from quantmedic.reports.terminal.console import terminal_text
    from quantmedic.reports.terminal.imported import import_lines

    case = import_files(*files)
    save_case(case, output)
    if not quiet:
        click.echo(terminal_text(import_lines(case.record), ascii_only=ascii_only()), nl=False)
    click.echo(f"wrote {output} ({size_text(output.stat().st_size)})")
    if not quiet:
        click.echo(f"next: quantmedic report {output}")
