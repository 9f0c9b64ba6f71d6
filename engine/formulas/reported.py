"""Settings of a toolchain and errors that it reported, beside what was measured: formulas only."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import median
from typing import Literal

from quantmedic.engine.case.facts import LayerFacts, ModelFacts, ReportedFacts, SettingsFacts
from quantmedic.engine.decibels import to_decibels
from quantmedic.engine.formulas.columns import FieldsByPlace
from quantmedic.engine.formulas.first_input import FULL_SPAN, Lattice, are_pixels

_COLOURS = {"rgb", "bgr"}
_HOST = "CPU"
_FLOATS = ("float", "half", "bfloat16")
#: Level of what no layer has touched, and of a cosine of 1.
_NO_LOSS_DB = 90.0


def settings_facts(settings: SettingsFacts) -> SettingsFacts:
    """The settings with what follows from several of them."""
    factors = settings.input_scale
    orders = {settings.input_order_runtime, settings.input_order_train}
    return settings.model_copy(
        update={
            "input_factor": max(factors) if factors else None,
            "swaps_channels": None if None in orders else orders == _COLOURS,
        }
    )


def input_facts(lattices: Sequence[Lattice], settings: SettingsFacts) -> dict[str, object]:
    """How one data set's images come in, by the grids of their channels, and how far that is from the settings."""
    if not lattices:
        return {}
    found: dict[str, object] = {"input_reading": _reading_of(lattices)}
    factors = _factors_and_means(settings, len(lattices))
    if factors is None:
        return found
    ratios = [step / factor for (step, _, _), (factor, _) in zip(lattices, factors, strict=True)]
    found["settings_scale_mismatch"] = max(max(ratio, 1 / ratio) for ratio in ratios)
    # The lowest point is the pixel 0 for sure only where the grid has room for no other pixel.
    if min(span for _, _, span in lattices) >= FULL_SPAN:
        zeros = [-low / step for step, low, _ in lattices]
        away = [abs(zero - mean) for zero, (_, mean) in zip(zeros, factors, strict=True)]
        found["settings_mean_difference"] = max(away)
    found["settings_reading"] = _describe_differences(found)
    return found


def _describe_differences(found: Mapping[str, object]) -> str | None:
    scale, levels = f"{found['settings_scale_mismatch']:.3g}", f"{found.get('settings_mean_difference', 0.0):.3g}"
    said = [] if scale == "1" else [f"scales differ {scale}x"]
    said += [] if levels == "0" else [f"means by {levels} levels" if said else f"means differ by {levels} levels"]
    return ", ".join(said) or None


def _reading_of(lattices: Sequence[Lattice]) -> Literal["pixels", "unit", "other"]:
    if are_pixels(lattices, 1.0):
        return "pixels"
    return "unit" if are_pixels(lattices, 1 / FULL_SPAN) else "other"


def _factors_and_means(settings: SettingsFacts, channels: int) -> list[tuple[float, float]] | None:
    """Factor and mean for every channel: one stands for all, and what is left out does nothing."""
    if settings.input_scale is None and settings.input_mean is None:
        return None
    factors, means = (
        given * channels if len(given) == 1 else given
        for given in (settings.input_scale or (1.0,), settings.input_mean or (0.0,))
    )
    if len(factors) != channels or len(means) != channels or min(factors) <= 0:
        return None
    return list(zip(factors, means, strict=True))


def toolchain_fields(layers: tuple[LayerFacts, ...], settings: SettingsFacts) -> FieldsByPlace:
    """Place of a layer from the end, where it runs, how the reported error grows, and asked-for bits."""
    devices = [layer.reported.device for layer in layers]
    others = [place for place, device in enumerate(devices) if device not in (None, _HOST)]
    first, last = (others[0], others[-1]) if others else (0, -1)
    levels = [_level_db(layer.reported) for layer in layers]
    before = list(accumulate(levels, lambda known, level: known if level is None else level, initial=_NO_LOSS_DB))
    return {
        place: {
            "reported_level_db": level,
            "reported_before_db": None if level is None else earlier,
            "reported_weight_level_db": _weight_level_db(layer.reported),
            "layers_behind": len(layers) - 1 - place,
            "inner_host": None if device is None else device == _HOST and first < place < last,
            "host_asked": _is_asked(settings.host_layers, layer),
            "wide_asked": _is_asked(settings.wide_layers, layer),
        }
        for place, (layer, device, level, earlier) in enumerate(zip(layers, devices, levels, before[:-1], strict=True))
    }


def _is_asked(names: tuple[str, ...] | None, layer: LayerFacts) -> bool | None:
    """A layer is among those that the settings name."""
    own = {layer.name, layer.float_name, layer.quantized_name, *(layer.float_nodes or ())}
    return None if names is None else bool(own & set(names))


def _level_db(reported: ReportedFacts) -> float | None:
    """Signal over noise of what was reported; of a cosine it is within -60 … 90 dB."""
    if reported.sqnr_db is not None or reported.cosine is None:
        return reported.sqnr_db
    cosine = min(max(reported.cosine, 1e-3), 1.0)
    return to_decibels(cosine**2 / max(1 - cosine**2, 10 ** (-_NO_LOSS_DB / 10)))


def _weight_level_db(reported: ReportedFacts) -> float | None:
    """Signal over noise of the weights, from the figures of Neural Compressor's table."""
    low, high, mean, std = reported.weight_min, reported.weight_max, reported.weight_mean, reported.weight_std
    if reported.weight_normalized_mse is None or low is None or high is None or mean is None or std is None:
        return None
    noise = reported.weight_normalized_mse * (high - low) ** 2
    return to_decibels((mean**2 + std**2) / noise) if noise > 0 else None


def reported_facts(layers: Sequence[LayerFacts], model: ModelFacts) -> dict[str, object]:
    """What the toolchain reported of the layers, over all of them."""
    cosines = [layer.reported.cosine for layer in layers if layer.reported.cosine is not None]
    devices = [
        layer.reported.dtype
        for layer in layers
        if layer.weight.quantizer.bits is not None and layer.reads_unsigned is not None and layer.reported.dtype
    ]
    inner = [layer.inner_host for layer in layers if layer.inner_host is not None]
    return {
        "settings": settings_facts(model.settings),
        "reported_cosine_min": min(cosines, default=None),
        "reported_cosine_median": median(cosines) if cosines else None,
        "device_float_share": sum(own in _FLOATS for own in devices) / len(devices) if devices else None,
        "device_layers": len(devices) if devices else None,
        "inner_host_layers": sum(inner) if inner else None,
    }
