"""What options take beside texts and numbers: durations, sizes, and places that will be written to."""

import os
import re
from collections.abc import Callable, Mapping
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from quantmedic.engine.errors import OutputError
from quantmedic.engine.output_files import require_file, require_folder


class Kind(click.Choice[str]):
    """One of several words; of a misspelt one the nearest is suggested."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        message = super().get_invalid_choice_message(value, ctx)
        near = get_close_matches(str(value), map(str, self.choices), 1)
        return f"{message} Did you mean {near[0]!r}?" if near else message


class Seconds(click.ParamType[float]):
    """A duration: ``90``, ``90s`` or ``5m``."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        parts = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*(s|m|h)?", str(value).strip())
        seconds = float(parts[1]) * {"s": 1, "m": 60, "h": 3600}[parts[2] or "s"] if parts else 0.0
        if seconds <= 0:
            self.fail(f"{value!r} is not a valid duration, e.g. 90s or 5m", param, ctx)
        return seconds


class Day(click.ParamType[date]):
    """A day: ``2026-11-30``."""

    name = "date"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> date:
        try:
            return value if isinstance(value, date) else date.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a valid date, e.g. 2026-11-30", param, ctx)


class Limit(Seconds):
    """A duration, or ``0`` or ``never`` for no limit, which is 0."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return 0.0 if str(value).strip() in ("0", "0.0", "never") else super().convert(value, param, ctx)


class Bytes(click.ParamType[int]):
    """A size: bytes, or decimal (``500MB``, ``2GB``) or binary (``512MiB``, ``2GiB``) multiples of them."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        parts = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*(?:([kmgt])(i?))?b?", str(value).strip().lower())
        size = int(float(parts[1]) * (1024 if parts[3] else 1000) ** " kmgt".index(parts[2] or " ")) if parts else 0
        if size <= 0:
            self.fail(f"{value!r} is not a valid size, e.g. 2GB, 500MB or 512MiB", param, ctx)
        return size


class _Output(click.Path):
    """A place that will be written to: refused before any work is done for it where that cannot be.

    Attributes:
        require: Raises where nothing can be written there.
    """

    require: Callable[[Path], None]

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        self.require(path)
        return path


class OutputFile(_Output):
    """A file that will be written.

    Args:
        suffixes: Those that its name may have, the one to suggest first; none: any.
    """

    require = staticmethod(require_file)

    def __init__(self, *suffixes: str) -> None:
        super().__init__()
        self.suffixes = suffixes

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = super().convert(value, param, ctx)
        if self.suffixes and path.suffix not in self.suffixes and not path.is_dir():
            raise OutputError(
                "the output is named like a file of another kind",
                where=str(path),
                help=f"name it {path.with_suffix(self.suffixes[0])}",
            )
        return path


class OutputTable(OutputFile):
    """A ``.csv`` file that will be written, or a folder for files."""

    require = staticmethod(lambda path: require_file(path) if path.suffix == ".csv" else require_folder(path))

    def __init__(self) -> None:
        super().__init__()


class OutputCase(OutputFile):
    """A case file that will be written, or an existing folder for it."""

    require = staticmethod(lambda path: require_folder(path) if path.is_dir() else require_file(path))

    def __init__(self) -> None:
        super().__init__(".case", "")


class OutputFolder(_Output):
    """A folder that files will be written to."""

    require = staticmethod(require_folder)


#: What click has to know of fields whose type does not say it, by the ``kind`` that an option declares.
KINDS: Mapping[str, Mapping[str, Any]] = {
    "text": {},
    "texts": {"multiple": True},
    "path": {"type": click.Path(path_type=Path)},
    "switch": {"default": None},
    "at least 0": {"type": click.IntRange(0)},
    "at least 0.0": {"type": click.FloatRange(min=0)},
    "at least 2": {"type": click.IntRange(2)},
    "limit": {"type": Limit()},
    "bytes": {"type": Bytes()},
    "share": {"type": click.FloatRange(0, 1, min_open=True)},
    "baseline": {"type": OutputFile(".json")},
    "model": {"type": OutputFile(".onnx", ".tflite", ".xml")},
    "folder": {"type": OutputFolder()},
    "table or folder": {"type": OutputTable()},
    "day": {"type": Day()},
}
