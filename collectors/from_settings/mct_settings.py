"""Settings of Sony's Model Compression Toolkit: from a live ``mct.core.CoreConfig``, and from the log folder.

The toolkit itself is not imported.
"""

from pathlib import Path

from quantmedic.collectors.from_settings.mct_log import fitting_mct_log, imported_log, read_mct_log
from quantmedic.collectors.toolchain_files.formats import Format, RunSettings
from quantmedic.collectors.toolchain_files.values import Fields
from quantmedic.engine.case.facts import SearchFacts, SettingsFacts
from quantmedic.engine.errors import DataError

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
#: What the toolkit calls the part of its model that quantizes the output of a node.
HOLDER = "_activation_holder_quantizer"


def read_mct_settings(
    quantized_model: object, core_config: object = None, log_folder: str | Path | None = None
) -> RunSettings:
    """The settings with which the toolkit made a model.

    Args:
        quantized_model: The toolkit's module, whose nodes and thresholds a log has to fit; of any other model, None
            included, the newest quantization in the log is taken.
        core_config: The ``mct.core.CoreConfig``.
        log_folder: The folder given to ``mct.set_log_folder``.

    Raises:
        DataError: ``core_config`` is not a ``CoreConfig``, or ``tensorboard`` is not installed.
    """
    settings, search = SettingsFacts(), SearchFacts()
    if core_config is not None:
        settings, search = read_core_config(core_config)
    if log_folder is None:
        return RunSettings(settings, search)
    log, why = fitting_mct_log(log_folder, *nodes_of(quantized_model))
    if log is None:
        return RunSettings(settings, search, notice=why)
    settings = log.settings.model_copy(update=settings.model_dump(exclude_none=True))
    texts = tuple(path for path in [Path(log.folder) / "mct_log.log"] if path.is_file())
    return RunSettings(settings, search, texts)


def nodes_of(model: object) -> tuple[list[str], dict[str, float]]:
    """Nodes of the toolkit's module by name, and the thresholds of their outputs; both empty for other models."""
    children = getattr(model, "named_children", dict)
    parts = dict(children())
    held = {name.removesuffix(HOLDER): part for name, part in parts.items() if name.endswith(HOLDER)}
    if not held:
        return [], {}
    thresholds = {name: getattr(part.activation_holder_quantizer, "threshold_np", None) for name, part in held.items()}
    names = dict.fromkeys(name.removesuffix(HOLDER) for name in parts)
    return list(names), {name: float(value) for name, value in thresholds.items() if value is not None}


def read_core_config(config: object) -> tuple[SettingsFacts, SearchFacts]:
    """Settings of a ``CoreConfig``; what it does not hold, as in another version, stays None.

    The number of images and the other settings of the search are given only where it was run: the toolkit notes in the
    configuration that it ran one.

    Raises:
        DataError: It is not a ``CoreConfig``.
    """
    quantization = getattr(config, "quantization_config", None)
    if quantization is None:
        raise DataError(
            f"a CoreConfig of MCT is expected, not {type(config).__name__}",
            help="pass the mct.core.CoreConfig that the model was quantized with",
        )
    mixed = getattr(config, "mixed_precision_config", None)
    searched = _value_or_member(getattr(config, "is_mixed_precision_enabled", None))
    fields: Fields = {fact: _value_or_member(getattr(quantization, name, None)) for fact, name in QUANTIZATION.items()}
    if searched:
        fields |= {fact: _value_or_member(getattr(mixed, name, None)) for fact, name in SEARCH.items()}
    settings = SettingsFacts.model_validate({**fields, "mixed_precision": searched})
    images = getattr(mixed, "num_of_images", None) if searched else None
    return settings, SearchFacts(toolchain="Sony MCT", images=images) if images else SearchFacts()


def _value_or_member(value: object) -> object:
    """A member of an enumeration by its name, anything else as it is."""
    return getattr(value, "name", value)


#: A folder has no text to recognize it by: every one is read so.
FORMATS = (
    Format(
        "MCT log folder",
        "Sony MCT",
        lambda name, text: True,
        lambda folder: imported_log(read_mct_log(folder)),
        is_folder=True,
        read_run=read_mct_settings,
    ),
)
