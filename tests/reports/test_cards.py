"""Cards of causes and their remedies."""

import pytest

from quantmedic.engine.contract.causes import EvidenceRow
from quantmedic.engine.contract.remedies import Present
from quantmedic.reports.sections.cards import _present_values, _without_repeats


@pytest.mark.parametrize(
    ("present", "said"),
    [
        ([("executed_as", "float"), ("weight.quantizer.bits", 8)], ["float kernels", "weight 8 bits"]),
        ([("quantizer.bits", 4), ("quantizer.bits", 8)], ["4 bits … 8 bits"]),
        ([("weight.quantizer.granularity", "per_tensor")], ["per_tensor"]),
        ([("bias.max_code", 7)], ["max_code 7 codes"]),
    ],
)
def test_what_a_remedy_finds_is_said_with_what_has_it(present: list[tuple[str, object]], said: list[str]) -> None:
    rows = [Present(fact=fact, value=value, subjects=("a",)) for fact, value in present]
    assert list(_present_values(rows)) == said


def test_facts_of_several_rules_of_one_cause_stand_once() -> None:
    def row(fact: str, comparison: str = "shown", threshold: object = None, subject: str = "a") -> EvidenceRow:
        return EvidenceRow(fact=fact, value=1, comparison=comparison, threshold=threshold, subject=subject)

    rows = [
        row("similarity"), row("channels"), row("channels", ">", 0), row("similarity"), row("channels", ">", 0),
        row("channels", ">", 5), row("channels", subject="b"),
    ]  # fmt: skip
    found = [(each.subject, each.fact, each.comparison, each.threshold) for each in _without_repeats(rows)]
    assert found == [
        ("a", "similarity", "shown", None),
        ("a", "channels", ">", 0),
        ("a", "channels", ">", 5),
        ("b", "channels", "shown", None),
    ]
