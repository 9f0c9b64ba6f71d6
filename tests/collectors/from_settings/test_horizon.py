"""Configurations and logs of Horizon OpenExplorer (D-Robotics).

The toolchain is not on PyPI. The files here are small ones in its documented formats: the YAML of hb_mapper (RDK X3,
Ultra, X5) and hb_compile (S100), and the logs that these print, with made-up nodes and numbers.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders.onnx_models import conv_net, qdq, save_pair

import quantmedic
from quantmedic import import_files
from quantmedic.cli.main import main
from quantmedic.collectors.toolchain_files.formats import Imported, recognise_format
from quantmedic.engine.case.facts import CaseFacts, ModelFacts, SettingsFacts, TensorFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.diagnosis.advice import advise
from quantmedic.engine.errors import DataError
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.rules.evaluate import Finding, evaluate

BASE = quantmedic.load_rulebase()
MEAN, FACTOR = (123.675, 116.28, 103.53), (0.01712475, 0.017507, 0.01742919)

CONFIG = """\
model_parameters:
  onnx_model: './small.onnx'
  march: 'bayes-e'
  node_info: {"/head/Softmax": {"ON": "BPU", "InputType": "int16", "OutputType": "int16"}, "/tail/Conv": {"ON": "CPU"}}
input_parameters:
  input_type_rt: 'nv12'
  input_type_train: 'rgb'
  norm_type: 'data_mean_and_scale'
  mean_value: 123.675 116.28 103.53
  scale_value: 0.01712475 0.017507 0.01742919
calibration_parameters:
  cal_data_dir: './calibration'
  calibration_type: 'max'
  max_percentile: 0.9999
  per_channel: True
  optimization: 'set_model_output_int16,asymmetric;bias_correction'
  run_on_cpu: 'last_0; last_1'
compiler_parameters:
  compile_mode: 'latency'
  optimize_level: 'O3'
"""
#: hb_mapper of RDK X5 as it prints to the console.
LOG = """\
2025-02-20 01:32:30,300 file: hb_mapper.py func: hb_mapper line No: 80 Start hb_mapper....
2025-02-20 01:32:30,405 file: model_builder.py func: model_builder line No: 38 End to prepare the onnx model.
2025-02-20 01:32:31,690 file: calibration_data_set.py func: calibration_data_set line No: 123 There are 50 samples in \
the data set.
2025-02-20 01:32:31,690 file: infer_thresholds.py func: infer_thresholds line No: 84 Run calibration model with \
modelwise search method.
2025-02-20 01:45:45,908 file: modelwise_search.py func: modelwise_search line No: 75 Select \
max-percentile:percentile=0.99995,per_channel method.
2025-02-20 01:45:45,908 file: modelwise_search.py func: modelwise_search line No: 79 Perchannel quantization is enabled.
2025-02-20 01:49:59,068 file: print_info_dict.py func: print_info_dict line No: 72 The main quantized node information:
========================================================================================================
Node                    ON   Subgraph  Type                    Cosine Similarity  Threshold  DataType  \n\
--------------------------------------------------------------------------------------------------------
HZ_PREPROCESS_FOR_data  BPU  id(0)     HzSQuantizedPreprocess  1.000070           127.0      int8      \n\
/stem/Conv              BPU  id(0)     HzSQuantizedConv        0.999263           2.64       int8      \n\
/stem/act/Mul           BPU  id(0)     HzLut                   0.998640           39.9803    int8      \n\
/mid/Softmax            CPU  --        Softmax                 0.998000           --         float     \n\
/up/fused_scale         BPU  id(1)     HzSQuantizedConv                                      int8      \n\
/head/Conv              BPU  id(1)     HzSQuantizedConv        0.912581           8.74596    int16
2025-02-20 01:49:59,069 file: print_info_dict.py func: print_info_dict line No: 72 The quantized model output:
=============================================================================
Output      Cosine Similarity  L1 Distance  L2 Distance  Chebyshev Distance  \n\
-----------------------------------------------------------------------------
scores      0.912581           0.468851     0.001009     4.919658
2025-02-20 01:49:59,080 file: model_builder.py func: model_builder line No: 38 End to Horizon NN Model Convert.
2025-02-20 01:50:00,000 file: hb_mapper_makertbin.py func: hb_mapper_makertbin line No: 601 Convert to runtime bin \
file successfully!
"""
#: hb_mapper of RDK X3, an earlier version, with the settings that it lists at the end.
EARLIER = """\
2021-04-20 17:06:18,797 INFO Start hb_mapper....
2021-04-20 17:06:18,797 INFO hb_mapper version 1.1.58
2021-04-20 17:06:19,085 INFO number of calibration data samples: 100
2021-04-20 17:06:19,086 INFO Run calibration model with kl method.
2021-04-20 17:06:20,339 INFO The converted model node information:
==========================================================================================================
Node                    ON   Subgraph  Type                    Cosine Similarity  Threshold   In/Out DataType
----------------------------------------------------------------------------------------------------------
HZ_PREPROCESS_FOR_data  BPU  id(0)     HzSQuantizedPreprocess  0.999995           127.000000  int8/int8
conv1                   BPU  id(0)     HzSQuantizedConv        0.999909           253.879395  int8/int16
ip2_reshape_0           CPU  --        Reshape
2021-04-20 17:06:20,339 INFO The quantify model output:
=======================================================================
Node   Cosine Similarity  L1 Distance  L2 Distance  Chebyshev Distance
-----------------------------------------------------------------------
conv1  0.999909           7.732184     2.969808     16.220459
2021-04-20 17:06:20,340 INFO [Tue Apr 20 17:06:20 2021] End to Horizon NN Model Convert.
2021-04-20 17:06:20,363 INFO -------- model parameters info ---------
2021-04-20 17:06:20,363 INFO onnx_model:
2021-04-20 17:06:20,364 INFO -------- input info : data -------
2021-04-20 17:06:20,364 INFO --input_type_rt    : gray
2021-04-20 17:06:20,364 INFO --input_type_train : gray
2021-04-20 17:06:20,364 INFO --norm_type        : data_scale
2021-04-20 17:06:20,364 INFO --scale_value      : 0.0039
2021-04-20 17:06:20,364 INFO calibration_type: kl
2021-04-20 17:06:20,364 INFO per_channel: False
2021-04-20 17:06:20,364 INFO max_percentile: 1.0
2021-04-20 17:06:20,368 INFO Convert to runtime bin file sucessfully!
"""
_AT = "2025-07-19 12:49:12,575 file: tool_utils.py func: tool_utils line No: 5"
#: hb_compile of S100, whose tables have bars.
COMPILED = f"""\
2025-07-19 12:42:14,985 file: hb_compile.py func: hb_compile line No: 280 Start hb_compile...
2025-07-19 12:42:15,125 file: tool_utils.py func: tool_utils line No: 373 The num of calibration data: 40
{_AT} +------------+
{_AT} | Node                  | NodeType   | ON  | Threshold | Calibrated Cosine | Quantized Cosine | Output Data Type |
{_AT} +------------+
{_AT} | /embed/Conv           | Conv       | BPU | 2.75369   | 0.999725          | --               | si16             |
{_AT} | ...norm/mean1        | ReduceMean | BPU | 3.522259  | 0.537047          | --               | si16             |
{_AT} | ...linear/Add_reshape | Transpose  | BPU | 4.504372  | 0.998093          | --               | si8              |
{_AT} | ...linear/Add_reshape | Transpose  | BPU | 3.200435  | 0.998781          | --               | si8              |
{_AT} | /act/Gelu             | HzGelu     | --  | 3.28796   | 0.996798          | --               | --               |
{_AT} | /head/Gemm            | Conv       | BPU | 1.5       | 0.996             | 0.99             | si8              |
{_AT} +------------+
{_AT} | TensorName | Calibrated Cosine | Quantized Cosine |
{_AT} | output     | 0.996             | 0.99             |
2025-07-19 13:15:06,056 file: hb_model_info.py func: hb_model_info line No: 203 ############# model_parameters info ####
2025-07-19 13:15:06,056 file: hb_model_info.py func: hb_model_info line No: 221 BPU march           : nash-e
2025-07-19 13:15:06,056 file: hb_model_info.py func: hb_model_info line No: 221 node_info           : {{}}
2025-07-19 13:15:06,056 file: hb_model_info.py func: hb_model_info line No: 277 input_type_rt       : nv12
2025-07-19 13:15:06,056 file: hb_model_info.py func: hb_model_info line No: 277 input_type_train    : rgb
2025-07-19 13:15:06,056 file: hb_model_info.py func: hb_model_info line No: 277 norm_type      : data_mean_and_scale
2025-07-19 13:15:06,056 file: hb_model_info.py func: hb_model_info line No: 277 mean_value     : [125.3, 122.9, 113.8]
2025-07-19 13:15:06,056 file: hb_model_info.py func: hb_model_info line No: 277 std_value           : [50.0, 50.0, 40.0]
2025-07-19 13:15:06,056 file: hb_model_info.py func: hb_model_info line No: 302 calibration_type    : default
2025-07-19 13:15:06,056 file: hb_model_info.py func: hb_model_info line No: 302 max_percentile      : None
2025-07-19 13:15:06,057 file: hb_model_info.py func: hb_model_info line No: 302 quant_config        : {{'op_config': \
{{'softmax': {{'qtype': 'int16'}}}}}}
2025-07-19 13:15:06,083 file: hb_compile.py func: hb_compile line No: 215 The hb_compile completes running.
"""
QUANT = """{"model_config": {"all_node_type": "int8", "model_output_type": "int16",
 "activation": {"calibration_type": "max", "max_percentile": 0.99995, "per_channel": true, "asymmetric": true},
 "weight": {"bias_correction": {"num_sample": 1}}},
 "op_config": {"Softmax": {"qtype": "int16"}, "Exp": {"qtype": "float32"}},
 "node_config": {"/n": {"input0": "int16"}, "/f": {"qtype": "float16"}}}"""


def read(tmp_path: Path, text: str | bytes, name: str = "file") -> Imported:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return recognise_format(path).read(path)


def config(tmp_path: Path, **lines: str) -> Imported:
    """The configuration with other values; None leaves a key out."""
    text = CONFIG
    for key, value in lines.items():
        start = text.index(f"  {key}:")
        end = text.index("\n", start)
        text = text[:start] + (f"  {key}: {value}" if value is not None else "  # left out") + text[end:]
    return read(tmp_path, text, "small.yaml")


@pytest.mark.source("horizon-asymmetric-bias")
def test_options_of_a_configuration(tmp_path) -> None:
    found = config(tmp_path)
    told = found.settings
    assert (found.unknown, found.notices) == ((), ())
    assert told.toolchain == "Horizon OpenExplorer"
    assert (told.input_order_runtime, told.input_order_train, told.norm_type) == ("nv12", "rgb", "data_mean_and_scale")
    assert told.input_mean == (123.675, 116.28, 103.53)
    assert told.input_scale == (0.01712475, 0.017507, 0.01742919)
    assert told.calibrates_raw is True
    assert (told.calibration_method, told.percentile) == ("percentile", pytest.approx(99.99))
    assert told.per_channel_activations is True
    assert (told.output_bits, told.asymmetric_activations, told.bias_correction) == (16, True, True)
    assert told.wide_layers == ("/head/Softmax",)
    assert told.host_layers == ("last_0", "last_1", "/tail/Conv")
    assert (told.inert_options, told.inert_option_count) == ((), 0)


@pytest.mark.source("horizon-methods")
def test_methods_by_our_names(tmp_path) -> None:
    named = {"default": "search", "mix": "mix", "kl": "kl", "load": "load", "skip": "skip"}
    told = {word: config(tmp_path, calibration_type=word).settings for word in named}
    assert {word: (own.calibration_method, own.percentile) for word, own in told.items()} == {
        word: (method, None) for word, method in named.items()
    }


def test_what_does_nothing_is_not_in_force(tmp_path) -> None:
    told = config(tmp_path, calibration_type="default", norm_type="data_scale").settings
    assert told.inert_options == (
        "mean_value: norm_type is data_scale",
        "max_percentile: calibration_type is default, not max",
        "per_channel: calibration_type default decides by itself",
    )
    assert (told.input_mean, told.per_channel_activations, told.inert_option_count) == (None, None, 3)
    # 1.0 covers every value and is the default; False asks for nothing
    quiet = config(tmp_path, calibration_type="default", max_percentile="1.0", per_channel="False").settings
    assert quiet.inert_options == ()


@pytest.mark.source("horizon-misspelt-keys")
def test_unknown_keys_are_named_with_the_nearest_known_one(tmp_path) -> None:
    text = CONFIG.replace("mean_value", "mean_values").replace("  cal_data_dir", "  march: x\n  zzz: 1\n  cal_data_dir")
    found = read(tmp_path, text.replace("compiler_parameters", "compile_parameters"))
    assert found.unknown == (
        "input_parameters.mean_values, did you mean mean_value?",
        "calibration_parameters.march, it belongs to model_parameters",
        "calibration_parameters.zzz",
        "compile_parameters, did you mean compiler_parameters?",
    )
    assert found.settings.input_mean is None and found.settings.input_scale is not None


NUMBERS = {
    "103.94": (103.94,),
    "'103.94 116.78 123.68'": (103.94, 116.78, 123.68),
    "[1, 2.5, 3]": (1.0, 2.5, 3.0),
    "'1e2, 2, 3'": (100.0, 2.0, 3.0),
    "'1 2 3; None'": (1.0, 2.0, 3.0),
    "'None; 1 2 3'": None,
    "None": None,
    "''": None,
}


def test_numbers_per_channel_in_every_form(tmp_path) -> None:
    found = {text: config(tmp_path, mean_value=text) for text in NUMBERS}
    assert {text: own.settings.input_mean for text, own in found.items()} == NUMBERS
    assert not [text for text, own in found.items() if own.notices]
    several = config(tmp_path, mean_value="'1 2 3; 4 5 6'", norm_type="'data_mean_and_scale; data_mean_and_scale'")
    assert several.settings.input_mean == (1.0, 2.0, 3.0)


WRONG = [
    ("mean_value", "red green blue", "input_parameters.mean_value is ignored: expected numbers"),
    ("mean_value", "[1, .inf, 2]", "input_parameters.mean_value is ignored"),
    ("calibration_type", "[kl, max]", "calibration_parameters.calibration_type is ignored: expected text"),
    ("calibration_type", "maxx", "calibration_type maxx is not known, did you mean max?"),
    ("max_percentile", "high", "calibration_parameters.max_percentile is ignored: expected a number"),
    ("max_percentile", "99.99", "max_percentile 99.99 is outside of 0.5 … 1; is 0.9999 meant?"),
    ("max_percentile", "0.4", "max_percentile 0.4 is outside of 0.5 … 1"),
    ("per_channel", "7", "calibration_parameters.per_channel is ignored: expected True or False"),
    ("norm_type", "data_mean_scale", "norm_type data_mean_scale is not known, did you mean data_mean_and_scale?"),
    ("optimization", "set_model_output_int61", "optimization set_model_output_int61 is not known"),
    ("node_info", "[1]", "model_parameters.node_info is ignored: expected a mapping"),
    ("input_type_rt", "gray", "input_type_rt gray cannot be converted to input_type_train rgb"),
    ("input_type_rt", "rbg", "input_type_rt rbg is not known, did you mean"),
]


@pytest.mark.source("horizon-input-types", "horizon-max-percentile")
def test_wrong_values_are_named_and_not_fatal(tmp_path) -> None:
    for key, value, notice in WRONG:
        found = config(tmp_path, **{key: value})
        assert [line for line in found.notices if notice in line], (key, value)
        assert found.settings.toolchain == "Horizon OpenExplorer"


def test_forms_of_node_types(tmp_path) -> None:
    text = CONFIG.replace("march:", "set_node_data_type: 'a:int16; b:int8'\n  march:")
    found = read(tmp_path, text)
    assert found.settings.wide_layers == ("a", "/head/Softmax")
    assert config(tmp_path, node_info="'c:int16;d:int16'").settings.wide_layers == ("c", "d")
    # those of operator types are known, and name no node
    assert config(tmp_path, optimization="set_Softmax_input_int8,set_all_nodes_int16").settings.activation_bits == 16


def test_hb_compile_calibrates_on_what_the_model_reads(tmp_path) -> None:
    """There norm_type is out of use: what is given decides, and a deviation may stand for the factor."""
    text = CONFIG.replace("bayes-e", "nash-e").replace("  norm_type: 'data_mean_and_scale'\n", "")
    text = text.replace("scale_value: 0.01712475 0.017507 0.01742919", "std_value: 50 50 40")
    text = text.replace("  run_on_cpu: 'last_0; last_1'", f"  quant_config: {' '.join(QUANT.split())}")
    told = read(tmp_path, text).settings
    assert told.calibrates_raw is False
    assert told.input_scale == pytest.approx((0.02, 0.02, 0.025))
    assert told.float_layers == ("/f",)


def test_a_quant_config_in_another_file_is_named(tmp_path) -> None:
    found = read(tmp_path, CONFIG.replace("optimization: 'set", "quant_config: quant.json\n  optimization: 'set"))
    (notice,) = found.notices
    assert notice == "the quant_config is a separate file, which must be given too: quant.json"
    assert found.settings.calibrates_raw is False
    assert config(tmp_path, optimization="run_fast").settings.calibration_method == "skip"


def test_quant_config_by_itself(tmp_path) -> None:
    found = read(tmp_path, QUANT, "quant.json")
    told = found.settings
    assert (found.unknown, found.notices) == ((), ())
    assert (told.calibration_method, told.percentile) == ("percentile", pytest.approx(99.995))
    assert (told.activation_bits, told.output_bits) == (8, 16)
    assert (told.per_channel_activations, told.asymmetric_activations, told.bias_correction) == (True, True, True)
    assert (told.wide_layers, told.float_layers) == (("/n",), ("/f",))
    assert told.float_types == ("Exp",)


def test_quant_config_that_tries_several_and_misspells(tmp_path) -> None:
    text = '{"model_config": {"activation": {"calibration_type": ["max", "kl"], "assymetric": true}}, "node_conf": {}}'
    found = read(tmp_path, text)
    assert found.settings.calibration_method == "search"
    assert found.unknown == (
        "model_config.activation.assymetric, did you mean asymmetric?",
        "node_conf, did you mean node_config?",
    )


@pytest.mark.source("horizon-default-search", "horizon-search-options", "horizon-cosine")
def test_log_of_hb_mapper(tmp_path) -> None:
    found = read(tmp_path, LOG, "hb_mapper_makertbin.log")
    assert found.notices == ()
    assert list(found.layers) == [
        "HZ_PREPROCESS_FOR_data",
        "/stem/Conv",
        "/stem/act/Mul",
        "/mid/Softmax",
        "/up/fused_scale",
        "/head/Conv",
    ]
    first, head = found.layers["HZ_PREPROCESS_FOR_data"], found.layers["/head/Conv"]
    assert first.cosine == 1.0  # printed as 1.000070
    assert (head.cosine, head.device, head.dtype) == (0.912581, "BPU", "int16")
    assert found.layers["/mid/Softmax"].device == "CPU"
    assert found.layers["/up/fused_scale"].cosine is None and found.layers["/up/fused_scale"].dtype == "int8"
    assert found.layer_types["/stem/act/Mul"] == "HzLut"
    told = found.settings
    assert (told.chosen_method, told.chosen_percentile) == ("percentile", 99.995)
    assert told.per_channel_activations is True and told.asymmetric_activations is None


def test_thresholds_are_those_of_what_a_node_reads(tmp_path) -> None:
    """The first convolution's is that of the normalized image, and that of the preprocessing is of pixels."""
    found = read(tmp_path, LOG)
    assert found.tensors == {}
    assert set(found.inputs) == {"/stem/Conv", "/stem/act/Mul", "/head/Conv"}
    stem, head = found.inputs["/stem/Conv"], found.inputs["/head/Conv"]
    assert (stem.low, stem.high, stem.bits, stem.symmetric) == (-2.64, 2.64, 8, True)
    assert head.bits == 16


def test_log_of_an_earlier_version_with_its_settings(tmp_path) -> None:
    found = read(tmp_path, EARLIER)
    assert list(found.layers) == ["HZ_PREPROCESS_FOR_data", "conv1", "ip2_reshape_0"]
    assert (found.layers["conv1"].cosine, found.layers["conv1"].dtype) == (0.999909, "int8")
    assert found.layers["ip2_reshape_0"].device == "CPU"
    told = found.settings
    assert (told.calibration_method, told.chosen_method) == ("kl", "kl")
    assert (told.input_order_runtime, told.norm_type, told.input_scale) == ("gray", "data_scale", (0.0039,))
    assert (told.inert_options, told.per_channel_activations) == ((), False)


def test_log_of_hb_compile(tmp_path) -> None:
    found = read(tmp_path, COMPILED, "hb_compile.log")
    assert list(found.layers) == ["/embed/Conv", "...norm/mean1", "/act/Gelu", "/head/Gemm"]
    assert found.layers["/head/Gemm"].cosine == 0.99  # of the quantized model where it is given
    assert (found.layers["/embed/Conv"].dtype, found.layers["/act/Gelu"].device) == ("int16", None)
    assert found.inputs["/embed/Conv"].bits == 16
    (notice,) = found.notices
    assert "cuts long names of nodes" in notice and "...linear/Add_reshape" in notice
    told = found.settings
    assert (told.calibration_method, told.calibrates_raw) == ("search", False)
    assert told.input_mean == (125.3, 122.9, 113.8)
    assert told.input_scale == pytest.approx((0.02, 0.02, 0.025))


def test_the_last_of_several_conversions_counts(tmp_path) -> None:
    found = read(tmp_path, LOG + LOG.replace("0.912581", "0.5"))
    assert found.layers["/head/Conv"].cosine == 0.5
    assert "the log holds 2 conversions, the last one counts" in found.notices


def test_a_check_before_the_conversion_is_no_conversion(tmp_path) -> None:
    check = "Node        ON   Subgraph  Type\n-----\n/stem/Conv  BPU  id(0)     HzSQuantizedConv\n"
    found = read(tmp_path, check + LOG)
    assert found.notices == () and len(found.layers) == 6
    alone = read(tmp_path, check)
    assert (alone.layers["/stem/Conv"].device, alone.layers["/stem/Conv"].cosine) == ("BPU", None)


def test_refused_types_asymmetric_grids_and_errors(tmp_path) -> None:
    said = (
        "2025-02-20 01:45:45,908 file: a.py func: a line No: 1 The int16 of /head/Conv is not supported, fallback to "
        "int8\n2025-02-20 01:45:45,908 file: a.py func: a line No: 1 Asymmetric quantization is enabled.\n"
    )
    found = read(tmp_path, LOG.replace("2025-02-20 01:49:59,068", said + "2025-02-20 01:49:59,068"))
    assert found.settings.asymmetric_activations is True
    assert found.inputs == {}
    assert [line for line in found.notices if "refused in 1 lines: The int16 of /head/Conv" in line]
    failed = read(
        tmp_path,
        "2021-04-26 10:13:59,201 INFO Start hb_mapper....\n2021-04-26 10:13:59,220 ERROR wrong input name: 'data'\n",
    )
    (said,) = failed.notices
    assert said.startswith("the conversion failed: wrong input name: 'data'; ")
    assert "diagnose FLOAT --log" in said


def test_a_log_that_stops_says_so(tmp_path) -> None:
    found = read(tmp_path, LOG[: LOG.index("/head/Conv")])
    assert "the log ends before the conversion did" in found.notices
    assert "/head/Conv" not in found.layers


def test_foreign_files_are_of_no_kind(tmp_path) -> None:
    letter = "Dear all,\nhb_mapper did not work for me. Cosine Similarity was 0.5\n"
    for text in ("- a\n- list\n", letter, "\x00\x01\x02model_parameters", '{"model_config": 3}', "name,value\na,1\n"):
        with pytest.raises(DataError, match="unrecognized file format"):
            read(tmp_path, text)


def test_hostile_files_are_refused_or_read_as_text(tmp_path) -> None:
    marker = tmp_path / "executed"
    with pytest.raises(DataError, match="plain values"):
        config(tmp_path, mean_value=f"!!python/object/apply:os.system ['touch {marker}']")
    assert not marker.exists()
    scalars = read(tmp_path, "model_parameters: 3\ninput_parameters: [1]\ncalibration_parameters:\n")
    assert len([line for line in scalars.notices if "expected a mapping of parameters" in line]) == 2
    keys = read(tmp_path, "model_parameters: {1: 2, null: 3}\ninput_parameters: {true: x}\n")
    assert len(keys.unknown) == 3
    header = "Node  ON   Subgraph  Type  Cosine Similarity  Threshold  DataType\n"
    found = read(tmp_path, f"{header}n0  BPU  id(0)  Conv  nan  inf  int8\n\x1b[31m" + "x" * 100_000 + "\n")
    assert found.layers["n0"].cosine is None and found.inputs == {}
    assert read(tmp_path, COMPILED.replace("{'op_config'", "&a [*a, *a] #{'op_config'")).settings.float_types is None


def judged(tmp_path: Path, *texts: str) -> dict[str, list[str]]:
    """Subjects of the findings by rule, on a case of files alone."""
    paths = [tmp_path / f"{place}.txt" for place in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    results = evaluate(BASE, derive(import_files(*paths), BASE))
    return {result.rule.id: [f.subject for f in result.findings] for result in results if result.findings}


@pytest.mark.source("horizon-norm-type", "horizon-int16")
def test_a_configuration_and_a_log_are_judged(tmp_path) -> None:
    text = CONFIG.replace("mean_value:", "mean_values:")
    text = text.replace("0.01712475 0.017507 0.01742919", "58.395 57.12 57.375")
    text = text.replace("calibration_type: 'max'", "calibration_type: 'kl'").replace("/head/Softmax", "/stem/Conv")
    found = judged(tmp_path, text, LOG)
    assert found.keys() == {"S015", "S020", "S021", "S023", "M010", "M012", "A016"}
    assert (found["M010"], found["M012"]) == (["/stem/Conv"], ["/head/Conv"])


def test_sound_files_are_no_finding(tmp_path) -> None:
    text = CONFIG.replace("/head/Softmax", "/head/Conv")
    assert judged(tmp_path, text, LOG.replace("0.912581", "0.9951")) == {}
    assert judged(tmp_path, EARLIER) == {}
    assert judged(tmp_path, QUANT) == {}
    assert judged(tmp_path, CONFIG.replace("'max'", "'skip'")).keys() == {"S022", "S023"}


@pytest.mark.source("horizon-tail-on-cpu", "horizon-accumulation", "horizon-int16-by-cosine")
def test_a_loss_is_named_where_it_begins(tmp_path) -> None:
    """Similarities hold the errors of all nodes before: what only passes them on is not accused."""
    cosines = [0.9995, 0.999, 0.93, 0.93, 0.9301, 0.95, 0.6, 0.61, *[0.999] * 9, 0.97, 0.971]
    head, tail = LOG[: LOG.index("/stem/Conv")], LOG[LOG.index("2025-02-20 01:49:59,069") :]
    row = "n{:<23}BPU  id(0)     HzSQuantizedConv        {:<17.6f}  2.5        int8\n"
    rows = (row.format(place, cosine) for place, cosine in enumerate(cosines))
    found = judged(tmp_path, head + "".join(rows) + tail)
    assert found == {"A016": ["n2", "n17"], "M012": ["n17"]}


@pytest.mark.source("horizon-per-channel")
def test_what_is_set_is_not_advised(tmp_path) -> None:
    """The options of the configuration reach the remedies: held back where in force, shown where not."""
    settings = config(tmp_path).settings
    facts = CaseFacts(model=ModelFacts(settings=settings), tensors=(TensorFacts(name="t", float_name="t"),))
    rule = next(rule for rule in BASE.rules if rule.id == "A007")
    asked = ("limit-activation-range", "per-channel-activations", "asymmetric-activations")
    asked += ("search-calibration-methods",)
    finding = Finding(rule.model_copy(update={"remedies": asked}), "t", None, "", (), facts.tensors[0])
    advised, held = advise([finding], BASE, facts)
    assert {each.id for each in held} == set(asked[:3])
    (search,) = advised
    now = {row.fact.rpartition(".")[2]: row.value for row in search.now}
    assert (now["calibration_method"], now["percentile"]) == ("percentile", pytest.approx(99.99))


def with_settings(case: Case, settings: SettingsFacts) -> Case:
    """The case as if a configuration had been collected with it."""
    model = case.record.model.model_copy(update={"settings": settings})
    return replace(case, record=case.record.model_copy(update={"model": model}))


@pytest.mark.nightly
@pytest.mark.source("horizon-norm-values", "horizon-norm-twice", "horizon-read-mode")
def test_images_against_the_settings(tmp_path) -> None:
    """A real pair on real samples: the lattice of the images is held against mean and factor that were imported."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 3, 8, 8)).astype(np.float32)
    mean, factor = (np.array(v, np.float32)[:, None, None] for v in (MEAN, FACTOR))
    forms = {
        "pixels": pixels,
        "unit": pixels / np.float32(255),
        "normalized": (pixels - mean) * factor,
        "shifted": (pixels - mean[::-1]) * factor,
    }
    pair = save_pair(tmp_path, conv_net(), qdq(conv_net(), {"image": forms["normalized"]}))
    told = config(tmp_path, mean_value="123.675 116.28 103.53").settings
    for validation, representative, codes in (
        ("normalized", "normalized", {"D020"}),
        ("normalized", "unit", {"D023"}),
        ("shifted", "pixels", {"D021"}),
        ("normalized", "pixels", set()),
    ):
        sets = {"representative": {"image": forms[representative]}, "validation": {"image": forms[validation]}}
        facts = derive(with_settings(quantmedic.collect(*pair, **sets, mode="fast", threads=1), told), BASE)
        for harmed in (True, None):
            known = facts.model_copy(update={"model": facts.model.model_copy(update={"harmed": harmed})})
            found = {result.rule.id for result in evaluate(BASE, known) if result.findings}
            assert found & {"D020", "D021", "D022", "D023"} == codes, (validation, representative, harmed)


@pytest.mark.thorough
@pytest.mark.source("horizon-norm-in-force")
def test_a_configuration_that_is_right_is_not_prescribed_again(tmp_path) -> None:
    """Calibrated on images scaled otherwise (D005): mean and factor of the YAML are advised only where they differ."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 3, 8, 8)).astype(np.float32)
    pixels[:, :, 0, 0], pixels[:, :, 0, 1] = 0, 255
    mean, factor = (np.array(v, np.float32)[:, None, None] for v in (MEAN, FACTOR))
    proper = (pixels - mean) * factor
    pair = save_pair(tmp_path, conv_net(), qdq(conv_net(), {"image": proper / 4}))
    measured = quantmedic.collect(*pair, representative={"image": proper / 4}, validation={"image": proper}, threads=1)
    for settings, kept in ((MEAN, True), (MEAN[::-1], False), (None, False)):
        values = {} if settings is None else {"mean_value": " ".join(map(str, settings))}
        case = with_settings(measured, config(tmp_path, **values).settings) if values else measured
        diagnosis = quantmedic.judge(case, toolchain="horizon")
        assert "D005" in diagnosis.causes[0].rules
        quantmedic.write_report(diagnosis, tmp_path, formats=["markdown"])
        shown = (tmp_path / "report.md").read_text()
        assert ('  mean_value: "123.675 116.28 103.53"' in shown) is not kept, settings
        assert ("they stay" in shown) is kept, settings


@pytest.mark.thorough
@pytest.mark.source("horizon-node-info")
def test_a_layer_that_stays_on_the_accelerator_is_told(tmp_path) -> None:
    """The YAML moves a node to the CPU, and the log shows it on the BPU."""
    asked = CONFIG.replace("/tail/Conv", "/stem/Conv").replace("/head/Softmax", "/other")
    assert judged(tmp_path, asked, LOG)["M014"] == ["/stem/Conv"]
    assert "M014" not in judged(tmp_path, CONFIG, LOG), "no such node in the log"
    (tmp_path / "asked.yaml").write_text(asked)
    (tmp_path / "asked.log").write_text(LOG)
    diagnosis = quantmedic.judge(import_files(tmp_path / "asked.yaml", tmp_path / "asked.log"))
    (cause,) = [cause for cause in diagnosis.causes if cause.cause == "placement-refused"]
    assert "moves it to the CPU" in cause.message and "BPU" in cause.message
    quantmedic.write_report(diagnosis, tmp_path, formats=["markdown"])
    assert 'and not in run_on_bpu: "/stem/Conv"' in (tmp_path / "report.md").read_text()


@pytest.mark.source("horizon-pipeline", "horizon-data-amount", "horizon-data-missed")
def test_pages_name_the_checks_of_the_whole_pipeline(capsys) -> None:
    """Post-processing, metric and changes of training; data sets of detectors; the range of max_percentile."""
    words = {
        "preprocessing": ["Post-processing", "Metric", "not carried over", "--expected-float-metric", "S006"],
        "representative-data": ["fewer samples", "background", "missed"],
        "horizon": ["(0.5 to 1)", "--reference-outputs", "M014"],
    }
    for page, expected in words.items():
        with pytest.raises(SystemExit) as left:
            main(["explain", page])
        shown = capsys.readouterr().out
        assert left.value.code == 0 and [word for word in expected if word not in shown] == [], page
