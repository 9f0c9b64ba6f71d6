"""Reading a rule base from folders of YAML files."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from quantmedic.engine.errors import RuleError
from quantmedic.engine.rules.certainty import Certainty
from quantmedic.engine.rules.log_patterns import LogPattern
from quantmedic.engine.rules.references import check_remedy, check_rule
from quantmedic.engine.rules.remedies import Remedy
from quantmedic.engine.rules.rule import Rule
from quantmedic.engine.rules.rulebase import RuleBase, Threshold
from quantmedic.engine.rules.toolchain import UNKNOWN, Toolchain
from quantmedic.engine.rules.yaml_files import place_of_keys, read_yaml
from quantmedic.engine.text import suggest

Entry = TypeVar("Entry", bound=BaseModel)


def load_rules(folders: Iterable[Path], *, refused: list[RuleError] | None = None) -> RuleBase:
    """Read every rule, threshold and remedy below the folders; later folders add to earlier ones.

    A folder holds ``*.yaml`` rules in any depth, and optionally ``thresholds.yaml``, ``remedies.yaml``,
    ``hints.yaml``, ``checkpoint_hints.yaml``, ``logs.yaml``, ``toolchains.yaml`` and ``certainty.yaml`` at its top.

    Args:
        folders: Where to look.
        refused: Takes the errors of rules that cannot be used, which are then left out; without it, the first is
            raised.

    Raises:
        RuleError: A file cannot be read, a key, fact, operator, threshold or remedy is unknown, or an id occurs twice;
            the message names file, line and the nearest known name.
    """
    files = _Files(refused)
    for folder in folders:
        if not folder.is_dir():
            raise RuleError("no such rule folder", where=str(folder))
        for path in sorted(folder.rglob("*.yaml")):
            files.add_file(path)
    base = files.rule_base()
    for remedy in base.remedies.values():
        check_remedy(remedy, base, files.remedy_paths[remedy.id])
    kept = []
    for rule in base.rules:
        with _collect_errors(refused):
            check_rule(rule, base)
            kept.append(rule)
    return base.model_copy(update={"rules": tuple(kept)})


@dataclass
class _Files:
    """What was read so far; entries of later files replace those of the same name."""

    refused: list[RuleError] | None
    thresholds: dict[str, Threshold] = field(default_factory=dict)
    remedies: dict[str, Remedy] = field(default_factory=dict)
    remedy_paths: dict[str, Path] = field(default_factory=dict)
    hints: dict[str, str] = field(default_factory=dict)
    checkpoint_hints: dict[str, str] = field(default_factory=dict)
    logs: list[LogPattern] = field(default_factory=list)
    toolchains: dict[str, Toolchain] = field(default_factory=dict)
    rules: dict[str, Rule] = field(default_factory=dict)
    certainty: Certainty | None = None

    def add_file(self, path: Path) -> None:
        """Add one file; its name says what it holds, and any other name is that of a rule."""
        match path.name:
            case "thresholds.yaml":
                self.thresholds |= _read_table(path, Threshold, "name")
            case "remedies.yaml":
                remedies = _read_table(path, Remedy, "id")
                self.remedies |= remedies
                self.remedy_paths |= dict.fromkeys(remedies, path)
            case "hints.yaml":
                self.hints |= _read_hints(path)
            case "checkpoint_hints.yaml":
                self.checkpoint_hints |= _read_hints(path)
            case "logs.yaml":
                self.logs += _read_logs(path)
            case "toolchains.yaml":
                self.toolchains |= _read_table(path, Toolchain, "name")
            case "certainty.yaml":
                self.certainty = _validate(Certainty, read_yaml(path), path)
            case _:
                with _collect_errors(self.refused):
                    self._add_rule(_read_rule(path), path)

    def _add_rule(self, rule: Rule, path: Path) -> None:
        if rule.id in self.rules:
            raise RuleError(
                f"duplicate rule id {rule.id}",
                where=[str(path), str(self.rules[rule.id].path)],
                help="give one of them another id, or leave one of the two folders out",
            )
        self.rules[rule.id] = rule

    def rule_base(self) -> RuleBase:
        """All of it together, not checked yet."""
        remedies = {
            key: _with_tools(remedy, self.toolchains, self.remedy_paths[key]) for key, remedy in self.remedies.items()
        }
        return RuleBase(
            rules=tuple(self.rules.values()),
            thresholds=self.thresholds,
            remedies=remedies,
            hints=self.hints,
            checkpoint_hints=self.checkpoint_hints,
            logs=tuple(self.logs),
            toolchains=tuple(self.toolchains.values()),
            certainty=self.certainty,
        )


def _with_tools(remedy: Remedy, toolchains: Mapping[str, Toolchain], path: Path) -> Remedy:
    """The remedy with the toolchains that its snippets are written for."""
    snippets = []
    for number, snippet in enumerate(remedy.snippets):
        tool = toolchains.get(snippet.toolchain, UNKNOWN)
        for name in snippet.options:
            if name not in tool.forms:
                raise RuleError(
                    f"{snippet.toolchain} has no form {name!r}{suggest(name, tool.forms)}",
                    where=place_of_keys(path, [remedy.id, "snippets", number, "options"]),
                    help="forms stand in toolchains.yaml; without one, write code instead of options",
                )
        filled = {"tool": tool, "frameworks": snippet.frameworks or tool.frameworks}
        snippets.append(snippet.model_copy(update=filled))
    return remedy.model_copy(update={"snippets": tuple(snippets)})


@contextmanager
def _collect_errors(refused: list[RuleError] | None) -> Iterator[None]:
    """Collect an error in the list that is given for it; raise it where there is none."""
    try:
        yield
    except RuleError as error:
        if refused is None:
            raise
        refused.append(error)


def _read_table(path: Path, cls: type[Entry], key: str) -> dict[str, Entry]:
    raw = read_yaml(path) or {}
    if not isinstance(raw, dict):
        raise RuleError("expected a mapping of names", where=str(path))
    for name, entry in raw.items():
        if not isinstance(entry, dict | None):
            raise RuleError(f"{name} must be a mapping, not {entry!r}", where=place_of_keys(path, [name]))
    return {name: _validate(cls, {key: name, **(entry or {})}, path, name) for name, entry in raw.items()}


def _read_hints(path: Path) -> dict[str, str]:
    raw = read_yaml(path) or {}
    if not isinstance(raw, dict):
        raise RuleError("expected a mapping of fact prefixes to text", where=str(path))
    for prefix, text in raw.items():
        if not (isinstance(prefix, str) and isinstance(text, str)):
            raise RuleError(f"the hint for {prefix!r} must be text, not {text!r}", where=place_of_keys(path, [prefix]))
    return raw


def _read_logs(path: Path) -> list[LogPattern]:
    raw = read_yaml(path) or []
    if not isinstance(raw, list):
        raise RuleError("expected a list of patterns", where=str(path))
    return [_validate(LogPattern, entry, path) for entry in raw]


def _read_rule(path: Path) -> Rule:
    raw = read_yaml(path)
    if not isinstance(raw, dict):
        raise RuleError("a rule file holds one mapping", where=str(path))
    return _validate(Rule, raw, path).model_copy(update={"path": path})


def _validate(cls: type[Entry], raw: object, path: Path, key: str | None = None) -> Entry:
    try:
        return cls.model_validate(raw)
    except ValidationError as error:
        problem = _root_problem(error)
        name = str(problem["loc"][-1]) if problem["loc"] else ""
        text = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            text = f"unknown key {name!r}{suggest(name, cls.model_fields)}"
        elif problem["type"] == "missing":
            text = f"key {name!r} is missing"
        raise RuleError(text, where=place_of_keys(path, [*([key] if key else []), *problem["loc"]])) from error


def _root_problem(error: ValidationError) -> ErrorDetails:
    """A misspelt key rather than the key that is missing because of it."""
    return min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
