"""Rules: one way to recognize one cause, declarative, never executed as code."""

import string
from pathlib import Path
from typing import Literal

from pydantic import Field

from quantmedic.engine.case.facts import Scope
from quantmedic.engine.rules.conditions import Condition, Data, Node, leaves

Severity = Literal["high", "medium", "low", "info"]
SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low", "info")
#: Those that account for a loss.
SERIOUS: tuple[Severity, ...] = ("high", "medium")
#: Facts of a model that name one of its layers.
LAYER_NAMING = ("first_nonfinite_layer",)
#: Scopes whose findings name no layer.
GLOBAL_SCOPES: tuple[Scope, ...] = ("model", "dataset")
FAMILIES = {
    "S": "sanity",
    "D": "data",
    "W": "weights",
    "A": "activations",
    "G": "graph",
    "M": "precision",
    "R": "runtime",
    "F": "failure",
}


def family_of(rule: str) -> str:
    """Name of the family that the first letter of a rule's id stands for."""
    return FAMILIES.get(rule[0], "user")


class Rule(Data):
    """One way to recognize one cause.

    ``when`` holds what is seen, ``where`` the subjects that it is asked of, ``shows`` facts that belong to the evidence
    without being compared. A rule says when its cause is there, and nothing about others: these compete.
    ``harm`` says what shows that the network is harmed, where the rule does not ask for ``model.harmed``. ``doubt``
    says why nothing that was measured tells what quantization costs: such a finding explains no loss, and excludes one
    as little.
    """

    id: str = Field(pattern=r"^[A-Z]\d{3}$")
    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)+$")
    cause: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)+$")
    scope: Scope
    severity: Severity
    harm: str | None = None
    doubt: str | None = None
    confidence: float = Field(gt=0, le=1)
    where: Node | None = None
    when: Node
    message: str
    shows: tuple[str, ...] = ()
    remedies: tuple[str, ...] = Field(min_length=1)
    path: Path | None = None

    @property
    def family(self) -> str:
        """Name of the family that it belongs to."""
        return family_of(self.id)

    def conditions(self) -> list[Condition]:
        """All comparisons in the order in which they are written."""
        return [condition for node in (self.where, self.when) if node is not None for condition in leaves(node)]


def message_fields(message: str) -> list[str]:
    """Fact paths that a message names in braces."""
    return [name for name, _ in message_formats(message)]


def message_formats(message: str) -> list[tuple[str, str]]:
    """(fact path, format) of every field of a message."""
    fields = [(names, spec or "") for _, names, spec, _ in string.Formatter().parse(message) if names]
    return [(name, spec) for names, spec in fields for name in names.split("|")]


def names_layers(rule: Rule) -> bool:
    """Findings of the rule name a layer or tensor."""
    facts = {
        name.removeprefix("model.")
        for name in (
            *(c.fact for c in rule.conditions()),
            *rule.shows,
            *message_fields(rule.message),
        )
    }
    return rule.scope not in GLOBAL_SCOPES or bool(facts & set(LAYER_NAMING))


def matches(rule: Rule, selector: str) -> bool:
    """The selector is the rule's id, the beginning of it, its name, its cause or its family."""
    return rule.id.startswith(selector) or selector in (rule.name, rule.cause, rule.family)
