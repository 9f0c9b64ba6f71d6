"""Toolchains that quantize networks: how users call them, how their models are recognized, what their options are."""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from pydantic import BaseModel, ConfigDict, Field, field_validator

from quantmedic.engine.case.facts import ModelFacts
from quantmedic.engine.case.settings_in_force import SettingsInForce
from quantmedic.engine.errors import RuleError
from quantmedic.engine.rules.toolchain_options import Form, Options, fill, merge_all

#: Between the names of settings that decide together, and between their values.
JOINED = ", "


class Mark(BaseModel):
    """A mark by which models of a toolchain are recognized."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pattern: str = Field(description="regular expression that a mark of the model matches from its beginning")
    says: str = Field(default="", description="what it is, where the mark itself does not tell")
    guess: bool = Field(default=False, description="other tools leave this mark too")

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"the pattern is not a valid regular expression: {error}") from error
        return pattern


class InForce(BaseModel):
    """How a setting of the quantized model is stated as options of a form."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    setting: str = Field(description="name of a field of SettingsInForce, or several joined by commas")
    values: Mapping[str, Options] = Field(
        default={},
        description="options by the setting's value, or by the keys of its table; {names} are the rest. Values of "
        "several settings are joined as their names are",
    )
    options: Options = Field(default={}, description="options with {value}, whatever that is; of a table its names")
    table: Options = Field(default={}, description="options with {value}, the table as it is")
    types: tuple[str, ...] = Field(default=(), description="only these keys of a table")
    within: str | None = Field(
        default=None, description="setting that lists keys: where it does, only those, not types"
    )

    @field_validator("setting", "within")
    @classmethod
    def _is_known(cls, setting: str | None) -> str | None:
        if setting is not None and not set(setting.split(JOINED)) <= SettingsInForce.model_fields.keys():
            raise ValueError(f"unknown setting; known: {', '.join(SettingsInForce.model_fields)}")
        return setting

    def options_for(self, settings: SettingsInForce) -> Options:
        """The options that state the setting; none where the model does not show it."""
        if self.table:
            return self._whole(settings)
        found = [getattr(settings, name) for name in self.setting.split(JOINED)]
        value = found[0] if len(found) == 1 else JOINED.join(map(str, found))
        if isinstance(value, Mapping):
            types = (getattr(settings, self.within) if self.within is not None else ()) or self.types
            kept = {key: names for key, names in value.items() if not types or key in types}
            rows = [fill(self.values[key], {"names": names}) for key, names in kept.items() if key in self.values]
            value = tuple(dict.fromkeys(name for names in kept.values() for name in names))
        else:
            texts = value if isinstance(value, tuple) else (str(value),)
            rows = [fill(self.values[text], {}) for text in texts if text in self.values]
        if value not in (None, ()):
            rows.append(fill(self.options, {"value": value}))
        return merge_all(rows)

    def _whole(self, settings: SettingsInForce) -> Options:
        value = getattr(settings, self.setting)
        return fill(self.table, {"value": value}) if value else {}


class Calibrations(BaseModel):
    """The ways in which a form can calibrate: one choice of each kind, together a setting."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    framework: str | None = Field(
        default=None, description="front end whose float models it takes, where it runs here; None: it does not"
    )
    always: Options = Field(default={}, description="options of every setting")
    choices: Mapping[str, Mapping[str, Options]] = Field(
        description="options by choice, by what is chosen; the same choice has the same name everywhere"
    )
    notes: tuple[str, ...] = Field(default=(), description="what its user has to know of the choices")


class Toolchain(BaseModel):
    """A toolchain by the name that remedies use."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="as in the snippets of remedies")
    title: str = Field(description="as in reports")
    names: tuple[str, ...] = Field(description="what users call it, shortest first")
    checked: str = Field(description="version with which its options were checked")
    guide: str | None = Field(default=None, description="general page of the manual that leads through its work")
    marks: tuple[Mark, ...] = ()
    names_of: tuple[str, ...] = Field(
        default=(), description="frameworks whose models have the names that it takes; empty: those of any"
    )
    naming: str = Field(default="", description="how it names the layers of other models, and where to look")
    frameworks: tuple[str, ...] = Field(
        default=(), description="frameworks whose models it quantizes; empty: all but files of weights alone"
    )
    forms: Mapping[str, Form] = Field(default={}, description="calls and files that take options")
    in_force: Mapping[str, tuple[InForce, ...]] = Field(
        default={}, description="settings of the quantized model that a form has to state, by the form"
    )
    calibrations: Mapping[str, Calibrations] = Field(default={}, description="ways to calibrate, by the form")
    given: Mapping[str, str] = Field(default={}, description="names in its code that are the user's own")
    data_names: tuple[str, ...] = Field(default=(), description="those of them that stand for the calibration data")
    helpers: Mapping[str, str] = Field(
        default={}, description="definitions by name that stand before Python code that uses them, or a later one"
    )
    imports: Mapping[str, str | tuple[str, ...]] = Field(
        default={}, description="names to import by module; a text is the name for the module itself"
    )

    def for_framework(self, framework: str | None) -> "Toolchain":
        """The toolchain with its forms as they are written for models of a framework."""
        forms = {name: form.for_framework(framework) for name, form in self.forms.items()}
        return self.model_copy(update={"forms": forms})


#: What a snippet is written for where toolchains.yaml says nothing of it.
UNKNOWN = Toolchain(name="", title="", names=(), checked="")


class Chosen(BaseModel):
    """The toolchain that a report is written for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None = Field(default=None, description="as in the snippets of remedies; None: not recognized")
    title: str = Field(default="", description="as in reports")
    how: str = Field(description="how it was recognized, or why not")
    named: bool = Field(default=False, description="the user named it")


def options_in_force(toolchain: Toolchain, form: str, settings: SettingsInForce) -> Options:
    """What a form has to state so that nothing is lost that is in force."""
    rows = [row.options_for(settings) for row in toolchain.in_force.get(form, ())]
    if form not in toolchain.forms:
        return merge_all(rows)
    own = toolchain.forms[form]
    return _in_order(own.join(merge_all(rows), own.defaults), own.defaults)


def _in_order(options: Options, defaults: Options) -> Options:
    """The options, those with a default behind all others, for they may be made of these."""
    own = {key: value for key, value in options.items() if key not in defaults}
    pairs = {key: (options[key], default) for key, default in defaults.items() if key in options}
    return own | {
        key: _in_order(value, default) if isinstance(value, Mapping) and isinstance(default, Mapping) else value
        for key, (value, default) in pairs.items()
    }


def choose(model: ModelFacts, toolchains: Iterable[Toolchain], asked: str | None = None) -> Chosen:
    """The toolchain that the user asked for, else the one whose files were read.

    Else the one that the quantized model carries marks of. Where quantization failed there is no such model: then the
    one whose log was recognized.

    Raises:
        RuleError: No toolchain has the name that was asked for.
    """
    known = list(toolchains)
    if asked is not None:
        found = find_toolchain(asked, known)
        return Chosen(name=found.name, title=found.title, how="named by the user", named=True)
    configured = next((each for each in known if each.name == model.settings.toolchain), None)
    if configured is not None:
        return Chosen(name=configured.name, title=configured.title, how="recognized by its files")
    marks = _marks(model)
    for toolchain in known:
        for mark in toolchain.marks:
            for seen in marks:
                if re.match(mark.pattern, seen):
                    how = f"{'guessed from' if mark.guess else 'recognized by'} its {mark.says or seen}"
                    return Chosen(name=toolchain.name, title=toolchain.title, how=how)
    logged = next((each for each in known if each.name == model.failure.toolchain), None)
    if logged is not None:
        return Chosen(name=logged.name, title=logged.title, how="recognized by the words of its log")
    left = f"the {model.toolchain} that wrote it may be the exporter" if model.toolchain else "it names no producer"
    return Chosen(how=f"not recognized from the model: {left}")


def find_toolchain(asked: str, toolchains: Iterable[Toolchain]) -> Toolchain:
    """The toolchain of a name as users write it.

    Raises:
        RuleError: There is none; names the nearest.
    """
    names = {_bare_name(name): each for each in toolchains for name in (each.name, each.title, *each.names)}
    found = names.get(_bare_name(asked))
    if found is not None:
        return found
    near = get_close_matches(_bare_name(asked), names, n=1)
    hint = f"; did you mean {names[near[0]].names[0]!r}?" if near else ""
    short = ", ".join(dict.fromkeys(each.names[0] for each in names.values()))
    raise RuleError(f"unknown toolchain {asked!r}{hint}", where="--toolchain", help=f"known: {short}")


def _bare_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _marks(model: ModelFacts) -> tuple[str, ...]:
    producer = (f"producer {model.toolchain}",) if model.toolchain else ()
    return producer + (model.toolchain_marks or ())
