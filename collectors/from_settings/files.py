"""Foreign files are read here: of bounded size, nothing in them is executed, and every error names the file."""

import json
from pathlib import Path

import yaml

from quantmedic.collectors.data.messages import missing_path_error
from quantmedic.engine.errors import DataError

#: Bytes of a file that is read whole.
MAX_BYTES = 64 << 20
#: Bytes of a YAML file: reading 64 MB of it would take a minute.
MAX_YAML_BYTES = 4 << 20
#: Bytes from which the format of a file is recognised.
FIRST_BYTES = 64 << 10


def first_text(path: Path) -> str:
    """The beginning of a file as text; bytes that are not UTF-8 are replaced.

    Raises:
        DataError: It cannot be read.
    """
    if not path.is_file():
        raise missing_path_error(path, "file", otherwise="")
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
        raise missing_path_error(path, "file", otherwise="")
    try:
        if path.stat().st_size > most:
            raise DataError("the file is too large", where=f"{path}: over {most >> 20} MB")
        return path.read_bytes()
    except OSError as error:
        raise DataError("the file cannot be read", where=f"{path}: {error.strerror or error}") from error


def read_text(path: Path, most: int = MAX_BYTES) -> str:
    """A whole file as text.

    Raises:
        DataError: It cannot be read, has more than ``most`` bytes, or is not text.
    """
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError("the file is not text", where=f"{path}: byte {error.start}") from error


def read_json(path: Path) -> object:
    """A JSON file.

    Raises:
        DataError: It cannot be read, or is not JSON; the error names line and column.
    """
    try:
        content: object = json.loads(read_text(path))
        return content
    except json.JSONDecodeError as error:
        raise DataError("the file is not JSON", where=f"{path}:{error.lineno}:{error.colno}: {error.msg}") from error
    except RecursionError as error:
        raise DataError("the file is nested too deeply", where=str(path)) from error


class _NoAliases(yaml.SafeLoader):
    """Reads plain values only. Aliases are refused: with them a few lines stand for gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark: yaml.Mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # untyped in PyYAML's stubs
            raise yaml.constructor.ConstructorError(None, None, "aliases are not read", mark)
        return super().compose_node(parent, index)


def _construct_tuple(loader: yaml.SafeLoader, node: yaml.SequenceNode) -> tuple[object, ...]:
    return tuple(loader.construct_sequence(node, deep=True))


# The one tag of Python that holds no more than plain values: keys of dumped configurations are pairs.
_NoAliases.add_constructor("tag:yaml.org,2002:python/tuple", _construct_tuple)


def read_yaml(path: Path) -> object:
    """A YAML file of plain values.

    Raises:
        DataError: It cannot be read, or is not such YAML; the error names the line.
    """
    return parse_yaml(read_text(path, MAX_YAML_BYTES), str(path))


def parse_yaml(text: str, where: str) -> object:
    """YAML of plain values; ``where`` is named in errors.

    Raises:
        DataError: It is not such YAML; the error names the line.
    """
    try:
        content: object = yaml.load(text, Loader=_NoAliases)
        return content
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        what = getattr(error, "problem", None) or str(error)
        raise DataError("the file is not YAML of plain values", where=f"{where}{line}: {what}") from error
    except (RecursionError, ValueError) as error:
        raise DataError("the file is not YAML of plain values", where=f"{where}: {error}") from error
