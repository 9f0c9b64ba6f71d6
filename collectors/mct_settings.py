"""What a live ``mct.core.CoreConfig`` of Sony's Model Compression Toolkit asks for; the toolkit is not imported."""

from typing import Any

from quantmedic.engine.errors import DataError
from quantmedic.engine.facts import SearchFacts, SettingsFacts

#: Facts by the fields of ``CoreConfig.quantization_config`` that hold them, version 2.6.1.
QUANTIZATION = {
    "activation_error_method": "activation_error_method",
    "weights_error_method": "weights_error_method",
    "z_threshold": "z_threshold",
    "min_threshold": "min_threshold",
    "shift_negative": "shift_negative_activation_correction",
    "shift_negative_ratio": "shift_negative_ratio",
    "channel_equalization": "activation_channel_equalization",
    "bias_correction": "weights_bias_correction",
    "activation_bias_correction": "activation_bias_correction",
    "concat_threshold_update": "concat_threshold_update",
}
#: The same of ``CoreConfig.mixed_precision_config``.
SEARCH = {"distance_weighting": "distance_weighting_method", "hessian_scores": "use_hessian_based_scores"}
#: Where edits of single layers are listed.
EDITS = (
    ("debug_config", "network_editor"),
    ("bit_width_config", "manual_activation_bit_width_selection_list"),
    ("bit_width_config", "manual_weights_bit_width_selection_list"),
)


def read_core_config(config: Any) -> tuple[SettingsFacts, SearchFacts]:
    """Settings of a ``CoreConfig``; what it does not hold, as in another version, stays None.

    The number of images and the other settings of the search are given only where it was run: the toolkit notes in the
    configuration that it ran one.

    Raises:
        DataError: It is no ``CoreConfig``.
    """
    quantization = getattr(config, "quantization_config", None)
    if quantization is None:
        raise DataError(
            f"a CoreConfig of MCT is expected, not {type(config).__name__}",
            help="pass the mct.core.CoreConfig that the model was quantized with",
        )
    mixed = getattr(config, "mixed_precision_config", None)
    searched = _plain(getattr(config, "is_mixed_precision_enabled", None))
    told = {fact: _plain(getattr(quantization, name, None)) for fact, name in QUANTIZATION.items()}
    if searched:
        told |= {fact: _plain(getattr(mixed, name, None)) for fact, name in SEARCH.items()}
        told["configuration_overwrite"] = getattr(mixed, "configuration_overwrite", None) is not None
    lists = [getattr(getattr(config, part, None), name, None) for part, name in EDITS]
    edits = sum(len(rules) for rules in lists if rules is not None) if any(r is not None for r in lists) else None
    settings = SettingsFacts(**told, mixed_precision=searched, edits=edits)
    images = getattr(mixed, "num_of_images", None) if searched else None
    return settings, SearchFacts(toolchain="Sony MCT", images=images) if images else SearchFacts()


def _plain(value: Any) -> Any:
    """A member of an enumeration by its name, anything else as it is."""
    return getattr(value, "name", value)
