"""Tables that were read in another way for calibration, and what is no quantizer's work: small nets, no labels."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.field_patients import diagnose, quantize
from builders.onnx_models import Array, Net, random
from onnx import helper, numpy_helper

from quantmedic.engine.contract.diagnosis import Diagnosis

pytestmark = pytest.mark.thorough

MEANS = np.linspace(-2.0, 2.0, 8, dtype=np.float32)
SPREADS = np.geomspace(0.1, 3.0, 8)[[3, 0, 6, 1, 7, 4, 2, 5]].astype(np.float32)


def rows(seed: int, n: int) -> Array:
    """Rows of eight columns, each with a mean and a spread of its own."""
    return (random(seed, n, 8) * SPREADS + MEANS).astype(np.float32)


def network(width: int = 16) -> onnx.ModelProto:
    """Two layers that standardize the columns first, as if trained on them."""
    net = Net()
    net.input("table", ["n", 8])
    net.const("w1", (random(1, 8, width) / SPREADS[:, None]).astype(np.float32))
    net.const("w2", random(2, width, 4))
    net.add("MatMul", "table", "w1", out="mixed")
    net.add("Relu", "mixed", out="hidden")
    net.output(net.add("MatMul", "hidden", "w2", out="scores"), shape=["n", 4])
    return net.model()


def calibrated_on(table: Array, folder: Path, validation: Array | None = None) -> Diagnosis:
    model, validation = network(), rows(5, 64) if validation is None else validation
    quantized = quantize(model, {"table": table}, folder)
    return diagnose(model, quantized, {"table": table}, {"table": validation}, folder, attribution=True)


def standardized(table: Array) -> Array:
    return (table - MEANS) / SPREADS


def measured(values: Array) -> Array:
    return (values * SPREADS + MEANS).astype(np.float32)


def judged(model: onnx.ModelProto, quantized: onnx.ModelProto, folder: Path) -> Diagnosis:
    return diagnose(model, quantized, {"table": rows(4, 256)}, {"table": rows(5, 64)}, folder, attribution=True)


def named(diagnosis: Diagnosis) -> list[tuple[str, tuple[str, ...]]]:
    return [(cause.cause, cause.rules) for cause in diagnosis.causes]


def test_the_right_table_names_nothing_of_the_data(tmp_path: Path) -> None:
    diagnosis = calibrated_on(rows(4, 256), tmp_path)
    assert not [rule for _, own in named(diagnosis) for rule in own if rule.startswith("D")]
    assert diagnosis.datasets[0].relation.constant_channels == 0
    assert diagnosis.datasets[0].relation.channel_scale_mismatch < 1.5


def test_a_column_without_values(tmp_path: Path) -> None:
    table = rows(4, 256)
    table[:, [0, 1, 2, 4, 6]] = 0.0
    diagnosis = calibrated_on(table, tmp_path)
    assert named(diagnosis)[0] == ("preprocessing-mismatch", ("D026",))
    assert diagnosis.datasets[0].relation.channel_reading == "0, 1, 2, 4, 6"


def test_columns_in_another_unit(tmp_path: Path) -> None:
    for factor in (20.0, 0.05):
        table = rows(4, 256)
        table[:, [1, 4]] *= np.float32(factor)
        diagnosis = calibrated_on(table, tmp_path)
        assert named(diagnosis)[0] == ("preprocessing-mismatch", ("D027",))
        relation = diagnosis.datasets[0].relation
        assert relation.channel_reading == "1, 4" and relation.channel_scale_mismatch == pytest.approx(20, rel=0.3)


def test_columns_in_another_order(tmp_path: Path) -> None:
    rank = np.argsort(np.argsort(SPREADS))
    order = np.argsort(rank)[7 - rank]
    diagnosis = calibrated_on(rows(4, 256)[:, order], tmp_path)
    assert named(diagnosis)[0] == ("channel-order-mismatch", ("D028",))
    relation = diagnosis.datasets[0].relation
    assert relation.ordered_channel_distance < 0.2 < 0.5 < relation.channel_distance


@pytest.mark.source("horizon-data-distribution")
def test_rows_that_reach_further_are_a_domain_shift_and_no_poor_range(tmp_path: Path) -> None:
    """Every other representative row is from a storm: the ranges are too wide for the rows in use."""
    stormy = standardized(rows(4, 256))
    stormy[::2] *= 6
    diagnosis = calibrated_on(measured(stormy), tmp_path)
    assert diagnosis.datasets[0].misfit_share > 0.5
    assert named(diagnosis)[0] == ("domain-shift", ("D025",))


def test_rows_without_bursts_are_a_fault_of_the_data_and_no_clipping(tmp_path: Path) -> None:
    """Rows in use are calm but for bursts; the representative ones vary as much throughout, and reach less far."""
    steady, bursts = np.sign(standardized(rows(4, 256))) * 0.7, standardized(rows(5, 64)) * 0.3
    bursts[::10] *= 16
    diagnosis = calibrated_on(measured(steady), tmp_path, measured(bursts))
    assert diagnosis.datasets[0].misfit_share > 0.5
    assert named(diagnosis)[0][0] in ("low-diversity", "domain-shift")


def test_rare_flags_and_long_tails_differ_by_chance(tmp_path: Path) -> None:
    """Flags that no representative row has set, and columns whose deviation a single row makes."""

    def table(seed: int, flagged: int) -> Array:
        values = np.exp(1.5 * random(seed, 64, 8)).astype(np.float32)
        values[:, :3] = 0.0
        values[:flagged, :3] = 1.0
        return values

    relation = calibrated_on(table(1, 0), tmp_path, table(2, 4)).datasets[0].relation
    assert relation.constant_channels == 0 and relation.channel_scale_mismatch < 3


def test_a_clipped_range_is_no_fault_of_the_data(tmp_path: Path) -> None:
    """Twin of the one before: the same rows, and a range that is too narrow for both sets."""
    model, table = network(), rows(4, 256)
    narrow = {"TensorQuantOverrides": {"hidden": [{"rmin": np.float32(0), "rmax": np.float32(2.0)}]}}
    quantized = quantize(model, {"table": table}, tmp_path, extra_options=narrow)
    diagnosis = judged(model, quantized, tmp_path)
    assert diagnosis.datasets[0].misfit_share < 0.2
    assert "domain-shift" not in [cause for cause, _ in named(diagnosis)]


def test_normalized_in_the_graph_too(tmp_path: Path) -> None:
    """The converter built a shift and a scale in, and the application goes on normalizing."""
    model, table = network(), rows(4, 256)
    deployed = onnx.ModelProto()
    deployed.CopyFrom(model)
    for name, value in (("built_in_mean", 0.4), ("built_in_pace", 0.8)):
        deployed.graph.initializer.append(numpy_helper.from_array(np.float32(value), name))
    deployed.graph.node[0].input[0] = "normalized"
    for node in (
        helper.make_node("Mul", ["centred", "built_in_pace"], ["normalized"], name="pace"),
        helper.make_node("Sub", ["table", "built_in_mean"], ["centred"], name="shift"),
    ):
        deployed.graph.node.insert(0, node)
    quantized = quantize(deployed, {"table": table}, tmp_path)
    diagnosis = judged(model, quantized, tmp_path)
    assert "S029" in diagnosis.causes[0].rules and {"shift", "pace"} <= set(diagnosis.causes[0].subjects)


def test_few_damaged_weights_make_most_of_the_error(tmp_path: Path) -> None:
    """A bit that is always set in some cells: the other weights are as they were."""
    model, table = network(64), rows(4, 256)
    quantized = quantize(model, {"table": table}, tmp_path)
    (codes,) = [t for t in quantized.graph.initializer if t.name == "w1_quantized"]
    values = numpy_helper.to_array(codes).copy()
    values.ravel()[[7, 150, 333]] ^= 0x60
    codes.CopyFrom(numpy_helper.from_array(values, codes.name))
    diagnosis = judged(model, quantized, tmp_path)
    assert named(diagnosis)[0] == ("foreign-weights", ("W011",))


def test_an_output_that_loses_the_axis_of_a_single_sample_is_compared(tmp_path: Path) -> None:
    """Squeeze without axes makes a number of one sample: it was left out, and any noise there passed."""
    net = Net()
    net.input("table", ["n", 8])
    net.const("w1", random(1, 8, 1))
    net.add("MatMul", "table", "w1", out="mixed")
    net.output(net.add("Squeeze", "mixed", out="score"), shape=None)
    model, table = net.model(), rows(4, 256)
    quantized = quantize(model, {"table": table}, tmp_path)
    (weight,) = [t for t in quantized.graph.initializer if t.name == "w1_scale"]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(0.5), weight.name))
    diagnosis = diagnose(model, quantized, {"table": table}, {"table": rows(5, 65)}, tmp_path)
    assert diagnosis.outputs[0].affine.slope == pytest.approx(0.5, rel=0.1)
    assert diagnosis.verdict == "degraded"
