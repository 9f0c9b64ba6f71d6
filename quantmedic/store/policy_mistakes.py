"""Mistakes in a policy file, in words that need no knowledge of Python: key, value, line, and a suggestion."""

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from itertools import islice
from pathlib import Path
from typing import NamedTuple, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from quantmedic.collectors.data.functions import FUNCTION
from quantmedic.engine.errors import PolicyError
from quantmedic.engine.gate.policy import AGREEMENT, KL, SAME_TOP, SQNR, Budget, Policy, PolicyFile
from quantmedic.engine.metrics.kinds import KINDS, built_in_kind
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.reports.text import visible
from quantmedic.store.toml_lines import Key

POLICY_NAME = "quantmedic.toml"
#: Table of a ``pyproject.toml`` that holds a policy.
TABLE = ("tool", "quantmedic")
EXPLAIN = "quantmedic explain check lists every key"
#: Mistakes that one error lists.
MOST_LISTED = 20


def _keys_of(table: type[BaseModel], above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Each key of a table and of those in it; a key of a list of tables is named without its place."""
    for name, field in table.model_fields.items():
        yield f"{above}{name}", field
        for part in _parts(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from _keys_of(part, f"{above}{name}.")


def _parts(annotation: object) -> Iterator[object]:
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)


#: All keys of a policy.
KEYS = dict(_keys_of(Policy))


class Mistake(NamedTuple):
    """One mistake, and the key at which it is."""

    key: Key
    text: str


def refusal(file: PolicyFile, mistakes: Iterable[Mistake], help: str = EXPLAIN) -> PolicyError:
    """One error for all mistakes, in the order of their lines; it stops beyond ``MOST_LISTED`` of them."""
    found = list(islice(mistakes, MOST_LISTED + 1))
    placed = sorted(((file.line(dotted_name(key)), text) for key, text in found), key=lambda each: each[0])
    path = file.path if file.path is not None else Path(POLICY_NAME)
    if len(placed) == 1:
        ((line, text),) = placed
        return PolicyError(text, where=place(path, line), help=help)
    rows = [f"{place(path, line)}: {text}" for line, text in placed[:MOST_LISTED]]
    many = f"more than {MOST_LISTED}" if len(placed) > MOST_LISTED else str(len(placed))
    return PolicyError(f"the policy has {many} mistakes", where=rows, help=help)


def refuse(file: PolicyFile, mistakes: Iterable[Mistake], help: str = EXPLAIN) -> None:
    """Raise one error for the mistakes where there are any."""
    found = list(islice(mistakes, MOST_LISTED + 1))
    if found:
        raise refusal(file, found, help)


def place(path: Path, line: int | None = None) -> str:
    """``file:line``, which no CI system takes for a command, also of a file with an odd name."""
    shown = visible(str(path))
    shown = f"./{shown}" if shown.startswith((":", "#")) else shown
    return f"{shown}:{line}" if line else shown


def dotted_name(key: Key) -> str:
    """A key as `PolicyFile.lines` names it."""
    return ".".join(map(str, key))


def validation_mistakes(error: ValidationError) -> Iterator[Mistake]:
    """The mistakes that pydantic found, in our words; one of the parts of a union."""
    seen = set()
    for found in error.errors(include_url=False):
        mistake = _mistake_of(found)
        if mistake.key not in seen:
            seen.add(mistake.key)
            yield mistake


def wrong_thresholds(table: object) -> Iterator[Mistake]:
    """Thresholds that are not finite numbers."""
    for name, value in table.items() if isinstance(table, Mapping) else ():
        key = ("thresholds", name)
        # XQuant's thresholds of errors are one table, with a number per metric.
        nested = name == "threshold_quantize_error" and isinstance(value, Mapping)
        for each, number in [((*key, metric), of) for metric, of in value.items()] if nested else [(key, value)]:
            if not _is_finite_number(number):
                yield Mistake(each, f"{_key_name(each)} must be a finite number, not {_toml_text(number)}")


def wrong_budgets(file: PolicyFile) -> Iterator[Mistake]:
    """Budgets of a metric that does not exist, in a unit that it cannot have, or of a figure that has one already."""
    first: dict[tuple[str, str | None], int] = {}
    metrics = (*KINDS, AGREEMENT, SQNR, KL, SAME_TOP)
    for number, budget in enumerate(file.policy.check.budget):
        key = ("check", "budget", number)
        kind = built_in_kind(budget.metric)
        if kind is None and budget.metric not in metrics and not FUNCTION.fullmatch(budget.metric):
            near = suggestion(budget.metric, metrics) or f"; known: {', '.join(metrics)} and module:function"
            yield Mistake((*key, "metric"), f"unknown metric {in_quotes(budget.metric)}{near}")
        if budget.unit == "points" and kind is not None and not kind.is_share:
            yield Mistake((*key, "unit"), f"{budget.metric} has no points: write percent or absolute")
        if (twin := first.setdefault((budget.metric, budget.output), number)) != number:
            line = file.line(f"check.budget.{twin}")
            yield Mistake(key, f"{_budget_name(budget)} has a budget already, on line {line}")


def unknown_rule(selector: str, base: RuleBase) -> str:
    """A selector that matches no rule."""
    names = [name for rule in base.rules for name in (rule.id, rule.name, rule.cause, rule.family)]
    return f"no rule matches {in_quotes(selector)}{suggestion(selector, names)}"


def in_quotes(text: str) -> str:
    """A text of the policy inside of a message."""
    return f'"{visible(text, 60)}"'


def suggestion(name: str, known: Iterable[str]) -> str:
    """The nearest known name, ignoring case and hyphens; an empty text where none is near."""
    by_plain = {_plain_name(each): each for each in known}
    near = difflib.get_close_matches(_plain_name(name[:100]), by_plain, n=1)
    return f'; did you mean "{by_plain[near[0]]}"?' if near else ""


def _plain_name(name: str) -> str:
    return name.lower().replace("-", "_")


def _mistake_of(found: ErrorDetails) -> Mistake:
    kind, loc, value = found["type"], found["loc"], found["input"]
    if kind == "extra_forbidden":
        return _unknown_key(loc)
    key = _key_at(loc)
    name = _key_name(key)
    if kind == "value_error":
        return Mistake(key, visible(found["msg"].removeprefix("Value error, "), 200))
    wanted = KEYS[name].description
    if kind == "missing":
        return Mistake(key, f"{name} is missing: write {wanted}")
    if isinstance(key[-1], int):
        wanted = "a table" if name in ("check.budget", "ignore") else "text that is not empty"
        near = "; rules are left out by ignore under [rules]" if name == "ignore" else ""
        return Mistake(key, f"each of {name} must be {wanted}, not {_toml_text(value)}{near}")
    choices = [part for part in _parts(KEYS[name].annotation) if isinstance(part, str)]
    near = suggestion(value, choices) if isinstance(value, str) else ""
    return Mistake(key, f"{name} must be {wanted}, not {_toml_text(value)}{near}")


def _unknown_key(key: Key) -> Mistake:
    *above, last = key
    table, name = _key_name(tuple(above)), str(last)
    homes = [known.rpartition(".")[0] for known in KEYS if known.rpartition(".")[2] == name]
    siblings = [known.rpartition(".")[2] for known in KEYS if known.rpartition(".")[0] == table]
    if key == TABLE[:1]:
        near = f": a {POLICY_NAME} has its tables without [{dotted_name(TABLE)}]"
    elif homes:
        near = f"; it belongs in {_header(homes[0])}"
    else:
        near = suggestion(name, siblings)
    return Mistake(key, f"unknown key {in_quotes(name)} in {_header(table)}{near}")


def _header(table: str) -> str:
    """A table as the file writes it."""
    if not table:
        return "the policy"
    return f"[[{table}]]" if f"[[{table}]]" in (KEYS[table].description or "") else f"[{table}]"


def _key_at(loc: Key) -> Key:
    """The key at a place of pydantic, which goes on into the parts of a union."""
    key: Key = ()
    for part in loc:
        if isinstance(part, str) and _key_name((*key, part)) not in KEYS:
            break
        key += (part,)
    return key


def _is_finite_number(value: object) -> bool:
    try:
        return not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False


def _budget_name(budget: Budget) -> str:
    of = f" of output {in_quotes(budget.output)}" if budget.output is not None else ""
    return f"{in_quotes(budget.metric)}{of}"


def _key_name(key: Key) -> str:
    """A key as `KEYS` and messages name it: without places in lists."""
    return visible(".".join(part for part in key if isinstance(part, str)), 120)


def _toml_text(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return in_quotes(value)
        case dict():
            return "a table"
        case list() | tuple():
            return "a list"
        case date():
            return value.isoformat()
        case int() if abs(value) >= 10**18:
            return "a number that is too large"
    return visible(str(value), 60)
