"""Gains that a tool moves between norms, weights and biases, and forgets on one side."""

import numpy as np

from .networks import Values
from .patient import Factors, Patient
from .registry import fault
from .roles import BLOCKS, Norm, norms
from .surgery import Inapplicable, move_gains, norm_times, rows_times

_SMOOTHED = ("gptq-8", "awq-4", "packed-8", "int8")


@fault("weights-smoothed-alone", "gains", "input-gains-left", bases=_SMOOTHED)
def weights_smoothed_alone(patient: Patient) -> Patient:
    """Columns have gains that the norm before them was not divided by."""
    norm, factors = _drawn(patient)
    moved = move_gains(patient.network, patient.floats, norm, factors)
    return patient.replaced(sources={**moved, norm.name: patient.floats[norm.name]})


@fault("norm-smoothed-alone", "gains", "altered-float-tensors", bases=_SMOOTHED, also=("input-gains-left",))
def norm_smoothed_alone(patient: Patient) -> Patient:
    """The norm was divided, and the weights behind it were not multiplied."""
    norm, factors = _drawn(patient)
    return patient.replaced(sources={norm.name: norm_times(patient.network, patient.floats[norm.name], factors)})


@fault("offset-forgotten", "gains", "norm-offset-mistaken", bases=_SMOOTHED)
def offset_forgotten(patient: Patient) -> Patient:
    """Norms that compute 1 + w were divided as if they computed w."""
    if not patient.network.architecture.has_offset_norms:
        raise Inapplicable("its norms have no offset")
    gains = _gains(patient)
    sources = dict(patient.move_gains(gains))
    for norm in (norm.name for block in BLOCKS for norm in norms(patient.network, block)):
        sources[norm] = patient.floats[norm] * gains(norm, len(patient.floats[norm]))
    return patient.replaced(sources=sources)


@fault("offset-stored", "gains", "norm-offset-mistaken", also=("altered-float-tensors",))
def offset_stored(patient: Patient) -> Patient:
    """Norms are stored with the 1 that the architecture adds once more."""
    if not patient.network.architecture.has_offset_norms:
        raise Inapplicable("its norms have no offset")
    return patient.replaced(sources={name: patient.floats[name] + 1 for name in patient.floats if "norm" in name})


@fault("bias-left", "gains", "biases-left-unscaled", bases=("gptq-8", "packed-8", "int8"))
def bias_left(patient: Patient) -> Patient:
    """Rows of v have gains that its bias was not multiplied by."""
    layer = f"model.layers.{patient.drawn_block()}.self_attn.v_proj"
    bias = patient.floats.get(f"{layer}.bias")
    if bias is None:
        raise Inapplicable("no biases")
    factors = np.exp(patient.random("gains").normal(0, 1.0, len(bias))).astype(np.float32)
    moved = rows_times(patient.floats, layer, factors)
    return patient.replaced(sources={**moved, f"{layer}.bias": bias})


@fault("norm-in-another-order", "gains", "altered-float-tensors", is_felt=False)
def norm_in_another_order(patient: Patient) -> Patient:
    """A norm turned round, which networks with even norms hardly feel."""
    own = norms(patient.network, 1)[1].name
    return patient.replaced(sources={own: patient.floats[own][::-1].copy()})


def _drawn(patient: Patient) -> tuple[Norm, Values]:
    found = norms(patient.network, patient.drawn_block())
    norm = found[int(patient.random("norm").integers(len(found)))]
    return norm, _gains(patient)(norm.name, len(patient.floats[norm.name]))


def _gains(patient: Patient) -> Factors:
    """What norms are multiplied by: AWQ's gains spread about so far."""
    return lambda name, count: np.exp(patient.random(name).normal(0, 0.7, count)).astype(np.float32)


def smoothed(patient: Patient) -> Patient:
    """Gains in all weights behind norms, which divide by them: what AWQ and SmoothQuant do."""
    gains = _gains(patient)
    return patient.replaced(sources=patient.move_gains(lambda name, count: np.sqrt(gains(name, count))))
