"""Facts of one layer."""

from typing import Literal

from pydantic import Field

from quantmedic.engine.case.fact_base import Facts, Prose, Words, fact
from quantmedic.engine.case.language_facts import RunningInputFacts
from quantmedic.engine.case.settings_facts import AskedFacts
from quantmedic.engine.case.tensor_facts import SourceFacts, TensorFacts
from quantmedic.engine.case.weight_facts import BiasFacts, ConstantFacts, WeightErrorFacts, WeightFacts


class ReportedFacts(Facts):
    """What another tool measured of one layer, in our units and directions; its own words are in the manual."""

    origin: str | None = fact("name of the file that says so")
    cosine: float | None = fact("cosine similarity of float and quantized output", "ratio")
    sqnr_db: float | None = fact("-10 · log10(noise power / signal power) of the output", "dB")
    mse: float | None = fact("mean squared difference of the output", "value²")
    normalized_mse: float | None = fact(
        "mean squared difference of the saved tensor, float and quantized, after each was scaled to 0 … 1 by its own "
        "extremes (Intel Neural Compressor's MSE): blind to a wrong scale or offset. It saves the first input of a "
        "layer of an ONNX model, and takes one sample of it; of other models it saves the output",
        "ratio",
    )
    saved_sqnr_db: float | None = fact("-10 · log10(noise power / signal power) of the saved tensor", "dB")
    weight_normalized_mse: float | None = fact("the same of the weights", "ratio")
    weight_sqnr_db: float | None = fact("-10 · log10(noise power / signal power) of the weights", "dB")
    rmse_over_scale: float | None = fact("√mse / scale; 1/√12 ≈ 0.289 is ideal rounding", "steps")
    own_metrics: Prose[tuple[str, ...] | None] = fact("metrics that its user added, by name: mean_abs_error 0.0123")
    min: float | None = fact("smallest value of the float output", "value")
    max: float | None = fact("largest value of the float output", "value")
    weight_min: float | None = fact("smallest float weight", "value")
    weight_max: float | None = fact("largest float weight", "value")
    weight_mean: float | None = fact("mean of the float weights", "value")
    weight_std: float | None = fact("standard deviation of the float weights", "value")
    weight_stored_min: float | None = fact("smallest quantized weight", "value")
    weight_stored_max: float | None = fact("largest quantized weight", "value")
    weight_stored_mean: float | None = fact("mean of the quantized weights", "value")
    weight_stored_std: float | None = fact("standard deviation of the quantized weights", "value")
    device: Words[str | None] = fact("where the toolchain puts it: BPU, CPU …")
    dtype: Words[str | None] = fact("type that it computes with: int8, int16, fp8, half, float …")
    kernel: str | None = fact("name of the kernel that computes it, as the toolchain calls it")
    fused: tuple[str, ...] | None = fact("layers that this kernel computes together, the first eight, itself included")
    reformats: int | None = fact("copies beside it that only change layout or type of what it reads or writes")


class FusionFacts(Facts):
    """A layer with weights and the activation function behind it: runtimes compute both in one kernel where they can.

    Known of layers that are quantized and have such a function behind them in the float model.
    """

    activation: Words[str | None] = fact("operator type of the activation function that reads what the layer makes")
    split: bool | None = fact(
        "the quantized model rounds the layer's result before the activation, and again behind it"
    )
    alike: int | None = fact("layers of this type with this activation function, itself included")
    joined_share: float | None = fact("share of these that are rounded only once, behind the activation", "share")
    other_readers: int | None = fact(
        "how many others read what the layer makes: operators, and outputs of the network; the product of a Swish is "
        "part of the activation"
    )
    also_read_by: Words[str | None] = fact("their names, or nothing else")


class LayerFacts(Facts):
    """Scope ``layer``: one operator of the quantized model and its twin in the float model."""

    name: str | None = fact("name of the float layer, else of the quantized one")
    float_name: str | None = fact("node name in the float model")
    quantized_name: str | None = fact("node name in the quantized model")
    float_nodes: tuple[str, ...] | None = fact(
        "names of the float nodes that it stands for, its fused activation included; none where its own has no name"
    )
    op_type: str | None = fact("operator type without its quantization (Conv, not QLinearConv)")
    index: int | None = fact("topological index")
    part_gain: float | None = fact(
        "of an embedding or output layer: share of the divergence of a language model that its float weights take "
        "away; of a router of experts, that those of all routers do; None where the stored ones are no rounding of "
        "these",
        "share",
    )
    block_gain: float | None = fact(
        "share of the divergence of a language model that the float weights of the layer's block take away, of the "
        "block that makes most noise; None where most layers of the model are as coarse, or rounding erases input "
        "channels in the block",
        "share",
    )
    running_input: RunningInputFacts = RunningInputFacts()
    is_compute: bool | None = fact("operator with weights or a matrix product: Conv, Gemm, MatMul, …")
    is_last: bool | None = fact("last compute operator")
    executed_as: Literal["integer", "float"] | None = fact("kernel in the optimized graph of the runtime")
    operations: int | None = fact("multiply-adds of one sample")
    time_ms: float | None = fact(
        "median time of one run in the quantized model, the quantizers of its output included; from --profile", "ms"
    )
    time_share: float | None = fact("time_ms / that of all operators of the quantized model", "share")
    weight: WeightFacts = WeightFacts()
    weight_error: WeightErrorFacts = WeightErrorFacts()
    bias: BiasFacts = BiasFacts()
    constant: ConstantFacts = ConstantFacts()
    fusion: FusionFacts = FusionFacts()
    weight_source: SourceFacts = SourceFacts()
    bias_source: SourceFacts = SourceFacts()
    run_time_share: float | None = fact(
        "share of the noise at the output that its input makes, which is quantized anew at every run"
    )
    input_worst_channel_sqnr_db: float | None = fact(
        "lowest worst_channel_sqnr_db of the rounding error among its inputs", "dB"
    )
    only_quantized_type: bool | None = fact("the weights of several layers are quantized, all of them of its type")
    run_time_bits: int | None = fact(
        "bits of the one grid on which an input of it is quantized anew at every run; None where none is", "bits"
    )
    divisor_steps: float | None = fact(
        "of Div, Reciprocal and Log: smallest magnitude of what is divided by, or taken the logarithm of, in steps of "
        "its grid, where all its values have one sign; under 0.5 it is rounded to zero",
        "steps",
    )
    output: TensorFacts = TensorFacts()
    device_departs: bool | None = fact(
        "a departure of the device begins at its output (device.begins); where several layers, such as a Conv and its "
        "Relu, end in one tensor that is read, at the first of them"
    )
    degraded: bool | None = fact(
        "accumulated error of its output over a threshold: nmse, cosine or sqnr_db (thresholds quantize_error_*); or "
        "it holds the columns of a network output, and one of them or one operand is spoiled"
    )
    worst_output_sqnr_db: float | None = fact(
        "of a layer that holds the columns of a network output: the lowest sqnr_db of this output as a whole, of its "
        "columns that count and of its operands",
        "dB",
    )
    feeders: tuple[str, ...] = Field(
        default=(),
        description="names of the layers without weights that feed it, up to three steps upstream, nearest first",
    )
    halves: tuple[str, ...] = Field(
        default=(),
        description="names of the operator that takes most of its output off again, and of the layers that make what "
        "is taken off, up to three steps upstream: only all of them together may stay in float",
    )

    decoder: tuple[str, ...] = Field(
        default=(),
        description="of what joins boxes and scores of a detector, names of the other layers behind the last ones with "
        "weights, where both are decoded",
    )
    decoder_layers: int | None = fact("of what joins boxes and scores of a detector, number of the layers in decoder")

    decoder_share: float | None = fact(
        "of a layer behind the last ones with weights of a detector, where boxes and scores are decoded: share of the "
        "noise at the output that quantizing all of these and their constants makes, but for what joins boxes and "
        "scores, and what another range mends",
        "share",
    )

    @property
    def group(self) -> tuple[str, ...]:
        """Names of the layers that stay in float with it."""
        return tuple(dict.fromkeys((*self.feeders, *self.halves, *self.decoder)))

    difference: str | None = fact(
        "in words which attributes and constants of the operator are not those of its counterpart in the float model; "
        "None where all that can be compared are"
    )
    stranger: bool | None = fact(
        "computes values in the quantized model, and neither it nor what it makes has a counterpart in the float model"
    )
    behind_sqnr_db: float | None = fact(
        "of a stranger: sqnr_db of the accumulated error of the first tensor behind it that has a counterpart", "dB"
    )
    behind_line_gain_db: float | None = fact(
        "what that tensor's sqnr_db gains where the error that is a line, factor times float value plus offset, is "
        "taken off each channel: about 0 for rounding, large where values were shifted or scaled",
        "dB",
    )
    born: bool | None = fact("its output is degraded although none of its inputs is: the error is born here")
    compute_index: int | None = fact("place among the compute operators, 0 = first")
    added_nmse: float | None = fact(
        "operator nmse of its output where it was measured, else accumulated nmse of its output minus the largest of "
        "its inputs, at least 0: noise that this layer adds",
        "ratio",
    )
    error_rank: int | None = fact("place among the compute operators by added_nmse, 1 = largest")
    reads_unsigned: bool | None = fact("the first activation that it reads is stored as unsigned codes")
    asked: AskedFacts = AskedFacts()
    reported: ReportedFacts = ReportedFacts()
    reported_level_db: float | None = fact(
        "reported.sqnr_db, else what reported.cosine amounts to for noise that does not depend on the signal: "
        "10 · log10(cosine² / (1 - cosine²)), at least -60",
        "dB",
    )
    reported_before_db: float | None = fact(
        "reported_level_db of the nearest layer before it that has one; 90 where there is none", "dB"
    )
    reported_weight_level_db: float | None = fact(
        "sqnr_db of the weights by what was reported: their power, from mean and standard deviation, over the noise, "
        "from the normalized MSE and their range; an upper bound, since that MSE sees no wrong scale or offset",
        "dB",
    )
    layers_behind: int | None = fact("layers behind it in the order of the network; 0: the last one")
    inner_host: bool | None = fact(
        "the toolchain put it on the CPU, and layers before and behind it on the accelerator"
    )
    host_asked: bool | None = fact("the settings move it to the CPU by name (host_layers)")
    wide_asked: bool | None = fact("the settings ask for 16 bits for it by name (wide_layers)")


class KernelFacts(Facts):
    """All operators of one kind in the quantized model as the runtime executes it, from --profile."""

    op_type: Words[str | None] = fact("kind of operator that the runtime executes, such as QLinearConv")
    count: int | None = fact("operators of this kind")
    time_ms: float | None = fact("median time of one run, summed over them", "ms")
    time_share: float | None = fact("time_ms / that of all operators", "share")
