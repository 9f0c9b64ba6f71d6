"""The command ``watch``: the diagnosis again whenever a file changes, and what healed and broke since."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click

from quantmedic.api.comparisons import compare
from quantmedic.api.options import CollectOptions, RuleOptions
from quantmedic.cli.groups import Command
from quantmedic.cli.measuring import collect_case, proving_first
from quantmedic.cli.options import (
    CONTEXT,
    JudgingOptions,
    ReportOptions,
    judged_options,
    judging_options,
    report_options,
    rule_options,
)
from quantmedic.cli.reporting import Judging, open_judging, report_case
from quantmedic.cli.streams import print_line, print_report
from quantmedic.cli.terminal import ascii_only, print_error, with_color
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import QuantmedicError
from quantmedic.reports.terminal.compare import render_comparison

#: Seconds between two looks at the files, and for which a file has to rest before it is read.
PAUSE = 0.5

#: What is told of causes; what stays as it is stands in the report.
TOLD = ("new", "worse", "mixed", "healed", "better", "gone")

#: Modification time and size of each file; a file that is not there is left out.
Stamps = dict[Path, tuple[int, int]]


class Watched(NamedTuple):
    """A pair and how it is measured and judged."""

    float_model: Path
    quantized_model: Path
    options: CollectOptions
    judging: Judging
    report: ReportOptions

    def measure(self) -> Case:
        """Measure, judge, print and write the report once."""
        case = collect_case(self.float_model, self.quantized_model, self.options, self.judging.base)
        report_case(case, self.judging, self.report)
        return case


@click.command(cls=Command, context_settings=CONTEXT)
@click.argument("float_model", type=click.Path(path_type=Path), metavar="FLOAT")
@click.argument("quantized_model", type=click.Path(path_type=Path), metavar="QUANT")
@judged_options
@rule_options
@judging_options
@report_options
def watch(
    float_model: Path,
    quantized_model: Path,
    options: CollectOptions,
    rules: RuleOptions,
    judging: JudgingOptions,
    report: ReportOptions,
) -> None:
    """Diagnose again whenever a model or its data change, and say what healed and what broke since.

    The options are those of diagnose; --no-prove runs no prescription, and answers sooner. Ctrl-C ends it.

    \b
    Examples:
      quantmedic watch float.onnx int8.onnx -r rep.npz -v val.npz
      quantmedic watch float.onnx int8.onnx -v val.npz --open -o report
    """
    options = proving_first(options, judging.toolchain)
    watched = Watched(float_model, quantized_model, options, open_judging(rules, judging), report)
    _watch(watched, _files_of(watched))


def _files_of(watched: Watched) -> list[Path]:
    """Models, and what data are files."""
    data, tokens = watched.options.data, watched.options.texts.tokens
    sources = [watched.float_model, watched.quantized_model, data.representative, data.validation, data.labels, tokens]
    return [Path(str(source)) for source in sources if isinstance(source, str | Path)]


def _watch(watched: Watched, files: Sequence[Path]) -> None:
    before: Case | None = None
    for round_, _ in enumerate(_changes(files)):
        try:
            case = watched.measure()
        except QuantmedicError as error:  # half written, say: the next change may mend it
            print_error(error)
        else:
            if before is not None:
                _print_change(before, case, watched)
            before = case
            watched = watched._replace(report=replace(watched.report, open_page=False))
        if not round_:
            print_line("watching; Ctrl-C ends it", err=True)


def _changes(files: Sequence[Path]) -> Iterator[None]:
    """Once at the beginning, and again whenever a file has changed and rests."""
    seen = _stamps(files)
    yield
    while True:
        time.sleep(PAUSE)
        now = _stamps(files)
        if now == seen:
            continue
        time.sleep(PAUSE)
        if _stamps(files) == now:
            seen = now
            yield


def _stamps(files: Sequence[Path]) -> Stamps:
    return {path: stamp for file in files for path, stamp in _stamps_of(file)}


def _stamps_of(source: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    """Of a file, or of all files in a folder."""
    for path in sorted(source.rglob("*")) if source.is_dir() else [source]:
        try:
            found = path.stat()
        except OSError:  # gone meanwhile, or a module:function
            continue
        yield path, (found.st_mtime_ns, found.st_size)


def _print_change(before: Case, after: Case, watched: Watched) -> None:
    print_line("")
    print_line("since the run before:")
    found = compare(before, after, watched.judging.base)
    print_report(render_comparison(found, verbosity="quiet", color=with_color(), ascii_only=ascii_only()))
    for cause in found.causes:
        if cause.status in TOLD:
            print_line(f"  {cause.status:<6} {cause.rules[0]} {cause.cause}")
