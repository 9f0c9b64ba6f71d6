"""Node data for Model Explorer, held against a schema of its format."""

import json

import pytest

from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.machines.model_explorer import render_model_explorer

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

_COLOUR = {"type": "string", "pattern": "^#[0-9a-f]{6}$"}
_LOOK = {"bgColor": _COLOUR, "textColor": _COLOUR}
#: ``GraphNodeData`` of google-ai-edge/model-explorer: the fields that it knows, and no other.
NODE_DATA = {
    "type": "object",
    "required": ["results"],
    "additionalProperties": False,
    "properties": {
        "results": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["value"],
                "additionalProperties": False,
                "properties": {"value": {"type": "number"}, **_LOOK},
            },
        },
        "thresholds": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["value", "bgColor"],
                "additionalProperties": False,
                "properties": {"value": {"type": "number"}, **_LOOK},
            },
        },
        "gradient": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["stop"],
                "additionalProperties": False,
                "properties": {"stop": {"type": "number", "minimum": 0, "maximum": 1}, **_LOOK},
            },
        },
        "hideInAggregatedStatsTable": {"type": "boolean"},
        "hideInChildrenStatsTable": {"type": "boolean"},
        "hideAggregatedStats": {"type": "array", "items": {"enum": ["min", "max", "sum", "avg"]}},
    },
}


def refuse(literal: str) -> float:
    raise AssertionError(f"{literal} is no JSON")


@pytest.mark.parametrize("name", ["diagnosis", "proven", "healthy", "hostile"])
def test_it_is_node_data(name: str, request: pytest.FixtureRequest) -> None:
    text = render_model_explorer(request.getfixturevalue(name))
    jsonschema.validate(json.loads(text, parse_constant=refuse), NODE_DATA)
    assert text.isascii() and "<" not in text


def test_values_are_the_noise_on_the_judged_set_by_quantized_name(diagnosis: Diagnosis) -> None:
    found = json.loads(render_model_explorer(diagnosis))["results"]
    rows = {row.quantized_name or row.name: row.validation.accumulated.sqnr_db for row in diagnosis.layers}
    assert found and all(found[name]["value"] == rows[name] for name in found)
    assert {name for name, level in rows.items() if level is not None} >= {*found}


def test_the_threshold_in_force_is_the_first_colour(diagnosis: Diagnosis) -> None:
    limits = {own.name: own.value for own in diagnosis.thresholds}
    levels = [own["value"] for own in json.loads(render_model_explorer(diagnosis))["thresholds"]]
    assert levels == sorted(levels) and levels[0] == limits["quantize_error_sqnr_db"]


def test_a_layer_without_noise_has_no_value(diagnosis: Diagnosis) -> None:
    row = next(row for row in diagnosis.layers if row.validation.accumulated.sqnr_db is not None)
    errors = row.validation.accumulated.model_copy(update={"sqnr_db": float("inf")})
    clean = row.model_copy(update={"validation": row.validation.model_copy(update={"accumulated": errors})})
    others = [clean if each is row else each for each in diagnosis.layers]
    text = render_model_explorer(diagnosis.model_copy(update={"layers": tuple(others)}))
    assert (row.quantized_name or row.name) not in json.loads(text, parse_constant=refuse)["results"]
