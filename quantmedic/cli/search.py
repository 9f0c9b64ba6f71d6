"""The command ``search``: which layers make the noise, which have to stay in float, which calibration suits best."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import click

from quantmedic.api.options import SEARCHES, TAKEN, Option, SearchOptions, What
from quantmedic.api.search import search_models, write_layers, write_search
from quantmedic.cli.groups import Command, declared_group
from quantmedic.cli.options import refuse_options, search_options
from quantmedic.cli.streams import print_line, print_report
from quantmedic.cli.terminal import ascii_only, interrupted_status, print_wrote, progress_bars
from quantmedic.cli.values import Kind
from quantmedic.engine.contract.searches import DebuggerRecord, FallbackRecord, SearchRecord, SensitivityRecord
from quantmedic.reports.search_formats import render_search, search_json, search_markdown


@dataclass(frozen=True)
class AnswerOptions:
    """Where the answer of a search goes."""

    output: Path | None = Option(
        "Folder for the answer; of sensitivity report by default. debugger: FILE.csv for the table alone.",
        "--output -o",
        kind="table or folder",
        daily=True,
    ).field()
    formats: Sequence[Literal["text", "json", "markdown", "html", "csv", "svg"]] = Option(
        "Repeat with --output; text, json or markdown without it is printed.", "--format"
    ).field(())
    verbose: bool = Option("Print all layers.").field(False)

    def check(self) -> None:
        """Refuse several formats where only one can be printed, and one that cannot be."""
        if self.output is None and len(self.formats) > 1:
            raise click.UsageError("several formats need a folder: add --output")
        if self.output is None and {*self.formats} - {"text", *_PRINTED}:
            raise click.UsageError(f"{self.formats[0]} needs a folder: add --output")


#: Formats that are printed beside text.
_PRINTED = {"json": search_json, "markdown": search_markdown}
answer_options = declared_group("answer", AnswerOptions, "Output")


@click.command(cls=Command)
@click.argument("kind", type=Kind(SEARCHES), metavar="KIND")
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FLOAT [QUANT]")
@search_options
@answer_options
@click.pass_context
def search(
    context: click.Context, /, kind: What, models: Sequence[Path], options: SearchOptions, answer: AnswerOptions
) -> None:
    """Search the layers of a pair, or the calibrations of FLOAT, by running them.

    \b
    sensitivity   what each layer does to the output, alone and together
    fallback      the smallest set found of layers that leave int8 to meet --max-drop or --min-sqnr
    calibrations  the calibration that serves best (ort for ONNX, litert for LiteRT, mct for PyTorch)
    debugger      each operator alone, as LiteRT's QuantizationDebugger measures it

    Exit codes: 0 found, 1 no set of layers meets the goal, 2 could not do its job, 130 Ctrl-C.

    \b
    Examples:
      quantmedic search sensitivity float.onnx int8.onnx -v val.npz -o report
      quantmedic search fallback float.onnx int8.onnx -v val.npz --min-sqnr 30
      quantmedic search calibrations float.onnx -r rep.npz -v val.npz
    """
    refuse_options(context, {*search_options} - TAKEN[kind], f"means nothing to {kind}")
    if len(models) != (1 if kind == "calibrations" else 2):
        wanted = "FLOAT alone" if kind == "calibrations" else "FLOAT and QUANT"
        raise click.UsageError(f"{kind} takes {wanted}")
    answer.check()
    if kind == "sensitivity" and not answer.formats:
        answer = replace(answer, output=answer.output or Path("report"))
    with progress_bars() as progress:
        record = search_models(kind, models[0], models[-1], options, progress)
    _print_answer(record, answer)
    if _is_interrupted(record):
        print_line("interrupted", err=True)
        raise click.exceptions.Exit(interrupted_status())
    missed = isinstance(record, FallbackRecord) and record.verdict not in ("met", "unsure")
    raise click.exceptions.Exit(1 if missed else 0)


def _print_answer(record: SearchRecord, answer: AnswerOptions) -> None:
    """The table, or one format; and the files where a folder was given."""
    printed = _PRINTED.get(answer.formats[0]) if answer.formats and answer.output is None else None
    text = printed(record) if printed else render_search(record, verbose=answer.verbose, ascii_only=ascii_only())
    print_report(text)
    if answer.output is not None:
        if answer.output.suffix == ".csv" and isinstance(record, DebuggerRecord):
            files = [write_layers(record, answer.output)]
        else:
            files = write_search(record, answer.output, formats=answer.formats or None)
        print_line("")
        print_wrote(files)


def _is_interrupted(record: SearchRecord) -> bool:
    if isinstance(record, SensitivityRecord):
        return bool(record.missing)
    return isinstance(record, FallbackRecord) and record.interrupted
