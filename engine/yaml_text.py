"""YAML is read here: safely, and bounded in depth and in the values that it stands for.

libyaml's loader, which is eight times as fast as the one in Python, calls itself for every level and ends the process
where there are too many; aliases and merge keys make gigabytes of a few lines. Its stream of events knows both before
anything is built.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from quantmedic.engine.reading_limits import DEPTH, DIGITS, YAML_BYTES, YAML_VALUES, beyond_readers

if TYPE_CHECKING:
    SafeLoader = yaml.SafeLoader
else:
    #: The safe loader, compiled where libyaml is present.
    SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

#: Whole numbers as YAML writes them: with signs, underscores, and bases of 2, 8, 16 and 60.
_NUMBER = re.compile(r"[-+]?[0-9][0-9a-fA-Fxob_:]*")
#: What libyaml calls a text that is nested too deeply.
_TOO_DEEP = "exceeded maximum nesting depth"


class NotYaml(ValueError):
    """A text is not YAML, or holds what the loader refuses; ``line`` counts from 1 where it is known."""

    def __init__(self, problem: str, line: int | None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line


def parse_yaml(text: str, where: str | Path, loader: type[yaml.SafeLoader] = SafeLoader) -> object:
    """The values of a YAML text.

    Args:
        text: The text; an empty one is None.
        where: File or option, for the errors of limits.
        loader: A safe loader, or one derived from it.

    Raises:
        NotYaml: It is not such YAML.
        LimitError: It is too long, too deep, or its aliases stand for too much.
    """
    _check_limits(text, where)
    try:
        value: object = yaml.load(text, Loader=loader)  # noqa: S506  # a safe one, see above
    except yaml.YAMLError as error:
        raise _not_yaml(error) from error
    # What constructors of numbers, dates and tags raise on texts that are none; a mapping as a key of a mapping.
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
        raise NotYaml(f"a value cannot be read: {error}", None) from error
    return value


def compose_yaml(text: str, where: str | Path) -> yaml.Node | None:
    """The nodes of a YAML text, which know their lines; None for an empty one.

    Raises:
        NotYaml: It is not YAML.
        LimitError: It is too long, too deep, or its aliases stand for too much.
    """
    _check_limits(text, where)
    try:
        return yaml.compose(text, Loader=SafeLoader)
    except yaml.YAMLError as error:
        raise _not_yaml(error) from error


def _not_yaml(error: yaml.YAMLError) -> NotYaml:
    mark = getattr(error, "problem_mark", None)
    return NotYaml(getattr(error, "problem", None) or str(error), mark.line + 1 if mark is not None else None)


def _check_limits(text: str, where: str | Path) -> None:
    """Refuse a text before anything is built of it.

    Raises:
        NotYaml: It is not YAML, or a value holds itself.
        LimitError: A limit is exceeded.
    """
    YAML_BYTES.check(len(text), where)
    extent = _Extent(where)
    try:
        for event in yaml.parse(text, Loader=SafeLoader):
            if isinstance(event, yaml.ScalarEvent):
                extent.add_scalar(event)
            elif isinstance(event, yaml.CollectionStartEvent):
                extent.open(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                extent.close()
            elif isinstance(event, yaml.AliasEvent):
                extent.add_alias(event)
    except yaml.YAMLError as error:
        refusal = _not_yaml(error)
        # libyaml 0.2.6 reads ahead of its events, and ends at a depth of its own, which is far above this one.
        if refusal.problem == _TOO_DEEP:
            raise beyond_readers(f"{where}:{refusal.line}") from error
        raise refusal from error
    except UnicodeEncodeError as error:
        raise NotYaml("it holds half of a character", text.count("\n", 0, error.start) + 1) from error


class _Extent:
    """How many values a text stands for, and how deep: an alias counts as all that its anchor holds."""

    def __init__(self, where: str | Path) -> None:
        self._where = where
        self._deepest, self._most, self._digits = DEPTH.in_force, YAML_VALUES.in_force, DIGITS.in_force
        #: Of the lists and mappings that are open, the whole text first: values and levels inside, and the anchor.
        self._values, self._levels, self._anchors = [0], [0], [""]
        self._anchored: dict[str, tuple[int, int]] = {}

    def add_scalar(self, event: yaml.ScalarEvent) -> None:
        if len(event.value) > self._digits and event.implicit[0] and _NUMBER.fullmatch(event.value):
            DIGITS.check(len(event.value), self._place(event))
        if event.anchor:
            self._anchored[event.anchor] = 1, 0
        self._values[-1] += 1

    def add_alias(self, event: yaml.AliasEvent) -> None:
        # One that names nothing is refused by the loader, which says what is wrong.
        values, levels = self._anchored.get(event.anchor or "", (1, 0))
        if event.anchor in self._anchors:
            raise NotYaml("a value holds itself", _line(event))
        self._add(values, levels)
        if len(self._levels) + levels > self._deepest:
            raise DEPTH.error_for(self._place(event))

    def open(self, event: yaml.CollectionStartEvent) -> None:
        if len(self._levels) > self._deepest:
            raise DEPTH.error_for(self._place(event))
        self._values.append(1)
        self._levels.append(0)
        self._anchors.append(event.anchor or "")

    def close(self) -> None:
        values, levels, anchor = self._values.pop(), self._levels.pop() + 1, self._anchors.pop()
        if anchor:
            self._anchored[anchor] = values, levels
        self._add(values, levels)

    def _add(self, values: int, levels: int) -> None:
        self._values[-1] += values
        self._levels[-1] = max(self._levels[-1], levels)
        if self._values[-1] > self._most:
            raise YAML_VALUES.error_for(self._where)

    def _place(self, event: yaml.Event) -> str:
        return f"{self._where}:{_line(event)}"


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark is not None else 1
