"""Settings of the quantizer that the quantized model itself shows, for prescriptions that keep them."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, JsonValue

from quantmedic.engine.json_record import Contract


class SettingsInForce(Contract):
    """What a new quantization has to state to give the same model; None and empty: not shown, or not used."""

    format: str | None = Field(default=None, description="QDQ, QOperator, or as model.format says")
    activation_type: str | None = Field(default=None, description="type of most activation codes, such as uint8")
    weight_type: str | None = Field(default=None, description="type of most weight codes, such as int8")
    other_activations: Mapping[str, tuple[str, ...]] = Field(
        default={}, description="float names of activations with codes of another type, by that type"
    )
    other_weights: Mapping[str, Mapping[str, tuple[int | None]]] = Field(
        default={},
        description="axis of the scales, or None for one scale, by type of the codes and name of the weight: weights "
        "of another type than most, or with one scale where others have one per channel",
    )
    symmetric_activations: bool | None = Field(default=None, description="0.0 is the middle code of every activation")
    symmetric_calibration: Literal[True] | None = Field(
        default=None,
        description="ranges reach as far below 0.0 as above it, while the quantizer itself works with zero points",
    )
    symmetric_weights: bool | None = Field(default=None, description="0.0 is the middle code of every weight")
    per_channel_weights: bool | None = Field(default=None, description="some weights have a scale per channel")
    per_channel_types: tuple[str, ...] = Field(default=(), description="operator types of these weights")
    weights_of_layers: Mapping[str, tuple[str, ...]] = Field(
        default={}, description="float names of layers whose weights have codes of another type than most, by that type"
    )
    one_scale_layers: tuple[str, ...] = Field(
        default=(), description="float names of layers with one scale where others have one per channel of weights"
    )
    float_ends: tuple[str, ...] = Field(
        default=(), description="INPUT, OUTPUT: those that stay floats though they could be codes"
    )
    reduced_range: Literal[True] | None = Field(default=None, description="8-bit weights use 7 bits of their codes")
    kept_activations: Literal[True] | None = Field(
        default=None, description="activations stay as operators although the quantizers before them do their work"
    )
    weight_quantizers: Literal[True] | None = Field(
        default=None, description="weights are stored as floats that pass a quantizer"
    )
    prepared: Literal[True] | None = Field(
        default=None,
        description="the float model was prepared before it was quantized: shapes inferred, batch norms folded",
    )
    float_biases: Literal[True] | None = Field(default=None, description="quantized layers keep their biases in float")
    float_layers: Mapping[str, tuple[str, ...]] = Field(
        default={}, description="float nodes of layers that compute without a grid of their own, by operator type"
    )
    quantized_types: tuple[str, ...] = Field(
        default=(), description="operator types that the toolchain was told to quantize, where it was"
    )
    calibration_method: str | None = Field(default=None, description="as the toolchain's settings name it")
    percentile: float | None = Field(default=None, description="share of the values that it covers, in percent")
    reduced_activations: Literal[True] | None = Field(
        default=None, description="8-bit activations use 7 bits of their codes"
    )
    weight_group_size: int | None = Field(default=None, description="weights that share a scale, in groups")
    declared_group_size: int | None = Field(
        default=None, description="the same as the configuration of a checkpoint says; -1: all of an output channel"
    )
    declared_groups: Mapping[str, JsonValue] = Field(
        default={}, description="config_groups of compressed-tensors, as the configuration of a checkpoint has them"
    )
    declared_cache: Mapping[str, JsonValue] = Field(default={}, description="the same of kv_cache_scheme")
    declared_symmetric: bool | None = Field(
        default=None, description="the configuration of a checkpoint says that weights have no zero points"
    )
    declared_order: bool | None = Field(
        default=None, description="the same, that columns were quantized in the order of their activations"
    )
    layers_by_weight: Mapping[str, tuple[str, ...]] = Field(
        default={},
        description="names in the quantized model of layers whose weights have other than 8 bits, by type; float: none",
    )
    z_threshold: float | None = Field(default=None, description="as the toolchain's settings tell it, in deviations")
    min_threshold: float | None = Field(default=None, description="the same, of the least threshold")
    activation_error_method: str | None = Field(default=None, description="the same, such as MSE or NOCLIPPING")
    weights_error_method: str | None = Field(default=None, description="the same for weights")
    shift_negative: bool | None = Field(default=None, description="the same of the shift of negative activations")
    shift_negative_ratio: float | None = Field(default=None, description="the same of its largest ratio")
    channel_equalization: bool | None = Field(default=None, description="the same of equalized activation channels")
    bias_correction: bool | None = Field(default=None, description="the same of biases corrected for weights")
    activation_bias_correction: bool | None = Field(default=None, description="the same for activations")
    concat_threshold_update: bool | None = Field(default=None, description="the same of operands of concatenations")
