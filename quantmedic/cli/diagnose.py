"""The command ``diagnose``: measure two models, or open a case, judge it, and write the report."""

from collections.abc import Sequence
from pathlib import Path

import click

from quantmedic.api.cases import is_case, load_case
from quantmedic.api.options import CollectOptions, RuleOptions, options_of_failure
from quantmedic.cli.groups import Command
from quantmedic.cli.options import (
    JudgingOptions,
    ReportOptions,
    collect_options,
    judging_options,
    refuse_options,
    report_options,
    resume_option,
    rule_options,
)
from quantmedic.cli.reporting import open_judging, report_case


@click.command(cls=Command)
@click.argument(
    "models", nargs=-1, required=True, metavar="FLOAT QUANT | FLOAT --log FILE | CASE…", type=click.Path(path_type=Path)
)
@collect_options
@resume_option
@rule_options
@judging_options
@report_options
@click.pass_context
def diagnose(
    context: click.Context,
    /,
    models: Sequence[Path],
    resume: bool,
    options: CollectOptions,
    rules: RuleOptions,
    judging: JudgingOptions,
    report: ReportOptions,
) -> None:
    """Measure both models on the data, judge the causes, write a report.

    A CASE that was measured before is judged again: a case file or the folder of a report. The exit code is 0
    whatever the verdict; quantmedic check fails where a model got worse.

    \b
    Examples:
      quantmedic diagnose float.onnx int8.onnx -r rep.npz -v val.npz -o report
      quantmedic diagnose Llama-3-8B Llama-3-8B-GPTQ --tokens texts.jsonl  # or --weights-only
      quantmedic diagnose float.onnx --log quantize.log -r calib/          # no model came out
      quantmedic diagnose report --threshold activation_zscore=8 -o again
    """
    if all(map(is_case, models)):
        refuse_options(context, {*collect_options, "resume"}, "is about models; a stored case is measured already")
        report_case(load_case(*models), open_judging(rules, judging), report)
        return
    if len(models) > 2:
        raise click.UsageError("give the float model and the quantized one, or cases")
    from quantmedic.cli.measuring import diagnose_failed, diagnose_pair  # slow to import, and a case needs neither

    if len(models) == 1:
        _refuse_without_model(context, models[0], options)
        diagnose_failed(models[0], options, open_judging(rules, judging), report)
        return
    diagnose_pair(models[0], models[1], options, open_judging(rules, judging), report, resume=resume)


def _refuse_without_model(context: click.Context, path: Path, options: CollectOptions) -> None:
    """Refuse what is no case without a log, and options that need a quantized model."""
    if not options.toolchain_logs and options.mct_log is None:
        if path.is_dir():
            load_case(path)  # which says that there is none in the folder
        raise click.UsageError(
            "there is neither QUANT nor a log, and this is no case: give the quantized model, or, where quantization "
            "failed, what the tool printed with --log FILE"
        )
    names = {*collect_options, "resume", "previous"}
    refuse_options(context, names - options_of_failure(), "cannot be used without QUANT")
