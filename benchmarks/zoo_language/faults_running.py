"""Activations and K and V caches whose grids do not suit the network: felt while it runs, and not in the weights."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from .activations import (
    FLOAT8_TENSOR,
    FLOAT8_TOKENS,
    INT8_TENSOR,
    INT8_TOKENS,
    MXFP4,
    MXFP8,
    NVFP4,
    Change,
    with_cache,
    with_constant_keys,
    with_inputs,
    with_loud_keys,
    with_massive_tokens,
)
from .faults_codes import with_shared_scales
from .networks import Weights
from .patient import Patient
from .registry import CONTROLS, Apply, fault
from .roles import block_of
from .schemes import Scheme

_INT8, _FLOAT8, _NVFP4 = Scheme("int8", 8, 0), Scheme("float8", 8, 0), Scheme("nvfp4", 4, 16)
_EITHER = ("int8", "packed-8")
Part = Callable[[Patient, Mapping[str, Any], Change | None], Patient]
Wrong = Callable[[Patient], Change]
Floats = Callable[[Patient], Weights]


def on_grid(part: Part, grid: Mapping[str, Any], wrong: Wrong | None = None, floats: Floats | None = None) -> Apply:
    """Inputs or caches of a network, perhaps with other weights, on a grid whose scales may be wrong."""

    def apply(patient: Patient) -> Patient:
        own = patient if floats is None else patient.with_floats(floats(patient))
        return part(own, grid, None if wrong is None else wrong(patient))

    return apply


def cut(ending: str, by: float) -> Wrong:
    """Scales of some are that part of what the network reaches."""
    return lambda patient: lambda name, scale: scale / by if name.endswith(ending) else scale


def in_one_block(salt: str, ending: str, change: Callable[[float], float]) -> Wrong:
    """The same in a block that is drawn."""

    def wrong(patient: Patient) -> Change:
        block = patient.drawn_block(salt)
        return lambda name, scale: change(scale) if block_of(name) == block and name.endswith(ending) else scale

    return wrong


def with_loud_channels(patient: Patient) -> Weights:
    """Norms that are 128 times as large in three channels, and the columns behind them smaller."""
    return patient.move_gains(lambda norm, count: patient.drawn_factors(norm, count, 3, 128.0))


#: Of each fault, the cause that is right, the schemes of its weights, and what is done.
_FAULTS: Mapping[str, tuple[str, tuple[str, ...], Apply]] = {
    # One stored scale for all tokens, of which a few are some hundred times as large as the others.
    "static-scales-on-massive-tokens": (
        "static-activation-scales",
        ("int8",),
        on_grid(with_inputs, INT8_TENSOR, floats=lambda patient: with_massive_tokens(patient, 256.0)),
    ),
    "activation-scales-cut": (
        "activation-scales-too-small",
        _EITHER,
        on_grid(with_inputs, INT8_TENSOR, cut("down_proj", 16)),
    ),
    # Each loud channel leaves the others of its group or token no steps.
    "loud-input-channels": (
        "coarse-activations",
        ("int8",),
        on_grid(with_inputs, INT8_TOKENS, floats=with_loud_channels),
    ),
    "loud-input-channels-in-nvfp4": (
        "coarse-activations",
        _EITHER,
        on_grid(with_inputs, NVFP4, floats=with_loud_channels),
    ),
    "loud-input-channels-in-mxfp4": (
        "coarse-activations",
        _EITHER,
        on_grid(with_inputs, MXFP4, floats=with_loud_channels),
    ),
    # Scales of groups saturate.
    "nvfp4-activation-scales-cut": (
        "activation-scales-too-small",
        _EITHER,
        on_grid(with_inputs, NVFP4, cut("down_proj", 16)),
    ),
    # The scale of a tensor is stored where its inverse belongs: scales of groups fall below E4M3.
    "nvfp4-activation-scales-inverted": (
        "activation-scales-too-large",
        _EITHER,
        on_grid(with_inputs, NVFP4, in_one_block("inverted", "", lambda scale: 1 / scale)),
    ),
    "k-scales-cut": ("kv-scales-unfit", _EITHER, on_grid(with_cache, FLOAT8_TENSOR, cut("k_scale", 16))),
    "v-scales-cut-in-one-block": (
        "kv-scales-unfit",
        _EITHER,
        on_grid(with_cache, INT8_TENSOR, in_one_block("block", "v_scale", lambda scale: scale / 32)),
    ),
    "kv-scales-of-another-model": (
        "kv-scales-unfit",
        _EITHER,
        on_grid(with_cache, INT8_TENSOR, lambda _: lambda name, scale: 40 * scale),
    ),
    "loud-keys": (
        "coarse-kv-cache",
        _EITHER,
        on_grid(with_cache, INT8_TENSOR, floats=lambda patient: with_loud_keys(patient, 96.0)),
    ),
    # As biases of Qwen 2 have it: 8-bit floats keep 4 bits of it.
    "constant-keys-in-float8": (
        "coarse-kv-cache",
        _EITHER,
        on_grid(with_cache, FLOAT8_TENSOR, floats=lambda patient: with_constant_keys(patient, 512.0)),
    ),
}
for _kind, (_cause, _bases, _apply) in _FAULTS.items():
    fault(_kind, "running", _cause, bases=_bases)(_apply)


def inner_blocks_alone(patient: Patient) -> Patient:
    """The first block and the last stay in float, as recipes for four bits have it."""
    plan = {name: scheme for name, scheme in patient.plan.items() if block_of(name) in (1, 2)}
    return with_shared_scales(replace(patient, plan=plan))


_in_nvfp4 = on_grid(with_inputs, NVFP4)
_in_float8 = on_grid(with_inputs, FLOAT8_TENSOR)
#: Of each control, the scheme of its weights, and what is done.
_CONTROLS: Mapping[str, tuple[Scheme, Apply]] = {
    "int8-with-inputs-by-token": (_INT8, on_grid(with_inputs, INT8_TOKENS)),
    "float8-with-inputs-by-token": (_FLOAT8, on_grid(with_inputs, FLOAT8_TOKENS)),
    "float8-with-stored-scales": (_FLOAT8, _in_float8),
    # 8-bit floats bear a few large tokens.
    "float8-with-stored-scales-and-massive-tokens": (
        _FLOAT8,
        on_grid(with_inputs, FLOAT8_TENSOR, floats=lambda patient: with_massive_tokens(patient, 32.0)),
    ),
    "mxfp8-inputs": (_FLOAT8, on_grid(with_inputs, MXFP8)),
    "mxfp4-inputs": (_INT8, on_grid(with_inputs, MXFP4)),
    "nvfp4-inputs": (_INT8, _in_nvfp4),
    "nvfp4-weights-and-inputs": (_NVFP4, lambda patient: _in_nvfp4(with_shared_scales(patient))),
    "nvfp4-weights-and-inputs-of-inner-blocks": (_NVFP4, lambda patient: _in_nvfp4(inner_blocks_alone(patient))),
    # Global scales that nothing calibrated: E4M3 holds the scales of groups as they are.
    "nvfp4-inputs-with-one-scale-of-one": (_INT8, on_grid(with_inputs, NVFP4, lambda _: lambda *_: 1.0)),
    "float8-cache": (_INT8, on_grid(with_cache, FLOAT8_TENSOR)),
    "int8-cache": (_INT8, on_grid(with_cache, INT8_TENSOR)),
    # Few values are cut off, by little.
    "float8-cache-with-tight-scales": (
        _INT8,
        on_grid(with_cache, FLOAT8_TENSOR, lambda _: lambda name, scale: 0.9 * scale),
    ),
    "float8-with-all": (_FLOAT8, lambda patient: on_grid(with_cache, FLOAT8_TENSOR)(_in_float8(patient))),
}


def _control(scheme: Scheme, apply: Apply) -> Apply:
    return lambda patient: apply(patient.with_scheme(scheme))


CONTROLS |= {name: _control(*own) for name, own in _CONTROLS.items()}
