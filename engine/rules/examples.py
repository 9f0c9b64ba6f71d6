"""Examples of a rule: facts on which it fires or stays silent. They stand behind the rule in its file, and test it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pydantic import ValidationError

from quantmedic.engine.case.facts import CaseFacts, fact_paths
from quantmedic.engine.errors import RuleError
from quantmedic.engine.input_files import read_text
from quantmedic.engine.rules.conditions import Condition, Node
from quantmedic.engine.rules.evaluate import conditions_deciding, evaluate, holds, limit_of, look_up, subjects
from quantmedic.engine.rules.rule import Rule
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.rules.yaml_files import lines_of_items, read_yaml
from quantmedic.engine.text import suggest

Kind = Literal["fires", "silent"]
#: The first line of a page: the name of its cause, and the rules that it explains.
_TITLE = re.compile(r"\A# \S+ \(([A-Z]\d{3}(?:, [A-Z]\d{3})*)\)$", re.M)


@dataclass(frozen=True)
class Example:
    """Nested facts, and what they are about; ``number`` counts those of its kind from 1, ``line`` is in the file."""

    kind: Kind
    number: int
    line: int
    about: str
    facts: Mapping[str, object]


@dataclass(frozen=True)
class Reason:
    """A comparison that decided an example: the fact's value, and whether the condition holds."""

    condition: Condition
    value: object
    limit: object
    holds: bool


@dataclass(frozen=True)
class Outcome:
    """What a rule said about one example; ``missing`` names the facts that it could not be judged without."""

    example: Example
    verdict: str
    passed: bool
    reasons: tuple[Reason, ...]
    missing: tuple[str, ...]


def read_page(path: Path) -> str:
    """The manual page that lies beside a rule.

    Raises:
        RuleError: It cannot be read, or is not text.
        LimitError: It is too large.
    """
    try:
        return read_text(path)
    except OSError as error:
        raise RuleError("the page cannot be read", where=f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RuleError("the page is not UTF-8 text", where=f"{path}: byte {error.start}") from error


def explained_rules(page: str) -> tuple[str, ...]:
    """Ids of the rules that a page explains, as its title lists them; the first names its file."""
    title = _TITLE.match(page)
    return tuple(title[1].split(", ")) if title else ()


def rule_examples(rule: Rule) -> list[Example]:
    """Examples of a rule in their order; a rule that was read from no file has none.

    Raises:
        RuleError: They are no YAML, or no list of mappings with one of ``fires`` and ``silent``; names the line.
        LimitError: They are too large or too deep.
    """
    if rule.path is None:
        return []
    items = read_yaml(rule.path, part=1)
    if items is None:
        return []
    if not isinstance(items, list):
        raise RuleError("examples are a list, each with `fires:` or `silent:` and facts", where=str(rule.path))
    found: list[Example] = []
    for item, line in zip(items, lines_of_items(rule.path), strict=True):
        kind, facts = _kind_and_facts(item, f"{rule.path}:{line}")
        number = 1 + sum(example.kind == kind for example in found)
        found.append(Example(kind, number, line, str(item.get("about", "")), facts))
    return found


def _kind_and_facts(item: object, where: str) -> tuple[Kind, dict[str, object]]:
    kinds = [kind for kind in get_args(Kind) if isinstance(item, dict) and kind in item]
    if not isinstance(item, dict) or len(kinds) != 1 or item.keys() - {*kinds, "about"}:
        raise RuleError("an example has one of `fires` and `silent`, and may have `about`", where=where)
    if not isinstance(facts := item[kinds[0]], dict):
        raise RuleError(f"an example is a mapping of facts, not {facts!r}", where=where)
    return kinds[0], facts


def example_case(rule: Rule, values: Mapping[str, object], where: str = "") -> CaseFacts:
    """The facts of an example as a case with one subject of the rule's scope.

    Raises:
        RuleError: A fact is unknown or cannot have the value given; suggests the nearest.
    """
    own: Mapping[str, object] = values
    case: dict[str, object] = {"model": values}
    if rule.scope != "model":
        own = {key: value for key, value in values.items() if key != "model"}
        case = {"model": values.get("model", {}), f"{rule.scope}s": [own]}
    try:
        return CaseFacts.model_validate(case)
    except ValidationError as error:
        problem = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        keys = [str(key) for key in problem["loc"] if not isinstance(key, int)]
        path = ".".join(keys[1:] if rule.scope == "model" or keys[0] != "model" else keys)
        if problem["type"] != "extra_forbidden":
            raise RuleError(f"fact {path!r} of an example: {problem['msg'].lower()}", where=where) from error
        known = fact_paths(rule.scope)
        raise RuleError(f"unknown fact {path!r} in an example{_nearest(path, known)}", where=where) from error


def run_example(rule: Rule, example: Example, base: RuleBase) -> Outcome:
    """Judge an example by its rule: ``fires`` has to fire, ``silent`` has to be silent by decision.

    Raises:
        RuleError: A fact of it is unknown, or has a value that it cannot have.
    """
    case = example_case(rule, example.facts, f"{rule.path}:{example.line}")
    (result,) = evaluate(base.model_copy(update={"rules": (rule,)}), case)
    wanted = ("fired",) if example.kind == "fires" else ("passed", "not-applicable")
    missing = tuple(dict.fromkeys(fact for unknown in result.unknown for fact in unknown.missing))
    passed = result.verdict in wanted
    return Outcome(example, result.verdict, passed, _reasons(rule, case, base), missing)


def _reasons(rule: Rule, case: CaseFacts, base: RuleBase) -> tuple[Reason, ...]:
    """The comparisons that decided; those behind a negation included, unlike in the evidence of a finding."""
    view = subjects(rule.scope, case)[0]

    def value_at(path: str) -> object:
        return look_up(path, view, case.model)

    def decide(node: Node) -> tuple[bool | None, tuple[Reason, ...]]:
        verdict, used = conditions_deciding(node, value_at, base, behind_not=True)
        values = [(own, value_at(own.fact)) for own in used]
        return verdict, tuple(Reason(c, v, limit_of(c, base), bool(holds(c, v, base))) for c, v in values)

    if rule.where is not None:
        asked, reasons = decide(rule.where)
        if not asked:
            return reasons
    return decide(rule.when)[1]


def _nearest(path: str, known: Iterable[str]) -> str:
    """A suggestion among the facts, or among the groups of facts where a whole group is misspelt."""
    known = list(known)
    groups = {path.rpartition(".")[0] for path in known} - {""}
    return suggest(path, [*known, *groups])
