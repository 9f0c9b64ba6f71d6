"""A layer that is rounded before its activation where others are rounded behind it: named, and nothing else is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from builders.onnx_models import Net, random, save_pair, static
from numpy.typing import NDArray
from onnxruntime.quantization import QuantFormat

import quantmedic
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.diagnosis import Diagnosis

pytestmark = pytest.mark.thorough

Array = NDArray[Any]
DATA = random(3, 64, 3, 8, 8)
LAYERS = 4


def network(
    *, second: int | None = None, output: bool = False, functions: Sequence[str] = ("Relu",), spread: float = 0.0
) -> onnx.ModelProto:
    """Convolutions with activations; what number ``second`` makes is read by a sigmoid too, or is an output.

    ``spread`` lies between its first channel and the others, far below zero.
    """
    net, shared = Net(), ""
    x = net.input("image", ["n", 3, 8, 8])
    for k in range(LAYERS):
        bias = random(20 + k, 8, scale=0.1)
        bias[0] -= spread if k == second else 0
        weight = random(k, 8, 3 if k == 0 else 8, 3, 3, scale=0.3)
        x = net.conv(x, weight, bias, out=f"conv{k}", pads=[1, 1, 1, 1])
        shared = x if k == second else shared
        if functions[0] == "Swish":
            x = net.add("Mul", x, net.add("Sigmoid", x, out=f"gate{k}"), out=f"act{k}")
        else:
            x = net.add(functions[0], x, out=f"act{k}")
    if shared and not output:
        x = net.add("Add", x, net.add("Sigmoid", shared, out="side"), out="sum")
    x = net.add("Flatten", net.add("GlobalAveragePool", x, out="pooled"), out="flat")
    net.output(net.add("MatMul", x, net.const("w", random(9, 8, 5)), out="scores"))
    if output:
        net.output(shared)
    return net.model()


def found(case: Case) -> dict[str, tuple[str, ...]]:
    causes = quantmedic.judge(case).causes
    return {rule: cause.subjects for cause in causes for rule in cause.rules if rule == "G008"}


def collected(folder: Path, model: onnx.ModelProto, **options: Any) -> Case:
    return quantmedic.collect_static(*save_pair(folder, model, static(model, {"image": DATA}, folder, **options)))


def test_a_second_reader_blocks_the_fusion(tmp_path: Path) -> None:
    for output, reader in ((False, "side"), (True, "an output of the network")):
        case = collected(tmp_path, network(second=1, output=output))
        assert found(case) == {"G008": ("conv1",)}
        fusion = next(op.fusion for op in case.record.operators if op.name == "conv1")
        assert (fusion.activation, fusion.alike, fusion.other_readers) == ("Relu", LAYERS, 1)
        assert fusion.also_read_by == reader


def test_what_a_tool_does_everywhere_is_no_exception(tmp_path: Path) -> None:
    """Also where it rounds before every activation: it does not fuse those."""
    for function in ("Relu", "Sigmoid", "HardSigmoid", "LeakyRelu", "Swish", "Tanh"):
        assert found(collected(tmp_path, network(functions=[function]))) == {}, function
    for function in ("Relu", "Swish"):
        case = collected(tmp_path, network(functions=[function]), quant_format=QuantFormat.QOperator)
        assert found(case) == {}, function


def test_a_second_reader_where_nothing_is_fused_is_no_exception(tmp_path: Path) -> None:
    assert found(collected(tmp_path, network(second=1, functions=["Sigmoid"]))) == {}


def test_the_product_of_a_swish_is_part_of_it(tmp_path: Path) -> None:
    case = collected(tmp_path, network(functions=["Swish"]))
    fusions = [op.fusion for op in case.record.operators if op.fusion.activation]
    assert [(own.activation, own.also_read_by) for own in fusions] == [("Sigmoid", "nothing else")] * LAYERS


def test_layers_in_float_have_nothing_that_could_be_blocked(tmp_path: Path) -> None:
    case = collected(tmp_path, network(second=1), nodes_to_exclude=["conv1", "act1", "side"])
    assert found(case) == {}


def diagnosed(folder: Path, spread: float) -> Diagnosis:
    model = network(second=1, spread=spread)
    paths = save_pair(folder, model, static(model, {"image": DATA}, folder, per_channel=True))
    return quantmedic.diagnose(*paths, representative=DATA, validation=DATA, threads=1)


def test_noise_that_it_makes_is_measured(tmp_path: Path) -> None:
    """One channel lies far below zero: a grid that reaches there is coarse for all that passes the ReLU."""
    (cause,) = (found for found in diagnosed(tmp_path, spread=400.0).causes if found.cause == "fusion-blocked")
    assert cause.subjects == ("conv1",)
    (share,) = (each.value for each in cause.evidence if each.fact == "output.source.share")
    assert share > 0.5


def test_where_the_network_is_well_it_stays_a_remark(tmp_path: Path) -> None:
    assert [(cause.rules, cause.severity) for cause in diagnosed(tmp_path, spread=0.0).causes] == [(("G008",), "low")]
