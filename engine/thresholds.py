"""Where formulas find the thresholds in force, without knowing of rules."""

from typing import Protocol


class Thresholds(Protocol):
    """Thresholds by name; a rule base has them."""

    def threshold(self, name: str) -> float:
        """Value in force of a named threshold."""
