"""What ai-edge-quantizer leaves behind: recipe, calibration result, and its comparison of both models.

``Quantizer.quantize(…).save`` writes NAME_recipe.json, ``Quantizer.validate(…).save`` NAME_comparison_result.json. The
calibration result is a dictionary in memory, minimum and maximum by tensor, that users keep as JSON. Read with
ai-edge-quantizer 0.10.0.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from quantmedic.collectors.toolchain_files.formats import Format, Imported, Requests
from quantmedic.collectors.toolchain_files.settings_files import read_json
from quantmedic.collectors.toolchain_files.values import (
    Fields,
    Schema,
    flag,
    keys_of,
    left_out,
    member_name,
    number,
    numbers,
    table,
    unknown_keys,
    whole,
)
from quantmedic.engine.case.facts import RecordedFacts, ReportedFacts, SettingsFacts
from quantmedic.engine.decibels import to_decibels
from quantmedic.engine.errors import DataError

TENSOR_KEYS = keys_of("num_bits symmetric granularity dtype algorithm_params block_size algorithm_key")
RECIPE: Schema = {
    **keys_of("regex operation algorithm_key overridden_algorithm_params"),
    "op_config": {
        **keys_of("compute_precision explicit_dequantize skip_checks min_weight_elements"),
        "activation_tensor_config": TENSOR_KEYS,
        "weight_tensor_config": TENSOR_KEYS,
    },
}
NO_QUANTIZE = "no_quantize"
TENSORS = ("input_tensors", "intermediate_tensors", "output_tensors")
_RESULT = re.compile(r"\s*\{\s*\"(?:[^\"\\]|\\.)*\"\s*:\s*\{\s*\"(?:min|max)\"\s*:\s*\[")
#: What its metrics write for NaN, and for an infinite value.
_NAN, _INFINITE = 1e-9, 1e9


def _is_recipe(name: str, text: str) -> bool:
    return text.lstrip().startswith("[") and all(f'"{key}"' in text for key in ("regex", "operation", "algorithm_key"))


def _read_recipe(path: Path) -> Imported:
    content = read_json(path)
    steps = [table(step) for step in content] if isinstance(content, list) else []
    if not steps or not all(steps):
        raise DataError("the recipe holds no steps", where=str(path))
    general = [step for step in steps if step.get("regex") == ".*" and step.get("operation") == "*"]
    found = _general_settings(table(general[-1].get("op_config"))) if general else {}
    left = [step for step in steps if step.get("algorithm_key") == NO_QUANTIZE]
    types = tuple(str(step.get("operation")) for step in left if step.get("regex") == ".*")
    names = tuple(str(step.get("regex")) for step in left if step.get("regex") != ".*")
    wide = tuple(
        str(step.get("regex"))
        for step in steps
        if step.get("regex") != ".*"
        and table(table(step.get("op_config")).get("activation_tensor_config")).get("num_bits") == 16
    )
    found |= {"float_types": types or None, "float_layers": names or None, "wide_layers": wide or None}
    settings = SettingsFacts.model_validate(found)
    notices = () if general or not settings.model_dump(exclude_none=True) else ("no step applies to all operators",)
    parts = tuple(text for step in steps if (text := _literal(str(step.get("regex", "")))))
    requests = Requests(parts=tuple(dict.fromkeys(parts)))
    return Imported(settings=settings, requests=requests, unknown=unknown_keys(steps, RECIPE), notices=notices)


def _literal(regex: str) -> str | None:
    """The text that an expression stands for, which the quantizer looks for in names; None for a pattern.

    It is not compiled, since an expression can be written that takes hours to match.
    """
    return regex if regex and not set(regex) & set("\\*+?()[]{}|^$") else None


def _general_settings(config: Mapping[str, object]) -> Fields:
    """Settings of weights and activations in the step for all operators."""
    activation, weight = (table(config.get(f"{part}_tensor_config")) for part in ("activation", "weight"))
    symmetric = flag(activation.get("symmetric"))
    granularity, precision = member_name(weight.get("granularity")), member_name(config.get("compute_precision"))
    return {
        "activation_bits": whole(activation.get("num_bits")),
        "weight_bits": whole(weight.get("num_bits")),
        "asymmetric_activations": None if symmetric is None else not symmetric,
        "per_channel_weights": {"CHANNELWISE": True, "TENSORWISE": False}.get(granularity),
        "dynamic": precision == "INTEGER" and not activation if weight else None,
    }


def _is_result(name: str, text: str) -> bool:
    return _RESULT.match(text) is not None


def _read_result(path: Path) -> Imported:
    found, left = {}, []
    for name, entry in table(read_json(path)).items():
        lows, highs = (numbers(table(entry).get(key)) for key in ("min", "max"))
        if not lows or not highs or min(lows) > max(highs):
            left.append(name)
            continue
        found[name] = RecordedFacts(low=min(lows), high=max(highs))
    if not found:
        raise DataError("the calibration result holds no ranges", where=str(path))
    return Imported(tensors=found, notices=left_out("tensors without a readable range", left))


def _is_comparison(name: str, text: str) -> bool:
    return '"reduced_size_bytes"' in text and text.lstrip().startswith("{")


def _read_comparison(path: Path) -> Imported:
    layers: dict[str, ReportedFacts] = {}
    for signature in table(read_json(path)).values():
        for kind in TENSORS:
            for name, metrics in table(table(signature).get(kind)).items():
                layers.setdefault(name, _compared_tensor(table(metrics)))
    known = {name: facts for name, facts in layers.items() if facts != ReportedFacts()}
    if not known:
        raise DataError("the comparison holds no errors of tensors", where=str(path))
    return Imported(layers=known)


def _compared_tensor(metrics: Mapping[str, object]) -> ReportedFacts:
    """The errors of one tensor; the file's SNR is a ratio of powers, not in dB."""
    mse, cosine, ratio = (number(metrics.get(key)) for key in ("mse", "cosine_similarity", "snr"))
    usable = ratio is not None and ratio > 0 and ratio not in (_NAN, _INFINITE)
    return ReportedFacts(
        mse=mse if mse is not None and mse >= 0 else None,
        cosine=min(cosine, 1.0) if cosine is not None and cosine != _NAN else None,
        sqnr_db=to_decibels(ratio) if usable and ratio is not None else None,
    )


FORMATS = (
    Format("ai-edge-quantizer recipe", "ai-edge-quantizer", _is_recipe, _read_recipe),
    Format("ai-edge-quantizer calibration result", "ai-edge-quantizer", _is_result, _read_result),
    Format("ai-edge-quantizer comparison", "ai-edge-quantizer", _is_comparison, _read_comparison),
)
