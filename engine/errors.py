"""The one error that users see: what is wrong, where, and what to do next."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

from quantmedic.engine.parameters import with_parameters
from quantmedic.engine.text import inert_line

P = ParamSpec("P")
R = TypeVar("R")


class QuantmedicError(Exception):
    """Something the user can act on; the command line shows it without a traceback, exit code 2.

    Its texts name options of the command line. As a string it names parameters instead, where ``in_python`` is set. The
    string shows what terminals and continuous integration would obey as escapes, wherever the text came from.

    Args:
        message: What is wrong, one lower-case sentence without a full stop.
        where: The file, array, layer or option concerned, one fact per line.
        help: The next step for the user.
    """

    def __init__(self, message: str, *, where: str | Sequence[str] = (), help: str | None = None):
        super().__init__(message)
        self.message = message
        self.where = (where,) if isinstance(where, str) else tuple(where)
        self.help = help
        self.in_python = False

    def __str__(self) -> str:
        lines = [self.message, *(f"  {line}" for where in self.where for line in where.split("\n"))]
        if self.help:
            lines += f"help: {self.help}".split("\n")
        text = "\n".join(map(inert_line, lines))
        return with_parameters(text) if self.in_python else text


def failure_in_words(error: Exception) -> str:
    """What failed in one line; of what nobody expected, the type too."""
    if isinstance(error, QuantmedicError):
        return ": ".join([error.message, *error.where[:2]])
    return f"internal error: {type(error).__name__}: {error}"


class ModelError(QuantmedicError):
    """A model file cannot be read, or the two models do not belong together."""


class DataError(QuantmedicError):
    """A data set, its labels or its preprocessing do not fit the model."""


class RuleError(QuantmedicError):
    """A rule, threshold or manual page cannot be used."""


class PolicyError(QuantmedicError):
    """A policy of ``quantmedic check`` cannot be read, or asks for what does not exist."""


class CaseError(QuantmedicError):
    """A case file cannot be read, written or merged."""


class OutputError(QuantmedicError):
    """A report cannot be written where the user asked for it."""


class BaselineError(QuantmedicError):
    """A baseline of known findings cannot be read."""


def for_python(function: Callable[P, R]) -> Callable[P, R]:
    """The function with errors that name its parameters, not options of the command line."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except QuantmedicError as error:
            error.in_python = True
            raise

    return call
