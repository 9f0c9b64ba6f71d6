"""Lists that are made from the rule base: rules by family, causes, remedies, thresholds."""

from collections.abc import Iterator

from docs.markdown import Page
from quantmedic.engine.rules.remedies import Remedy
from quantmedic.engine.rules.rule import Rule
from quantmedic.engine.rules.rulebase import RuleBase


def list_pages(rules: RuleBase) -> dict[str, Page]:
    """The lists by path."""
    found = {
        "rules/index.md": "\n".join(_rule_lines(rules)),
        "causes.md": "\n".join(_cause_lines(rules)),
        "remedies.md": "\n".join(_remedy_lines(rules)),
        "thresholds.md": "\n".join(_threshold_lines(rules)),
    }
    return {path: Page(text + "\n", "Reference") for path, text in found.items()}


def _rule_lines(rules: RuleBase) -> Iterator[str]:
    yield "# All rules"
    yield ""
    yield f"{len(rules.rules)} rules judge the facts of a pair; each has a page, and examples that run as tests."
    families: dict[str, list[Rule]] = {}
    for rule in rules.rules:
        families.setdefault(rule.family, []).append(rule)
    for family, members in families.items():
        yield from ["", f"## {family.capitalize()}", "", "| rule | name | severity | asked of |", "|---|---|---|---|"]
        yield from (f"| [{rule.id}]({rule.id}.md) | {rule.name} | {rule.severity} | {rule.scope} |" for rule in members)


def _cause_lines(rules: RuleBase) -> Iterator[str]:
    yield "# Causes"
    yield ""
    yield "A report ranks causes. Most have one rule that speaks for them, some have several."
    causes: dict[str, list[Rule]] = {}
    for rule in rules.rules:
        causes.setdefault(rule.cause, []).append(rule)
    for cause in sorted(causes):
        yield from ["", f"## {cause}", ""]
        yield from (f"* [{rule.id} {rule.name}](rules/{rule.id}.md)" for rule in causes[cause])


def _remedy_lines(rules: RuleBase) -> Iterator[str]:
    yield "# Remedies"
    yield ""
    yield "What each remedy changes, what it costs, when it is useless or unsafe, and for which toolchains."
    for remedy in sorted(rules.remedies.values(), key=lambda each: each.title):
        yield from ["", f"## {remedy.title}", "", *_facts_of(remedy, rules)]


def _facts_of(remedy: Remedy, rules: RuleBase) -> Iterator[str]:
    titles = {toolchain.name: toolchain.title for toolchain in rules.toolchains}
    written = sorted({titles.get(each.toolchain, each.toolchain) for each in remedy.snippets})
    advised = [f"[{rule.id}](rules/{rule.id}.md)" for rule in rules.rules if remedy.id in rule.remedies]
    yield f"* What changes: {_as_text(remedy.changes)}."
    yield f"* Cost: {_as_text(remedy.cost.says)}."
    yield f"* Useless or unsafe: {_as_text(remedy.unsafe)}."
    yield f"* Written for: {', '.join(written) or 'no toolchain'}."
    if advised:
        yield f"* Advised by: {', '.join(advised)}."


def _threshold_lines(rules: RuleBase) -> Iterator[str]:
    yield "# Thresholds"
    yield ""
    yield "Figures that rules compare facts with. A policy or `--threshold NAME=VALUE` changes them."
    yield from ["", "| threshold | value | what it means | source |", "|---|--:|---|---|"]
    for name, each in sorted(rules.thresholds.items()):
        unit = f" {each.unit}" if each.unit else ""
        cells = [f"`{name}`", f"{each.value:g}{unit}", _as_text(each.description), _as_text(each.source)]
        yield f"| {' | '.join(cells)} |"


def _as_text(text: str) -> str:
    """A text of the rule base as one line in which nothing is markup but code."""
    return " ".join(text.split()).rstrip(".").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
