"""Facts of an operator's weights: the float initializer against the codes that replace it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.measure.weight_errors import (
    channel_errors,
    common_shift,
    difference_of_floats,
    grid_predictions,
    resemblance,
)
from quantmedic.collectors.pair.constants import Constant
from quantmedic.collectors.pair.likeness import is_comparable
from quantmedic.collectors.pair.originals import Normalization, OperatorPair, output_axis
from quantmedic.collectors.pair.quantizer import quantizer_facts
from quantmedic.collectors.pair.weight_arrays import weight_arrays
from quantmedic.collectors.pair.weight_grids import (
    DEAD,
    MIN_ROW,
    known_sqnr_db,
    outlier_ratios,
    output_matrix,
    power_of,
    rows_along,
)
from quantmedic.collectors.statistics import numba_loops as kernels
from quantmedic.collectors.statistics.accumulate import as_rows
from quantmedic.engine.case.facts import ErrorFacts, WeightFacts
from quantmedic.engine.case.records import WeightArrays
from quantmedic.engine.case.statistics import SetStatistics
from quantmedic.engine.formulas.error_facts import ALIVE, error_facts

#: Fields of ``WeightFacts``; None where a number is not defined.
Numbers = dict[str, float | None]
Values = NDArray[np.float32]


def rounding_facts(x: NDArray[np.float32], y: NDArray[np.float32], axis: int | None, scale: float | None) -> ErrorFacts:
    """Error of ``y`` against ``x`` (equal shapes), with the worst channel along ``axis``."""
    if not x.size:
        return ErrorFacts()
    a, b = ((v.reshape(1, 1, -1) if axis is None else as_rows(v, axis)) for v in (x, y))
    into = SetStatistics.empty([a.shape[1]]).tensor(0)
    kernels.observe_error(a, b, into, "rounding")
    return error_facts(into.errors["rounding"], scale, audible=ALIVE)


class Weights(NamedTuple):
    """What is known of an operator's weights; ``arrays`` where float and stored weights can be laid side by side."""

    facts: WeightFacts
    arrays: WeightArrays | None = None


def measure_weights(pair: OperatorPair) -> Weights:
    """Facts and arrays of an operator's weights; empty where it has none."""
    stored, original = pair.weight, pair.original
    if stored is None:
        return Weights(WeightFacts())
    shaped = original.weight
    if shaped is not None and (stored.values is None or stored.values.shape != shaped.shape):
        shaped = None
    source = shaped if is_comparable(stored.values, shaped) else None
    values = source if source is not None else stored.values
    quantizer = quantizer_facts(stored.quantizer, stored.small_floats)
    if values is None or not values.size:
        return Weights(WeightFacts(name=stored.name, quantizer=quantizer))
    axis = output_axis(pair.op)
    axis = axis % values.ndim if axis is not None else None
    found: dict[str, object] = {
        "name": original.name or stored.name,
        "quantizer": quantizer,
        "output_axis": axis,
        "max_code": _max_code(stored),
        "group_size": stored.quantizer.block_size if stored.quantizer is not None else None,
        "overflow_ratio": _overflow_ratio(stored, shaped),
        **_distribution(values, axis),
        **_moments(stored.values, "stored_"),
        **(_normalization_gains(pair.normalization) if original.folded else {}),
    }
    if stored.quantizer is None and stored.values is not None and source is not None:
        found |= difference_of_floats(stored.values, source, axis)
    if stored.quantizer is None or stored.values is None or shaped is None or not np.isfinite(shaped).all():
        return Weights(WeightFacts.model_validate(found))
    if source is not None:
        found["rounding"] = rounding_facts(source, stored.values, axis, quantizer.scale)
        found |= channel_errors(source, stored.values, axis)
        found |= common_shift(source, stored.values, stored.quantizer)
    predictions = grid_predictions(stored, shaped, axis)
    found |= resemblance(stored, shaped, axis)
    found |= predictions
    if source is None:
        return Weights(WeightFacts.model_validate(found))
    best = predictions.get("predicted_best_sqnr_db")
    if best is not None:
        # Summed as the prediction is, so that an equal grid gains exactly nothing.
        now = known_sqnr_db(*(float(power_of(a.reshape(1, -1))[0]) for a in (source, stored.values - source)))
        found["predicted_best_gain_db"] = round(best - now, 6) if now is not None and np.isfinite(now) else None
    return Weights(WeightFacts.model_validate(found), weight_arrays(source, stored.values, axis))


def _overflow_ratio(stored: Constant, source: Values | None) -> float | None:
    """Largest float weight over what its codes reach; None where they are integers, or a reach is 0 or unknown."""
    if stored.small_floats is None or source is None or not (stored.small_floats.reach > 0).all():
        return None
    found = float((np.abs(source) / stored.small_floats.reach).max())
    return found if np.isfinite(found) else None


def _max_code(stored: Constant) -> int | None:
    """Largest distance of a stored code from the zero point; None where zero points differ between channels."""
    if stored.codes is None or stored.quantizer is None or not stored.codes.size:
        return None
    zeros = np.unique(np.asarray(stored.quantizer.zero_point, np.int64))
    if len(zeros) != 1:
        return None
    return max(abs(int(code) - int(zeros[0])) for code in (stored.codes.min(), stored.codes.max()))


def _distribution(values: Values, axis: int | None) -> Numbers:
    """How the weights are spread, over all channels and within each."""
    found = _moments(values)
    top, std = float(np.abs(values).max()), float(values.std())
    centred = values - np.float32(values.mean(dtype=np.float64))
    centred *= centred
    variance = float(centred.mean(dtype=np.float64))
    fourth = float(power_of(centred.reshape(1, -1))[0]) / values.size
    found["absmax_over_std"] = top / std if std > 0 else None
    found["kurtosis"] = fourth / variance**2 - 3 if variance > 0 else None
    if axis is None:
        return found
    rows = rows_along(values, axis)
    tops = np.abs(rows).max(axis=1)
    alive = tops > DEAD * top
    if alive.any():
        found["channel_range_ratio"] = float(tops[alive].max() / tops[alive].min())
        if rows.shape[1] >= MIN_ROW and np.isfinite(rows).all():
            ratios = outlier_ratios(output_matrix(values, axis)[alive])
            found["outlier_ratio"] = float(ratios.max())
            found["widest_outlier_ratio"] = float(ratios[tops[alive].argmax()])
    return found | {
        "channels": int(tops.size),
        "dead_channels": int((~alive).sum()),
        "input_channel_range_ratio": _input_range_ratio(output_matrix(values, axis)),
    }


def _moments(values: Values | None, prefix: str = "") -> Numbers:
    """Extremes, mean and deviation under names with this prefix; none of no values."""
    if values is None or not values.size:
        return {}
    numbers = {"min": values.min(), "max": values.max(), "mean": values.mean(), "std": values.std()}
    return {f"{prefix}{name}": float(number) for name, number in numbers.items()}


def _input_range_ratio(matrix: Values) -> float | None:
    """Widest over narrowest input channel of ``[outputs, inputs, taps]``; None where there is one."""
    tops = np.abs(matrix).max(axis=(0, 2))
    alive = tops > DEAD * tops.max()
    return float(tops[alive].max() / tops[alive].min()) if alive.sum() > 1 else None


def _normalization_gains(normalization: Normalization | None) -> Numbers:
    """What the normalization behind the float operator has multiplied its channels with."""
    if normalization is None or not normalization.gain.size or not np.isfinite(normalization.gain).all():
        return {}
    gains = np.abs(normalization.gain.astype(np.float64))
    variance = normalization.variance.astype(np.float64)
    top, middle = int(gains.argmax()), float(np.median(gains))
    below = float(variance[top]) + normalization.epsilon
    return {
        "batch_norm_gain": float(gains[top]),
        "batch_norm_gain_ratio": float(gains[top] / middle) if middle > 0 else None,
        "batch_norm_variance_ratio": float(np.median(variance)) / below if below > 0 else None,
    }
