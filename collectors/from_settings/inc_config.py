"""Configurations of Intel Neural Compressor 1 to 3: settings, unknown keys, and options without effect.

Read with versions 2.6 and 3.7: ``PostTrainingQuantConfig`` as a mapping, the YAML of version 1 that 2 still takes, the
JSON of version 3, and the choice per operator that tuning leaves (``best_configure``, ``qconfig.json``, ``cfg.pkl``).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from quantmedic.collectors.from_settings.inc_schema import (
    ARGUMENTS,
    BITS,
    DEPLOYED,
    DOCUMENT,
    FLOATS,
    METHODS,
    TOOLCHAIN,
    imported_settings,
    operator_key,
)
from quantmedic.collectors.from_settings.inc_version_3 import is_version_3, read_version_3
from quantmedic.collectors.toolchain_files.formats import Format, Imported, Requests
from quantmedic.collectors.toolchain_files.settings_files import read_json, read_yaml
from quantmedic.collectors.toolchain_files.values import Fields, mapping
from quantmedic.engine.case.facts import ReportedFacts, SettingsFacts
from quantmedic.engine.errors import DataError

#: The one share of values that the percentile of ONNX models covers, in percent.
PERCENTILE = 99.999
#: Recipes that version 2 takes and no algorithm asks for (source of 2.6).
DROPPED = ("fast_bias_correction", "weight_correction")

#: What makes a key of op_name_dict more than a name; a dot matches itself too.
_SPECIAL = frozenset("\\*+?()[]{}|^$")


@dataclass(frozen=True)
class _Operator:
    """Settings of one operator, or of all whose name or type matches."""

    name: str
    said: Mapping[object, object]

    def values(self, part: str, key: str) -> tuple[str, ...]:
        """The choices for one setting of ``weight`` or ``activation``; one alone stands without a list."""
        found = mapping(self.said.get(part)).get(key)
        many = found if isinstance(found, list | tuple) else [] if found is None else [found]
        return tuple(str(each) for each in many)

    @property
    def is_float(self) -> bool:
        types = [self.values(part, "dtype") for part in ("activation", "weight")]
        return any(found and set(found) <= FLOATS for found in types)


def read_config(path: Path) -> Imported:
    """A configuration of any version.

    Raises:
        DataError: It cannot be read, or holds none.
    """
    found = read_json(path) if path.suffix.lower() == ".json" else read_yaml(path)
    if not isinstance(found, Mapping):
        raise DataError("the file holds no configuration", where=str(path), help="a mapping of options is expected")
    return imported_config(found, path.name)


def imported_config(found: Mapping[object, object], origin: str) -> Imported:
    """A configuration as facts.

    Args:
        found: What the file holds.
        origin: Name of the file.

    Raises:
        DataError: It is no configuration that is known.
    """
    if len(found) == 1:
        ((name, inner),) = found.items()
        if str(name).endswith("Config") and isinstance(inner, Mapping):
            return imported_config(inner, origin)
    if "op" in found:
        return _read_tuned(mapping(found["op"]), found, origin)
    if "quantization" in found or "tuning" in found:
        return _read_document(found)
    if set(found) <= set(DEPLOYED) and "model" in found:
        return _read_deployed(found)
    if any(key in found for key in ("op_type_dict", "op_name_dict", "recipes", "approach", "tuning_criterion")):
        return _read_arguments(found)
    if is_version_3(found):
        return read_version_3(found, origin)
    raise DataError(
        f"no configuration of {TOOLCHAIN} is found",
        where=origin,
        help="it has the arguments of PostTrainingQuantConfig, a key quantization, or the fields of version 3",
    )


def _read_arguments(found: Mapping[object, object]) -> Imported:
    """Arguments of PostTrainingQuantConfig."""
    types, names = (_operators_of(found.get(key)) for key in ("op_type_dict", "op_name_dict"))
    everywhere = [each for each in (*types, *names) if each.name == ".*"]
    settings = _shared_settings(
        approach=found.get("approach"),
        recipes=mapping(found.get("recipes")),
        everywhere=everywhere[0] if everywhere else _Operator("", {}),
        types=types,
        names=names,
    )
    reduced = found.get("reduce_range")
    recipes = mapping(found.get("recipes"))
    settings = settings.model_copy(
        update={
            "reduce_range": reduced if isinstance(reduced, bool) else None,
            # Version 2 takes the recipes that correct biases, and drops them.
            "bias_correction": False if any(key in recipes for key in DROPPED) else None,
        }
    )
    notices = [*_dropped_recipes(recipes), *_kept_ends(found), *_patterns(names)]
    if found.get("diagnosis") is True:
        notices.append("diagnosis=True ends tuning after one trial")
    return replace(imported_settings(settings, found, ARGUMENTS, notices), requests=_requests(names))


def _read_document(found: Mapping[object, object]) -> Imported:
    """The YAML of version 1."""
    quantization = mapping(found.get("quantization"))
    types, names = (_operators_of(quantization.get(key)) for key in ("optype_wise", "op_wise"))
    everywhere = _Operator("", mapping(quantization.get("model_wise")))
    recipes = mapping(quantization.get("recipes"))
    settings = _shared_settings(
        approach=quantization.get("approach"),
        recipes=recipes,
        everywhere=everywhere,
        types=types,
        names=names,
    )
    bits = everywhere.values("weight", "bit")
    if bits and all(each in ("7", "7.0") for each in bits):
        settings = settings.model_copy(update={"reduce_range": True})
    notices = [*_dropped_recipes(recipes), *_kept_ends(quantization), *_patterns(names)]
    return replace(imported_settings(settings, found, DOCUMENT, notices), requests=_requests(names))


def _requests(operators: Sequence[_Operator]) -> Requests:
    """What is asked of operators by name; a key that is no pattern may stand for all names that begin with it."""
    named = [(name, each) for each in operators if (name := _plain_name(each.name)) is not None]
    floats = tuple(name for name, each in named if (types := each.values("weight", "dtype")) and set(types) <= FLOATS)
    return Requests(floats=floats, parts=tuple(name for name, _ in named))


def _read_deployed(found: Mapping[object, object]) -> Imported:
    notice = "deploy.yaml holds format and device only, not how the model was quantized"
    return imported_settings(SettingsFacts(toolchain=TOOLCHAIN), found, DEPLOYED, [notice])


def _shared_settings(
    *,
    approach: object,
    recipes: Mapping[object, object],
    everywhere: _Operator,
    types: Sequence[_Operator],
    names: Sequence[_Operator],
) -> SettingsFacts:
    """Settings of versions 1 and 2 that hold for all operators; those of some operators only are left out."""
    smooth = recipes.get("smooth_quant")
    return SettingsFacts.model_validate(
        {
            "toolchain": TOOLCHAIN,
            **_grid_fields(everywhere),
            "dynamic": _is_dynamic(approach),
            "smooth_quant": smooth if isinstance(smooth, bool) else None,
            "float_layers": _plain_names(names),
            "float_types": _plain_names(types),
        }
    )


def _grid_fields(operator: _Operator) -> Fields:
    """Facts on thresholds and grids; where several values are to be tried, only that thresholds are searched."""
    algorithms = operator.values("activation", "algorithm")
    method = METHODS.get(algorithms[0]) if len(algorithms) == 1 else "search" if algorithms else None
    return {
        "calibration_method": method,
        "percentile": PERCENTILE if method == "percentile" else None,
        "per_channel_weights": _is(operator.values("weight", "granularity"), "per_channel"),
        "per_channel_activations": _is(operator.values("activation", "granularity"), "per_channel"),
        # ONNX models ignore symmetric ones (run with 2.6), and the file does not say which models it is for.
        "asymmetric_activations": _is(operator.values("activation", "scheme"), "asym") or None,
        "weight_bits": _shared_bits(operator.values("weight", "dtype")),
        "activation_bits": _shared_bits(operator.values("activation", "dtype")),
    }


def _read_tuned(operators: Mapping[object, object], found: Mapping[object, object], origin: str) -> Imported:
    """What tuning chose, operator by operator: all are listed, so that what they share is in force."""
    chosen = {key: _Operator(key[0], mapping(said)) for name, said in operators.items() if (key := operator_key(name))}
    if not chosen:
        raise DataError(
            "no operator is listed", where=f"{origin}: op", help="expected are keys such as ('conv', 'Conv')"
        )
    quantized = [each for each in chosen.values() if not each.is_float]
    shared = [_grid_fields(each) for each in quantized if each.values("weight", "dtype")] or [{}]
    same = {key: value for key, value in shared[0].items() if all(each.get(key) == value for each in shared)}
    recipes = mapping(found.get("recipe_cfgs"))
    smooth = recipes.get("smooth_quant")
    settings = SettingsFacts.model_validate(
        {
            "toolchain": TOOLCHAIN,
            **same,
            "dynamic": _is_dynamic(found.get("approach")),
            "smooth_quant": smooth if isinstance(smooth, bool) else None,
            "float_layers": tuple(each.name for each in chosen.values() if each.is_float) or None,
        }
    )
    layers = {each.name: ReportedFacts(origin=origin, dtype=_operator_type(each)) for each in chosen.values()}
    unreadable = len(operators) - len(chosen)
    notices = [f"entries of op without a name and a type: {unreadable}"] if unreadable else []
    return Imported(
        settings=settings,
        layers=layers,
        layer_types={name: op_type for name, op_type in chosen if op_type},
        notices=(*notices, *_dropped_recipes(recipes)),
    )


def _operator_type(operator: _Operator) -> str | None:
    if operator.is_float:
        return "float"
    found = operator.values("activation", "dtype")
    return f"int{BITS[found[0]]}" if len(found) == 1 and found[0] in BITS else None


def _operators_of(found: object) -> list[_Operator]:
    return [_Operator(str(name), mapping(said)) for name, said in mapping(found).items()]


def _dropped_recipes(recipes: Mapping[object, object]) -> list[str]:
    return [f"recipes.{key} is taken and does nothing since version 2" for key in DROPPED if recipes.get(key) is True]


def _kept_ends(found: Mapping[object, object]) -> list[str]:
    recipes = mapping(found.get("recipes"))
    return [
        f"recipes.{end}_conv_or_matmul_quantization=False leaves the {end} convolution or matrix product in float"
        for end in ("first", "last")
        if recipes.get(f"{end}_conv_or_matmul_quantization") is False
    ]


def _plain_names(operators: Sequence[_Operator]) -> tuple[str, ...] | None:
    """Names of the operators left in float, without those that are patterns."""
    kept = (_plain_name(each.name) for each in operators if each.is_float)
    return tuple(name for name in kept if name is not None) or None


def _plain_name(name: str) -> str | None:
    """The one name that a key of op_name_dict, a regular expression, stands for; None where it is a pattern.

    It is not compiled, since an expression can be written that takes hours to match.
    """
    if not set(name) & _SPECIAL:
        return name
    plain = re.sub(r"\\(.)", r"\1", name)
    return plain if re.escape(plain).replace(r"\-", "-") == name.replace(r"\-", "-") else None


def _patterns(names: Sequence[_Operator]) -> list[str]:
    return [
        f"op_name_dict: {each.name!r} is a regular expression; as a name it is not found unless re.escape writes it"
        for each in names
        if each.name != ".*" and _plain_name(each.name) is None
    ]


def _is(values: tuple[str, ...], wanted: str) -> bool | None:
    """Whether the one value is the wanted one; None where there is none, or a choice."""
    return values[0].startswith(wanted) if len(values) == 1 else None


def _shared_bits(values: tuple[str, ...]) -> int | None:
    found = {BITS.get(value) for value in values}
    return found.pop() if len(found) == 1 else None


def _is_dynamic(approach: object) -> bool | None:
    if not isinstance(approach, str) or "auto" in approach:
        return None
    return "dynamic" in approach


#: Words that no other toolchain's configuration has.
_WORDS = (
    "PostTrainingQuantConfig",
    "QuantizationAwareTrainingConfig",
    "op_type_dict",
    "op_name_dict",
    "first_conv_or_matmul_quantization",
    "fast_bias_correction",
    "calibration_sampling_size",
    "post_training_static_quant",
    "post_training_dynamic_quant",
    "w_granularity",
    "act_granularity",
    "recipe_cfgs",
    "accuracy_criterion",
    "use_layer_wise",
)
_SECTION = re.compile(r"^['\"]?quantization['\"]?:", re.MULTILINE)
_SECTION_WORDS = ("model_wise", "op_wise", "optype_wise", "approach")


def _is_inc_config(name: str, text: str) -> bool:
    if name.rpartition(".")[2].lower() not in ("json", "yaml", "yml"):
        return False
    if any(word in text for word in _WORDS) or ("quant_format:" in text and "backend:" in text):
        return True
    return _SECTION.search(text) is not None and any(word in text for word in _SECTION_WORDS)


FORMATS = (Format(f"{TOOLCHAIN} configuration", TOOLCHAIN, _is_inc_config, read_config),)
