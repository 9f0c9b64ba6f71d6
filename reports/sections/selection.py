"""The layers and columns of a case that are asked for."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from quantmedic.engine.case.facts import LayerFacts, Role, fact_paths
from quantmedic.engine.diagnosis.inspection import Inspection
from quantmedic.engine.diagnosis.report_rows import flagging_rules
from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.rules.evaluate import evaluate
from quantmedic.reports.sections.columns import (
    DEFAULT,
    PRESETS,
    Column,
    Preset,
    Value,
    judged_set,
    layer_columns,
    of_files_alone,
    presets,
)

TABLES = (*(preset.name for preset in PRESETS), "all")


@dataclass(frozen=True)
class Selection:
    """Some columns of some layers, in the order asked for."""

    columns: tuple[Column, ...]
    rows: tuple[int, ...]
    total: int
    order: str


def select_layers(
    inspection: Inspection,
    *,
    table: str = DEFAULT.name,
    columns: Sequence[str] = (),
    sort: str | None = None,
    text: str = "",
    flagged: bool = False,
) -> Selection:
    """Choose columns and layers of a case.

    Args:
        inspection: The case.
        table: One of the ready tables: ``default`` or one of ``TABLES``.
        columns: Instead of those of the table: keys, or their ends where these are clear.
        sort: ``KEY`` or ``KEY:desc``; the order of the ready table by default, else that of the network.
        text: Words that name, operator or findings of a layer must contain.
        flagged: Only layers that are degraded or that a rule flagged.

    Raises:
        QuantmedicError: A table or column is not known, or nothing of it was measured.
    """
    layers = inspection.facts.layers
    codes = flagging_rules(evaluate(inspection.base, inspection.facts))
    findings = [tuple(codes.get(layer.name or "", ())) for layer in layers]
    known = layer_columns(layers, findings)
    role = judged_set(layers)
    by_key = {column.key: column for column in known}
    ready = _preset_called(presets(known, role), table)
    keys = [_column_key(name, by_key, role) for name in columns] or ready.columns
    asked = sort or ("" if columns else _sort_option(ready.sort))
    places = [
        place
        for place, layer in enumerate(layers)
        if (not flagged or layer.degraded or findings[place]) and _contains(layer, findings[place], text)
    ]
    order = _natural_order(by_key) if layers else "as none was measured"
    if asked:
        key, descending = _sort_key(asked, by_key, role)
        places = _places_by(places, by_key[key], descending=descending)
        order = f"by {by_key[key].title}, {'largest' if descending else 'smallest'} first"
    return Selection(tuple(by_key[key] for key in keys), tuple(places), len(layers), order)


def _natural_order(known: Iterable[str]) -> str:
    """How layers come that nobody ordered; files of a toolchain need not follow the network."""
    return "as the files of the toolchain list them" if of_files_alone(known) else "in the order of the network"


def _preset_called(known: dict[str, Preset], name: str) -> Preset:
    if name in known:
        return known[name]
    if name in TABLES:
        raise QuantmedicError(
            f"nothing of the table {name!r} was measured in this case", help=f"it has: {', '.join(known)}"
        )
    near = get_close_matches(name, [*known, "data-sets", "loss-budget"], n=1)
    raise QuantmedicError(
        f"no table is called {name!r}",
        help=f"did you mean {near[0]}?" if near else f"tables: {', '.join(known)}, data-sets, loss-budget",
    )


def _column_key(asked: str, known: dict[str, Column], role: Role) -> str:
    """The key that is meant: itself, as rules write it (``output.data`` for the judged set), or its end."""
    name = asked.strip().replace("output.data.", f"output.{role}.", 1)
    if name in known:
        return name
    ends = [key for key in known if key.endswith(f".{name}")]
    judged = [key for key in ends if key.startswith(f"output.{role}.")]
    for found in (ends, judged):
        if len(found) == 1:
            return found[0]
    listed = "quantmedic explain --list facts --scope layer lists them"
    if ends:
        raise QuantmedicError(f"{asked!r} is the end of {len(ends)} columns", where=ends[:6], help="write one in full")
    if name in fact_paths("layer") or name.replace("variance", "std") in fact_paths("layer"):
        raise QuantmedicError(f"column {asked!r} was not measured in this case", help=listed)
    labels = {column.label: key for key, column in known.items()}
    near = get_close_matches(name, [*known, *labels], n=1, cutoff=0.5)
    meant = f"did you mean {labels.get(near[0], near[0])}? " if near else ""
    raise QuantmedicError(f"no column is called {asked!r}", help=meant + listed)


def _sort_option(sort: str | None) -> str:
    if sort is None:
        return ""
    return f"{sort[1:]}:desc" if sort.startswith("-") else sort


def _sort_key(asked: str, known: dict[str, Column], role: Role) -> tuple[str, bool]:
    name, colon, direction = asked.partition(":")
    if colon and direction not in ("asc", "desc"):
        raise QuantmedicError(
            f"not a sort direction: {direction!r}", where=f"--sort {asked}", help="write KEY or KEY:desc"
        )
    return _column_key(name, known, role), direction == "desc"


def _contains(layer: LayerFacts, findings: Iterable[str], text: str) -> bool:
    names = (layer.name, layer.float_name, layer.quantized_name, layer.op_type, *findings)
    haystack = " ".join(name for name in names if name).lower()
    return all(word in haystack for word in text.lower().split())


def _places_by(places: Sequence[int], column: Column, *, descending: bool) -> list[int]:
    """Equal ones in topological order; what was not measured comes last either way."""
    known = [place for place in places if not _is_missing(column.values[place])]
    known.sort(key=lambda place: _sort_value(column.values[place]), reverse=descending)
    return [*known, *(place for place in places if _is_missing(column.values[place]))]


def _is_missing(value: Value) -> bool:
    return value is None or value == () or (isinstance(value, float) and math.isnan(value))


def _sort_value(value: Value) -> tuple[float, str]:
    """A key to sort by; the values of one column are all numbers or all text."""
    if isinstance(value, int | float):
        return value, ""
    return 0.0, ", ".join(value) if isinstance(value, tuple) else value or ""
