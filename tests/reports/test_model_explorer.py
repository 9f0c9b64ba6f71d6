"""Node data for Model Explorer, held against a schema of its format."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.tiers import others_nightly

import quantmedic
from quantmedic.demo import patient
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.machines.model_explorer import render_model_explorer

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

RECORDINGS = Path(__file__).parents[1] / "recordings"
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
        "showExpandedSummaryOnGroupNode": {"type": "boolean"},
        "showLabelCountColumnsInChildrenStatsTable": {"type": "boolean"},
    },
}


def refuse(literal: str) -> float:
    raise AssertionError(f"{literal} is no JSON")


def test_it_is_node_data(subtests: pytest.Subtests, request: pytest.FixtureRequest) -> None:
    for name in ["diagnosis", "proven", "healthy", "hostile"]:
        with subtests.test(name=name):
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


def laid_over(name: str) -> tuple[Path, str]:
    """A quantized model, and the node data of its diagnosis."""
    if name == "int8.onnx":
        (float_model, model), data = patient()
        found = quantmedic.diagnose(float_model, model, samples=32, prove=None, **data)
        return Path(model), render_model_explorer(found)
    pytest.importorskip("ai_edge_litert")
    model = RECORDINGS / "litert" / name
    images = np.random.default_rng(0).normal(size=(8, 96, 96, 1)).astype(np.float32)
    found = quantmedic.diagnose(model.with_suffix(".float32.tflite"), model, representative=images)
    return model, render_model_explorer(found)


@pytest.mark.thorough
@pytest.mark.parametrize("name", others_nightly(["image_example1.tflite", "int8.onnx"]))
def test_every_value_belongs_to_a_node_that_the_viewer_names(name: str) -> None:
    """As it was recorded, and where Model Explorer is installed, as its classes and adapters say."""
    model, text = laid_over(name)
    own = json.loads(text)
    nodes = json.loads((RECORDINGS / "model_explorer" / "nodes.json").read_text(encoding="utf-8"))[model.name]
    known = {*nodes.get("id", ()), *nodes.get("tensor_name", ())}
    assert len(own["results"]) >= 8 and {*own["results"]} <= known
    builder = pytest.importorskip("model_explorer.node_data_builder")
    dacite = pytest.importorskip("dacite")
    held = dacite.from_dict(builder.GraphNodeData, own, dacite.Config(strict=True))
    written = json.loads(held.to_json_string())
    assert {key: written[key] for key in own} == own
    adapter, utils = adapter_of(model), pytest.importorskip("model_explorer.utils")
    found = utils.convert_adapter_response(adapter.convert(str(model), {}))
    graphs = [*found.get("graphs", ()), *(g for each in found.get("graphCollections", ()) for g in each["graphs"])]
    every = [node for graph in graphs for node in graph["nodes"]]
    pairs = [pair for node in every for output in node.get("outputsMetadata", ()) for pair in output["attrs"]]
    named = {node["id"] for node in every} | {pair["value"] for pair in pairs if pair["key"] == "tensor_name"}
    assert {*own["results"]} <= named


def adapter_of(model: Path) -> Any:
    """What reads such a model for the viewer."""
    if model.suffix == ".onnx":
        return pytest.importorskip("model_explorer_onnx.main").ONNXAdapter()
    pytest.importorskip("ai_edge_model_explorer_adapter")
    return pytest.importorskip("model_explorer.builtin_tflite_flatbuffer_adapter").BuiltinTfliteFlatbufferAdapter()
