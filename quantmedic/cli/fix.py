"""The command ``fix``: a repaired model that measures better, or the reason why there is none."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from quantmedic.api.fix import Fixed, fix_pair
from quantmedic.api.language_models import refuse_checkpoints
from quantmedic.api.options import CollectOptions
from quantmedic.cli.groups import Command, option
from quantmedic.cli.options import DATA, TOOLCHAIN, JudgingOptions, collect_options, judging_options
from quantmedic.cli.streams import print_line
from quantmedic.cli.terminal import progress_bars
from quantmedic.cli.values import FOLDER, Output
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.terminal.fixed import calibration_lines, fixed_lines
from quantmedic.reports.text import visible


def _refuse_checkpoint(context: click.Context, parameter: click.Parameter, model: Path) -> Path:
    """Before the output is looked at, whose name can be right for no checkpoint."""
    refuse_checkpoints(model)
    return model


#: What is measured before and after the repair.
measured_options = collect_options.only(*DATA, "threads", "timeout", "device", *TOOLCHAIN, "budget")


@click.command(cls=Command)
@click.argument("float_model", type=click.Path(path_type=Path), metavar="FLOAT")
@click.argument(
    "quantized_model",
    type=click.Path(path_type=Path),
    metavar="QUANT",
    is_eager=True,
    callback=_refuse_checkpoint,
)
@measured_options
@option(
    "-o",
    "--output",
    required=True,
    type=Output(".onnx", ".tflite", ".xml"),
    metavar="FILE",
    title="Output",
    help="Where to write the repaired model; nothing is written unless it measures better.",
)
@option("--report", type=FOLDER, metavar="FOLDER", title="Output", help="Reports before and after.")
@judging_options.only("toolchain")
def fix(
    float_model: Path,
    quantized_model: Path,
    options: CollectOptions,
    output: Path,
    report: Path | None,
    judging: JudgingOptions,
) -> None:
    """Diagnose, carry out the prescription, measure what comes out, and write it if it is better.

    The float model is quantized anew by its toolchain as the prescription says; where that cannot be, the quantized
    model itself is edited. --budget limits the time for trials.

    Exit codes: 0 written, or nothing to repair; 1 nothing better was found, or what is better is still degraded; 2
    could not do its job.

    \b
    Examples:
      quantmedic fix float.onnx int8.onnx -r rep.npz -v val.npz -o fixed.onnx
      quantmedic fix float.tflite int8.tflite -r rep.npz -v val.npz -o fixed.tflite --report repair
    """
    options = replace(options, prove=options.prove or True, toolchain=judging.toolchain)
    with progress_bars() as progress:
        found = fix_pair(
            float_model,
            quantized_model,
            output,
            options,
            report=report,
            progress=progress,
        )
    for line in result_lines(found, output):
        print_line(line)
    if report is not None:
        print_line(f"reports: {report}")
    raise click.exceptions.Exit(0 if (found.refused is None and not found.is_still_degraded) or found.needless else 1)


def _next_step(before: Diagnosis) -> str:
    """What leads where nothing can be compared, since no trial decides then; else more of what trials need."""
    first = next((cause for cause in before.causes if cause.remedies), None)
    if before.verdict == "not-comparable" and first is not None:
        return visible(f"{first.message}: {first.remedies[0].title} ({first.cause})", 600)
    return "the report says what was tried (--report FOLDER); more samples or a larger --budget may decide"


def result_lines(found: Fixed, output: Path) -> Iterator[str]:
    if found.after is not None:
        yield from fixed_lines(found.before, found.after, output.name)
        yield from calibration_lines(found.before)
    if found.refused is not None:
        yield f"nothing was written: {visible(found.refused, 600)}"
        if not found.needless:
            yield f"help: {_next_step(found.before)}"
    else:
        steps = found.before.prescription.steps if found.before.prescription is not None else ()
        done = ", ".join(visible(step.title) for step in steps)
        how = "by its toolchain, as the prescription says" if found.grade == "executed" else "by an edit of its copy"
        yield f"wrote {output}: made {how}{f' ({done})' if done else ''}"
        if found.is_still_degraded:
            yield (
                "better, but still degraded: more time may find more (--budget 10m), and quantmedic search fallback "
                "names layers that have to stay in float"
            )
