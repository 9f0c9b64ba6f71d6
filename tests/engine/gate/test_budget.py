"""Budgets against samples: the line, its figures, and what is not judged."""

import math
from typing import Any

import numpy as np
import pytest
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.case.facts import CaseFacts, ModelFacts, OutputFacts, QuantizerFacts
from quantmedic.engine.case.records import Case, CaseRecord, DatasetRecord, OutputRecord
from quantmedic.engine.case.statistics import SAMPLE_DTYPE, SetStatistics
from quantmedic.engine.contract.check_report import GateLine
from quantmedic.engine.errors import DataError
from quantmedic.engine.formulas.task_metric import metric_facts
from quantmedic.engine.gate.budget import judge_budget
from quantmedic.engine.gate.policy import Budget
from quantmedic.engine.metrics.paired import drop_interval

few = examples(30)
TOP1 = Budget(metric="top1", max_drop=1.0)


def rows(floats: Any, quantized: Any, first: int = 0) -> Any:
    """Samples by the metric of both models."""
    table = np.zeros(len(floats), SAMPLE_DTYPE)
    table["hash"] = np.arange(first, first + len(table))
    table["metric_float"], table["metric_quantized"] = floats, quantized
    table["class_float"] = table["class_quantized"] = -1
    return table


def counted(both: int, losses: int, gains: int, neither: int) -> Any:
    cells = (both, losses, gains, neither)
    return rows(np.repeat([1.0, 1.0, 0.0, 0.0], cells), np.repeat([1.0, 0.0, 1.0, 0.0], cells))


def case(table: Any, metric: str | None = "top1", higher: bool | None = None, **run: Any) -> Case:
    """A case that holds samples and nothing else, of a network with the outputs scores and boxes."""
    record = CaseRecord(
        quantmedic_version="0",
        model=ModelFacts(),
        tensors=(),
        operators=(),
        outputs=tuple(
            OutputRecord(name=n, tensor=None, quantizer=QuantizerFacts(), columns=0) for n in ("scores", "boxes")
        ),
        input_tensor=None,
        image_input=False,
        metric=metric,
        metric_higher_is_better=(metric in ("top1", "top5") if higher is None else higher) if metric else None,
        unmatched=(),
        notices=(),
        run={"metric_output": None, "seed": 0} | run,
        datasets={"validation": DatasetRecord(origin="val", labelled=True)},
    )
    statistics = SetStatistics.empty([])
    statistics.samples = table
    return Case(record, {"validation": statistics})


def facts(of: Case, **levels: float | None) -> CaseFacts:
    outputs = [{"name": n, "tensor": {"data": {"accumulated": {"sqnr_db": level}}}} for n, level in levels.items()]
    return CaseFacts(
        model=ModelFacts(metric=metric_facts(of)), outputs=tuple(OutputFacts.model_validate(o) for o in outputs)
    )


def judged(budget: Budget, of: Case, **levels: float | None) -> GateLine:
    return judge_budget(budget, of, facts(of, **levels), name="accuracy top1", line=5)


def test_a_drop_beyond_the_limit_fails() -> None:
    line = judged(TOP1, case(counted(3000, 500, 112, 1388)))
    assert (line.kind, line.name, line.line, line.status) == ("accuracy", "accuracy top1", 5, "fail")
    assert line.message == "drop 7.76 points (6.82 … 8.73), limit of the drop 1.00"
    assert line.value == pytest.approx(7.76) and line.unit == "points" and line.limit == 1.0
    assert line.samples is not None and line.samples.now == 5000
    assert line.samples.at_measured is not None and line.samples.at_measured < 500
    assert line.mcnemar_p is not None and line.mcnemar_p < 1e-50


def test_a_straddled_limit_names_the_samples_that_decide() -> None:
    line = judged(TOP1, case(counted(700, 32, 20, 248)))
    assert line.status == "undecided"
    assert line.message == (
        "drop 1.20 points (-0.27 … 2.72) straddles the limit 1.00; 1000 samples are too few, about 51000 would decide "
        "a drop of this size"
    )
    enough = judged(TOP1, case(counted(14000, 330, 120, 5550)))
    assert enough.status == "undecided" and "9 of 10" not in enough.message and "20000 samples" in enough.message


def test_a_gain_reads_as_a_gain() -> None:
    line = judged(TOP1, case(counted(3000, 20, 40, 1940)))
    assert line.status == "pass" and line.value == pytest.approx(-0.4)
    assert line.message == "gain 0.40 points (0.09 … 0.73), limit of the drop 1.00"
    line = judged(TOP1, case(counted(60, 5, 6, 29)))
    assert line.status == "undecided"
    assert line.message.startswith("gain 1.00 points (-6.63 … 8.74) does not rule out a drop beyond the limit 1.00; ")


def test_no_drop_is_no_negative_one() -> None:
    line = judged(TOP1, case(counted(3000, 0, 0, 2000)))
    assert line.message == "drop 0.00 points (-0.08 … 0.08), limit of the drop 1.00"
    line = judged(Budget(metric="top1", max_drop=0), case(counted(30000, 1, 1, 0)))
    assert line.status == "undecided" and "-0.00" not in line.message and math.copysign(1, line.value or 0.0) == 1
    line = judged(Budget(metric="mae", max_drop=0.1), case(rows(np.full(30, 0.5), np.full(30, 0.5)), "mae"))
    assert line.message == "drop 0.00 (0.00 … 0.00), limit of the drop 0.10" and line.status == "pass"


def test_a_close_call_shows_its_digits() -> None:
    """What decides is never rounded away."""
    floats = np.random.default_rng(0).exponential(1.0, 400)
    found = case(rows(floats, floats + 0.1), "mae")
    exact = judged(Budget(metric="mae", max_drop=0.09999), found)
    assert exact.status == "fail" and exact.message == "drop 0.10000 (0.10000 … 0.10000), limit of the drop 0.09999"
    small = judged(Budget(metric="mae", max_drop=0.0004), case(rows(floats, floats), "mae"))
    assert small.message.endswith("limit of the drop 0.00040")


def test_units_are_one_measurement() -> None:
    found = case(counted(68, 12, 2, 18))
    points = judged(TOP1, found)
    for unit, limit, shown, name in (
        ("points", 1.0, 10.0, "points"),
        ("percent", 1.0, 12.5, "%"),
        ("absolute", 0.01, 0.1, "share"),
    ):
        line = judged(Budget(metric="top1", max_drop=limit, unit=unit), found)
        assert line.value == pytest.approx(shown) and line.unit == name
        assert line.low is not None and points.low is not None and points.value is not None
        assert line.low / shown == pytest.approx(points.low / points.value)


def errors(n: int = 200, more: float = 0.1) -> Any:
    rng = np.random.default_rng(8)
    floats = rng.exponential(1.0, n)
    return floats, floats + more + 0.3 * rng.normal(size=n)


def test_errors_are_better_when_lower() -> None:
    floats, quantized = errors()
    line = judged(Budget(metric="mae", max_drop=0.05), case(rows(floats, quantized), "mae", seed=3))
    expected = drop_interval(floats, quantized, higher_is_better=False, seed=3)
    assert (line.value, line.low, line.high) == pytest.approx(expected)
    assert line.unit == "mae" and line.mcnemar_p is None and line.message.startswith("drop 0.082 (")
    percent = judged(Budget(metric="mae", max_drop=5, unit="percent"), case(rows(floats, quantized), "mae"))
    assert percent.value == pytest.approx(100 * (quantized.mean() / floats.mean() - 1))
    assert percent.unit == "%" and " % (" in percent.message
    assert percent.samples is not None and percent.samples.at_twice is not None


def test_rmse_is_the_root_of_the_mean() -> None:
    floats, quantized = errors()
    line = judged(Budget(metric="rmse", max_drop=0.1), case(rows(floats**2, quantized**2), "rmse"))
    assert line.value == pytest.approx(math.sqrt((quantized**2).mean()) - math.sqrt((floats**2).mean()))
    percent = judged(Budget(metric="rmse", max_drop=9, unit="percent"), case(rows(floats**2, quantized**2), "rmse"))
    before = math.sqrt((floats**2).mean())
    assert percent.value == pytest.approx(100 * line.value / before)  # type: ignore[operator]


def test_shares_of_errors_count_the_other_way() -> None:
    """A metric of zeros and ones of which 1 is wrong."""
    table = counted(10, 30, 60, 900)
    line = judged(Budget(metric="own:wrong", max_drop=0.01), case(table, "own:wrong", higher=False))
    assert line.value == pytest.approx(0.03) and line.mcnemar_p is not None
    mirrored = case(rows(1 - table["metric_float"], 1 - table["metric_quantized"]), "own:right", higher=True)
    right = judged(Budget(metric="own:right", max_drop=0.01), mirrored)
    assert (line.low, line.high, line.samples) == (pytest.approx(right.low), pytest.approx(right.high), right.samples)


metrics = st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 1.0])), min_size=2, max_size=60)
values = st.lists(st.tuples(st.floats(0, 4), st.floats(0, 4)), min_size=2, max_size=40)


@pytest.mark.thorough
@given(metrics | values, st.randoms(use_true_random=False), st.data())
@few
def test_order_and_shards_do_not_matter(pairs: Any, random: Any, data: Any) -> None:
    table = rows(*np.array(pairs).T)
    table["hash"] //= 2  # samples that occur twice
    shuffled = list(range(len(table)))
    random.shuffle(shuffled)
    cut = data.draw(st.integers(0, len(table)))
    budget = Budget(metric="mae", max_drop=0.1)
    whole = judged(budget, case(table, "mae"))
    assert judged(budget, case(table[shuffled], "mae")) == whole
    assert judged(budget, case(table[cut:], "mae").merge(case(table[:cut], "mae"))) == whole


def test_samples_without_a_number_are_left_out() -> None:
    table = counted(300, 40, 10, 50)
    lost = rows([1.0] * 3 + [np.nan] * 5, [np.nan] * 3 + [1.0] * 2 + [np.nan] * 3, first=1000)
    line, expected = judged(TOP1, case(np.concatenate([table, lost]))), judged(TOP1, case(table))
    assert (line.value, line.low, line.high, line.samples) == (
        expected.value,
        expected.low,
        expected.high,
        expected.samples,
    )
    assert line.message == expected.message + "; left out: 3 where the quantized model's metric is not a number"


def test_the_worst_output_is_that_without_a_number() -> None:
    budget = Budget(metric="sqnr_db", min=20)
    for levels in ({"scores": math.nan, "boxes": 30.0}, {"scores": 30.0, "boxes": math.nan}):
        assert judged(budget, case(counted(9, 0, 0, 0)), **levels).status == "fail"
    line = judged(budget, case(counted(9, 0, 0, 0)), scores=30.0, boxes=None)
    assert line.status == "pass" and line.message.endswith("; not measured: boxes")


def test_a_drop_that_leaves_samples_out_is_no_pass() -> None:
    """Where the metric of the quantized model is not a number, the model may have lost all there is to lose."""
    good = counted(990, 0, 0, 10)
    assert judged(TOP1, case(good)).status == "pass"
    for lost in (np.nan, np.inf):
        table = np.concatenate([good, rows([1.0] * 500, [lost] * 500, first=2000)])
        line = judged(TOP1, case(table))
        assert line.status == "not-judged" and "left out: 500" in line.message
    nothing = judged(TOP1, case(rows([1.0] * 5, [np.nan] * 5)))
    assert (nothing.status, nothing.message) == (
        "not-judged",
        "the quantized model's metric is not a number on any of 5 samples",
    )


def test_too_few_samples_decide_nothing() -> None:
    """The interval of a handful of equal differences has no width, whatever the next sample may be."""
    assert judged(TOP1, case(counted(0, 1, 0, 0))).status == "undecided"
    budget = Budget(metric="mae", max_drop=0.1)
    line = judged(budget, case(rows([1.0], [1.5]), "mae"))
    assert line.status == "undecided" and line.low is None and line.high is None
    assert line.message == "drop 0.50 of one sample, too few for an interval; limit of the drop 0.10"
    for drop in (0.0, 0.05, 0.5):
        nine, ten = (judged(budget, case(rows([2.0] * n, [2.0 + drop] * n), "mae")) for n in (9, 10))
        assert nine.status == "undecided" and "9 samples, too few for an interval" in nine.message
        assert ten.status == ("fail" if drop > 0.1 else "pass")


def test_all_discordant() -> None:
    line = judged(TOP1, case(counted(0, 50, 0, 0)))
    assert line.status == "fail" and line.value == 100 and line.high == 100
    line = judged(TOP1, case(counted(0, 0, 50, 0)))
    assert line.status == "pass" and line.message.startswith("gain 100.00 points (")


def test_another_measurement_is_not_judged() -> None:
    of_boxes, of_scores = (Budget(metric="top1", max_drop=1, output=name) for name in ("boxes", "scores"))
    own = Budget(metric="own:metric", max_drop=1, output="scores")
    table, blank = counted(300, 40, 10, 50), rows([np.nan] * 4, [np.nan] * 4)
    cases: list[tuple[Budget, Case, str]] = [
        (TOP1, case(table, None), "no task metric was measured: top1 needs labels"),
        (Budget(metric="top5", max_drop=1), case(table), "top1 was measured, not top5"),
        (of_boxes, case(table), "top1 was measured of another output: scores, not boxes"),
        (of_scores, case(table, metric_output="boxes"), "top1 was measured of another output: boxes, not scores"),
        (own, case(table, "own:metric"), "own:metric reads all outputs, not scores alone"),
        (TOP1, case(blank), "no labels, so the task metric was not measured"),
    ]
    for budget, found, message in cases:
        line = judged(budget, found)
        assert (line.status, line.message) == ("not-judged", message)
        assert line.value is None and line.samples is None and line.line == 5
    nothing = case(rows(np.zeros(9), np.ones(9)), "mae")
    line = judged(Budget(metric="mae", max_drop=1, unit="percent"), nothing)
    assert line.status == "not-judged" and "is 0" in line.message
    assert judged(of_scores, case(table)) == judged(of_boxes, case(table, metric_output="boxes"))
    assert judged(of_scores, case(table)) == judged(TOP1, case(table)), "what was measured may be named"


def test_an_unknown_output_is_an_error() -> None:
    for budget in (Budget(metric="top1", max_drop=1, output="box"), Budget(metric="sqnr_db", min=20, output="box")):
        with pytest.raises(DataError, match="no such output") as error:
            judged(budget, case(counted(3, 4, 1, 5)), scores=30.0)
        assert "scores, boxes" in str(error.value)


def classes(same: int, other: int) -> Case:
    table = rows([np.nan] * (same + other + 2), [np.nan] * (same + other + 2))
    table["class_float"][: same + other] = 1
    table["class_quantized"] = np.repeat([1, 2, -1], [same, other, 2])
    return case(table)


def test_agreement() -> None:
    budget = Budget(metric="agreement", min=0.99)
    for same, other, status, message in [
        (1998, 2, "pass", "99.9 % (99.6 … 100.0), required 99.0 %"),
        (900, 100, "fail", "90.0 % (88.0 … 91.8), required 99.0 %"),
        (988, 12, "undecided", "98.8 % (97.9 … 99.4) straddles the required 99.0 %; at this share about 11000 would"),
    ]:
        line = judge_budget(budget, classes(same, other), CaseFacts(), name="agreement", line=9)
        assert (line.kind, line.status, line.unit) == ("agreement", status, "%")
        assert line.message.startswith(message)
        assert (line.value, line.limit) == pytest.approx((100 * same / (same + other), 99))


def test_agreement_needs_classes_of_the_output() -> None:
    budget = Budget(metric="agreement", min=0.99, output="boxes")
    line = judge_budget(budget, classes(9, 1), CaseFacts(), name="agreement", line=9)
    assert line.message == "classes are read from the output scores, not from boxes" and line.status == "not-judged"
    none = judge_budget(Budget(metric="agreement", min=0.99), case(rows([1.0], [1.0])), CaseFacts(), name="a", line=1)
    assert (none.status, none.message) == ("not-judged", "the outputs are not class scores")
    static = Case(classes(9, 1).record, {})
    none = judge_budget(Budget(metric="agreement", min=0.99), static, CaseFacts(), name="a", line=1)
    assert (none.status, none.message) == ("not-judged", "no samples were run")


def test_sqnr_of_the_worst_or_the_named_output() -> None:
    found = case(counted(3, 4, 1, 5))
    line = judged(Budget(metric="sqnr_db", min=20), found, scores=31.24, boxes=18.0)
    assert (line.kind, line.status, line.value, line.unit) == ("sqnr", "fail", 18.0, "dB")
    assert line.message == "18.0 dB of boxes, required 20.0 dB" and line.low is None and line.samples is None
    line = judged(Budget(metric="sqnr_db", min=20, output="scores"), found, scores=31.24, boxes=18.0)
    assert (line.status, line.message) == ("pass", "31.2 dB, required 20.0 dB")
    line = judged(Budget(metric="sqnr_db", min=20), found, scores=math.inf, boxes=math.inf)
    assert line.status == "pass" and line.message.startswith("no error")
    line = judged(Budget(metric="sqnr_db", min=20), found, scores=19.99, boxes=None)
    assert line.message == "19.99 dB of scores, required 20.00 dB; not measured: boxes"
    line = judged(Budget(metric="sqnr_db", min=20, output="boxes"), found, scores=31.0, boxes=None)
    assert (line.status, line.message) == ("not-judged", "the SQNR of boxes was not measured")
    line = judged(Budget(metric="sqnr_db", min=20), found)
    assert (line.status, line.message) == ("not-judged", "the SQNR was not measured")
