"""Our table against what TensorFlow's QuantizationDebugger recorded of the same files and samples."""

import csv
import json
from typing import Any

import numpy as np
import pytest
from builders.recordings import RECORDINGS

import quantmedic
from quantmedic.engine.contract.searches import DebuggerLayer, DebuggerRecord
from quantmedic.reports.machines.spreadsheets import debugger_csv

DATA = RECORDINGS / "debugger"
PAIR = (DATA / "float.tflite", DATA / "int8.tflite")
#: The debugger compares it with itself in int8.
POOL = "functional_1/pool_1/AvgPool"
#: Of a step. The recorded figures are float32, and TensorFlow's float kernels sum in another order than onnxruntime's:
#: the largest difference found is 7e-6 steps.
CLOSE = 2e-5


def mean_abs_error(difference: Any) -> Any:
    return np.mean(np.abs(difference))


def correlation(floats: Any, codes: Any, scale: Any, zero_point: Any) -> Any:
    return np.corrcoef(floats.flatten(), (codes.flatten() - zero_point) * scale)[0, 1]


def output_rmse(floats: Any, quantized: Any) -> Any:
    return np.sqrt(np.mean((floats[0] - quantized[0]) ** 2))


@pytest.fixture(scope="module")
def record() -> DebuggerRecord:
    return quantmedic.search(
        "debugger",
        *PAIR,
        validation=DATA / "data.npz",
        layer_metrics={"mean_abs_error": mean_abs_error},
        pair_metrics={"correlation": correlation},
        output_metrics={"output_rmse": output_rmse},
        threads=1,
    )


def recorded() -> list[dict[str, str]]:
    return list(csv.DictReader((DATA / "layers.csv").read_text().splitlines()))


@pytest.mark.source("litert-csv")
def test_columns_and_rows_are_the_recorded_ones(record: DebuggerRecord) -> None:
    recorded_heads = (DATA / "layers.csv").read_text().splitlines()[0]
    assert debugger_csv(record).splitlines()[0] == f"{recorded_heads},range,rmse/scale"
    rows = recorded()
    assert [layer.tensor_name for layer in record.layers] == [row["tensor_name"] for row in rows]
    assert [layer.op_name for layer in record.layers] == [row["op_name"] for row in rows]
    assert [layer.zero_point for layer in record.layers] == [int(row["zero_point"]) for row in rows]
    assert [np.float32(layer.scale) for layer in record.layers] == [np.float32(row["scale"]) for row in rows]
    # numbers of the quantized file, where the debugger's are those of its debug model
    assert [layer.tensor_idx for layer in record.layers] == list(range(13, 23))


@pytest.mark.source("litert-metrics")
def test_figures_equal_the_recorded_ones(record: DebuggerRecord) -> None:
    departing = {}
    for layer, row in zip(record.layers, recorded(), strict=True):
        for name, value in layer.metrics.items():
            unit = layer.scale**2 if name == "mean_squared_error" else layer.scale
            if row["tensor_name"] != POOL and value != pytest.approx(float(row[name]), rel=CLOSE, abs=CLOSE * unit):
                departing[row["op_name"], name] = value, row[name]
    assert not departing


def test_pooling_is_compared_with_floats(record: DebuggerRecord) -> None:
    """TensorFlow 2.21 computes the reference of operators that keep their grid in int8: it finds no error at all."""
    (row,) = [row for row in recorded() if row["tensor_name"] == POOL]
    assert float(row["max_abs_error"]) < 1e-6
    (layer,) = [layer for layer in record.layers if layer.tensor_name == POOL]
    assert 0.25 < layer.rmse_over_scale < 0.33 and layer.metrics["max_abs_error"] <= 0.5001 * layer.scale


@pytest.mark.source("litert-output-metrics")
def test_outputs_are_the_recorded_ones(record: DebuggerRecord) -> None:
    expected = json.loads((DATA / "outputs.json").read_text())
    assert record.outputs == pytest.approx(expected, rel=1e-6)


@pytest.mark.thorough
def test_the_step_error_of_a_case_is_the_same(record: DebuggerRecord) -> None:
    case = quantmedic.collect(*PAIR, validation=DATA / "data.npz", step_error=True, threads=1)
    found = {tensor.float_name: tensor.data.step for tensor in quantmedic.inspect(case).facts.tensors}
    layers: list[DebuggerLayer] = [layer for layer in record.layers if layer.metrics["mean_squared_error"] > 0]
    assert len(layers) == 9
    for layer in layers:
        step = found[layer.tensor_name]
        assert step.mse == pytest.approx(layer.metrics["mean_squared_error"], rel=1e-4)
        assert step.rmse_over_scale == pytest.approx(layer.rmse_over_scale, rel=1e-4)


@pytest.mark.thorough
@pytest.mark.source("litert-many-denylists")
def test_denylists_of_litert_files() -> None:
    """On the translation, several at once: with everything in float the float model's outputs are left."""
    every = ",".join(row["tensor_name"] for row in recorded())
    found = quantmedic.search(
        "debugger", *PAIR, validation=DATA / "data.npz", threads=1, denylists=["suspected", every]
    )
    before, some, all_of_them = (each.outcome for each in found.denylists)
    assert before is not None and some is not None and all_of_them is not None
    assert before.sqnr_db < some.sqnr_db < all_of_them.sqnr_db
    assert len(found.denylists[1].layers) == len(found.suspected)
