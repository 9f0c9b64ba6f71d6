"""Encodings of AIMET: what each quantizer of its simulation covers, as the export writes it for a runtime.

Versions 0.4 to 0.6.1 hold two dictionaries by tensor (of the torch export by module, then input or output), 1.0.0 two
lists, 2.0.0 one list in the words of ONNX's QuantizeLinear. Qualcomm's ``--quantization_overrides`` have the same form,
and may state bits alone. Up to 1.0.0, real = scale · (code + offset) with codes from
0; from 2.0.0 on, real = scale · (code - y_zero_point). In the documented format: AIMET itself is not run.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from quantmedic.collectors.toolchain_files.formats import Format, Imported, Requests
from quantmedic.collectors.toolchain_files.settings_files import read_json
from quantmedic.collectors.toolchain_files.values import (
    flag,
    grid,
    left_out,
    member_name,
    number,
    numbers,
    table,
    whole,
)
from quantmedic.engine.case.facts import RecordedFacts, SettingsFacts
from quantmedic.engine.errors import DataError

#: Quantization schemes by the word in quantizer_args.
METHODS = {
    "min_max": "minmax",
    "post_training_tf": "minmax",
    "post_training_tf_enhanced": "mse",
    "tf_enhanced": "mse",
    "training_range_learning_with_tf_init": "minmax",
    "training_range_learning_with_tf_enhanced_init": "mse",
    "post_training_percentile": "percentile",
    "percentile": "percentile",
}
_KEYS = re.compile(r"\"(activation_encodings|param_encodings)\"\s*:\s*[\[{]")
_DTYPE = re.compile(r"(?P<unsigned>u?)int(?P<bits>\d{1,2})")
Encodings = Sequence[Mapping[str, object]]


def _is_encodings(name: str, text: str) -> bool:
    if not text.lstrip().startswith("{"):
        return False
    is_new = '"encodings"' in text and ('"y_scale"' in text or '"output_dtype"' in text)
    return _KEYS.search(text) is not None or is_new


def _is_overrides(name: str, text: str) -> bool:
    """Bits are asked for, and no range is stated: such files do not list every activation."""
    return _is_encodings(name, text) and not any(f'"{key}"' in text for key in ("scale", "min", "y_scale"))


def _read_encodings(path: Path) -> Imported:
    content = table(read_json(path))
    parts = [content.get(key) for key in ("activation_encodings", "param_encodings")]
    if "encodings" in content and not any(parts):
        return _read_version_2(content, path)
    activations, parameters = (dict(_named_encodings(part)) for part in parts)
    recorded = {name: facts for name, own in activations.items() if (facts := _widest_channel(own)) is not None}
    floats = [name for name, own in activations.items() if _is_float(own)]
    asked = {name: bits for name, own in (activations | parameters).items() if (bits := _bits_alone(own)) is not None}
    if not recorded and not floats and not parameters and not asked:
        raise DataError("the encodings file holds no encodings that can be read", where=str(path))
    left = [name for name in activations if name not in recorded and name not in floats and name not in asked]
    args = table(content.get("quantizer_args"))
    settings = _shared_settings(args, list(activations.values()), list(parameters.values()))
    used = f"encodings of weights and biases, of which only bits and axes are used: {len(parameters)}"
    method = settings.calibration_method
    recorded = {name: facts.model_copy(update={"method": method}) for name, facts in recorded.items()}
    return Imported(
        settings=settings,
        tensors=recorded,
        floats=(*floats, *left),
        parameters={name: facts for name, own in parameters.items() if (facts := _only_scale(own)) is not None},
        requests=Requests(
            bits=asked, weight_bits={name: bits for name, own in parameters.items() if (bits := _bits(own))}
        ),
        notices=(*([used] if parameters else []), *left_out("encodings that cannot be read", left)),
    )


def _named_encodings(part: object) -> Iterator[tuple[str, Encodings]]:
    """Encodings by name, of all versions up to 1.0.0."""
    if isinstance(part, list):
        for entry in part:
            name = table(entry).get("name")
            if isinstance(name, str):
                yield name, list(_channel_encodings(table(entry)))
        return
    for name, entry in table(part).items():
        if isinstance(entry, list):
            yield name, [table(item) for item in entry]
        for side in ("input", "output"):
            for place, own in table(table(entry).get(side)).items():
                yield f"{name}.{side}{place}" if side == "input" or place != "0" else name, [table(own)]


def _channel_encodings(entry: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """One dictionary per scale, as versions before 1.0.0 have them."""
    scale, offset = entry.get("scale"), entry.get("offset")
    scales = scale if isinstance(scale, list) else [scale]
    offsets = offset if isinstance(offset, list) and len(offset) == len(scales) else [None] * len(scales)
    for scale, offset in zip(scales, offsets, strict=True):
        own = {"bitwidth": entry.get("bw"), "dtype": entry.get("dtype"), "is_symmetric": entry.get("is_sym")}
        yield {**own, "scale": scale, "offset": offset}


def _is_float(encodings: Encodings) -> bool:
    return bool(encodings) and str(encodings[0].get("dtype", "int")).lower() == "float"


def _bits(encodings: Encodings) -> int | None:
    """Bits of all channels; None where they differ, or where they are in float."""
    found = {_usable_bits(own.get("bitwidth")) for own in encodings}
    return found.pop() if len(found) == 1 and not _is_float(encodings) else None


def _usable_bits(value: object) -> int | None:
    bits = whole(value)
    return bits if bits is not None and 1 < bits <= 32 else None


def _bits_alone(encodings: Encodings) -> int | None:
    """Bits that are asked for without a range; None of an encoding that has one, or that is in float."""
    stated = (own.get(key) for own in encodings for key in ("scale", "min", "max"))
    return _bits(encodings) if len(encodings) == 1 and all(value is None for value in stated) else None


def _widest_channel(encodings: Encodings) -> RecordedFacts | None:
    """Range of one tensor: of several channels the widest; None where one cannot be read."""
    found = [facts for own in encodings if (facts := _encoding_facts(own)) is not None]
    if not found or len(found) < len(encodings) or _is_float(encodings):
        return None
    return max(found, key=lambda facts: (facts.high or 0.0) - (facts.low or 0.0))


def _only_scale(encodings: Encodings) -> RecordedFacts | None:
    """Bits and scale of a parameter; None for one with several scales, or in float."""
    bits = _bits(encodings) if len(encodings) == 1 else None
    if bits is None:
        return None
    scale = number(encodings[0].get("scale"))
    return RecordedFacts(bits=bits, scale=scale if scale is not None and scale > 0 else None)


def _encoding_facts(own: Mapping[str, object]) -> RecordedFacts | None:
    bits, scale, offset = _usable_bits(own.get("bitwidth")), number(own.get("scale")), whole(own.get("offset"))
    low, high, symmetric = number(own.get("min")), number(own.get("max")), flag(own.get("is_symmetric"))
    if bits is None:
        return None
    if scale is not None and offset is not None and scale > 0:
        facts = grid(scale, -offset, bits, signed=False)
        facts = facts.model_copy(update={"symmetric": symmetric})
    else:
        facts = RecordedFacts(bits=bits, symmetric=symmetric)
    if low is not None and high is not None and low <= high:
        facts = facts.model_copy(update={"low": low, "high": high})
    return facts if facts.low is not None else None


def _shared_settings(
    args: Mapping[str, object], activations: list[Encodings], parameters: list[Encodings]
) -> SettingsFacts:
    """What the arguments state, else what all encodings agree on."""
    scheme = member_name(args.get("quant_scheme")).lower()
    per_channel = flag(args.get("per_channel_quantization"))
    if per_channel is None and parameters:
        per_channel = any(len(own) > 1 for own in parameters)
    symmetric = {flag(item.get("is_symmetric")) for own in activations for item in own if not _is_float(own)}
    # Biases have encodings of 32 bits of their own.
    weight_bits = {whole(item.get("bitwidth")) for own in parameters for item in own} - {32}
    bits = {whole(item.get("bitwidth")) for own in activations for item in own if not _is_float(own)}
    return SettingsFacts(
        calibration_method=METHODS.get(scheme),
        per_channel_weights=per_channel,
        asymmetric_activations=not symmetric.pop() if len(symmetric) == 1 and None not in symmetric else None,
        activation_bits=whole(args.get("activation_bitwidth")) or (bits.pop() if len(bits) == 1 else None),
        weight_bits=whole(args.get("param_bitwidth")) or (weight_bits.pop() if len(weight_bits) == 1 else None),
    )


def _read_version_2(content: Mapping[str, object], path: Path) -> Imported:
    """Version 2.0.0: one list, in which activations and weights differ by their names only."""
    entries = content.get("encodings")
    found, single, left, asked = {}, {}, [], {}
    for entry in entries if isinstance(entries, list) else []:
        own = table(entry)
        name, facts = own.get("name"), _onnx_facts(table(entry))
        if isinstance(name, str) and facts is not None:
            found[name] = facts
            if len(numbers(own.get("y_scale"))) == 1:
                single[name] = RecordedFacts(bits=facts.bits, scale=facts.scale)
        elif isinstance(name, str) and (bits := _onnx_bits_alone(own)) is not None:
            asked[name] = bits
        else:
            left.append(str(name))
    if not found and not asked:
        raise DataError("the encodings file holds no encodings that can be read", where=str(path))
    notices = left_out("encodings that cannot be read", left)
    recorded = {name: facts.bits for name, facts in found.items() if facts.bits is not None}
    requests = Requests(bits=asked, weight_bits=recorded)
    return Imported(tensors=found, floats=tuple(left), parameters=single, requests=requests, notices=notices)


def _onnx_bits_alone(own: Mapping[str, object]) -> int | None:
    """Bits that are asked for without a range."""
    match = _DTYPE.fullmatch(str(own.get("output_dtype", "")))
    return _usable_bits(match["bits"]) if match is not None and own.get("y_scale") is None else None


def _onnx_facts(own: Mapping[str, object]) -> RecordedFacts | None:
    match = _DTYPE.fullmatch(str(own.get("output_dtype", "")))
    scales = numbers(own.get("y_scale"))
    points = numbers(own.get("y_zero_point", 0) or 0)
    bits = _usable_bits(match["bits"]) if match is not None else None
    if match is None or bits is None or not scales or min(scales) <= 0 or not points:
        return None
    signed = not match["unsigned"]
    widest = max(range(len(scales)), key=lambda i: scales[i])
    point = points[widest] if len(points) == len(scales) else points[0]
    facts = grid(scales[widest], int(point), bits, signed=signed)
    return facts.model_copy(update={"symmetric": all(p == (0 if signed else 2 ** (bits - 1)) for p in points)})


FORMATS = (
    Format("Qualcomm quantization overrides", "AIMET", _is_overrides, _read_encodings),
    Format("AIMET encodings", "AIMET", _is_encodings, _read_encodings, lists_all=True),
)
