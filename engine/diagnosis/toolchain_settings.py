"""Settings that only some toolchains have: what a quantized torch module shows, and what a configuration has told."""

import math
from collections.abc import Iterable, Mapping
from statistics import median

from quantmedic.engine.case.facts import CaseFacts, LayerFacts, TensorFacts
from quantmedic.engine.json_text import parse_json
from quantmedic.engine.reading_limits import LimitError

#: Largest code of an activation that is kept to 7 of its 8 bits.
REDUCED_CODE = 127
#: Codes below 0.0 that an activation must have to tell how the rest of its range is used.
MIN_ZERO_POINT = 8
#: Share of the upper codes in use, over that of the lower ones: half of them or less where the range is reduced.
REDUCED_SHARE = 0.7
#: Share of the activations whose ranges have to be as wide as their values, and how nearly. A moving average, which is
#: the only other way in LiteRT, gives such a range to none.
COVERED: Mapping[str, float] = {"torch": 0.9, "litert": 0.25}
SAME_WIDTH = 1e-4
#: Step of the outputs of Sigmoid and Softmax in LiteRT, whatever calibration saw.
FIXED_SCALE = 2.0**-8
#: Settings of the configuration of a checkpoint that are stated as they were told.
DECLARED = ("declared_group_size", "declared_symmetric", "declared_order")
#: Those of them that are tables.
DECLARED_TABLES = ("declared_groups", "declared_cache")
#: The same of a configuration or log of a toolchain.
TOLD = (
    "activation_error_method",
    "weights_error_method",
    "min_threshold",
    "shift_negative",
    "shift_negative_ratio",
    "channel_equalization",
    "bias_correction",
    "activation_bias_correction",
    "concat_threshold_update",
)


def toolchain_settings(facts: CaseFacts) -> Mapping[str, object]:
    """Fields of ``SettingsInForce`` by name."""
    settings, grouped = facts.model.settings, [layer.weight.group_size for layer in facts.layers]
    threshold = settings.z_threshold
    method = settings.calibration_method
    share = COVERED.get(facts.model.framework or "")
    if method is None and share is not None and _covers_extremes(facts.tensors, share):
        method = "minmax"
    symmetric = {"symmetric_activations": True} if _are_around_the_middle(facts.tensors) else {}
    return symmetric | {
        "calibration_method": method,
        "reduced_activations": _are_reduced(facts.tensors) or None,
        "weight_group_size": max((size for size in grouped if size is not None), default=None),
        "layers_by_weight": _layers_by_weight(facts.layers),
        "z_threshold": threshold if threshold is not None and math.isfinite(threshold) else None,
        **{name: getattr(settings, name) for name in TOLD},
        **{name: getattr(facts.model.checkpoint, name) for name in DECLARED},
        **{name: declared_table(getattr(facts.model.checkpoint, name)) for name in DECLARED_TABLES},
    }


def declared_table(text: str | None) -> dict[str, object]:
    """A table that is kept as JSON; empty where there is none, or where names were hidden."""
    try:
        found = parse_json(text, "checkpoint") if text else {}
    except (ValueError, LimitError):
        return {}
    return found if isinstance(found, dict) else {}


def _are_around_the_middle(tensors: Iterable[TensorFacts]) -> bool:
    """Several unsigned activations, all with the same zero point in the middle; torch rounds it down in part."""
    found = [(q.zero_point, q.bits) for tensor in tensors if (q := tensor.quantizer).scale and not q.signed]
    middles = {(point, bits) for bits in (7, 8) for point in ((1 << (bits - 1)) - 1, 1 << (bits - 1))}
    return len(found) > 1 and len(set(found)) == 1 and found[0] in middles


def _are_reduced(tensors: Iterable[TensorFacts]) -> bool:
    """Activations with negative values use the codes above 0.0 half as much as those below: they keep to 7 bits.

    A range that is too wide leaves both sides empty alike, and a range that is too narrow neither.
    """
    shares = []
    for tensor in tensors:
        q, values = tensor.quantizer, _calibrated_range(tensor)
        if q.bits != 8 or q.signed or not q.scale or q.zero_point is None or values is None:
            continue
        if q.zero_point > REDUCED_CODE:
            return False
        below, above = -values[0] / q.scale / max(q.zero_point, 1), values[1] / q.scale / (255 - q.zero_point)
        if q.zero_point >= MIN_ZERO_POINT and below > 0:
            shares.append(above / below)
    return bool(shares) and median(shares) < REDUCED_SHARE


def _covers_extremes(tensors: Iterable[TensorFacts], share: float) -> bool:
    """Ranges of this share of the activations are as wide as what calibration saw, on all codes or on half of them.

    Activations on one grid, such as what a concatenation joins, share a range.
    """
    groups: dict[tuple[float, int | None], list[TensorFacts]] = {}
    for tensor in tensors:
        if tensor.quantizer.scale and tensor.quantizer.bits and tensor.representative.values.min is not None:
            groups.setdefault((tensor.quantizer.scale, tensor.quantizer.zero_point), []).append(tensor)
    found = [_covers_its_extremes(group) for (scale, _), group in groups.items() if scale != FIXED_SCALE]
    return sum(found) > 1 and sum(found) >= share * len(found)


def _covers_its_extremes(group: list[TensorFacts]) -> bool:
    q, values = group[0].quantizer, [tensor.representative.values for tensor in group]
    low = min(0.0, *(own.min for own in values if own.min is not None))
    high = max(0.0, *(own.max for own in values if own.max is not None))
    middle = q.zero_point == (0 if q.signed else 1 << ((q.bits or 1) - 1))
    width = 2 * max(-low, high) if middle else high - low
    levels = [(1 << bits) - 1 for bits in (q.bits or 1, (q.bits or 1) - 1)]
    levels += [(1 << (q.bits or 1)) - 2] if middle and q.signed else []  # LiteRT leaves the lowest code out
    return any(math.isclose(width / (q.scale or 1.0), level, rel_tol=SAME_WIDTH) for level in levels)


def _calibrated_range(tensor: TensorFacts) -> tuple[float, float] | None:
    """Least and largest value on the representative data, else on the validation data."""
    for values in (tensor.representative.values, tensor.data.values):
        if values.min is not None and values.max is not None:
            return values.min, values.max
    return None


def _layers_by_weight(layers: Iterable[LayerFacts]) -> dict[str, tuple[str, ...]]:
    """Names in the quantized model of layers whose weights have fewer than 8 bits, or stay in float, by type."""
    found: dict[str, tuple[str, ...]] = {}
    for layer in layers:
        quantizer = layer.weight.quantizer
        if layer.weight.name is None or layer.quantized_name is None or quantizer.dynamic:
            continue
        kind = "float" if quantizer.scale is None else f"int{quantizer.bits}"
        if kind != "int8":
            found[kind] = (*found.get(kind, ()), layer.quantized_name)
    return found
