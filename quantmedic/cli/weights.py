"""The command ``weights``: two checkpoints compared, tensor by tensor."""

from pathlib import Path

import click

from quantmedic.api.cases import CASE_FILE
from quantmedic.api.options import MeasuringOptions, RuleOptions, SpreadOptions, TextOptions
from quantmedic.api.weights import collect_weights
from quantmedic.cli.groups import Command
from quantmedic.cli.measuring import announce, tell_how_to_go_on
from quantmedic.cli.options import (
    CONTEXT,
    JudgingOptions,
    ReportOptions,
    judging_options,
    measuring_options,
    report_options,
    rule_options,
    spread_options,
    text_options,
)
from quantmedic.cli.reporting import open_judging, report_case
from quantmedic.cli.terminal import progress_bars
from quantmedic.collectors.measure.checkpoints import work_folder


@click.command(cls=Command, context_settings=CONTEXT)
@click.argument("float_weights", type=click.Path(path_type=Path), metavar="FLOAT")
@click.argument("quantized_weights", type=click.Path(path_type=Path), metavar="QUANT")
@measuring_options.only("threads", "device")
@spread_options.only("cluster")
@text_options
@rule_options
@judging_options
@report_options
def weights(
    float_weights: Path,
    quantized_weights: Path,
    measuring: MeasuringOptions,
    spread: SpreadOptions,
    texts: TextOptions,
    rules: RuleOptions,
    judging: JudgingOptions,
    report: ReportOptions,
) -> None:
    """Compare the weights of two checkpoints, without holding a model in memory; with --tokens, run both.

    FLOAT and QUANT are .safetensors files, folders with shards, .gguf files of llama.cpp (of split ones the first), or
    packages of Core ML (.mlpackage); QUANT as GPTQ, AWQ, compressed-tensors, torchao, ModelOpt or bitsandbytes wrote
    it, float8, NVFP4, MXFP4 to MXFP8, rounded real numbers, Q4_0 to Q8_0, Q2_K to Q6_K or IQ4 of llama.cpp, or as
    coremltools compressed it. At most 8 processor threads are used.

    With --tokens, both models predict the same texts, block by block, so that one block is in memory: perplexity,
    divergence of the predictions, and the block that makes the noise. It needs config.json beside the float weights.
    A run that was interrupted goes on behind its last block where the same command is given again.

    \b
    Examples:
      quantmedic weights Llama-3-8B Llama-3-8B-GPTQ -o report
      quantmedic weights model.safetensors model-int8.safetensors --format markdown
      quantmedic weights Llama-3-8B Llama-3-8B-Q4_K_M.gguf
      quantmedic weights float.mlpackage palettized.mlpackage
      quantmedic weights Llama-3-8B Llama-3-8B-GPTQ --tokens texts.jsonl -o report
    """
    judged_by = open_judging(rules, judging)
    assert report.output is not None
    with tell_how_to_go_on(), progress_bars() as progress:
        case = collect_weights(
            float_weights,
            quantized_weights,
            threads=measuring.threads,
            cluster=spread.cluster,
            tokens=texts.tokens,
            text_length=texts.text_length,
            device=measuring.device,
            unfinished=work_folder(report.output / CASE_FILE),
            progress=progress,
            announce=announce,
        )
    report_case(case, judged_by, report)
