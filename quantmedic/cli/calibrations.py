"""The command ``calibrations``: the way to calibrate that suits a float model best."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from quantmedic.api.calibration_search import search_calibrations
from quantmedic.api.options import DataOptions, MeasuringOptions
from quantmedic.api.search import write_search as write_calibrations
from quantmedic.cli.groups import Command, OptionGroup, option
from quantmedic.cli.options import (
    CONTEXT,
    JudgingOptions,
    ReportOptions,
    data_options,
    judging_options,
    measuring_options,
    printing_options,
)
from quantmedic.cli.streams import print_line, print_report
from quantmedic.cli.terminal import ascii_only, progress_bars, wrote_text
from quantmedic.engine.contract.searches import CalibrationsRecord
from quantmedic.reports.search_formats import DEFAULT_FORMATS
from quantmedic.reports.search_formats import render_search as render_calibrations
from quantmedic.reports.search_formats import search_json as calibrations_json
from quantmedic.reports.search_formats import search_markdown as calibrations_markdown

FORMATS = DEFAULT_FORMATS[CalibrationsRecord]


@dataclass(frozen=True)
class SearchOptions:
    """What is searched."""

    methods: Sequence[str] = ()


def _search_options(*, methods: str | None) -> SearchOptions:
    names = [name.strip() for name in (methods or "").split(",")]
    return SearchOptions(tuple(name for name in names if name))


search_options = OptionGroup(
    "search",
    _search_options,
    {
        "methods": option(
            "--methods",
            metavar="NAME,…",
            help="Only these calibration methods, such as min-max,entropy,percentile 99.99. [default: all]",
        ),
    },
)


_toolchain_option = option(
    "--toolchain",
    metavar="NAME",
    help="Search the settings of: ort (of ONNX models), litert (of LiteRT models), mct (of PyTorch modules). "
    "[default: the one that takes FLOAT]",
)


@click.command(cls=Command, context_settings=CONTEXT)
@click.argument("float_model", type=click.Path(path_type=Path), metavar="FLOAT")
@data_options
@search_options
@judging_options.only("toolchain").replacing(toolchain=_toolchain_option)
@measuring_options.only("threads", "timeout", "seed")
@printing_options(FORMATS).only("output", "formats")
def calibrations(
    float_model: Path,
    data: DataOptions,
    search: SearchOptions,
    judging: JudgingOptions,
    measuring: MeasuringOptions,
    report: ReportOptions,
) -> None:
    """Find the calibration that suits FLOAT best: method, weights per channel or tensor, symmetric or not.

    The settings of a toolchain are built from --representative and raced on --validation: by the metric where that is
    labelled, else by the noise at the output. One drops out only where it is proven worse. The winner's code is printed
    and run as it is printed; its choices are also printed as options of Horizon OpenExplorer, of no other toolchain.

    FLOAT is an ONNX model (quantized by ONNX Runtime), a LiteRT model (ai-edge-quantizer), or module:function that
    returns a PyTorch module (Sony MCT).

    Exit codes: 0 found, 2 could not do its job.

    \b
    Examples:
      quantmedic calibrations float.onnx -r rep.npz -v val.npz
      quantmedic calibrations float.onnx -r rep.npz -v val.npz --labels labels.npy --metric top1 -o found
      quantmedic calibrations float.tflite -r rep.npz -v val.npz --format json > calibrations.json
    """
    report.check()
    with progress_bars() as progress:
        record = search_calibrations(
            float_model, data, measuring, toolchain=judging.toolchain, methods=search.methods, progress=progress
        )
    texts = {"json": calibrations_json, "markdown": calibrations_markdown}
    printed = texts.get(report.printed_format)
    print_report(printed(record) if printed else render_calibrations(record, ascii_only=ascii_only()))
    if report.output is not None:
        files = write_calibrations(record, report.output, formats=report.formats or FORMATS)
        print_line("")
        print_line(wrote_text(files))
