"""The command ``sensitivity``: what each layer does to the output."""

from pathlib import Path

import click

from quantmedic.api.layer_searches import SensitivityInterrupted, measure_sensitivity
from quantmedic.api.options import CheckpointOptions, DataOptions, MeasuringOptions, SpreadOptions
from quantmedic.api.search import write_search as write_sensitivity
from quantmedic.cli.groups import Command, option
from quantmedic.cli.options import (
    CONTEXT,
    ReportOptions,
    data_options,
    measuring_options,
    report_options,
    resume_option,
    spread_options,
)
from quantmedic.cli.streams import print_line, print_report
from quantmedic.cli.terminal import ascii_only, interrupted_status, progress_bars, wrote_text
from quantmedic.engine.contract.searches import MODES
from quantmedic.reports.search_formats import render_search as render_sensitivity


@click.command(cls=Command, context_settings=CONTEXT)
@click.argument("float_model", type=click.Path(path_type=Path), metavar="FLOAT")
@click.argument("quantized_model", type=click.Path(path_type=Path), metavar="QUANT")
@data_options
@option(
    "--runs",
    "--mode",
    "runs",
    type=click.Choice([*MODES, "all"]),
    default="all",
    show_default=True,
    help="One layer quantized, all but one, or all layers up to one.",
)
@measuring_options.only("batch_size", "threads", "timeout", "device", "seed")
@spread_options.only("cluster")
@resume_option
@report_options.only("output", "verbose")
def sensitivity(
    float_model: Path,
    quantized_model: Path,
    runs: str,
    resume: bool,
    data: DataOptions,
    measuring: MeasuringOptions,
    spread: SpreadOptions,
    report: ReportOptions,
) -> None:
    """Measure what each layer does to the output: quantized alone, left out alone, and one after another.

    This shows where noise arises, not why: `diagnose` names causes. Without --samples and --batch-size, 64 samples are
    read, 16 per run. Without --validation, the samples are those of --representative.

    \b
    Examples:
      quantmedic sensitivity float.onnx int8.onnx -v val.npz -o report
      quantmedic sensitivity float.onnx int8.onnx -v val.npz --runs one --samples 256
      quantmedic sensitivity float.onnx int8.onnx -v val.npz --resume      # after Ctrl-C
    """
    assert report.output is not None
    checkpoint = report.output / "sensitivity.json"
    modes = [mode for mode in MODES if runs in (mode, "all")]
    try:
        with progress_bars() as progress:
            record = measure_sensitivity(
                float_model,
                quantized_model,
                data,
                measuring,
                CheckpointOptions(checkpoint, resume),
                spread.cluster,
                modes=modes,
                progress=progress,
            )
    except SensitivityInterrupted as interrupt:
        record = interrupt.record
        print_line(f"interrupted: {checkpoint} holds {len(record.runs)} of {len(record.planned)} runs", err=True)
        print_line("help: add --resume to continue", err=True)
        raise click.exceptions.Exit(interrupted_status()) from None
    files = write_sensitivity(record, report.output)
    print_report(render_sensitivity(record, verbose=report.verbose, ascii_only=ascii_only()))
    print_line("")
    print_line(wrote_text(files))
