"""The command line: parses options, calls the API, prints. Exit codes: 0 done, 2 could not do its job, 130 Ctrl-C."""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from quantmedic.cli.debugger import debugger
from quantmedic.cli.gate import baseline, check, trend
from quantmedic.cli.importing import import_
from quantmedic.cli.options import (
    CONTEXT,
    FORMATS,
    PRINTED_FORMATS,
    data_options,
    output_option,
    parse_data,
    parse_failure,
    parse_preprocessing_options,
    parse_rules,
    parse_trials,
    previous_option,
    profile_option,
    proof_options,
    report_options,
    require_folder,
    resume_option,
    rule_options,
    toolchain_option,
    validation_options,
)
from quantmedic.cli.terminal import (
    ascii_only,
    collect_case,
    fail,
    interrupted_by_termination,
    print_markdown,
    progress_bars,
    size_text,
    verbosity,
    with_color,
    wrote_text,
)

if TYPE_CHECKING:
    from quantmedic.engine.contract.diagnosis import Diagnosis
    from quantmedic.engine.rules.rulebase import RuleBase

_SENSITIVITY_MODES = ("one", "all-but-one", "cumulative")


class _Group(click.Group):
    """Shows commands in the order of use, and errors without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_Group, context_settings=CONTEXT)
@click.version_option(package_name="quantmedic", message="%(prog)s %(version)s")
def cli() -> None:
    """Find out why a quantized network lost accuracy, from measurements.

    \b
    Start here:
      quantmedic demo
      quantmedic diagnose float.onnx int8.onnx --representative rep.npz --validation val.npz -o report
      quantmedic explain D005
    """


@cli.command(context_settings=CONTEXT)
@click.option("--healthy", is_flag=True, help="Show the healthy twin instead of the patient.")
@proof_options
@profile_option
@toolchain_option
@output_option
@report_options
def demo(
    healthy: bool,
    profile: bool,
    toolchain: str | None,
    output: Path,
    formats: Sequence[str],
    quiet: bool,
    verbose: bool,
    **trials: Any,
) -> None:
    """Diagnose the embedded patient: a Fashion-MNIST network with a calibration mistake.

    \b
    Examples:
      quantmedic demo
      quantmedic demo --prove
      quantmedic demo --healthy -o healthy-report
    """
    from quantmedic.demo import patient

    (float_model, quantized), options = patient(healthy=healthy)
    given: dict[str, Any] = {**parse_trials(trials), **options, "profile": profile}
    rules = parse_rules({}, toolchain)
    _diagnose(float_model, quantized, rules, output, formats, quiet, verbose, toolchain=toolchain, **given)


@cli.command(context_settings=CONTEXT)
@click.argument("float_model", type=click.Path(path_type=Path), metavar="FLOAT")
@click.argument("quantized_model", type=click.Path(path_type=Path), metavar="[QUANT]", required=False)
@data_options
@profile_option
@resume_option
@proof_options
@rule_options
@previous_option
@toolchain_option
@output_option
@report_options
@click.pass_context
def diagnose(
    context: click.Context,
    float_model: Path,
    quantized_model: Path | None,
    previous: Path | None,
    toolchain: str | None,
    output: Path,
    formats: Sequence[str],
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Measure both models on the data, judge the causes, write a report.

    Where quantization failed, leave QUANT out: --log is what the tool printed, and the report says why it failed.

    \b
    Examples:
      quantmedic diagnose float.onnx int8.onnx -r rep.npz -v val.npz -o report
      quantmedic diagnose float.onnx int8.onnx -r calib/ -v images/ \\
          --scale 255 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225
      quantmedic diagnose float.onnx int8.onnx -v mydata:batches --metric mydata:iou
      quantmedic diagnose float.onnx better.onnx -r rep.npz -v val.npz \\
          --previous report/quantmedic.case -o second
      quantmedic diagnose float.onnx int8.onnx -v val.npz --prove --budget 2m --write-fixed fixed.onnx
      quantmedic diagnose mynet:float_model mynet:int8_model -r mynet:calibration -v mynet:validation
      quantmedic diagnose float.tflite int8.tflite -r rep.npz -v val.npz
      quantmedic diagnose float.onnx --log quantize.log -r calib/      # no model came out
    """
    if quantized_model is None:
        given = parse_failure(context, options)
        rules = parse_rules(options, toolchain)
        _diagnose_failed(float_model, rules, output, formats, quiet, verbose, toolchain, **given)
        return
    rules = parse_rules(options, toolchain)
    before = _previous_case(previous)
    given = {**parse_trials(options), **parse_data(options), "checkpoint": output / "quantmedic.case"}
    _diagnose(float_model, quantized_model, rules, output, formats, quiet, verbose, before, toolchain, **given)


@cli.command(context_settings=CONTEXT)
@click.argument("float_model", type=click.Path(path_type=Path), metavar="FLOAT")
@click.argument("quantized_model", type=click.Path(path_type=Path), metavar="QUANT")
@data_options
@profile_option
@resume_option
@click.option("--output", "-o", type=click.Path(path_type=Path), default="quantmedic.case", show_default=True)
def collect(float_model: Path, quantized_model: Path, output: Path, **options: Any) -> None:
    """Measure only: write a case file that `report` judges later, without the models.

    \b
    Examples:
      quantmedic collect float.onnx int8.onnx -v shard1.npz -o shard1.case
      quantmedic report shard1.case shard2.case -o report
      quantmedic collect float.onnx int8.onnx -v val/ --resume      # after Ctrl-C
    """
    from quantmedic import save_case

    case = collect_case(float_model, quantized_model, checkpoint=output, **parse_data(options))
    save_case(case, output)
    click.echo(f"wrote {output} ({size_text(output.stat().st_size)})")


@cli.command(context_settings=CONTEXT)
@click.argument("float_weights", type=click.Path(path_type=Path), metavar="FLOAT")
@click.argument("quantized_weights", type=click.Path(path_type=Path), metavar="QUANT")
@click.option("--threads", type=click.IntRange(1), help="Processor threads. [default: all cores, up to 8]")
@rule_options
@output_option
@report_options
def weights(
    float_weights: Path,
    quantized_weights: Path,
    threads: int | None,
    output: Path,
    formats: Sequence[str],
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Compare the weights of two safetensors checkpoints, without running a model or holding one in memory.

    FLOAT and QUANT are .safetensors files or folders with shards; QUANT as GPTQ, AWQ, compressed-tensors, torchao or
    bitsandbytes (int8) wrote it, float8, or rounded real numbers.

    \b
    Examples:
      quantmedic weights Llama-3-8B Llama-3-8B-GPTQ -o report
      quantmedic weights model.safetensors model-int8.safetensors --format markdown
    """
    from quantmedic import collect_weights

    rules = parse_rules(options)
    with progress_bars() as progress:
        case = collect_weights(float_weights, quantized_weights, threads=threads, progress=progress)
    _judge_and_write(case, rules, output, formats, quiet, verbose)


@cli.command(context_settings=CONTEXT)
@click.argument("cases", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="CASE…")
@rule_options
@previous_option
@toolchain_option
@output_option
@report_options
def report(
    cases: Sequence[Path],
    previous: Path | None,
    toolchain: str | None,
    output: Path,
    formats: Sequence[str],
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Judge a stored case again, or several shards of one, without models or data.

    \b
    Example:
      quantmedic report quantmedic.case --threshold activation_zscore=8 -o report
    """
    from quantmedic import load_case

    rules = parse_rules(options, toolchain)
    before = _previous_case(previous)
    _judge_and_write(load_case(*cases), rules, output, formats, quiet, verbose, before, toolchain)


cli.add_command(import_)
cli.add_command(check)
cli.add_command(baseline)
cli.add_command(trend)


@cli.command(context_settings=CONTEXT)
@click.argument("before", type=click.Path(path_type=Path), metavar="BEFORE")
@click.argument("after", type=click.Path(path_type=Path), metavar="AFTER")
@rule_options
@click.option("--format", "formats", multiple=True, type=click.Choice(PRINTED_FORMATS), help="Repeat with --output.")
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Folder for compare.html, .md and .json.")
@click.option("--quiet", "-q", is_flag=True, help="Print the answer only.")
@click.option("--verbose", is_flag=True, help="Print all layers and subjects.")
def compare(
    before: Path,
    after: Path,
    formats: Sequence[str],
    output: Path | None,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Put two cases side by side: what healed, what broke, what was changed in between.

    Both are judged by the same rules. Without --output, one format is printed: text unless --format says otherwise.

    Exit codes: 0 compared, whatever the answer; 2 could not do its job.

    \b
    Examples:
      quantmedic compare report/quantmedic.case second/quantmedic.case
      quantmedic compare before.case after.case --format json > compare.json
      quantmedic compare before.case after.case -o comparison
    """
    import quantmedic
    from quantmedic.reports.terminal.compare import render

    require_folder(formats, output)
    record = quantmedic.compare(before, after, parse_rules(options))
    form = formats[0] if formats and output is None else "text"
    look: dict[str, Any] = {"verbosity": verbosity(quiet, verbose), "color": with_color(), "ascii_only": ascii_only()}
    click.echo(render(record, form, **(look if form == "text" else {})), nl=False)
    if output is not None:
        written = quantmedic.write_comparison(record, output, formats=formats or PRINTED_FORMATS[:3])
        click.echo("" if quiet else "\n", nl=False)
        click.echo(wrote_text((file.path, file.size) for file in written))


@cli.command(context_settings=CONTEXT)
@click.argument("float_model", type=click.Path(path_type=Path), metavar="FLOAT")
@click.argument("quantized_model", type=click.Path(path_type=Path), metavar="QUANT")
@validation_options
@click.option(
    "--mode",
    type=click.Choice([*_SENSITIVITY_MODES, "all"]),
    default="all",
    show_default=True,
    help="One layer quantized, all but one, or all layers up to one.",
)
@click.option("--samples", type=click.IntRange(1), default=64, show_default=True, help="At most this many samples.")
@click.option("--batch-size", type=click.IntRange(1), default=16, show_default=True, help="Samples per run.")
@click.option("--threads", type=click.IntRange(1), help="Processor threads. [default: all cores]")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the samples and intervals.")
@click.option("--resume", is_flag=True, help="Go on with what an interrupted run left in the output.")
@output_option
@click.option("--verbose", is_flag=True, help="Print all layers.")
def sensitivity(
    float_model: Path, quantized_model: Path, mode: str, output: Path, verbose: bool, **options: Any
) -> None:
    """Measure what each layer does to the output: quantized alone, left out alone, and one after another.

    This shows where noise arises, not why: `diagnose` names causes.

    \b
    Examples:
      quantmedic sensitivity float.onnx int8.onnx -v val.npz -o report
      quantmedic sensitivity float.onnx int8.onnx -v val.npz --mode one --samples 256
      quantmedic sensitivity float.onnx int8.onnx -v val.npz --resume      # after Ctrl-C
    """
    from quantmedic import write_sensitivity
    from quantmedic.reports.terminal.sensitivity import render_sensitivity

    options["modes"] = _SENSITIVITY_MODES if mode == "all" else (mode,)
    record = _sensitivity(float_model, quantized_model, output / "sensitivity.json", options)
    written = write_sensitivity(record, output)
    click.echo(render_sensitivity(record, verbose=verbose, ascii_only=ascii_only()), nl=False)
    click.echo("")
    click.echo(wrote_text(written))


@cli.command(context_settings=CONTEXT)
@click.argument("float_model", type=click.Path(path_type=Path), metavar="FLOAT")
@click.argument("quantized_model", type=click.Path(path_type=Path), metavar="QUANT")
@validation_options
@click.option("--max-drop", type=float, metavar="X", help="Goal: the metric drops by X at most; 1.0 is 1 % of a share.")
@click.option("--min-sqnr", "min_sqnr_db", type=float, metavar="DB", help="Or: the output has so many dB at least.")
@click.option("--samples", type=click.IntRange(1), help="Samples of one evaluation. [default: 64 to 256, by its cost]")
@click.option("--threads", type=click.IntRange(1), help="Processor threads. [default: all cores]")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the split, the search and intervals.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def fallback(float_model: Path, quantized_model: Path, form: str, **options: Any) -> None:
    """Find the smallest set of layers that must leave int8 to meet a goal, and check it on the model itself.

    Exit codes: 0 found, 1 no set meets the goal, 2 could not do its job, 130 Ctrl-C: prints the best set so far.

    \b
    Examples:
      quantmedic fallback float.onnx int8.onnx -v val.npz --min-sqnr 30
      quantmedic fallback float.onnx int8.onnx -v val.npz --labels labels.npy --max-drop 1.0
      quantmedic fallback float.onnx int8.onnx -v val.npz --max-drop 0.5 --format json > fallback.json
    """
    import quantmedic
    from quantmedic.reports.terminal.fallback import render_fallback, render_json

    options["preprocessing"] = parse_preprocessing_options(options)
    with progress_bars() as progress, interrupted_by_termination():
        record = quantmedic.fallback(float_model, quantized_model, progress=progress, **options)
    click.echo(render_json(record) if form == "json" else render_fallback(record, ascii_only=ascii_only()), nl=False)
    if record.interrupted:
        click.echo("interrupted", err=True)
        sys.exit(130)
    sys.exit(0 if record.verdict in ("met", "unsure") else 1)


cli.add_command(debugger)


@cli.command(context_settings=CONTEXT)
@click.argument("case", type=click.Path(path_type=Path), metavar="CASE")
@click.option(
    "--table", metavar="NAME", help="activations, weights, errors, quantizers or all. [default: the main facts]"
)
@click.option("--columns", metavar="KEY,…", help="These columns instead: facts, or their ends where these are clear.")
@click.option("--sort", metavar="KEY[:desc]", help="Order of the layers. [default: that of the table]")
@click.option("--filter", "text", default="", metavar="TEXT", help="Layers whose name, operator or findings have it.")
@click.option("--flagged", is_flag=True, help="Only layers that are degraded or have findings.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most this many layers.")
@click.option("--layer", metavar="NAME", help="All facts of one layer instead.")
@click.option("--data", "data_sets", is_flag=True, help="Both data sets side by side instead.")
@click.option("--csv", "csv_file", metavar="FILE", help="Write the table to FILE, all of its layers; - prints it.")
@rule_options
def show(case: Path, limit: int, layer: str | None, data_sets: bool, csv_file: str | None, **options: Any) -> None:
    """Print the tables of a case: layers by any of their facts, one layer, or the data sets.

    \b
    Examples:
      quantmedic show report/quantmedic.case --table activations
      quantmedic show report/quantmedic.case --columns name,accumulated.sqnr_db,weight.std --sort accumulated.sqnr_db
      quantmedic show report/quantmedic.case --layer /stem/conv/Conv
      quantmedic show report/quantmedic.case --table all --csv layers.csv
    """
    from quantmedic import load_case
    from quantmedic.api.judging import inspect
    from quantmedic.reports.terminal import show as tables
    from quantmedic.reports.terminal.console import terminal_text

    if csv_file is not None and (layer is not None or data_sets):
        raise click.UsageError("--csv writes the table of layers; leave out --layer and --data")
    inspection = inspect(load_case(case), parse_rules(options))
    if layer is not None or data_sets:
        lines = tables.layer_lines(inspection, layer) if layer is not None else tables.data_lines(inspection)
        click.echo(terminal_text(lines, ascii_only=ascii_only()), nl=False)
        return
    keys = [key for key in (options.pop("columns") or "").split(",") if key.strip()]
    table = tables.layer_table(inspection, columns=keys, table=options.pop("table") or "default", **options)
    if csv_file is not None:
        _write_csv(tables.table_csv(table), csv_file, len(table.rows))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else tables.WIDTH
    lines = tables.table_lines(table, limit=limit, width=max(width, tables.WIDTH))
    click.echo(terminal_text(lines, ascii_only=ascii_only()), nl=False)


def _write_csv(text: str, target: str, rows: int) -> None:
    from quantmedic.engine.errors import OutputError

    if target == "-":
        sys.stdout.buffer.write(text.encode("utf-8"))
        return
    try:
        Path(target).write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"cannot write the table: {reason}", where=target, help="choose another file") from error
    click.echo(f"wrote {target} ({rows} layers)")


@cli.command(context_settings=CONTEXT)
@click.argument("code")
@click.option("--rules", "rule_folders", multiple=True, type=click.Path(path_type=Path), help="Your rules; repeat.")
def explain(code: str, rule_folders: Sequence[Path]) -> None:
    """Print the manual page of a rule, a cause, a fact or a general topic.

    \b
    Examples:
      quantmedic explain D005
      quantmedic explain activation-outliers
      quantmedic explain data.rounding.sqnr_db
      quantmedic explain gptq
    """
    from quantmedic.api.explain import explanation

    print_markdown(explanation(code, rule_folders))


@cli.group(cls=_Group, invoke_without_command=True, context_settings=CONTEXT)
@click.option("--thresholds", "show_thresholds", is_flag=True, help="List the thresholds instead.")
@click.option("--rules", "rule_folders", multiple=True, type=click.Path(path_type=Path), help="Your rules; repeat.")
@click.pass_context
def rules(context: click.Context, show_thresholds: bool, rule_folders: Sequence[Path]) -> None:
    """List the rules: id, severity, scope, name; or write and test your own.

    \b
    Examples:
      quantmedic rules
      quantmedic rules --thresholds
      quantmedic rules new wide-input-range --scope tensor --output my-rules
      quantmedic rules test my-rules
    """
    if context.invoked_subcommand is not None:
        return
    from quantmedic import load_rulebase

    base = load_rulebase(rule_folders)
    if show_thresholds:
        for t in base.thresholds.values():
            click.echo(f"{t.name:32} {t.value:>9g} {t.unit or '':8} {t.description} ({t.source})")
        return
    for rule in sorted(base.rules, key=lambda rule: rule.id):
        click.echo(f"{rule.id}  {rule.severity:6}  {rule.scope:8} {rule.name}")
    click.echo(f"{len(base.rules)} rules; quantmedic explain CODE tells more")


_scope = click.Choice(["model", "dataset", "layer", "tensor", "operand", "output"])


@rules.command("new", context_settings=CONTEXT)
@click.argument("name")
@click.option("--id", "code", metavar="U001", help="Id of the rule. [default: the next free one]")
@click.option("--scope", type=_scope, default="layer", show_default=True, help="What the rule ranges over.")
@click.option("--output", "-o", type=click.Path(path_type=Path), default="my-rules", show_default=True, help="Folder.")
def rules_new(name: str, code: str | None, scope: Any, output: Path) -> None:
    """Write a small rule and its page with examples, ready to be edited.

    \b
    Example:
      quantmedic rules new wide-input-range --scope tensor --output my-rules
    """
    from quantmedic.api.authoring import new_rule

    rule, page = new_rule(name, output, code=code, scope=scope)
    click.echo(f"wrote {rule} and {page}")
    click.echo(f"edit {rule.name}: conditions, message and remedies; {page.name}: the text, and facts as examples")
    click.echo(f"facts: quantmedic rules facts --scope {scope}")
    click.echo(f"next: quantmedic rules test {output}")


@rules.command("facts", context_settings=CONTEXT)
@click.argument("word", default="")
@click.option("--scope", type=_scope, help="Only those of one scope.")
def rules_facts(word: str, scope: Any) -> None:
    """List the facts that a rule may name, with unit and formula; WORD narrows them.

    \b
    Examples:
      quantmedic rules facts --scope layer
      quantmedic rules facts clipping
    """
    from quantmedic.api.authoring import fact_lines

    for line in fact_lines(scope, word):
        click.echo(line)


@rules.command("lint", context_settings=CONTEXT)
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FOLDER…")
def rules_lint(folders: Sequence[Path]) -> None:
    """Say what is wrong with your rules, without running their examples.

    Exit codes: 0 no errors, 1 a rule is refused, 2 could not do its job.

    \b
    Example:
      quantmedic rules lint my-rules
    """
    _check_rules(folders, with_examples=False)


@rules.command("test", context_settings=CONTEXT)
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FOLDER…")
def rules_test(folders: Sequence[Path]) -> None:
    """Say what is wrong with your rules, and run the examples on their pages.

    Exit codes: 0 all is well, 1 a rule is refused or contradicts an example, 2 could not do its job.

    \b
    Example:
      quantmedic rules test my-rules
    """
    _check_rules(folders, with_examples=True)


def _check_rules(folders: Sequence[Path], *, with_examples: bool) -> None:
    from quantmedic.api.authoring import lint_rules, outcome_line, remark_lines, run_examples, summary

    base, own, remarks = lint_rules(folders)
    for remark in remarks:
        head, *rest = remark_lines(remark)
        click.echo(click.style(head, fg="red" if remark.level == "error" else "yellow"))
        click.echo("".join(f"{line}\n" for line in rest), nl=False)
    tested = run_examples(base, own) if with_examples else []
    for test in tested:
        click.echo(f"{test.rule.id} {test.rule.name}")
        for outcome in test.outcomes:
            click.echo(outcome_line(outcome))
        if test.error is not None:
            click.echo(click.style("error: ", fg="red") + str(test.error))
    click.echo(summary(len(own), remarks, tested if with_examples else None))
    refused = any(remark.level == "error" for remark in remarks) or any(test.failed for test in tested)
    sys.exit(1 if refused else 0)


@cli.command(context_settings=CONTEXT)
def doctor() -> None:
    """Show versions, optional packages and the CPU features that matter for integer kernels."""
    from quantmedic.api.environment import environment_lines

    for line in environment_lines():
        click.echo(line)


@cli.command(context_settings=CONTEXT)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for your shell.

    \b
    Example:
      quantmedic completion bash > ~/.local/share/bash-completion/completions/quantmedic
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "quantmedic", "_QUANTMEDIC_COMPLETE").source())


def _sensitivity(float_model: Path, quantized_model: Path, checkpoint: Path, options: dict[str, Any]) -> Any:
    import quantmedic

    options["preprocessing"] = parse_preprocessing_options(options)
    try:
        with progress_bars() as progress, interrupted_by_termination():
            return quantmedic.sensitivity(
                float_model, quantized_model, checkpoint=checkpoint, progress=progress, **options
            )
    except KeyboardInterrupt as interrupt:
        record = getattr(interrupt, "record", None)
        if record is None:
            raise
        click.echo(f"interrupted: {checkpoint} holds {len(record.runs)} of {len(record.planned)} runs", err=True)
        click.echo("help: add --resume to go on", err=True)
        sys.exit(130)


def _previous_case(path: Path | None) -> Any:
    from quantmedic import load_case

    return load_case(path) if path is not None else None


def _diagnose(
    float_model: Path,
    quantized_model: Path,
    rules: "RuleBase",
    output: Path,
    formats: Sequence[str],
    quiet: bool,
    verbose: bool,
    previous: Any = None,
    toolchain: str | None = None,
    **options: Any,
) -> None:
    """Collect, judge, write; then the same of the repaired model, if one was asked for."""
    fixed = options["write_fixed"]
    case = collect_case(float_model, quantized_model, rules=rules, **options)
    diagnosis = _judge_and_write(case, rules, output, formats, quiet, verbose, previous, toolchain)
    if fixed is None:
        return
    if diagnosis.verdict == "healthy":
        click.echo(f"there is nothing to repair, so {fixed} was not written")
        return
    if diagnosis.proof is None or not diagnosis.proof.chain:
        fail(
            f"no remedy was proven, so {fixed} was not written\n"
            "help: the report tells what was tried; more samples or a larger --budget may decide"
        )
    _compare_fixed(diagnosis, float_model, fixed, rules, options)


def _diagnose_failed(
    float_model: Path,
    rules: "RuleBase",
    output: Path,
    formats: Sequence[str],
    quiet: bool,
    verbose: bool,
    toolchain: str | None,
    **options: Any,
) -> None:
    """The same where quantization gave no model."""
    from quantmedic import collect_failed

    with progress_bars() as progress:
        case = collect_failed(float_model, rules=rules, progress=progress, **options)
    _judge_and_write(case, rules, output, formats, quiet, verbose, None, toolchain)


def _compare_fixed(
    before: "Diagnosis", float_model: Path, fixed: Path, rules: "RuleBase", options: dict[str, Any]
) -> None:
    """Diagnose the repaired model as the other one was, and print both."""
    from quantmedic import judge
    from quantmedic.reports.sections.fixed import fixed_lines

    own = {**options, "prove": None, "write_fixed": None, "checkpoint": None, "resume": False, "profile": False}
    if own.get("validation") is not None:
        own["representative"] = None  # It did not calibrate this model.
    after = judge(collect_case(float_model, fixed, rules=rules, **own), rules)
    for line in fixed_lines(before, after, fixed.name):
        click.echo(line)


def _judge_and_write(
    case: Any,
    rules: "RuleBase",
    output: Path,
    formats: Sequence[str],
    quiet: bool,
    verbose: bool,
    previous: Any = None,
    toolchain: str | None = None,
) -> "Diagnosis":
    from quantmedic import inspect, judge, write_report

    opened = inspect(case, rules)
    diagnosis = judge(opened, rules, previous=previous, toolchain=toolchain)
    written = write_report(diagnosis, output, formats=formats or FORMATS[:3], rules=rules, case=opened)
    _show(diagnosis, quiet, verbose)
    main_files = [(path, size) for path, size in written if path.parent == output]
    click.echo(wrote_text(main_files))
    return diagnosis


def _show(diagnosis: "Diagnosis", quiet: bool, verbose: bool) -> None:
    from quantmedic.reports.terminal.console import render_console, warning_lines

    for line in warning_lines(diagnosis):
        click.echo(line, err=True)
    text = render_console(
        diagnosis,
        verbosity=verbosity(quiet, verbose),
        color=with_color(),
        ascii_only=ascii_only(),
    )
    click.echo(text, nl=False)
    if not quiet:
        click.echo("")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point: turns every error into one readable message and exit code 2."""
    from quantmedic.engine.errors import QuantmedicError

    try:
        cli.main(args=arguments, prog_name="quantmedic", standalone_mode=False)
    except QuantmedicError as error:
        fail(str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(2)
    except Exception as error:
        if os.environ.get("QUANTMEDIC_DEBUG"):
            raise
        fail(
            f"internal error: {type(error).__name__}: {error}\n"
            "help: this is a defect of quantmedic; QUANTMEDIC_DEBUG=1 shows where, please report it"
        )
    sys.exit(0)


if __name__ == "__main__":
    main()
