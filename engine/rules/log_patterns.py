"""Patterns of lines in the logs of toolchains, and the facts that they state."""

import re
import warnings
from collections.abc import Mapping

from pydantic import Field, model_validator

from quantmedic.engine.case.facts import FailureFacts, SearchFacts, SettingsFacts
from quantmedic.engine.rules.conditions import Data
from quantmedic.engine.text import suggest

#: Characters of an expression: no line of a log is searched beyond so many.
MOST_CHARACTERS = 2000
#: Facts that a line of a log can state. A name that several of them have, such as ``toolchain``, goes to all.
LOG_FACTS = (SearchFacts, FailureFacts, SettingsFacts)


class LogPattern(Data):
    """How a toolchain words something in its log, and the facts of ``LOG_FACTS`` that it states.

    ``pattern`` is a regular expression that is searched for in one line; its named groups are facts. ``within`` is for
    failures whose words are ambiguous: a frame of the traceback has to match it. ``general`` marks words that end any
    failed run, whatever went wrong: a more specific pattern that matches takes precedence.
    """

    toolchain: str | None = None
    pattern: str = Field(max_length=MOST_CHARACTERS)
    within: str | None = Field(default=None, max_length=MOST_CHARACTERS)
    general: bool = False
    sets: Mapping[str, bool | int | float | str] = {}

    @model_validator(mode="after")
    def _states_known_facts(self) -> "LogPattern":
        known = {name: facts for facts in LOG_FACTS for name in facts.model_fields}
        try:
            with warnings.catch_warnings(action="error", category=FutureWarning):
                groups = re.compile(self.pattern).groupindex
                re.compile(self.within or "")
        except (re.error, RecursionError, OverflowError, FutureWarning) as error:
            raise ValueError(f"the pattern is not a valid regular expression: {error}") from error
        for name in (*groups, *self.sets):
            if name not in known:
                raise ValueError(f"unknown fact {name!r}{suggest(name, known)}")
        for name, value in self.sets.items():
            known[name].model_validate({name: value})
        return self

    @property
    def fails(self) -> bool:
        """The line reports a failure."""
        return "kind" in self.sets or self.sets.get("failed") is True
