"""The command ``debugger``: the table of LiteRT's QuantizationDebugger."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from quantmedic.api.layer_searches import SUSPECT, DebuggerMetrics, debug_pair
from quantmedic.api.options import DataOptions, MeasuringOptions, RuleOptions
from quantmedic.api.search import write_layers
from quantmedic.api.search import write_search as write_report
from quantmedic.api.thresholds import rules_in_force
from quantmedic.cli.groups import Command, OptionGroup, option
from quantmedic.cli.options import CONTEXT, data_options, measuring_options, rule_options
from quantmedic.cli.streams import print_line, print_report
from quantmedic.cli.terminal import ascii_only, progress_bars, wrote_text
from quantmedic.cli.values import OutputFile
from quantmedic.reports.search_formats import render_search as render_debugger


def _metrics(
    *, layer_metrics: Sequence[str], pair_metrics: Sequence[str], output_metrics: Sequence[str]
) -> DebuggerMetrics:
    return DebuggerMetrics(
        _parse_functions(layer_metrics, "--layer-metric"),
        _parse_functions(pair_metrics, "--pair-metric"),
        _parse_functions(output_metrics, "--output-metric"),
    )


def _parse_functions(texts: Sequence[str], option: str) -> Mapping[str, str]:
    """``NAME=module:function`` by name."""
    functions: dict[str, str] = {}
    for text in texts:
        name, equals, function = text.partition("=")
        if not (name and equals and function):
            raise click.BadParameter(f"{text!r} is not NAME=module:function", param_hint=option)
        if name in functions:
            raise click.BadParameter(f"{name!r} is given twice", param_hint=option)
        functions[name] = function
    return functions


_FUNCTION = "NAME=module:function"
metric_options = OptionGroup(
    "metrics",
    _metrics,
    {
        "layer_metrics": option(
            "--layer-metric", "layer_metrics", multiple=True, metavar=_FUNCTION, help="Of a difference."
        ),
        "pair_metrics": option(
            "--pair-metric", "pair_metrics", multiple=True, metavar=_FUNCTION, help="Of two tensors."
        ),
        "output_metrics": option(
            "--output-metric", "output_metrics", multiple=True, metavar=_FUNCTION, help="Of outputs."
        ),
    },
)
#: ``--data`` is what LiteRT's users know ``--validation`` as.
sample_options = data_options.replacing(
    validation=option(
        "--validation",
        "-v",
        "--data",
        "-d",
        "validation",
        metavar="DATA",
        title="Data",
        help="Evaluation data: .npz, folder, or module:function.",
    )
)


def _thresholds(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """A number alone is the threshold of suspicion."""
    return tuple(text if "=" in text else f"{SUSPECT}={_steps(text)}" for text in given)


def _steps(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is no number; write an error in steps, such as 0.5, or NAME=VALUE "
            "(quantmedic explain --list thresholds lists the names)"
        ) from error


suspect_options = rule_options.only("folders", "thresholds").replacing(
    thresholds=option(
        "--threshold",
        "thresholds",
        multiple=True,
        callback=_thresholds,
        metavar="STEPS|NAME=VALUE",
        help="Override a threshold; repeat.",
    )
)


@click.command(cls=Command, context_settings=CONTEXT)
@click.argument("float_model", type=click.Path(path_type=Path), metavar="FLOAT")
@click.argument("quantized_model", type=click.Path(path_type=Path), metavar="QUANT")
@sample_options
@option("--output", "-o", type=OutputFile(), metavar="FILE", help="Write the table to FILE as CSV.")
@option(
    "--pages",
    "folder",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Write page, bar charts, table and denylist there.",
)
@option(
    "--denylist",
    "denylists",
    multiple=True,
    metavar="NAMES",
    help="Evaluate with these layers in float; repeat.",
)
@metric_options
@measuring_options.only("threads", "timeout")
@suspect_options
@option("--verbose", is_flag=True, help="Print all layers and findings.")
def debugger(
    float_model: Path,
    quantized_model: Path,
    output: Path | None,
    folder: Path | None,
    denylists: tuple[str, ...],
    verbose: bool,
    data: DataOptions,
    metrics: DebuggerMetrics,
    measuring: MeasuringOptions,
    rules: RuleOptions,
) -> None:
    """Measure each quantized operator alone, as LiteRT's QuantizationDebugger does.

    The float operator and the quantized one are fed with what the deployed model computed before them. Functions of
    your own are called for every sample: of the difference quantized - float (--layer-metric), of
    (float, codes, scale, zero_point) (--pair-metric), of (float_outputs, quantized_outputs) (--output-metric).

    A layer is suspected above 0.7 steps; --threshold 0.5 sets another limit.

    A denylist is names of tensors, `suspected`, `first` and `op:TYPE`, separated by commas, or @FILE; all keep the
    ranges of the quantized model. With labels, --metric judges them.

    Without --validation, the samples are those of --representative.

    \b
    Examples:
      quantmedic debugger float.onnx int8.onnx -v val.npz -o layers.csv
      quantmedic debugger float.tflite int8.tflite -v val.npz --samples 100 --pages debugger
      quantmedic debugger float.tflite int8.tflite -v val.npz --threshold 0.5
      quantmedic debugger float.onnx int8.onnx -v val.npz --denylist suspected --denylist suspected,first
      quantmedic debugger float.onnx int8.onnx -v val.npz --layer-metric mae=mine:mean_abs
    """
    base = rules_in_force(rules)
    with progress_bars() as progress:
        record = debug_pair(
            float_model, quantized_model, data, metrics, measuring, base, denylists=denylists, progress=progress
        )
    print_report(render_debugger(record, verbose=verbose, ascii_only=ascii_only()))
    files = [] if output is None else [write_layers(record, output)]
    files += [] if folder is None else write_report(record, folder)
    if files:
        print_line(wrote_text([(file.path, file.size) for file in files]))
