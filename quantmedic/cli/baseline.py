"""The commands ``baseline write`` and ``baseline prune``: the findings that are known."""

from pathlib import Path

import click

from quantmedic.api.checks import (
    case_baseline,
    load_baseline,
    policy_in_force,
    prune,
    rules_of,
    write_baseline,
)
from quantmedic.api.options import RuleOptions
from quantmedic.api.thresholds import rules_in_force
from quantmedic.cli.check import gate_options
from quantmedic.cli.groups import OrderedGroup, option
from quantmedic.cli.options import CONTEXT, rule_options
from quantmedic.cli.streams import print_line
from quantmedic.cli.values import OutputFile
from quantmedic.engine.gate.policy import PolicyFile
from quantmedic.engine.rules.rulebase import RuleBase

DEFAULT_BASELINE = "quantmedic-baseline.json"


@click.group(cls=OrderedGroup, context_settings=CONTEXT)
def baseline() -> None:
    """Keep the findings that are known, so that only new and worse ones fail.

    \b
    Examples:
      quantmedic baseline write report
      quantmedic baseline prune report
    """


@baseline.command("write", context_settings=CONTEXT)
@click.argument("case", type=click.Path(path_type=Path), metavar="CASE")
@gate_options.options["config"]
@option("--output", "-o", type=OutputFile(".json"), help="File. [default: the policy's baseline]")
@rule_options
def baseline_write(case: Path, config: Path | None, output: Path | None, rules: RuleOptions) -> None:
    """Write all findings of a case, or of a report's folder, to a baseline; an existing one is replaced.

    \b
    Example:
      quantmedic baseline write report -o quantmedic-baseline.json
    """
    policy = policy_in_force(config)
    findings = case_baseline(case, _policy_rules(policy, rules))
    target = output or _own_baseline(policy)
    write_baseline(findings, target)
    print_line(f"wrote {target}: {len(findings.findings)} findings of {findings.model or 'the model'}")


@baseline.command("prune", context_settings=CONTEXT)
@click.argument("case", type=click.Path(path_type=Path), metavar="CASE")
@gate_options.options["config"]
@option("--baseline", "file", type=click.Path(path_type=Path), help="File. [default: the policy's baseline]")
@rule_options
def baseline_prune(case: Path, config: Path | None, file: Path | None, rules: RuleOptions) -> None:
    """Remove findings that a case no longer has from a baseline; nothing is added.

    \b
    Example:
      quantmedic baseline prune report --baseline quantmedic-baseline.json
    """
    policy = policy_in_force(config)
    target = file or _own_baseline(policy)
    pruned = prune(load_baseline(target), case, _policy_rules(policy, rules))
    if pruned.removed:
        write_baseline(pruned.baseline, target)
    left = f"{len(pruned.baseline.findings)} left"
    unsure = f", {pruned.not_judged} of them not judged in this case" if pruned.not_judged else ""
    print_line(f"{target}: {pruned.removed} findings are gone, {left}{unsure}")


def _policy_rules(policy: PolicyFile, options: RuleOptions) -> RuleBase:
    return rules_in_force(options, lambda folders: rules_of(policy, folders))


def _own_baseline(policy: PolicyFile) -> Path:
    name = policy.policy.check.baseline
    return policy.beside(name) if name is not None else Path(DEFAULT_BASELINE)
