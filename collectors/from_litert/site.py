"""Where a LiteRT operator stands in its model, and the parts that translations to ONNX are made of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantmedic.collectors.from_litert.file import LiteOperator
from quantmedic.collectors.pair.graph import Shape

Integers = NDArray[np.int64]
#: Value of an attribute of a node.
Value = int | float | str | Sequence[int]
FLOATS = ("FLOAT32", "FLOAT16", "FLOAT64", "BFLOAT16")
#: Ends of the activations that operators have built in, by the schema's numbers; others have no counterpart.
_ACTIVATIONS: dict[int, dict[str, float]] = {
    0: {},
    1: {"low": 0.0},
    2: {"low": -1.0, "high": 1.0},
    3: {"low": 0.0, "high": 6.0},
}


class Untranslatable(Exception):
    """The operator, as it is used here, has no counterpart."""


@dataclass(frozen=True)
class Node:
    """One ONNX node; ``is_function`` where it calls one of ``functions``. Inputs that are left out are empty."""

    kind: str
    inputs: Sequence[str]
    attributes: Mapping[str, Value] = field(default_factory=dict)
    is_function: bool = False


class Site(Protocol):
    """An operator in its model."""

    @property
    def op(self) -> LiteOperator:
        """The operator."""

    def has(self, place: int) -> bool:
        """The operand is not left out."""

    def value(self, place: int, order: Sequence[int] | None = None) -> str:
        """Name of the real values of an operand; of a constant, with its axes in this order.

        Raises:
            Untranslatable: Another order is asked of what is computed.
        """

    def bias(self, place: int) -> str:
        """Name of the values of a bias, whose step may be that of the product of the first two operands."""

    def integers(self, place: int) -> Integers | None:
        """What a constant operand holds, int64; None where it is computed."""

    def constant(self, values: ArrayLike, kind: type = np.int64) -> str:
        """Name of a new constant."""

    def shape(self, place: int) -> Shape:
        """Sides of an operand."""

    def result(self, place: int) -> Shape:
        """Sides of a result."""

    def kind(self, place: int) -> str:
        """Type of an operand by the schema's name; of one with a quantizer, FLOAT32."""

    def onnx_kind(self, place: int) -> int:
        """Type of a result in ONNX's numbers."""


Translate = Callable[[Site], Node]


def constant_integers(site: Site, place: int) -> Integers:
    """What a constant operand holds.

    Raises:
        Untranslatable: It is computed.
    """
    values = site.integers(place)
    if values is None:
        raise Untranslatable
    return values


def fixed_sides(sides: Sequence[int | None]) -> list[int]:
    """The sides themselves.

    Raises:
        Untranslatable: One of them depends on the data.
    """
    found = [side for side in sides if side is not None]
    if len(found) < len(sides):
        raise Untranslatable
    return found


def flag(site: Site, name: str) -> bool:
    """An option that is on or off; off where the file does not have it."""
    return bool(site.op.options.integer(name))


def activation_bounds(site: Site, data: int = 0) -> dict[str, float]:
    """Ends of the activation that is built in, empty without one; ``data`` is the operand that it works on.

    Raises:
        Untranslatable: The activation has no counterpart.
    """
    bounds = _ACTIVATIONS.get(site.op.options.integer("fusedActivationFunction"))
    if bounds is None or (bounds and site.kind(data) not in FLOATS):
        raise Untranslatable
    return bounds


def operands(site: Site) -> list[str]:
    """Names of all operands."""
    return [site.value(place) for place in range(len(site.op.inputs))]


def onnx_node(kind: str, site: Site, **attributes: Value) -> Node:
    """An operator of ONNX with all operands."""
    return Node(kind, operands(site), attributes)


def function_node(kind: str, site: Site, **attributes: Value) -> Node:
    """A function of ``functions`` with all operands."""
    return Node(kind, operands(site), attributes, is_function=True)


def node_with_activation(kind: str, site: Site) -> Node:
    """An operator with all operands, and the activation that is built in."""
    bounds = activation_bounds(site)
    return Node(kind, operands(site), {**bounds}, is_function=bool(bounds))


def node_without_activation(kind: str, site: Site, **attributes: Value) -> Node:
    """An operator with all operands.

    Raises:
        Untranslatable: It has an activation built in.
    """
    if activation_bounds(site):
        raise Untranslatable
    return Node(kind, operands(site), attributes)


def integer_operand(site: Site, place: int) -> str:
    """An operand of integers: as int64 where it is constant, else as it is."""
    values = site.integers(place)
    return site.value(place) if values is None else site.constant(values)
