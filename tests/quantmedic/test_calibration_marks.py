"""Where a setting of a search stands: marks, order, legend and counts say the same."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, cast

import numpy as np
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from quantmedic.api.rulebase import load_rulebase
from quantmedic.engine.contract.searches import CalibrationsRecord
from quantmedic.engine.errors import ModelError
from quantmedic.engine.rules.toolchain import find_toolchain
from quantmedic.reports.search_formats import render_search
from quantmedic.trials.calibration_search import Figures, Judge, judge_settings, median_interval, settings_of

Floats = NDArray[np.float64]
MARKS = {"best": "*", "as-good": "=", "behind": "-", "failed": "!"}


class Scores(Judge):
    """Judges settings whose SQNR is given, sample by sample."""

    def __init__(self) -> None:
        self._metric, self._seed = None, 0

    def judge(self, made: Any) -> Figures:
        return Figures(made, None, None)


def record_of(scores: Floats, failing: Sequence[int] = ()) -> CalibrationsRecord:
    settings = settings_of(find_toolchain("ort", load_rulebase().toolchains), ())[: len(scores)]
    numbers: Mapping[str, int] = {each.configuration.code: number for number, each in enumerate(settings)}

    def make(code: str) -> Any:
        if numbers[code] in failing:
            raise ModelError("it fails")
        return scores[numbers[code]]

    rows = judge_settings(settings, make, cast("Judge", Scores()))
    return CalibrationsRecord(
        quantmedic_version="0",
        float_model="float.onnx",
        toolchain="ONNX Runtime",
        toolchain_version=None,
        representative="rep.npz",
        representative_samples=32,
        validation="val.npz",
        validation_samples=scores.shape[1],
        labelled_by=None,
        seed=0,
        settings=tuple(row for _, row in rows),
        configuration=None,
    )


@examples(12)
@given(st.integers(0, 2**32))
def test_marks_order_legend_and_counts_agree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    record = record_of(30 + rng.normal(0, 3, (10, 1)) + rng.normal(0, 4, (10, 64)), failing=(4,))
    best, rows = record.best, record.settings
    assert best is not None and rows[0] == best and best.behind is None and rows[-1].failed is not None
    for row in rows[1:-1]:
        assert row.behind is not None and (row.behind.low > 0) == (row.standing == "behind")
    keys = [(list(MARKS).index(row.standing), row.behind.value if row.behind else 0.0) for row in rows]
    assert keys == sorted(keys)
    text = render_search(record)
    marks = [MARKS[row.standing] for row in rows]
    table = [line.split()[:2] for line in text.split("\n\n")[1].splitlines()[1:]]
    assert [row for row in table if row[0].isdigit() and row[1] in MARKS.values()] == [
        [str(n), mark] for n, mark in enumerate(marks, 1)
    ]
    legend = {line[1] for line in text.splitlines() if line[:1] == " " and line[2:3] == " " and line[1] in marks}
    assert legend == set(marks)
    if "=" in marks:
        assert f"{marks.count('=')} setting" in text.partition("marked = cannot be told")[0].splitlines()[-1]


def test_no_setting_wins_where_all_fail() -> None:
    record = record_of(np.zeros((3, 8)), failing=(0, 1, 2))
    assert record.best is None and all(row.failed for row in record.settings)


def test_intervals_of_the_median_cover_as_often_as_stated() -> None:
    """Exactly: of all ways in which samples may lie above the median or below it."""
    for n, confidence in product((1, 5, 6, 9, 40), (0.9, 0.95, 0.999)):
        low, high = median_interval(np.arange(n, dtype=float), confidence)
        if np.isinf(low):
            assert 2 * 0.5**n > 1 - confidence
            continue
        assert (low + high == n - 1 and low < high) or n == 1
