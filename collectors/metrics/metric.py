"""Task metrics by name: what is kept of each sample, so that results merge and the two models can be compared."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial

import numpy as np

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.metrics.box_readings import BoxReading
from quantmedic.collectors.metrics.classes import binary_f1, macro_f1, top_k
from quantmedic.collectors.metrics.detections import detection_rows
from quantmedic.collectors.metrics.differences import absolute_errors, squared_errors
from quantmedic.collectors.metrics.embeddings import neighbour_rows
from quantmedic.collectors.metrics.masks import overlap_rows
from quantmedic.collectors.metrics.reading import Outputs, Reading, parse_options
from quantmedic.collectors.metrics.sequences import error_rows, log_likelihood_rows
from quantmedic.collectors.metrics.user_functions import call_metric, import_metric
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.errors import DataError
from quantmedic.engine.metrics.kinds import KINDS, Interval, MetricKind, built_in_kind, kind_of

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
            where=f"--metric-direction {direction}",
            help="write --metric-direction higher or --metric-direction lower",
        )
    higher = None if direction is None else _DIRECTIONS[direction]
    if ":" in spec:
        parse_options(spec, options or {})
        function, higher = import_metric(spec, higher, output)
        return Metric(spec, higher, partial(call_metric, spec, function))
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
            where=f"--metric-direction {direction}",
            help="leave --metric-direction out for built-in metrics",
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
