"""What is wrong with a rule that loads: it names no figure, may fire without harm, or lacks a page or examples."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from quantmedic.engine.errors import RuleError
from quantmedic.engine.rules.conditions import Any_, Condition, Node, Not
from quantmedic.engine.rules.examples import Kind, rule_examples
from quantmedic.engine.rules.remedies import Remedy
from quantmedic.engine.rules.rule import FAMILIES, SERIOUS, Rule, message_fields
from quantmedic.engine.rules.rulebase import RuleBase

Level = Literal["error", "warning"]
#: Scopes of which a network has many subjects, so that a mere trait is found somewhere in every network.
MANY = ("layer", "tensor", "operand", "output")
_FIX = re.compile(r"(use|prefer|avoid|enable|disable|add|set|fix)-")


@dataclass(frozen=True)
class Remark:
    """One thing that is wrong with a rule, or with what its folder defines."""

    level: Level
    rule: str | None
    message: str
    where: tuple[str, ...] = ()
    help: str | None = None


def lint(base: RuleBase, pages: Mapping[str, str], builtin: RuleBase | None = None) -> list[Remark]:
    """What is wrong with the rules of a rule base, by rule, errors first.

    Args:
        base: The rules in force.
        pages: Manual pages as written, by rule id.
        builtin: Rules that are taken for granted, with what they define; all are looked at without it.
    """
    granted = {rule.id for rule in builtin.rules} if builtin is not None else set()
    remarks: list[Remark] = []
    for rule in base.rules:
        if rule.id not in granted:
            found = [*_harm(rule), *_wording(rule, builtin), *_page(rule, pages.get(rule.id)), *_examples(rule)]
            remarks += sorted(found, key=lambda remark: remark.level)
    return [*remarks, *_unused_definitions(base, builtin)] if builtin is not None else remarks


def _harm(rule: Rule) -> Iterable[Remark]:
    """A grave rule about single places asks for harm, whatever makes it fire."""
    if rule.scope not in MANY or rule.severity not in SERIOUS or rule.harm:
        return
    if not any(_minds_harm(node) for node in (rule.where, rule.when) if node is not None):
        yield _warn(
            rule,
            f"severity {rule.severity} without asking for harm: it may fire on networks that lost nothing",
            help_="add {fact: model.harmed, is: true} to its conditions, or say under harm what else shows it",
        )


def _minds_harm(node: Node) -> bool:
    """It holds only where harm was found, or was not measured."""
    if isinstance(node, Condition):
        asked = {"is": True, "known": False}.get(node.op)
        return node.fact == "model.harmed" and asked is not None and node.value is asked
    if isinstance(node, Not):
        return False
    return (all if isinstance(node, Any_) else any)(map(_minds_harm, node.parts))


def _wording(rule: Rule, builtin: RuleBase | None) -> Iterable[Remark]:
    """The name and the message."""
    if not message_fields(rule.message):
        yield _warn(rule, "the message names no fact", help_="say how much: {data.rounding.sqnr_db:.1f} dB")
    if _FIX.match(rule.name):
        yield _warn(
            rule, f"the name {rule.name!r} is that of a fix", help_="name what is wrong; remedies say what to do"
        )
    if builtin is None:
        return
    taken = [other.id for other in builtin.rules if other.name == rule.name]
    if taken:
        yield Remark(
            "error", rule.id, f"{taken[0]} is called {rule.name!r} already", _path(rule), "choose another name"
        )
    if rule.id[0] in FAMILIES:
        yield _warn(
            rule,
            f"ids with {rule.id[0]} belong to the built-in rules about {FAMILIES[rule.id[0]]}",
            help_="choose a letter that no family has, such as U",
        )


def _page(rule: Rule, page: str | None) -> Iterable[Remark]:
    if page is None:
        beside = str(rule.path.with_suffix(".md")) if rule.path is not None else f"{rule.id}.md"
        yield Remark(
            "error",
            rule.id,
            "it has no page",
            (beside,),
            "write one that says what is wrong and what to do: quantmedic explain --new-rule NAME shows the form",
        )
        return
    first = page.lstrip().partition("\n")[0]
    if not (first.startswith("# ") and rule.id in first):
        yield _warn(rule, "its page does not begin with its name", help_=f"begin with: # {rule.name} ({rule.id})")


def _examples(rule: Rule) -> Iterable[Remark]:
    """One example of each kind is required of a rule that stands in a file."""
    if rule.path is None:
        return
    try:
        kinds = {example.kind for example in rule_examples(rule)}
    except RuleError:
        return  # Said where they are run.
    words: dict[Kind, str] = {"fires": "it fires", "silent": "it stays silent"}
    for kind, does in words.items():
        if kind not in kinds:
            help_ = f"add one behind a line `---` at the end of the rule: - {kind}: {{FACT: VALUE}}"
            yield Remark("error", rule.id, f"it has no example on which {does}", _path(rule), help_)


def _unused_definitions(base: RuleBase, builtin: RuleBase) -> Iterable[Remark]:
    """Thresholds and remedies of the user's own that no rule uses, or that replace a built-in one."""
    asking: tuple[Rule | Remedy, ...] = (*base.rules, *base.remedies.values())
    used = {condition.threshold for asked in asking for condition in asked.conditions()}
    for name in base.thresholds.keys() - builtin.thresholds.keys() - used:
        yield Remark("warning", None, f"nothing uses the threshold {name}")
    prescribed = {remedy for rule in base.rules for remedy in rule.remedies}
    for name in base.remedies.keys() - builtin.remedies.keys() - prescribed:
        yield Remark("warning", None, f"no rule prescribes the remedy {name}")
    for name, remedy in builtin.remedies.items():
        if base.remedies[name] != remedy:
            yield Remark("warning", None, f"the remedy {name} replaces the built-in one")


def _path(rule: Rule) -> tuple[str, ...]:
    return (str(rule.path),) if rule.path is not None else ()


def _warn(rule: Rule, message: str, help_: str | None = None) -> Remark:
    return Remark("warning", rule.id, message, _path(rule), help_)
