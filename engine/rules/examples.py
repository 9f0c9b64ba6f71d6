"""Examples of a manual page: facts on which its rule fires or stays silent. The page is the test of its rule."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from quantmedic.engine.case.facts import CaseFacts, fact_paths
from quantmedic.engine.errors import RuleError
from quantmedic.engine.input_files import read_text
from quantmedic.engine.rules.conditions import Any_, Condition, Node, Not
from quantmedic.engine.rules.evaluate import evaluate, holds, limit_of, look_up, subjects
from quantmedic.engine.rules.rule import Rule
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.text import suggest
from quantmedic.engine.yaml_text import NotYaml, parse_yaml

Kind = Literal["fires", "silent"]
_EXAMPLE = re.compile(r"^```yaml (fires|silent)(?:[ \t]+([A-Z]\d{3}))?[ \t]*\n(.*?)^```", re.M | re.S)
#: The first line of a page: the name of its cause, and the rules that it explains.
_TITLE = re.compile(r"\A# \S+ \(([A-Z]\d{3}(?:, [A-Z]\d{3})*)\)$", re.M)


@dataclass(frozen=True)
class Example:
    """One fenced block of a page: ``number`` counts its kind from 1, ``line`` is that of the fence."""

    kind: Kind
    number: int
    line: int
    text: str


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


def page_examples(page: str, rule: str | None = None) -> list[Example]:
    """Examples of a manual page in their order.

    Args:
        page: The page in Markdown.
        rule: Id of a rule; leaves out blocks that name another, as in ``yaml fires W013``. None keeps all.
    """
    found: list[Example] = []
    for match in _EXAMPLE.finditer(page):
        if rule is not None and match[2] not in (None, rule):
            continue
        kind: Kind = "fires" if match[1] == "fires" else "silent"
        number = 1 + sum(example.kind == kind for example in found)
        found.append(Example(kind, number, page.count("\n", 0, match.start()) + 1, match[3]))
    return found


def example_values(example: Example, page: str = "page") -> dict[str, object]:
    """The nested facts of an example as they are written; ``page`` is named in errors.

    Raises:
        RuleError: The block is not a YAML mapping; names the line.
        LimitError: It is too large or too deep.
    """
    where = f"{page}:{example.line}"
    try:
        values = parse_yaml(example.text, where)
    except NotYaml as error:
        line = example.line + (error.line or 0)
        raise RuleError(f"an example is not valid YAML: {error.problem}", where=f"{page}:{line}") from error
    if not isinstance(values, dict):
        raise RuleError(f"an example is a mapping of facts, not {values!r}", where=where)
    return values


def example_case(rule: Rule, values: Mapping[str, object], where: str = "page") -> CaseFacts:
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


def run_example(rule: Rule, example: Example, base: RuleBase, page: str = "page") -> Outcome:
    """Judge an example by its rule: ``fires`` has to fire, ``silent`` has to be silent by decision.

    Raises:
        RuleError: The example cannot be read.
    """
    case = example_case(rule, example_values(example, page), f"{page}:{example.line}")
    better = tuple(other for other in base.rules if other.id in rule.yields_to)
    result = evaluate(base.model_copy(update={"rules": (rule, *better)}), case)[0]
    wanted = ("fired",) if example.kind == "fires" else ("passed", "not-applicable")
    missing = tuple(dict.fromkeys(fact for unknown in result.unknown for fact in unknown.missing))
    passed = result.verdict in wanted
    return Outcome(example, result.verdict, passed, _reasons(rule, case, base), missing)


def _reasons(rule: Rule, case: CaseFacts, base: RuleBase) -> tuple[Reason, ...]:
    """The comparisons that decided; those behind a negation included, unlike in the evidence of a finding."""
    view = subjects(rule.scope, case)[0]

    def value_at(path: str) -> object:
        return look_up(path, view, case.model)

    if rule.where is not None:
        asked, reasons = _decide(rule.where, value_at, base)
        if not asked:
            return tuple(reasons)
    verdict, reasons = _decide(rule.when, value_at, base)
    if rule.experiment is not None and not verdict:
        shown, found = _decide(rule.experiment.when, value_at, base)
        return tuple(found) if shown else tuple(reasons)
    return tuple(reasons)


def _decide(node: Node, value_at: Callable[[str], object], base: RuleBase) -> tuple[bool | None, list[Reason]]:
    """Verdict of a node in Kleene logic, and the comparisons that decided it."""
    if isinstance(node, Condition):
        value = value_at(node.fact)
        verdict = holds(node, value, base)
        return verdict, [Reason(node, value, limit_of(node, base), bool(verdict))]
    if isinstance(node, Not):
        verdict, reasons = _decide(node.not_, value_at, base)
        return None if verdict is None else not verdict, reasons
    decisive = isinstance(node, Any_)
    parts = [_decide(part, value_at, base) for part in node.parts]
    verdicts = [verdict for verdict, _ in parts]
    joined = decisive if decisive in verdicts else None if None in verdicts else not decisive
    return joined, [reason for verdict, reasons in parts if verdict is joined for reason in reasons]


def _nearest(path: str, known: Iterable[str]) -> str:
    """A suggestion among the facts, or among the groups of facts where a whole group is misspelt."""
    known = list(known)
    groups = {path.rpartition(".")[0] for path in known} - {""}
    return suggest(path, [*known, *groups])
