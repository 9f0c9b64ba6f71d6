"""The diagnosis in Python and notebooks: as a card, as a table, as a page."""

import inspect
import sys
from pathlib import Path

import pytest

import quantmedic
from quantmedic.engine.errors import QuantmedicError


@pytest.fixture
def answer(patient_case: Path) -> quantmedic.Diagnosis:
    return quantmedic.judge(quantmedic.load_case(patient_case))


@pytest.mark.nightly
def test_the_card_says_what_is_wrong_and_runs_nothing(answer: quantmedic.Diagnosis) -> None:
    card = answer._repr_html_()
    assert "DEGRADED" in card and "preprocessing-scale-mismatch" in card and "drop 79.49 points" in card
    assert not [word for word in ("<script", "http", "src=", "onclick", "<style") if word in card]


@pytest.mark.thorough
def test_names_in_the_card_stay_text(answer: quantmedic.Diagnosis) -> None:
    model = answer.model.model_copy(update={"name": "<script>alert(1)</script>"})
    assert "<script" not in answer.model_copy(update={"model": model})._repr_html_()


@pytest.mark.thorough
def test_the_table_holds_all_layers(answer: quantmedic.Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    frame = answer.to_frame()
    assert list(frame["name"]) == [row.name for row in answer.layers]
    assert list(frame.columns[:2]) == ["name", "op_type"]
    levels = [row.validation.accumulated.sqnr_db for row in answer.layers]
    shown = frame["validation.accumulated.sqnr_db"]
    assert [None if missing else level for level, missing in zip(shown, shown.isna(), strict=True)] == levels
    assert not frame.columns[frame.isna().all()].any() and isinstance(frame, pandas.DataFrame)


@pytest.mark.thorough
def test_without_pandas_it_says_what_to_install(answer: quantmedic.Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(QuantmedicError, match=r"pip install 'quantmedic\[frames\]'"):
        answer.to_frame()


@pytest.mark.thorough
def test_saved_it_is_the_report_with_its_case(answer: quantmedic.Diagnosis, tmp_path: Path) -> None:
    assert answer.save(tmp_path / "report") == tmp_path / "report"
    names = {path.name for path in (tmp_path / "report").iterdir()}
    assert {"index.html", "report.md", "report.json", "quantmedic.case", "manual"} <= names


@pytest.mark.thorough
def test_opened_the_page_is_shown(answer: quantmedic.Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    page = answer.open()
    assert shown == [page.as_uri()] and page.is_file()


@pytest.mark.thorough
def test_two_that_say_the_same_are_equal(patient_case: Path) -> None:
    first, second = (quantmedic.judge(quantmedic.load_case(patient_case)) for _ in range(2))
    assert first == second and first != first.model_copy(update={"verdict": "healthy"})


def test_the_api_can_be_listed_and_its_options_are_spelled_out() -> None:
    assert set(quantmedic.__all__) == set(dir(quantmedic))
    parameters = inspect.signature(quantmedic.diagnose).parameters
    assert {"validation", "metric", "prove", "timeout", "toolchain"} <= set(parameters)
    assert parameters["prove"].kind is inspect.Parameter.KEYWORD_ONLY and "options" not in parameters
    assert "options" not in inspect.signature(quantmedic.collect).parameters


@pytest.mark.thorough
def test_completion_shows_what_it_can_do(answer: quantmedic.Diagnosis) -> None:
    assert {"causes", "verdict", "save", "open", "to_frame"} <= set(dir(answer)) and "parse_obj" not in dir(answer)
