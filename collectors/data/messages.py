"""Parts of messages about data: shapes, aligned rows, and suggestions for misspelled names."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

from quantmedic.engine.errors import DataError


def shape_text(shape: Sequence[int | None]) -> str:
    """A shape as it is printed, ``N`` and ``?`` for dynamic axes."""
    sides = ["N" if i == 0 and side is None else "?" if side is None else str(side) for i, side in enumerate(shape)]
    return f"({', '.join(sides)}{',' if len(sides) == 1 else ''})"


def aligned_rows(*rows: Sequence[str]) -> list[str]:
    """Lines of aligned cells."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The nearest of the names, else those that hold it, as the end of a line; nothing if none is near."""
    known = [other for other in names if other]
    # One or two letters stand in too many names to tell anything.
    parts = [other for other in known if len(name) > 2 and name.lower() in other.lower()]
    near = get_close_matches(name, known, 1) or parts
    return f", did you mean {' or '.join(near[:3])}?" if near else ""


def missing_path_error(path: Path, what: str, otherwise: str = "; a function is written module:function") -> DataError:
    """The error for a path that does not exist; ``otherwise`` is what else could have been meant."""
    siblings = [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else []
    near = get_close_matches(path.name, siblings, 1)
    return DataError(
        f"{what} cannot be found",
        where=str(path),
        help=f"did you mean {path.parent / near[0]}?" if near else f"check the path{otherwise}",
    )


def cause_line(error: BaseException) -> str:
    """Type and text of an exception."""
    return f"cause  {type(error).__name__}: {error_text(error)}"


def error_text(error: BaseException) -> str:
    """What an exception says, which may be code of the user."""
    try:
        return str(error)
    except BaseException as failed:
        return f"its text cannot be shown ({type(failed).__name__})"


def first_line(error: BaseException) -> str:
    """The first line of that which is not empty."""
    return next((line.strip() for line in error_text(error).splitlines() if line.strip()), "")


def error_line(error: BaseException) -> str:
    """The same, at most 300 characters of it; the type where it says nothing."""
    return first_line(error)[:300] or type(error).__name__
