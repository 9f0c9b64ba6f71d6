"""The time limit of a function's runs of models."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from quantmedic.api.options import CollectOptions, MeasuringOptions
from quantmedic.collectors.native.runs import time_limit

P = ParamSpec("P")
R = TypeVar("R")


def with_time_limit(function: Callable[P, R]) -> Callable[P, R]:
    """The function, each of whose runs of models keeps to the limit of the ``MeasuringOptions`` that it is given."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given = [each.measuring if isinstance(each, CollectOptions) else each for each in (*args, *kwargs.values())]
        measuring = next(each for each in given if isinstance(each, MeasuringOptions))
        with time_limit(measuring.timeout):
            return function(*args, **kwargs)

    return call
