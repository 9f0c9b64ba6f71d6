"""What a reader looks up beside the diagnosis: the graph, and each layer's distributions, channels and near misses."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from quantmedic.engine.case import Case
from quantmedic.engine.facts import CaseFacts, Role
from quantmedic.engine.rule import RuleBase


@dataclass(frozen=True)
class Spread:
    """Two distributions over the same even bins, and the range of the quantizer.

    ``floats`` and ``quantized`` are counts; the latter None where the quantized values were not counted. They may stand
    for different numbers of values, so that shares are compared.
    """

    start: float
    stop: float
    floats: tuple[int, ...]
    quantized: tuple[int, ...] | None
    low: float | None
    high: float | None
    clipped_share: float | None


@dataclass(frozen=True)
class Channels:
    """Extremes and SQNR per channel, the worst first; lists of one length.

    ``quantized_low`` and ``quantized_high`` are None where those extremes were not measured.
    """

    index: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    sqnr_db: tuple[float | None, ...]
    quantized_low: tuple[float, ...] | None = None
    quantized_high: tuple[float, ...] | None = None


@dataclass(frozen=True)
class NearMiss:
    """A rule that one comparison kept from firing, with a value close to the threshold."""

    rule: str
    name: str
    fact: str
    value: Any
    comparison: str
    threshold: Any


@dataclass(frozen=True)
class LayerDetail:
    """What is known of one layer beyond its facts; of activations by data set."""

    spreads: dict[Role, Spread]
    channels: dict[Role, Channels]
    weight_spread: Spread | None
    weight_channels: Channels | None
    near: tuple[NearMiss, ...]


@dataclass(frozen=True)
class Inspection:
    """A case opened for looking: layers are numbered as in ``facts.layers``."""

    case: Case
    facts: CaseFacts
    base: RuleBase

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """(layer that writes, layer that reads); an input of the network is written by layer -1."""
        operators = self.case.record.operators
        writers = {tensor: place for place, op in enumerate(operators) for tensor in op.outputs if tensor is not None}
        pairs: dict[tuple[int, int], None] = {}
        for place, op in enumerate(operators):
            read = [writers.get(tensor, -1) for tensor in op.inputs if tensor is not None]
            pairs |= dict.fromkeys((writer, place) for writer in (*read, *op.sources))
        return tuple(pairs)

    def details(self, places: Sequence[int]) -> list[LayerDetail]:
        """Details of the layers at these places."""
        return [LayerDetail({}, {}, None, None, ()) for _ in places]
