"""Thresholds as users give them: our names, and those of MCT's XQuant Extension Tool."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from quantmedic.api.options import RuleOptions
from quantmedic.api.rulebase import load_rulebase
from quantmedic.engine.decibels import to_decibels
from quantmedic.engine.errors import RuleError
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.rules.yaml_files import read_yaml
from quantmedic.engine.yaml_text import NotYaml, parse_yaml

#: XQuant's single numbers under our names.
_XQUANT = {
    "threshold_degrade_layer_ratio": "degrade_layer_ratio",
    "threshold_zscore_outlier_removal": "activation_zscore",
    "threshold_ratio_unbalanced_concatenation": "unbalanced_concatenation_ratio",
    "threshold_bitwidth_mixed_precision_with_model_output_loss_objective": "last_layer_bits",
}


def _linear_sqnr(value: float) -> dict[str, float]:
    """XQuant's SQNR is a ratio of powers; below it, a layer is degraded."""
    if not value > 0:
        raise RuleError(f"sqnr must be a positive ratio, not {value!r}", where="threshold_quantize_error")
    return {"quantize_error_sqnr_db": to_decibels(value), "quantize_error_nmse": 1.0 / value}


#: XQuant's ``threshold_quantize_error`` by metric.
_XQUANT_ERRORS: Mapping[str, Callable[[float], dict[str, float]]] = {
    "mse": lambda value: {"quantize_error_mse": value},
    "cs": lambda value: {"quantize_error_cosine": value},
    "sqnr": _linear_sqnr,
}


def apply_thresholds(base: RuleBase, options: Sequence[str]) -> RuleBase:
    """Override thresholds from YAML files, then from ``NAME=VALUE`` options.

    Raises:
        RuleError: A file cannot be read, an option is neither, or a name or value is unknown.
    """
    for file in (Path(text) for text in options if "=" not in text):
        values = read_yaml(file)
        if not isinstance(values, dict):
            raise RuleError("a threshold file holds one mapping of names to numbers", where=str(file))
        base = base.with_thresholds(translate(values), str(file.name))
    return base.with_thresholds(
        translate(dict(_parse_threshold(text) for text in options if "=" in text)), "command line"
    )


def rules_in_force(options: RuleOptions, load: Callable[[Sequence[str | Path]], RuleBase] = load_rulebase) -> RuleBase:
    """The rules that a run judges by.

    Args:
        options: The user's rules and thresholds, and which rules are judged.
        load: Gives the rules of the user's folders and those beside them; the built-in ones by default.

    Raises:
        RuleError: A rule cannot be used, a threshold is unknown, or nothing has a name that was selected or ignored.
    """
    base = apply_thresholds(load(options.folders), options.thresholds)
    return base.choose(options.select, options.ignore)


def translate(values: Mapping[str, object]) -> dict[str, object]:
    """Our threshold names for a mapping that may use XQuant's."""
    translated: dict[str, object] = {}
    for name, value in values.items():
        if name == "threshold_quantize_error":
            translated |= _quantize_errors(value)
        else:
            translated[_XQUANT.get(name, name)] = value
    return translated


def _quantize_errors(value: object) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise RuleError("threshold_quantize_error is a mapping with the keys mse, cs, sqnr", where=repr(value))
    translated: dict[str, float] = {}
    for metric, number in value.items():
        if metric not in _XQUANT_ERRORS or not isinstance(number, int | float):
            raise RuleError(
                "threshold_quantize_error knows the numbers mse, cs and sqnr", where=f"{metric}: {number!r}"
            )
        translated |= _XQUANT_ERRORS[metric](float(number))
    return translated


def _parse_threshold(text: str) -> tuple[str, object]:
    name, _, value = text.partition("=")
    try:
        return name.strip(), parse_yaml(value, f"--threshold {name.strip()}")
    except NotYaml as error:
        raise RuleError(f"not a number: {value[:80]!r}", where=f"--threshold {name.strip()}") from error
