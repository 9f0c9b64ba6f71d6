"""The six error graphs and the histograms."""

import math
import xml.etree.ElementTree as etree
from collections.abc import Callable
from itertools import pairwise

import pytest

from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.decibels import sqnr_of_nmse
from quantmedic.engine.formulas.spreads import Histogram
from quantmedic.reports.charts.birth import BORN_NAMES, birth_chart, birth_summary, birth_text, origin
from quantmedic.reports.charts.errors import LIMITS, METRICS, ErrorChart, error_charts, flagged_layers
from quantmedic.reports.charts.frame import PALETTE, spread, ticks
from quantmedic.reports.charts.histogram import histogram_charts
from quantmedic.reports.templating import svg

SVG = "{http://www.w3.org/2000/svg}"


def drawn_flags(chart: ErrorChart) -> set[str]:
    """Layers that carry a red circle in the drawing."""
    groups = etree.fromstring(svg(chart)).iter(f"{SVG}g")
    return {group.get("data-layer", "") for group in groups if group.get("class") == "flagged"}


def test_there_are_six_graphs_metric_by_data_set(diagnosis: Diagnosis) -> None:
    charts = error_charts(diagnosis)
    assert [chart.stem for chart in charts] == [
        "mse-representative",
        "mse-validation",
        "cosine-representative",
        "cosine-validation",
        "sqnr-representative",
        "sqnr-validation",
    ]
    assert not any(chart.note for chart in charts)


def test_the_red_set_of_a_graph_equals_the_layers_over_its_threshold(diagnosis: Diagnosis) -> None:
    limits = {threshold.name: threshold.value for threshold in diagnosis.thresholds}
    roles = ("representative", "validation")
    charts = iter(error_charts(diagnosis))
    for metric in METRICS:
        for role in roles:
            chart = next(charts)
            expected = set(flagged_layers(diagnosis.layers, metric, role, limits))
            assert drawn_flags(chart) == {p.layer for p in chart.points if p.flagged} == expected
            assert {label.text.rpartition(" · ")[0] for label in chart.names if label.flagged} == expected
    red = set().union(*(drawn_flags(chart) for chart in error_charts(diagnosis) if "validation" in chart.stem))
    assert red == {row.name for row in diagnosis.layers if row.degraded} != set()


def test_an_infinite_threshold_is_not_drawn(diagnosis: Diagnosis) -> None:
    mse, _, cosine, *_ = error_charts(diagnosis)
    assert mse.limit is None and mse.limit_text == "no threshold"
    assert cosine.limit is not None and cosine.limit_text == "threshold 0.99"
    assert 'class="qc-limit" x1="66' not in svg(mse)


def test_the_graph_of_the_mse_flags_by_the_relative_threshold_too(diagnosis: Diagnosis) -> None:
    nmse = diagnosis.thresholds[0].model_copy(update={"name": "quantize_error_nmse", "value": 0.01})
    relative = diagnosis.model_copy(update={"thresholds": (*diagnosis.thresholds, nmse)})
    chart = error_charts(relative)[1]
    assert chart.limit_text == "○ MSE > 0.01 × power"
    assert drawn_flags(chart) == {row.name for row in diagnosis.layers if row.validation.accumulated.nmse > 0.01}


def test_worse_is_up(diagnosis: Diagnosis) -> None:
    for chart in error_charts(diagnosis):
        worst = min(chart.points, key=lambda point: point.y)
        assert worst.layer == "classifier.1"
        if chart.limit is not None:
            assert all((point.y < chart.limit) == point.flagged for point in chart.points)


def test_a_set_without_measurements_gives_a_note(
    judged: Callable[[CaseFacts], Diagnosis], case: Callable[..., CaseFacts]
) -> None:
    charts = error_charts(judged(case(("a", "b", "c", "d", "e"), roles=("representative",))))
    assert [chart.note for chart in charts] == ["", "not measured on the validation set"] * 3


def test_values_that_are_no_numbers_are_left_out_and_exact_layers_are_drawn(diagnosis: Diagnosis) -> None:
    exact, broken, *rest = diagnosis.layers
    exact = _with_errors(exact, mse=0.0, sqnr_db=math.inf, cosine=1.0)
    broken = _with_errors(broken, mse=math.nan, sqnr_db=math.nan, cosine=math.nan)
    charts = error_charts(diagnosis.model_copy(update={"layers": (exact, broken, *rest)}))
    for chart in charts:
        assert "nan" not in svg(chart) and "inf" not in svg(chart)
        assert broken.name not in {point.layer for point in chart.points}
        assert chart.points[0].layer == exact.name
        assert chart.points[0].y == chart.bottom


def _with_errors(row, **values):
    return row.model_copy(
        update={
            role: getattr(row, role).model_copy(
                update={"accumulated": getattr(row, role).accumulated.model_copy(update=values)}
            )
            for role in ("representative", "validation")
        }
    )


def test_names_keep_their_distance_and_flagged_ones_are_always_written(
    subtests: pytest.Subtests, judged: Callable[[CaseFacts], Diagnosis], case: Callable[..., CaseFacts]
) -> None:
    for layers in [1, 40, 41, 200]:
        with subtests.test(layers=layers):
            for chart in error_charts(judged(case(tuple(f"layer{i}" for i in range(layers))))):
                places = [label.at for label in chart.names]
                assert all(b - a >= 10.9 for a, b in pairwise(places))
                assert all(chart.left <= place <= chart.right for place in places)
                written = {label.text.partition(" ")[0] for label in chart.names}
                assert {point.layer for point in chart.points if point.flagged} <= written
                assert len(written) == layers if layers <= 40 else len(written) < 60


def test_a_graph_in_which_every_layer_is_flagged_grows(diagnosis: Diagnosis) -> None:
    strict = tuple(
        t.model_copy(update={"value": 1e9}) if t.name == LIMITS["sqnr_db"] else t for t in diagnosis.thresholds
    )
    chart = error_charts(diagnosis.model_copy(update={"thresholds": strict, "layers": diagnosis.layers * 3}))[-1]
    assert sum(label.flagged for label in chart.names) == len(diagnosis.layers) * 3
    assert chart.width > 1500


def test_a_file_stands_alone_and_a_figure_takes_the_colours_of_its_page(diagnosis: Diagnosis) -> None:
    chart = error_charts(diagnosis)[-1]
    assert PALETTE["flag"] in svg(chart) and "var(" not in svg(chart) and "<style>" in svg(chart)
    assert PALETTE["flag"] not in svg(chart, standalone=False) and "<style>" not in svg(chart, standalone=False)


def test_titles_axes_units_and_legend(diagnosis: Diagnosis) -> None:
    text = svg(error_charts(diagnosis)[-1])
    for part in ("SQNR · validation", "SQNR in dB", "n = 5000", "accumulated", "rounding (local)", "threshold 20.0 dB"):
        assert part in text


def test_histograms_show_the_range_of_the_quantizer(diagnosis: Diagnosis) -> None:
    first, *_ = charts = histogram_charts(diagnosis.histograms)
    assert [chart.stem for chart in charts][:2] == ["histogram-1", "histogram-2"]
    assert [limit.text for limit in first.limits] == ["-9.2", "9.13"]
    assert any(bar.flagged for bar in first.bars) and not all(bar.flagged for bar in first.bars)
    assert all(first.left <= bar.x <= first.right and bar.height <= first.bottom - first.top for bar in first.bars)
    etree.fromstring(svg(first))


def test_an_empty_histogram_gives_a_note() -> None:
    (chart,) = histogram_charts([Histogram(layer="a", dataset="validation", edges=(), counts=(), low=None, high=None)])
    assert chart.note == "not measured"


def test_ticks_are_round_and_tell_the_truth() -> None:
    assert ticks(0.9, 1.0) == [(pytest.approx(v), f"{v:.2f}") for v in (0.9, 0.92, 0.94, 0.96, 0.98, 1.0)]
    assert [text for _, text in ticks(0.871, 1.0)] == ["0.875", "0.900", "0.925", "0.950", "0.975", "1.000"]
    assert [text for _, text in ticks(0, 60)] == ["0", "10", "20", "30", "40", "50", "60"]
    assert ticks(5.0, 5.0) == [(5.0, "5")]


def test_spread_moves_no_more_than_needed() -> None:
    assert spread([0, 50, 100], 10, 0, 100) == [0, 50, 100]
    assert spread([50, 51, 52], 10, 0, 100) == [50, 60, 70]
    assert spread([95, 99, 100], 10, 0, 100) == [80, 90, 100]


def _noise(row, *, noise: float | None, added: float | None, amplification: float | None = None, born=False):
    """A layer whose noise on the validation set comes from where the arguments say."""
    errors = row.validation.accumulated.model_copy(update={"nmse": noise, "sqnr_db": sqnr_of_nmse(noise)})
    validation = row.validation.model_copy(update={"accumulated": errors})
    facts = {"added_nmse": added, "amplification": amplification, "born": born, "validation": validation}
    return row.model_copy(update=facts)


def test_a_word_for_where_the_noise_comes_from(subtests: pytest.Subtests, diagnosis: Diagnosis) -> None:
    for facts, word in [
        ({"noise": 1e-2, "added": 1e-4, "born": True}, "born"),
        ({"noise": 1e-2, "added": 5e-3, "amplification": 9.0}, "added"),
        ({"noise": 1e-2, "added": 4e-3, "amplification": 2.0}, "amplified"),
        ({"noise": 1e-2, "added": 4e-3, "amplification": 1.9}, "carried"),
        ({"noise": 1e-2, "added": 0.0}, "carried"),
        ({"noise": 1e-2, "added": None}, None),
        ({"noise": None, "added": 1e-2}, None),
        ({"noise": 0.0, "added": 0.0}, None),
    ]:
        with subtests.test(facts=facts, word=word):
            assert origin(_noise(diagnosis.layers[0], **facts), "validation") == word


def test_the_error_is_drawn_where_it_is_born(diagnosis: Diagnosis) -> None:
    chart = birth_chart(diagnosis, "validation")
    born = [row.name for row in diagnosis.layers if row.born]
    groups = etree.fromstring(svg(chart)).iter(f"{SVG}g")
    assert [group.get("data-layer") for group in groups if group.get("class") == "born"] == born
    assert len(chart.names) == min(len(born), BORN_NAMES) > 0
    assert f"{len(born)} layers begin it (born)" in chart.samples
    tall = {bar.tip.partition(":")[0] for bar in chart.bars if bar.y < chart.limit}
    assert tall == {f"{row.index} {row.name}" for row in diagnosis.layers if row.added_nmse > 10 ** (-20 / 10)}


@pytest.mark.thorough
def test_layers_that_share_a_place_show_the_one_that_adds_most(
    judged: Callable[[CaseFacts], Diagnosis], case: Callable[..., CaseFacts]
) -> None:
    found = judged(case(tuple(f"layer{i}" for i in range(1500))))
    chart = birth_chart(found, "validation")
    most = max(found.layers, key=lambda row: row.added_nmse)
    assert len(chart.bars) <= chart.width
    assert any(bar.tip.startswith(f"{most.index} {most.name}:") for bar in chart.bars)


def test_words_tell_how_the_noise_of_a_layer_was_found(diagnosis: Diagnosis) -> None:
    rows = diagnosis.layers
    assert "was not measured (--step-error" in birth_text(rows, "validation")
    measured = [_with_step(row) for row in rows]
    assert "measured on deployed inputs" in birth_text(measured, "validation")
    assert f"was measured of 1 of {len(rows)} layers" in birth_text([measured[0], *rows[1:]], "validation")


def _with_step(row):
    errors = row.validation.model_copy(update={"step": row.validation.accumulated})
    return row.model_copy(update={"validation": errors})


def test_what_layers_do_is_said_in_words(diagnosis: Diagnosis) -> None:
    assert birth_summary(diagnosis.layers, "validation") == "4 layers begin it (born), 49 layers hand it on (carried)"
    one = [row.model_copy(update={"born": row is diagnosis.layers[0]}) for row in diagnosis.layers[:1]]
    assert birth_summary(one, "validation") == "1 layer begins it (born)"
    assert "output.data" not in birth_text(diagnosis.layers, "validation"), "names of facts stand in the glossary"


def test_an_error_that_is_born_in_no_layer_is_told(diagnosis: Diagnosis) -> None:
    carried = [row.model_copy(update={"born": False}) for row in diagnosis.layers]
    assert birth_summary(carried, "validation").endswith("it comes in with the network's input")
    unseen = [row.model_copy(update={"born": None}) for row in diagnosis.layers]
    assert birth_summary(unseen, "validation").endswith("not every input was seen")


def test_what_layers_add_may_be_unknown(diagnosis: Diagnosis) -> None:
    unknown = [row.model_copy(update={"added_nmse": None}) for row in diagnosis.layers]
    chart = birth_chart(diagnosis.model_copy(update={"layers": tuple(unknown)}), "validation")
    assert chart.note == "not measured: what each layer adds"
