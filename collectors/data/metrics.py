"""Task metrics: one number per sample, so that results merge and the two models can be compared sample by sample."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.data.functions import import_function
from quantmedic.engine.errors import DataError, QuantmedicError
from quantmedic.engine.formulas.paired import drop_interval

__all__ = ["BUILT_IN", "Metric", "Outputs", "drop_interval", "load_metric"]

Values = NDArray[np.float64]
#: Outputs of a model by name, or in order.
Outputs = Mapping[str, Array] | Sequence[Array]

BUILT_IN = ("top1", "top5", "mae", "rmse")
_DIRECTIONS = {"higher": True, "lower": False}


@dataclass(frozen=True)
class Metric:
    """A task metric.

    Attributes:
        name: As given by the user.
        higher_is_better: Direction.
        per_sample: Takes the outputs and the labels of a batch, both with samples along axis 0, and returns one
            float64 per sample. Raises `DataError` if they do not fit the metric.
        root: The metric is the square root of the mean of its per-sample values (rmse).
        output: Name of the output that it reads; None for the first, or where it is a function.
    """

    name: str
    higher_is_better: bool
    per_sample: Callable[[Outputs, Array], Values]
    root: bool = False
    output: str | None = None

    def aggregate(self, values: Values) -> float:
        """The metric over all samples, from their per-sample values in any order or grouping; NaN without any."""
        if not len(values):
            return float("nan")
        mean = float(np.mean(values))
        return float(np.sqrt(mean)) if self.root else mean


def load_metric(spec: str, direction: str | None = None, output: str | None = None) -> Metric:
    """Metric by name, or a function of the user.

    Args:
        spec: ``top1``, ``top5``, ``mae``, ``rmse`` or ``module:function``. The function is called as
            ``function(outputs, labels)``, outputs by name, and returns one number per sample.
        direction: ``higher`` or ``lower`` is better. For a function it wins over its attribute
            ``higher_is_better``; a built-in metric accepts only its own.
        output: Name of the output that a built-in metric reads; the first one by default.

    Raises:
        DataError: The metric is not known or cannot be imported, or its direction is not.
    """
    if direction is not None and direction not in _DIRECTIONS:
        raise DataError(
            "direction of the metric cannot be read",
            where=f"--metric-direction {direction}",
            help="write --metric-direction higher or --metric-direction lower",
        )
    if ":" in spec:
        return _function_metric(spec, direction, output)
    if spec not in BUILT_IN:
        near = get_close_matches(spec, BUILT_IN, 1)
        raise DataError(
            "unknown metric",
            where=f"--metric {spec}" + (f", did you mean {near[0]}?" if near else ""),
            help=f"give {', '.join(BUILT_IN)} or module:function",
        )
    metric = replace(_built_in(spec, output), output=output)
    if direction is not None and _DIRECTIONS[direction] != metric.higher_is_better:
        raise DataError(
            f"{spec} has the other direction",
            where=f"--metric-direction {direction}",
            help="leave --metric-direction out for built-in metrics",
        )
    return metric


def _built_in(name: str, output: str | None) -> Metric:
    def reading(values: Callable[[str, Array, Array], Values]) -> Callable[[Outputs, Array], Values]:
        return lambda outputs, labels: values(*_select_output(outputs, output), np.asarray(labels))

    if name in ("top1", "top5"):
        k = int(name[3:])
        return Metric(name, True, reading(lambda where, scores, labels: _top_k(k, where, scores, labels)))
    if name == "mae":
        return Metric(name, False, reading(lambda *found: np.abs(_label_differences(*found)).mean(axis=1)))
    return Metric(name, False, reading(lambda *found: np.square(_label_differences(*found)).mean(axis=1)), root=True)


def _outputs_by_name(outputs: Outputs) -> dict[str, Array]:
    pairs = outputs.items() if isinstance(outputs, Mapping) else ((str(i), value) for i, value in enumerate(outputs))
    return {name: np.asarray(value) for name, value in pairs}


def _select_output(outputs: Outputs, name: str | None) -> tuple[str, Array]:
    """Name and array of the output that a built-in metric reads."""
    named = _outputs_by_name(outputs)
    if name is None:
        name = next(iter(named))
    if name not in named:
        near = get_close_matches(name, named, 1)
        raise DataError(
            "model has no such output",
            where=f"--metric-output {name}" + (f", did you mean {near[0]}?" if near else ""),
            help=f"give one of {', '.join(named)}",
        )
    return name, named[name]


def _top_k(k: int, where: str, scores: Array, labels: Array) -> Values:
    """1 where fewer than ``k`` classes beat the label's; of equal scores the lower class wins, as in argmax."""
    _require_class_scores(k, where, scores)
    classes = _class_indices(where, scores, labels)[:, np.newaxis]
    own = np.take_along_axis(scores, classes, axis=1)
    earlier = np.arange(scores.shape[1]) < classes
    rank = ((scores > own) | ((scores == own) & earlier)).sum(axis=1)
    unordered = np.isnan(scores).any(axis=1)
    return np.where(unordered, 0.0, rank < k).astype(np.float64)


def _require_class_scores(k: int, where: str, scores: Array) -> None:
    if scores.ndim != 2:
        raise DataError(
            f"top{k} needs one row of class scores per sample",
            where=f"output  {where}  {scores.shape}",
            help="pick another output with --metric-output NAME, or write a metric: --metric module:function",
        )
    if scores.shape[1] <= k:
        raise DataError(
            f"top{k} needs more than {k} class{'es' if k > 1 else ''}",
            where=f"output  {where}  {scores.shape}",
            help="give --metric top1" if scores.shape[1] > 1 else "write a metric: --metric module:function",
        )


def _class_indices(where: str, scores: Array, labels: Array) -> NDArray[np.int64]:
    """Labels as indices into the classes."""
    if labels.size != len(scores) or len(labels) != len(scores):
        raise DataError(
            "labels are not one class index per sample",
            where=[f"labels  {labels.shape}", f"output  {where}  {scores.shape}"],
            help="give class indices; of one-hot rows take argmax(axis=1)",
        )
    flat = labels.reshape(-1)
    wrong = ~((flat >= 0) & (flat < scores.shape[1]) & (flat == np.floor(flat)))
    if wrong.any():
        raise DataError(
            "label is not a class of the model",
            where=[f"label  {flat[wrong][0]}", f"output  {where}  {scores.shape[1]} classes"],
            help=f"give class indices from 0 to {scores.shape[1] - 1}",
        )
    return flat.astype(np.int64)


def _label_differences(where: str, values: Array, labels: Array) -> Values:
    """Output minus label in float64, ``[samples, numbers per sample]``."""
    if not values.ndim or not labels.ndim or len(values) != len(labels) or values.size != labels.size:
        raise DataError(
            "labels do not have the shape of the output",
            where=[f"labels  {labels.shape}", f"output  {where}  {values.shape}"],
            help="pick the output with --metric-output NAME, or write a metric: --metric module:function",
        )
    rows = (len(values), -1) if values.size else (len(values), 0)
    return values.reshape(rows).astype(np.float64) - labels.reshape(rows).astype(np.float64)


def _function_metric(spec: str, direction: str | None, output: str | None) -> Metric:
    function = import_function(spec, "metric")
    own = getattr(function, "higher_is_better", None)
    if direction is None and own is None:
        raise DataError(
            "direction of the metric is not known",
            where=f"--metric {spec}",
            help="pass --metric-direction higher or lower, or set function.higher_is_better = True or False",
        )
    if output is not None:
        raise DataError(
            "a metric of your own gets all outputs",
            where=[f"--metric {spec}", f"--metric-output {output}"],
            help="leave --metric-output out and select the output in the function",
        )

    def per_sample(outputs: Outputs, labels: Array) -> Values:
        named = _outputs_by_name(outputs)
        try:
            result = function(named, labels)
        except QuantmedicError:
            raise
        except Exception as error:
            raise _function_error(spec, "failed", f"cause  {type(error).__name__}: {error}") from error
        return _one_per_sample(spec, result, len(labels))

    return Metric(spec, bool(own) if direction is None else _DIRECTIONS[direction], per_sample)


def _one_per_sample(spec: str, result: object, samples: int) -> Values:
    """The function's result as float64 ``[samples]``."""
    try:
        values = np.asarray(result).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise _function_error(spec, "did not return numbers", f"cause  {error}") from error
    if values.shape not in ((samples,), (samples, 1)):
        found = f"returned {values.shape}, expected ({samples},)"
        raise _function_error(spec, "did not return one number per sample", found)
    return values.reshape(samples)


def _function_error(spec: str, what: str, where: str) -> DataError:
    return DataError(
        f"the metric function {what}",
        where=[spec, where],
        help="it is called as function(outputs, labels), outputs by name, and returns one number per sample",
    )
