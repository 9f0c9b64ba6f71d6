"""What a run adds to the history, and what the runs of one model tell together."""

import math
from typing import Any

import pytest
from builders.comparisons import facts, judged, layer, table
from builders.gates import accepted, regression

from quantmedic.engine.case.facts import MetricFacts
from quantmedic.engine.contract.check import Figure, GateLine, HistoryRun, Trend
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.errors import HistoryError
from quantmedic.engine.gate.history import Shift, figures_of, select_figures, series_of


def figure(name: str = "drop top1", value: float = 1.0, **fields: Any) -> Figure:
    return Figure.model_validate({"name": name, "unit": "points", "value": value, "better": "lower"} | fields)


def trend(*runs: tuple[Figure, ...]) -> Trend:
    return Trend(
        model="m",
        runs=tuple(
            HistoryRun(number=10 * place, time=f"2026-11-{place:02}T00:00:00Z", verdict="ACCEPT", figures=figures)
            for place, figures in enumerate(runs, 1)
        ),
    )


@pytest.fixture(scope="module")
def measured() -> Diagnosis:
    """A case with a task metric, an output and causes."""
    layers = [layer("a"), layer("b", sqnr=15.0, ratio=64.0)]
    found = facts(layers, quantized_share=0.5, output_agreement=0.75, size_ratio=0.25, degraded_layers=1)
    return judged(found, {"validation": table(300)}).diagnosis


def by_name(diagnosis: Diagnosis) -> dict[str, Figure]:
    figures = figures_of(diagnosis)
    assert len({figure.name for figure in figures}) == len(figures), "a name is unique within a run"
    return {figure.name: figure for figure in figures}


def test_without_a_gate_the_diagnosis_gives_what_it_measured(measured: Diagnosis) -> None:
    found = by_name(measured)
    assert (found["drop top1"].value, found["drop top1"].unit, found["drop top1"].better) == (25.0, "points", "lower")
    assert found["drop top1"].low < 25.0 < found["drop top1"].high
    assert {name: found[name].value for name in found if found[name].unit == "%"} == {
        "quantized top1": 75.0,
        "float top1": 100.0,
        "agreement": 75.0,
        "coverage": 50.0,
    }
    assert found["sqnr_db"].value == 15.0 and found["sqnr_db"].better == "higher"
    assert (found["causes high"].value, found["causes medium"].value, found["degraded layers"].value) == (1, 0, 1)
    assert (found["size ratio"].value, found["size ratio"].better) == (0.25, "lower")
    assert not any(figure.limit is not None for figure in found.values())


def test_nothing_is_told_that_was_not_measured() -> None:
    found = by_name(judged(facts([layer("a", sqnr=None, ratio=None)], growth=None), {}).diagnosis)
    assert found.keys() <= {"causes high", "causes medium", "causes low"}
    nothing = judged(facts([]), {}).diagnosis.model_copy(update={"causes": (), "passed": ()})
    assert figures_of(nothing) == (), "no rule was judged: no cause found is no news"


def test_figures_of_gates_come_first_and_carry_their_limit(measured: Diagnosis) -> None:
    found = by_name(regression(measured))
    assert list(found)[:4] == ["drop top1", "sqnr_db boxes", "agreement", "findings"]
    drop = found["drop top1"]
    assert (drop.value, drop.low, drop.high, drop.limit, drop.unit) == (7.76, 6.91, 8.60, 1.0, "points")
    assert drop.is_beyond_limit and not found["sqnr_db boxes"].is_beyond_limit and found["agreement"].is_beyond_limit
    assert found["findings"].value == 2 and found["coverage"].value == 50.0, "not judged there, measured all the same"


def test_a_metric_that_is_no_share_keeps_its_own_unit(measured: Diagnosis) -> None:
    metric = MetricFacts(name="my:loss", higher_is_better=False, float_value=1.0, quantized_value=1.5, drop=0.5)
    found = by_name(measured.model_copy(update={"metrics": metric}))
    assert (found["drop my:loss"].value, found["drop my:loss"].unit) == (0.5, None)
    assert (found["quantized my:loss"].value, found["quantized my:loss"].better) == (1.5, "lower")
    gate = GateLine(
        kind="accuracy", name="accuracy my:loss", status="pass", message="", value=0.4, limit=1, unit="absolute"
    )
    report = accepted(measured).check.model_copy(update={"gates": (gate,)})
    found = by_name(measured.model_copy(update={"check": report}))
    assert found["drop my:loss"].unit is None, "the same unit, whether a budget asks for it or not"


def test_what_is_no_number_is_not_measured(measured: Diagnosis) -> None:
    metric = measured.metrics.model_copy(update={"drop": math.nan, "quantized_value": math.nan, "drop_low": math.nan})
    assert not {"drop top1", "quantized top1"} & by_name(measured.model_copy(update={"metrics": metric})).keys()
    metric = measured.metrics.model_copy(update={"drop_low": math.nan})
    assert by_name(measured.model_copy(update={"metrics": metric}))["drop top1"].low is None


def test_outputs_are_told_apart_where_there_are_several(measured: Diagnosis) -> None:
    two = tuple(measured.outputs[0].model_copy(update={"name": name}) for name in ("boxes", "scores"))
    assert by_name(measured.model_copy(update={"outputs": two})).keys() >= {"sqnr_db boxes", "sqnr_db scores"}


def test_series_hold_what_each_run_has() -> None:
    runs = (
        (figure("a", 1.0), figure("gone", 9.0)),
        (figure("a", 2.0, unit="percent"),),
        (figure("new", 5.0), figure("a", 3.0)),
        (figure("a", 4.0), figure("bound", 0.0, limit=1.0)),
    )
    found = series_of(trend(*runs))
    assert [(series.name, series.unit) for series in found] == [
        ("bound", "points"),
        ("a", "points"),
        ("new", "points"),
        ("a", "percent"),
        ("gone", "points"),
    ], "with a limit first, then the latest; other units apart"
    assert [place for place, _ in found[1].runs] == [0, 2, 3] and [f.value for f in found[1].figures] == [1, 3, 4]
    assert (found[1].lowest, found[1].highest) == (1.0, 4.0)
    assert found[1].shift == Shift(run=30, by=1.0) and found[0].shift is None


def test_a_shift_is_proven_where_the_interval_of_the_difference_excludes_zero() -> None:
    def shift(before: float, now: float) -> Shift:
        runs = ((figure(value=value, low=value - 0.3, high=value + 0.4),) for value in (before, now))
        (series,) = series_of(trend(*runs))
        return series.shift

    found = shift(1.0, 2.0)
    assert (found.low, found.high) == pytest.approx((0.5, 1.5)), "0.3 and 0.4 by square-and-add, each on its side"
    assert found.is_proven and not shift(1.0, 1.5 - 1e-9).is_proven
    assert shift(1.0, 0.4).is_proven and shift(1.0, 1.0).is_proven is False
    assert Shift(run=1, by=3.0).is_proven is None, "without intervals nobody can tell"
    assert shift(math.inf, math.inf).by == 0 and shift(math.inf, 30.0).by == -math.inf
    assert shift(30.0, math.inf).by == math.inf


def test_figures_are_chosen_by_name() -> None:
    whole = trend((figure("drop top1"), figure("sqnr_db"), figure("sqnr_db boxes")), (figure("dropped"),))
    chosen = select_figures(whole, ["drop", "sqnr_db"])
    assert [[figure.name for figure in run.figures] for run in chosen.runs] == [["drop top1", "sqnr_db"], []]
    assert select_figures(whole, []) is whole
    with pytest.raises(HistoryError) as told:
        select_figures(whole, ["sqnrdb"])
    assert told.value.help == "did you mean 'sqnr_db'?"
