"""What a configuration asks of single layers, against what onnxruntime made of it."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from builders.onnx_models import Net, dynamic, random, save_pair, static
from onnxruntime.quantization import QuantFormat, QuantType

import quantmedic
from quantmedic.engine.case.facts import OverrideFacts
from quantmedic.engine.case.records import Case
from quantmedic.reports.context import build_context
from quantmedic.reports.markdown import render_markdown
from quantmedic.reports.sections.asked import asked_box

DATA = random(3, 32, 3, 8, 8)


def network() -> onnx.ModelProto:
    net = Net()
    x = net.input("image", ["n", 3, 8, 8])
    for k in range(2):
        weight = random(k, 8, 3 if k == 0 else 8, 3, 3, scale=0.3)
        x = net.conv(x, weight, random(7 + k, 8), out=f"conv{k}", name=f"/body/conv{k}/Conv", pads=[1, 1, 1, 1])
        x = net.add("Relu", x, out=f"act{k}")
    shape = net.add("Constant", out="sides", name="/body/Constant", value_ints=[0, 8])
    x = net.add("Reshape", net.add("GlobalAveragePool", x, out="pooled"), shape, out="flat", name="/body/Reshape")
    net.output(net.add("MatMul", x, net.const("w", random(9, 8, 5)), out="scores", name="/head/MatMul"))
    return net.model()


def collected(folder: Path, asked: dict[str, Any], done: dict[str, Any] | None = None, **more: Any) -> Case:
    """Quantized with ``done``, and judged by a file that says ``asked``."""
    options = {**(asked if done is None else done), **more}
    file = folder / "config.json"
    file.write_text(json.dumps({"calibrate_method": "MinMax", "quant_format": "QDQ", **asked}, default=str))
    paths = save_pair(folder, network(), static(network(), {"image": DATA}, folder, **options))
    return quantmedic.collect_static(*paths, settings_files=[file])


def overrides(case: Case) -> OverrideFacts:
    return case.record.model.overrides


def is_named(case: Case) -> bool:
    return "S032" in {rule for cause in quantmedic.judge(case).causes for rule in cause.rules}


FLOAT = {"nodes_to_exclude": ["/body/conv1/Conv", "/body/Constant", "/body/Reshape", "act1"]}
WIDE = {"extra_options": {"TensorQuantOverrides": {"pooled": [{"quant_type": QuantType.QUInt16}]}}}
TYPES = {"op_types_to_quantize": ["Conv", "Relu"]}


@pytest.mark.parametrize("asked", [FLOAT, WIDE, TYPES], ids=["nodes", "tensors", "types"])
@pytest.mark.parametrize("more", [{}, {"per_channel": True}], ids=["per-tensor", "per-channel"])
def test_what_was_done_is_no_finding(tmp_path: Path, asked: dict[str, Any], more: dict[str, Any]) -> None:
    """Nodes that are folded or moved into others are in the float model, too."""
    case = collected(tmp_path, asked, **more)
    assert (overrides(case).asked or 0) > 0 and overrides(case).without_effect == 0
    assert not is_named(case)


def test_what_was_done_in_integer_operators_is_no_finding(tmp_path: Path) -> None:
    case = collected(tmp_path, FLOAT, quant_format=QuantFormat.QOperator)
    assert overrides(case).without_effect == 0 and not is_named(case)


def test_a_name_that_matches_nothing(tmp_path: Path) -> None:
    """onnxruntime passes over it."""
    case = collected(tmp_path, {"nodes_to_exclude": ["/body/conv1/Conv", "/head/Matmul"]})
    assert (overrides(case).asked, overrides(case).without_effect) == (2, 1)
    assert overrides(case).reasons == ("/head/Matmul is no name in either model, did you mean /head/MatMul?",)
    assert is_named(case)


def test_a_layer_that_was_to_stay_in_float(tmp_path: Path) -> None:
    case = collected(tmp_path, {"nodes_to_exclude": ["/head/MatMul"]}, {})
    assert overrides(case).reasons == ("/head/MatMul was to stay in float, and its weights have 8 bits",)
    assert is_named(case)


def test_a_tensor_and_a_weight_with_other_bits(tmp_path: Path) -> None:
    own = {"pooled": [{"quant_type": QuantType.QUInt16}], "w": [{"quant_type": QuantType.QInt4}]}
    case = collected(tmp_path, {"extra_options": {"TensorQuantOverrides": own}}, {})
    reasons = {"pooled was to have 16 bits, and has 8", "w was to have 4 bits, and has 8"}
    assert set(overrides(case).reasons or ()) == reasons and overrides(case).without_effect == 2


def test_the_report_shows_what_was_asked_beside_what_is_there(tmp_path: Path) -> None:
    """Those that differ come first; what has no weights cannot tell whether it stayed in float."""
    own = {"pooled": [{"quant_type": QuantType.QUInt16}], "/head/MatMul": []}
    asked = {"nodes_to_exclude": ["/body/conv0/Conv", "act1"], "extra_options": {"TensorQuantOverrides": own}}
    box = asked_box(quantmedic.judge(collected(tmp_path, asked, {"nodes_to_exclude": ["/body/conv0/Conv"]})).layers)
    rows = {line.name: (line.asked, line.shown, line.differs) for line in box.lines}
    assert box.told == "of 2 layers that can be compared the model shows 1 otherwise than asked" and box.more == 0
    assert next(iter(rows.values())) == ("output of 16 bits", "output of 8 bits", True)
    assert rows["/body/conv0/Conv"] == ("weights in float", "weights in float", False)
    assert {line.origin for line in box.lines} == {"config.json"}
    assert all("--device-tensors" in line.device for line in box.lines)


def test_recorded_ranges_stand_beside_those_of_the_model(tmp_path: Path) -> None:
    own = {"pooled": [{"rmin": -1.0, "rmax": 3.0}]}
    case = collected(tmp_path, {"extra_options": {"TensorQuantOverrides": own}}, {})
    (line,) = asked_box(quantmedic.judge(case).layers).lines
    assert line.asked == "range -1 … 3" and line.shown.endswith(" times as wide") and line.differs
    markdown = render_markdown(build_context(quantmedic.judge(case), {}))
    assert "the model shows; of 1 layer that can be compared the model shows 1 otherwise than asked:" in markdown
    assert f"| {line.asked} | **{line.shown}** |" in markdown


def test_a_type_that_was_not_to_be_quantized(tmp_path: Path) -> None:
    case = collected(tmp_path, {"op_types_to_quantize": ["Conv"]}, {})
    reason = "MatMul was not to be quantized, and the weights of /head/MatMul have 8 bits"
    assert overrides(case).reasons == (reason,)


def test_a_tensor_that_is_converted_has_several_types(tmp_path: Path) -> None:
    own = {"act0": [{"quant_type": QuantType.QUInt16, "convert": {"quant_type": QuantType.QUInt8}}]}
    case = collected(tmp_path, {"extra_options": {"TensorQuantOverrides": own}})
    assert overrides(case).asked is None and not is_named(case)


def test_nothing_is_asked(tmp_path: Path) -> None:
    assert overrides(collected(tmp_path, {"per_channel": True})) == OverrideFacts()


def test_names_of_other_layers_are_no_contradiction_of_dynamic_quantization(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(
        json.dumps({"calibrate_method": "MinMax", "nodes_to_exclude": ["/head/MatMul"], "quant_format": "x"})
    )
    made = dynamic(network(), tmp_path, nodes_to_exclude=["/head/MatMul"])
    case = quantmedic.collect_static(*save_pair(tmp_path, network(), made), settings_files=[file])
    assert overrides(case).without_effect == 0


@pytest.mark.parametrize(
    "key, float_weights, count",
    [("/head/MatMul", False, 0), ("/head/MatMul", True, 1), ("/haed/MatMul", False, 1), ("/head/(Mat)?Mul", False, 0)],
    ids=["met", "quantized-all-the-same", "misspelt", "pattern"],
)
def test_operators_of_neural_compressor(tmp_path: Path, key: str, float_weights: bool, count: int) -> None:
    said = {"weight": {"dtype": ["fp32"]}} if float_weights else {"weight": {"granularity": ["per_tensor"]}}
    file = tmp_path / "inc.json"
    file.write_text(json.dumps({"approach": "static", "op_name_dict": {key: said}}))
    paths = save_pair(tmp_path, network(), static(network(), {"image": DATA}, tmp_path))
    case = quantmedic.collect_static(*paths, settings_files=[file])
    assert (overrides(case).without_effect or 0) == count and is_named(case) == bool(count)


@pytest.mark.parametrize("regex, count", [("body/conv", 0), ("boddy", 1), (".*", 0), ("b(o*)*x", 0)])
def test_steps_of_a_recipe_look_for_a_part_of_a_name(tmp_path: Path, regex: str, count: int) -> None:
    step = {"regex": regex, "operation": "CONV_2D", "algorithm_key": "no_quantize", "op_config": {}}
    file = tmp_path / "m_recipe.json"
    file.write_text(json.dumps([step]))
    paths = save_pair(tmp_path, network(), static(network(), {"image": DATA}, tmp_path))
    case = quantmedic.collect_static(*paths, settings_files=[file])
    assert (overrides(case).without_effect or 0) == count


def test_a_measured_case_that_files_are_added_to_later_has_no_names_to_look_up(tmp_path: Path) -> None:
    paths = save_pair(tmp_path, network(), static(network(), {"image": DATA}, tmp_path))
    quantmedic.save_case(quantmedic.collect_static(*paths), tmp_path / "pair.case")
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"calibrate_method": "MinMax", "nodes_to_exclude": ["nowhere"], "quant_format": "QDQ"}))
    case = quantmedic.import_files(tmp_path / "pair.case", file)
    assert overrides(case).without_effect == 0


@pytest.mark.parametrize("bits, names", [(8, []), (16, ["pooled was to have 16 bits, and has 8"])])
def test_overrides_of_qualcomm(tmp_path: Path, bits: int, names: list[str]) -> None:
    file = tmp_path / "overrides.json"
    asked = {"activation_encodings": {"pooled": [{"bitwidth": bits, "dtype": "int"}]}, "param_encodings": {}}
    file.write_text(json.dumps(asked))
    paths = save_pair(tmp_path, network(), static(network(), {"image": DATA}, tmp_path))
    case = quantmedic.collect_static(*paths, settings_files=[file])
    assert overrides(case).asked == 1 and list(overrides(case).reasons or ()) == names
    assert is_named(case) == bool(names)


@pytest.mark.parametrize("output, weights", [(8, 8), (16, 8), (8, 4)])
@pytest.mark.parametrize("channels", [1, 5])
def test_bits_that_encodings_of_aimet_record(tmp_path: Path, output: int, weights: int, channels: int) -> None:
    """Ranges are as in the model, and only the bits tell. Names that joined layers no longer have are no finding."""
    own = {"is_symmetric": "False", "min": -1.0, "max": 1.0, "dtype": "int"}
    content = {
        "activation_encodings": {name: [{**own, "bitwidth": output}] for name in ("pooled", "joined_away")},
        "param_encodings": {"w": [{**own, "bitwidth": weights}] * channels},
    }
    file = tmp_path / "model.encodings"
    file.write_text(json.dumps(content))
    paths = save_pair(tmp_path, network(), static(network(), {"image": DATA}, tmp_path))
    case = quantmedic.collect_static(*paths, settings_files=[file])
    told = [f"w was to have {weights} bits, and has 8"] if weights != 8 else []
    told += [f"pooled was to have {output} bits, and has 8"] if output != 8 else []
    assert overrides(case).asked == 2 and list(overrides(case).reasons or ()) == told
    assert is_named(case) == bool(told)
