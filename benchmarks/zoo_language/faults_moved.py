"""Weights that stand where others should: of other layers, in another order, or lost."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .networks import Values
from .patient import Patient
from .registry import fault
from .roles import BEFORE_SUMS, BLOCKS, GATES, expert_of, last, of_block
from .schemes import Codes
from .surgery import Inapplicable, require, twin_of


@fault("blocks-exchanged", "moved", "exchanged-weights", also=("foreign-weights",))
def blocks_exchanged(patient: Patient) -> Patient:
    """Two blocks in a row have each other's matrices."""
    first = int(patient.random("block").choice(list(BLOCKS)[:-1]))
    names = of_block(patient.layers, first)
    return _exchanged(patient, [(name, name.replace(f"layers.{first}.", f"layers.{first + 1}.")) for name in names])


@fault("gate-and-up-exchanged", "moved", "exchanged-weights", also=("foreign-weights",))
def gate_and_up_exchanged(patient: Patient) -> Patient:
    gates = [name for name in of_block(patient.layers, patient.drawn_block()) if last(name) in GATES]
    return _exchanged(patient, [(name, twin_of(name)) for name in require(gates, "gate and up are one layer")])


@fault("experts-exchanged", "moved", "exchanged-weights", also=("foreign-weights",))
def experts_exchanged(patient: Patient) -> Patient:
    """Two experts of every block have each other's matrices, and the router knows nothing of it."""
    names = require([name for name in patient.layers if expert_of(name) == 0], "no experts")
    return _exchanged(patient, [(name, name.replace("experts.0.", "experts.1.")) for name in names])


@fault("columns-in-another-order", "moved", "foreign-weights", also=("exchanged-weights",))
def columns_in_another_order(patient: Patient) -> Patient:
    """One layer was sorted by activation, and the order is lost."""
    layer = patient.drawn_layer(*BEFORE_SUMS)
    weights = patient.floats[f"{layer}.weight"]
    return _stored(patient, layer, weights[:, patient.random("order").permutation(weights.shape[1])])


@fault("rows-not-reordered", "moved", "foreign-weights", "misread-codes", bases=("llama.cpp",))
def rows_not_reordered(patient: Patient) -> Patient:
    """A file of llama.cpp whose rows of q and k were left as transformers has them."""
    if patient.network.architecture.in_llama_cpp != "llama":
        raise Inapplicable("its rows stay in order")
    return patient.replaced(llama_cpp=lambda name: "Q8_0", is_permuted=False, plan={})


@fault("layer-of-another-training", "moved", "foreign-weights")
def layer_of_another_training(patient: Patient) -> Patient:
    layer = patient.drawn_layer(*BEFORE_SUMS, "q_proj", "qkv_proj")
    weights = patient.floats[f"{layer}.weight"]
    other = patient.random("weights").normal(0, weights.std(), weights.shape)
    return _stored(patient, layer, other.astype(np.float32))


@fault("starved-expert", "moved", "dead-weight-groups", bases=("gptq-8", "gptq-4"))
def starved_expert(patient: Patient) -> Patient:
    """GPTQ sets weights to 0 whose inputs were never seen: those of an expert that no text of calibration chose."""
    starved = [name for name in of_block(patient.layers, patient.drawn_block()) if expert_of(name) == 1]
    return patient.with_damage(
        require(starved, "no experts"),
        lambda codes: replace(codes, values=np.repeat(codes.zero, _size(codes), axis=1).astype(np.uint8)),
    )


def _size(codes: Codes) -> int:
    return codes.values.shape[1] // codes.scale.shape[1]


def _exchanged(patient: Patient, pairs: Sequence[tuple[str, str]]) -> Patient:
    sources: dict[str, Values] = dict(patient.sources)
    for one, other in pairs:
        sources[f"{one}.weight"] = patient.floats[f"{other}.weight"]
        sources[f"{other}.weight"] = patient.floats[f"{one}.weight"]
    return patient.replaced(sources=sources)


def _stored(patient: Patient, layer: str, weights: Values) -> Patient:
    return patient.replaced(sources={**patient.sources, f"{layer}.weight": weights})
