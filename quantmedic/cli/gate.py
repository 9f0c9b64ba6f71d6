"""The commands of the gate: ``check``, ``trend`` and ``baseline``."""

import os
import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quantmedic.cli.options import (
    CONTEXT,
    PRINTED_FORMATS,
    data_options,
    parse_data,
    parse_rules,
    parse_trials,
    prove_options,
    require_folder,
    resume_option,
    rule_options,
    toolchain_option,
)
from quantmedic.cli.terminal import ascii_only, collect_case, verbosity, with_color, wrote_text

if TYPE_CHECKING:
    from quantmedic.engine.case.records import Case
    from quantmedic.engine.contract.diagnosis import Diagnosis
    from quantmedic.engine.gate.policy import PolicyFile

FORMATS = ("html", "markdown", "json", "png", "sarif", "junit")
DEFAULT_FORMATS = tuple(name for name in FORMATS if name != "png")
DEFAULT_BASELINE = "quantmedic-baseline.json"
#: Options of ``collect`` that need no data.
_STATIC = ("toolchain_logs", "mct_log", "settings_files")


class _Day(click.ParamType):
    """A day: ``2026-11-30``."""

    name = "date"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> date:
        try:
            return value if isinstance(value, date) else date.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no day; write 2026-11-30", param, ctx)


_config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Policy. [default: the nearest quantmedic.toml, or pyproject.toml with tool.quantmedic]",
)


@click.command(context_settings=CONTEXT)
@click.argument("models", nargs=-1, required=True, metavar="FLOAT QUANT | CASE", type=click.Path(path_type=Path))
@data_options
@resume_option
@_config_option
@click.option("--baseline", type=click.Path(path_type=Path), metavar="FILE", help="Known findings: baseline or case.")
@click.option("--static", is_flag=True, help="No data: judge weights, graph and quantization parameters alone.")
@click.option("--strict", is_flag=True, help="Exemptions that cover nothing fail.")
@click.option("--warn-only", is_flag=True, help="Exit with 0 whatever the verdict; 2 stays 2.")
@click.option("--today", type=_Day(), metavar="DATE", help="Day that exemptions are judged by. [default: the clock's]")
@click.option("--location", type=click.Path(path_type=Path), help="Text file that annotations point at. [the policy]")
@click.option("--record", type=click.Path(path_type=Path, dir_okay=False), metavar="DB", help="Keep the figures in DB.")
@click.option("--label", metavar="TEXT", help="What this run is called in the history, such as a commit.")
@click.option("--model", metavar="NAME", help="Whose history it is, where file names change. [default: QUANT's]")
@prove_options
@rule_options
@toolchain_option
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Folder for the report in all formats.")
@click.option(
    "--format",
    "formats",
    multiple=True,
    type=click.Choice(FORMATS),
    help="Repeat with --output; one without is printed. [default: all but png]",
)
@click.option("--quiet", "-q", is_flag=True, help="Print the verdict only.")
@click.option("--verbose", is_flag=True, help="Print all findings.")
@click.pass_context
def check(
    context: click.Context,
    models: Sequence[Path],
    config: Path | None,
    baseline: Path | None,
    strict: bool,
    warn_only: bool,
    today: date | None,
    location: Path | None,
    record: Path | None,
    label: str | None,
    model: str | None,
    toolchain: str | None,
    output: Path | None,
    formats: Sequence[str],
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Apply a policy: fail where the quantized model got worse than it may, and say why.

    Takes both models and data, or a stored case. Without a policy, findings of high severity fail. The report in the
    output folder is that of diagnose with check.md (for a pull request), check.sarif and check.xml (JUnit).

    Exit codes: 0 accepted, 1 regression, 2 could not do its job, 3 too few samples to decide, 4 gains that are too good
    to be true.

    \b
    Examples:
      quantmedic check float.onnx int8.onnx -r rep.npz -v val.npz -o report
      quantmedic check float.onnx int8.onnx --static
      quantmedic check report/quantmedic.case --config quantmedic.toml --baseline main.case
      quantmedic check float.onnx int8.onnx -v val.npz --record history.db --label "$GIT_COMMIT"
    """
    import quantmedic
    from quantmedic.api.checks import open_baseline, rules_of
    from quantmedic.store.histories import require_history

    require_folder(formats, output)
    if output is None and formats and formats[0] in ("html", "png"):
        raise click.UsageError(f"{formats[0]} needs a folder: add --output")
    if output is None and options["resume"]:
        raise click.UsageError("--resume goes on with the case in a folder: add --output")
    policy = _policy(config)
    rules = parse_rules(options, toolchain, lambda folders: rules_of(policy, folders))
    # What is wrong with these is better known before hours of measuring.
    known = open_baseline(baseline, policy, rules)
    if record is not None:
        require_history(record)
    case = _case(context, models, rules, output, options)
    opened = quantmedic.inspect(case, rules)
    diagnosis = quantmedic.check(
        opened,
        policy,
        rules=rules,
        baseline=known,
        toolchain=toolchain,
        today=today,
        strict=strict,
        warn_only=warn_only,
        location=location,
    )
    if record is not None:
        diagnosis = _recorded(diagnosis, record, label, model)
    form = formats[0] if formats and output is None else "text"
    _show(diagnosis, form, quiet, verbose, rules)
    if output is not None:
        written = quantmedic.write_report(
            diagnosis, output, formats=formats or DEFAULT_FORMATS, rules=rules, case=opened
        )
        main_files = [(path, size) for path, size in written if path.parent == output]
        if not quiet:
            click.echo(wrote_text(main_files))
    if form == "text" and os.environ.get("GITHUB_ACTIONS") == "true":
        _show_on_github(diagnosis)
    assert diagnosis.check is not None
    sys.exit(diagnosis.check.exit_code)


def _policy(config: Path | None) -> "PolicyFile":
    """The policy that is given, else the nearest, else the default one."""
    from quantmedic.engine.gate.policy import PolicyFile
    from quantmedic.store.policies import find_policy, load_policy

    path = config if config is not None else find_policy(Path.cwd())
    return load_policy(path) if path is not None else PolicyFile()


def _case(
    context: click.Context, models: Sequence[Path], rules: Any, output: Path | None, options: dict[str, Any]
) -> "Case":
    """A stored case, or the measurement of two models, with data or without."""
    import quantmedic

    if len(models) == 1:
        _refuse(context, (*options,), "is about models; a stored case is measured already")
        return quantmedic.load_case(models[0])
    if len(models) != 2:
        raise click.UsageError("give the float model and the quantized one, or one case")
    if options.pop("static"):
        _refuse(context, [name for name in options if name not in _STATIC], "needs data, which --static goes without")
        return quantmedic.collect_static(*models, **{name: options[name] for name in _STATIC})
    given = {**parse_trials(options), **parse_data(options)}
    checkpoint = output / "quantmedic.case" if output is not None else None
    return collect_case(models[0], models[1], checkpoint, rules=rules, **given)


def _refuse(context: click.Context, names: Sequence[str], why: str) -> None:
    """Refuse options that would do nothing, where they were given."""
    for name in names:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            option = next(p.opts[0] for p in context.command.params if p.name == name)
            raise click.UsageError(f"{option} {why}")


def _recorded(diagnosis: "Diagnosis", history: Path, label: str | None, model: str | None) -> "Diagnosis":
    """The diagnosis with what earlier runs gave, itself among them from now on."""
    from quantmedic.store.histories import record

    assert diagnosis.check is not None
    time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    trend = record(history, diagnosis, label=label, model=model, time=time)
    return diagnosis.model_copy(update={"check": diagnosis.check.model_copy(update={"trend": trend})})


def _show(diagnosis: "Diagnosis", form: str, quiet: bool, verbose: bool, rules: Any) -> None:
    """Causes as warnings, and the verdict or one format."""
    from quantmedic.reports.terminal.check import render_check
    from quantmedic.reports.terminal.console import warning_lines

    for line in warning_lines(diagnosis):
        click.echo(line, err=True)
    if form != "text":
        click.echo(_printed(diagnosis, form, rules), nl=False)
        return
    shown = verbosity(quiet, verbose)
    click.echo(render_check(diagnosis, verbosity=shown, color=with_color(), ascii_only=ascii_only()), nl=False)


def _printed(diagnosis: "Diagnosis", form: str, rules: Any) -> str:
    from quantmedic.api.rulebase import load_manuals
    from quantmedic.reports.machines.comment import render_comment
    from quantmedic.reports.machines.json import render_json
    from quantmedic.reports.machines.junit import render_junit
    from quantmedic.reports.machines.sarif import render_sarif

    if form == "sarif":
        return render_sarif(diagnosis, load_manuals(rules))
    return {"json": render_json, "markdown": render_comment, "junit": render_junit}[form](diagnosis)


def _show_on_github(diagnosis: "Diagnosis") -> None:
    """What GitHub shows of it where it runs there; last, so that a summary that cannot be written costs no report."""
    from quantmedic.reports.machines.comment import render_comment
    from quantmedic.reports.machines.github import annotations, append_summary, job_summary

    for line in annotations(diagnosis):
        click.echo(line)
    if target := os.environ.get("GITHUB_STEP_SUMMARY"):
        append_summary(Path(target), job_summary(render_comment(diagnosis)))


@click.command(context_settings=CONTEXT)
@click.argument("history", type=click.Path(path_type=Path), metavar="HISTORY")
@click.option("--model", metavar="NAME", help="Whose runs. [default: the one model of the history]")
@click.option("--figure", "figures", multiple=True, metavar="NAME", help="Only this figure; repeat. [default: all]")
@click.option("--last", type=click.IntRange(1), default=50, show_default=True, help="At most this many runs.")
@click.option("--format", "formats", multiple=True, type=click.Choice(PRINTED_FORMATS), help="Repeat with --output.")
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Folder for trend.html, .md and .json.")
def trend(
    history: Path,
    model: str | None,
    figures: Sequence[str],
    last: int,
    formats: Sequence[str],
    output: Path | None,
) -> None:
    """Plot the figures that `check --record HISTORY` kept, run by run.

    Without --output, one format is printed: text unless --format says otherwise.

    Exit codes: 0 shown, whatever the runs tell; 2 could not do its job.

    \b
    Examples:
      quantmedic trend history.db
      quantmedic trend history.db --figure drop --figure sqnr_db --last 20
      quantmedic trend history.db --model int8.onnx -o trend
    """
    import quantmedic
    from quantmedic.engine.gate.history import select_figures
    from quantmedic.reports.terminal.trend import WIDTH, render

    require_folder(formats, output)
    record = select_figures(quantmedic.load_history(history, model=model, last=last), figures)
    form = formats[0] if formats and output is None else "text"
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    settings = {"width": width, "color": with_color(), "ascii_only": ascii_only()} if form == "text" else {}
    click.echo(render(record, form, **settings), nl=False)
    if output is not None:
        written = quantmedic.write_trend(record, output, formats=formats or PRINTED_FORMATS[:3])
        click.echo("\n" + wrote_text((file.path, file.size) for file in written))


@click.group(context_settings=CONTEXT)
def baseline() -> None:
    """Keep the findings that are known, so that only new and worse ones fail.

    \b
    Examples:
      quantmedic baseline write report/quantmedic.case
      quantmedic baseline prune report/quantmedic.case
    """


@baseline.command("write", context_settings=CONTEXT)
@click.argument("case", type=click.Path(path_type=Path), metavar="CASE")
@_config_option
@click.option("--output", "-o", type=click.Path(path_type=Path), help="File. [default: the policy's baseline]")
@rule_options
def baseline_write(case: Path, config: Path | None, output: Path | None, **options: Any) -> None:
    """Write all findings of a case to a baseline; one that is there is replaced.

    \b
    Example:
      quantmedic baseline write report/quantmedic.case -o quantmedic-baseline.json
    """
    from quantmedic.api.checks import case_baseline, rules_of, write_baseline

    policy = _policy(config)
    found = case_baseline(case, parse_rules(options, load=lambda folders: rules_of(policy, folders)))
    target = output or _own_baseline(policy)
    write_baseline(found, target)
    click.echo(f"wrote {target}: {len(found.findings)} findings of {found.model or 'the model'}")


@baseline.command("prune", context_settings=CONTEXT)
@click.argument("case", type=click.Path(path_type=Path), metavar="CASE")
@_config_option
@click.option("--baseline", "file", type=click.Path(path_type=Path), help="File. [default: the policy's baseline]")
@rule_options
def baseline_prune(case: Path, config: Path | None, file: Path | None, **options: Any) -> None:
    """Remove findings that a case no longer has from a baseline; nothing is added.

    \b
    Example:
      quantmedic baseline prune report/quantmedic.case --baseline quantmedic-baseline.json
    """
    from quantmedic.api.checks import load_baseline, prune, rules_of, write_baseline

    policy = _policy(config)
    target = file or _own_baseline(policy)
    pruned = prune(load_baseline(target), case, parse_rules(options, load=lambda folders: rules_of(policy, folders)))
    if pruned.removed:
        write_baseline(pruned.baseline, target)
    left = f"{len(pruned.baseline.findings)} left"
    unsure = f", {pruned.not_judged} of them not judged in this case" if pruned.not_judged else ""
    click.echo(f"{target}: {pruned.removed} findings are gone, {left}{unsure}")


def _own_baseline(policy: "PolicyFile") -> Path:
    name = policy.policy.check.baseline
    return policy.beside(name) if name is not None else Path(DEFAULT_BASELINE)
