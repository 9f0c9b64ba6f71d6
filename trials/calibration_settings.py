"""Settings of a toolchain that calibrate in different ways: their options, and the text that carries each out."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from quantmedic.engine.contract.remedies import Configuration
from quantmedic.engine.diagnosis.prescription import FILES, complete_code
from quantmedic.engine.errors import RuleError
from quantmedic.engine.rules.options import Options, merge_all, write
from quantmedic.engine.rules.toolchain import Toolchain
from quantmedic.engine.text import suggest

#: What is chosen that has a name in every toolchain.
METHOD = "method"


@dataclass(frozen=True)
class Setting:
    """One way to calibrate.

    Attributes:
        toolchain: Whose.
        form: The call or file that takes the options.
        choices: What is chosen, by kind.
        options: Options of the form.
    """

    toolchain: Toolchain
    form: str
    choices: Mapping[str, str]
    options: Options

    @property
    def configuration(self) -> Configuration:
        """What users paste, complete."""
        form = self.toolchain.forms[self.form]
        body = write(self.form, form, self.options)
        return Configuration(
            language=form.language,
            file=FILES[form.language],
            code=complete_code(body, form.language, self.toolchain),
        )


def settings_of(toolchain: Toolchain, methods: Collection[str]) -> list[Setting]:
    """All settings of a toolchain, or those with these methods."""
    return list(_settings(toolchain, methods))


def _settings(toolchain: Toolchain, methods: Collection[str]) -> Iterator[Setting]:
    for form, ways in toolchain.calibrations.items():
        for names in product(*ways.choices.values()):
            choices = dict(zip(ways.choices, names, strict=True))
            if methods and choices.get(METHOD) not in methods:
                continue
            rows = [ways.choices[kind][name] for kind, name in choices.items()]
            yield Setting(toolchain, form, choices, merge_all([*rows, ways.always]))


def same_choices(choices: Mapping[str, str], toolchain: Toolchain) -> list[tuple[Setting, tuple[str, ...]]]:
    """What chooses the same with another toolchain, one setting per form, and which choices it does not have."""
    found = []
    for form, ways in toolchain.calibrations.items():
        known = {kind: name for kind, name in choices.items() if name in ways.choices.get(kind, {})}
        lacking = tuple(f"{kind} {name}" for kind, name in choices.items() if kind not in known)
        rows = [ways.choices[kind][name] for kind, name in known.items()]
        found.append((Setting(toolchain, form, known, merge_all([*rows, ways.always])), lacking))
    return found


def check_methods(methods: Collection[str], toolchain: Toolchain) -> None:
    """Refuse a method that the toolchain does not have.

    Raises:
        RuleError: Names the nearest, and all that there are.
    """
    known = list(dict.fromkeys(name for ways in toolchain.calibrations.values() for name in ways.choices[METHOD]))
    for name in methods:
        if name not in known:
            raise RuleError(
                f"{toolchain.title} has no calibration method {name!r}{suggest(name, known)}",
                where="--methods",
                help=f"known: {', '.join(known)}",
            )
