"""Where the tools themselves stood in the way: the survey's group 6; and the list of all forty reports."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.field_patients import (
    accuracy,
    assert_nothing_lost,
    demo,
    diagnose,
    first,
    judged,
    named_layers,
    quantize,
    ranges,
    scale_channels,
    split,
    with_ranges,
)
from builders.onnx_models import renamed, run

pytestmark = pytest.mark.thorough

HERE = Path(__file__).parent

#: Every report of the survey's section 3, and where it is answered. A name that begins with ``test_`` is a test of this
#: folder; ``feature`` says which part of the program answers a complaint that is no loss of accuracy.
REPORTS = {
    1: ("ultralytics/ultralytics#1695", "test_boxes_and_scores_in_one_output"),
    2: ("ultralytics/ultralytics#25524", "test_cosine_of_the_whole_tensor_is_blind"),
    3: ("open-mmlab/mmyolo#776", "test_three_operands_in_the_last_axis"),
    4: ("microsoft/onnxruntime#14233", "test_leaving_the_named_layers_in_float_heals"),
    5: ("PINTO0309/onnx2tf#244, #269", "test_error_that_grows_with_every_concat"),
    6: ("pytorch/pytorch#90289", "test_depthwise_weights_on_one_scale"),
    7: ("ARM-software/armnn#344", "test_every_depthwise_layer_at_chance"),
    8: ("microsoft/onnxruntime#11415", "test_per_channel_weights_that_make_it_worse"),
    9: ("microsoft/onnxruntime#21000", "test_bias_code_beyond_int32"),
    10: ("qualcomm/aimet#4054", "test_scales_at_the_floor"),
    11: ("qualcomm/aimet#2474", "test_device_with_one_scale_for_each_weight"),
    12: ("alibaba/TinyNeuralNetwork#204", "test_residual_stream_with_a_massive_channel"),
    13: ("SonySemiconductorSolutions/mct-model-optimization#1337", "test_outliers_and_not_the_gelu"),
    14: ("SonySemiconductorSolutions/mct-model-optimization#771", "test_swish_taken_apart_by_quantizers"),
    15: ("ultralytics/yolov5#10164", "test_negative_tail_on_a_coarse_grid"),
    16: ("mit-han-lab/smoothquant#42, vllm#1112", "test_down_projection_of_a_gated_mlp"),
    17: ("microsoft/Olive#1597", "test_attention_mask"),
    18: ("tensorflow/models#10809", "test_average_on_the_grid_of_its_input"),
    19: ("tensorflow/tensorflow#44289", "test_one_image_again_and_again"),
    20: ("PINTO0309/onnx2tf#610", "test_normalization_that_the_network_does_itself"),
    21: ("FasterAI-Labs/fasterai#80", "test_loader_from_before_normalize_was_added"),
    22: ("OpenPPL/ppq#411", "test_calibrated_in_the_dark"),
    23: ("NVIDIA/TensorRT#3137, #3135", "test_stale_calibration_cache"),
    24: ("microsoft/onnxruntime-inference-examples#319", "test_mean_subtracted_but_never_divided"),
    25: ("alibaba/MNN#237", "test_many_equal_confidences"),
    26: ("microsoft/onnxruntime#5849, #6004, #14642, FBGEMM#125", "test_full_range_weights_without_vnni"),
    27: ("openvinotoolkit/openvino#25342", "test_overflow_fix_for_the_first_layer_only"),
    28: ("qualcomm/aimet#3268, rknn-toolkit2#573", "test_encoding_that_the_device_made_up"),
    29: ("NVIDIA/TensorRT#2466, onnxruntime#13639", "test_square_that_leaves_float16"),
    30: (
        "microsoft/onnxruntime#10503",
        "feature: one pass whose memory does not grow, tests/collectors/measure/test_lanes.py",
    ),
    31: (
        "openvinotoolkit/openvino#16240",
        "feature: checkpoints, progress and resume, tests/collectors/measure/test_resume.py",
    ),
    32: ("NVIDIA/TensorRT#4616", "test_layers_are_named_as_in_the_float_model"),
    33: ("tensorflow/tensorflow#58206, #58633", "test_rmse_over_scale_that_says_all_is_fine"),
    34: ("huggingface/optimum#1418", "test_exclude_list_that_matches_nothing"),
    35: ("airockchip/rknn_model_zoo#257", "test_better_cosine_is_no_better_accuracy"),
    36: ("openppl/ppq#416, #258", "test_noise_in_the_middle_that_the_task_does_not_feel"),
    37: ("intel/neural-compressor#956", "test_dummy_data"),
    38: ("NVIDIA/TensorRT#3737, #2485", "test_which_layers_are_really_integer"),
    39: ("pytorch/pytorch#160095, ao#2980, MQBench#83", "test_quantizer_inserted_nothing"),
    40: ("vllm-project/llm-compressor#20", "test_expert_that_saw_no_tokens"),
}


def test_every_report_has_its_place() -> None:
    assert sorted(REPORTS) == list(range(1, 41))
    defined = {name for path in HERE.glob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}
    for number, (report, place) in REPORTS.items():
        assert "#" in report
        if place.startswith("feature: "):
            assert (HERE.parents[1] / place.rpartition(", ")[2]).is_file(), number
        else:
            assert place in defined, number


# --- what was quantized, and what it is called -----------------------------------------------------------------------


@pytest.mark.nightly
def test_quantizer_inserted_nothing(tmp_path: Path) -> None:
    """pytorch#160095: the prepared and converted model holds no quantizer at all, and nobody says so."""
    everything = [node.name for node in demo().graph.node]
    _, diagnosis = judged(demo(), tmp_path, nodes_to_exclude=everything)
    assert first(diagnosis) == "not-quantized"
    assert diagnosis.model.quantized_share == 0


def test_which_layers_are_really_integer(tmp_path: Path) -> None:
    """TensorRT#3737, #2485: half of the network was left in float; the table says which layers run on integers."""
    left = [node.name for node in demo().graph.node if "/residual/" in node.name or "/head/" in node.name]
    _, diagnosis = judged(demo(), tmp_path, nodes_to_exclude=left)
    assert "partly-quantized" in [cause.cause for cause in diagnosis.causes]
    integer = {layer.name for layer in diagnosis.layers if layer.executed_as == "integer"}
    assert "/stem/conv/Conv" in integer
    assert not integer & set(left)


@pytest.mark.nightly
def test_layers_are_named_as_in_the_float_model(tmp_path: Path) -> None:
    """TensorRT#4616: layers of the built engine cannot be mapped to nodes of the model.

    All names within the quantized model are lost here, and a cause still names the float layer.
    """
    model = demo()
    representative, validation = split(model)
    wide = ranges(quantize(model, representative, tmp_path))["/residual/Add_output_0"]
    options = with_ranges({"/residual/Add_output_0": (60 * wide[0], 60 * wide[1])})
    nameless, _ = renamed(quantize(model, representative, tmp_path, **options))
    diagnosis = diagnose(model, nameless, representative, validation, tmp_path)
    assert first(diagnosis) == "poor-threshold"
    assert named_layers(diagnosis, "poor-threshold") == ["/residual/Add"]


def loud_branch() -> onnx.ModelProto:
    """The demo with a branch a hundred times as loud as the one it is joined with; the layer behind undoes it."""
    model = demo()
    scale_channels(model, "branches.fine.pointwise.conv", "head.depthwise.conv", range(40), 100)
    return model


@pytest.mark.nightly
def test_exclude_list_that_matches_nothing(tmp_path: Path) -> None:
    """optimum#1418: nodes_to_exclude holds names of modules, no node has one of them, and nothing says so.

    The second diagnosis names the nodes, and says that nothing has changed since the first.
    """
    model = loud_branch()
    representative, validation = split(model)

    def after(name: str, **options: object) -> onnx.ModelProto:
        return quantize(model, representative, tmp_path / name, per_channel=True, **options)

    before = tmp_path / "before.case"
    first_try = diagnose(model, after("one"), representative, validation, tmp_path, keep=before)
    assert first(first_try) == "unbalanced-concatenation"
    modules = after("two", nodes_to_exclude=["model.branches.cat", "branches.Concat"])
    unchanged = diagnose(model, modules, representative, validation, tmp_path, previous=before)
    assert first(unchanged) == "unbalanced-concatenation"
    assert unchanged.previous is not None and unchanged.previous.changed == ()
    (remedy,) = [remedy for remedy in unchanged.causes[0].remedies if remedy.id == "keep-layers-float"]
    nodes = list(remedy.fields["around"])
    assert nodes == ["/branches/Concat", "/head/depthwise/conv/Conv"], "the join and what would quantize it again"
    lost = [
        accuracy(model, validation) - accuracy(m, validation) for m in (modules, after("x", nodes_to_exclude=nodes))
    ]
    assert lost[0] > 0.05 > 0.02 > lost[1]


# --- what a number means ---------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_rmse_over_scale_that_says_all_is_fine(tmp_path: Path) -> None:
    """tensorflow#58206: a range of thousands, rmse/scale 0.288 everywhere, which is ideal rounding, and a wrong output.

    The measure sees clipping and is blind to a wide range.
    """
    wide = with_ranges({"/residual/Add_output_0": (-3000, 3454)}, per_channel=True)
    lost, diagnosis = judged(demo(), tmp_path, attribution=True, **wide)
    (layer,) = [layer for layer in diagnosis.layers if layer.float_name == "/residual/Add"]
    assert layer.validation.rounding.rmse_over_scale is not None
    assert layer.validation.rounding.rmse_over_scale < 0.3
    assert lost > 0.2
    assert first(diagnosis) == "poor-threshold"
    assert named_layers(diagnosis, "poor-threshold") == ["/residual/Add"]


@pytest.mark.nightly
def test_rmse_over_scale_at_the_last_layer(tmp_path: Path) -> None:
    """tensorflow#58633: rmse/scale is 2 at the last layer, and its user cannot tell what that means: it clips."""
    pooled = "/pool/GlobalAveragePool_output_0"
    _, diagnosis = judged(demo(), tmp_path, **with_ranges({pooled: (0, 0.4)}, per_channel=True))
    assert first(diagnosis) == "over-clipped-activations"
    (layer,) = [layer for layer in diagnosis.layers if layer.float_name == "/pool/GlobalAveragePool"]
    assert layer.validation.rounding.rmse_over_scale is not None
    assert layer.validation.rounding.rmse_over_scale > 2


@pytest.mark.nightly
def test_noise_in_the_middle_that_the_task_does_not_feel(tmp_path: Path) -> None:
    """ppq#416 and #258: which error of a layer is acceptable? One of 12 dB, where every prediction stands."""
    model = demo()
    tensor = "/residual/project/conv/Conv_output_0"
    low, high = ranges(quantize(model, split(model)[0], tmp_path, per_channel=True))[tensor]
    _, diagnosis = judged(model, tmp_path, **with_ranges({tensor: (16 * low, 16 * high)}, per_channel=True))
    (layer,) = [layer for layer in diagnosis.layers if layer.float_name == "/residual/project/conv/Conv"]
    assert layer.validation.rounding.sqnr_db is not None and layer.validation.rounding.sqnr_db < 16
    assert_nothing_lost(diagnosis)


@pytest.mark.nightly
def test_better_cosine_is_no_better_accuracy(tmp_path: Path) -> None:
    """rknn_model_zoo#257: mixed precision raises the cosine of the output, and the task gets worse.

    A constant on all scores gives a cosine of nearly 1 while the classes are lost: the verdict follows the task.
    """
    model = demo()
    offset = np.float32(1500)
    (bias,) = [tensor for tensor in model.graph.initializer if tensor.name == "classifier.bias"]
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + offset, bias.name))
    representative, validation = split(model)
    quantized = quantize(model, representative, tmp_path, per_channel=True)
    cosine = np.vdot(*(x := [run(m, {"image": validation["image"]})["logits"].ravel() for m in (model, quantized)]))
    assert cosine / np.linalg.norm(x[0]) / np.linalg.norm(x[1]) > 0.99999
    diagnosis = diagnose(model, quantized, representative, validation, tmp_path)
    assert diagnosis.drop_class in ("large", "moderate")
    assert diagnosis.verdict == "degraded"
