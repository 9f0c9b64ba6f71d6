"""The command ``case anonymize``: a case for others to look at."""

from pathlib import Path

import click

from quantmedic.api.anonymity import anonymize
from quantmedic.api.cases import case_path, save_case
from quantmedic.cli.groups import OrderedGroup, option
from quantmedic.cli.options import CONTEXT
from quantmedic.cli.streams import print_line
from quantmedic.cli.terminal import size_text
from quantmedic.cli.values import OutputCase


@click.group(cls=OrderedGroup, context_settings=CONTEXT)
def case() -> None:
    """Prepare a case for others.

    \b
    Example:
      quantmedic case anonymize report -o shared.case
    """


@case.command("anonymize", context_settings=CONTEXT)
@click.argument("source", type=click.Path(path_type=Path), metavar="CASE")
@option(
    "--output",
    "-o",
    type=OutputCase(),
    default="anonymous.case",
    show_default=True,
    help="Case file, or a folder for it.",
)
def case_anonymize(source: Path, output: Path) -> None:
    """Write a case without names, paths, texts and pictures; `diagnose` judges it as before.

    CASE is a case file, or the folder of a report. Names of layers, tensors and files become hashes; thumbnails and the
    histograms of the inputs go. What is kept, and what it may still show: quantmedic explain share.

    \b
    Examples:
      quantmedic case anonymize report -o shared.case
      quantmedic diagnose shared.case -o again
    """
    path = case_path(output)
    save_case(anonymize(source), path)
    print_line(f"wrote {path} ({size_text(path.stat().st_size)})")
    print_line(f"what it shows: quantmedic diagnose {path}; what it may still tell: quantmedic explain share")
