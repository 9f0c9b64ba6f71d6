"""Which findings an exemption of the policy covers, and for how long."""

import re
from datetime import date
from functools import lru_cache

from quantmedic.engine.gate.policy import Exemption
from quantmedic.engine.rules.evaluate import Finding
from quantmedic.engine.rules.rule import matches


def covers(exemption: Exemption, finding: Finding) -> bool:
    """The exemption is for the rule, and for the layer or the subject."""
    return matches(finding.rule, exemption.rule) and any(
        is_among(name, exemption) for name in (finding.subject, finding.layer) if name is not None
    )


def is_among(name: str, exemption: Exemption) -> bool:
    """One of its patterns matches the name."""
    return any(_pattern(layer).fullmatch(name) for layer in exemption.layers)


@lru_cache
def _pattern(layers: str) -> re.Pattern[str]:
    """``*`` is any text and ``?`` one character; brackets are part of a name."""
    parts = (".*" if char == "*" else "." if char == "?" else re.escape(char) for char in layers)
    return re.compile("".join(parts), re.DOTALL)


def days_left(exemption: Exemption, today: date) -> int | None:
    """Days that it is still in force, the last one included; None for ever."""
    return None if exemption.expires == "never" else (exemption.expires - today).days
