"""The commands ``rules`` and ``explain``: what the rules are, and rules of the user's own."""

from collections.abc import Sequence
from pathlib import Path

import click

from quantmedic.api.authoring import (
    fact_lines,
    lint_rules,
    new_rule,
    outcome_line,
    remark_lines,
    run_examples,
    summary,
)
from quantmedic.api.explain import explanation
from quantmedic.api.options import RuleOptions
from quantmedic.api.thresholds import rules_in_force
from quantmedic.cli.groups import Command, OrderedGroup, option
from quantmedic.cli.options import CONTEXT, rule_options
from quantmedic.cli.streams import print_format, print_line, print_report
from quantmedic.cli.terminal import print_markdown, with_color
from quantmedic.cli.values import OutputFolder
from quantmedic.engine.case.fact_base import Scope
from quantmedic.engine.case.facts import SCOPES
from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.reports.terminal.lines import paint_style, plain
from quantmedic.reports.text import with_page_names


@click.command(cls=Command, context_settings=CONTEXT)
@click.argument("words", nargs=-1, metavar="[CODE]")
@rule_options.only("folders")
@click.pass_context
def explain(context: click.Context, /, words: Sequence[str], rules: RuleOptions) -> None:
    """Print the manual page of a rule, a cause, a fact, a threshold, a topic or a command; of a word, what the manual
    says of it. Without CODE: the index of all pages.

    \b
    Examples:
      quantmedic explain D005
      quantmedic explain activation-outliers
      quantmedic explain data.rounding.sqnr_db
      quantmedic explain gptq
      quantmedic explain severity
      quantmedic explain out of memory
      quantmedic explain calibrations
    """
    code = " ".join(words) or "index"
    try:
        page = explanation(code, rules.folders)
    except QuantmedicError:
        command = _command(context.find_root(), code)
        if command is None:
            raise
        print_format(command + "\n")
        return
    print_markdown(with_page_names(page))


def _command(root: click.Context, name: str) -> str | None:
    """The help of a command that has no page of its own."""
    group = root.command
    command = group.get_command(root, name) if isinstance(group, click.Group) else None
    return command.get_help(command.context_class(command, root, info_name=name)) if command is not None else None


@click.group(cls=OrderedGroup, invoke_without_command=True, context_settings=CONTEXT)
@option("--thresholds", "show_thresholds", is_flag=True, hidden=True, help="As `rules thresholds`.")
@rule_options.only("folders", "select", "ignore")
@click.pass_context
def rules(context: click.Context, /, show_thresholds: bool, rules: RuleOptions) -> None:
    """List the rules: id, severity, scope, name; or write and test your own.

    \b
    Examples:
      quantmedic rules
      quantmedic rules thresholds
      quantmedic rules new wide-input-range --scope tensor --output my-rules
      quantmedic rules test my-rules
    """
    if context.invoked_subcommand is not None:
        return
    base = rules_in_force(rules)
    if show_thresholds:
        _list_thresholds(base)
        return
    for rule in sorted(base.rules, key=lambda rule: rule.id):
        print_line(f"{rule.id}  {rule.severity:6}  {rule.scope:8} {rule.name}")
    print_line(f"{len(base.rules)} rules; quantmedic explain CODE prints the page of one")


def _list_thresholds(base: RuleBase) -> None:
    for t in base.thresholds.values():
        print_line(f"{t.name:32} {t.value:>9g} {t.unit or '':8} {t.description} ({t.source})")


@rules.command("thresholds", context_settings=CONTEXT)
@rule_options.only("folders", "thresholds", "threshold_file")
def rules_thresholds(rules: RuleOptions) -> None:
    """List the thresholds in force: name, value, unit, what it is for, and who set it.

    \b
    Examples:
      quantmedic rules thresholds
      quantmedic rules thresholds --thresholds mine.yaml
    """
    _list_thresholds(rules_in_force(rules))


@rules.command("new", context_settings=CONTEXT)
@click.argument("name")
@option("--id", "code", metavar="U001", help="Id of the rule. [default: the next free one]")
@option(
    "--scope", type=click.Choice(list(SCOPES)), default="layer", show_default=True, help="What the rule ranges over."
)
@option("--output", "-o", type=OutputFolder(), default="my-rules", show_default=True, help="Folder.")
def rules_new(name: str, code: str | None, scope: Scope, output: Path) -> None:
    """Write a small rule and its page with examples, ready to be edited.

    \b
    Example:
      quantmedic rules new wide-input-range --scope tensor --output my-rules
    """
    rule, page = new_rule(name, output, code=code, scope=scope)
    print_line(f"wrote {rule} and {page}")
    print_line(f"edit {rule.name}: conditions, message and remedies; {page.name}: the text, and facts as examples")
    print_line(f"facts: quantmedic rules facts --scope {scope}")
    print_line(f"next: quantmedic rules test {output}")


@rules.command("facts", context_settings=CONTEXT)
@click.argument("word", default="")
@option("--scope", type=click.Choice(list(SCOPES)), help="Only those of one scope.")
def rules_facts(word: str, scope: Scope | None) -> None:
    """List the facts that a rule may name, with unit and formula; WORD narrows them.

    \b
    Examples:
      quantmedic rules facts --scope layer
      quantmedic rules facts clipping
    """
    for line in fact_lines(scope, word):
        print_line(line)


@rules.command("lint", context_settings=CONTEXT)
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FOLDER…")
def rules_lint(folders: Sequence[Path]) -> None:
    """Check your rules without running their examples.

    Exit codes: 0 no errors, 1 a rule is refused, 2 could not do its job.

    \b
    Example:
      quantmedic rules lint my-rules
    """
    _check_rules(folders, with_examples=False)


@rules.command("test", context_settings=CONTEXT)
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FOLDER…")
def rules_test(folders: Sequence[Path]) -> None:
    """Check your rules, and run the examples on their pages.

    Exit codes: 0 no errors, 1 a rule is refused or contradicts an example, 2 could not do its job.

    \b
    Example:
      quantmedic rules test my-rules
    """
    _check_rules(folders, with_examples=True)


def _check_rules(folders: Sequence[Path], *, with_examples: bool) -> None:
    base, own, remarks = lint_rules(folders)
    paint = paint_style if with_color() else plain
    for remark in remarks:
        head, *rest = remark_lines(remark)
        print_report(paint(head, "high" if remark.level == "error" else "medium") + "\n")
        for line in rest:
            print_line(line)
    tested = run_examples(base, own) if with_examples else []
    for test in tested:
        print_line(f"{test.rule.id} {test.rule.name}")
        for outcome in test.outcomes:
            print_line(outcome_line(outcome))
        if test.error is not None:
            print_report(f"{paint('error: ', 'failed')}{test.error}\n")
    print_line(summary(len(own), remarks, tested if with_examples else None))
    refused = any(remark.level == "error" for remark in remarks) or any(test.failed for test in tested)
    raise click.exceptions.Exit(1 if refused else 0)
