"""The command ``fallback``: a small set of layers that leave int8."""

from pathlib import Path

import click

from quantmedic.api.layer_searches import GoalOptions, search_fallback
from quantmedic.api.options import DataOptions, MeasuringOptions, SpreadOptions
from quantmedic.api.search import write_search as write_fallback
from quantmedic.cli.groups import Command, OptionGroup
from quantmedic.cli.limits import limit_options
from quantmedic.cli.options import (
    CONTEXT,
    JudgingOptions,
    ReportOptions,
    data_options,
    judging_options,
    measuring_options,
    printing_options,
    spread_options,
)
from quantmedic.cli.streams import print_line, print_report
from quantmedic.cli.terminal import ascii_only, interrupted_status, progress_bars, wrote_text
from quantmedic.reports.search_formats import render_search as render_fallback
from quantmedic.reports.search_formats import search_json as fallback_json

_limits = limit_options.only("max_drop", "min_sqnr_db")
goal_options = OptionGroup("goal", GoalOptions, _limits.options)


@click.command(cls=Command, context_settings=CONTEXT)
@click.argument("float_model", type=click.Path(path_type=Path), metavar="FLOAT")
@click.argument("quantized_model", type=click.Path(path_type=Path), metavar="QUANT")
@data_options
@goal_options
@judging_options.only("toolchain")
@measuring_options.only("threads", "timeout", "device", "seed")
@spread_options.only("cluster")
@printing_options(["text", "json"]).only("output", "formats")
def fallback(
    float_model: Path,
    quantized_model: Path,
    data: DataOptions,
    goal: GoalOptions,
    judging: JudgingOptions,
    measuring: MeasuringOptions,
    spread: SpreadOptions,
    report: ReportOptions,
) -> None:
    """Find a small set of layers that leave int8 to meet a goal, and check it on the model itself.

    The set is printed as a configuration of the toolchain in use, its settings kept; --output also writes it.

    Without --samples, an evaluation reads 64 to 256 samples, by its cost. Without --validation, the samples are those
    of --representative.

    Exit codes: 0 found, 1 no set meets the goal, 2 could not do its job, 130 Ctrl-C: prints the best set so far.

    \b
    Examples:
      quantmedic fallback float.onnx int8.onnx -v val.npz --min-sqnr 30
      quantmedic fallback float.onnx int8.onnx -v val.npz --labels labels.npy --max-drop 1.0
      quantmedic fallback float.onnx int8.onnx -v val.npz --max-drop 0.5 --format json > fallback.json
      quantmedic fallback float.tflite int8.tflite -v val.npz --min-sqnr 25 --toolchain tflite
    """
    report.check()
    with progress_bars() as progress:
        record = search_fallback(
            float_model,
            quantized_model,
            data,
            measuring,
            goal,
            spread.cluster,
            toolchain=judging.toolchain,
            progress=progress,
        )
    is_json = report.printed_format == "json"
    print_report(fallback_json(record) if is_json else render_fallback(record, ascii_only=ascii_only()))
    if report.output is not None:
        files = write_fallback(record, report.output, formats=report.formats or ("text", "json"))
        print_line("")
        print_line(wrote_text(files))
    if record.interrupted:
        print_line("interrupted", err=True)
        raise click.exceptions.Exit(interrupted_status())
    raise click.exceptions.Exit(0 if record.verdict in ("met", "unsure") else 1)
