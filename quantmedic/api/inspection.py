"""A measured case opened for looking."""

from quantmedic.api.rulebase import load_rulebase
from quantmedic.engine.case.records import Case
from quantmedic.engine.diagnosis.inspection import Inspection
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.rules.rulebase import RuleBase


def inspect(case: Case, rules: RuleBase | None = None) -> Inspection:
    """A case opened for looking: facts of every layer, distributions, channels, the graph."""
    base = rules or load_rulebase()
    return Inspection(case, derive(case, base), base)


def inspect_under(case: Case | Inspection, base: RuleBase) -> Inspection:
    """The case opened under these rules, whose thresholds its facts depend on."""
    if isinstance(case, Case):
        return inspect(case, base)
    return case if case.base is base else inspect(case.case, base)
