"""Files and options that are nested without end, or hold what is no value, are refused by name."""

from pathlib import Path

import pytest

from quantmedic.api.checks import load_baseline
from quantmedic.api.rulebase import load_rulebase
from quantmedic.api.thresholds import apply_thresholds
from quantmedic.engine.errors import BaselineError, RuleError


def test_a_baseline_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(BaselineError, match="not a valid baseline"):
        load_baseline(path)


@pytest.mark.parametrize("value", ["2026-13-45", "[" * 5_000 + "]" * 5_000])
def test_a_threshold_that_is_no_value_is_refused(value: str) -> None:
    with pytest.raises(RuleError, match="not a number"):
        apply_thresholds(load_rulebase(), None, [f"activation_zscore={value}"])
