"""Facts of errors: sums over pairs of values, per channel, of all tensors at once."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.facts import ErrorFacts, TensorFacts, WeightErrorFacts, WeightFacts
from quantmedic.engine.case.records import Case, OperatorRecord
from quantmedic.engine.case.statistics import Column
from quantmedic.engine.decibels import sqnr_of_nmse, to_decibels
from quantmedic.engine.formulas.columns import (
    Floats,
    Integers,
    facts_by_tensor,
    medians_by_tensor,
    owner_of_rows,
    per_tensor,
    ratio,
)
from quantmedic.engine.formulas.stored_bins import main_role

#: Channels with less than this share of the loudest channel's power are not judged for their own error.
AUDIBLE = 1e-4
#: Of weights all channels count but dead ones, for what is behind may amplify them: 1e-6 of the largest magnitude.
ALIVE = 1e-12
#: A channel whose noise power exceeds this share of its own power is lost, however quiet it is.
LOST = 0.5
#: Operators that have no finite result for zero, and which of their inputs must not be that.
_DIVISORS = {"Div": 1, "Reciprocal": 0, "Log": 0}
#: What is known of an error that was not measured.
NO_ERROR = ErrorFacts()


def error_facts(columns: Mapping[str, Column], scale: float | None, *, audible: float = AUDIBLE) -> ErrorFacts:
    """Errors of one tensor from the sums of one kind, a value per channel: see ``all_error_facts``."""
    return all_error_facts(columns, np.array([0, len(columns["count"])]), [scale], audible=audible)[0]


def all_error_facts(
    columns: Mapping[str, Column],
    offsets: Integers,
    scales: Sequence[float | None],
    *,
    audible: float = AUDIBLE,
) -> list[ErrorFacts]:
    """Errors from the sums of one kind: ``count``, ``sum`` Σd, ``square`` Σd², ``cross`` Σx·d, ``power`` Σx².

    Channels with less than the share ``audible`` of the loudest one's power do not count for the worst one.
    """
    count = per_tensor(np.add, columns["count"], offsets)
    total, square, cross, power = (
        per_tensor(np.add, columns[name], offsets) for name in ("sum", "square", "cross", "power")
    )
    with np.errstate(all="ignore"):
        mse, mean = square / count, total / count
        nmse = np.where(power > 0, square / power, np.nan)
        norm = np.sqrt(power * np.maximum(power + 2 * cross + square, 0.0))
        cosine = np.where(norm > 0, np.minimum((power + cross) / norm, 1.0), np.nan)
        std = np.sqrt(np.maximum(mse - mean * mean, 0.0))
        steps = np.sqrt(mse) / np.array([scale or np.nan for scale in scales])
        worst, channel = _worst_channel(columns, offsets, power, audible)
    fields = {
        "mse": mse,
        "nmse": nmse,
        "sqnr_db": -to_decibels(nmse),
        "cosine": cosine,
        "mean": mean,
        "std": std,
        "max": per_tensor(np.maximum, columns["max"], offsets),
        "rmse_over_scale": steps,
        "bias_over_std": _bias_over_std(columns, offsets),
        "worst_channel_sqnr_db": -to_decibels(worst),
        "worst_channel": channel,
        "median_channel_sqnr_db": -to_decibels(_median_channel(columns, offsets)),
    }
    rows = facts_by_tensor(fields)
    return [ErrorFacts(**row) if n else NO_ERROR for n, row in zip(count.tolist(), rows, strict=True)]


def deployed_facts(columns: Mapping[str, Column], offsets: Integers) -> list[dict[str, float | None]]:
    """``normalized_mse`` of every tensor.

    With the float values x, the deployed ones x + d, their widths w and v and k = 1 / w - 1 / v it is
    Var(k·x - d / v) + (difference of the scaled means)². As in Neural Compressor, a tensor of one value is not scaled.
    Unknown where a value is not finite.
    """
    low, high = (per_tensor(end, columns[n], offsets) for end, n in ((np.minimum, "min"), (np.maximum, "max")))
    own_low = per_tensor(np.minimum, columns["deployed_min"], offsets)
    own_high = per_tensor(np.maximum, columns["deployed_max"], offsets)
    seen, pairs, n = columns["count"], columns["accumulated.count"], per_tensor(np.add, columns["count"], offsets)
    lost = columns["nonfinite"] + columns["accumulated.nonfinite"]
    with np.errstate(all="ignore"):
        mean = per_tensor(np.add, columns["mean"] * seen, offsets) / n
        apart = columns["mean"] - mean[owner_of_rows(offsets)]
        variance = per_tensor(np.add, columns["m2"] + seen * apart * apart, offsets) / n
        shift, square, cross = (
            per_tensor(np.add, columns[f"accumulated.{name}"], offsets) / n for name in ("sum", "square", "cross")
        )
        (zero, width), (own_zero, own_width) = _unit_range(low, high), _unit_range(own_low, own_high)
        slope = 1 / width - 1 / own_width
        noise, shared = square - shift * shift, cross - mean * shift
        spread = slope * slope * variance + noise / own_width**2 - 2 * slope * shared / own_width
        centre = (mean - zero) / width - (mean + shift - own_zero) / own_width
        found = np.maximum(spread, 0.0) + centre * centre
    whole = (per_tensor(np.add, np.abs(seen - pairs) + lost, offsets) == 0) & np.isfinite(found) & (n > 0)
    return list(facts_by_tensor({"normalized_mse": np.where(whole, found, np.nan)}))


def _unit_range(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """What is taken off and what is divided by to scale values to 0 … 1; those of one value stay as they are."""
    return np.where(high > low, low, 0.0), np.where(high > low, high - low, 1.0)


def weight_error_facts(case: Case, op: OperatorRecord, tensors: Sequence[TensorFacts]) -> WeightErrorFacts:
    """What the error of an operator's weights does to its output, on the data set that the facts come from.

    Unknown where the weights, or what arrives at the output, are not as measured.
    """
    index = next((i for i in op.outputs if i is not None), None)
    if index is None or op.weight.rounding.mse is None or tensors[index].data.accumulated.mse is None:
        return WeightErrorFacts()
    role = main_role(case)
    statistics = case.statistics[role]
    rows = statistics.rows(index)
    columns = {name: column[rows] for name, column in statistics.columns.items()}
    seen, measured = columns["weights.count"], columns["accumulated.count"]
    if not len(seen) or not (seen > 0).all() or not (measured > 0).all():
        return WeightErrorFacts()
    shift, noise = columns["weights.sum"] / seen, columns["weights.square"] / seen
    mean, mse = columns["accumulated.sum"] / measured, columns["accumulated.square"] / measured
    power = columns["accumulated.power"] / measured
    # What the prediction and the measurement agree on.
    agreed = np.where(shift * mean > 0, np.minimum(np.abs(shift), np.abs(mean)), 0.0)
    std = np.sqrt(np.maximum(mse - mean * mean, 0.0))
    loud = (power > AUDIBLE * power.max()) & (noise > 0)
    return WeightErrorFacts(
        dataset=role,
        sqnr_db=sqnr_of_nmse(ratio(float(noise.sum()), float(power.sum()))),
        worst_channel_sqnr_db=sqnr_of_nmse(float((noise[loud] / power[loud]).max())) if loud.any() else None,
        noise_share=ratio(float(noise.sum()), float(mse.sum())),
        shift=float(np.abs(shift).max()),
        shift_over_std=float((agreed[std > 0] / std[std > 0]).max()) if (std > 0).any() else None,
        shift_share=ratio(float((agreed * agreed).sum()), float(mse.sum())),
    )


def normalized_mse(weight: WeightFacts) -> float | None:
    """Mean square of u - v, the float weights x and the stored ones y = x + e scaled by their own extremes.

    With k = 1 / width(x) - 1 / width(y) it is Var(k·x - e / width(y)) + (mean of u - v)².
    """
    floats = _all_known(weight.min, weight.max, weight.mean, weight.std)
    stored = _all_known(weight.stored_min, weight.stored_max, weight.stored_mean, weight.stored_std)
    mse = weight.rounding.mse
    if floats is None or stored is None or mse is None or weight.input_gain_ratio not in (None, 1.0):
        return None
    low, high, mean, std = floats
    stored_low, stored_high, stored_mean, stored_std = stored
    width, stored_width = high - low, stored_high - stored_low
    if not (0 < width < math.inf and 0 < stored_width < math.inf):
        return None
    slope, offset = 1 / width - 1 / stored_width, stored_mean - mean
    variance = max(mse - offset**2, 0.0)
    shared = (stored_std**2 - std**2 - variance) / 2
    spread = (slope * std) ** 2 + variance / stored_width**2 - 2 * slope * shared / stored_width
    centre = (mean - low) / width - (stored_mean - stored_low) / stored_width
    return max(spread, 0.0) + centre**2


def _all_known(*values: float | None) -> tuple[float, ...] | None:
    """The values, where all of them were measured."""
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else None


def divisor_steps(op: OperatorRecord, tensors: Sequence[TensorFacts]) -> float | None:
    """Smallest magnitude of a divisor or of a logarithm's operand in steps of its grid; None where it changes sign."""
    place = _DIVISORS.get(op.op_type)
    index = op.inputs[place] if place is not None and place < len(op.inputs) else None
    if index is None:
        return None
    values = tensors[index].data.values
    if values.min is None or values.max is None or values.min <= 0 <= values.max:
        return None
    return ratio(min(abs(values.min), abs(values.max)), tensors[index].quantizer.scale)


def has_lost_channels(case: Case, index: int) -> bool:
    """Whether a channel of a tensor has a signal that is less than twice the noise which arrives in it."""
    statistics = case.statistics[main_role(case)]
    rows = statistics.rows(index)
    power, noise = (statistics.columns[f"accumulated.{name}"][rows] for name in ("power", "square"))
    return bool(((power > ALIVE * power.max(initial=0.0)) & (noise > LOST * power)).any())


def _worst_channel(
    columns: Mapping[str, Column], offsets: Integers, total: Floats, share: float
) -> tuple[Floats, NDArray[Any]]:
    """Largest noise-to-signal ratio of a channel that is loud enough, and which it is."""
    power, square, owner = columns["power"], columns["square"], owner_of_rows(offsets)
    top = per_tensor(np.maximum, power, offsets)
    audible = power > share * top[owner]
    nmse = np.where(audible, square / np.where(power > 0, power, 1.0), -1.0)
    judged = (np.diff(offsets) > 1) & (top > 0) & (top < np.inf)
    worst = np.where(judged, per_tensor(np.maximum, nmse, offsets), np.nan)
    places = np.flatnonzero(nmse == worst[owner])
    tensors, first = np.unique(owner[places], return_index=True)
    channel = np.full(len(worst), None)
    channel[tensors] = places[first] - offsets[tensors]
    return worst, channel


def _median_channel(columns: Mapping[str, Column], offsets: Integers) -> Floats:
    """Median noise-to-signal ratio of the channels that carry any signal."""
    power, square, owner = columns["power"], columns["square"], owner_of_rows(offsets)
    carrying = (power > 0) & np.isfinite(power) & np.isfinite(square)
    return medians_by_tensor(square[carrying] / power[carrying], owner[carrying], np.diff(offsets))


def _bias_over_std(columns: Mapping[str, Column], offsets: Integers) -> Floats:
    count = np.maximum(columns["count"], 1)
    with np.errstate(all="ignore"):
        mean = columns["sum"] / count
        variance = columns["square"] / count - mean * mean
        ratio = np.where(variance > 0, np.abs(mean) / np.sqrt(variance), -1.0)
    largest = per_tensor(np.maximum, ratio, offsets)
    return np.where(largest < 0, np.nan, largest)
