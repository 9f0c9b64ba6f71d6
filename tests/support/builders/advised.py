"""One snippet of a remedy, as it is advised where a rule asks for it."""

from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.contract.advised_remedies import Advice
from quantmedic.engine.diagnosis.advice import advise
from quantmedic.engine.rules.evaluate import Finding
from quantmedic.engine.rules.remedies import Snippet
from quantmedic.engine.rules.rule import Rule
from quantmedic.engine.rules.rulebase import RuleBase


def finding(layer: str, remedy: str) -> Finding:
    """Of a rule that advises this remedy for a layer."""
    rule = {"id": "X001", "name": "any-rule", "cause": "any-cause", "severity": "low", "confidence": 0.5, "message": ""}
    rule |= {"scope": "layer", "when": {"fact": "name", "known": True}, "remedies": [remedy]}
    return Finding(Rule.model_validate(rule), layer, layer, "", ())


def advice_on(base: RuleBase, remedy: str, facts: CaseFacts, layer: str, snippet: Snippet | None = None) -> Advice:
    """The advice for a layer, with one snippet or all; conditions left out, so that it is given in any case."""
    asked = base.remedies[remedy].model_copy(update={"in_force": None, "withheld": ()})
    if snippet is not None:
        asked = asked.model_copy(update={"snippets": (snippet.model_copy(update={"whole": False}),)})
    (advice,), _ = advise([finding(layer, remedy)], base.model_copy(update={"remedies": {remedy: asked}}), facts)
    return advice
