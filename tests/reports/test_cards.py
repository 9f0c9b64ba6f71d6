"""Cards of causes and their remedies."""

import pytest

from quantmedic.engine.contract.remedies import Present
from quantmedic.reports.sections.cards import _present_values


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
