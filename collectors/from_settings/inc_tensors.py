"""Tensors that the diagnosis of Intel Neural Compressor 2 saved: ``inspect_saved/{fp32,quan}/inspect_result.pkl``.

They are pickles, and are read without unpickling.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.from_settings.inc_config import TOOLCHAIN
from quantmedic.collectors.from_settings.pickled_arrays import read_arrays
from quantmedic.collectors.toolchain_files.formats import Format, Imported
from quantmedic.collectors.toolchain_files.values import Fields, mapping
from quantmedic.engine.case.facts import ReportedFacts, SettingsFacts
from quantmedic.engine.decibels import sqnr_db
from quantmedic.engine.errors import DataError

#: Folders of the tensors of the float and of the quantized model.
FLOAT, QUANTIZED = "fp32", "quan"
#: Arrays by operator, then by tensor.
Arrays = Mapping[str, Mapping[str, Array]]


def read_tensors(path: Path) -> Imported:
    """Figures per layer from the saved tensors of both models; those of the other model are taken from beside it.

    Raises:
        DataError: It cannot be read safely, is damaged, or holds no such tensors.
    """
    folder = path.parent
    pair = [folder.parent / name / path.name for name in (FLOAT, QUANTIZED)]
    if folder.name not in (FLOAT, QUANTIZED) or not all(each.is_file() for each in pair):
        found = _read_saved(path)
        which = "quantized" if folder.name == QUANTIZED else "float"
        alone = {} if which == "quantized" else _weight_ranges(found, path.name)
        both = " and ".join(f"{name}/{path.name}" for name in (FLOAT, QUANTIZED))
        return _imported_layers(alone, [f"only the tensors of the {which} model are here: keep {both} side by side"])
    floats, quantized = (_read_saved(each) for each in pair)
    layers: dict[str, ReportedFacts] = {}
    notices: list[str] = []
    for name in dict.fromkeys((*floats["activation"], *floats["weight"])):
        figures: Fields = {"origin": path.name}
        for kind, compare in (("activation", _activation_figures), ("weight", _weight_figures)):
            two = [models[kind].get(name, {}) for models in (floats, quantized)]
            arrays = _first_common_tensor(*two)
            if arrays is not None:
                with np.errstate(all="ignore"):
                    figures |= compare(*arrays)
            elif all(two):
                notices.append(f"{name}: {kind}: no tensor of the same shape is in both files")
        layers[name] = ReportedFacts.model_validate(figures)
    return _imported_layers(layers, notices)


def _imported_layers(layers: Mapping[str, ReportedFacts], notices: list[str]) -> Imported:
    shown = notices if len(notices) <= 5 else [*notices[:4], f"{len(notices) - 4} more tensors could not be compared"]
    return Imported(settings=SettingsFacts(toolchain=TOOLCHAIN), layers=layers, notices=tuple(shown))


def _read_saved(path: Path) -> dict[str, Arrays]:
    """Weights, and activations of the first batch that was saved."""
    found = read_arrays(path)
    if not isinstance(found, Mapping) or not {"weight", "activation"} & set(found):
        raise DataError("the file holds no saved tensors", where=str(path), help="it has the keys weight or activation")
    batches = found.get("activation") or [{}]
    first = batches[0] if isinstance(batches, list | tuple) else batches
    return {"weight": _arrays_by_operator(found.get("weight")), "activation": _arrays_by_operator(first)}


def _arrays_by_operator(found: object) -> dict[str, dict[str, Array]]:
    """Arrays of numbers by operator and tensor; everything else is left out."""
    kept: dict[str, dict[str, Array]] = {}
    for operator, tensors in mapping(found).items():
        for name, each in mapping(tensors).items():
            if isinstance(each, np.ndarray) and each.size:
                kept.setdefault(str(operator), {})[str(name)] = each
    return kept


def _first_common_tensor(floats: Mapping[str, Array], quantized: Mapping[str, Array]) -> tuple[Array, Array] | None:
    """The first tensor that both have: by name, else by place, since quantization renames tensors."""
    pairs = [(floats[name], quantized[name]) for name in floats if name in quantized]
    pairs += list(zip(floats.values(), quantized.values(), strict=False))
    fitting = (pair for pair in pairs if pair[0].shape == pair[1].shape)
    return next(fitting, None)


def _activation_figures(floats: Array, quantized: Array) -> dict[str, float]:
    sample = (floats[0], quantized[0]) if floats.ndim > 1 else (floats, quantized)
    figures = {"normalized_mse": normalized_mse(*sample), "saved_sqnr_db": _sqnr_db(floats, quantized)}
    return {key: value for key, value in figures.items() if value is not None}


def _weight_figures(floats: Array, quantized: Array) -> dict[str, float]:
    errors = {
        "weight_normalized_mse": normalized_mse(floats, quantized),
        "weight_sqnr_db": _sqnr_db(floats, quantized),
    }
    figures = errors | _weight_moments(floats)
    return {key: value for key, value in figures.items() if value is not None and math.isfinite(value)}


def _weight_moments(weights: Array) -> dict[str, float]:
    x = weights.astype(np.float64)
    moments = {"min": x.min(), "max": x.max(), "mean": x.mean(), "std": x.std()}
    return {f"weight_{key}": float(value) for key, value in moments.items()}


def _sqnr_db(floats: Array, quantized: Array) -> float | None:
    """Signal-to-quantization-noise ratio of all values; None where there is no signal, no noise or no number."""
    x, y = floats.astype(np.float64).ravel(), quantized.astype(np.float64).ravel()
    power, noise = float(x @ x), float(np.sum((y - x) ** 2))
    found = sqnr_db(power, noise) if power > 0 and noise > 0 else math.nan
    return found if math.isfinite(found) else None


def normalized_mse(floats: Array, quantized: Array) -> float | None:
    """Mean squared difference after each was scaled by its own extremes, as Neural Compressor takes it.

    A tensor of one value only is not scaled (``mse_metric_gap`` of version 2.6). None where a value is not finite.
    """
    x, y = (each.astype(np.float64) for each in (floats, quantized))
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return None
    return float(np.mean((_to_unit_range(x) - _to_unit_range(y)) ** 2))


def _to_unit_range(values: NDArray[np.float64]) -> NDArray[np.float64]:
    low, width = values.min(), np.ptp(values)
    return (values - low) / width if width != 0 else values


def _weight_ranges(found: Mapping[str, Arrays], origin: str) -> dict[str, ReportedFacts]:
    """Facts of the float model's tensors alone: of its weights."""
    layers = {}
    for name, tensors in found["weight"].items():
        weights = next(iter(tensors.values()))
        if np.isfinite(weights).all():
            layers[name] = ReportedFacts.model_validate({"origin": origin, **_weight_moments(weights)})
    return layers


def _is_saved(name: str, text: str) -> bool:
    return name == "inspect_result.pkl"


FORMATS = (Format(f"{TOOLCHAIN} saved tensors", TOOLCHAIN, _is_saved, read_tensors),)
