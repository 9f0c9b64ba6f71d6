"""Every fact serves a reader: a rule, a remedy, a message, a page, a gate or a trial."""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

import quantmedic
from quantmedic.engine.case.facts import SCOPES, Facts, nested_facts
from quantmedic.engine.case.settings_in_force import SettingsInForce
from quantmedic.engine.rules.rule import message_fields
from quantmedic.reports.sections.columns import PRESETS

ROOT = Path(__file__).parents[3]
#: Where facts are read. What computes them or copies them, and the lists of all facts, do not count.
READERS = (
    *("reports", "trials", "quantmedic/api", "quantmedic/cli", "engine/diagnosis", "engine/gate", "engine/rules"),
    *("engine/versus", "engine/formulas/texts.py", "engine/formulas/change.py", "engine/case/layer_facts.py"),
)
#: Facts that only formulas read, and the fact that these make of them.
FEEDS = {
    "DatasetFacts.input_unused_side": "DatasetFacts.nearest_unused_side",
    "SettingsFacts.wide_layers": "LayerFacts.wide_asked",
    "WeightFacts.moved_share": "CheckpointFacts.gptq_moved_share",
}
#: What ``quantmedic compare`` lists where it changed, and would be missed there.
COMPARED = {"SettingsFacts.activation_bits"}


def classes_of(cls: type[Facts]) -> Iterator[type[Facts]]:
    """A class of facts, and all that its fields hold."""
    yield cls
    for field in cls.model_fields.values():
        for held in (field.annotation, *get_args(field.annotation)):
            if isinstance(held, type) and issubclass(held, Facts):
                yield from classes_of(held)


def facts_of_path(cls: type[Facts], path: str) -> str:
    """``Class.field`` of a dotted path."""
    *parents, name = path.split(".")
    for parent in parents:
        held = cls.model_fields[parent].annotation
        assert isinstance(held, type) and issubclass(held, Facts)
        cls = held
    return declared(cls, name)


def declared(cls: type[Facts], name: str) -> str:
    """``Class.field``, of the class that declares it."""
    (owner, *_) = (each for each in cls.__mro__ if name in inspect.get_annotations(each))
    return f"{owner.__name__}.{name}"


def read_by_rules() -> Iterator[str]:
    base = quantmedic.load_rulebase()
    for rule in base.rules:
        paths = [condition.fact for condition in rule.conditions()]
        paths += [*rule.shows, *message_fields(rule.message)]
        yield from (place_of(rule.scope, path) for path in paths)
    for remedy in base.remedies.values():
        yield from (place_of(remedy.scope, path) for path in remedy.facts())


def place_of(scope: str, path: str) -> str:
    of_model = path.startswith("model.") and scope != "model"
    return facts_of_path(SCOPES["model" if of_model else scope], path.removeprefix("model.") if of_model else path)


def names_read() -> Iterator[str]:
    """Names of attributes that code reads, words of texts that look like paths, and all words of templates.

    Settings that prescriptions keep are read under the same name.
    """
    yield from SettingsInForce.model_fields
    yield from (word for preset in PRESETS for column in preset.columns for word in column.split("."))
    for place in READERS:
        top = ROOT / place
        for path in [top] if top.is_file() else top.rglob("*"):
            if path.suffix == ".py":
                yield from names_in_code(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
            elif path.suffix in (".html", ".md", ".js"):
                yield from re.findall(r"\w+", path.read_text(encoding="utf-8"))


def names_in_code(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[-{}\w.]+", node.value):
            yield from re.findall(r"\w+", node.value)


def test_every_fact_is_read() -> None:
    """Code is searched by the name alone, so that a fact passes whose name another class shares."""
    known = {found for cls in SCOPES.values() for found in classes_of(cls)}
    leaves = {
        declared(cls, name): name
        for cls in known
        for name, field in cls.model_fields.items()
        if nested_facts(field.annotation) is None
    }
    by_rules, names = set(read_by_rules()), set(names_read())
    unread = {fact for fact, name in leaves.items() if fact not in by_rules and name not in names}
    assert unread == FEEDS.keys() | COMPARED, "let a rule or a page read these facts, or delete them"
    assert not set(FEEDS.values()) - (by_rules | {fact for fact, name in leaves.items() if name in names})
