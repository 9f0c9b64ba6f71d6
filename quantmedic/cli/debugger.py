"""The command ``debugger``: the table of LiteRT's QuantizationDebugger."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from quantmedic.cli.options import CONTEXT, parse_preprocessing_options, preprocessing_options
from quantmedic.cli.terminal import ascii_only, interrupted_by_termination, progress_bars, wrote_text


@click.command(context_settings=CONTEXT)
@click.argument("float_model", type=click.Path(path_type=Path), metavar="FLOAT")
@click.argument("quantized_model", type=click.Path(path_type=Path), metavar="QUANT")
@click.option("--data", "-d", metavar="DATA", help="Samples: .npz, folder, or module:function.")
@click.option("--output", "-o", type=click.Path(path_type=Path), metavar="FILE", help="Write the table to FILE as CSV.")
@click.option("--layer-metric", "layer_metrics", multiple=True, metavar="NAME=module:function", help="Of a difference.")
@click.option("--pair-metric", "pair_metrics", multiple=True, metavar="NAME=module:function", help="Of two tensors.")
@click.option("--output-metric", "output_metrics", multiple=True, metavar="NAME=module:function", help="Of outputs.")
@preprocessing_options
@click.option("--samples", type=click.IntRange(1), help="At most this many samples. [default: all]")
@click.option("--threads", type=click.IntRange(1), help="Processor threads. [default: all cores]")
@click.option("--verbose", is_flag=True, help="Print all layers.")
def debugger(float_model: Path, quantized_model: Path, output: Path | None, verbose: bool, **options: Any) -> None:
    """Measure each quantized operator alone, as LiteRT's QuantizationDebugger does.

    The float operator and the quantized one are fed with what the deployed model computed before them. Functions of
    your own are called for every sample: of the difference quantized - float (--layer-metric), of
    (float, codes, scale, zero_point) (--pair-metric), of (float_outputs, quantized_outputs) (--output-metric).

    \b
    Examples:
      quantmedic debugger float.onnx int8.onnx --data val.npz -o layers.csv
      quantmedic debugger float.tflite int8.tflite --data val.npz --samples 100
      quantmedic debugger float.onnx int8.onnx --data val.npz --layer-metric mae=mine:mean_abs
    """
    import quantmedic
    from quantmedic.api.debugging import write_layers
    from quantmedic.reports.terminal.debugger import render_debugger

    prepared = parse_preprocessing_options(options).get("validation")
    for kind in ("layer", "pair", "output"):
        options[f"{kind}_metrics"] = _functions(options[f"{kind}_metrics"], f"--{kind}-metric")
    with progress_bars() as progress, interrupted_by_termination():
        record = quantmedic.debugger(float_model, quantized_model, preprocessing=prepared, progress=progress, **options)
    click.echo(render_debugger(record, verbose=verbose, ascii_only=ascii_only()), nl=False)
    if output is not None:
        written = write_layers(record, output)
        click.echo(wrote_text([(written.path, written.size)]))


def _functions(texts: Sequence[str], option: str) -> Mapping[str, str]:
    """``NAME=module:function`` by name."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, function = text.partition("=")
        if not (name and equals and function):
            raise click.BadParameter(f"{text!r} is not NAME=module:function", param_hint=option)
        if name in found:
            raise click.BadParameter(f"{name!r} is given twice", param_hint=option)
        found[name] = function
    return found
