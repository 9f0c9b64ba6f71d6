"""What a code means: a rule, a cause, a fact of the glossary, or a general topic."""

import difflib
from collections.abc import Iterable
from pathlib import Path

from quantmedic.api.rulebase import load_manuals, load_rulebase
from quantmedic.engine.case.fact_base import declared_unit
from quantmedic.engine.case.facts import SCOPES, fact_paths
from quantmedic.engine.errors import QuantmedicError


def explanation(code: str, rule_folders: Iterable[str | Path] = ()) -> str:
    """Manual page in Markdown.

    Raises:
        QuantmedicError: Nothing of that name is known; suggests the nearest.
    """
    base = load_rulebase(rule_folders)
    pages = load_manuals(base)
    wanted = code.strip()
    for rule in base.rules:
        if wanted.upper() == rule.id or wanted in (rule.name, rule.cause):
            return pages[rule.id]
    for page in (wanted, f"general/{wanted}"):
        if page in pages:
            return pages[page]
    facts = {path: (scope, field) for scope in SCOPES for path, field in fact_paths(scope).items()}
    if wanted in facts:
        scope, field = facts[wanted]
        unit = declared_unit(field)
        return f"# {wanted}\n\n{field.description}\n\nScope: {scope}. Unit: {unit or 'none'}.\n"
    names = [
        *(rule.id for rule in base.rules),
        *(rule.name for rule in base.rules),
        *(name.removeprefix("general/") for name in pages),
        *facts,
    ]
    near = difflib.get_close_matches(wanted, names, n=3)
    raise QuantmedicError(
        f"nothing is called {code!r}",
        help=f"did you mean {', '.join(near)}?" if near else "list the rules with: quantmedic rules",
    )
