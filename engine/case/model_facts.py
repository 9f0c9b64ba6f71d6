"""Facts of the pair of models as a whole."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from quantmedic.engine.case.fact_base import Facts, SameModel, WordKeys, Words, fact
from quantmedic.engine.case.language_facts import LanguageFacts
from quantmedic.engine.case.layer_facts import KernelFacts
from quantmedic.engine.case.output_facts import ComparisonFacts, DeviceFacts, MetricFacts, StageFacts
from quantmedic.engine.case.settings_facts import (
    CheckpointFacts,
    CoverageFacts,
    FailureFacts,
    FloatFacts,
    OverrideFacts,
    SearchFacts,
    SettingsFacts,
)
from quantmedic.engine.case.tensor_facts import OutcomeFacts


class FamilyFacts(Facts):
    """All quantizers of a family, activations with the inputs or weights, changed together.

    Quantizers that each make a little of the noise, or that hide each other's, show only so what recovers it.
    """

    share: float | None = fact("share of the noise at the leading output that they make together", "ratio")
    outcome: OutcomeFacts = OutcomeFacts()


class ModelFacts(Facts):
    """Scope ``model``: the pair of models as a whole; every rule may read it as ``model.…``."""

    name: str | None = fact("file name of the quantized model without its folder")
    framework: Words[str | None] = fact(
        "onnx, torch, litert, openvino, safetensors or gguf of checkpoints, imported where only files of a toolchain "
        "were read, or float where no quantized model was made"
    )
    format: Words[str | None] = fact(
        "QDQ, QOperator, dynamic or none; of LiteRT models int8, uint8, int16x8, dynamic, weight-only, float16 or none"
    )
    toolchain: Words[str | None] = fact("producer recorded in the quantized model")
    toolchain_marks: tuple[str, ...] | None = fact(
        "marks of the tool that quantized: keys of metadata, domains and operators of its own, names of a quantizer"
    )
    opset: int | None = fact("opset of the default domain of the quantized model")
    operators: int | None = fact("operators of the quantized model without quantizers")
    compute_operators: int | None = fact("operators with weights or a matrix product")
    half_share: float | None = fact("share of the measured tensors that the quantized model holds as float16", "share")
    float_ends: Words[tuple[str, ...] | None] = fact(
        "INPUT, OUTPUT: which of them are floats in the quantized file, of files that could hold codes there"
    )
    float_nodes: WordKeys[Mapping[str, tuple[str, ...]] | None] = fact(
        "nodes that onnxruntime's static quantization left in float, by operator type; None for models of other tools"
    )
    quantized_types: Words[tuple[str, ...] | None] = fact(
        "operator types that it must have been told to quantize; None: the usual ones, except for float_nodes"
    )
    quantized_share: float | None = fact("share of compute operators with quantized inputs or weights", "share")
    integer_share: float | None = fact("share of compute operators that the runtime executes with integers", "share")
    bytes_float: int | None = fact("bytes of the float model with its external data", "bytes")
    bytes_quantized: int | None = fact("bytes of the quantized model with its external data", "bytes")
    size_ratio: float | None = fact("bytes_quantized / bytes_float", "ratio")
    operations: int | None = fact(
        "multiply-adds of one sample, over all layers; None where those of one layer are not known"
    )
    integer_operations_share: float | None = fact(
        "share of these operations that the runtime executes with integers", "share"
    )
    latency_float_ms: float | None = fact(
        "median time of one run of the float model as deployed, from --profile: both models in turn, after a warm-up",
        "ms",
    )
    latency_float_low_ms: float | None = fact("lower quartile of these times", "ms")
    latency_float_high_ms: float | None = fact("upper quartile of these times", "ms")
    latency_quantized_ms: float | None = fact("the same of the quantized model", "ms")
    latency_quantized_low_ms: float | None = fact("lower quartile of these times", "ms")
    latency_quantized_high_ms: float | None = fact("upper quartile of these times", "ms")
    latency_ratio: float | None = fact("latency_quantized_ms / latency_float_ms", "ratio")
    latency_runs: int | None = fact("runs of each model that were timed")
    latency_threads: int | None = fact("processor threads that they used")
    latency_batch: int | None = fact("samples of one run")
    kernels: tuple[KernelFacts, ...] = Field(
        default=(), description="time by kind of operator of the quantized model, slowest first; from --profile"
    )
    degraded_layers: int | None = fact("layers whose accumulated error is over a threshold")
    degraded_share: float | None = fact("degraded layers / layers measured", "share")
    rounding_sqnr_min_db: float | None = fact("lowest rounding sqnr_db of any quantized activation", "dB")
    weight_sqnr_min_db: float | None = fact("lowest rounding sqnr_db of any layer's weights", "dB")
    output_sqnr_db: float | None = fact("lowest accumulated sqnr_db of the network's outputs", "dB")
    output_worst_sqnr_db: float | None = fact(
        "the same with the worst column that counts and the worst operand of every output", "dB"
    )
    output_agreement: float | None = fact("share of samples where both models predict the same class", "share")
    reported_cosine_min: float | None = fact("lowest cosine similarity that the toolchain reported of a layer", "ratio")
    reported_cosine_median: float | None = fact("median over the layers of what it reported", "ratio")
    device_layers: int | None = fact(
        "layers with weights and inputs of integers, of which a file shows what type the device computes them in"
    )
    device_float_share: float | None = fact("share of device_layers that the device computes in a float type", "share")
    inner_host_layers: int | None = fact(
        "layers that the toolchain put on the CPU between two that it put on the accelerator (inner_host)"
    )
    sqnr_slope_db: float | None = fact(
        "least-squares slope of the accumulated sqnr_db over the layers, first to last, times their number: total fall",
        "dB",
    )
    sqnr_worst_step_db: float | None = fact("largest fall of accumulated sqnr_db within one layer", "dB")
    float_is_quantized: bool | None = fact("the float model holds quantizers too")
    same_as_float: SameModel | None = fact(
        "whether the quantized model is the float model itself: bytes (equal files; of a module equal parameters), "
        "weights (equal operators and weights, and no quantizer in either), no"
    )
    first_nonfinite_layer: str | None = fact(
        "first layer in topological order with a NaN or infinite value that the float model does not have, else the "
        "first with any"
    )
    float_nonfinite: bool | None = fact("the float model shows NaN or infinite values somewhere")
    nonfinite_in: Literal["none", "float", "quantized", "both"] | None = fact(
        "models that show non-finite values there"
    )
    nonfinite_output: Literal["none", "float", "quantized", "both"] | None = fact(
        "models with a NaN or infinite value in an output"
    )
    input_nonfinite: bool | None = fact("the input data itself holds non-finite values")
    harmed: bool | None = fact(
        "quantization measurably hurts: the metric's proven drop exceeds the threshold drop_moderate, or both models "
        "predict the same class for a share under harmed_agreement; or a counting column of an output is dead, or an "
        "operand of it erased; where the outputs are no classes, an output is under quantize_error_sqnr_db or spoiled"
    )
    unsimulated_share: float | None = fact(
        "share of the noise at the leading output that no quantizer makes (loss budget)", "share"
    )
    departures_share: float | None = fact(
        "share of it that begins at operators which depart from their weights and grids (loss budget)", "share"
    )
    activations: FamilyFacts = FamilyFacts()
    weights: FamilyFacts = FamilyFacts()
    power_of_two_share: float | None = fact("share of activation quantizers whose scale is a power of two", "share")
    dead_output: bool | None = fact("the quantized output is the same for every sample while the float one is not")
    cpu_vnni: bool | None = fact("the host's CPU has VNNI (avx512_vnni or avx_vnni)")
    runtime: Words[str | None] = fact("the library that computed the quantized model, with its version")
    integer_kernel_noise: float | None = fact(
        "mean d² of the outputs as deployed and without graph optimizations / mean d² of the latter and the float "
        "model, first batch",
        "ratio",
    )
    exact_kernel_noise: float | None = fact(
        "the same with integer sums that cannot saturate; measured where integer_kernel_noise is more than 1", "ratio"
    )
    kernels_avoided_by: Words[str | None] = fact(
        "setting of the runtime without which integer_kernel_noise is more than 1, and with which it is not"
    )
    required_opset: int | None = fact(
        "opset that the quantizers of the default domain need: 10, 13 for scales per channel, 19 for float8, 21 for "
        "blocks and for codes of 16 or 4 bits"
    )
    opset_deficit: int | None = fact("required_opset - opset, 0 where the opset suffices")
    float_rerun_difference: float | None = fact(
        "largest change of an output of the float model in a second run of the first batch / its largest magnitude",
        "ratio",
    )
    training_nodes: int | None = fact(
        "operators of the float model in training mode: BatchNormalization that takes the batch's statistics, Dropout "
        "that drops"
    )
    first_training_node: str | None = fact("name of the first of them")
    fake_quantizers: int | None = fact("fake quantizers of a quantized torch module")
    idle_fake_quantizers: int | None = fact("of these, such as are switched off while their observers go on")
    idle_fake_quantizer_names: tuple[str, ...] | None = fact("names of the first of them, at most eight")
    reference: ComparisonFacts = Field(
        default=ComparisonFacts(), description="float model (y) against the outputs of --reference-outputs (x)"
    )
    device: DeviceFacts = DeviceFacts()
    stages: tuple[StageFacts, ...] = Field(default=(), description="the models of --stage, in the order given")
    float_stage: str | None = fact("stage without quantizers that departs most from the first")
    float_stage_difference: float | None = fact("relative_difference of that stage", "ratio")
    worst_stage: str | None = fact(
        "stage behind the first quantized one that adds most noise: what is made of a model that is quantized already"
    )
    worst_stage_noise_ratio: float | None = fact(
        "mean d² of that stage against the one before / mean d² of the one before against the first", "ratio"
    )
    worst_stage_agreement: float | None = fact("agreement of that stage with the first", "share")
    worst_stage_sqnr_db: float | None = fact("sqnr_db of that stage against the first", "dB")
    worst_stage_drop_db: float | None = fact("sqnr_db of the stage before minus that of worst_stage", "dB")
    search: SearchFacts = SearchFacts()
    failure: FailureFacts = FailureFacts()
    float_model: FloatFacts = FloatFacts()
    checkpoint: CheckpointFacts = CheckpointFacts()
    coverage: CoverageFacts = CoverageFacts()
    overrides: OverrideFacts = OverrideFacts()
    settings: SettingsFacts = SettingsFacts()
    metric: MetricFacts = MetricFacts()
    language: LanguageFacts = LanguageFacts()

    @property
    def is_twice_the_same(self) -> bool:
        """The quantized model is the float model itself."""
        return self.same_as_float in ("bytes", "weights")

    @property
    def is_comparable(self) -> bool:
        """The float model is another one, without quantizers, and gives numbers."""
        spoiled = self.nonfinite_output in ("float", "both")
        return not (self.is_twice_the_same or self.float_is_quantized or spoiled)
