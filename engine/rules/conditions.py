"""Conditions: comparisons of facts with constants or thresholds, joined by all, any and not."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from quantmedic.engine.text import suggest

Operator = Literal["is", "is_not", "gt", "ge", "lt", "le", "in", "known"]
COMPARISONS: dict[str, str] = {
    "is": "=",
    "is_not": "≠",
    "gt": ">",
    "ge": "≥",
    "lt": "<",
    "le": "≤",
    "in": "in",
    "known": "known",
}
#: Operator of evidence that is shown, not compared.
SHOWN = "shown"


class Data(BaseModel):
    """Base of everything read from rule files: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Condition(Data):
    """One comparison of a fact with a constant or a named threshold.

    ``if_unknown`` is its verdict where the fact is missing; one that holds then, too, is no evidence.
    """

    fact: str
    op: Operator
    value: object
    threshold: str | None = None
    if_unknown: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_yaml(cls, raw: object) -> object:
        if not isinstance(raw, dict) or "op" in raw:
            return raw
        ops = set(raw) - {"fact", "if_unknown"}
        if "fact" not in raw or len(ops) != 1:
            raise ValueError(f"a condition is {{fact: PATH, OPERATOR: VALUE}}, not {raw}")
        (op,) = ops
        if op not in COMPARISONS:
            raise ValueError(f"unknown operator {op!r}{suggest(op, COMPARISONS)}; known: {', '.join(COMPARISONS)}")
        value = raw[op]
        named = isinstance(value, str) and value.startswith("$")
        own = {"fact": raw["fact"], "op": op, "value": value, "threshold": value[1:] if named else None}
        return {**own, "if_unknown": raw.get("if_unknown")}


class All(Data):
    """True when every part is true."""

    all: tuple["Node", ...] = Field(min_length=1)

    @property
    def parts(self) -> tuple["Node", ...]:
        """What it joins."""
        return self.all


class Any_(Data):
    """True when one part is true."""

    any: tuple["Node", ...] = Field(min_length=1)

    @property
    def parts(self) -> tuple["Node", ...]:
        """What it joins."""
        return self.any


class Not(Data):
    """True when its part is false."""

    not_: "Node" = Field(alias="not")

    @property
    def parts(self) -> tuple["Node", ...]:
        """What it negates."""
        return (self.not_,)


_NODE_KINDS = {"all": "All", "any": "Any_", "not": "Not", "not_": "Not"}


def _node_kind(raw: object) -> str:
    """The kind of node that a mapping holds, by its keys."""
    if isinstance(raw, Data):
        return type(raw).__name__
    keys = raw if isinstance(raw, dict) else ()
    return next((kind for key, kind in _NODE_KINDS.items() if key in keys), "Condition")


Node = Annotated[
    Annotated[All, Tag("All")]
    | Annotated[Any_, Tag("Any_")]
    | Annotated[Not, Tag("Not")]
    | Annotated[Condition, Tag("Condition")],
    Discriminator(_node_kind),
]


def number_of(limit: object) -> float:
    """What a comparison by size compares with; a rule that loads has a number there."""
    assert isinstance(limit, int | float)
    return limit


def leaves(node: Node) -> Iterator[Condition]:
    """All comparisons of a node in the order in which they are written."""
    if isinstance(node, Condition):
        yield node
        return
    for part in node.parts:
        yield from leaves(part)
