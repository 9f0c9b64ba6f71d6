"""Encodings and calibration caches that leave activations of the model out."""

import json
import struct
from collections.abc import Iterable, Sequence
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


WRITERS = (aimet, aimet_1, tensorrt)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    return save_pair(folder, network(), static(network(), {"image": DATA}, folder))


def coverage(case: Case) -> CoverageFacts:
    return case.record.model.coverage


def is_named(case: Case) -> bool:
    return "S031" in {rule for cause in quantmedic.judge(case).causes for rule in cause.rules}


@pytest.mark.thorough
def test_files_that_list_all_are_healthy_in_every_format(tmp_path: Path) -> None:
    """With symmetric activations, onnxruntime rounds before the ReLU and behind it; encodings list the latter."""
    symmetric = {"extra_options": {"ActivationSymmetric": True}}
    forms: list[dict[str, Any]] = [{}, {"quant_format": QuantFormat.QOperator}, symmetric]
    for options in forms:
        paths = save_pair(tmp_path, network(), static(network(), {"image": DATA}, tmp_path, **options))
        for writer in WRITERS[:1] if options == symmetric else WRITERS:
            case = quantmedic.collect_static(*paths, settings_files=[writer(tmp_path, NAMES)])
            assert (coverage(case).unrecorded, coverage(case).recorded_share) == (0, 1), (writer, options)
        assert not is_named(case)


def test_what_is_left_out_is_named_and_counted_in_every_format(pair: tuple[Path, Path], tmp_path: Path) -> None:
    for writer in WRITERS:
        file = writer(tmp_path, [name for name in NAMES if name not in ("sum", "act1")])
        case = quantmedic.collect_static(*pair, settings_files=[file])
        assert (coverage(case).unrecorded, coverage(case).unrecorded_names) == (2, ("act1", "sum")), writer
    (cause,) = (cause for cause in quantmedic.judge(case).causes if "S031" in cause.rules)
    assert cause.severity == "low" and "act1, sum" in cause.message


def test_what_is_no_gap(pair: tuple[Path, Path], tmp_path: Path) -> None:
    listed: dict[str, tuple[Sequence[str], Sequence[str]]] = {
        "declared as float": (NAMES[:-2], NAMES[-2:]),
        "by a name of its own": ((*NAMES[:-1], "classifier"), ()),
        "of another model": (("image",), ()),
    }
    for what, (names, floats) in listed.items():
        case = quantmedic.collect_static(*pair, settings_files=[aimet(tmp_path, names, floats)])
        assert not is_named(case), what
        assert coverage(case).unrecorded == 0 or what == "of another model", what


def test_nothing_is_known_where_there_is_nothing_to_compare(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Overrides list only what they change; dynamic models round no activation; files alone have no graph."""
    path = tmp_path / "options.json"
    path.write_text(json.dumps({"TensorQuantOverrides": {name: [{"rmin": -1.0, "rmax": 1.0}] for name in NAMES[:4]}}))
    overrides = quantmedic.collect_static(*pair, settings_files=[path])
    file = aimet(tmp_path, NAMES[:4])
    changing = quantmedic.collect_static(
        *save_pair(tmp_path, network(), dynamic(network(), tmp_path)), settings_files=[file]
    )
    for case in (overrides, changing, quantmedic.import_files(file)):
        assert coverage(case) == CoverageFacts() and not is_named(case)
