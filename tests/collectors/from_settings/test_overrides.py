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
from quantmedic.reports.sections.asked import asked_lines, told_text
from quantmedic.reports.write import render_markdown

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


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A pair of which nothing was asked: all in 8 bits."""
    folder = tmp_path_factory.mktemp("plain")
    return save_pair(folder, network(), static(network(), {"image": DATA}, folder))


def held(pair: tuple[Path, Path], folder: Path, content: dict[str, Any], name: str = "config.json") -> Case:
    """The pair, held against a file of this content."""
    (folder / name).write_text(json.dumps(content, default=str))
    return quantmedic.collect_static(*pair, settings_files=[folder / name])


def of_ort(**asked: Any) -> dict[str, Any]:
    """A configuration of onnxruntime."""
    return {"calibrate_method": "MinMax", "quant_format": "QDQ", **asked}


def overrides(case: Case) -> OverrideFacts:
    return case.record.model.overrides


def is_named(case: Case) -> bool:
    return "S032" in {rule for cause in quantmedic.judge(case).causes for rule in cause.rules}


FLOAT = {"nodes_to_exclude": ["/body/conv1/Conv", "/body/Constant", "/body/Reshape", "act1"]}
WIDE = {"extra_options": {"TensorQuantOverrides": {"pooled": [{"quant_type": QuantType.QUInt16}]}}}
CONVERTED = {
    "extra_options": {
        "TensorQuantOverrides": {
            "act0": [{"quant_type": QuantType.QUInt16, "convert": {"quant_type": QuantType.QUInt8}}]
        }
    }
}
TYPES = {"op_types_to_quantize": ["Conv", "Relu"]}


@pytest.mark.thorough
def test_what_was_done_is_no_finding(tmp_path: Path) -> None:
    """Nodes that are folded or moved into others are in the float model, too."""
    done: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (FLOAT, {}),
        (FLOAT, {"quant_format": QuantFormat.QOperator}),
        (WIDE, {"per_channel": True}),
        (TYPES, {}),
        (CONVERTED, {}),
        ({"per_channel": True}, {}),
    ]
    for asked, more in done:
        pair = save_pair(tmp_path, network(), static(network(), {"image": DATA}, tmp_path, **asked, **more))
        case = held(pair, tmp_path, of_ort(**asked))
        if asked in (FLOAT, WIDE, TYPES):
            assert (overrides(case).asked or 0) > 0 and overrides(case).without_effect == 0, (asked, more)
        else:  # several types of one tensor, and nothing of a single layer
            assert overrides(case) == OverrideFacts(), asked
        assert not is_named(case)


def test_what_was_not_done_is_named(plain: tuple[Path, Path], tmp_path: Path) -> None:
    """onnxruntime passes over a name that matches nothing."""
    tensors = {"pooled": [{"quant_type": QuantType.QUInt16}], "w": [{"quant_type": QuantType.QInt4}]}
    asked: list[tuple[dict[str, Any], set[str]]] = [
        (
            {"nodes_to_exclude": ["/head/Matmul"]},
            {"/head/Matmul is no name in either model, did you mean /head/MatMul?"},
        ),
        (
            {"nodes_to_exclude": ["/head/MatMul"]},
            {"/head/MatMul was to stay in float, and its weights have 8 bits"},
        ),
        (
            {"extra_options": {"TensorQuantOverrides": tensors}},
            {"pooled was to have 16 bits, and has 8", "w was to have 4 bits, and has 8"},
        ),
        (
            {"op_types_to_quantize": ["Conv"]},
            {"MatMul was not to be quantized, and the weights of /head/MatMul have 8 bits"},
        ),
    ]
    for options, reasons in asked:
        case = held(plain, tmp_path, of_ort(**options))
        assert (set(overrides(case).reasons or ()), overrides(case).without_effect) == (reasons, len(reasons))
        assert is_named(case)


def test_the_report_shows_what_was_asked_beside_what_is_there(tmp_path: Path) -> None:
    """Those that differ come first; what has no weights cannot tell whether it stayed in float."""
    own = {"pooled": [{"quant_type": QuantType.QUInt16}], "/head/MatMul": []}
    asked = {"nodes_to_exclude": ["/body/conv0/Conv", "act1"], "extra_options": {"TensorQuantOverrides": own}}
    done = static(network(), {"image": DATA}, tmp_path, nodes_to_exclude=["/body/conv0/Conv"])
    case = held(save_pair(tmp_path, network(), done), tmp_path, of_ort(**asked))
    lines = asked_lines(quantmedic.judge(case).layers)
    rows = {line.name: (line.asked, line.shown, line.differs) for line in lines}
    assert told_text(lines) == "of 2 comparable layers, 1 with another setting than requested"
    assert next(iter(rows.values())) == ("output of 16 bits", "output of 8 bits", True)
    assert rows["/body/conv0/Conv"] == ("weights in float", "weights in float", False)
    assert {line.origin for line in lines} == {"config.json"}
    assert all("--device-tensors" in line.device for line in lines)


def test_recorded_ranges_stand_beside_those_of_the_model(plain: tuple[Path, Path], tmp_path: Path) -> None:
    own = {"pooled": [{"rmin": -1.0, "rmax": 3.0}]}
    diagnosis = quantmedic.judge(held(plain, tmp_path, of_ort(extra_options={"TensorQuantOverrides": own})))
    (line,) = asked_lines(diagnosis.layers)
    assert line.asked == "range -1 … 3" and line.shown.endswith(" times as wide") and line.differs
    markdown = render_markdown(build_context(diagnosis, {}))
    assert "Of 1 comparable layer, 1 with another setting than requested." in markdown
    assert f"| {line.asked} | **{line.shown}** |" in markdown


def test_names_of_other_layers_are_no_contradiction_of_dynamic_quantization(tmp_path: Path) -> None:
    pair = save_pair(tmp_path, network(), dynamic(network(), tmp_path, nodes_to_exclude=["/head/MatMul"]))
    assert overrides(held(pair, tmp_path, of_ort(nodes_to_exclude=["/head/MatMul"]))).without_effect == 0


def test_operators_of_neural_compressor(plain: tuple[Path, Path], tmp_path: Path) -> None:
    """Met, quantized all the same, misspelt, and named by a pattern."""
    granularity, left = {"weight": {"granularity": ["per_tensor"]}}, {"weight": {"dtype": ["fp32"]}}
    asked = [("/head/MatMul", granularity), ("/head/MatMul", left), ("/haed/MatMul", granularity)]
    asked.append(("/head/(Mat)?Mul", granularity))
    cases = [held(plain, tmp_path, {"approach": "static", "op_name_dict": dict([own])}) for own in asked]
    assert [overrides(case).without_effect or 0 for case in cases] == [0, 1, 1, 0]


def test_a_measured_case_that_files_are_added_to_later_has_no_names_to_look_up(
    plain: tuple[Path, Path], tmp_path: Path
) -> None:
    quantmedic.save_case(quantmedic.collect_static(*plain), tmp_path / "pair.case")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(of_ort(nodes_to_exclude=["nowhere"])))
    assert overrides(quantmedic.import_files(tmp_path / "pair.case", file)).without_effect == 0


def test_overrides_of_qualcomm(plain: tuple[Path, Path], tmp_path: Path) -> None:
    for bits, names in ((8, []), (16, ["pooled was to have 16 bits, and has 8"])):
        asked = {"activation_encodings": {"pooled": [{"bitwidth": bits, "dtype": "int"}]}, "param_encodings": {}}
        case = held(plain, tmp_path, asked)
        assert overrides(case).asked == 1 and list(overrides(case).reasons or ()) == names
        assert is_named(case) == bool(names)


def test_bits_that_encodings_of_aimet_record(plain: tuple[Path, Path], tmp_path: Path) -> None:
    """Ranges are as in the model, and only the bits tell. Names that joined layers no longer have are no finding."""
    own = {"is_symmetric": "False", "min": -1.0, "max": 1.0, "dtype": "int"}
    for output, weights, channels in ((8, 8, 1), (16, 8, 1), (8, 4, 1), (8, 4, 5)):
        content = {
            "activation_encodings": {name: [{**own, "bitwidth": output}] for name in ("pooled", "joined_away")},
            "param_encodings": {"w": [{**own, "bitwidth": weights}] * channels},
        }
        case = held(plain, tmp_path, content, "model.encodings")
        told = [f"w was to have {weights} bits, and has 8"] if weights != 8 else []
        told += [f"pooled was to have {output} bits, and has 8"] if output != 8 else []
        assert overrides(case).asked == 2 and list(overrides(case).reasons or ()) == told
        assert is_named(case) == bool(told)
