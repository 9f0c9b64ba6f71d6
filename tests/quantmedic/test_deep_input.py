"""Files and options that are nested without end, or hold what is no value, are refused by name."""

from pathlib import Path

import pytest

from quantmedic.api.checks import load_baseline
from quantmedic.api.rulebase import load_rulebase
from quantmedic.api.thresholds import apply_thresholds
from quantmedic.engine.errors import BaselineError, RuleError
from quantmedic.engine.limits import LimitError


def test_a_baseline_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(BaselineError, match="not a valid baseline"):
        load_baseline(path)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("2026-13-45", "not a number"),
        ("[" * 5_000 + "]" * 5_000, "too many levels"),
        ("9" * 400, "a whole number has too many digits: 400 digits, the limit is 300 digits"),
        ("!!timestamp x", "not a number"),
        ("!!bool x", "not a number"),
        ("{[1]: 2}", "not a number"),
        ("0x" + "f" * 290, "must be a number"),
        ("\ud800", "not a number"),
    ],
)
def test_a_threshold_that_is_no_value_is_refused(value: str, says: str) -> None:
    with pytest.raises((RuleError, LimitError), match=says) as caught:
        apply_thresholds(load_rulebase(), None, [f"activation_zscore={value}"])
    assert len(str(caught.value)) < 500
