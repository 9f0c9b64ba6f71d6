"""Reading what others wrote: of bounded size, nothing executed, every complaint with its file."""

import json
from pathlib import Path
from typing import Any

import yaml

from quantmedic.collectors.data.messages import missing
from quantmedic.engine.errors import DataError

#: Bytes of a file that is read whole.
MAX_BYTES = 64 << 20
#: The same of YAML, which takes a minute for so much.
MAX_YAML_BYTES = 4 << 20
#: Bytes that tell what kind of file it is.
FIRST_BYTES = 64 << 10


def first_text(path: Path) -> str:
    """The beginning of a file as text; bytes that are none are replaced.

    Raises:
        DataError: It cannot be read.
    """
    if not path.is_file():
        raise missing(path, "file", otherwise="")
    try:
        with path.open("rb") as file:
            return file.read(FIRST_BYTES).decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise DataError("the file cannot be read", where=f"{path}: {error.strerror or error}") from error


def read_bytes(path: Path, most: int = MAX_BYTES) -> bytes:
    """A whole file.

    Raises:
        DataError: It cannot be read, or has more than ``most`` bytes.
    """
    if not path.is_file():
        raise missing(path, "file", otherwise="")
    try:
        if path.stat().st_size > most:
            raise DataError("the file is too large", where=f"{path}: over {most >> 20} MB")
        return path.read_bytes()
    except OSError as error:
        raise DataError("the file cannot be read", where=f"{path}: {error.strerror or error}") from error


def read_text(path: Path, most: int = MAX_BYTES) -> str:
    """A whole file as text.

    Raises:
        DataError: It cannot be read, has more than ``most`` bytes, or is no text.
    """
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError("the file is not text", where=f"{path}: byte {error.start}") from error


def read_json(path: Path) -> Any:
    """A JSON file.

    Raises:
        DataError: It cannot be read, or is no JSON; names line and column.
    """
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise DataError("the file is no JSON", where=f"{path}:{error.lineno}:{error.colno}: {error.msg}") from error
    except RecursionError as error:
        raise DataError("the file is nested too deeply", where=str(path)) from error


class _NoAliases(yaml.SafeLoader):
    """Plain values only; an alias, with which a few lines stand for gigabytes, is refused."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.constructor.ConstructorError(None, None, "aliases are not read", self.peek_event().start_mark)
        return super().compose_node(parent, index)


def _pair(loader: yaml.SafeLoader, node: Any) -> tuple[Any, ...]:
    return tuple(loader.construct_sequence(node, deep=True))


# The one tag of Python that holds no more than plain values: keys of dumped configurations are pairs.
_NoAliases.add_constructor("tag:yaml.org,2002:python/tuple", _pair)


def read_yaml(path: Path) -> Any:
    """A YAML file of plain values.

    Raises:
        DataError: It cannot be read, or is no such YAML; names the line.
    """
    return parse_yaml(read_text(path, MAX_YAML_BYTES), str(path))


def parse_yaml(text: str, where: str) -> Any:
    """YAML of plain values; ``where`` is named in errors.

    Raises:
        DataError: It is no such YAML; names the line.
    """
    try:
        return yaml.load(text, Loader=_NoAliases)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        what = getattr(error, "problem", None) or str(error)
        raise DataError("the file is no YAML of plain values", where=f"{where}{line}: {what}") from error
    except (RecursionError, ValueError) as error:
        raise DataError("the file is no YAML of plain values", where=f"{where}: {error}") from error
