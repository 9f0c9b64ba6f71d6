"""Encodings and calibration caches that leave activations of the model out."""

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
from builders.onnx_models import Net, dynamic, random, save_pair, static
from onnxruntime.quantization import QuantFormat

import quantmedic
from quantmedic.engine.case.facts import CoverageFacts
from quantmedic.engine.case.records import Case

DATA = random(3, 32, 3, 8, 8)
ENCODING = {"bitwidth": 8, "dtype": "int", "is_symmetric": "False", "min": -1.0, "max": 1.55, "offset": -100}
#: What onnxruntime gives a grid; what only moves values and what only a ReLU reads has none of its own in encodings.
NAMES = ("image", "act0", "act1", "sum", "pooled", "scores")


def network() -> onnx.ModelProto:
    net = Net()
    x = net.input("image", ["n", 3, 8, 8])
    for k in range(2):
        weight = random(k, 8, 3 if k == 0 else 8, 3, 3, scale=0.3)
        y, x = (
            x,
            net.add("Relu", net.conv(x, weight, random(7 + k, 8), out=f"conv{k}", pads=[1, 1, 1, 1]), out=f"act{k}"),
        )
    x = net.add("Add", x, y, out="sum")
    x = net.add("Flatten", net.add("GlobalAveragePool", x, out="pooled"), out="flat")
    net.output(net.add("Softmax", net.add("MatMul", x, net.const("w", random(9, 8, 5)), out="scores"), out="shares"))
    return net.model()


def aimet(folder: Path, names: Iterable[str], floats: Iterable[str] = ()) -> Path:
    own: dict[str, Any] = {name: [{**ENCODING, "scale": 0.01}] for name in names}
    own |= {name: [{"bitwidth": 16, "dtype": "float"}] for name in floats}
    path = folder / "model.encodings"
    path.write_text(
        json.dumps({"version": "0.6.1", "activation_encodings": own, "param_encodings": {"w": own["image"]}})
    )
    return path


def aimet_1(folder: Path, names: Iterable[str]) -> Path:
    entry = {"bw": 8, "dtype": "INT", "enc_type": "PER_TENSOR", "is_sym": False, "offset": [-100], "scale": [0.01]}
    path = folder / "model1.encodings"
    own = [{"name": name, **entry} for name in names]
    path.write_text(json.dumps({"version": "1.0.0", "activation_encodings": own, "param_encodings": []}))
    return path


def tensorrt(folder: Path, names: Iterable[str]) -> Path:
    lines = [f"{name}: {struct.pack('>f', 0.01).hex()}" for name in names]
    path = folder / "trt.cache"
    path.write_text(
        "\n".join(("TRT-8601-EntropyCalibration2", *lines, "(Unnamed Layer* 5) [Constant]_output: 3c010a14"))
    )
    return path


def onnxruntime_cache(folder: Path, names: Iterable[str]) -> Path:
    path = folder / "calibration.cache"
    path.write_text("".join(f"{name} 1.5\n" for name in names))
    return path


WRITERS = (aimet, aimet_1, tensorrt, onnxruntime_cache)


def collected(folder: Path, file: Path, **options: Any) -> Case:
    paths = save_pair(folder, network(), static(network(), {"image": DATA}, folder, **options))
    return quantmedic.collect_static(*paths, settings_files=[file])


def coverage(case: Case) -> CoverageFacts:
    return case.record.model.coverage


def is_named(case: Case) -> bool:
    return "S031" in {rule for cause in quantmedic.judge(case).causes for rule in cause.rules}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("options", [{}, {"quant_format": QuantFormat.QOperator}], ids=["qdq", "qoperator"])
def test_files_that_list_all_are_healthy(tmp_path: Path, writer: Any, options: Mapping[str, Any]) -> None:
    case = collected(tmp_path, writer(tmp_path, NAMES), **options)
    assert coverage(case).unrecorded == 0 and coverage(case).recorded_share == 1
    assert not is_named(case)


@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_left_out_is_named_and_counted(tmp_path: Path, writer: Any) -> None:
    case = collected(tmp_path, writer(tmp_path, [name for name in NAMES if name not in ("sum", "act1")]))
    found = coverage(case)
    assert (found.unrecorded, found.unrecorded_names) == (2, ("act1", "sum"))
    assert is_named(case)
    (cause,) = (cause for cause in quantmedic.judge(case).causes if "S031" in cause.rules)
    assert cause.severity == "low" and "act1, sum" in cause.message


def test_what_is_declared_as_float_is_listed(tmp_path: Path) -> None:
    case = collected(tmp_path, aimet(tmp_path, NAMES[:-2], floats=NAMES[-2:]))
    assert coverage(case).unrecorded == 0 and not is_named(case)


def test_names_of_its_own_may_be_the_ones_that_are_missing(tmp_path: Path) -> None:
    case = collected(tmp_path, aimet(tmp_path, [*NAMES[:-1], "classifier"]))
    assert coverage(case).unrecorded == 0 and not is_named(case)


def test_a_file_of_another_model_is_not_judged_by_what_it_lacks(tmp_path: Path) -> None:
    assert not is_named(collected(tmp_path, aimet(tmp_path, ["image"])))


def test_an_input_of_a_relu_needs_no_grid_where_its_output_has_one(tmp_path: Path) -> None:
    """With symmetric activations, onnxruntime rounds before the ReLU and behind it; encodings list the latter."""
    case = collected(tmp_path, aimet(tmp_path, NAMES), extra_options={"ActivationSymmetric": True})
    assert coverage(case).unrecorded == 0 and not is_named(case)


def test_overrides_list_only_what_they_change(tmp_path: Path) -> None:
    path = tmp_path / "options.json"
    path.write_text(json.dumps({"TensorQuantOverrides": {name: [{"rmin": -1.0, "rmax": 1.0}] for name in NAMES[:4]}}))
    assert coverage(collected(tmp_path, path)) == CoverageFacts()


def test_nothing_is_known_of_a_model_that_rounds_no_activation(tmp_path: Path) -> None:
    paths = save_pair(tmp_path, network(), dynamic(network(), tmp_path))
    case = quantmedic.collect_static(*paths, settings_files=[aimet(tmp_path, NAMES[:4])])
    assert coverage(case) == CoverageFacts() and not is_named(case)


def test_files_alone_have_no_graph_to_hold_them_against(tmp_path: Path) -> None:
    assert coverage(quantmedic.import_files(aimet(tmp_path, NAMES[:4]))) == CoverageFacts()
