"""Networks of the fault zoo, edited and simulated: a recurrent one and one with attention."""

from pathlib import Path

import onnx
import pytest
from builders.tiers import others_nightly
from builders.trial_bench import Bench, agree
from zoo.networks import NETWORKS
from zoo.patient import healthy

from quantmedic.engine.formulas.change import Targets
from quantmedic.trials.from_onnx.onnx_remedies import left_integer

pytestmark = pytest.mark.thorough

KINDS = ("recalibrate", "best-range", "sixteen-bit", "float", "float-weights", "per-channel-weights", "group-float")


@pytest.mark.parametrize("name", others_nightly(["gru", "vit"]))
def test_edited_network_of_the_zoo_is_as_noisy_as_foretold(tmp_path: Path, name: str) -> None:
    network = NETWORKS[name]
    if not network.available:
        pytest.skip("the network is not installed")
    patient = healthy(network)
    onnx.save(patient.model, tmp_path / "float.onnx")
    onnx.save(patient.quantized(), tmp_path / "int8.onnx")
    inputs = patient.validation[:48]
    data = {patient.model.graph.input[0].name: inputs, **network.columns(inputs)}
    bench = Bench(tmp_path / "float.onnx", tmp_path / "int8.onnx", data)
    half = Targets(bench.every.tensors[::2], bench.every.operators[1::2])
    for kind in KINDS:
        for targets in (bench.every, half) if kind in ("recalibrate", "float") else (bench.every,):
            change = bench.change(kind, targets)
            # As it is written: onnxruntime multiplies float inputs with 8-bit weights at less than full precision.
            assert agree(bench.edited_db(change, plain=True), bench.simulated_db(change)), (kind, len(targets.tensors))
    for kind in ("recalibrate", "best-range", "per-channel-weights"):
        change = bench.change(kind)
        assert left_integer(bench.models, bench.case, bench.edit(change).model, change) == ()
