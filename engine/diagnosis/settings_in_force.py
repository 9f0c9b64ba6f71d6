"""Settings that prescriptions keep: what files of the toolchain told, and what the quantized model itself shows."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from statistics import median

from quantmedic.engine.case.facts import CaseFacts, LayerFacts, QuantizerFacts, TensorFacts
from quantmedic.engine.case.settings_in_force import SettingsInForce
from quantmedic.engine.formulas.input_relation import KNOWN_RANGE
from quantmedic.engine.json_text import parse_json
from quantmedic.engine.reading_limits import LimitError

#: Layers whose weights get a scale per channel where a toolchain is asked for it.
CHANNEL_TYPES = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
#: Operators whose constants are operands like any other, no weights.
OPERAND_TYPES = frozenset({"Add", "Sub", "Mul", "Div"})
#: Largest code of a symmetric 8-bit weight, and of an activation, that is kept to 7 bits.
REDUCED_WEIGHT_CODE, REDUCED_CODE = 64, 127
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
#: Activations that a quantizer takes over, so that they vanish from the model.
REMOVABLE = frozenset({"Relu", "Clip"})
#: Marks of the quantized model.
PREPARED, WEIGHT_QUANTIZERS = "metadata onnx.quant.pre_process", "weights pass a QuantizeLinear"
Named = dict[str, tuple[str, ...]]


def settings_in_force(facts: CaseFacts) -> SettingsInForce:
    """What files told, and what the model shows; where a setting has both, what it shows holds."""
    return SettingsInForce.model_validate(_read_files(facts) | _read_model(facts))


def _read_files(facts: CaseFacts) -> dict[str, object]:
    """What configurations and logs state under the same name; a threshold that leaves nothing out is none."""
    sources = (facts.model.settings, facts.model.checkpoint)
    told = {name: value for facts in sources for name, value in facts if name in SettingsInForce.model_fields}
    tables = {name: declared_table(told[name]) for name in ("declared_groups", "declared_cache")}
    threshold = facts.model.settings.z_threshold
    return told | tables | {"z_threshold": threshold if threshold is not None and math.isfinite(threshold) else None}


def declared_table(text: str | None) -> dict[str, object]:
    """A table that is kept as JSON; empty where there is none, or where names were hidden."""
    try:
        found = parse_json(text, "checkpoint") if text else {}
    except (ValueError, LimitError):
        return {}
    return found if isinstance(found, dict) else {}


def _read_model(facts: CaseFacts) -> dict[str, object]:
    activations = {
        name: tensor.quantizer
        for tensor in facts.tensors
        if (name := tensor.float_name) is not None and code_type(tensor.quantizer) is not None
    }
    stored = [layer for layer in facts.layers if code_type(layer.weight.quantizer) is not None]
    weights = {layer.weight.name: layer.weight.quantizer for layer in stored if layer.weight.name is not None}
    by_layer = {layer.float_name: layer.weight.quantizer for layer in stored}
    activation_type, weight_type = _most_common(activations.values()), _most_common(weights.values())
    per_channel = [layer for layer in stored if layer.weight.quantizer.granularity == "per_channel"]
    symmetric_weights, marks = _are_weights_symmetric(stored), facts.model.toolchain_marks or ()
    is_qdq = facts.model.format == "QDQ"
    calibrated = is_qdq and _is_calibrated_symmetrically(facts)
    symmetric = _all_symmetric(q for q in activations.values() if code_type(q) == activation_type)
    shown: dict[str, object] = {
        "format": facts.model.format,
        "activation_type": activation_type,
        "weight_type": weight_type,
        "other_activations": _of_other_types(activations.items(), activation_type),
        "other_weights": _other_weights(stored, weight_type, bool(per_channel) and is_qdq),
        "symmetric_activations": _are_around_the_middle(facts.tensors) or (symmetric and not calibrated),
        "symmetric_calibration": calibrated or None,
        "symmetric_weights": symmetric_weights,
        "per_channel_weights": bool(per_channel) if stored else None,
        "per_channel_types": tuple(dict.fromkeys(layer.op_type for layer in per_channel if layer.op_type is not None)),
        "weights_of_layers": _of_other_types(by_layer.items(), weight_type),
        "one_scale_layers": tuple(_layers_with_one_scale(stored)) if per_channel else (),
        "float_ends": (facts.model.float_ends or ()) if activations else (),
        "reduced_range": (symmetric_weights and _is_reduced(stored)) or None,
        "reduced_activations": _are_reduced(facts.tensors) or None,
        "kept_activations": (symmetric is False and is_qdq and _keeps_activations(facts)) or None,
        "weight_quantizers": WEIGHT_QUANTIZERS in marks or None,
        "prepared": PREPARED in marks or any(layer.weight.batch_norm_gain is not None for layer in stored) or None,
        "float_biases": _keeps_biases(stored) or None,
        # Where nothing is quantized, that is the fault and no setting to keep.
        "float_layers": _float_layers(facts) if activations or stored else {},
        "quantized_types": facts.model.quantized_types or (),
        "weight_group_size": max(
            (size for layer in facts.layers if (size := layer.weight.group_size) is not None), default=None
        ),
        "layers_by_weight": _layers_by_weight(facts.layers),
    }
    share = COVERED.get(facts.model.framework or "")
    if facts.model.settings.calibration_method is None and share is not None and _covers_extremes(facts.tensors, share):
        shown["calibration_method"] = "minmax"
    return shown


def _names_by_kind(rows: Iterable[tuple[str, str]]) -> Named:
    found: Named = {}
    for kind, name in rows:
        found[kind] = (*found.get(kind, ()), name)
    return found


def _are_weights_symmetric(stored: list[LayerFacts]) -> bool | None:
    """Most weights have 0.0 in the middle: one that never is negative, or one that is computed, is no counterproof.

    Constant operands are quantized as activations are, and unsigned weights per channel are symmetric without being
    asked for: these tell it only together, and where there are no others.
    """
    known = [(layer.op_type, layer.weight.quantizer) for layer in stored if not _is_fixed(layer.weight.quantizer)]
    own = [q for op, q in known if op not in OPERAND_TYPES and (q.signed or q.granularity != "per_channel")]
    return 2 * sum(map(_is_symmetric, own)) > len(own) if own else _all_symmetric(q for _, q in known)


def code_type(quantizer: QuantizerFacts) -> str | None:
    """Type of the codes, such as uint8; None without a fixed grid of integers."""
    if quantizer.scale is None or not quantizer.bits or quantizer.signed is None or quantizer.dynamic:
        return None
    return f"{'int' if quantizer.signed else 'uint'}{quantizer.bits}"


def _most_common(quantizers: Iterable[QuantizerFacts]) -> str | None:
    ((found, _),) = Counter(map(code_type, quantizers)).most_common(1) or ((None, 0),)
    return found


def _of_other_types(named: Iterable[tuple[str | None, QuantizerFacts]], common: str | None) -> Named:
    rows = ((code_type(quantizer), name) for name, quantizer in named)
    return _names_by_kind((kind, name) for kind, name in rows if name is not None and kind not in (None, common))


def _other_weights(
    stored: Iterable[LayerFacts], common: str | None, per_channel: bool
) -> dict[str, dict[str, tuple[int | None]]]:
    """Weights of another type than most, and those with one scale where weights have one per channel by default."""
    found: dict[str, dict[str, tuple[int | None]]] = {}
    for layer in stored:
        name, kind = layer.weight.name, code_type(layer.weight.quantizer)
        axis = scale_axis(layer)
        one_scale = per_channel and axis is None and layer.op_type in CHANNEL_TYPES and layer.weight.channels != 1
        if name is not None and kind is not None and (kind != common or one_scale):
            found.setdefault(kind, {})[name] = (axis,)
    return found


def scale_axis(layer: LayerFacts) -> int | None:
    """Axis of the float weights along which their scales lie; None: they have one scale."""
    quantizer = layer.weight.quantizer
    if quantizer.granularity != "per_channel":
        return None
    return layer.weight.output_axis if layer.weight.found_as == "transposed" else quantizer.axis


def _layers_with_one_scale(stored: Iterable[LayerFacts]) -> Iterator[str]:
    """Layers of several channels whose weights have one scale."""
    for layer in stored:
        channels = layer.weight.channels or 0
        if layer.float_name is not None and channels > 1 and layer.weight.quantizer.granularity == "per_tensor":
            yield layer.float_name


def _is_symmetric(q: QuantizerFacts) -> bool:
    return q.zero_point == (0 if q.signed else 1 << ((q.bits or 1) - 1))


def _all_symmetric(quantizers: Iterable[QuantizerFacts]) -> bool | None:
    middles = [_is_symmetric(q) for q in quantizers if not _is_fixed(q)]
    return all(middles) if middles else None


def _is_fixed(quantizer: QuantizerFacts) -> bool:
    """The grid of 0 … 1 that LiteRT's kernels of Sigmoid and Softmax demand, whatever the quantizer was asked for."""
    return quantizer.scale == FIXED_SCALE and quantizer.zero_point == -128


def _is_reduced(stored: Iterable[LayerFacts]) -> bool:
    """The widest channel of a symmetric weight ends on the largest code that is used."""
    codes = [layer.weight.max_code for layer in stored if layer.weight.quantizer.bits == 8]
    return bool(codes) and all(
        code is not None and REDUCED_WEIGHT_CODE - 1 <= code <= REDUCED_WEIGHT_CODE for code in codes
    )


def _keeps_biases(stored: Iterable[LayerFacts]) -> bool:
    bits = [layer.bias.bits for layer in stored if layer.bias.bits is not None]
    return bool(bits) and not any(bits)


def _is_calibrated_symmetrically(facts: CaseFacts) -> bool:
    """Ranges are symmetric where they are measured, but a quantizer with zero points took activations over."""
    measured = [t for t in facts.tensors if t.producer not in KNOWN_RANGE and code_type(t.quantizer) is not None]
    fixed = [t for t in facts.tensors if t.producer in KNOWN_RANGE and code_type(t.quantizer) is not None]
    if len(measured) <= 1 or not _all_symmetric(t.quantizer for t in measured):
        return False
    folded = any(layer.weight.batch_norm_gain is not None for layer in facts.layers)
    fused = any(len(layer.float_nodes or ()) > 1 for layer in facts.layers if layer.op_type in CHANNEL_TYPES)
    return (fused and not folded) or any(not _all_symmetric([t.quantizer]) for t in fixed)


def _float_layers(facts: CaseFacts) -> dict[str, tuple[str, ...]]:
    """Float nodes by operator type: as the file tells, else of layers whose stored weights or outputs have no grid."""
    if facts.model.float_nodes is not None:
        return dict(facts.model.float_nodes)
    read = _read_grids(facts)
    found: dict[str, tuple[str, ...]] = {}
    for layer in facts.layers:
        has_weight = layer.weight.name is not None
        grid = layer.weight.quantizer if has_weight else layer.output.quantizer
        known = has_weight or layer.output.name is not None
        nodes = layer.float_nodes or ((layer.float_name,) if layer.float_name is not None else ())
        around = _grids_around(layer, read)
        is_float = grid.scale is None or (around is not None and around[0] != around[1])
        if known and is_float and layer.op_type is not None and nodes:
            found[layer.op_type] = (*found.get(layer.op_type, ()), *nodes)
    return found


def _keeps_activations(facts: CaseFacts) -> bool:
    """An activation stands between two quantizers of one grid."""
    read = _read_grids(facts)
    grids = (_grids_around(layer, read) for layer in facts.layers)
    return any(around is not None and around[0] == around[1] for around in grids)


def _read_grids(facts: CaseFacts) -> dict[str, QuantizerFacts]:
    """Quantizer of an activation by the nodes that read it."""
    return {name: tensor.quantizer for tensor in facts.tensors for name in tensor.readers}


def _grids_around(layer: LayerFacts, read: Mapping[str, QuantizerFacts]) -> tuple[float, float] | None:
    """Steps before and behind an activation that a quantizer could take over; None where one of them is missing."""
    before, behind = read.get(layer.float_name or "", QuantizerFacts()).scale, layer.output.quantizer.scale
    return (before, behind) if layer.op_type in REMOVABLE and before is not None and behind is not None else None


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


def _layers_by_weight(layers: Iterable[LayerFacts]) -> Named:
    """Names in the quantized model of layers whose weights have fewer than 8 bits, or stay in float, by type."""
    rows = (
        ("float" if (q := layer.weight.quantizer).scale is None else f"int{q.bits}", layer.quantized_name)
        for layer in layers
        if layer.weight.name is not None and not layer.weight.quantizer.dynamic
    )
    return _names_by_kind((kind, name) for kind, name in rows if name is not None and kind != "int8")
