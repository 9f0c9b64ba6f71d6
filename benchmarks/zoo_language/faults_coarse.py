"""Grids that are too coarse, for all weights or for some of them, and values that make them so."""

from dataclasses import replace

from .patient import Factors, Patient
from .registry import fault
from .roles import BEFORE_SUMS, of_block, routers
from .schemes import Scheme
from .surgery import Inapplicable, require

_FOUR, _PACKED = ("gptq-4", "packed-4"), ("packed-8", "packed-4")
_TABLE, _HEAD = "model.embed_tokens", "lm_head"


@fault("block-at-2-bits", "coarse", "noise-of-one-block", "too-few-weight-bits", bases=_FOUR)
def block_at_two_bits(patient: Patient) -> Patient:
    """One block among those of 4 bits, a scale per output channel."""
    return patient.with_layers(of_block(patient.layers, patient.drawn_block()), bits=2, size=0)


@fault("layer-at-2-bits", "coarse", "too-few-weight-bits", "noise-of-one-block", bases=_FOUR)
def layer_at_two_bits(patient: Patient) -> Patient:
    """One layer, a scale per output channel."""
    return patient.with_layers([patient.drawn_layer(*BEFORE_SUMS)], bits=2, size=0)


@fault("all-at-2-bits", "coarse", "too-few-weight-bits", "coarse-weights-everywhere", bases=_FOUR)
def all_at_two_bits(patient: Patient) -> Patient:
    size = int(patient.random("size").choice([0, 32]))
    return patient.with_layers(patient.layers, bits=2, size=size)


@fault("groups-too-large", "coarse", "coarse-weights-everywhere", "too-few-weight-bits", bases=_FOUR)
def groups_too_large(patient: Patient) -> Patient:
    """Three bits and a scale per output channel, where groups of 32 would do better."""
    return patient.with_layers(patient.layers, bits=3, size=0)


@fault("head-at-2-bits", "coarse", "coarse-output-layer", "too-few-weight-bits", bases=_PACKED)
def head_at_two_bits(patient: Patient) -> Patient:
    return _with_outside(patient, _HEAD)


@fault("embedding-at-2-bits", "coarse", "coarse-embedding", "too-few-weight-bits", bases=_PACKED)
def embedding_at_two_bits(patient: Patient) -> Patient:
    if f"{_HEAD}.weight" not in patient.floats:
        raise Inapplicable("the head is the embedding")
    return _with_outside(patient, _TABLE)


@fault(
    *("tied-table-at-2-bits", "coarse", "coarse-embedding", "coarse-output-layer", "too-few-weight-bits"), bases=_PACKED
)
def tied_table_at_two_bits(patient: Patient) -> Patient:
    if f"{_HEAD}.weight" in patient.floats:
        raise Inapplicable("the head has weights of its own")
    return _with_outside(patient, _TABLE)


def _with_outside(patient: Patient, name: str) -> Patient:
    if f"{name}.weight" not in patient.floats:
        raise Inapplicable(f"no {name}")
    return patient.replaced(plan={**patient.plan, name: Scheme("packed", 2, 32)})


@fault("one-scale-for-all-rows", "coarse", "channel-range-imbalance", bases=("int8",))
def one_scale_for_all_rows(patient: Patient) -> Patient:
    """Some rows of v and up are 256 times as large, and one scale serves all rows."""
    ill = patient.with_floats(patient.multiply_rows(_some(patient, 0.05, 256.0)))
    return ill.with_layers(ill.layers, is_per_tensor=True)


@fault("loud-columns", "coarse", "heavy-tailed-weights", "channel-range-imbalance", bases=_FOUR)
def loud_columns(patient: Patient) -> Patient:
    """The columns of a few channels are 64 times as large behind norms divided by that, in groups of a whole row."""
    return _with_gains(patient, 0.02, 1 / 64)


@fault("quiet-columns", "coarse", "channel-range-imbalance", bases=_FOUR)
def quiet_columns(patient: Patient) -> Patient:
    """The columns of a quarter of the channels are 64 times as small behind norms multiplied by that."""
    return _with_gains(patient, 0.25, 64.0)


def _with_gains(patient: Patient, share: float, gain: float) -> Patient:
    ill = patient.with_floats(patient.move_gains(_some(patient, share, gain)))
    return ill.with_layers(ill.layers, size=128)


@fault("scales-that-clip", "coarse", "poor-threshold", bases=("gptq-4", "packed-4", "packed-8", "int8"))
def scales_that_clip(patient: Patient) -> Patient:
    """The scales of one layer cover a fifth of the range, so that large weights are cut off."""
    return patient.with_layers([patient.drawn_layer(*BEFORE_SUMS)], reach=0.2)


@fault("codes-rounded-down", "coarse", "weight-induced-bias-shift", bases=("gptq-4", "packed-4"))
def codes_rounded_down(patient: Patient) -> Patient:
    """A cast instead of a rounding."""
    return patient.with_layers(patient.layers, is_cut=True)


@fault("router-at-2-bits", "coarse", "quantized-router", bases=("packed-4", "packed-8", "gptq-8"))
def router_at_two_bits(patient: Patient) -> Patient:
    found = require(routers(patient.floats), "no experts")
    scheme = replace(next(iter(patient.plan.values())), bits=2)
    if scheme.kind == "gptq" and patient.floats[f"{found[0]}.weight"].shape[0] % 16:
        scheme = Scheme("rounded", 2, 32)
    return patient.replaced(plan={**patient.plan, **dict.fromkeys(found, scheme)})


def _some(patient: Patient, share: float, value: float) -> Factors:
    """A factor for a share of the channels, 1 for the others."""
    return lambda name, count: patient.drawn_factors(name, count, max(int(share * count), 1), value)
