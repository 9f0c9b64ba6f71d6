"""The confidence of a cause follows what was measured of the network at hand, by coefficients that are data."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import quantmedic
from quantmedic.engine.diagnosis.certainty import evidence_of, with_certainty
from quantmedic.engine.errors import RuleError
from quantmedic.engine.rules.certainty import EVIDENCE, Certainty
from quantmedic.engine.rules.load import load_rules

BASE = quantmedic.load_rulebase()
RULES = {rule.id: rule for rule in BASE.rules}
EVIDENCE_VALUES = st.dictionaries(st.sampled_from(EVIDENCE), st.floats(-4, 4))


@given(EVIDENCE_VALUES, st.sampled_from(EVIDENCE), st.floats(0.01, 4))
def test_more_of_what_speaks_for_a_cause_makes_it_surer(found: dict[str, float], name: str, more: float) -> None:
    evidence = dict.fromkeys(EVIDENCE, 0.0) | found
    certainty = Certainty(source="a test", intercept=-0.5, weights={name: 0.7})
    before, after = (certainty.probability(evidence | {name: evidence[name] + plus}) for plus in (0.0, more))
    assert 0.0 < before < after < 1.0


def test_unknown_evidence_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "certainty.yaml").write_text("source: mine\nintercept: 0\nweights: {luck: 1.0}\n")
    with pytest.raises(RuleError, match="unknown evidence 'luck'"):
        load_rules([tmp_path])


def test_confidences_of_a_report_are_those_of_its_own_evidence(patient_case: Path) -> None:
    diagnosis = quantmedic.judge(quantmedic.load_case(patient_case), BASE)
    assert BASE.certainty is not None
    assert diagnosis.causes
    for cause in diagnosis.causes:
        assert cause.confidence == BASE.certainty.probability(evidence_of(cause, diagnosis, RULES))
    # Without a loss budget, rules are taken at their word.
    stated = {cause.cause: max(RULES[name].confidence for name in cause.rules) for cause in diagnosis.causes}
    bare = diagnosis.model_copy(
        update={
            "loss_budget": None,
            "causes": tuple(c.model_copy(update={"confidence": stated[c.cause]}) for c in diagnosis.causes),
        }
    )
    assert {c.cause: c.confidence for c in with_certainty(bare, BASE).causes} == stated
