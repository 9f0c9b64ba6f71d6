"""An operator of an IR where it is translated: what it reads, its attributes, and the nodes that it becomes."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_openvino.constants import Held
from quantmedic.collectors.pair.graph import Shape

if TYPE_CHECKING:
    import openvino

#: Value of an attribute of an ONNX node.
Value = int | float | str | Sequence[int] | Sequence[float]
Integers = NDArray[np.int64]


class Untranslatable(Exception):
    """An operator, or a form of it, that has no counterpart."""


class Site(Protocol):
    """An operator in the model that is being translated."""

    @property
    def kind(self) -> str:
        """Its type, such as Convolution."""

    @property
    def attributes(self) -> Mapping[str, object]:
        """Its attributes, as OpenVINO lists them."""

    @property
    def outputs(self) -> int:
        """How many tensors it writes."""

    def has(self, place: int) -> bool:
        """It has an input of this number."""

    def value(self, place: int) -> str:
        """Name of what it reads there."""

    def held(self, place: int) -> Held | None:
        """The constant that it reads there; None where it is computed."""

    def store(self, held: Held) -> str:
        """Name of a constant that is laid out anew."""

    def constant(self, values: object, kind: type = np.int64) -> str:
        """Name of a new constant."""

    def shape(self, place: int) -> Shape | None:
        """Shape of an input; None where its rank depends on the data."""

    def result(self, place: int) -> Shape | None:
        """Shape of an output."""

    def is_float(self, place: int) -> bool:
        """An input holds real values."""

    def onnx_type(self, place: int) -> int:
        """ONNX's number of the type of an output."""

    def step(self, kind: str, inputs: Sequence[str], **attributes: Value) -> str:
        """Add a node with one output, which is given a name of its own; returns it."""

    def finish(self, kind: str, inputs: Sequence[str], **attributes: Value) -> None:
        """Add the node that writes what the operator writes."""


Translate = Callable[[Site], None]


def text_of(site: Site, name: str, default: str) -> str:
    """An attribute that is a word, in lower case."""
    return str(site.attributes.get(name, default)).lower()


def flag_of(site: Site, name: str, *, default: bool) -> bool:
    """An attribute that is on or off."""
    value = site.attributes.get(name, default)
    return value.lower() in ("true", "1") if isinstance(value, str) else bool(value)


def integer_of(site: Site, name: str, default: int) -> int:
    """An attribute that is a whole number."""
    value = site.attributes.get(name, default)
    return int(value) if isinstance(value, int | np.integer | str) else default


def number_of(site: Site, name: str, default: float) -> float:
    """An attribute that is a number."""
    value = site.attributes.get(name, default)
    return float(value) if isinstance(value, int | float | np.number | str) else default


def integers_of(site: Site, name: str) -> list[int]:
    """An attribute that lists whole numbers; empty without it."""
    value = site.attributes.get(name)
    return [int(entry) for entry in value] if isinstance(value, list | tuple | np.ndarray) else []


def constant_integers(site: Site, place: int) -> list[int]:
    """What a constant input holds, in one row.

    Raises:
        Untranslatable: It is computed.
    """
    return [int(entry) for entry in constant_of(site, place).ravel()]


def constant_of(site: Site, place: int) -> NDArray[np.generic]:
    """What a constant input holds.

    Raises:
        Untranslatable: It is computed.
    """
    held = site.held(place)
    if held is None:
        raise Untranslatable
    return held.values


def rank_of(site: Site, place: int) -> int:
    """Number of axes of an input.

    Raises:
        Untranslatable: It depends on the data.
    """
    shape = site.shape(place)
    if shape is None:
        raise Untranslatable
    return len(shape)


def operands(site: Site) -> list[str]:
    """Names of all inputs."""
    found: list[str] = []
    while site.has(len(found)):
        found.append(site.value(len(found)))
    return found


def integer_operand(site: Site, place: int) -> str:
    """An input of whole numbers as int64, as ONNX wants shapes and axes; in one row where it is constant."""
    held = site.held(place)
    if held is not None:
        return site.constant(held.values.ravel())
    return site.step("Cast", [site.value(place)], to=7)


def shape_of(output: "openvino.Output") -> Shape | None:
    """Shape of a tensor; None where its rank depends on the data, and for sides that do."""
    partial = output.get_partial_shape()
    if partial.rank.is_dynamic:
        return None
    return tuple(side.get_length() if side.is_static else None for side in partial)
