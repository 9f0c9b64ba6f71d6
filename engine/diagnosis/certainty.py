"""How sure a cause is: the confidence that its rule states, moved by what the experiments on this network showed."""

import math
from collections.abc import Mapping

from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.prediction import ENOUGH_DB
from quantmedic.engine.rules.rule import GLOBAL_SCOPES, Rule
from quantmedic.engine.rules.rulebase import RuleBase

#: Confidences nearer to 0 or 1 than this are not taken at their word.
SURE = 0.98


def with_certainty(diagnosis: Diagnosis, base: RuleBase) -> Diagnosis:
    """The diagnosis with calibrated confidences; as the rules state them where no noise was divided by experiment."""
    if base.certainty is None or diagnosis.loss_budget is None:
        return diagnosis
    rules = {rule.id: rule for rule in base.rules}
    causes = tuple(
        cause.model_copy(update={"confidence": base.certainty.probability(evidence_of(cause, diagnosis, rules))})
        for cause in diagnosis.causes
    )
    return diagnosis.model_copy(update={"causes": causes})


def evidence_of(cause: CauseReport, diagnosis: Diagnosis, rules: Mapping[str, Rule]) -> dict[str, float]:
    """What speaks for a cause, in numbers between about -4 and 4.

    stated: log-odds of the confidence that its surest rule states.
    leads, serious: 1 for the first cause, and for one of medium or high severity.
    proven_harm: 1 where the network is measurably worse.
    whole_model: 1 where only rules about data sets or the model as a whole found it.
    carried: share of the noise in those lines of the loss budget that it names, at most 1.
    recovers: what its repair recovers, in units of what counts as all; ``behind``, how much less than the best cause.
    carried_unknown, recovers_unknown: 1 where that was not measured or simulated.
    rivals: log(1 + number of other serious causes).
    """
    own = [rules[name] for name in cause.rules if name in rules]
    budget = diagnosis.loss_budget
    lines = [line for line in budget.lines if cause.cause in line.causes] if budget is not None else []
    gain, gains = _gain_of(cause), [_gain_of(each) or 0.0 for each in diagnosis.causes]
    serious = [each for each in diagnosis.causes if each.is_serious and each is not cause]
    return {
        "stated": _log_odds(max((rule.confidence for rule in own), default=cause.confidence)),
        "leads": float(cause is diagnosis.causes[0]),
        "serious": float(cause.is_serious),
        "proven_harm": float(bool(diagnosis.model.harmed)),
        "whole_model": float(all(rule.scope in GLOBAL_SCOPES for rule in own)),
        "carried": min(max(sum(line.share for line in lines), 0.0), 1.0),
        "carried_unknown": float(not lines),
        "recovers": gain or 0.0,
        "recovers_unknown": float(gain is None),
        "behind": max(gains) - (gain or 0.0),
        "rivals": math.log1p(len(serious)),
    }


def _gain_of(cause: CauseReport) -> float | None:
    """What the repair recovers, measured or else predicted, between 0 and 1 for all that counts."""
    known = cause.measured_gain_db if cause.measured_gain_db is not None else cause.predicted_gain_db
    return min(max(known, 0.0), ENOUGH_DB) / ENOUGH_DB if known is not None else None


def _log_odds(confidence: float) -> float:
    bounded = min(max(confidence, 1.0 - SURE), SURE)
    return math.log(bounded / (1.0 - bounded))
