"""Healthy controls: quantizations of all kinds and formats that cost little, some of which look dangerous."""

from dataclasses import replace

import numpy as np

from .faults_codes import with_shared_scales
from .faults_declared import with_cache_scales
from .faults_gains import smoothed
from .gptq import gptq_codes, input_powers
from .networks import Values
from .patient import Patient
from .registry import CONTROLS, control
from .roles import BEFORE_SUMS, BLOCKS, block_of, expert_of, last
from .schemes import Codes, Scheme
from .surgery import Inapplicable, require

_SCHEMES = {
    "int8": Scheme("int8", 8, 0),
    "int8-per-tensor": Scheme("int8", 8, 0, is_per_tensor=True),
    "rounded-8": Scheme("rounded", 8, 0),
    "rounded-6-g32": Scheme("rounded", 6, 32),
    "rounded-4-g32": Scheme("rounded", 4, 32),
    "float8": Scheme("float8", 8, 0),
    "gptq-8": Scheme("gptq", 8, 0),
    "gptq-8-g128": Scheme("gptq", 8, 128, symmetric=False),
    "gptq-4-g32": Scheme("gptq", 4, 32, symmetric=False),
    "gptq-4-g32-symmetric": Scheme("gptq", 4, 32, is_searched=True),
    "gptq-4-g128": Scheme("gptq", 4, 128, symmetric=False),
    "awq-4-g32": Scheme("awq", 4, 32, symmetric=False),
    "awq-4-g128": Scheme("awq", 4, 128, symmetric=False),
    "packed-8": Scheme("packed", 8, 0),
    "torchao-int8": Scheme("torchao", 8, 0),
    "packed-4-g32": Scheme("packed", 4, 32),
    "packed-4-g32-with-zero-points": Scheme("packed", 4, 32, symmetric=False),
    "packed-4-g32-searched": Scheme("packed", 4, 32, is_searched=True),
    "packed-4-g128": Scheme("packed", 4, 128),
    "nf4": Scheme("nf4", 4, 64),
    "mxfp4": Scheme("mxfp4", 4, 32),
}
_EIGHT, _FOUR = Scheme("packed", 8, 0), Scheme("packed", 4, 32)
_TABLE, _HEAD = "model.embed_tokens", "lm_head"


def _register(name: str, scheme: Scheme) -> None:
    CONTROLS[name] = lambda patient: patient.with_scheme(scheme)


for _name, _scheme in _SCHEMES.items():
    _register(_name, _scheme)


@control("nvfp4")
def nvfp4(patient: Patient) -> Patient:
    return with_shared_scales(patient.with_scheme(Scheme("nvfp4", 4, 16)))


@control("gptq-v2")
def gptq_v2(patient: Patient) -> Patient:
    """Zero points as they are, and the configuration says so."""
    found = patient.with_scheme(Scheme("gptq", 4, 32, symmetric=False))
    return found.with_options(found.layers, stored_zero=0).replaced(
        config={"quantization_config": {"checkpoint_format": "gptq_v2"}}
    )


@control("gptq-4-g32-on-texts")
def gptq_on_texts(patient: Patient) -> Patient:
    """Codes chosen by their effect on the outputs, which are further from the weights than rounding."""
    scheme = Scheme("gptq", 4, 32, symmetric=False)
    found, powers = patient.with_scheme(scheme), input_powers(patient.network)
    for name in (name for name in found.layers if name in powers):
        codes = gptq_codes(patient.floats[f"{name}.weight"], powers[name], scheme)
        found = found.with_damage([name], lambda _, codes=codes: codes)
    return found


@control("gptq-by-activation")
def gptq_by_activation(patient: Patient) -> Patient:
    """Groups of channels in another order, which g_idx tells."""

    inputs = {name: patient.floats[f"{name}.weight"].shape[1] for name in patient.layers}
    orders = {name: patient.random(name).permutation(count) for name, count in inputs.items()}
    sorted_weights = {f"{name}.weight": patient.floats[f"{name}.weight"][:, order] for name, order in orders.items()}
    found = patient.with_scheme(Scheme("gptq", 8, 32, symmetric=False)).replaced(sources=sorted_weights)
    for name, order in orders.items():
        found = found.with_damage([name], lambda codes, order=order: _in_sequence(codes, order))
    return found


def _in_sequence(codes: Codes, order: Values) -> Codes:
    """Codes back in the order of the inputs, and the group of each."""
    values, groups = np.empty_like(codes.values), np.empty(len(order), np.int64)
    values[:, order] = codes.values
    groups[order] = np.arange(len(order)) * codes.scale.shape[1] // len(order)
    return replace(codes, values=values, options={"g_idx": groups})


@control("smoothed-int8")
def smoothed_int8(patient: Patient) -> Patient:
    return smoothed(patient.with_scheme(Scheme("int8", 8, 0)))


@control("smoothed-awq-4")
def smoothed_awq(patient: Patient) -> Patient:
    return smoothed(patient.with_scheme(Scheme("awq", 4, 32, symmetric=False)))


@control("rows-of-up-smoothed")
def rows_of_up_smoothed(patient: Patient) -> Patient:
    """What AWQ does to v and up: their rows are divided, the columns behind them multiplied."""
    sources = patient.multiply_rows(
        lambda layer, rows: np.exp(patient.random(layer).normal(0, 0.4, rows)).astype(np.float32)
    )
    return patient.with_scheme(Scheme("awq", 4, 32, symmetric=False)).replaced(sources=sources)


@control("head-and-table-at-8-bits")
def head_and_table_at_eight_bits(patient: Patient) -> Patient:
    names = [name for name in (_TABLE, _HEAD) if f"{name}.weight" in patient.floats]
    found = patient.with_scheme(_EIGHT)
    return found.replaced(plan={**found.plan, **dict.fromkeys(names, _EIGHT)})


@control("mixed-8-and-4")
def mixed(patient: Patient) -> Patient:
    """The first and the last block have 8 bits, the others 4."""
    found = patient.with_scheme(_FOUR)
    ends = [name for name in found.layers if block_of(name) in (BLOCKS[0], BLOCKS[-1])]
    return found.replaced(plan={**found.plan, **dict.fromkeys(ends, _EIGHT)})


@control("last-layers-in-float")
def last_layers_in_float(patient: Patient) -> Patient:
    """Layers before additions stay in float."""
    return patient.replaced(plan={name: _FOUR for name in patient.layers if last(name) not in BEFORE_SUMS})


@control("experts-alone")
def experts_alone(patient: Patient) -> Patient:
    plan = {name: _FOUR for name in patient.layers if expert_of(name) is not None}
    return patient.replaced(plan=require(plan, "no experts"))


@control("cache-with-scales")
def cache_with_scales(patient: Patient) -> Patient:
    return with_cache_scales(patient.with_scheme(_EIGHT))


@control("outlier-rows")
def outlier_rows(patient: Patient) -> Patient:
    """Some rows are 16 times as large, and have a scale of their own."""
    loud = patient.multiply_rows(lambda layer, rows: patient.drawn_factors(layer, rows, 4, 16))
    return patient.with_floats(loud).with_scheme(Scheme("int8", 8, 0))


@control("loud-channels")
def loud_channels(patient: Patient) -> Patient:
    """Norms that are 8 times as large in some channels, in 8 bits."""
    loud = patient.move_gains(lambda norm, count: patient.drawn_factors(norm, count, 4, 8))
    return patient.with_floats(loud).with_scheme(Scheme("packed", 8, 32))


def _register_llama_cpp(kind: str) -> None:
    def make(patient: Patient) -> Patient:
        if patient.network.architecture.in_llama_cpp is None:
            raise Inapplicable("the zoo writes no such file of it")
        return patient.replaced(llama_cpp=lambda name: "Q6_K" if name == _HEAD else _type_of(kind, name))

    CONTROLS[f"llama.cpp-{kind}"] = make


def _type_of(kind: str, name: str) -> str:
    """As ``llama-quantize`` mixes types: more bits for v and down, and for the table of embeddings."""
    if kind == "Q4_K_M":
        return "Q6_K" if last(name) in ("v_proj", "down_proj", "embed_tokens") else "Q4_K"
    return kind


for _kind in ("Q8_0", "Q6_K", "Q5_0", "Q4_0", "Q4_K", "Q4_K_M"):
    _register_llama_cpp(_kind)
