"""What two files tell without data, against what the same two tell when they are run."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders.onnx_models import (
    Net,
    Recipe,
    attention_net,
    branch_net,
    conv_net,
    dynamic,
    images,
    qdq,
    random,
    residual_net,
    save_pair,
    static,
    token_net,
    two_way_net,
)
from builders.tiers import others_nightly
from numpy.typing import NDArray
from onnx import helper
from onnxruntime.quantization import QuantFormat

import quantmedic
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError

Array = NDArray[Any]
X = images(13)
NETS: dict[str, tuple[onnx.ModelProto, dict[str, Array]]] = {
    "conv": (conv_net(), {"image": X}),
    "conv of one image": (conv_net(batch=1), {"image": X[:1]}),
    "residual": (residual_net(), {"image": X}),
    "branch": (branch_net(), {"image": X}),
    "two way": (two_way_net(), {"a": random(1, 13, 4), "b": random(2, 13, 6)}),
    "token": (token_net(), {"ids": np.random.default_rng(0).integers(0, 20, (13, 6))}),
    "attention": (attention_net(), {"x": random(1, 13, 5, 8)}),
}
RECIPES = {
    "uint8": Recipe(),
    "int8 per channel": Recipe(activation=np.int8, per_channel=True),
    "float weights": Recipe(weights="float"),
    "int16": Recipe(activation=np.int16, opset=21),
}
#: What only running the models tells.
OF_DATA = (
    *("datasets", "metric", "metric_higher_is_better", "notices", "run", "simulation", "loss_budget"),
    *(
        "model.float_rerun_difference",
        "model.integer_kernel_noise",
        "model.exact_kernel_noise",
        "model.kernels_avoided_by",
        "model.runtime",
    ),
    "tensors[].bucketed",
)


def differences(mine: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """Paths of the fields in which two records differ; those of data are left out."""
    if path in OF_DATA:
        return
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        for key in sorted(mine.keys() | theirs.keys()):
            yield from differences(mine.get(key), theirs.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(mine, list | tuple) and len(mine) == len(theirs):
        for a, b in zip(mine, theirs, strict=True):
            yield from differences(a, b, f"{path}[]")
    elif mine != theirs and not (isinstance(mine, float) and isinstance(theirs, float) and math.isnan(mine + theirs)):
        yield f"{path}: {mine!r} without data, {theirs!r} with"


def agree(mine: Case, theirs: Case) -> None:
    assert list(differences(mine.record.model_dump(), theirs.record.model_dump())) == []
    assert mine.weights.keys() == theirs.weights.keys()
    for place, arrays in mine.weights.items():
        for name, value in vars(arrays).items():
            np.testing.assert_array_equal(value, getattr(theirs.weights[place], name), err_msg=name)


@pytest.mark.thorough
@pytest.mark.parametrize("name", others_nightly(NETS))
def test_files_tell_the_same_with_and_without_data(name: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    net, feed = NETS[name]
    for number, recipe in enumerate(RECIPES if name in ("residual", "attention") else ["int8 per channel"]):
        with subtests.test(recipe):
            folder = tmp_path / str(number)
            folder.mkdir()
            paths = save_pair(folder, net, qdq(net, feed, RECIPES[recipe]))
            agree(quantmedic.collect_static(*paths, threads=1), quantmedic.collect(*paths, validation=feed, threads=1))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["QOperator", "dynamic"])
def test_integer_operators_and_grids_of_run_time(kind: str, tmp_path: Path) -> None:
    net, feed = NETS["residual"]
    if kind == "dynamic":
        made = dynamic(net, tmp_path)
    else:
        made = static(net, feed, tmp_path, quant_format=QuantFormat.QOperator, per_channel=True)
    paths = save_pair(tmp_path, net, made)
    mine, theirs = quantmedic.collect_static(*paths, threads=1), quantmedic.collect(*paths, validation=feed, threads=1)
    agree(mine, theirs)
    assert "integer" in {op.executed_as for op in mine.record.operators if op.is_compute}


def test_what_rests_on_data_is_missing(tmp_path: Path) -> None:
    net, feed = NETS["conv"]
    case = quantmedic.collect_static(*save_pair(tmp_path, net, qdq(net, feed)))
    record = case.record
    assert case.statistics == {} and record.datasets == {} and record.metric is None
    assert record.run["mode"] == "static" and record.run["float_sha256"]
    missing = ("float_rerun_difference", "integer_kernel_noise")
    assert {getattr(record.model, name) for name in missing} == {None}
    facts = quantmedic.inspect(case).facts
    assert all(layer.degraded is None and layer.output.data.values.count is None for layer in facts.layers)
    assert all(layer.weight_error.sqnr_db is None for layer in facts.layers)
    assert facts.model.harmed is None and facts.model.output_sqnr_db is None and facts.model.nonfinite_in is None
    assert [output.distinct_levels_worst_column for output in facts.outputs] == [None]
    assert facts.without_data


def fused_net() -> onnx.ModelProto:
    """Two layers with an operator between them of which type inference knows nothing."""
    net = Net()
    x = net.input("x", ["n", 8])
    net.const("w1", random(0, 8, 8)), net.const("w2", random(1, 8, 3))
    x = net.add("MatMul", x, "w1", out="a")
    x = net.add("QuickGelu", x, out="b", domain="com.microsoft")
    net.output(net.add("MatMul", x, "w2", out="y"))
    model = net.model()
    if not any(entry.domain == "com.microsoft" for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


def test_tensors_of_unknown_type_are_known_by_their_quantizer(tmp_path: Path) -> None:
    net, feed = fused_net(), {"x": random(2, 13, 8)}
    paths = save_pair(tmp_path, net, qdq(net, feed))
    mine, theirs = quantmedic.collect_static(*paths, threads=1), quantmedic.collect(*paths, validation=feed, threads=1)
    quantizers = [{t.name: t.quantizer for t in case.record.tensors} for case in (mine, theirs)]
    assert quantizers[0] == quantizers[1] and "b" in quantizers[0]


def test_a_model_that_the_runtime_refuses_is_judged_all_the_same(tmp_path: Path) -> None:
    """Its kernels are those of another device."""
    net, feed = NETS["conv"]
    made = qdq(net, feed)
    made.graph.node.insert(0, helper.make_node("Foreign", ["image"], ["elsewhere"], domain="ai.vendor"))
    made.opset_import.append(helper.make_opsetid("ai.vendor", 1))
    paths = save_pair(tmp_path, net, made)
    assert quantmedic.collect(*paths, validation=feed).record.model.failure.refused
    case = quantmedic.collect_static(*paths)
    assert {op.executed_as for op in case.record.operators} == {None}
    assert case.record.model.integer_share is None
    (said,) = (notice for notice in case.record.notices if "kernels" in notice)
    assert paths[1].name in said and str(tmp_path) not in said


def test_models_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    net, feed = NETS["conv"]
    other = NETS["attention"][0]
    with pytest.raises(ModelError, match="do not belong together"):
        quantmedic.collect_static(*save_pair(tmp_path, other, qdq(net, feed)))
    with pytest.raises(ModelError, match="swapped"):
        quantmedic.collect_static(*reversed(save_pair(tmp_path, net, qdq(net, feed))))


@pytest.mark.thorough
def test_external_data_outside_the_folder_are_not_read(tmp_path: Path) -> None:
    net, feed = NETS["conv"]
    (tmp_path / "pair").mkdir()
    paths = save_pair(tmp_path / "pair", net, qdq(net, feed))
    model = onnx.load(paths[1])
    onnx.save(model, paths[1], save_as_external_data=True, location="data.bin", size_threshold=0)
    agree(quantmedic.collect_static(*paths, threads=1), quantmedic.collect(*paths, validation=feed, threads=1))
    (tmp_path / "data.bin").write_bytes((paths[1].parent / "data.bin").read_bytes())
    for location in ("../data.bin", "below/../../data.bin", "/etc/hostname", ""):
        model = onnx.load(paths[1], load_external_data=False)
        for tensor in model.graph.initializer:
            next(entry for entry in tensor.external_data if entry.key == "location").value = location
        onnx.save(model, paths[1])
        with pytest.raises(ModelError, match="outside the model's folder"):
            quantmedic.collect_static(*paths)
