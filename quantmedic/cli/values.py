"""What options take beside texts and numbers: durations, sizes, and places that will be written to."""

import os
import re
from collections.abc import Callable, Mapping
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from click.types import FuncParamType

from quantmedic.engine.errors import OutputError
from quantmedic.engine.output_files import require_file, require_folder


class Kind(click.Choice[str]):
    """One of several words; of a misspelt one the nearest is suggested."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        message = super().get_invalid_choice_message(value, ctx)
        near = get_close_matches(str(value), map(str, self.choices), 1)
        return f"{message} Did you mean {near[0]!r}?" if near else message


def seconds(text: str) -> float:
    """A duration: ``90``, ``90s`` or ``5m``."""
    parts = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*(s|m|h)?", text.strip())
    found = float(parts[1]) * {"s": 1, "m": 60, "h": 3600}[parts[2] or "s"] if parts else 0.0
    if found <= 0:
        raise click.BadParameter(f"{text!r} is not a valid duration, e.g. 90s or 5m")
    return found


def limit(text: str) -> float:
    """A duration, or ``0`` or ``never`` for no limit, which is 0."""
    return 0.0 if text.strip() in ("0", "0.0", "never") else seconds(text)


def day(text: str) -> date:
    """A day: ``2026-11-30``."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a valid date, e.g. 2026-11-30") from None


def size(text: str) -> int:
    """Bytes, or decimal (``500MB``, ``2GB``) or binary (``512MiB``, ``2GiB``) multiples of them."""
    parts = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*(?:([kmgt])(i?))?b?", text.strip().lower())
    found = int(float(parts[1]) * (1024 if parts[3] else 1000) ** " kmgt".index(parts[2] or " ")) if parts else 0
    if found <= 0:
        raise click.BadParameter(f"{text!r} is not a valid size, e.g. 2GB, 500MB or 512MiB")
    return found


class Output(click.Path):
    """A place that will be written to: refused before any work is done for it where that cannot be.

    Args:
        suffixes: Those that a file's name may have, the one to suggest first; none: any.
        require: Raises where nothing can be written there.
    """

    def __init__(self, *suffixes: str, require: Callable[[Path], None] = require_file) -> None:
        super().__init__(path_type=Path)
        self.suffixes, self.require = suffixes, require

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        self.require(path)
        if self.suffixes and path.suffix not in self.suffixes and not path.is_dir():
            raise OutputError(
                "the output is named like a file of another kind",
                where=str(path),
                help=f"name it {path.with_suffix(self.suffixes[0])}",
            )
        return path


def _require_table(path: Path) -> None:
    require_file(path) if path.suffix == ".csv" else require_folder(path)


def _require_case(path: Path) -> None:
    require_folder(path) if path.is_dir() else require_file(path)


#: A folder that files will be written to; a ``.csv`` file or such a folder; a case file, or an existing folder for it.
FOLDER, TABLE = Output(require=require_folder), Output(require=_require_table)
CASE = Output(".case", "", require=_require_case)
#: What click has to know of fields whose type does not say it, by the ``kind`` that an option declares.
KINDS: Mapping[str, Mapping[str, Any]] = {
    "text": {},
    "texts": {"multiple": True},
    "path": {"type": click.Path(path_type=Path)},
    "switch": {"default": None},
    "at least 0": {"type": click.IntRange(0)},
    "at least 0.0": {"type": click.FloatRange(min=0)},
    "at least 2": {"type": click.IntRange(2)},
    "limit": {"type": FuncParamType(limit)},
    "bytes": {"type": FuncParamType(size)},
    "share": {"type": click.FloatRange(0, 1, min_open=True)},
    "baseline": {"type": Output(".json")},
    "model": {"type": Output(".onnx", ".tflite", ".xml")},
    "folder": {"type": FOLDER},
    "table or folder": {"type": TABLE},
    "day": {"type": FuncParamType(day)},
}
