"""Names that rules and remedies use: facts, thresholds, remedies, other rules and fields have to exist and to fit."""

import math
import re
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from quantmedic.engine.case.facts import SCOPES, Scope, fact_paths
from quantmedic.engine.errors import RuleError
from quantmedic.engine.rules.conditions import Condition
from quantmedic.engine.rules.remedies import EACH_FIELDS, NAME_FIELDS, VALUE_FIELDS, Remedy, can_be_shown
from quantmedic.engine.rules.rule import Rule, message_formats
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.rules.yaml_files import place_of_keys, place_of_text
from quantmedic.engine.text import suggest

#: A format with a width or a precision of three digits: texts as long as memory, of which a rule needs none.
_TOO_WIDE = re.compile(r"\d{3}")


def check_rule(rule: Rule, base: RuleBase) -> None:
    """Refuse a rule that names what does not exist, or compares or writes a fact as it cannot be.

    Raises:
        RuleError: Names the place and the nearest known name.
    """
    path = rule.path or Path(rule.id)
    try:
        formats = message_formats(rule.message)
    except ValueError as error:
        where = place_of_keys(path, ["message"])
        raise RuleError(f"the message is not a valid format string: {error}", where=where) from error
    used = [*(condition.fact for condition in rule.conditions()), *(name for name, _ in formats), *rule.shows]
    known = _check_facts(used, rule.scope, lambda name: place_of_text(path, name))
    _check_conditions(rule.conditions(), known, base, path)
    _check_formats(formats, known, lambda name: place_of_text(path, f"{name}:"))
    for remedy in rule.remedies:
        if remedy not in base.remedies:
            raise RuleError(
                f"unknown remedy {remedy!r}{suggest(remedy, base.remedies)}", where=place_of_text(path, remedy)
            )
        if not can_be_shown(base.remedies[remedy], rule):
            raise RuleError(
                f"every snippet of {remedy!r} names layers or tensors, but {rule.id} finds none",
                where=place_of_text(path, remedy),
                help="add a snippet for the whole model to the remedy, or name another remedy",
            )


def check_remedy(remedy: Remedy, base: RuleBase, path: Path) -> None:
    """The same of a remedy, which was read from ``path``.

    Raises:
        RuleError: Names the place and the nearest known name.
    """

    def place(*keys: object) -> str:
        return place_of_keys(path, [remedy.id, *keys])

    try:
        facts = remedy.facts()
    except ValueError as error:
        raise RuleError(f"the reason is not a valid format string: {error}", where=place("withheld")) from error
    known = _check_facts(facts, remedy.scope, lambda name: place())
    _check_conditions(remedy.conditions(), known, base, path)
    formats = [found for reason in remedy.withheld for found in message_formats(reason.because)]
    _check_formats(formats, known, lambda name: place("withheld"))
    fields = {*NAME_FIELDS, *EACH_FIELDS, *VALUE_FIELDS, *remedy.values}
    for number, snippet in enumerate(remedy.snippets):
        for name in sorted(snippet.fields - fields):
            raise RuleError(
                f"unknown field {name!r}{suggest(name, fields)}",
                where=place("snippets", number, "code" if snippet.code else "options"),
                help=f"known: {', '.join(sorted(fields))}; braces that are meant literally are doubled",
            )


def _check_facts(names: Iterable[str], scope: Scope, place: Callable[[str], str]) -> Mapping[str, FieldInfo]:
    """All facts of a scope, which has to have those that are named."""
    known = fact_paths(scope)
    for name in names:
        if name not in known:
            help_ = f"facts of scope {scope} start at {SCOPES[scope].__name__}"
            raise RuleError(f"unknown fact {name!r}{suggest(name, known)}", where=place(name), help=help_)
    return known


def _check_formats(
    formats: Iterable[tuple[str, str]], known: Mapping[str, FieldInfo], place: Callable[[str], str]
) -> None:
    for name, spec in formats:
        if _TOO_WIDE.search(spec) or not _can_be_written(known[name].annotation, spec):
            raise RuleError(f"{name} cannot be written with the format {spec!r}", where=place(name))


def _check_conditions(
    conditions: Iterable[Condition], known: Mapping[str, FieldInfo], base: RuleBase, path: Path
) -> None:
    for condition in conditions:
        if condition.threshold and condition.threshold not in base.thresholds:
            near = suggest(condition.threshold, base.thresholds)
            raise RuleError(
                f"unknown threshold {condition.threshold!r}{near}",
                where=place_of_text(path, "$" + condition.threshold),
            )
        if not _fits(condition, known[condition.fact].annotation):
            text = f"{condition.fact} cannot be compared with {condition.op}: {condition.value!r}"
            raise RuleError(text, where=place_of_text(path, condition.fact))


def _fits(condition: Condition, annotation: object) -> bool:
    """The condition compares its fact with something that the fact can be."""
    value, op = condition.value, condition.op
    if op == "known":
        return isinstance(value, bool)
    if condition.threshold:
        return _is_numeric(annotation)
    if op in ("gt", "ge", "lt", "le"):
        number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
        return number and _is_numeric(annotation)
    choices = value if op == "in" else [value]
    return isinstance(choices, list) and all(_can_be(annotation, choice) for choice in choices)


def _can_be(annotation: Any, value: object) -> bool:
    adapter: TypeAdapter[object] = TypeAdapter(annotation)
    try:
        adapter.validate_python(value, strict=True)
    except ValidationError:
        return False
    return value is not None


def _is_numeric(annotation: object) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in _sample_values(annotation))


def _can_be_written(annotation: object, spec: str) -> bool:
    try:
        return all(isinstance(format(value, spec), str) for value in _sample_values(annotation))
    except (TypeError, ValueError):
        return False


def _sample_values(annotation: object) -> list[object]:
    """One value of every type that a fact can have, None left out."""
    origin = get_origin(annotation)
    if origin is Literal:
        return list(get_args(annotation))
    if origin in (Union, types.UnionType):
        return [value for part in get_args(annotation) for value in _sample_values(part)]
    kind = origin or annotation
    return [kind()] if isinstance(kind, type) and kind is not types.NoneType else []
