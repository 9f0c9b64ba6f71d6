"""Options of a toolchain as data: filled with names, merged over remedies, and written as Python, YAML or JSON.

Options are keyword arguments or keys by the form that takes them, a call or a file of the toolchain. In them a text
that begins with ``=`` is code, ``{field}`` alone stands for a list of names or a value, and as a key for one entry per
name. Where the field is a table of rows by name, ``{0}`` stands for the first value of the row, ``{key}`` for its name,
and what ``{0}`` alone would give is left out where that is None. A key that ends in ``()`` is a call whose arguments
follow; one that is a number is a place in the call.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Literal, NamedTuple, TypeGuard

from pydantic import BaseModel, ConfigDict, Field, field_validator

from quantmedic.engine.text import literal, quote

Language = Literal["python", "yaml", "json"]
Options = Mapping[object, object]
Collection = Options | Sequence[object]
WIDTH = 100
#: Comment beside a changed value.
CHANGED = "  # changed by the remedy"
#: So many entries that are all alike are written as one comprehension.
MANY = 3
#: A field of a snippet; doubled braces, which stand for themselves, match without a name.
FIELD = re.compile(r"\{\{|\}\}|\{(\w+)\}")
#: Field for the name of a row.
ROW = "key"
PLAIN = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
YAML_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


class CodeStep(BaseModel):
    """Code of a form that works with the variables that its options are assigned to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    needs: tuple[str, ...] = Field(default=(), description="only where one of these options is given")
    lacks: tuple[str, ...] = Field(default=(), description="only where none of these options is given")

    @field_validator("needs", "lacks", mode="before")
    @classmethod
    def _from_one(cls, raw: object) -> object:
        return (raw,) if isinstance(raw, str) else raw

    def stands(self, given: Collection) -> bool:
        """Whether it belongs to a script with these options."""
        return (not self.needs or any(name in given for name in self.needs)) and not set(self.lacks) & {*given}


class FormWords(BaseModel):
    """What a form says otherwise of models of one framework."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    positional: tuple[str, ...] = Field(description="arguments that are always given, in order")
    after: str = Field(default="", description="Python text behind the call, where it is not shown by itself")


class Form(BaseModel):
    """What takes options: a call, a file, or with steps a script, whose options are variables."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    language: Language = "python"
    assign: str | None = Field(default=None, description="variable that takes the result of the call")
    positional: tuple[str, ...] = Field(default=(), description="arguments that are always given, in order")
    defaults: Options = Field(default={}, description="options that are stated wherever nothing else is said")
    reasons: Mapping[str, str] = Field(default={}, description="why a remedy changes an option that it is not about")
    after: str = Field(default="", description="Python text behind the call, where it is not shown by itself")
    steps: tuple[CodeStep, ...] = Field(default=(), description="the script, behind the assignments of the options")
    of: Mapping[str, FormWords] = Field(default={}, description="what it says of models of other frameworks, by these")
    instead: Mapping[str, tuple[str, ...]] = Field(
        default={}, description="options that an option stands in the place of: the call takes only one of them"
    )

    def for_framework(self, framework: str | None) -> "Form":
        """The form as it is written for models of a framework."""
        own = self.of.get(framework or "")
        return self if own is None else self.model_copy(update={"positional": own.positional, "after": own.after})

    def join(self, options: Options, *others: Options) -> Options:
        """All options as one, where the first say more than the others: without what those before stand in place of."""
        found = options
        for other in others:
            replaced = {name for key in found for name in self.instead.get(str(key), ())}
            found = merge_all([found, {key: value for key, value in other.items() if key not in replaced}])
        return found


class Changed(NamedTuple):
    """A value that the settings in force do not have: Python code says so beside it, and why, where that is known."""

    value: object
    reason: str = ""


class Code(str):
    """Python text that stands in a snippet as it is."""

    __slots__ = ()


class Foreign(str):
    """Text of a model, a file or the user: it never is code nor a call, whatever it begins or ends with."""

    __slots__ = ()


class Names(tuple[str, ...]):
    """Names of the model: lists of them are joined where remedies are merged."""


def is_code(value: object) -> TypeGuard[str]:
    """A text of the rules that stands in Python as it is, behind its ``=``."""
    return isinstance(value, str) and value.startswith("=") and not isinstance(value, Foreign)


def as_foreign(value: object) -> object:
    """What a field holds, with its texts marked, keys too; code that was made here stays code."""
    if isinstance(value, str):
        return value if isinstance(value, Code | Foreign) else Foreign(value)
    if isinstance(value, Mapping):
        return {as_foreign(key): as_foreign(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return Names(map(as_foreign, value))  # type: ignore[arg-type]  # names, of which it makes names
    return [as_foreign(inner) for inner in value] if isinstance(value, list) else value


def asked_fields(value: object) -> Iterator[str]:
    """Fields that options ask for; numbers are places in a row of values, whose name is its key."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from asked_fields(key)
            yield from asked_fields(inner)
    elif isinstance(value, str):
        yield from (name for name in FIELD.findall(value) if name and not name.isdigit() and name != ROW)
    elif isinstance(value, Sequence):
        for inner in value:
            yield from asked_fields(inner)


def fill(options: Options, fields: Mapping[str, object]) -> dict[object, object]:
    """Options with names and values in place of fields; a field that is not given stays."""
    return {k: v for key, inner in options.items() for k, v in _entries(key, inner, fields)}


def _fill_value(value: object, fields: Mapping[str, object]) -> object:
    if isinstance(value, Mapping):
        return fill(value, fields)
    if isinstance(value, str):
        return _fill_text(value, fields)
    if isinstance(value, Sequence):
        return [_fill_value(inner, fields) for inner in value]
    return value


def _entries(key: object, value: object, fields: Mapping[str, object]) -> Iterator[tuple[object, object]]:
    field = FIELD.fullmatch(key) if isinstance(key, str) else None
    each = fields.get(field[1]) if field else None
    if isinstance(each, Mapping):
        for name, row in each.items():
            rest = {str(place): part for place, part in enumerate(row)}
            yield as_foreign(name), _fill_value(value, {**fields, ROW: name, **rest})
    elif isinstance(each, Sequence):
        yield from ((as_foreign(name), _fill_value(value, fields)) for name in each)
    elif not _is_left_out(value, fields):
        yield key, _fill_value(value, fields)


def _is_left_out(value: object, fields: Mapping[str, object]) -> bool:
    """It is a place of a row that holds nothing."""
    place = FIELD.fullmatch(value) if isinstance(value, str) else None
    return place is not None and (place[1] or "").isdigit() and fields.get(place[1], place) is None


def _fill_text(text: str, fields: Mapping[str, object]) -> object:
    alone = FIELD.fullmatch(text)
    if alone and fields.get(alone[1]) is not None:
        return as_foreign(fields[alone[1]])

    def replace_field(match: re.Match[str]) -> str:
        if not match[1]:
            return match[0][0]
        if match[1].isdigit() and match[1] in fields:
            return "None" if fields[match[1]] is None else literal(fields[match[1]])
        return match[0] if fields.get(match[1]) is None else literal(fields[match[1]])

    return FIELD.sub(replace_field, text) if text.startswith("=") else text


def merge(first: Options, second: Options, conflicts: list[str], path: str = "") -> dict[object, object]:
    """Both options as one; where they contradict each other the first stays, and ``conflicts`` gets the place."""
    both = {k: _merge_values(v, second[k], conflicts, _path(path, k)) if k in second else v for k, v in first.items()}
    return both | {k: v for k, v in second.items() if k not in first}


def merge_all(rows: Iterable[Options]) -> Options:
    """All options as one; where they contradict each other the first stay."""
    conflicts: list[str] = []
    return reduce(lambda merged, row: merge(merged, row, conflicts), rows, dict[object, object]())


def _merge_values(first: object, second: object, conflicts: list[str], path: str) -> object:
    if isinstance(first, Mapping) and isinstance(second, Mapping) and _callee(first) == _callee(second):
        return merge(first, second, conflicts, path)
    if isinstance(first, Names) and isinstance(second, Names):
        return Names(dict.fromkeys((*first, *second)))
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        return [_merge_values(a, b, conflicts, path) for a, b in zip(first, second, strict=True)]
    if first != second:
        conflicts.append(path)
    return first


def _callee(value: Options) -> str | None:
    """What is called, where the value is a call."""
    name = next(iter(value), None) if len(value) == 1 else None
    return name if isinstance(name, str) and name.endswith("()") and not isinstance(name, Foreign) else None


def _path(path: str, key: object) -> str:
    return f"{path} argument {key + 1}" if isinstance(key, int) else f"{path}.{key}" if path else str(key)


def mark_changes(options: Options, before: Options, reasons: Mapping[str, str] | None = None) -> dict[object, object]:
    """The options with every value marked that was not the same before, with the reason where there is one.

    New ones stand behind those from before.
    """
    ordered = {key: options[key] for key in (*before, *options) if key in options}
    marked = {
        key: _mark_change(value, before[key]) if key in before else Changed(value) for key, value in ordered.items()
    }
    found = {key: (reasons or {}).get(str(key)) for key, value in marked.items() if isinstance(value, Changed)}
    return marked | {key: Changed(options[key], reason) for key, reason in found.items() if reason}


def _mark_change(value: object, before: object) -> object:
    if isinstance(value, Mapping) and isinstance(before, Mapping) and _callee(value) == _callee(before):
        return mark_changes(value, before)
    return value if value == before else Changed(value)


def has_changes(value: object) -> bool:
    """A value inside is marked as changed."""
    if isinstance(value, Changed):
        return True
    return isinstance(value, Mapping) and any(map(has_changes, value.values()))


def write(name: str, form: Form, options: Options) -> str:
    """Options in the language of the form that takes them; changed values stand on lines of their own."""
    if form.steps:
        given = {**options, **{key: value for key, value in form.defaults.items() if key not in options}}
        given = {key: value for key, value in given.items() if value not in (None, Changed(None))}
        steps = [step.code.removesuffix("\n") for step in form.steps if step.stands(given)]
        return re.sub("\n{4,}", "\n" * 3, "\n".join([write_excerpt(name, form, given), "", *steps]))
    text = write_excerpt(name, form, options)
    return "\n".join([text, form.after.strip("\n")]) if form.after else text


def write_excerpt(name: str, form: Form, options: Options) -> str:
    """The options alone: of a form with steps their assignments."""
    if form.steps:
        return "\n".join(row for key, value in options.items() for row in _layout(value, f"{key} = ", "", 0, _Python()))
    if form.language == "json":
        return "\n".join(_layout(options, "", "", 0, _Json()))
    if form.language == "yaml":
        return "\n".join(_yaml(options, 0))
    places = dict(enumerate(form.positional)) | {k: v for k, v in options.items() if isinstance(k, int)}
    keywords = {k: v for k, v in options.items() if not isinstance(k, int)}
    lead = f"{form.assign} = " if form.assign else ""
    return "\n".join(_layout({f"{name}()": places | keywords}, lead, "", 0, _Python()))


def setting_lines(form: Form, options: Options) -> list[str]:
    """Each option on a line of its own, in the language of the form; arguments by their places are left out."""
    if form.language == "yaml":
        return [*_yaml(options, 0)]
    named = {str(key): value for key, value in options.items() if not isinstance(key, int)}
    if form.language == "json":
        return [f"{quote(key)}: {_flat(value, _Json())}" for key, value in named.items()]
    between = " = " if form.steps else "="
    return [f"{key}{between}{_flat(value, _Python())}" for key, value in named.items()]


def with_helpers(code: str, helpers: Mapping[str, str]) -> str:
    """Python code behind the definitions that it uses; a later one may use those before it."""
    for name, text in reversed(list(helpers.items())):
        if re.search(rf"\b{name}\b", without_comments(code)):
            code = f"{text.strip()}\n\n\n{code.lstrip()}"
    return code


def with_imports(code: str, imports: Mapping[str, str | tuple[str, ...]]) -> str:
    """Python code behind the imports of the names that it uses; ``imports`` has a module's names, or its own."""
    lines = list(_import_lines(without_comments(code), imports))
    return "\n".join([*lines, *([""] if lines else []), code.strip("\n")])


def _import_lines(code: str, imports: Mapping[str, str | tuple[str, ...]]) -> Iterator[str]:
    for module, names in imports.items():
        if isinstance(names, str):
            if re.search(rf"\b{re.escape(names)}\.", code):
                yield f"import {module}" if names == module else f"import {module} as {names}"
        elif used := [name for name in names if re.search(rf"\b{name}\b", code)]:
            line = f"from {module} import {', '.join(used)}"
            yield line if len(line) <= WIDTH else f"from {module} import (\n    {', '.join(used)},\n)"


def without_comments(code: str) -> str:
    """Python code without the lines that are comments."""
    return "\n".join(line for line in code.splitlines() if not line.lstrip().startswith("#"))


class _Json:
    """How JSON spells what is not a collection, and what stands around collections."""

    def scalar(self, value: object) -> str:
        return literal(value)

    def parts(self, value: Collection) -> tuple[str, list[tuple[str, object]], str]:
        """Opening bracket, entries with what leads them, closing bracket."""
        if isinstance(value, Mapping):
            return "{", [(f"{quote(str(key))}: ", inner) for key, inner in value.items()], "}"
        return "[", [("", inner) for inner in value], "]"


class _Python(_Json):
    def scalar(self, value: object) -> str:
        if is_code(value):
            return value[1:]
        return str(value) if value is None or isinstance(value, bool) else literal(value)

    def parts(self, value: Collection) -> tuple[str, list[tuple[str, object]], str]:
        if not isinstance(value, Mapping):
            return super().parts(value)
        call = _callee(value)
        given = value[call] if call is not None else None
        if call is not None and isinstance(given, Mapping):
            return f"{call[:-1]}", [(f"{k}=" if isinstance(k, str) else "", v) for k, v in given.items()], ")"
        return super().parts(value)


def _is_repeated(value: object) -> TypeGuard[Mapping[object, object]]:
    """Many names with the same setting."""
    if not isinstance(value, Mapping) or len(value) <= MANY:
        return False
    first, *others = value.values()
    return isinstance(first, Mapping | list) and all(other == first for other in others)


def _flat(value: object, way: _Json) -> str:
    if not isinstance(value, Mapping | Sequence) or isinstance(value, str):
        return way.scalar(value)
    if isinstance(way, _Python) and _is_repeated(value):
        return f"{{name: {_flat(next(iter(value.values())), way)} for name in {_flat([*value], way)}}}"
    start, entries, end = way.parts(value)
    return start + ", ".join(lead + _flat(inner, way) for lead, inner in entries) + end


def _layout(value: object, lead: str, tail: str, indent: int, way: _Json) -> list[str]:
    """One line where that fits, else one entry per line."""
    if isinstance(value, Changed):
        first, *others = _layout(value.value, lead, tail, indent, way)
        return [f"{first}{CHANGED}{f': {value.reason}' if value.reason else ''}", *others]
    space = " " * indent
    if has_changes(value) or _is_long(value):
        return _layout_entries(value, lead, tail, indent, way)
    line = f"{space}{lead}{_flat(value, way)}{tail}"
    if len(line) <= WIDTH or not isinstance(value, Mapping | Sequence) or isinstance(value, str):
        return [line]
    return _layout_entries(value, lead, tail, indent, way)


def _is_long(value: object) -> bool:
    """No line holds so many entries, which need not be written to see it: thousands of names in a large network."""
    if not isinstance(value, Mapping | Sequence) or isinstance(value, str):
        return False
    return len(value) > WIDTH or any(map(_is_long, value.values() if isinstance(value, Mapping) else value))


def _layout_entries(value: object, lead: str, tail: str, indent: int, way: _Json) -> list[str]:
    """One entry per line."""
    assert isinstance(value, Mapping | Sequence)
    space, inside = " " * indent, indent + 4
    if isinstance(way, _Python) and _is_repeated(value):
        start, end = "{", "}"
        lines = [
            *_layout(next(iter(value.values())), "name: ", "", inside, way),
            *_layout([*value], "for name in ", "", inside, way),
        ]
    else:
        start, entries, end = way.parts(value)
        last = len(entries) - 1
        comma = [("" if place == last and not isinstance(way, _Python) else ",") for place in range(len(entries))]
        lines = [
            row
            for (head, inner), mark in zip(entries, comma, strict=True)
            for row in _layout(inner, head, mark, inside, way)
        ]
    return [f"{space}{lead}{start}", *lines, f"{space}{end}{tail}"]


def _yaml(value: Options, indent: int) -> Iterator[str]:
    """Blocks, with the innermost mappings on one line."""
    for key, inner in value.items():
        name = _plain_key(str(key))
        if isinstance(inner, Mapping) and any(isinstance(each, Mapping) for each in inner.values()):
            yield f"{' ' * indent}{name}:"
            yield from _yaml(inner, indent + 2)
        elif isinstance(inner, Mapping) and indent:
            row = ", ".join(f"{_plain_key(str(k))}: {_yaml_scalar(v)}" for k, v in inner.items())
            yield f"{' ' * indent}{name}: {{{row}}}"
        elif isinstance(inner, Mapping):
            yield f"{name}:"
            yield from _yaml(inner, indent + 2)
        else:
            yield f"{' ' * indent}{name}: {_yaml_scalar(inner)}"


def _plain_key(text: str) -> str:
    return text if PLAIN.fullmatch(text) and text not in YAML_WORDS else quote(text)


def _yaml_scalar(value: object) -> str:
    return _plain_key(value) if isinstance(value, str) else literal(value)
