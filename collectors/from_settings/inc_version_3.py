"""Configurations of Intel Neural Compressor 3: one, several by name, or one per module."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice

from quantmedic.collectors.from_settings.inc_schema import (
    BITS,
    CONFIGURATIONS,
    FLOATS,
    METHODS,
    TOOLCHAIN,
    Schema,
    imported_settings,
    is_operator_text,
    operator_key,
    unknown_paths,
)
from quantmedic.collectors.toolchain_files.formats import Imported
from quantmedic.collectors.toolchain_files.values import MAX_UNKNOWN, Fields, mapping
from quantmedic.engine.case.facts import ReportedFacts, SettingsFacts

_SCOPES = ("local", "global")
Values = Mapping[object, object]


def is_version_3(found: Values) -> bool:
    """It has the shape of a configuration of version 3: fields, scopes, several by name, or one per module."""
    fields = {key for known in CONFIGURATIONS.values() for key in known} - {"dtype", "bits", "folding"}
    if fields & set(found) or set(found) & set(_SCOPES) or set(found) & set(CONFIGURATIONS):
        return True
    return bool(found) and all(is_operator_text(key) for key in found)


def read_version_3(found: Values, origin: str) -> Imported:
    """Facts of a configuration of version 3; ``origin`` is the name of its file."""
    if all(is_operator_text(key) for key in found):
        return _per_module(found, origin)
    named = {str(key): mapping(value) for key, value in found.items() if key in CONFIGURATIONS}
    if not named:
        return _unnamed_configuration(found)
    parts = [_configuration(value, name) for name, value in named.items()]
    others = {key: value for key, value in found.items() if key not in named}
    facts: Fields = {}
    for part in parts:
        facts |= part.settings.model_dump(exclude_none=True)
    unknown = [
        *islice(unknown_paths(others, CONFIGURATIONS), MAX_UNKNOWN),
        *(key for part in parts for key in part.unknown),
    ]
    notices = [notice for part in parts for notice in part.notices]
    if len(parts) > 1:
        notices.append(f"{', '.join(named)} are given together: each module takes the first that fits it")
    settings = SettingsFacts.model_validate(facts).model_copy(update={"unknown_keys": tuple(unknown) or None})
    return Imported(settings=settings, unknown=tuple(unknown), notices=tuple(notices))


def _unnamed_configuration(found: Values) -> Imported:
    """A configuration by itself: which one it is follows from its fields."""
    guess = _configuration(found, _likeliest_configuration(found))
    if "excluded_precisions" in (mapping(found.get("global")) or found):
        return guess
    # Static and dynamic differ by their name alone, and it is not in the file.
    unsure = guess.settings.model_copy(update={"dynamic": None, "smooth_quant": None})
    return replace(guess, settings=unsure)


def _likeliest_configuration(found: Values) -> str:
    """The configuration that has the most of these fields; the first where they are equal."""
    fields = set(mapping(found.get("global")) or found)
    return max(CONFIGURATIONS, key=lambda name: len(fields & set(CONFIGURATIONS[name] or ())))


def _configuration(found: Values, name: str) -> Imported:
    """One configuration of version 3, with the settings of single modules or types."""
    scoped = any(scope in found for scope in _SCOPES)
    overall = mapping(found.get("global")) if scoped else found
    by_name = {str(each): said for each, said in mapping(found.get("local")).items()}
    kept = [each for each, said in by_name.items() if _is_left_float(mapping(said))]
    types = tuple(each for each in kept if _is_type(each))
    facts = _settings_fields(overall, name)
    facts["float_layers"] = tuple(each for each in kept if not _is_type(each)) or None
    facts["float_types"] = types or None
    schema: Schema = CONFIGURATIONS[name]
    if scoped:
        schema = {"global": schema, "local": {"*": schema}}
    return imported_settings(SettingsFacts.model_validate(facts), found, schema, [])


def _settings_fields(found: Values, name: str) -> Fields:
    """Facts by the fields of version 3."""
    activations = found.get("act_sym")
    bits = found.get("bits")
    granularity = found.get("w_granularity")
    is_8bit = name in ("static_quant", "pt2e_static_quant", "pt2e_dynamic_quant", "smooth_quant")
    return {
        "toolchain": TOOLCHAIN,
        "dynamic": name == "pt2e_dynamic_quant" if is_8bit else None,
        "smooth_quant": name == "smooth_quant" if is_8bit else None,
        "calibration_method": METHODS.get(str(found.get("act_algo"))),
        "per_channel_weights": None if granularity is None else granularity == "per_channel",
        "asymmetric_activations": not activations if isinstance(activations, bool) else None,
        "weight_bits": BITS.get(str(found.get("w_dtype"))) or (bits if type(bits) is int else None),
        "activation_bits": BITS.get(str(found.get("act_dtype"))),
    }


def _per_module(found: Values, origin: str) -> Imported:
    """``qconfig.json``: the configuration of every module."""
    kept: list[str] = []
    layers: dict[str, ReportedFacts] = {}
    facts: list[Fields] = []
    for key, said in found.items():
        name = (operator_key(key) or (str(key), ""))[0]
        for kind, fields in mapping(said).items():
            is_float = _is_left_float(mapping(fields))
            layers[name] = ReportedFacts(origin=origin, dtype="float" if is_float else None)
            if is_float:
                kept.append(name)
            else:
                facts.append(_settings_fields(mapping(fields), str(kind)))
    same = {key: value for key, value in facts[0].items() if all(t.get(key) == value for t in facts)} if facts else {}
    settings = SettingsFacts.model_validate({**same, "toolchain": TOOLCHAIN, "float_layers": tuple(kept) or None})
    return Imported(settings=settings, layers=layers)


def _is_left_float(found: Values) -> bool:
    return {str(found.get("w_dtype", found.get("dtype"))), str(found.get("act_dtype", "fp32"))} <= FLOATS


def _is_type(name: str) -> bool:
    """Types of modules are written like classes, names like attributes."""
    return "." not in name and name[:1].isupper()
