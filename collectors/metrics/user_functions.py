"""Metrics of the user: a function that gives one number per sample."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.data.functions import UserFunction, failing_as, import_function
from quantmedic.collectors.metrics.reading import Outputs, outputs_by_name
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.errors import DataError

Values = NDArray[np.float64]


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
            help="pass --metric-direction higher or lower, or set function.higher_is_better = True or False",
        )
    if output is not None:
        raise DataError(
            "a metric of your own gets all outputs",
            where=[f"--metric {spec}", f"--metric-output {output}"],
            help="leave --metric-output out and select the output in the function",
        )
    return function, bool(own) if higher_is_better is None else higher_is_better


def call_metric(spec: str, function: UserFunction, outputs: Outputs, labels: Array) -> Tally:
    """One number per sample, as the function gives them.

    Raises:
        DataError: The function fails, or returns something else.
    """
    with failing_as(partial(_function_error, spec, "failed")):
        result = function(outputs_by_name(outputs), labels)
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
