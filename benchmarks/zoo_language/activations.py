"""Scales of activations and of the K and V cache, from the largest values that a float network reaches on texts."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
import transformers

from .declaring import weights_settings
from .networks import Network, Values, Weights
from .patient import Patient
from .roles import block_of, last
from .schemes import Tensors
from .surgery import Inapplicable
from .texts import drawn_texts, training_bytes

#: Texts that scales are calibrated on: others than those that judge.
TEXTS, LENGTH, SEED = 16, 96, 77
_FLOAT8, _INT8 = 448.0, 127.5
INT8_TOKENS = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
FLOAT8_TOKENS = {**INT8_TOKENS, "type": "float"}
INT8_TENSOR = {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": False, "symmetric": True}
FLOAT8_TENSOR = {**INT8_TENSOR, "type": "float"}
_GROUPS = {"type": "float", "symmetric": True}
NVFP4 = {**_GROUPS, "num_bits": 4, "strategy": "tensor_group", "group_size": 16, "dynamic": "local"}
MXFP4 = {**_GROUPS, "num_bits": 4, "strategy": "group", "group_size": 32, "dynamic": True, "scale_dtype": "torch.uint8"}
MXFP8 = {**MXFP4, "num_bits": 8}
#: Largest number of E2M1 times that of E4M3.
_NVFP4_RANGE = 6 * 448.0
#: Changes a scale, by the name of its layer.
Change = Callable[[str, float], float]


class Reached:
    """Largest magnitudes on texts.

    Attributes:
        inputs: Of the inputs of each layer, and per channel.
        channels: The same of each channel, over the tokens.
        medians: Median magnitude of each channel over the tokens.
        caches: Of keys, behind the rotary embedding, and of values, by attention.
    """

    def __init__(self) -> None:
        """Nothing was run yet."""
        self.inputs: dict[str, float] = {}
        self.channels: dict[str, Values] = {}
        self.medians: dict[str, Values] = {}
        self.caches: dict[str, tuple[float, float]] = {}

    def see(self, name: str, values: torch.Tensor) -> None:
        """Inputs of a layer, ``[texts, tokens, channels]``."""
        size = values.abs().flatten(0, -2)
        self.inputs[name] = float(size.max())
        self.channels[name] = size.amax(0).numpy()
        self.medians[name] = size.median(0).values.numpy()


def reached(network: Network, weights: Weights) -> Reached:
    """What a network with these weights reaches on the texts that scales are calibrated on."""
    model = built_model(network, weights)
    found = Reached()
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if weight is not None and weight.ndim == 2 and ".layers." in name:
            module.register_forward_pre_hook(lambda _, args, name=name: found.see(name, args[0]))
    ids = torch.from_numpy(drawn_texts(training_bytes(), TEXTS, LENGTH, SEED))
    with torch.inference_mode():
        outputs = model(input_ids=ids, use_cache=True)
    kept = getattr(outputs, "cache", None) or outputs.past_key_values
    for number, layer in enumerate(kept.layers):
        own = float(layer.keys.abs().max()), float(layer.values.abs().max())
        found.caches[f"model.layers.{number}.self_attn"] = own
    return found


def built_model(network: Network, weights: Weights) -> Any:
    """The network of transformers with these weights.

    Raises:
        Inapplicable: It holds its weights otherwise than the checkpoint.
    """
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    config = _config_of(str(network.folder))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    missing, unexpected = model.load_state_dict({n: torch.from_numpy(v) for n, v in weights.items()}, strict=False)
    if unexpected or any("lm_head" not in name for name in missing):
        raise Inapplicable("its experts are stored one by one")
    model.tie_weights()
    return model.eval()


@cache
def _config_of(folder: str) -> Any:
    return transformers.AutoConfig.from_pretrained(folder)


def with_inputs(patient: Patient, scheme: Mapping[str, Any], change: Change | None = None) -> Patient:
    """Inputs of all quantized layers on a grid; where it needs scales, those that the network reaches.

    Args:
        patient: Whose weights are quantized.
        scheme: Of compressed-tensors.
        change: Makes scales wrong; of NVFP4 it gets the inverse of what is stored.
    """
    weights = weights_settings(next(iter(patient.plan.values())))
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": dict(scheme)}}
    found = patient.replaced(config={**patient.config, "quantization_config": _joined(patient, config_groups=groups)})
    if scheme["dynamic"] is True:
        return found
    largest = reached(patient.network, {**patient.floats, **patient.sources}).inputs
    is_nvfp4 = scheme["strategy"] == "tensor_group"
    steps = _NVFP4_RANGE if is_nvfp4 else _FLOAT8 if scheme["type"] == "float" else _INT8
    scales = {name: largest[name] / steps for name in patient.plan if name in largest}
    if change is not None:
        scales = {name: change(name, scale) for name, scale in scales.items()}
    if is_nvfp4:
        scales = {f"{name}.input_global_scale": 1 / scale for name, scale in scales.items()}
    else:
        scales = {f"{name}.input_scale": scale for name, scale in scales.items()}
    return found.then(lambda tensors: {**tensors, **_stored(scales)})


def with_cache(patient: Patient, scheme: Mapping[str, Any], change: Change | None = None) -> Patient:
    """A K and V cache on a grid, with the scales that the network reaches; ``change`` gets names like ``….k_scale``."""
    joined = _joined(patient, kv_cache_scheme=dict(scheme))
    found = patient.replaced(config={**patient.config, "quantization_config": joined})
    largest = reached(patient.network, {**patient.floats, **patient.sources}).caches
    steps = _FLOAT8 if scheme["type"] == "float" else _INT8
    scales = {
        f"{name}.{k}_scale": own / steps for name, pair in largest.items() for k, own in zip("kv", pair, strict=True)
    }
    if change is not None:
        scales = {name: change(name, scale) for name, scale in scales.items()}
    return found.then(lambda tensors: {**tensors, **_stored(scales)})


def _stored(scales: Mapping[str, float]) -> Tensors:
    return {name: ("F32", np.array([scale], np.float32)) for name, scale in scales.items()}


def _joined(patient: Patient, **changes: Any) -> dict[str, Any]:
    return {**patient.config.get("quantization_config", {}), **changes}


def with_massive_tokens(patient: Patient, factor: float) -> Weights:
    """The network with the input channels of down that fire rarest made larger, and the columns behind made smaller.

    What it computes stays as it is; a few tokens reach values some hundred times those of the others.

    Raises:
        Inapplicable: The inner layers are joined.
    """
    own = reached(patient.network, patient.floats)
    found = dict(patient.floats)
    for name in (name for name in patient.layers if last(name) == "down_proj" and block_of(name) in (1, 2)):
        up = f"{name.rpartition('.')[0]}.up_proj"
        if f"{up}.weight" not in found:
            raise Inapplicable("gate and up are one layer")
        rarest = np.argsort(own.channels[name] / np.maximum(own.medians[name], 1e-6))[-4:]
        factors = np.ones(len(own.channels[name]), np.float32)
        factors[rarest] = factor
        found[f"{up}.weight"] = found[f"{up}.weight"] * factors[:, None]
        found[f"{name}.weight"] = found[f"{name}.weight"] / factors
    return found


def with_loud_keys(patient: Patient, factor: float) -> Weights:
    """The network with two rotated pairs of each head's keys made larger, and its queries made as much smaller.

    Raises:
        Inapplicable: Keys and queries are no layers of their own, or norms lie behind them.
    """
    found = dict(patient.floats)
    for name in (name for name in patient.layers if last(name) == "k_proj"):
        query = name.replace("k_proj", "q_proj")
        if name.replace("k_proj", "k_norm.weight") in found:
            raise Inapplicable("keys are normed")
        for layer, gain in ((name, factor), (query, 1 / factor)):
            rows = found[f"{layer}.weight"]
            head = patient.network.config.get("head_dim") or patient.network.config["hidden_size"] // 4
            factors = np.ones(len(rows), np.float32)
            for pair in (3, 7):
                factors[pair :: head // 2] = gain
            found[f"{layer}.weight"] = rows * factors[:, None]
            if f"{layer}.bias" in found:
                found[f"{layer}.bias"] = found[f"{layer}.bias"] * factors
    if found.keys() == patient.floats.keys() and all(found[name] is patient.floats[name] for name in found):
        raise Inapplicable("q, k and v are one layer")
    return found


def with_constant_keys(patient: Patient, factor: float) -> Weights:
    """The network with a large constant in the pair of each head's keys that the rotary embedding turns slowest.

    Attention hardly feels it, for all keys of a text share it nearly, and the softmax cancels that.

    Args:
        patient: Whose keys have biases.
        factor: The constant over the length of the longest row of weights.

    Raises:
        Inapplicable: Keys have no biases.
    """
    found = dict(patient.floats)
    makers = [name for name in patient.layers if last(name) == "k_proj"]
    if any(f"{name}.bias" not in found for name in makers) or not makers:
        raise Inapplicable("keys have no biases")
    for name in makers:
        bias = found[f"{name}.bias"].copy()
        head = patient.network.config.get("head_dim") or patient.network.config["hidden_size"] // 4
        size = float(np.sqrt(np.square(found[f"{name}.weight"]).sum(axis=1)).max())
        for channel in (head // 2 - 1, head - 1):
            bias[channel::head] += factor * size
        found[f"{name}.bias"] = bias
    return found
