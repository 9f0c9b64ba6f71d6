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


class Experiment(Data):
    """What the loss budget shows of a subject that has the cause, whether or not thresholds of its symptom are met."""

    when: Node
    message: str


class Rule(Data):
    """One way to recognize one cause.

    ``when`` holds the symptom, ``experiment`` what stands in for it where the loss budget was measured, ``where`` the
    subjects that both are asked of, ``shows`` facts that belong to the evidence without being compared. ``yields_to``
    names rules of the same scope, of tensors also rules about outputs, that explain a subject better where they fire.
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
    experiment: Experiment | None = None
    message: str
    shows: tuple[str, ...] = ()
    yields_to: tuple[str, ...] = ()
    remedies: tuple[str, ...] = Field(min_length=1)
    path: Path | None = None

    @property
    def family(self) -> str:
        """Name of the family that the first letter of the id stands for."""
        return FAMILIES.get(self.id[0], "user")

    def conditions(self) -> list[Condition]:
        """All comparisons in the order in which they are written."""
        nodes = [self.where, self.when, self.experiment.when if self.experiment is not None else None]
        return [condition for node in nodes if node is not None for condition in leaves(node)]

    def messages(self) -> list[str]:
        """All messages that a finding may have."""
        return [self.message, *([self.experiment.message] if self.experiment is not None else [])]


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
            *(field for message in rule.messages() for field in message_fields(message)),
        )
    }
    return rule.scope not in GLOBAL_SCOPES or bool(facts & set(LAYER_NAMING))


def matches(rule: Rule, selector: str) -> bool:
    """The selector is the rule's id, the beginning of it, its name, its cause or its family."""
    return rule.id.startswith(selector) or selector in (rule.name, rule.cause, rule.family)
