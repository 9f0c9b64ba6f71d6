"""Rules, thresholds and remedies: declarative, checked when loaded, never executed as code."""

import difflib
import math
import re
import string
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from quantmedic.engine.case.facts import SCOPES, FailureFacts, Scope, SearchFacts, SettingsFacts, fact_paths
from quantmedic.engine.errors import RuleError
from quantmedic.engine.rules.options import FIELD, Form, Options, asked_fields
from quantmedic.engine.rules.remedy_kinds import Simulation
from quantmedic.engine.rules.toolchain import Toolchain

Severity = Literal["high", "medium", "low", "info"]
SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low", "info")
Operator = Literal["is", "is_not", "gt", "ge", "lt", "le", "in", "known"]
COMPARISONS: dict[str, str] = {
    "is": "=",
    "is_not": "≠",
    "gt": ">",
    "ge": "≥",
    "lt": "<",
    "le": "≤",
    "in": "in",
    "known": "known",
}
#: How far a snippet was checked.
Mark = Literal["run", "source", "documentation"]
#: Scopes whose facts can decide about a remedy.
RemedyScope = Literal["model", "dataset", "layer", "tensor"]
#: Fields of a snippet that become lists of names, of the float model unless said otherwise, and what they hold.
NAME_FIELDS: dict[str, str] = {
    "layers": "the layers concerned",
    "nodes": "their nodes: each layer with the activation that was fused into it",
    "around": "their nodes and those that read their outputs: a tensor stays quantized while a reader quantizes it",
    "group": "their nodes and those that feed them, up to three steps upstream",
    "tensors": "the activations concerned",
    "weights": "the weights of the layers concerned",
    "typed": "all nodes of their operator types",
    "quantized_layers": "the layers concerned that have weights, by their names in the quantized model",
    "quantized_tensors": "the quantized activations concerned, by their names in the quantized model",
}
#: Fields of a snippet with values that no remedy has to name.
VALUE_FIELDS: dict[str, str] = {
    "pixel_mean": "mean per channel that the application subtracts from a pixel of 0 … 255, read off the data",
    "pixel_scale": "factor per channel that it multiplies the rest by",
}
#: Fields whose line of the snippet stands once for each name of a list.
EACH_FIELDS = {"layer": "layers", "node": "nodes", "tensor": "tensors"}
#: Facts of a model that name one of its layers.
LAYER_NAMING = ("first_nonfinite_layer",)
#: Scopes whose findings name no layer.
GLOBAL_SCOPES: tuple[Scope, ...] = ("model", "dataset")
#: Operator of evidence that is shown, not compared.
SHOWN = "shown"
#: The safe loader, compiled where libyaml is present.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
FAMILIES = {
    "S": "sanity",
    "D": "data",
    "W": "weights",
    "A": "activations",
    "G": "graph",
    "M": "precision",
    "R": "runtime",
    "F": "failure",
}


def _number(value: float) -> float:
    if math.isnan(value):
        raise ValueError("nothing is above or below NaN")
    return value


class Data(BaseModel):
    """Base of everything read from rule files: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Threshold(Data):
    """A named number that rules refer to as ``$name`` and users override."""

    name: str
    value: Annotated[float, AfterValidator(_number)]
    unit: str | None = None
    source: str
    description: str


class Condition(Data):
    """One comparison of a fact with a constant or a named threshold."""

    fact: str
    op: Operator
    value: Any
    threshold: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_yaml(cls, raw: Any) -> Any:
        if not isinstance(raw, dict) or "op" in raw:
            return raw
        ops = set(raw) - {"fact"}
        if "fact" not in raw or len(ops) != 1:
            raise ValueError(f"a condition is {{fact: PATH, OPERATOR: VALUE}}, not {raw}")
        (op,) = ops
        if op not in COMPARISONS:
            raise ValueError(f"unknown operator {op!r}{_suggest(op, COMPARISONS)}; known: {', '.join(COMPARISONS)}")
        value = raw[op]
        named = isinstance(value, str) and value.startswith("$")
        return {"fact": raw["fact"], "op": op, "value": value, "threshold": value[1:] if named else None}


class All(Data):
    """True when every part is true."""

    all: tuple["Node", ...] = Field(min_length=1)


class Any_(Data):
    """True when one part is true."""

    any: tuple["Node", ...] = Field(min_length=1)


class Not(Data):
    """True when its part is false."""

    not_: "Node" = Field(alias="not")


_KINDS = {"all": "All", "any": "Any_", "not": "Not", "not_": "Not"}


def _kind(raw: Any) -> str:
    """The kind of node that a mapping means, told by its keys."""
    if isinstance(raw, Data):
        return type(raw).__name__
    keys = raw if isinstance(raw, dict) else ()
    return next((kind for key, kind in _KINDS.items() if key in keys), "Condition")


Node = Annotated[
    Annotated[All, Tag("All")]
    | Annotated[Any_, Tag("Any_")]
    | Annotated[Not, Tag("Not")]
    | Annotated[Condition, Tag("Condition")],
    Discriminator(_kind),
]


class Rule(Data):
    """One way to recognise one cause.

    ``when`` holds the symptom, ``where`` the subjects that it is asked of, ``shows`` facts that belong to the evidence
    without being compared. ``yields_to`` names rules of the same scope that explain a subject better where they fire.
    """

    id: str = Field(pattern=r"^[A-Z]\d{3}$")
    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)+$")
    cause: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)+$")
    scope: Scope
    severity: Severity
    confidence: float = Field(gt=0, le=1)
    where: Node | None = None
    when: Node
    message: str
    shows: tuple[str, ...] = ()
    yields_to: tuple[str, ...] = ()
    remedies: tuple[str, ...] = Field(min_length=1)
    path: Path | None = None

    @property
    def family(self) -> str:
        """Name of the family that the first letter of the id stands for."""
        return FAMILIES.get(self.id[0], "user")

    def conditions(self) -> Iterable[Condition]:
        """All comparisons in the order in which they are written."""
        return [*(_leaves(self.where) if self.where is not None else ()), *_leaves(self.when)]


class Snippet(Data):
    """How one toolchain applies a remedy: text with names and values of this model filled in by the report."""

    toolchain: str
    mark: Mark = Field(
        default="documentation",
        description="run: executed; source: checked in that version's source; documentation: read only",
    )
    code: str = Field(default="", description="text, with fields for names and values")
    options: Mapping[str, Options] = Field(
        default={}, exclude=True, description="options by the form of the toolchain that takes them, behind the code"
    )
    forms: Mapping[str, Form] = Field(default={}, exclude=True, description="these forms; the loader fills them in")
    note: str | None = None
    whole: bool = Field(default=False, description="only for causes that name neither layer nor tensor")
    types: tuple[str, ...] = Field(default=(), description="only for layers of these types, and then before others")

    @model_validator(mode="after")
    def _says_something(self) -> "Snippet":
        if not (self.code or self.options):
            raise ValueError("a snippet needs code or options")
        return self

    @property
    def fields(self) -> frozenset[str]:
        """Lists of names and values that it asks for."""
        return frozenset((*(name for name in FIELD.findall(self.code) if name), *asked_fields(self.options)))

    @property
    def names_something(self) -> bool:
        """The code holds names of layers or tensors."""
        return bool(self.fields & (NAME_FIELDS.keys() | EACH_FIELDS.keys()))


class Cost(Data):
    """What a remedy costs, each from 0 (none) to 3 (high); None where nobody said."""

    latency: Annotated[int, Field(ge=0, le=3)] | None = None
    memory: Annotated[int, Field(ge=0, le=3)] | None = None
    effort: Annotated[int, Field(ge=0, le=3)] | None = None
    says: str

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, raw: Any) -> Any:
        return {"says": raw} if isinstance(raw, str) else raw


class Withhold(Data):
    """When a remedy is not advised for a subject, and the reason given; its fields are facts, as in a message."""

    when: Node
    because: str


class Remedy(Data):
    """What to change, what it costs, when it is useless or unsafe, and how it is predicted and proved.

    Conditions, ``now`` and ``values`` speak of facts of ``scope``. A value is the largest of one fact over the
    subjects, or, given as a list of facts, those facts of every subject under its name.
    """

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)+$")
    title: str
    changes: str
    cost: Cost
    unsafe: str
    scope: RemedyScope = "model"
    now: tuple[str, ...] = Field(default=(), description="facts that hold the present setting")
    in_force: Node | None = Field(default=None, description="true on every subject: already done, never advised")
    withheld: tuple[Withhold, ...] = ()
    values: Mapping[str, str | tuple[str, ...]] = Field(default={}, description="fields of snippets from facts")
    simulate: Simulation | None = Field(
        default=None, description="kind of its change; None: its effect cannot be predicted"
    )
    snippets: tuple[Snippet, ...] = ()

    def conditions(self) -> Iterable[Condition]:
        """All comparisons that decide whether it is advised."""
        parts = [*([self.in_force] if self.in_force is not None else ()), *(reason.when for reason in self.withheld)]
        return [condition for part in parts for condition in _leaves(part)]

    def facts(self) -> list[str]:
        """All facts that it reads."""
        texts = [field for reason in self.withheld for field in message_fields(reason.because)]
        values = [path for given in self.values.values() for path in ([given] if isinstance(given, str) else given)]
        return [*self.now, *(condition.fact for condition in self.conditions()), *texts, *values]


#: Facts that a line of a log can state. A name that several of them have, such as ``toolchain``, goes to all.
LOG_FACTS = (SearchFacts, FailureFacts, SettingsFacts)


class LogPattern(Data):
    """How a toolchain words something in its log, and the facts of ``LOG_FACTS`` that it states.

    ``pattern`` is a regular expression that is searched for in one line; its named groups are facts. Of a failure,
    ``within`` is one that a frame of its traceback must match, for words that do not tell by themselves, and
    ``general`` marks words in which any run ends, whatever went wrong: those that tell what did are believed instead.
    """

    toolchain: str | None = None
    pattern: str
    within: str | None = None
    general: bool = False
    sets: Mapping[str, bool | int | float | str] = {}

    @model_validator(mode="after")
    def _known(self) -> "LogPattern":
        known = {name: facts for facts in LOG_FACTS for name in facts.model_fields}
        try:
            groups = re.compile(self.pattern).groupindex
            re.compile(self.within or "")
        except re.error as error:
            raise ValueError(f"the pattern is no regular expression: {error}") from error
        for name in (*groups, *self.sets):
            if name not in known:
                raise ValueError(f"unknown fact {name!r}{_suggest(name, known)}")
        for name, value in self.sets.items():
            known[name].model_validate({name: value})
        return self

    @property
    def fails(self) -> bool:
        """The line reports a failure."""
        return "kind" in self.sets or self.sets.get("failed") is True


#: Options that pass samples.
_DATA_OPTIONS = ("--representative", "--validation")


class RuleBase(Data):
    """All rules, thresholds and remedies in force, and the hints for facts that were not measured."""

    rules: tuple[Rule, ...]
    thresholds: Mapping[str, Threshold]
    remedies: Mapping[str, Remedy]
    hints: Mapping[str, str] = {}
    logs: tuple[LogPattern, ...] = ()
    toolchains: tuple[Toolchain, ...] = ()
    ignored: tuple[Rule, ...] = ()

    def threshold(self, name: str) -> float:
        """Value in force of a named threshold."""
        return self.thresholds[name].value

    def hint(self, path: str) -> str | None:
        """How to supply a missing fact: the hint of the longest matching prefix of its path."""
        matching = [prefix for prefix in self.hints if path.startswith(prefix)]
        return self.hints[max(matching, key=len)] if matching else None

    def needs_data(self, path: str) -> bool:
        """A fact is measured on samples: its hint names the option that passes them."""
        return asks_for_data(self.hint(path))

    def with_thresholds(self, values: Mapping[str, object], origin: str) -> "RuleBase":
        """Replace thresholds by the user's; ``origin`` is shown as their source.

        Raises:
            RuleError: A name is unknown or a value is not a number.
        """
        changed = dict(self.thresholds)
        for name, value in values.items():
            if name not in changed:
                raise RuleError(
                    f"unknown threshold {name!r}{_suggest(name, changed)}",
                    where=origin,
                    help="list the thresholds with: quantmedic rules --thresholds",
                )
            if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
                raise RuleError(f"threshold {name} must be a number, not {value!r}", where=origin)
            changed[name] = changed[name].model_copy(update={"value": float(value), "source": origin})
        return self.model_copy(update={"thresholds": changed})

    def choose(self, select: Iterable[str] = (), ignore: Iterable[str] = ()) -> "RuleBase":
        """Keep the rules whose id, id prefix, name or cause is selected and not ignored.

        Raises:
            RuleError: A selector matches no rule.
        """
        select, ignore = tuple(select), tuple(ignore)
        for selector in (*select, *ignore):
            if not any(matches(rule, selector) for rule in self.rules):
                known = [rule.id for rule in self.rules] + [rule.name for rule in self.rules]
                raise RuleError(
                    f"no rule matches {selector!r}{_suggest(selector, known)}",
                    help="list the rules with: quantmedic rules",
                )
        kept = [r for r in self.rules if not select or any(matches(r, s) for s in select)]
        ignored = [r for r in kept if any(matches(r, s) for s in ignore)]
        left = tuple(rule for rule in kept if rule not in ignored)
        return self.model_copy(update={"rules": left, "ignored": (*self.ignored, *ignored)})


def load_rules(folders: Iterable[Path], *, refused: list[RuleError] | None = None) -> RuleBase:
    """Read every rule, threshold and remedy below the folders; later folders add to earlier ones.

    A folder holds ``*.yaml`` rules in any depth, and optionally ``thresholds.yaml``, ``remedies.yaml``,
    ``hints.yaml``, ``logs.yaml`` and ``toolchains.yaml`` at its top.

    Args:
        folders: Where to look.
        refused: Takes the errors of rules that cannot be used, which are then left out; without it, the first is
            raised.

    Raises:
        RuleError: A file cannot be read, a key, fact, operator, threshold or remedy is unknown, or an id occurs twice;
            the message names file, line and the nearest known name.
    """
    thresholds: dict[str, Threshold] = {}
    remedies: dict[str, Remedy] = {}
    remedy_paths: dict[str, Path] = {}
    hints: dict[str, str] = {}
    logs: list[LogPattern] = []
    toolchains: dict[str, Toolchain] = {}
    rules: dict[str, Rule] = {}
    for folder in folders:
        if not folder.is_dir():
            raise RuleError("no such rule folder", where=str(folder))
        for path in sorted(folder.rglob("*.yaml")):
            if path.name == "thresholds.yaml":
                thresholds |= _table(path, Threshold, "name")
            elif path.name == "remedies.yaml":
                found = _table(path, Remedy, "id")
                remedies |= found
                remedy_paths |= dict.fromkeys(found, path)
            elif path.name == "hints.yaml":
                hints |= _load_hints(path)
            elif path.name == "logs.yaml":
                logs += _load_logs(path)
            elif path.name == "toolchains.yaml":
                toolchains |= _table(path, Toolchain, "name")
            else:
                with _refusing(refused):
                    rule = _load_rule(path)
                    if rule.id in rules:
                        raise RuleError(f"duplicate rule id {rule.id}", where=[str(path), str(rules[rule.id].path)])
                    rules[rule.id] = rule
    base = RuleBase(
        rules=tuple(rules.values()),
        thresholds=thresholds,
        remedies={key: _with_forms(remedy, toolchains, remedy_paths[key]) for key, remedy in remedies.items()},
        hints=hints,
        logs=tuple(logs),
        toolchains=tuple(toolchains.values()),
    )
    for remedy in base.remedies.values():
        _check_remedy(remedy, base, remedy_paths[remedy.id])
    kept = []
    for rule in base.rules:
        with _refusing(refused):
            _check(rule, base)
            kept.append(rule)
    return base.model_copy(update={"rules": tuple(kept)})


def _with_forms(remedy: Remedy, toolchains: Mapping[str, Toolchain], path: Path) -> Remedy:
    """The remedy with the forms that its options are written in."""
    snippets = []
    for number, snippet in enumerate(remedy.snippets):
        known = toolchains[snippet.toolchain].forms if snippet.toolchain in toolchains else {}
        for name in snippet.options:
            if name not in known:
                raise RuleError(
                    f"{snippet.toolchain} has no form {name!r}{_suggest(name, known)}",
                    where=_place_of(path, [remedy.id, "snippets", number, "options"]),
                    help="forms stand in toolchains.yaml; without one, write code instead of options",
                )
        snippets.append(snippet.model_copy(update={"forms": {name: known[name] for name in snippet.options}}))
    return remedy.model_copy(update={"snippets": tuple(snippets)})


@contextmanager
def _refusing(refused: list[RuleError] | None) -> Iterator[None]:
    """Collect an error where there is a list for it."""
    try:
        yield
    except RuleError as error:
        if refused is None:
            raise
        refused.append(error)


class _UniqueKeys(_SafeLoader):  # type: ignore[misc]
    """Refuses a key that is given twice, of which YAML loaders keep the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            name = str(key.value)
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {name!r} is given twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """Read one YAML file with the safe loader.

    Raises:
        RuleError: The file cannot be read or is not YAML; names the line.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeys)
    except OSError as error:
        raise RuleError("cannot read file", where=f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise RuleError("not a YAML file", where=f"{path}{line}: {getattr(error, 'problem', error)}") from error


def message_fields(message: str) -> list[str]:
    """Fact paths that a message names in braces."""
    return [name for name, _ in _formats(message)]


def _formats(message: str) -> list[tuple[str, str]]:
    """(fact path, format) of every field of a message."""
    fields = [(names, spec or "") for _, names, spec, _ in string.Formatter().parse(message) if names]
    return [(name, spec) for names, spec in fields for name in names.split("|")]


def _table(path: Path, cls: type[BaseModel], key: str) -> dict[str, Any]:
    raw = read_yaml(path) or {}
    if not isinstance(raw, dict):
        raise RuleError("expected a mapping of names", where=str(path))
    for name, entry in raw.items():
        if not isinstance(entry, dict | None):
            raise RuleError(f"{name} must be a mapping, not {entry!r}", where=_place_of(path, [name]))
    return {name: _validate(cls, {key: name, **(entry or {})}, path, name) for name, entry in raw.items()}


def _load_hints(path: Path) -> dict[str, str]:
    raw = read_yaml(path) or {}
    if not isinstance(raw, dict):
        raise RuleError("expected a mapping of fact prefixes to text", where=str(path))
    for prefix, text in raw.items():
        if not (isinstance(prefix, str) and isinstance(text, str)):
            raise RuleError(f"the hint for {prefix!r} must be text, not {text!r}", where=_place_of(path, [prefix]))
    return raw


def _load_logs(path: Path) -> list[LogPattern]:
    raw = read_yaml(path) or []
    if not isinstance(raw, list):
        raise RuleError("expected a list of patterns", where=str(path))
    return [_validate(LogPattern, entry, path) for entry in raw]


def _load_rule(path: Path) -> Rule:
    raw = read_yaml(path)
    if not isinstance(raw, dict):
        raise RuleError("a rule file holds one mapping", where=str(path))
    return _validate(Rule, raw, path).model_copy(update={"path": path})


def _validate(cls: type[BaseModel], raw: Any, path: Path, key: str | None = None) -> Any:
    try:
        return cls.model_validate(raw)
    except ValidationError as error:
        problem = _most_telling(error)
        name = str(problem["loc"][-1]) if problem["loc"] else ""
        text = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            text = f"unknown key {name!r}{_suggest(name, cls.model_fields)}"
        elif problem["type"] == "missing":
            text = f"key {name!r} is missing"
        raise RuleError(text, where=_place_of(path, [*([key] if key else []), *problem["loc"]])) from error


def _most_telling(error: ValidationError) -> Any:
    """A misspelt key before the key that it leaves missing."""
    return min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")


def _check(rule: Rule, base: RuleBase) -> None:
    path = rule.path or Path(rule.id)
    scopes = {other.id: other.scope for other in base.rules}
    for name in rule.yields_to:
        if name not in scopes:
            raise RuleError(f"unknown rule {name!r}{_suggest(name, scopes)}", where=_place(path, name))
        if scopes[name] != rule.scope:
            raise RuleError(
                f"{rule.id} cannot yield to {name}: it speaks of a {scopes[name]}, not of a {rule.scope}",
                where=_place(path, name),
            )
    known = fact_paths(rule.scope)
    used = [condition.fact for condition in rule.conditions()]
    try:
        formats = _formats(rule.message)
    except ValueError as error:
        raise RuleError(f"the message is broken: {error}", where=_place_of(path, ["message"])) from error
    for name in [*used, *(name for name, _ in formats), *rule.shows]:
        if name not in known:
            help_ = f"facts of scope {rule.scope} start at {SCOPES[rule.scope].__name__}"
            raise RuleError(f"unknown fact {name!r}{_suggest(name, known)}", where=_place(path, name), help=help_)
    _check_conditions(rule.conditions(), known, base, path)
    for name, spec in formats:
        if not _formattable(known[name].annotation, spec):
            raise RuleError(f"{name} cannot be written with the format {spec!r}", where=_place(path, name + ":"))
    for remedy in rule.remedies:
        if remedy not in base.remedies:
            raise RuleError(f"unknown remedy {remedy!r}{_suggest(remedy, base.remedies)}", where=_place(path, remedy))
        if not can_be_shown(base.remedies[remedy], rule):
            raise RuleError(
                f"every snippet of {remedy!r} names layers or tensors, but {rule.id} finds none",
                where=_place(path, remedy),
                help="add a snippet for the whole model to the remedy, or name another remedy",
            )


def names_layers(rule: Rule) -> bool:
    """Findings of the rule name a layer or tensor."""
    facts = {
        name.removeprefix("model.")
        for name in (*(c.fact for c in rule.conditions()), *rule.shows, *message_fields(rule.message))
    }
    return rule.scope not in GLOBAL_SCOPES or bool(facts & set(LAYER_NAMING))


def can_be_shown(remedy: Remedy, rule: Rule) -> bool:
    """One of the remedy's snippets can be filled from findings of the rule, or it has none."""
    named = names_layers(rule)
    fits = [s for s in remedy.snippets if (named and not s.whole) or not (named or s.fields)]
    return bool(fits) or not remedy.snippets


def _check_remedy(remedy: Remedy, base: RuleBase, path: Path) -> None:
    known = fact_paths(remedy.scope)

    def place(*keys: Any) -> str:
        return _place_of(path, [remedy.id, *keys])

    try:
        facts = remedy.facts()
    except ValueError as error:
        raise RuleError(f"the reason is broken: {error}", where=place("withheld")) from error
    for name in facts:
        if name not in known:
            help_ = f"facts of scope {remedy.scope} start at {SCOPES[remedy.scope].__name__}"
            raise RuleError(f"unknown fact {name!r}{_suggest(name, known)}", where=place(), help=help_)
    _check_conditions(remedy.conditions(), known, base, path)
    for reason in remedy.withheld:
        for name, spec in _formats(reason.because):
            if not _formattable(known[name].annotation, spec):
                raise RuleError(f"{name} cannot be written with the format {spec!r}", where=place("withheld"))
    fields = {*NAME_FIELDS, *EACH_FIELDS, *VALUE_FIELDS, *remedy.values}
    for number, snippet in enumerate(remedy.snippets):
        for name in sorted(snippet.fields - fields):
            raise RuleError(
                f"unknown field {name!r}{_suggest(name, fields)}",
                where=place("snippets", number, "code" if snippet.code else "options"),
                help=f"known: {', '.join(sorted(fields))}; braces that are meant literally are doubled",
            )


def _check_conditions(conditions: Iterable[Condition], known: Mapping[str, Any], base: RuleBase, path: Path) -> None:
    for condition in conditions:
        if condition.threshold and condition.threshold not in base.thresholds:
            near = _suggest(condition.threshold, base.thresholds)
            raise RuleError(
                f"unknown threshold {condition.threshold!r}{near}", where=_place(path, "$" + condition.threshold)
            )
        if not _fits(condition, known[condition.fact].annotation):
            text = f"{condition.fact} cannot be compared with {condition.op}: {condition.value!r}"
            raise RuleError(text, where=_place(path, condition.fact))


def _fits(condition: Condition, annotation: Any) -> bool:
    """The condition compares its fact with something that the fact can be."""
    value, op = condition.value, condition.op
    if op == "known":
        return isinstance(value, bool)
    if condition.threshold:
        return _is_numeric(annotation)
    if op in ("gt", "ge", "lt", "le"):
        number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
        return number and _is_numeric(annotation)
    choices = value if op == "in" else [value]
    return isinstance(choices, list) and all(_can_be(annotation, choice) for choice in choices)


def _can_be(annotation: Any, value: Any) -> bool:
    try:
        TypeAdapter(annotation).validate_python(value, strict=True)
    except ValidationError:
        return False
    return value is not None


def _is_numeric(annotation: Any) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in _samples(annotation))


def _formattable(annotation: Any, spec: str) -> bool:
    try:
        return all(isinstance(format(value, spec), str) for value in _samples(annotation))
    except (TypeError, ValueError):
        return False


def _samples(annotation: Any) -> list[Any]:
    """One value of every type that a fact can have, None left out."""
    origin = get_origin(annotation)
    if origin is Literal:
        return list(get_args(annotation))
    if origin in (Union, types.UnionType):
        return [value for part in get_args(annotation) for value in _samples(part)]
    return [] if annotation is types.NoneType else [(origin or annotation)()]


def _place(path: Path, text: str) -> str:
    """``file:line`` of the first line that holds the text."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return str(path)
    return next((_line(path, i, line) for i, line in enumerate(lines, 1) if text in line), str(path))


def _place_of(path: Path, keys: Iterable[Any]) -> str:
    """``file:line`` of the innermost of nested keys; those that the file does not have are passed over."""
    text = path.read_text(encoding="utf-8")
    node, number = yaml.compose(text, Loader=_SafeLoader), 0
    for key in keys:
        if isinstance(node, yaml.MappingNode):
            found = next(((k, value) for k, value in node.value if k.value == str(key)), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int):
            found = (node.value[key], node.value[key])
        else:
            found = None
        if found:
            number, node = found[0].start_mark.line + 1, found[1]
    return _line(path, number, text.splitlines()[number - 1]) if number else str(path)


def _line(path: Path, number: int, line: str) -> str:
    return f"{path}:{number}: {line.strip()}"


def _leaves(node: Any) -> Iterable[Condition]:
    if isinstance(node, Condition):
        yield node
        return
    parts = node.all if isinstance(node, All) else node.any if isinstance(node, Any_) else (node.not_,)
    for part in parts:
        yield from _leaves(part)


def asks_for_data(hint: str | None) -> bool:
    """How to supply a fact is to pass samples."""
    return hint is not None and any(option in hint for option in _DATA_OPTIONS)


def matches(rule: Rule, selector: str) -> bool:
    """The selector is the rule's id, the beginning of it, its name, its cause or its family."""
    return rule.id.startswith(selector) or selector in (rule.name, rule.cause, rule.family)


def _suggest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
