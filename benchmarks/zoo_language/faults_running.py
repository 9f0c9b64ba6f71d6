"""Activations and K and V caches whose grids do not suit the network: felt while it runs, and not in the weights."""

from dataclasses import replace

import numpy as np

from .activations import (
    FLOAT8_TENSOR,
    FLOAT8_TOKENS,
    INT8_TENSOR,
    INT8_TOKENS,
    MXFP4,
    MXFP8,
    NVFP4,
    with_cache,
    with_constant_keys,
    with_inputs,
    with_loud_keys,
    with_massive_tokens,
)
from .faults_codes import with_shared_scales
from .networks import Values
from .patient import Patient, float_patient
from .registry import control, fault
from .roles import block_of, blocks, last, norms
from .schemes import Scheme
from .surgery import move_gains

_INT8, _FLOAT8, _NVFP4 = Scheme("int8", 8, 0), Scheme("float8", 8, 0), Scheme("nvfp4", 4, 16)


@fault("static-scales-on-massive-tokens", "running", "static-activation-scales", bases=("int8",))
def static_scales_on_massive_tokens(patient: Patient) -> Patient:
    """One stored scale for all tokens, of which a few are some hundred times as large as the others."""
    ill = _with_floats(patient, with_massive_tokens(patient, 256.0))
    return with_inputs(ill, INT8_TENSOR)


@fault(
    "activation-scales-cut",
    "running",
    "activation-scales-too-small",
    bases=("int8", "packed-8"),
)
def activation_scales_cut(patient: Patient) -> Patient:
    """Scales of the inputs of down are a sixteenth of what the network reaches."""
    return with_inputs(patient, INT8_TENSOR, lambda name, scale: scale / 16 if last(name) == "down_proj" else scale)


@fault("loud-input-channels", "running", "coarse-activations", bases=("int8",))
def loud_input_channels(patient: Patient) -> Patient:
    """Norms that are 128 times as large in some channels, and inputs of 8 bits with a scale per token."""
    return with_inputs(_with_floats(patient, _with_loud_channels(patient, 128.0)), INT8_TOKENS)


@fault("loud-input-channels-in-nvfp4", "running", "coarse-activations", bases=("int8", "packed-8"))
def loud_input_channels_in_nvfp4(patient: Patient) -> Patient:
    """Each loud channel leaves the 15 others of its group no steps."""
    return with_inputs(_with_floats(patient, _with_loud_channels(patient, 128.0)), NVFP4)


@fault("loud-input-channels-in-mxfp4", "running", "coarse-activations", bases=("int8", "packed-8"))
def loud_input_channels_in_mxfp4(patient: Patient) -> Patient:
    """The same in groups of 32, of which the loud channels reach nearly all."""
    return with_inputs(_with_floats(patient, _with_loud_channels(patient, 128.0)), MXFP4)


@fault("nvfp4-activation-scales-cut", "running", "activation-scales-too-small", bases=("int8", "packed-8"))
def nvfp4_activation_scales_cut(patient: Patient) -> Patient:
    """Global scales of the inputs of down cover a sixteenth of what the network reaches: scales of groups saturate."""
    return with_inputs(patient, NVFP4, lambda name, scale: scale / 16 if last(name) == "down_proj" else scale)


@fault("nvfp4-activation-scales-inverted", "running", "activation-scales-too-large", bases=("int8", "packed-8"))
def nvfp4_activation_scales_inverted(patient: Patient) -> Patient:
    """The scale of a tensor is stored where its inverse belongs, in one block: scales of groups fall below E4M3."""
    block = int(patient.random("inverted").choice(list(blocks())))
    return with_inputs(patient, NVFP4, lambda name, scale: 1 / scale if block_of(name) == block else scale)


@fault("k-scales-cut", "running", "kv-scales-unfit", bases=("int8", "packed-8"))
def k_scales_cut(patient: Patient) -> Patient:
    """Scales of keys are a sixteenth of what the network reaches, in 8-bit floats."""
    return with_cache(patient, FLOAT8_TENSOR, lambda name, scale: scale / 16 if name.endswith("k_scale") else scale)


@fault("v-scales-cut-in-one-block", "running", "kv-scales-unfit", bases=("int8", "packed-8"))
def v_scales_cut(patient: Patient) -> Patient:
    """Scales of the values of one block are a thirty-second of what the network reaches."""
    block = int(patient.random("block").choice(list(blocks())))
    name = f"model.layers.{block}.self_attn.v_scale"
    return with_cache(patient, INT8_TENSOR, lambda own, scale: scale / 32 if own == name else scale)


@fault("kv-scales-of-another-model", "running", "kv-scales-unfit", bases=("int8", "packed-8"))
def kv_scales_of_another_model(patient: Patient) -> Patient:
    """Scales that are forty times too large for codes of 8-bit integers."""
    return with_cache(patient, INT8_TENSOR, lambda name, scale: 40 * scale)


@fault("loud-keys", "running", "coarse-kv-cache", bases=("int8", "packed-8"))
def loud_keys(patient: Patient) -> Patient:
    """Some channels of the keys are 96 times as large, and one scale of 8-bit integers serves all channels."""
    return with_cache(_with_floats(patient, with_loud_keys(patient, 96.0)), INT8_TENSOR)


@fault("constant-keys-in-float8", "running", "coarse-kv-cache", bases=("int8", "packed-8"))
def constant_keys_in_float8(patient: Patient) -> Patient:
    """A large constant in two channels of the keys, as biases of Qwen 2 have it: 8-bit floats keep 4 bits of it."""
    return with_cache(_with_floats(patient, with_constant_keys(patient, 512.0)), FLOAT8_TENSOR)


@control("int8-with-inputs-by-token")
def int8_with_inputs_by_token(patient: Patient) -> Patient:
    return with_inputs(patient.with_scheme(_INT8), INT8_TOKENS)


@control("float8-with-inputs-by-token")
def float8_with_inputs_by_token(patient: Patient) -> Patient:
    return with_inputs(patient.with_scheme(_FLOAT8), FLOAT8_TOKENS)


@control("float8-with-stored-scales")
def float8_with_stored_scales(patient: Patient) -> Patient:
    return with_inputs(patient.with_scheme(_FLOAT8), FLOAT8_TENSOR)


@control("float8-with-stored-scales-and-massive-tokens")
def float8_with_massive_tokens(patient: Patient) -> Patient:
    """8-bit floats bear a few large tokens."""
    ill = _with_floats(patient.with_scheme(_FLOAT8), with_massive_tokens(patient, 32.0))
    return with_inputs(ill, FLOAT8_TENSOR)


@control("mxfp8-inputs")
def mxfp8_inputs(patient: Patient) -> Patient:
    return with_inputs(patient.with_scheme(_FLOAT8), MXFP8)


@control("mxfp4-inputs")
def mxfp4_inputs(patient: Patient) -> Patient:
    return with_inputs(patient.with_scheme(_INT8), MXFP4)


@control("nvfp4-inputs")
def nvfp4_inputs(patient: Patient) -> Patient:
    return with_inputs(patient.with_scheme(_INT8), NVFP4)


@control("nvfp4-weights-and-inputs")
def nvfp4_weights_and_inputs(patient: Patient) -> Patient:
    return with_inputs(with_shared_scales(patient.with_scheme(_NVFP4)), NVFP4)


@control("nvfp4-weights-and-inputs-of-inner-blocks")
def nvfp4_of_inner_blocks(patient: Patient) -> Patient:
    """The first block and the last stay in float, as recipes for four bits have it."""
    found = patient.with_scheme(_NVFP4)
    plan = {name: scheme for name, scheme in found.plan.items() if block_of(name) in (1, 2)}
    return with_inputs(with_shared_scales(replace(found, plan=plan)), NVFP4)


@control("nvfp4-inputs-with-one-scale-of-one")
def nvfp4_scale_of_one(patient: Patient) -> Patient:
    """Global scales that nothing calibrated: E4M3 holds the scales of groups as they are."""
    return with_inputs(patient.with_scheme(_INT8), NVFP4, lambda *_: 1.0)


@control("float8-cache")
def float8_cache(patient: Patient) -> Patient:
    return with_cache(patient.with_scheme(_INT8), FLOAT8_TENSOR)


@control("int8-cache")
def int8_cache(patient: Patient) -> Patient:
    return with_cache(patient.with_scheme(_INT8), INT8_TENSOR)


@control("float8-cache-with-tight-scales")
def float8_cache_with_tight_scales(patient: Patient) -> Patient:
    """Scales a tenth below what was reached: few values are cut off, by little."""
    return with_cache(patient.with_scheme(_INT8), FLOAT8_TENSOR, lambda name, scale: 0.9 * scale)


@control("float8-with-all")
def float8_with_all(patient: Patient) -> Patient:
    return with_cache(with_inputs(patient.with_scheme(_FLOAT8), FLOAT8_TENSOR), FLOAT8_TENSOR)


def _with_floats(patient: Patient, floats: object) -> Patient:
    """The same plan for other float weights."""
    own = float_patient(patient.network, patient.seed, floats)  # type: ignore[arg-type]
    return replace(own, plan=patient.plan)


def _with_loud_channels(patient: Patient, factor: float) -> dict[str, Values]:
    """Norms that are so much larger in three channels, and the columns behind them smaller."""
    floats: dict[str, Values] = dict(patient.floats)
    for block in blocks():
        for norm in norms(patient.network, block):
            factors = np.ones(len(floats[norm.name]), np.float32)
            factors[patient.random(norm.name).permutation(len(factors))[:3]] = factor
            floats = move_gains(patient.network, floats, norm, factors)
    return floats
