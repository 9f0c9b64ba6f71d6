"""Files of toolchains: what each tells in our units, and what damaged, foreign and hostile ones say instead.

Files of ONNX Runtime and ai-edge-quantizer are written by these themselves (onnxruntime 1.31, ai-edge-quantizer 0.10).
TensorRT's cache, AIMET's encodings and the CSV of LiteRT's debugger are small files in the documented form.
"""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnxruntime.quantization import CalibrationMethod, write_calibration_table
from onnxruntime.quantization.calibrate import TensorData, TensorsData, save_tensors_data

import quantmedic
from quantmedic.collectors.from_settings.mct_log import MctLog, MctNode, imported_log
from quantmedic.collectors.toolchain_files.formats import FORMATS, Imported, recognise_format
from quantmedic.collectors.toolchain_files.merge import read_source
from quantmedic.engine.errors import DataError, QuantmedicError
from quantmedic.engine.reading_limits import IMPORTED_LAYERS, YAML_BYTES, LimitError

RANGES = {"x": (-1.0, 2.0), "conv out": (-4.0, 3.5), "relu": (0.0, 6.0)}
ENCODING = {"bitwidth": 8, "dtype": "int", "is_symmetric": "False", "max": 1.55, "min": -1.0, "offset": -100}
ENGINE = {
    "Layers": [
        {
            "Name": "conv + relu",
            "LayerType": "CaskConvolution",
            "Inputs": [{"Name": "x", "Format/Datatype": "Int8"}],
            "TacticName": "sm80_xmma_fprop_i8i8_i8i32_f32",
            "Metadata": "[ONNX Layer: conv]\x1e[ONNX Layer: relu]",
        },
        "PWN(PWN(act), mul)",
    ],
    "Bindings": ["x"],
}
CSV_HEAD = (
    "op_name,tensor_idx,num_elements,stddev,mean_error,max_abs_error,mean_squared_error,scale,zero_point,tensor_name"
)


def written(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def told(path: Path) -> Imported:
    return recognise_format(path).read(path)


def extremes() -> TensorsData:
    def data(low: float, high: float) -> TensorData:
        return TensorData(lowest=np.array(low, np.float32), highest=np.array(high, np.float32))

    return TensorsData(CalibrationMethod.Entropy, {name: data(*ends) for name, ends in RANGES.items()})


def from_ort(folder: Path, name: str) -> Path:
    """A table or cache as ONNX Runtime writes it."""
    write_calibration_table(dict(extremes().items()), dir=str(folder))
    save_tensors_data(extremes(), folder / "cache.json")
    return folder / name


def ends(found: Imported) -> dict[str, tuple[float | None, float | None]]:
    return {name: (facts.low, facts.high) for name, facts in found.tensors.items()}


def test_onnxruntime_tells_both_extremes(tmp_path: Path) -> None:
    for name, method in (("calibration.json", None), ("cache.json", "entropy")):
        found = told(from_ort(tmp_path, name))
        assert ends(found) == RANGES
        assert {facts.method for facts in found.tensors.values()} == {method} == {found.settings.calibration_method}
    for name in ("calibration.cache", "calibration.flatbuffers"):
        with pytest.raises(DataError, match="one number per tensor") as caught:
            told(from_ort(tmp_path, name))
        assert "calibration.json" in (caught.value.help or "")


def test_onnxruntime_configuration(tmp_path: Path) -> None:
    content = {
        "per_channel": True,
        "activation_type": "QuantType.QUInt8",
        "weight_type": "QInt8",
        "calibrate_method": "CalibrationMethod.Percentile",
        "nodes_to_exclude": ["/head/Conv"],
        "per_chanel": True,
        "extra_options": {
            "ActivationSymmetric": True,
            "CalibPercentile": 99.9,
            "SmoothQaunt": True,
            "TensorQuantOverrides": {
                "x": [{"quant_type": "QuantType.QUInt16", "rmin": -1.0, "rmax": 3.0, "symetric": True}],
                "y": [{"quant_type": "QInt8", "scale": 0.5, "zero_point": -28}],
            },
        },
    }
    found = told(written(tmp_path, "settings.json", content))
    assert found.settings.model_dump(exclude_none=True) == {
        "calibration_method": "percentile",
        "percentile": 99.9,
        "per_channel_weights": True,
        "asymmetric_activations": False,
        "activation_bits": 8,
        "weight_bits": 8,
        "float_layers": ("/head/Conv",),
    }
    assert ends(found) == {"x": (-1.0, 3.0), "y": (-50.0, 77.5)}
    assert found.tensors["x"].bits == 16
    assert found.unknown == (
        "per_chanel, did you mean per_channel?",
        "extra_options.SmoothQaunt, did you mean SmoothQuant?",
        "extra_options.TensorQuantOverrides.x.symetric, did you mean symmetric?",
    )


def test_extra_options_alone(tmp_path: Path) -> None:
    found = told(written(tmp_path, "extra.json", {"ActivationSymmetric": False, "CalibMovingAverage": True}))
    assert found.settings.asymmetric_activations is True
    assert found.settings.calibration_method == "moving-average"
    assert not found.unknown


def test_tensorrt_cache(tmp_path: Path) -> None:
    scale = np.float32(0.03125)
    text = f"TRT-8601-EntropyCalibration2\ninput: {struct.pack('>f', scale).hex()}\nblock/conv: 1: 3c010a14\nbad: 0\n"
    found = told(written(tmp_path, "int8.cache", text))
    assert ends(found)["input"] == (-127 * scale, 127 * scale)
    assert found.tensors["block/conv: 1"].scale == pytest.approx(1 / 127, rel=1e-3)
    assert found.settings.calibration_method == "entropy"
    assert found.notices == ("tensors without a usable scale: 1, first bad",)


def aimet(version: str) -> dict[str, Any]:
    if version == "2.0.0":
        own = [
            {"name": "conv", "output_dtype": "uint8", "y_scale": 0.01, "y_zero_point": 100},
            {"name": "w", "output_dtype": "int4", "y_scale": [0.1, 0.2], "y_zero_point": None, "axis": 0},
        ]
        return {"version": version, "encodings": own}
    if version == "1.0.0":
        entry = {"bw": 8, "dtype": "INT", "enc_type": "PER_TENSOR", "is_sym": False, "offset": [-100], "scale": [0.01]}
        weights = {**entry, "is_sym": True, "enc_type": "PER_CHANNEL", "offset": [-128, -128], "scale": [0.1, 0.2]}
        return {
            "version": version,
            "activation_encodings": [{"name": "conv", **entry}],
            "param_encodings": [{"name": "w", **weights}],
        }
    weights = {"bitwidth": 8, "dtype": "int", "is_symmetric": "True", "min": -1.28, "max": 1.27, "offset": -128}
    return {
        "version": version,
        "activation_encodings": {"conv": [{**ENCODING, "scale": 0.01}], "fp": [{"bitwidth": 16, "dtype": "float"}]},
        "param_encodings": {"w": [{**weights, "scale": 0.01}] * 2},
        "quantizer_args": {"quant_scheme": "post_training_tf_enhanced", "param_bitwidth": 8},
    }


def test_aimet_encodings_of_all_versions_say_the_same(tmp_path: Path) -> None:
    for version in ("0.5.0", "0.6.1", "1.0.0", "2.0.0"):
        conv = (found := told(written(tmp_path, "model.encodings", aimet(version)))).tensors["conv"]
        assert (conv.low, conv.high) == (pytest.approx(-1.0), pytest.approx(1.55)), version
        assert (conv.scale, conv.zero_point, conv.bits, conv.symmetric) == (0.01, 100, 8, False), version
        own = found.settings
        if version != "2.0.0":
            assert set(found.tensors) == {"conv"}
            assert (own.per_channel_weights, own.weight_bits, own.asymmetric_activations) == (True, 8, True), version
        if version == "0.6.1":
            assert own.calibration_method == conv.method == "mse"


OVERRIDES = {
    "activation_encodings": {"conv": [{"bitwidth": 16, "dtype": "int"}], "fp": [{"bitwidth": 32, "dtype": "float"}]},
    "param_encodings": {"w": [{"bitwidth": 4, "dtype": "int", "is_symmetric": "True"}]},
}
NEW_OVERRIDES = {
    "version": "2.0.0",
    "encodings": [{"name": "conv", "output_dtype": "uint16"}, {"name": "w", "output_dtype": "int4"}],
}


def test_overrides_that_state_bits_alone_ask_for_them(tmp_path: Path) -> None:
    """They list what is to differ, and not every activation."""
    for content in (OVERRIDES, NEW_OVERRIDES):
        path = written(tmp_path, "overrides.json", content)
        kind, found = recognise_format(path), told(path)
        assert kind.name == "Qualcomm quantization overrides" and not kind.lists_all
        assert found.requests.bits == {"conv": 16, "w": 4} and not found.tensors
        assert not [notice for notice in found.notices if "cannot be read" in notice]


def test_an_override_beside_encodings(tmp_path: Path) -> None:
    content = aimet("0.6.1")
    content["activation_encodings"]["wide"] = [{"bitwidth": 16, "dtype": "int"}]
    path = written(tmp_path, "model.encodings", content)
    found = told(path)
    assert recognise_format(path).name == "AIMET encodings"
    assert found.requests.bits == {"wide": 16} and set(found.tensors) == {"conv"}


def test_aimet_encodings_of_torch_modules(tmp_path: Path) -> None:
    own = {**ENCODING, "scale": 0.01}
    content = {"activation_encodings": {"conv1": {"input": {"0": own}, "output": {"0": own}}}, "param_encodings": {}}
    assert set(told(written(tmp_path, "model_torch.encodings", content)).tensors) == {"conv1", "conv1.input0"}


def test_table_of_the_debugger(tmp_path: Path) -> None:
    rows = ("CONV_2D,7,100,0.1,0.0,0.5,0.0001,0.02,-5,net/conv1", "ADD,9,100,0.1,0,0.5,0.04,0.1,0,net/add")
    found = told(written(tmp_path, "debug.csv", "\n".join((CSV_HEAD, *rows)) + "\n"))
    assert found.layers["net/conv1"].rmse_over_scale == pytest.approx(0.5)
    assert found.layers["net/add"].mse == 0.04
    assert found.layer_types == {"net/conv1": "CONV_2D", "net/add": "ADD"}
    assert ends(found)["net/conv1"] == (pytest.approx(-2.46), pytest.approx(2.64))
    assert ends(found)["net/add"] == (None, None)
    for point, reach in ((-128, (0.0, 5.1)), (127, (-5.1, 0.0)), (128, (None, None))):
        edge = told(written(tmp_path, "debug.csv", f"{CSV_HEAD}\nADD,9,100,0.1,0,0.5,0.04,0.02,{point},y\n"))
        assert ends(edge)["y"] == pytest.approx(reach), point


@pytest.mark.thorough
@pytest.mark.source("litert-own-columns")
def test_metrics_that_the_user_added_are_kept_and_shown(tmp_path: Path) -> None:
    head = f"{CSV_HEAD.removesuffix('scale,zero_point,tensor_name')}mean_abs,correlation,scale,zero_point,tensor_name"
    row = "CONV_2D,7,100,0.1,0.0,0.5,0.0001,0.0123456789,nan,0.02,-5,net/conv1,5.1,0.5"
    path = written(tmp_path, "debug.csv", f"{head},range,rmse/scale\n{row}\n")
    assert told(path).layers["net/conv1"].own_metrics == ("mean_abs 0.0123456789",)
    assert not told(path).notices
    case = quantmedic.import_files(path)
    formats = ("html", "markdown", "json")
    quantmedic.write_report(quantmedic.judge(case), tmp_path / "report", case=case, formats=formats)
    for name in ("index.html", "report.md", "report.json"):
        assert "0.0123456789" in (tmp_path / "report" / name).read_text(), name


RECIPE = [
    {
        "regex": ".*",
        "operation": "*",
        "algorithm_key": "min_max_uniform_quantize",
        "op_config": {
            "activation_tensor_config": {"num_bits": 8, "symmetric": False, "granularity": "TENSORWISE"},
            "weight_tensor_config": {"num_bits": 8, "symmetric": True, "granularity": "CHANNELWISE", "num_bit": 4},
            "compute_precision": "INTEGER",
        },
    },
    {"regex": "head/.*", "operation": "*", "algorithm_key": "no_quantize"},
    {"regex": ".*", "operation": "SOFTMAX", "algorithm_key": "no_quantize"},
]
COMPARISON = {
    "reduced_size_bytes": 100,
    "serving_default": {
        "input_tensors": {"x": {"mse": 1e-4, "cosine_similarity": 1.0000001, "snr": 1000.0}},
        "intermediate_tensors": {"conv": {"mse": 0.0, "snr": 1e9}},
        "constant_tensors": {"w": {"mse": 1.0}},
    },
}


def test_recipe(tmp_path: Path) -> None:
    found = told(written(tmp_path, "m_recipe.json", RECIPE))
    settings = found.settings
    assert (settings.activation_bits, settings.weight_bits) == (8, 8)
    assert (settings.asymmetric_activations, settings.per_channel_weights, settings.dynamic) == (True, True, False)
    assert (settings.float_layers, settings.float_types) == (("head/.*",), ("SOFTMAX",))
    assert found.unknown == ("op_config.weight_tensor_config.num_bit, did you mean num_bits?",)


def test_comparison_in_decibels(tmp_path: Path) -> None:
    found = told(written(tmp_path, "m_comparison_result.json", COMPARISON))
    assert set(found.layers) == {"x", "conv"}
    assert found.layers["x"].sqnr_db == pytest.approx(30.0)
    assert found.layers["x"].cosine == 1.0
    assert found.layers["conv"].sqnr_db is None, "its word for infinite is no figure"


@pytest.mark.thorough
def test_ai_edge_quantizer_writes_what_is_read(tmp_path: Path) -> None:
    recipe = pytest.importorskip("ai_edge_quantizer.recipe")
    for name in ("static_wi8_ai8", "static_wi8_ai16", "dynamic_wi8_afp32", "weight_only_wi8_afp32"):
        found = told(written(tmp_path, f"{name}.json", getattr(recipe, name)()))
        assert not found.unknown
        assert found.settings.weight_bits == 8
        assert found.settings.activation_bits == {"static_wi8_ai8": 8, "static_wi8_ai16": 16}.get(name)
        assert found.settings.dynamic is (name == "dynamic_wi8_afp32")


def test_calibration_result(tmp_path: Path) -> None:
    content = {"x": {"min": [[[[-3.5]]]], "max": [[[[2.0]]]]}, "odd": {"min": ["?"], "max": [1.0]}}
    found = told(written(tmp_path, "calibration.json", content))
    assert ends(found) == {"x": (-3.5, 2.0)}
    assert found.notices == ("tensors without a readable range: 1, first odd",)


def test_log_of_mct() -> None:
    nodes = (
        MctNode(
            name="conv", op_type="Conv2d", quantized=True, bits=8, threshold=4.0, signed=True, minimum=-3, maximum=2
        ),
        MctNode(name="relu", op_type="relu", quantized=True, bits=8, threshold=4.0, signed=False),
        MctNode(name="gelu", op_type="gelu", quantized=True, bits=16, low=-0.2, high=3.0),
        MctNode(name="flatten", op_type="flatten", quantized=False),
    )
    found = imported_log(MctLog(folder="log", nodes=nodes))
    assert ends(found) == {"conv": (-4.0, 4.0), "relu": (0.0, 4.0), "gelu": (-0.2, 3.0)}
    assert (found.layers["conv"].min, found.layers["conv"].max) == (-3, 2)
    assert found.layer_types["flatten"] == "flatten"


# What is damaged, foreign or hostile

GOOD: dict[str, Callable[[Path], Path]] = {
    "ort.json": lambda folder: from_ort(folder, "calibration.json"),
    "cache.json": lambda folder: from_ort(folder, "cache.json"),
    "extra.json": lambda folder: written(folder, "extra.json", {"ActivationSymmetric": False}),
    "trt.cache": lambda folder: written(folder, "trt.cache", "TRT-8601-EntropyCalibration2\nx: 3c010a14\ny: 3c010a15"),
    "engine": lambda folder: written(folder, "layers.json", ENGINE),
    "aimet": lambda folder: written(folder, "model.encodings", aimet("0.6.1")),
    "overrides": lambda folder: written(folder, "overrides.json", OVERRIDES),
    "aimet2": lambda folder: written(folder, "model2.encodings", aimet("2.0.0")),
    "debugger": lambda folder: written(folder, "d.csv", f"{CSV_HEAD}\nADD,9,100,0.1,0,0.5,0.04,0.1,0,net/add\n"),
    "recipe": lambda folder: written(folder, "m_recipe.json", RECIPE),
    "result": lambda folder: written(folder, "result.json", {"x": {"min": [-3.5], "max": [2.0]}}),
    "comparison": lambda folder: written(folder, "comparison.json", COMPARISON),
}


@pytest.mark.thorough
def test_a_truncated_file_is_an_error_or_says_less(tmp_path: Path) -> None:
    """Cut off anywhere, a file is refused with its place, or read up to a clean end; no other exception escapes."""
    for kind, make in GOOD.items():
        path = make(tmp_path)
        content, whole = path.read_bytes(), told(path)
        for size in range(0, len(content), max(1, len(content) // 25)):
            path.write_bytes(content[:size])
            try:
                part = told(path)
            except QuantmedicError as error:
                assert path.name in str(error), kind
                continue
            if kind == "debugger":
                assert "may be cut off" in " ".join(part.notices)
            elif kind not in ("ort.cache", "trt.cache"):
                assert set(part.tensors) <= set(whole.tensors), kind


HOSTILE = {
    "a list": [],
    "numbers": {"activation_encodings": {"x": 7}, "param_encodings": [None, 3, {"name": 4}]},
    "huge numbers": {"x": {"lowest": -1e400, "highest": 1e999}},
    "a bool for a number": {"x": {"lowest": True, "highest": False}},
    "text for a number": {"version": "1.0.0", "activation_encodings": [{"name": "x", "bw": "8; rm", "scale": ["a"]}]},
    "bits without end": {"encodings": [{"name": "x", "output_dtype": "int99", "y_scale": 1.0}]},
    "scales without end": {"activation_encodings": {"x": [{"bitwidth": 8, "scale": -1, "offset": 1e30}]}},
}


def test_hostile_values_are_refused(tmp_path: Path) -> None:
    for content in HOSTILE.values():
        with pytest.raises(DataError, match=r"hostile\.json"):
            told(written(tmp_path, "hostile.json", json.dumps(content)))


def test_nesting(tmp_path: Path) -> None:
    with pytest.raises(LimitError, match="too many levels"):
        told(written(tmp_path, "deep.json", '{"x": {"min": ' + "[" * 100_000))
    deep = "[" * 60 + "1.0" + "]" * 60
    path = tmp_path / "result.json"
    path.write_text('{"a": {"min": ' + deep + ', "max": [2]}}')
    assert read_source(path).imported.tensors["a"].low == 1.0
    path.write_text('{"encodings": [{"name": "a", "output_dtype": "int8", "y_scale": ' + deep + "}]}")
    assert read_source(path).imported.tensors["a"].scale == 1.0


def test_what_is_too_much_is_refused_or_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IMPORTED_LAYERS.variable, "50")
    monkeypatch.setenv(YAML_BYTES.variable, "500")
    many = written(tmp_path, "file.json", {f"t{i}": {"lowest": -1, "highest": 2} for i in range(51)})
    with pytest.raises(LimitError, match="too many tensors and layers: 51 tensors and layers, the limit is 50"):
        read_source(many)
    options = {"calibrate_method": "MinMax", "quant_format": "QDQ"} | dict.fromkeys(map(str, range(99)))
    assert len(read_source(written(tmp_path, "file.json", options)).imported.unknown) == 50
    text = "model_parameters:\n  march: x\ninput_parameters:\n" + "  norm_type: x\n" * 50
    with pytest.raises(LimitError, match="a YAML file has too many bytes"):
        read_source(written(tmp_path, "config.yaml", text))


def test_what_is_no_file_of_a_toolchain(tmp_path: Path) -> None:
    for content in (b"", b"\x80\x04\x95pickle", b"PK\x03\x04", b"hello, world", b"\xff" * 99):
        with pytest.raises(DataError, match="unrecognized file format") as caught:
            recognise_format(written(tmp_path, "foreign.pkl", content))
        assert "AIMET encodings" in str(caught.value)
    with pytest.raises(DataError, match="cannot be found"):
        read_source(tmp_path / "nothing.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="event files of MCT"):
        read_source(tmp_path / "empty")


def test_kinds_have_names_of_their_own_and_a_toolchain() -> None:
    from quantmedic import load_rulebase

    toolchains = {toolchain.name for toolchain in load_rulebase().toolchains}
    assert len({each.name for each in FORMATS}) == len(list(FORMATS))
    assert {each.toolchain for each in FORMATS} <= toolchains
