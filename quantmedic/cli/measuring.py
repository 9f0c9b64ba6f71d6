"""Models measured from the command line: pairs, failed quantizations, embedded patients; Ctrl-C keeps what is done."""

import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from quantmedic.api.cases import CASE_FILE, kept_where_there_is_room, unfinished_path, work_folder
from quantmedic.api.collect import collect_pair
from quantmedic.api.failed import collect_failure
from quantmedic.api.judging import judge
from quantmedic.api.options import CollectOptions, RuleOptions
from quantmedic.cli.groups import Command, option
from quantmedic.cli.options import PROOF, JudgingOptions, ReportOptions, collect_options, refuse_options, report_options
from quantmedic.cli.reporting import Judging, end_if_interrupted, open_judging, report_case
from quantmedic.cli.streams import print_line
from quantmedic.cli.terminal import interrupted_status, print_paste, progress_bars
from quantmedic.collectors.case_file.archive import read_case
from quantmedic.collectors.measure.collect_pair import Interrupted
from quantmedic.demo import language_patient, patient
from quantmedic.demo.example import FOLDER as EXAMPLE
from quantmedic.demo.example import write_example
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.errors import OutputError, QuantmedicError
from quantmedic.engine.output_files import remove_file
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.reports.sections.prescription_run import FILE as RUN_FILE
from quantmedic.reports.sections.prescription_run import NEW_CALIBRATION, calibration_in_words, can_run
from quantmedic.reports.terminal.fixed import calibration_lines, fixed_lines


def keeping_unfinished(options: CollectOptions, output: Path, resume: bool) -> CollectOptions:
    """Unfinished work is kept where the case is to stand, but beside a finished one, which stays until then."""
    beside = unfinished_path(output)
    in_its_place = not (beside.exists() if resume else _is_finished(output))
    return replace(options, checkpoint=output if in_its_place else beside, resume=resume)


def _is_finished(path: Path) -> bool:
    try:
        return all(dataset.complete for dataset in read_case(path).record.datasets.values())
    except QuantmedicError:  # there is none, or nothing that is worth keeping
        return False


def collect_case(float_model: Path, quantized_model: Path, options: CollectOptions, base: RuleBase) -> Case:
    """A measured case; Ctrl-C leaves what was measured in the checkpoint, and exit code 130."""
    checkpoint = options.checkpoint
    try:
        with progress_bars() as progress:
            announce = partial(print_line, err=True)
            return collect_pair(float_model, quantized_model, options, rules=base, progress=progress, announce=announce)
    except Interrupted as interrupt:
        if checkpoint is None:
            raise
        seen = " and ".join(f"{d.seen} {role} samples" for role, d in interrupt.case.record.datasets.items())
        print_line(f"interrupted: {checkpoint} holds what {seen} showed", err=True)
        print_line(f"help: add --resume to continue, or judge it: quantmedic diagnose {checkpoint}", err=True)
        raise click.exceptions.Exit(interrupted_status()) from None
    except KeyboardInterrupt:
        if checkpoint is None:
            raise
        work = work_folder(Path(checkpoint))
        if work.is_dir():
            print_line(f"interrupted: {work} holds the blocks that are finished", err=True)
            print_line("help: the same command goes on from there", err=True)
        elif Path(checkpoint).exists():
            raise
        else:
            print_line("interrupted before a sample was measured: there is nothing to resume", err=True)
        raise click.exceptions.Exit(interrupted_status()) from None


@click.command(cls=Command)
@option("--healthy", is_flag=True, title="Choice", help="Show the healthy twin instead of the patient.")
@option("--detection", is_flag=True, title="Choice", help="Show a detector: boxes beside scores in one output.")
@option("--language-model", is_flag=True, help="Show a language model, run on texts; needs quantmedic[language].")
@collect_options.only("samples", *PROOF, "budget")
@report_options.without("formats")
@click.pass_context
def demo(
    context: click.Context,
    /,
    healthy: bool,
    detection: bool,
    language_model: bool,
    options: CollectOptions,
    report: ReportOptions,
) -> None:
    """Diagnose the embedded patient: a classifier with a calibration mistake, a detector, or a language model.

    \b
    Examples:
      quantmedic demo
      quantmedic demo --prove
      quantmedic demo --detection
      quantmedic demo --language-model
      quantmedic demo --healthy -o healthy-report
    """
    judging = open_judging(RuleOptions(), JudgingOptions())
    if language_model:
        refuse_options(context, {"detection", "samples", "budget", *PROOF}, "cannot be used with --language-model")
        _diagnose_language_model(healthy, judging, report)
        return
    (float_model, quantized_model), embedded = patient(healthy=healthy, detection=detection)
    options = replace(
        options,
        representative=embedded["representative"],
        validation=embedded["validation"],
        preprocessing=embedded["preprocessing"],
        metric=embedded.get("metric", "top1"),
    )
    diagnosis = _diagnose(float_model, quantized_model, options, judging, report)
    if report.output is not None and can_run(diagnosis):
        run, again, fix = write_example(report.output, float_model, quantized_model, embedded)
        print_line(f"in {report.output / EXAMPLE}, where deployed.onnx is the model diagnosed above:")
        for said, command in (("run the prescription", run), ("diagnose what it made", again), ("or do both", fix)):
            print_line(f"  # {said}")
            print_paste(command)


def _diagnose_language_model(healthy: bool, judging: Judging, report: ReportOptions) -> None:
    floats, quantized, texts = language_patient(healthy=healthy)
    with progress_bars() as progress:
        case = collect_pair(floats, quantized, CollectOptions(tokens=texts), progress=progress)
    report_case(case, judging, report)


def diagnose_pair(
    float_model: Path,
    quantized_model: Path,
    options: CollectOptions,
    judging: Judging,
    report: ReportOptions,
    *,
    resume: bool,
) -> None:
    """Measure two models, judge them, write the report, and say how its prescription is run."""
    assert report.output is not None
    options = keeping_unfinished(options, report.output / CASE_FILE, resume)
    diagnosis = _diagnose(float_model, quantized_model, options, judging, report)
    if (report.output / RUN_FILE).is_file() and can_run(diagnosis):
        _print_run(diagnosis, float_model, report.output, options)


def _print_run(diagnosis: Diagnosis, float_model: Path, folder: Path, options: CollectOptions) -> None:
    """What runs the prescription, from where the user is; data that are at fault calibrate nothing again."""
    run, made = shlex.join(map(str, [sys.executable, folder / RUN_FILE, float_model])), folder / "prescribed.onnx"
    assert diagnosis.prescription is not None  # which runs
    if calibration_in_words(diagnosis.prescription) == NEW_CALIBRATION:
        print_line(f"run the prescription: {run} PROPER_DATA {shlex.quote(str(made))}")
        print_line(f"  PROPER_DATA: {NEW_CALIBRATION}; not {options.representative}")
    else:
        data = shlex.join(map(str, [options.representative, made]))
        print_line(f"run the prescription on these data: {run} {data}")
    print_line(f"  then diagnose {made} with the same arguments")


def diagnose_failed(float_model: Path, options: CollectOptions, judging: Judging, report: ReportOptions) -> None:
    """Say why there is no quantized model."""
    with progress_bars() as progress:
        case = collect_failure(float_model, options, judging.base, progress)
    report_case(case, judging, report)


def _diagnose(
    float_model: Path, quantized_model: Path, options: CollectOptions, judging: Judging, report: ReportOptions
) -> Diagnosis:
    """Collect, judge, write; then the same of the repaired model, if one was asked for."""
    prove = "first" if options.prove is None else options.prove
    options = replace(options, toolchain=judging.toolchain, prove=prove)
    case = collect_case(float_model, quantized_model, options, judging.base)
    with kept_where_there_is_room(case):
        diagnosis = report_case(case, judging, report)
    if options.checkpoint is not None:
        assert report.output is not None
        remove_file(unfinished_path(report.output / CASE_FILE))
    end_if_interrupted(case)
    if options.write_fixed is None:
        return diagnosis
    fixed = Path(options.write_fixed)
    if diagnosis.verdict == "healthy" and diagnosis.prescription is None:
        print_line(f"there is nothing to repair, so {fixed} was not written")
        return diagnosis
    if diagnosis.proof is None or (diagnosis.proof.best is None and not diagnosis.proof.chain):
        why = case.record.proof.unwritten if case.record.proof is not None else "no remedy was tried"
        raise OutputError(
            f"{why}, so {fixed} was not written",
            help="the report lists what was tried; more samples or a larger --budget may decide",
        )
    _compare_fixed(diagnosis, float_model, fixed, options, judging.base)
    return diagnosis


def _compare_fixed(before: Diagnosis, float_model: Path, fixed: Path, options: CollectOptions, base: RuleBase) -> None:
    """Diagnose the repaired model as the other one was, and print both."""
    own = replace(options.for_repaired(), profile=False)
    after = judge(collect_case(float_model, fixed, own, base), base)
    for line in (*fixed_lines(before, after, fixed.name), *calibration_lines(before)):
        print_line(line)
