"""Files and configurations that say other things than the tensors hold, or lack some."""

from typing import Any

import numpy as np

from .declaring import weights_settings
from .patient import Patient
from .registry import fault
from .roles import BEFORE_SUMS, BLOCKS, block_of, last, of_block
from .schemes import Tensors, made
from .surgery import Inapplicable

_COMPRESSED = ("packed-8", "packed-4", "int8")


@fault("rope-of-another-model", "declared", "configurations-differ", is_felt=False)
def rope_of_another_model(patient: Patient) -> Patient:
    own = patient.network.config["rope_parameters"]
    return patient.replaced(config={"rope_parameters": {**own, "rope_theta": 100 * own["rope_theta"]}})


@fault("eps-of-another-model", "declared", "configurations-differ", is_felt=False)
def eps_of_another_model(patient: Patient) -> Patient:
    return patient.replaced(config={"rms_norm_eps": 1e-3})


@fault("untied-head", "declared", "tied-weights-differ", is_felt=False)
def untied_head(patient: Patient) -> Patient:
    """A tied head was quantized and stored, and the configuration still ties it to the embedding."""
    if "lm_head.weight" in patient.floats:
        raise Inapplicable("nothing is tied")
    table = patient.floats["model.embed_tokens.weight"]
    noise = patient.random("head").normal(0, 0.3 * table.std(), table.shape)
    return patient.then(lambda tensors: {**tensors, "lm_head.weight": ("BF16", made.bfloat16(table + noise))})


@fault("k-scale-lost", "declared", "kv-scales-missing", bases=_COMPRESSED, is_felt=False)
def k_scale_lost(patient: Patient) -> Patient:
    """A cache in float8, and a block without the scale of its keys."""
    return with_cache_scales(patient, without=1)


def with_cache_scales(patient: Patient, without: int | None = None) -> Patient:
    """Scales of a K and V cache in float8 in all blocks, but that of the keys of one."""
    cache = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}

    def store(tensors: Tensors) -> Tensors:
        found = dict(tensors)
        for block in BLOCKS:
            for part in ("k", "v"):
                if (part, block) != ("k", without):
                    name = f"model.layers.{block}.self_attn.{part}_scale"
                    found[name] = ("F32", np.array([0.03 + 0.01 * block], np.float32))
        return found

    return patient.replaced(config={"quantization_config": {"kv_cache_scheme": cache}}).then(store)


@fault("target-that-matches-nothing", "declared", "configuration-not-met", bases=_COMPRESSED, is_felt=False)
def target_that_matches_nothing(patient: Patient) -> Patient:
    """A group of 8 bits is meant for layers by a name that none has."""
    weights: dict[str, Any] = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights_settings(next(iter(patient.plan.values())))}}
    groups["group_1"] = {"targets": ["re:.*feed_forward.w_down$"], "weights": weights}
    return patient.replaced(config={"quantization_config": {"config_groups": groups}})


@fault("ignored-and-quantized", "declared", "configuration-not-met", bases=_COMPRESSED, is_felt=False)
def ignored_and_quantized(patient: Patient) -> Patient:
    ignored = [name for name in patient.layers if block_of(name) == 0 and last(name) in BEFORE_SUMS]
    return patient.replaced(config={"quantization_config": {"ignore": ["lm_head", *ignored]}})


@fault("override-not-met", "declared", "configuration-not-met", bases=("gptq-4",), is_felt=False)
def override_not_met(patient: Patient) -> Patient:
    """The configuration gives 8 bits to layers that have 4."""
    dynamic = {r"+:.*layers\.0\..*(down_proj|w2|o_proj)": {"bits": 8}}
    return patient.replaced(config={"quantization_config": {"dynamic": dynamic}})


@fault("block-forgotten", "declared", "configuration-not-met", bases=_COMPRESSED, is_felt=False)
def block_forgotten(patient: Patient) -> Patient:
    """All linear layers are to be quantized, and those of one block are not."""
    spared = of_block(patient.layers, patient.drawn_block())
    plan = {name: scheme for name, scheme in patient.plan.items() if name not in spared}
    return patient.replaced(plan=plan, forgotten=tuple(spared))


@fault("tensors-lost", "declared", "incomplete-checkpoint", is_felt=False, error="lacks weights")
def tensors_lost(patient: Patient) -> Patient:
    """A shard is missing, and the index was written anew."""
    prefix = f"model.layers.{patient.drawn_block()}."

    def lose(tensors: Tensors) -> Tensors:
        return {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)}

    return patient.then(lose)


@fault("not-quantized", "declared", "same-model", is_felt=False)
def not_quantized(patient: Patient) -> Patient:
    """The same folder twice."""
    return patient.replaced(plan={})
