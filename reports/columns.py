"""The columns of the layer table: every quantity that is known of a layer, for page, terminal and CSV alike."""

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from quantmedic.engine.facts import LayerFacts, fact_paths
from quantmedic.reports.text import field_info

#: Shown before anything is chosen.
DEFAULT = (
    "index",
    "name",
    "op_type",
    "output.quantizer.bits",
    "output.data.rounding.sqnr_db",
    "output.data.accumulated.sqnr_db",
    "output.data.accumulated.worst_channel_sqnr_db",
    "output.data.values.min",
    "output.data.values.max",
    "findings",
)


@dataclass(frozen=True)
class Column:
    """One quantity of all layers; ``values`` holds one per layer, None where it was not measured."""

    key: str
    label: str
    unit: str | None
    description: str
    values: tuple[Any, ...]

    @property
    def numeric(self) -> bool:
        """All values are numbers."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.known)

    @property
    def known(self) -> list[Any]:
        """The values that were measured."""
        return [value for value in self.values if value is not None]


def layer_columns(layers: Sequence[LayerFacts], findings: Sequence[tuple[str, ...]]) -> list[Column]:
    """Every fact of the layers that at least one of them has, then the codes of the rules that flagged them."""
    columns = [_column(key, layers) for key in _paths()]
    kept = [column for column in columns if column.known]
    return [*kept, Column("findings", "findings", None, "codes of the rules that flagged it", tuple(findings))]


@cache
def _paths() -> tuple[str, ...]:
    """Fact paths of a layer itself, most wanted first."""
    own = [path for path in fact_paths("layer") if not path.startswith("model.")]
    return tuple(sorted(own, key=lambda path: DEFAULT.index(path) if path in DEFAULT else len(DEFAULT)))


def _column(key: str, layers: Iterable[LayerFacts]) -> Column:
    info = field_info(fact_paths("layer")[key])
    read: Callable[[Any], Any] = operator.attrgetter(key)
    return Column(key, key, info.unit, info.description, tuple(read(layer) for layer in layers))
