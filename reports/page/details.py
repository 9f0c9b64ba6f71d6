"""What the page's drawer shows of each layer beyond the table, within a budget of bytes; see ``browser/drawer.js``.

All layers come with their findings. Distributions and channels go to as many as fit, in the order of those with
findings, degraded ones and those of the lowest SQNR; the first get more channels and finer bins.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from quantmedic.engine.case.facts import ROLES
from quantmedic.engine.case.records import CHANNEL_BINS
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.inspection import Inspection, LayerDetail
from quantmedic.engine.formulas.spreads import SPREAD_BINS, Channels, Spread
from quantmedic.engine.rules.evaluate import Finding

#: Bytes of the section: for small networks, per layer, and at most.
LEAST_BYTES, LAYER_BYTES, MOST_BYTES = 52_000, 1_000, 3_300_000
#: Bins, channels and histograms of weight channels that a layer can be granted, from poor to rich; what does not fit
#: at the poorest has none of them.
GRANTS = ((32, 16, 0), (64, 16, 0), (64, 64, 16), (64, 256, 64))
#: About the bytes, compressed and in base64, of a bin of one distribution, of a channel of activations and of weights,
#: and of what stands around them.
_BIN, _CHANNEL, _WEIGHT_CHANNEL, _AROUND = 2, 11, 17, 45
#: No layer's details take less: so many layers are worth looking up.
_LEAST_DETAIL = 300


def layer_details(diagnosis: Diagnosis, inspection: Inspection) -> dict[str, object]:
    """The section ``details`` of the page."""
    budget = min(max(LEAST_BYTES, LAYER_BYTES * len(diagnosis.layers)), MOST_BYTES)
    inputs = _inputs_by_layer(inspection)
    findings = _findings_by_layer(diagnosis, inspection)
    explained = {(f.rule, f.subject): _code(cause) for cause in diagnosis.causes for f in cause.absorbs}
    rows: dict[int, dict[str, object]] = {}
    for place, found in enumerate(findings):
        row: dict[str, object] = {"inputs": inputs[place]} if place in inputs else {}
        if found:
            row["findings"] = [[f.rule.id, f.message, explained.get((f.rule.id, f.subject))] for f in found]
        rows[place] = row
        budget -= 16 + 5 * len(inputs.get(place, ())) + sum(30 + len(f.message) for f in found)
    order = _places_by_interest(diagnosis)[: max(budget // _LEAST_DETAIL, 0)]
    details = dict(zip(order, inspection.details(order), strict=True))
    granted = _grant(details, budget)
    for place, grant in granted.items():
        rows[place] |= _detail(details[place], grant)
    return {
        "shown": len(granted),
        "rules": _named_rules(diagnosis, findings),
        "layers": {place: row for place, row in rows.items() if row},
    }


def _findings_by_layer(diagnosis: Diagnosis, inspection: Inspection) -> list[list[Finding]]:
    """Findings of each layer, of the rules that its row names."""
    known = inspection.findings({rule for row in diagnosis.layers for rule in row.findings})
    return [[f for f in known.get(row.name, ()) if f.rule.id in row.findings] for row in diagnosis.layers]


def _places_by_interest(diagnosis: Diagnosis) -> list[int]:
    """Layers by how much they are worth looking at."""

    def key(place: int) -> tuple[bool, bool, bool, float, int]:
        row = diagnosis.layers[place]
        levels = [
            level
            for errors in (row.validation, row.representative)
            if (level := errors.accumulated.sqnr_db) is not None
        ]
        measured = levels or ([row.weight_sqnr_db] if row.weight_sqnr_db is not None else [])
        return not row.findings, not row.degraded, not measured, min(measured, default=0.0), place

    return sorted(range(len(diagnosis.layers)), key=key)


def _grant(details: Mapping[int, LayerDetail], budget: int) -> dict[int, tuple[int, int, int]]:
    """Bins, channels and histograms of channels for each layer that gets any."""
    granted: dict[int, tuple[int, int, int]] = {}
    spent: dict[int, int] = {}
    for grant in GRANTS:
        for place, detail in details.items():
            cost = _detail_bytes(detail, *grant)
            extra = cost - spent.get(place, 0)
            if extra > budget or (place not in granted and grant != GRANTS[0]):
                continue
            budget -= extra
            spent[place], granted[place] = cost, grant
    return granted


def _detail_bytes(detail: LayerDetail, bins: int, channels: int, histograms: int) -> int:
    """About the bytes that a layer takes."""
    spreads = [*detail.spreads.values(), *([detail.weight_spread] if detail.weight_spread else [])]
    drawn = sum(_AROUND + _BIN * bins * (1 if spread.quantized is None else 2) for spread in spreads)
    strips = sum(_AROUND + _CHANNEL * min(channels, len(c.index)) for c in detail.channels.values())
    weights = detail.weight_channels
    stored = _AROUND + _WEIGHT_CHANNEL * min(channels, len(weights.index)) if weights is not None else 0
    shapes = _AROUND + CHANNEL_BINS * min(histograms, len(weights.index)) if weights and weights.heights else 0
    return _AROUND + drawn + strips + stored + shapes


def _detail(detail: LayerDetail, grant: tuple[int, int, int]) -> dict[str, object]:
    """What is granted of one layer, without what is empty."""
    bins, channels, histograms = grant
    spreads = [_spread(detail.spreads.get(role), bins) for role in ROLES]
    strips = [_channels(detail.channels.get(role), channels) for role in ROLES]
    found: dict[str, object] = {
        "spreads": spreads if any(spreads) else None,
        "channels": strips if any(strips) else None,
        "weights": _spread(detail.weight_spread, bins),
        "weight_channels": _channels(detail.weight_channels, channels),
        "weight_histograms": _histograms(detail.weight_channels, histograms),
    }
    return {key: value for key, value in found.items() if value}


def _spread(spread: Spread | None, bins: int) -> list[object] | None:
    """start, stop, low, high, clipped share, float counts, quantized counts."""
    if spread is None:
        return None
    floats, stored = (
        _to_digits(np.reshape(counts, (bins, SPREAD_BINS // bins)).sum(axis=1).tolist(), 3)
        if counts is not None
        else None
        for counts in (spread.floats, spread.quantized)
    )
    return [spread.start, spread.stop, spread.low, spread.high, spread.clipped_share, floats, stored]


def _channels(channels: Channels | None, limit: int) -> list[object] | None:
    """How many there are in all, then of the worst: index, low, high, SQNR, low and high as quantized."""
    if channels is None:
        return None
    ends = (channels.low, channels.high)
    stored = (channels.quantized_low, channels.quantized_high)
    return [
        channels.total,
        channels.index[:limit],
        *(_to_digits(end[:limit], 4) for end in ends),
        [None if level is None else round(level, 1) for level in channels.sqnr_db[:limit]],
        *(_to_digits(end[:limit], 4) for end in stored if end is not None),
    ]


def _histograms(channels: Channels | None, limit: int) -> list[object] | None:
    """start, stop, and the histogram of each of the worst channels, one after the other."""
    if channels is None or not channels.heights or not limit:
        return None
    return [channels.start, channels.stop, [height for row in channels.heights[:limit] for height in row]]


def _to_digits(values: Iterable[float], digits: int) -> list[float]:
    """Numbers to so many significant digits: fewer bytes, and no line of a drawing moves."""
    return [float(f"{value:.{digits}g}") for value in values]


def _named_rules(diagnosis: Diagnosis, findings: Sequence[Sequence[Finding]]) -> dict[str, list[str | None]]:
    """Name, severity, cause and the code of the cause's card, None where it has none, of every rule that is named."""
    causes = {cause.cause: cause for cause in diagnosis.causes}
    rules: dict[str, list[str | None]] = {}
    for rule in {f.rule.id: f.rule for found in findings for f in found}.values():
        cause = causes.get(rule.cause)
        severity = cause.severity if cause is not None else rule.severity
        shown = cause.shown if cause is not None else rule.cause
        rules[rule.id] = [rule.name, severity, shown, _code(cause) if cause is not None else None]
    return rules


def _code(cause: CauseReport) -> str:
    """What the card of a cause is known by."""
    return cause.rules[0] if cause.rules else ""


def _inputs_by_layer(inspection: Inspection) -> dict[int, list[int]]:
    """Layers that each layer reads; -1 for an input of the network."""
    inputs: dict[int, list[int]] = {}
    for writer, reader in inspection.edges:
        inputs.setdefault(reader, []).append(writer)
    return inputs
