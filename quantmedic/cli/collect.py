"""The command ``collect``: measure two models, and keep the figures in a case file."""

from pathlib import Path

import click

from quantmedic.api.cases import case_path, kept_where_there_is_room, save_case, unfinished_path
from quantmedic.api.collect import record_pair
from quantmedic.api.options import CollectOptions, RuleOptions
from quantmedic.api.rulebase import rules_in_force
from quantmedic.cli.groups import Command, option
from quantmedic.cli.measuring import collect_case, keeping_unfinished
from quantmedic.cli.options import PROOF, case_option, collect_options, refuse_options, resume_option, rule_options
from quantmedic.cli.streams import print_line
from quantmedic.cli.terminal import print_wrote, progress_bars, size_text
from quantmedic.cli.values import Output
from quantmedic.engine.output_files import remove_file

#: All that is measured; nothing is proven here.
measured_options = collect_options.without(*PROOF, "budget", "weights_only")
#: Options of a measurement of outputs alone.
_OF_OUTPUTS = {"validation", "samples", "preprocessing", "batch_size", "threads", "timeout", "device"}


@click.command(cls=Command)
@click.argument("float_model", type=click.Path(path_type=Path), metavar="FLOAT")
@click.argument("quantized_model", type=click.Path(path_type=Path), metavar="QUANT")
@measured_options
@resume_option
@rule_options.only("folders")
@case_option
@option(
    "--outputs-only",
    type=Output(".npz"),
    metavar="FILE",
    title="Output",
    help="Write instead what the quantized model computes on this installation; another one compares it with its own "
    "by --device-outputs, and tells which is worse.",
)
@click.pass_context
def collect(
    context: click.Context,
    /,
    float_model: Path,
    quantized_model: Path,
    resume: bool,
    output: Path,
    outputs_only: Path | None,
    options: CollectOptions,
    rules: RuleOptions,
) -> None:
    """Measure only: write a case file that `diagnose` judges later, without the models.

    \b
    Examples:
      quantmedic collect float.onnx int8.onnx -v part1.npz -o parts/1.case
      quantmedic diagnose parts/*.case -o report        # of all parts of the data, without the models
      quantmedic collect float.onnx int8.onnx -v val/ --resume      # after Ctrl-C
      quantmedic collect Llama-3-8B Llama-3-8B-GPTQ --tokens texts.jsonl -o lm.case
      quantmedic collect float.onnx int8.onnx -v val.npz --outputs-only old.npz  # by the old release
    """
    if outputs_only is not None:
        refuse_options(context, {*measured_options, "resume", "folders", "output"} - _OF_OUTPUTS, "records no outputs")
        _record(float_model, quantized_model, options, outputs_only)
        return
    path = case_path(output)
    options = keeping_unfinished(options, path, resume)
    case = collect_case(float_model, quantized_model, options, rules_in_force(rules))
    with kept_where_there_is_room(case):
        save_case(case, path)
    remove_file(unfinished_path(path))
    print_line(f"wrote {path} ({size_text(path.stat().st_size)})")


def _record(float_model: Path, quantized_model: Path, options: CollectOptions, output: Path) -> None:
    """Write the outputs on the evaluation data, the runtime, the processor, and how well they agree."""
    with progress_bars() as progress:
        found = record_pair(float_model, quantized_model, options, output, progress=progress)
    kept = "" if found.sqnr_db is None else f", {found.sqnr_db:.1f} dB of the float model's"
    print_line(f"{found.samples} samples by {found.runtime} on {found.processor}{kept}")
    print_wrote([(output, output.stat().st_size)])
