"""The command ``collect``: measure two models, and keep the figures in a case file."""

from dataclasses import replace
from pathlib import Path

import click

from quantmedic.api.cases import CASE_FILE, SHARD, case_path, kept_where_there_is_room, save_case, unfinished_path
from quantmedic.api.options import CollectOptions, RuleOptions
from quantmedic.api.thresholds import rules_in_force
from quantmedic.cli.groups import Command, option
from quantmedic.cli.measuring import collect_case, unfinished_work
from quantmedic.cli.options import CONTEXT, collect_options, resume_option, rule_options
from quantmedic.cli.streams import print_line
from quantmedic.cli.terminal import size_text
from quantmedic.cli.values import OutputCase
from quantmedic.collectors.measure.slices import MIN_SAMPLES
from quantmedic.engine.output_files import remove_file


@click.command(cls=Command, context_settings=CONTEXT)
@click.argument("float_model", type=click.Path(path_type=Path), metavar="FLOAT")
@click.argument("quantized_model", type=click.Path(path_type=Path), metavar="QUANT")
@collect_options
@resume_option
@rule_options
@option(
    "--output",
    "-o",
    type=OutputCase(),
    default=CASE_FILE,
    show_default=True,
    help="Case file, or a folder for it.",
)
def collect(
    float_model: Path, quantized_model: Path, resume: bool, output: Path, options: CollectOptions, rules: RuleOptions
) -> None:
    """Measure only: write a case file that `diagnose` judges later, without the models.

    The rules decide which remedies are simulated.

    \b
    Examples:
      quantmedic collect float.onnx int8.onnx -v val.npz --shard 1/16 -o shards/1.case
      quantmedic diagnose float.onnx int8.onnx -v val.npz --shards shards      # when all 16 are there
      quantmedic diagnose shards/*.case -o report                                # or without the models
      quantmedic collect float.onnx int8.onnx -v val/ --resume      # after Ctrl-C
      quantmedic collect Llama-3-8B Llama-3-8B-GPTQ --tokens texts.jsonl -o lm.case
    """
    path = case_path(output)
    options = replace(options, saving=unfinished_work(path, resume))
    case = collect_case(float_model, quantized_model, options, rules_in_force(rules))
    with kept_where_there_is_room(case):
        save_case(case, path)
    remove_file(unfinished_path(path))
    print_line(f"wrote {path} ({size_text(path.stat().st_size)})")
    if not case.statistics and SHARD in case.record.run:
        print_line(f"it holds no samples: a slice has at least {MIN_SAMPLES}, and there are fewer slices than shards")
