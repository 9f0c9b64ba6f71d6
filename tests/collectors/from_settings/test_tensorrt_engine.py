"""Layers of TensorRT engines: names, types and copies, held against models that onnxruntime quantized.

No engine is built here: the files are in the documented form, as trtexec and the inspector write it.
"""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from builders.onnx_models import Net, random, save_pair, static

import quantmedic
from quantmedic.collectors.toolchain_files.formats import Imported, recognise_format
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.errors import DataError
from quantmedic.reports.context import build_context
from quantmedic.reports.sections.asked import asked_lines, told_text
from quantmedic.reports.write import render_markdown

CONV, ACT, HEAD = "/body/Conv", "/body/Relu", "/head/Gemm"


def kernel(name: str, read: str, tactic: str = "", kind: str = "gemm", nodes: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "Name": name,
        "LayerType": kind,
        "Inputs": [{"Name": "in", "Location": "Device", "Dimensions": [1, 8], "Format/Datatype": read}],
        "Outputs": [{"Name": "out", "Location": "Device", "Dimensions": [1, 8], "Format/Datatype": "Half"}],
        "TacticName": tactic,
        "Metadata": "\x1e".join(f"[ONNX Layer: {node}]" for node in nodes),
    }


def read(folder: Path, *layers: dict[str, Any] | str) -> Imported:
    path = written(folder, *layers)
    return recognise_format(path).read(path)


def written(folder: Path, *layers: dict[str, Any] | str) -> Path:
    path = folder / "layers.json"
    path.write_text(json.dumps({"Layers": list(layers), "Bindings": ["image", "scores"]}))
    return path


#: Nodes by the name of the layer that computes them.
NODES = {
    "conv": ["conv"],
    "conv + bn + relu": ["conv", "bn", "relu"],
    "query || key || value": ["query", "key", "value"],
    "PWN(act)": ["act"],
    "PWN(PWN(act), mul)": ["act", "mul"],
    "conv + PWN(act)": ["conv", "act"],
    "{ForeignNode[/a/Conv.../b/Add]}": ["/a/Conv", "/b/Add"],
    "w + QuantizeLinear_7_quantize_scale_node + conv + relu": ["w", "conv", "relu"],
    "Reformatting CopyNode for Input Tensor 0 to conv + relu": ["conv", "relu"],
}
#: Types that kernels compute with, by the stored type of what they read and their tactic.
DTYPES = {
    ("Int8", ""): "int8",
    ("Thirty-two wide channel vectorized row major Int8 format.", ""): "int8",
    ("Row major linear FP16 format", ""): "half",
    ("Channel major FP32 format where channel % 4 == 0", ""): "float",
    ("FP8", ""): "fp8",
    ("FP8 E4M3", ""): "fp8",
    ("BFloat16", ""): "bfloat16",
    ("Half", "sm80_xmma_gemm_i8f32_i8i32_f32_tn_n"): "int8",
    ("Half", "sm80_xmma_gemm_f16f16_f16f16_f16_nn"): "half",
    ("Float", "sm80_xmma_gemm_f32f32_tf32f32_f32_nn"): "float",
    ("", "sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn"): "fp8",
    ("Int64", ""): "half",
}


def test_names_of_nodes_in_those_of_layers(tmp_path: Path) -> None:
    assert {name: list(read(tmp_path, name).layers) for name in NODES} == NODES


def test_metadata_tells_nodes_better_than_names(tmp_path: Path) -> None:
    layer = kernel("__myl_MulAdd_3", "Half")
    for separator in ("\x1e", "\x1f", " ", ""):
        layer["Metadata"] = separator.join(f"[ONNX Layer: {n}]" for n in ("/a[0]/Mul", "x_QuantizeLinear", "/b/Add"))
        assert list(read(tmp_path, layer).layers) == ["/a[0]/Mul", "/b/Add"], repr(separator)


def test_type_that_a_kernel_computes_with(tmp_path: Path) -> None:
    assert {given: read(tmp_path, kernel("fc", *given)).layers["fc"].dtype for given in DTYPES} == DTYPES


def test_copies_are_counted_beside_what_they_feed(tmp_path: Path) -> None:
    copy = kernel("Reformatting CopyNode for Input Tensor 0 to conv + relu", "Float", kind="Reformat")
    found = read(tmp_path, copy, kernel("conv + relu", "Int8", kind="CaskConvolution"), kernel("fc", "Half"))
    assert {name: (own.dtype, own.reformats) for name, own in found.layers.items()} == {
        "conv": ("int8", 1),
        "relu": ("int8", 1),
        "fc": ("half", 0),
    }
    assert found.layers["relu"].fused == ("conv", "relu") and not found.notices


def test_what_the_engine_does_not_tell_is_said(tmp_path: Path) -> None:
    found = read(tmp_path, "conv + relu", "{ForeignNode[/a...b]}")
    assert found.layers["conv"].dtype is None and found.layers["conv"].fused == ("conv", "relu")
    assert "--profilingVerbosity=detailed" in found.notices[0] and "1, first /a...b" in found.notices[1]
    hidden = read(tmp_path, kernel("{ForeignNode[/a...b]}", "Half", kind="Myelin"))
    assert hidden.layers["/a"].dtype is None


def test_an_engine_without_names_is_refused(tmp_path: Path) -> None:
    nameless: list[list[Any]] = [[], [{}], [3], [""]]
    for layers in nameless:
        with pytest.raises(DataError, match="names no layers") as error:
            read(tmp_path, *layers)
        assert "--profilingVerbosity=detailed" in str(error.value) and "layers.json" in str(error.value)


def network() -> onnx.ModelProto:
    net = Net()
    x = net.input("image", ["n", 3, 8, 8])
    x = net.conv(x, random(0, 8, 3, 3, 3, scale=0.3), random(7, 8), out="conv", name=CONV)
    x = net.add("Flatten", net.add("Relu", x, out="act", name=ACT), out="flat", name="/Flatten")
    net.output(net.add("Gemm", x, net.const("w", random(9, 288, 5)), out="scores", name=HEAD))
    return net.model()


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The model with all layers in 8 bits, and with its head in float."""
    images = random(3, 16, 3, 8, 8)
    made: dict[str, Path] = {}
    forms: dict[str, dict[str, Any]] = {"whole": {}, "float head": {"nodes_to_exclude": [HEAD]}}
    for name, options in forms.items():
        folder = tmp_path_factory.mktemp("pair")
        paths = save_pair(folder, network(), static(network(), {"image": images}, folder, **options))
        quantmedic.save_case(quantmedic.collect(*paths, validation=images), folder / "pair.case")
        made[name] = folder / "pair.case"
    return made


def diagnosed(case: Path, folder: Path, *layers: dict[str, Any] | str) -> Diagnosis:
    return quantmedic.judge(quantmedic.import_files(case, written(folder, *layers)))


def rules_of(diagnosis: Diagnosis) -> set[str]:
    return {rule for cause in diagnosis.causes for rule in cause.rules} & {"R012", "R013", "R014"}


QUIET = kernel(f"{CONV} + {ACT}", "Int8", "sm80_xmma_fprop_i8i8_i8i32_f32", "CaskConvolution", (CONV, ACT))


def warnings_of(diagnosis: Diagnosis) -> list[str]:
    return [text for text in diagnosis.warnings if "layers.json" in text]


@pytest.mark.thorough
def test_an_engine_that_does_what_the_model_says(cases: dict[str, Path], tmp_path: Path) -> None:
    diagnosis = diagnosed(cases["whole"], tmp_path, QUIET, kernel("__myl_fc", "Int8", nodes=(HEAD,)))
    assert not rules_of(diagnosis) and not warnings_of(diagnosis)
    conv = next(row for row in diagnosis.layers if row.float_name == CONV)
    assert conv.reported is not None and conv.reported.dtype == "int8" and conv.reported.device == "GPU"
    names_alone = diagnosed(cases["whole"], tmp_path, f"{CONV} + {ACT}", HEAD)
    missing = {entry.rule: entry for entry in names_alone.not_judged}
    assert not rules_of(names_alone) and "reported.dtype" in str(missing["R012"])


@pytest.mark.thorough
def test_layers_that_run_in_another_type(cases: dict[str, Path], tmp_path: Path) -> None:
    diagnosis = diagnosed(cases["whole"], tmp_path, QUIET, kernel("__myl_fc", "Half", nodes=(HEAD,)))
    assert rules_of(diagnosis) == {"R012"}
    first = asked_lines(diagnosis.layers)[0]
    assert (first.name, first.device, first.departs) == (HEAD, "in half", True)
    assert "in half" in render_markdown(build_context(diagnosis, {}))
    quantized = kernel("__myl_fc", "Half", "sm80_xmma_gemm_i8i8_i8i32_f32_tn", nodes=(HEAD,))
    assert rules_of(diagnosed(cases["float head"], tmp_path, QUIET, quantized)) == {"R013"}
    floats = [
        kernel(f"{CONV} + {ACT}", "Half", "", "CaskConvolution", (CONV, ACT)),
        kernel("fc", "Half", nodes=(HEAD,)),
    ]
    whole = diagnosed(cases["whole"], tmp_path, *floats)
    assert rules_of(whole) == {"R014"}
    told = told_text(asked_lines(whole.layers))
    assert "no request can be compared" in told and "the device computes 2 in another type" in told


@pytest.mark.thorough
def test_the_engine_of_another_model_is_said_to_be_one(cases: dict[str, Path], tmp_path: Path) -> None:
    others = [kernel(name, "Int8", nodes=(name,)) for name in ("encoder/Conv", "encoder/Gemm")]
    diagnosis = diagnosed(cases["whole"], tmp_path, *others)
    (said,) = warnings_of(diagnosis)
    assert not rules_of(diagnosis) and "may be of another one" in said and "encoder/Conv" in said
    (said,) = warnings_of(diagnosed(cases["whole"], tmp_path, QUIET, others[0]))
    assert "1 of its 3 layers not found in this model: encoder/Conv" in said
