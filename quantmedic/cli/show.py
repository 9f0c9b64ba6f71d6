"""The command ``show``: the tables of a case."""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from quantmedic.api.cases import case_path, save_case
from quantmedic.api.judging import inspect, judge
from quantmedic.api.options import Option, RuleOptions
from quantmedic.api.rulebase import rules_in_force
from quantmedic.cli.groups import Command, declared_group, option
from quantmedic.cli.options import rule_options
from quantmedic.cli.streams import print_format, print_line, print_report
from quantmedic.cli.terminal import ascii_only, size_text
from quantmedic.cli.values import CASE
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.errors import DataError, OutputError
from quantmedic.engine.output_files import write_file
from quantmedic.reports.machines.spreadsheets import budget_csv, selection_csv
from quantmedic.reports.sections.budget_box import budget_box
from quantmedic.reports.sections.selection import select_layers
from quantmedic.reports.terminal import show as tables
from quantmedic.reports.terminal.block_lines import section_lines
from quantmedic.reports.terminal.lines import WIDTH, terminal_text
from quantmedic.reports.text import count


@dataclass(frozen=True)
class TableOptions:
    """Which layers and columns are shown, and in which order."""

    table: str | None = Option(
        "Table: activations, weights, errors, quantizers, all, data-sets or loss-budget. [default: the main facts]",
        takes="NAME",
        daily=True,
    ).field()
    columns: str | None = Option(
        "These columns instead: facts, or their ends where these are clear.", takes="KEY,…", daily=True
    ).field()
    sort: str | None = Option(
        "Order of the layers. [default: that of the table]", takes="KEY[:desc]", daily=True
    ).field()
    text: str = Option("Layers whose name, operator or findings have it.", "--filter", "TEXT", daily=True).field("")
    flagged: bool = Option("Only layers that are degraded or have findings.", daily=True).field(False)
    limit: int = Option("At most this many layers.", daily=True).field(50)

    @property
    def keys(self) -> list[str]:
        """The columns that are asked for."""
        return [key for key in (self.columns or "").split(",") if key.strip()]


table_options = declared_group("choice", TableOptions, "Choice")


@click.command(cls=Command)
@click.argument("case", required=False, type=click.Path(path_type=Path), metavar="CASE")
@table_options
@option(
    "--layer",
    metavar="NAME|#",
    title="Choice",
    help="All facts of one layer instead, by name or by its number in the tables.",
)
@option("--environment", is_flag=True, title="Choice", help="Versions, packages and the processor, without a CASE.")
@option(
    "--csv", "csv_file", metavar="FILE", title="Output", help="Write the table to FILE, all of its layers; - prints it."
)
@option(
    "--anonymous",
    type=CASE,
    metavar="FILE",
    title="Output",
    help="Write CASE to FILE without names, paths, texts and pictures, for others to diagnose; what it may still tell: "
    "quantmedic explain share.",
)
@rule_options.only("folders", "thresholds")
def show(
    case: Path | None,
    layer: str | None,
    environment: bool,
    anonymous: Path | None,
    csv_file: str | None,
    choice: TableOptions,
    rules: RuleOptions,
) -> None:
    """Print the tables of a case: layers by any of their facts, one layer, the data sets, or the loss budget.

    CASE is a case file, or the folder of a report.

    \b
    Examples:
      quantmedic show report --table activations
      quantmedic show report --columns name,accumulated.sqnr_db,weight.std --sort accumulated.sqnr_db
      quantmedic show report --layer /stem/conv/Conv
      quantmedic show report --table all --csv layers.csv
      quantmedic show report --table loss-budget
      quantmedic show report --anonymous shared.case
      quantmedic show --environment
    """
    if environment:
        _show_environment()
        return
    if case is None:
        raise click.UsageError("which CASE? Give a case file or the folder of a report, or --environment")
    if anonymous is not None:
        _write_anonymous(case, anonymous)
        return
    data_sets, loss_budget = (choice.table == name for name in ("data-sets", "loss-budget"))
    if csv_file is not None and (layer is not None or data_sets):
        raise click.UsageError("--csv writes the table of layers, or the budget; not one layer, nor the data sets")
    inspection = inspect(case, rules_in_force(rules))
    if loss_budget:
        _show_budget(judge(inspection), csv_file)
        return
    if layer is not None or data_sets:
        plain_text = ascii_only()
        lines = (
            tables.layer_lines(inspection, layer, ascii_only=plain_text)
            if layer is not None
            else tables.data_lines(inspection)
        )
        print_report(terminal_text(lines, ascii_only=plain_text))
        return
    layers = select_layers(
        inspection,
        columns=choice.keys,
        table=choice.table or "default",
        sort=choice.sort,
        text=choice.text,
        flagged=choice.flagged,
    )
    if csv_file is not None:
        _write_csv(selection_csv(layers), csv_file, count(len(layers.rows), "layer"))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    lines = tables.table_lines(layers, limit=choice.limit, width=max(width, WIDTH))
    print_report(terminal_text(lines, ascii_only=ascii_only()))


def _show_environment() -> None:
    from quantmedic.api.environment import environment_lines  # loads what measures, which tables need not

    for line in environment_lines():
        print_line(line)


def _write_anonymous(source: Path, output: Path) -> None:
    from quantmedic.api.anonymity import anonymize  # as slow

    path = case_path(output)
    save_case(anonymize(source), path)
    print_line(f"wrote {path} ({size_text(path.stat().st_size)})")
    print_line(f"what it shows: quantmedic diagnose {path}; what it may still tell: quantmedic explain share")


def _show_budget(diagnosis: Diagnosis, csv_file: str | None) -> None:
    box = budget_box(diagnosis, ())
    if box is None or diagnosis.loss_budget is None:
        raise DataError(
            "the case has no loss budget",
            help="it is measured where both models were run and their outputs differ: if these are, measure them again "
            "with quantmedic diagnose",
        )
    if csv_file is not None:
        _write_csv(budget_csv(diagnosis.loss_budget), csv_file, count(len(diagnosis.loss_budget.lines), "line"))
        return
    print_report(terminal_text(section_lines(box.section), ascii_only=ascii_only()))


def _write_csv(text: str, target: str, rows: str) -> None:
    if target == "-":
        print_format(text)
        return
    try:
        write_file(Path(target), text.encode())
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"cannot write the table: {reason}", where=target, help="choose another file") from error
    print_line(f"wrote {target} ({rows})")
