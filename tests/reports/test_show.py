"""The tables of a case in the terminal."""

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import quantmedic
from quantmedic.cli.main import cli
from quantmedic.engine.case.facts import LayerFacts
from quantmedic.engine.diagnosis.inspection import Inspection
from quantmedic.engine.errors import QuantmedicError
from quantmedic.reports.machines.spreadsheets import selection_csv
from quantmedic.reports.sections.selection import select_layers
from quantmedic.reports.terminal.show import _fact_lines, data_lines, layer_lines, table_lines

SQNR = "output.validation.accumulated.sqnr_db"


@pytest.fixture(scope="module")
def inspection(patient_case: Path) -> Inspection:
    return quantmedic.inspect(quantmedic.load_case(patient_case))


def rows(table: Any, key: str) -> list[Any]:
    values = next(column.values for column in table.columns if column.key == key)
    return [values[place] for place in table.rows]


@pytest.mark.thorough
def test_activations_come_by_mse_with_their_range(inspection: Inspection) -> None:
    table = select_layers(inspection, table="activations")
    errors = rows(table, "output.validation.accumulated.mse")
    assert errors == sorted(errors, reverse=True)
    assert rows(table, "output.validation.values.min") and rows(table, "output.validation.values.max")


def test_weights_have_all_moments(inspection: Inspection) -> None:
    table = select_layers(inspection, table="weights")
    measured = [value for value in rows(table, "weight.variance") if value is not None]
    deviations = [value for value in rows(table, "weight.std") if value is not None]
    assert measured == [value**2 for value in deviations] and measured
    assert {"weight.min", "weight.max", "weight.mean"} <= {column.key for column in table.columns}


def test_what_was_not_measured_comes_last_in_both_directions(inspection: Inspection) -> None:
    for sort in ("weight.std", "weight.std:desc"):
        values = rows(select_layers(inspection, columns=["name", "weight.std"], sort=sort), "weight.std")
        known = [value for value in values if value is not None]
        assert None in values and values == known + [None] * (len(values) - len(known))
        assert known == sorted(known, reverse=sort.endswith("desc"))


def test_the_end_of_a_key_means_the_judged_set(inspection: Inspection) -> None:
    for asked in (SQNR, "accumulated.sqnr_db", "output.data.accumulated.sqnr_db"):
        assert [column.key for column in select_layers(inspection, columns=[asked]).columns] == [SQNR]


def test_a_slip_is_named(subtests: pytest.Subtests, inspection: Inspection) -> None:
    for asked, said in [
        ({"columns": ["nmae"]}, "did you mean name?"),
        ({"columns": ["mse"]}, "write one in full"),
        ({"columns": ["weight.group_size"]}, "was not measured"),
        ({"sort": "name:down"}, "write KEY or KEY:desc"),
        ({"table": "weight"}, "did you mean weights?"),
        ({"table": "datasets"}, "did you mean data-sets?"),
    ]:
        with subtests.test(asked=asked, said=said):
            with pytest.raises(QuantmedicError) as error:
                select_layers(inspection, **asked)
            assert said in str(error.value)


def test_filters_narrow_the_layers(inspection: Inspection) -> None:
    everything = select_layers(inspection)
    sigmoids = select_layers(inspection, text="SIGMOID residual")
    assert 0 < len(sigmoids.rows) < len(everything.rows)
    assert all("Sigmoid" in name for name in rows(sigmoids, "name"))
    found = select_layers(inspection, text="A003")
    assert rows(found, "findings") and all("A003" in codes for codes in rows(found, "findings"))
    flagged = select_layers(inspection, flagged=True)
    degraded = {place for place, layer in enumerate(inspection.facts.layers) if layer.degraded}
    assert degraded <= set(flagged.rows)


def test_lines_fit_and_tell_what_is_missing(inspection: Inspection) -> None:
    for table in ("default", "activations", "weights", "errors", "quantizers", "all"):
        lines = list(table_lines(select_layers(inspection, table=table), limit=5))
        assert max(map(len, lines)) <= 100
        assert lines[-1] == "22 more (--limit 27, or --csv FILE)"
    wide = list(table_lines(select_layers(inspection), width=200))
    assert max(map(len, wide)) > 100 and len(wide) < 40


def test_csv_has_every_row_in_full_and_no_formula(inspection: Inspection) -> None:
    table = select_layers(inspection, columns=["name", SQNR, "weight.std"])
    head, *lines = csv.reader(io.StringIO(selection_csv(table)))
    assert head == ["name", SQNR, "weight.std"]
    assert [float(line[1]) for line in lines] == rows(table, SQNR)
    assert [line[2] for line in lines] == ["" if v is None else repr(v) for v in rows(table, "weight.std")]
    layer = inspection.facts.layers[0].model_copy(update={"name": "=HYPERLINK(1)"})
    facts = inspection.facts.model_copy(update={"layers": (layer,)})
    evil = select_layers(Inspection(inspection.case, facts, inspection.base), columns=["name"])
    assert selection_csv(evil).splitlines()[1] == "'=HYPERLINK(1)"


def test_a_layer_tells_all_its_facts(inspection: Inspection) -> None:
    lines = list(layer_lines(inspection, "/stem/conv/Conv"))
    number = next(layer.index for layer in inspection.facts.layers if layer.name == "/stem/conv/Conv")
    assert list(layer_lines(inspection, str(number))) == lines
    text = "\n".join(lines)
    assert lines[0].startswith("/stem/conv/Conv   Conv   degraded")
    assert [line.split() for line in lines if line.startswith("weight.rounding.sqnr_db")] == [
        ["weight.rounding.sqnr_db", "47.6", "dB"]
    ]
    both = next(line.split() for line in lines if line.startswith("accumulated.sqnr_db"))
    assert both == ["accumulated.sqnr_db", "44.1", "3.8", "dB"]
    assert "representative" in text and any(line.endswith("facts not measured") for line in lines)
    with pytest.raises(QuantmedicError, match="did you mean /stem/conv/Conv"):
        list(layer_lines(inspection, "stem"))


def test_names_of_a_layer_are_whole(inspection: Inspection) -> None:
    long = "/".join(["", *["encoder_block"] * 9, "Conv"])
    layer = inspection.facts.layers[0].model_copy(update={"name": long, "float_name": long, "float_nodes": (long, "b")})
    facts = inspection.facts.model_copy(update={"layers": (layer, *inspection.facts.layers[1:])})
    lines = list(layer_lines(Inspection(inspection.case, facts, inspection.base), long))
    assert [line.split()[-1] for line in lines if line.startswith(("name ", "float_name "))] == [long, long]
    assert not any("…" in line for line in lines)
    rows = [line for line in lines if line.startswith("weight.quantizer.scale")]
    assert rows and max(map(len, rows)) <= 100


def test_data_sets_stand_side_by_side(inspection: Inspection) -> None:
    lines = list(data_lines(inspection))
    assert ["fact", "representative", "validation"] in [line.split() for line in lines]
    assert next(line.split() for line in lines if line.startswith("samples")) == ["samples", "160", "512"]
    assert max(map(len, lines)) <= 100


@pytest.mark.thorough
def test_the_budget_is_printed_whole(patient_case: Path) -> None:
    result = CliRunner().invoke(cli, ["show", str(patient_case), "--table", "loss-budget"])
    assert result.exit_code == 0
    assert result.output.lstrip().startswith("Where the noise comes from\n")
    assert all(word in result.output for word in ("input image", "values below", "cut off", "101 %"))


@pytest.mark.thorough
def test_the_budget_as_a_spreadsheet_has_every_line(patient_case: Path) -> None:
    result = CliRunner().invoke(cli, ["show", str(patient_case), "--table", "loss-budget", "--csv", "-"])
    read = list(csv.DictReader(io.StringIO(result.output)))
    budget = quantmedic.judge(quantmedic.load_case(patient_case)).loss_budget
    assert budget is not None
    assert [float(row["share"]) for row in read] == [line.share for line in budget.lines]
    assert read[0]["mechanism"] == "clipped-low"


@pytest.mark.thorough
def test_a_healthy_case_has_a_budget_to_show(healthy_case: Path) -> None:
    result = CliRunner().invoke(cli, ["show", str(healthy_case), "--table", "loss-budget"])
    assert result.output.lstrip().startswith("Where the noise comes from\n")
    assert "no rule matches" not in result.output


@pytest.mark.thorough
def test_a_case_without_a_budget_says_so(healthy_case: Path, tmp_path: Path) -> None:
    case = quantmedic.load_case(healthy_case)
    older = replace(case, record=case.record.model_copy(update={"loss_budget": None}))
    quantmedic.save_case(older, tmp_path / "older.case")
    with pytest.raises(QuantmedicError, match="the case has no loss budget"):
        CliRunner().invoke(
            cli, ["show", str(tmp_path / "older.case"), "--table", "loss-budget"], catch_exceptions=False
        )


def test_another_way_to_read_codes_that_fits_worse_reads_as_none(subtests: pytest.Subtests) -> None:
    for gain, said in [(20.0, "v1"), (-20.0, "none; the best other one is worse: v1"), (None, "v1")]:
        with subtests.test(gain=gain, said=said):
            layer = LayerFacts.model_validate({"weight": {"better_reading": "v1", "reading_gain_db": gain}})
            (line,) = [line for line in _fact_lines(layer) if "better_reading" in line]
            assert line.split(maxsplit=1)[1].strip() == said
