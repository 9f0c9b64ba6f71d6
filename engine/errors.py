"""The one error that users see: what is wrong, where, and what to do next."""

from collections.abc import Callable, Sequence
from pathlib import Path

from quantmedic.engine.text import inert_line


class QuantmedicError(Exception):
    """Something the user can act on; the command line shows it without a traceback, exit code 2.

    Its texts name options of the command line; ``translate`` makes parameters of them for who called Python. The
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
        self.translate: Callable[[str], str] | None = None

    def __str__(self) -> str:
        lines = [self.message, *(f"  {line}" for where in self.where for line in where.split("\n"))]
        if self.help:
            lines += f"help: {self.help}".split("\n")
        text = "\n".join(map(inert_line, lines))
        return self.translate(text) if self.translate is not None else text

    def without_folder(self, path: Path) -> str:
        """What is wrong and where in one line for a report, which names no folders: the file goes by its name."""
        return "; ".join([self.message, *(line.replace(str(path), path.name) for line in self.where)])


def failure_in_words(error: Exception) -> str:
    """What failed in one line; of what nobody expected, the type too."""
    if isinstance(error, QuantmedicError):
        return ": ".join([error.message, *error.where[:2]])
    return f"internal error: {type(error).__name__}: {error}"


class ModelError(QuantmedicError):
    """A model file cannot be read, or the two models do not belong together."""


class RefusedModelError(ModelError):
    """A runtime does not load a model.

    Args:
        path: Its file.
        words: What the runtime says, in one line.
        help: The next step for the user.
        runtime: Its name.
    """

    def __init__(self, path: Path, words: str, *, runtime: str, help: str) -> None:
        super().__init__(f"{runtime} cannot load the model", where=f"{path}: {words}", help=help)
        self.path, self.words = path, words


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
