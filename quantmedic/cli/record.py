"""The command ``record``: outputs of this installation, to be compared with another one."""

from pathlib import Path

import click

from quantmedic.api.options import DataOptions, MeasuringOptions
from quantmedic.api.recordings import record_pair
from quantmedic.cli.groups import Command, option
from quantmedic.cli.options import CONTEXT, data_options, measuring_options
from quantmedic.cli.streams import print_line
from quantmedic.cli.terminal import progress_bars, wrote_text
from quantmedic.cli.values import OutputFile


@click.command(cls=Command, context_settings=CONTEXT)
@click.argument("float_model", type=click.Path(path_type=Path), metavar="FLOAT")
@click.argument("quantized_model", type=click.Path(path_type=Path), metavar="QUANT")
@data_options.only("validation", "samples")
@option(
    "--output",
    "-o",
    type=OutputFile(".npz"),
    default="outputs.npz",
    show_default=True,
    metavar="FILE",
    help="Where to write them.",
)
@measuring_options.only("batch_size", "threads", "timeout", "device")
def record(
    float_model: Path, quantized_model: Path, output: Path, data: DataOptions, measuring: MeasuringOptions
) -> None:
    """Write what the quantized model computes on this installation, for another one to compare with.

    The file holds the outputs on the evaluation data, the runtime's version, the kind of processor, and how well the
    outputs agree with the float model's here. On the other installation, `diagnose` and `check` take it as
    --device-outputs, and tell which of the two is worse.

    \b
    Examples:
      quantmedic record float.onnx int8.onnx -v val.npz -o old.npz                  # with the old release
      quantmedic diagnose float.onnx int8.onnx -v val.npz --device-outputs old.npz  # with the new one
    """
    with progress_bars() as progress:
        found = record_pair(float_model, quantized_model, data, measuring, output, progress=progress)
    kept = "" if found.sqnr_db is None else f", {found.sqnr_db:.1f} dB of the float model's"
    print_line(f"{found.samples} samples by {found.runtime} on {found.processor}{kept}")
    print_line(wrote_text([(output, output.stat().st_size)]))
