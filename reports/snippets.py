"""Remedies as text that can be copied: the names of this model's layers filled in."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from quantmedic.engine.advice import Advice
from quantmedic.engine.errors import RuleError
from quantmedic.engine.rule import EACH_FIELDS, NAME_FIELDS, SNIPPET_FIELD
from quantmedic.reports.text import escaped

TOOLCHAIN_NAMES = {"onnxruntime": "ONNX Runtime"}
TOOLCHAIN_ALIASES = {"onnx.quantize": "onnxruntime"}


def render_snippet(code: str, fields: Mapping[str, Any], origin: str) -> str:
    """Fill the fields of a snippet with names and values; ``{{`` and ``}}`` are braces.

    Any other brace stays as it is, so that a snippet of a user's rule cannot read attributes.

    Args:
        code: Text of the snippet.
        fields: Lists of names, numbers, or tables of numbers by name, as given by ``Advice.fields``.
        origin: Rule and remedy, for the error.

    Raises:
        RuleError: The snippet asks for names, and there are none.
    """

    def fill(match: re.Match[str]) -> str:
        if not match[1]:
            return match[0][0]
        if match[1] in NAME_FIELDS:
            return literal(_required(match[1], fields, origin))
        return match[0] if fields.get(match[1]) is None else literal(fields[match[1]])

    lines = [each for line in code.strip("\n").splitlines() for each in _repeated(line, fields, origin)]
    return SNIPPET_FIELD.sub(fill, "\n".join(lines))


def _repeated(line: str, fields: Mapping[str, Any], origin: str) -> Iterator[str]:
    """A line that asks for one name at a time stands once for each; what it says beside that is filled in later."""
    names = {field: kind for field, kind in EACH_FIELDS.items() if field in SNIPPET_FIELD.findall(line)}
    if not names:
        yield line
        return
    ((field, kind),) = names.items()
    for each in _required(kind, fields, origin):
        literal_braces = quote(each).replace("{", "{{").replace("}", "}}")
        yield line.replace(f"{{{field}}}", literal_braces)


def _required(field: str, fields: Mapping[str, Any], origin: str) -> Any:
    """A list of names that must not be empty."""
    if not fields.get(field):
        raise RuleError(
            f"a snippet names {NAME_FIELDS[field]}, and there are none",
            where=origin,
            help="advise this remedy only for causes that name layers or tensors",
        )
    return fields[field]


def render_snippets(advice: Advice, rules: Iterable[str]) -> list[str]:
    """The code of every snippet of an advice, in order."""
    origin = f"{', '.join(rules)}: {advice.id}"
    return [render_snippet(snippet.code, advice.fields, origin) for snippet in advice.snippets]


def literal(value: Any) -> str:
    """Names, numbers and tables of them that Python, JSON and YAML read alike."""
    if isinstance(value, Mapping):
        rows = ", ".join(f"{quote(name)}: {literal(row)}" for name, row in value.items())
        return f"{{{rows}}}"
    if isinstance(value, str | bool):
        return quote(value) if isinstance(value, str) else json.dumps(value)
    if isinstance(value, Iterable):
        return f"[{', '.join(map(literal, value))}]"
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def quote(name: str) -> str:
    """A name as a double-quoted literal, exact, without any character that markup or terminals act upon."""
    text = json.dumps(name, ensure_ascii=False)
    return "".join(c if c.isprintable() and c not in "<>&`" else escaped(c) for c in text)


def preferred(toolchains: Sequence[str], toolchain: str | None) -> int:
    """Place of the toolchain that quantized the model among those offered, else the first."""
    return next((place for place, offered in enumerate(toolchains) if is_same(offered, toolchain)), 0)


def is_same(offered: str, toolchain: str | None) -> bool:
    """Whether a toolchain of the remedies is the one that a model says it was quantized by."""
    wanted = _key(toolchain or "")
    wanted, key = TOOLCHAIN_ALIASES.get(wanted, wanted), _key(offered)
    return bool(wanted) and (key in wanted or wanted in key)


def _key(toolchain: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", toolchain.lower())
