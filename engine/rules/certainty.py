"""How evidence moves the confidence that a rule states: a logistic regression whose coefficients are data."""

import math
from collections.abc import Mapping

from pydantic import field_validator

from quantmedic.engine.rules.conditions import Data

#: What is known of a cause, in numbers; `quantmedic.engine.diagnosis.certainty` says how each is measured.
EVIDENCE = (
    "stated",
    "leads",
    "serious",
    "proven_harm",
    "whole_model",
    "carried",
    "carried_unknown",
    "recovers",
    "recovers_unknown",
    "behind",
    "rivals",
)


class Certainty(Data):
    """Coefficients of the regression, in log-odds per unit of evidence.

    Attributes:
        source: Which cases they were fitted on.
        intercept: Log-odds where all evidence is 0.
        weights: By the names in `EVIDENCE`; one that is left out counts nothing.
    """

    source: str
    intercept: float
    weights: Mapping[str, float]

    @field_validator("weights")
    @classmethod
    def _require_known(cls, weights: Mapping[str, float]) -> Mapping[str, float]:
        if unknown := sorted(set(weights) - set(EVIDENCE)):
            raise ValueError(f"unknown evidence {unknown[0]!r}, known: {', '.join(EVIDENCE)}")
        return weights

    def probability(self, evidence: Mapping[str, float]) -> float:
        """The probability that a cause with this evidence is a true one."""
        odds = self.intercept + sum(weight * evidence[name] for name, weight in self.weights.items())
        return 1.0 / (1.0 + math.exp(-odds))
