"""Task metrics by name: what is kept of each sample, so that results merge and the two models can be compared."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.data.functions import UserFunction, failing_as, import_function
from quantmedic.collectors.metrics.box_readings import BoxReading
from quantmedic.collectors.metrics.detections import detection_rows
from quantmedic.collectors.metrics.reading import Outputs, Reading, as_arrays, parse_options
from quantmedic.collectors.metrics.sample_tallies import (
    absolute_errors,
    binary_f1,
    macro_f1,
    neighbour_rows,
    overlap_rows,
    squared_errors,
    top_k,
)
from quantmedic.collectors.metrics.sequences import error_rows, log_likelihood_rows
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.errors import DataError
from quantmedic.engine.metrics.kinds import KINDS, Interval, MetricKind, built_in_kind, kind_of

#: What others call a built-in metric.
_OTHER_NAMES = {"accuracy": "top1", "acc": "top1", "top-1": "top1", "top-5": "top5"}
_DIRECTIONS = {"higher": True, "lower": False}
_TALLIES: Mapping[str, Callable[[Reading, Outputs, Array], Tally]] = {
    "top1": top_k,
    "top5": top_k,
    "mae": absolute_errors,
    "rmse": squared_errors,
    "map": detection_rows,
    "map50": detection_rows,
    "miou": overlap_rows,
    "f1": macro_f1,
    "f1-binary": binary_f1,
    "cer": error_rows,
    "wer": error_rows,
    "recall": neighbour_rows,
    "perplexity": log_likelihood_rows,
}
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Metric:
    """A task metric.

    Attributes:
        name: As given by the user.
        higher_is_better: Direction.
        tally: Takes the outputs and the labels of a batch, both with samples along axis 0, and returns what is kept of
            each sample. Raises `DataError` if they do not fit the metric.
        output: Name of the output that it reads; None for the one that it finds, or where it is a function.
        options: Options of a built-in metric, as they were given; None without.
        words: How it reads the outputs, where that was found out; None where it reads what was named.
        notices: What the user should know of the labels although it is no error; grows while batches are read.
    """

    name: str
    higher_is_better: bool
    tally: Callable[[Outputs, Array], Tally]
    output: str | None = None
    options: str | None = None
    words: str | None = None
    notices: list[str] = field(default_factory=list, compare=False)

    @property
    def kind(self) -> MetricKind:
        """How what was kept becomes a number."""
        return kind_of(self.name)

    def aggregate(self, tally: Tally) -> float:
        """The metric over all samples, in any order or grouping; NaN without any."""
        return self.kind.value(tally)

    def drop_interval(self, floats: Tally, quantized: Tally, seed: int = 0) -> Interval:
        """Drop from one model to the other on the same samples and its 95 % interval; positive means worse."""
        return self.kind.drop_interval(floats, quantized, higher_is_better=self.higher_is_better, seed=seed)


def load_metric(
    spec: str,
    direction: str | None = None,
    output: str | None = None,
    options: Mapping[str, str] | None = None,
    boxes: BoxReading | None = None,
) -> Metric:
    """Metric by name, or a function of the user.

    Args:
        spec: A built-in metric (``KINDS``, or ``recall@k`` for any k), or ``module:function``. The function is called
            as ``function(outputs, labels)``, outputs by name, and returns one number per sample.
        direction: ``higher`` or ``lower`` is better. For a function it wins over its attribute
            ``higher_is_better``; a built-in metric accepts only its own.
        output: Name of the output that a built-in metric reads, for boxes several names separated by commas; it finds
            them by itself by default.
        options: Options of a built-in metric, such as ``blank`` of ``cer``; `reading.OPTIONS` lists them.
        boxes: How ``map`` and ``map50`` read the outputs, where that was found out.

    Raises:
        DataError: The metric is not known or cannot be imported, or its direction or an option is not.
    """
    if direction is not None and direction not in _DIRECTIONS:
        raise DataError(
            "direction of the metric cannot be read",
            where=f"--metric-option direction={direction}",
            help="write --metric-option direction=higher or direction=lower",
        )
    higher = None if direction is None else _DIRECTIONS[direction]
    if ":" in spec:
        parse_options(spec, options or {})
        function, higher = import_metric(spec, higher, output)
        return Metric(spec, higher, partial(call_metric, spec, function))
    spec = _OTHER_NAMES.get(spec, spec)
    kind = built_in_kind(spec)
    if kind is None or kind.higher_is_better is None:
        near = get_close_matches(spec, KINDS, 1)
        raise DataError(
            "unknown metric",
            where=f"--metric {spec}" + (f", did you mean {near[0]}?" if near else ""),
            help=f"give {', '.join(KINDS)} or module:function",
        )
    if higher is not None and higher != kind.higher_is_better:
        raise DataError(
            f"{spec} has the other direction",
            where=f"--metric-option direction={direction}",
            help="leave --metric-option direction out for built-in metrics",
        )
    reading = Reading(spec, output, parse_options(spec, options or {}))
    tally = _TALLIES[spec.partition("@")[0]] if boxes is None else partial(detection_rows, boxes=boxes)
    given = ", ".join(f"{name}={text}" for name, text in sorted((options or {}).items())) or None
    return Metric(
        spec,
        kind.higher_is_better,
        lambda outputs, labels: tally(reading, outputs, np.asarray(labels)),
        output,
        given,
        (boxes.words or None) if boxes is not None else None,
        reading.notices,
    )


def import_metric(spec: str, higher_is_better: bool | None, output: str | None) -> tuple[UserFunction, bool]:
    """The function and its direction: the one that was given, else its attribute ``higher_is_better``.

    Raises:
        DataError: It cannot be imported, its direction is not known, or an output was picked for it.
    """
    function = import_function(spec, "metric")
    own = getattr(function, "higher_is_better", None)
    if higher_is_better is None and own is None:
        raise DataError(
            "direction of the metric is not known",
            where=f"--metric {spec}",
            help="pass --metric-option direction=higher or lower, or set function.higher_is_better = True or False",
        )
    if output is not None:
        raise DataError(
            "a metric of your own gets all outputs",
            where=[f"--metric {spec}", f"--metric-option output={output}"],
            help="leave --metric-option output out and select the output in the function",
        )
    return function, bool(own) if higher_is_better is None else higher_is_better


def call_metric(spec: str, function: UserFunction, outputs: Outputs, labels: Array) -> Tally:
    """One number per sample, as the function gives them.

    Raises:
        DataError: The function fails, or returns something else.
    """
    with failing_as(partial(_function_error, spec, "failed")):
        result = function(as_arrays(outputs), labels)
    return Tally.of_numbers(_one_per_sample(spec, result, len(labels)))


def _one_per_sample(spec: str, result: object, samples: int) -> Values:
    """The function's result as float64 ``[samples]``."""
    with failing_as(partial(_function_error, spec, "did not return numbers")):
        values = np.asarray(result).astype(np.float64)
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
