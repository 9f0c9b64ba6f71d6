"""The command ``explain``: what the manual says, what rules, thresholds and facts there are, and rules of one's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from quantmedic.api.authoring import fact_lines, lint_rules, new_rule, outcome_line, remark_lines, run_examples, summary
from quantmedic.api.explain import explanation
from quantmedic.api.options import Option, RuleOptions
from quantmedic.api.rulebase import rules_in_force
from quantmedic.cli.groups import Command, declared_group
from quantmedic.cli.options import rule_options
from quantmedic.cli.streams import print_format, print_line, print_report
from quantmedic.cli.terminal import print_markdown, with_color
from quantmedic.engine.case.fact_base import Scope
from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.reports.terminal.lines import paint_style, plain
from quantmedic.reports.text import with_page_names


@dataclass(frozen=True)
class AuthoringOptions:
    """What is listed, written or tested in place of a page."""

    listed: Literal["rules", "thresholds", "facts"] | None = Option(
        "List all rules, the thresholds in force, or the facts that a rule may name; CODE narrows these.",
        "--list",
        daily=True,
    ).field()
    new_rule: str | None = Option(
        "Write a small rule with examples and its page, ready to be edited.", takes="NAME", daily=True
    ).field()
    test_rules: Sequence[Path] = Option(
        "Check the rules of this folder, and run their examples; repeat.", takes="FOLDER", daily=True
    ).field(())
    scope: Scope | None = Option(
        "What --new-rule ranges over, or --list facts shows. [default: layer, or all]", daily=True
    ).field()
    output: Path = Option("Folder of --new-rule. [default: my-rules]", "--output -o", kind="folder", daily=True).field(
        Path("my-rules")
    )


authoring_options = declared_group("authoring", AuthoringOptions, "Choice")


@click.command(cls=Command)
@click.argument("words", nargs=-1, metavar="[CODE]")
@authoring_options
@rule_options.only("folders", "thresholds")
@click.pass_context
def explain(context: click.Context, /, words: Sequence[str], authoring: AuthoringOptions, rules: RuleOptions) -> None:
    """Print the manual page of a rule, a cause, a fact, a threshold, a topic or a command; of a word, what the manual
    says of it. Without CODE: the index of all pages.

    Exit codes: 0 printed; 1 a rule of --test-rules is refused or contradicts an example; 2 could not do its job.

    \b
    Examples:
      quantmedic explain D005
      quantmedic explain activation-outliers
      quantmedic explain out of memory
      quantmedic explain --list facts clipping
      quantmedic explain --new-rule wide-input-range --scope tensor -o my-rules
      quantmedic explain --test-rules my-rules
    """
    if authoring.listed is not None:
        _print_list(authoring.listed, " ".join(words), authoring.scope, rules)
    elif authoring.new_rule is not None:
        _write_rule(authoring.new_rule, authoring.scope or "layer", authoring.output)
    elif authoring.test_rules:
        _test_rules(authoring.test_rules)
    else:
        _print_page(context.find_root(), " ".join(words) or "index", rules)


def _print_page(root: click.Context, code: str, rules: RuleOptions) -> None:
    try:
        page = explanation(code, rules.folders)
    except QuantmedicError:
        command = _command(root, code)
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


def _print_list(listed: str, word: str, scope: Scope | None, rules: RuleOptions) -> None:
    if listed == "facts":
        for line in fact_lines(scope, word):
            print_line(line)
        return
    base = rules_in_force(rules)
    if listed == "thresholds":
        _list_thresholds(base)
        return
    for rule in sorted(base.rules, key=lambda rule: rule.id):
        print_line(f"{rule.id}  {rule.severity:6}  {rule.scope:8} {rule.name}")
    print_line(f"{len(base.rules)} rules; quantmedic explain CODE prints the page of one")


def _list_thresholds(base: RuleBase) -> None:
    for t in base.thresholds.values():
        print_line(f"{t.name:32} {t.value:>9g} {t.unit or '':8} {t.description} ({t.source})")


def _write_rule(name: str, scope: Scope, output: Path) -> None:
    rule, page = new_rule(name, output, scope=scope)
    print_line(f"wrote {rule} and {page}")
    print_line(
        f"edit {rule.name}: conditions, message, remedies and examples; {page.name}: what is wrong and what to do"
    )
    print_line(f"facts: quantmedic explain --list facts --scope {scope}")
    print_line(f"next: quantmedic explain --test-rules {output}")


def _test_rules(folders: Sequence[Path]) -> None:
    base, own, remarks = lint_rules(folders)
    paint = paint_style if with_color() else plain
    for remark in remarks:
        head, *rest = remark_lines(remark)
        print_report(paint(head, "high" if remark.level == "error" else "medium") + "\n")
        for line in rest:
            print_line(line)
    tested = run_examples(base, own)
    for test in tested:
        print_line(f"{test.rule.id} {test.rule.name}")
        for outcome in test.outcomes:
            print_line(outcome_line(outcome))
        if test.error is not None:
            print_report(f"{paint('error: ', 'failed')}{test.error}\n")
    print_line(summary(len(own), remarks, tested))
    refused = any(remark.level == "error" for remark in remarks) or any(test.failed for test in tested)
    raise click.exceptions.Exit(1 if refused else 0)
