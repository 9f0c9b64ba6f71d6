"""The command ``check``: a policy applied to two models or to a stored case."""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import click
from pydantic import ValidationError

from quantmedic.api.cases import CASE_FILE, kept_where_there_is_room, load_case, unfinished_path
from quantmedic.api.checks import (
    case_baseline,
    load_baseline,
    open_baseline,
    policy_in_force,
    prune,
    rules_of,
    write_baseline,
)
from quantmedic.api.checks import check as check_case
from quantmedic.api.judging import Diagnosis, inspect, write_report
from quantmedic.api.options import MAX_DROP, MIN_SQNR, CollectOptions, Option
from quantmedic.api.rulebase import load_manuals
from quantmedic.cli.groups import Command, declared_group, option
from quantmedic.cli.options import (
    DATA,
    RUNNING,
    TOOLCHAIN,
    ReportOptions,
    collect_options,
    printing_options,
    refuse_options,
    resume_option,
)
from quantmedic.cli.reporting import end_if_interrupted, print_warnings
from quantmedic.cli.streams import print_command, print_format, print_line, print_report
from quantmedic.cli.terminal import ascii_only, print_wrote, with_color
from quantmedic.engine.case.records import Case
from quantmedic.engine.gate.policy import AGREEMENT, KL, SAME_TOP, SQNR, Budget, PolicyFile
from quantmedic.engine.output_files import remove_file
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.reports.machines.github import annotations, append_summary, job_summary
from quantmedic.reports.machines.json import render_json
from quantmedic.reports.machines.junit import render_junit
from quantmedic.reports.machines.metrics import render_metrics
from quantmedic.reports.machines.sarif import render_sarif
from quantmedic.reports.terminal.check import render_check

FORMATS = ("html", "markdown", "json", "png", "sarif", "junit", "metrics")
DEFAULT_FORMATS = tuple(name for name in FORMATS if name not in ("png", "metrics"))
#: Formats that are files alone.
_UNPRINTABLE = ("html", "png")
#: Options of a measurement that need no data.
_STATIC = {"toolchain_logs", "settings_files", "threads"}


@dataclass(frozen=True)
class Limits:
    """Bounds of the command line, which hold beside those of a policy; each None where it was not given."""

    max_drop: float | None = MAX_DROP.field()
    min_agreement: float | None = Option(
        "Least share of samples with the float model's class, such as 0.95.",
        takes="SHARE",
        kind="share",
    ).field()
    min_sqnr_db: float | None = MIN_SQNR.field()
    max_kl: float | None = Option(
        "Most divergence of a language model per token; needs --tokens.",
        takes="NATS",
        kind="at least 0.0",
        daily=True,
    ).field()
    min_same_top: float | None = Option(
        "Least share of tokens that both predict first, such as 0.9; needs --tokens.",
        takes="SHARE",
        kind="share",
        daily=True,
    ).field()

    def added_to(self, file: PolicyFile, metric: str | None) -> PolicyFile:
        """A policy with these limits as further budgets.

        Args:
            file: The policy in force.
            metric: The task metric that was measured; None where none was, which leaves its limit not judged.

        Raises:
            UsageError: A limit says nothing about this metric.
        """
        bounds = (
            (metric or "top1", "max_drop", self.max_drop),
            (AGREEMENT, "min", self.min_agreement),
            (SQNR, "min", self.min_sqnr_db),
            (KL, "max", self.max_kl),
            (SAME_TOP, "min", self.min_same_top),
        )
        given = [{"metric": figure, bound: value} for figure, bound, value in bounds if value is not None]
        try:
            budgets = [Budget.model_validate(bound) for bound in given]
        except ValidationError as error:
            found = error.errors()[0]
            where = "".join(f"{name}: " for name in found["loc"])
            raise click.UsageError(where + found["msg"].removeprefix("Value error, ")) from error
        check = file.policy.check
        check = check.model_copy(update={"budget": (*check.budget, *budgets)})
        return replace(file, policy=file.policy.model_copy(update={"check": check}))


@dataclass(frozen=True)
class GateOptions:
    """What is applied to the diagnosis, and how its verdict is used."""

    config: Path | None = Option(
        "Policy, which holds rules and thresholds too. [default: the nearest quantmedic.toml, or pyproject.toml "
        "with tool.quantmedic]",
        takes="FILE",
        daily=True,
    ).field()
    baseline: Path | None = Option(
        "Known findings: baseline or case. [default: the policy's baseline]", takes="FILE", daily=True
    ).field()
    write_baseline: Path | None = Option(
        "Write all findings to FILE, to be known from then on; nothing is judged.",
        takes="FILE",
        kind="baseline",
        daily=True,
    ).field()
    prune_baseline: bool = Option(
        "Remove from the baseline what CASE no longer has, and judge nothing; nothing is added."
    ).field(False)
    strict: bool = Option("Exemptions that cover nothing fail.").field(False)
    warn_only: bool = Option("Exit with 0 whatever the verdict; 2 stays 2.", daily=True).field(False)
    today: date | None = Option(
        "Day that exemptions are judged by. [default: the clock's]", takes="DATE", kind="day"
    ).field()
    location: Path | None = Option("Text file that annotations point at. [default: the policy]", takes="FILE").field()


limit_options = declared_group("limits", Limits, "Limits")
gate_options = declared_group("gate", GateOptions, "Limits")
#: What is measured before two models are judged; ``diagnose`` measures all else, and its case is checked.
measured_options = collect_options.only(*DATA, "tokens", "text_length", *RUNNING, *TOOLCHAIN)


@click.command(cls=Command)
@click.argument("models", nargs=-1, required=True, metavar="FLOAT QUANT | CASE", type=click.Path(path_type=Path))
@measured_options
@resume_option
@option(
    "--static",
    is_flag=True,
    title="Data",
    help="No data: judge weights, graph and quantization parameters alone.",
)
@limit_options
@gate_options
@printing_options(FORMATS, default="all but png and metrics")
@click.pass_context
def check(
    context: click.Context,
    /,
    models: Sequence[Path],
    resume: bool,
    static: bool,
    options: CollectOptions,
    limits: Limits,
    gate: GateOptions,
    report: ReportOptions,
) -> None:
    """Apply a policy: fail where the quantized model lost more than it allows, and say why.

    Takes both models and data, or a case. Without a policy, findings of high severity fail.

    Exit codes: 0 accepted, 1 regression, 2 could not do its job, 3 too few samples, 4 too good.

    \b
    Examples:
      quantmedic check float.onnx int8.onnx -r rep.npz -v val.npz --max-drop 1 -o report
      quantmedic check report --config quantmedic.toml --baseline quantmedic-baseline.json
      quantmedic check report --write-baseline quantmedic-baseline.json
    """
    _check_usage(context, models, static, resume, report)
    policy = policy_in_force(gate.config)
    base = rules_of(policy)
    if gate.write_baseline is not None or gate.prune_baseline:
        _keep_findings(models, gate, policy, base)
        return
    # Report what is wrong with these before hours of measuring.
    limits.added_to(policy, "a metric that is not known yet")
    baseline = open_baseline(gate.baseline, policy, base)
    if report.output is not None and len(models) > 1:
        from quantmedic.cli.measuring import keeping_unfinished  # slow to import, and a stored case needs it not

        options = keeping_unfinished(options, report.output / CASE_FILE, resume)
    case = _case(models, static, options, base)
    opened = inspect(case, base)
    diagnosis = check_case(
        opened,
        limits.added_to(policy, opened.facts.model.metric.name),
        rules=base,
        baseline=baseline,
        today=gate.today,
        strict=gate.strict,
        warn_only=gate.warn_only,
        location=gate.location,
    )
    _show(diagnosis, report, base)
    if report.output is not None:
        kept = kept_where_there_is_room(case, "check") if len(models) > 1 else nullcontext()
        with kept:
            files = write_report(
                diagnosis, report.output, formats=report.formats or DEFAULT_FORMATS, rules=base, case=opened
            )
        remove_file(unfinished_path(report.output / CASE_FILE))
        if not report.quiet:
            print_wrote((path, size) for path, size in files if path.parent == report.output)
    if report.printed_format == "text" and os.environ.get("GITHUB_ACTIONS") == "true":
        _show_on_github(diagnosis)
    if len(models) > 1:
        end_if_interrupted(case)
    assert diagnosis.check is not None
    raise click.exceptions.Exit(diagnosis.check.exit_code)


def _keep_findings(models: Sequence[Path], gate: GateOptions, policy: PolicyFile, base: RuleBase) -> None:
    """Write a baseline of a case, or remove from one what the case no longer has."""
    if len(models) != 1:
        raise click.UsageError("a baseline is made of one case: diagnose the models first")
    if gate.write_baseline is not None:
        findings = case_baseline(models[0], base)
        write_baseline(findings, gate.write_baseline)
        print_line(f"wrote {gate.write_baseline}: {len(findings.findings)} findings of {findings.model or 'the model'}")
        return
    own = policy.policy.check.baseline
    target = gate.baseline or (policy.beside(own) if own is not None else None)
    if target is None:
        raise click.UsageError("--prune-baseline changes a baseline: name it with --baseline FILE")
    pruned = prune(load_baseline(target), models[0], base)
    if pruned.removed:
        write_baseline(pruned.baseline, target)
    unsure = f", {pruned.not_judged} of them not judged in this case" if pruned.not_judged else ""
    print_line(f"{target}: {pruned.removed} findings are gone, {len(pruned.baseline.findings)} left{unsure}")


def _check_usage(
    context: click.Context, models: Sequence[Path], static: bool, resume: bool, report: ReportOptions
) -> None:
    """Refuse what cannot be done, before anything is read."""
    report.check()
    if report.printed_format in _UNPRINTABLE:
        raise click.UsageError(f"{report.printed_format} needs a folder: add --output")
    if report.output is None and resume:
        raise click.UsageError("--resume continues the case in a folder: add --output")
    if len(models) == 1:
        refuse_options(
            context, {*measured_options, "resume", "static"}, "is about models; a stored case is measured already"
        )
    elif len(models) != 2:
        raise click.UsageError("give the float model and the quantized one, or one case")
    elif static:
        refuse_options(context, {*measured_options, "resume"} - _STATIC, "needs data, which --static goes without")


def _case(models: Sequence[Path], static: bool, options: CollectOptions, base: RuleBase) -> Case:
    """A stored case, or the measurement of two models, with data or without."""
    if len(models) == 1:
        return load_case(models[0])
    # Slow to import, and a stored case needs neither.
    from quantmedic.api.static import collect_static
    from quantmedic.cli.measuring import collect_case

    float_model, quantized_model = models
    if static:
        return collect_static(
            float_model,
            quantized_model,
            rules=base,
            threads=options.threads,
            toolchain_logs=options.toolchain_logs,
            mct_log=options.mct_log,
            settings_files=options.settings_files,
            progress=False,
        )
    return collect_case(float_model, quantized_model, options, base)


def _show(diagnosis: Diagnosis, report: ReportOptions, base: RuleBase) -> None:
    """Causes as warnings, and the verdict or one format."""
    print_warnings(diagnosis)
    if report.printed_format == "text":
        print_report(render_check(diagnosis, verbosity=report.verbosity, color=with_color(), ascii_only=ascii_only()))
    elif report.printed_format == "sarif":
        print_format(render_sarif(diagnosis, load_manuals(base)))
    else:
        print_format(_PRINTED[report.printed_format](diagnosis))


def _comment(diagnosis: Diagnosis) -> str:
    # The verdict on a terminal needs no template: it need not wait for jinja2.
    from quantmedic.reports.machines.comment import render_comment

    return render_comment(diagnosis)


#: What is printed beside text and SARIF.
_PRINTED = {"json": render_json, "markdown": _comment, "metrics": render_metrics, "junit": render_junit}


def _show_on_github(diagnosis: Diagnosis) -> None:
    """What GitHub shows of it where it runs there; last, so that a summary that cannot be written costs no report."""
    for line in annotations(diagnosis):
        print_command(line)
    if target := os.environ.get("GITHUB_STEP_SUMMARY"):
        append_summary(Path(target), job_summary(_comment(diagnosis)))
