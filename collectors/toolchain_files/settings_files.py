"""Foreign files are read here: of bounded size, nothing in them is executed, and every error names the file."""

import json
from pathlib import Path

from quantmedic.collectors.data.messages import missing_path_error
from quantmedic.engine import input_files, yaml_text
from quantmedic.engine.errors import DataError
from quantmedic.engine.json_text import parse_json
from quantmedic.engine.reading_limits import TEXT_BYTES, YAML_BYTES, Limit

#: Bytes from which the format of a file is recognized.
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


def read_bytes(path: Path, limit: Limit = TEXT_BYTES) -> bytes:
    """A whole file.

    Raises:
        DataError: It cannot be read.
        LimitError: It is larger than the limit.
    """
    if not path.is_file():
        raise missing_path_error(path, "file", otherwise="")
    try:
        return input_files.read_bytes(path, limit)
    except OSError as error:
        raise DataError("the file cannot be read", where=f"{path}: {error.strerror or error}") from error


def read_text(path: Path, limit: Limit = TEXT_BYTES) -> str:
    """A whole file as text.

    Raises:
        DataError: It cannot be read, or is not text.
        LimitError: It is larger than the limit.
    """
    try:
        return read_bytes(path, limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError("the file is not text", where=f"{path}: byte {error.start}") from error


def read_json(path: Path) -> object:
    """A JSON file.

    Raises:
        DataError: It cannot be read, or is not JSON; the error names line and column.
        LimitError: It is too large or too deep.
    """
    try:
        return parse_json(read_text(path), path)
    except json.JSONDecodeError as error:
        raise DataError("the file is not JSON", where=f"{path}:{error.lineno}:{error.colno}: {error.msg}") from error


def read_yaml(path: Path) -> object:
    """A YAML file of plain values.

    Raises:
        DataError: It cannot be read, or is not such YAML; the error names the line.
        LimitError: It is too large or too deep.
    """
    return parse_yaml(read_text(path, YAML_BYTES), str(path))


def parse_yaml(text: str, where: str) -> object:
    """YAML of plain values; ``where`` is named in errors.

    Raises:
        DataError: It is not such YAML; the error names the line.
        LimitError: It is too large or too deep.
    """
    try:
        return yaml_text.parse_yaml(text, where)
    except yaml_text.NotYaml as error:
        line = f":{error.line}" if error.line else ""
        raise DataError("the file is not YAML of plain values", where=f"{where}{line}: {error.problem}") from error
