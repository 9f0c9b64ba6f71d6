"""The rule base: rules, thresholds, remedies, hints, log patterns, toolchains and certainty in force."""

import math
from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import AfterValidator

from quantmedic.engine.errors import RuleError
from quantmedic.engine.rules.certainty import Certainty
from quantmedic.engine.rules.conditions import Data
from quantmedic.engine.rules.log_patterns import LogPattern
from quantmedic.engine.rules.remedies import WEIGHT_FILES, Remedy
from quantmedic.engine.rules.rule import Rule, matches
from quantmedic.engine.rules.toolchain import Toolchain
from quantmedic.engine.text import suggest


def _not_nan(value: float) -> float:
    if math.isnan(value):
        raise ValueError("nothing is above or below NaN")
    return value


class Threshold(Data):
    """A named number that rules refer to as ``$name`` and users override."""

    name: str
    value: Annotated[float, AfterValidator(_not_nan)]
    unit: str | None = None
    source: str
    description: str


#: Options that pass samples, and those that pass texts to checkpoints.
_DATA_OPTIONS = ("--representative", "--validation")
_TEXT_OPTIONS = ("--tokens",)


class RuleBase(Data):
    """All rules, thresholds and remedies in force, and the hints for facts that were not measured."""

    rules: tuple[Rule, ...]
    thresholds: Mapping[str, Threshold]
    remedies: Mapping[str, Remedy]
    hints: Mapping[str, str] = {}
    checkpoint_hints: Mapping[str, str] = {}
    data_options: tuple[str, ...] = _DATA_OPTIONS
    logs: tuple[LogPattern, ...] = ()
    toolchains: tuple[Toolchain, ...] = ()
    ignored: tuple[Rule, ...] = ()
    certainty: Certainty | None = None

    def threshold(self, name: str) -> float:
        """Value in force of a named threshold."""
        return self.thresholds[name].value

    def hint(self, path: str) -> str | None:
        """How to supply a missing fact: the hint of the longest matching prefix of its path."""
        longest = max((prefix for prefix in self.hints if path.startswith(prefix)), key=len, default=None)
        if longest == "" and path.startswith("model."):
            return self.hint(path.removeprefix("model."))
        return self.hints[longest] if longest is not None else None

    def needs_data(self, path: str) -> bool:
        """A fact is measured on samples: its hint names the option that passes them."""
        return _names_one(self.data_options, self.hint(path))

    def with_hints_for(self, framework: str | None) -> "RuleBase":
        """The rules with hints that name the options which models of a framework are compared with.

        To files of weights alone little can be given: of all other facts their hints say nothing.
        """
        if framework not in WEIGHT_FILES:
            return self
        return self.model_copy(update={"hints": self.checkpoint_hints, "data_options": _TEXT_OPTIONS})

    def for_framework(self, framework: str | None) -> "RuleBase":
        """The rules with hints, and with forms of toolchains, as they are written for models of a framework."""
        return self.with_hints_for(framework)._with_forms_for(framework)

    def _with_forms_for(self, framework: str | None) -> "RuleBase":
        if not any(framework in form.of for toolchain in self.toolchains for form in toolchain.forms.values()):
            return self

        tools = {own.name: own.for_framework(framework) for own in self.toolchains}

        def rewrite(remedy: Remedy) -> Remedy:
            snippets = (s.model_copy(update={"tool": tools.get(s.toolchain, s.tool)}) for s in remedy.snippets)
            return remedy.model_copy(update={"snippets": tuple(snippets)})

        remedies = {key: rewrite(remedy) for key, remedy in self.remedies.items()}
        return self.model_copy(update={"toolchains": tuple(tools.values()), "remedies": remedies})

    def with_thresholds(self, values: Mapping[str, object], origin: str) -> "RuleBase":
        """Replace thresholds by the user's; ``origin`` is shown as their source.

        Raises:
            RuleError: A name is unknown or a value is not a number.
        """
        changed = dict(self.thresholds)
        for name, value in values.items():
            if name not in changed:
                raise RuleError(
                    f"unknown threshold {name!r:.80}{suggest(str(name), changed)}",
                    where=origin,
                    help="list the thresholds with: quantmedic explain --list thresholds",
                )
            number = _as_number(value)
            if number is None:
                raise RuleError(f"threshold {name} must be a number, not {value!r:.80}", where=origin)
            changed[name] = changed[name].model_copy(update={"value": number, "source": origin})
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
                    f"no rule matches {selector!r}{suggest(selector, known)}",
                    help="list the rules with: quantmedic explain --list rules",
                )
        kept = [r for r in self.rules if not select or any(matches(r, s) for s in select)]
        ignored = [r for r in kept if any(matches(r, s) for s in ignore)]
        left = tuple(rule for rule in kept if rule not in ignored)
        return self.model_copy(update={"rules": left, "ignored": (*self.ignored, *ignored)})


def _as_number(value: object) -> float | None:
    """A number as a float; None for anything else, and for what no float holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return None if math.isnan(value) else float(value)
    except OverflowError:
        return None


def asks_for_data(hint: str | None) -> bool:
    """How to supply a fact is to pass samples."""
    return _names_one(_DATA_OPTIONS, hint)


def _names_one(options: Iterable[str], hint: str | None) -> bool:
    return hint is not None and any(option in hint for option in options)
