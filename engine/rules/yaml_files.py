"""YAML files of rules: read safely, and quoted by file and line in errors.

The examples of a rule are the second document of its file. They are read only where they are run.
"""

from collections.abc import Hashable, Iterable
from pathlib import Path

import yaml

from quantmedic.engine.errors import RuleError
from quantmedic.engine.input_files import read_text
from quantmedic.engine.reading_limits import YAML_BYTES
from quantmedic.engine.yaml_text import NotYaml, SafeLoader, compose_yaml, parse_yaml

#: Divides a rule from its examples.
DIVIDER = "\n---\n"


class _UniqueKeys(SafeLoader):
    """Refuses a key that is given twice; YAML loaders keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            name = str(key.value)
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {name!r} is given twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, part: int = 0) -> object:
    """Read one document of a YAML file with the safe loader: the first, or the examples behind it (``part`` 1).

    Raises:
        RuleError: The file cannot be read or is not YAML; names the line.
        LimitError: It is too large or too deep.
    """
    try:
        return parse_yaml(read_part(path, part), path, _UniqueKeys)
    except OSError as error:
        raise RuleError("cannot read file", where=f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RuleError("not a YAML file", where=f"{path}: byte {error.start} is not UTF-8") from error
    except NotYaml as error:
        line = f":{error.line}" if error.line else ""
        raise RuleError("not a YAML file", where=f"{path}{line}: {error.problem}") from error


def read_part(path: Path, part: int) -> str:
    """One document of a file, with empty lines for what stands before it, so that its lines keep their numbers."""
    first, divider, second = read_text(path, YAML_BYTES).partition(DIVIDER)
    return "\n" * (first + divider).count("\n") + second if part else first


def lines_of_items(path: Path) -> list[int]:
    """The line of each item of a file's second document, a list, from 1."""
    node = compose_yaml(read_part(path, 1), path)
    return [item.start_mark.line + 1 for item in node.value] if isinstance(node, yaml.SequenceNode) else []


def place_of_text(path: Path, text: str) -> str:
    """``file:line`` of the first line that holds the text."""
    try:
        lines = read_text(path, YAML_BYTES).splitlines()
    except OSError:
        return str(path)
    return next((_quote_line(path, i, line) for i, line in enumerate(lines, 1) if text in line), str(path))


def place_of_keys(path: Path, keys: Iterable[object]) -> str:
    """``file:line`` of the innermost of nested keys; those that the file does not have are passed over."""
    text = read_part(path, 0)
    node, number = compose_yaml(text, path), 0
    for key in keys:
        if isinstance(node, yaml.MappingNode):
            found = next(((k, value) for k, value in node.value if k.value == str(key)), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int):
            found = (node.value[key], node.value[key])
        else:
            found = None
        if found:
            number, node = found[0].start_mark.line + 1, found[1]
    return _quote_line(path, number, text.splitlines()[number - 1]) if number else str(path)


def _quote_line(path: Path, number: int, line: str) -> str:
    return f"{path}:{number}: {line.strip()}"
