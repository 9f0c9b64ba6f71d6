"""Language models whose checkpoints ask for quantized activations and caches, and whole models that do so by hooks.

The reference shares nothing with what is under test: formulas are float64 and numpy's, keys and values are taken in the
attention function and not in a cache, and the loop over experts is written anew.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from builders import checkpoints as made
from builders import language_models as lm

#: What a scheme makes of the values of one text, ``[tokens, channels]`` or ``[heads, tokens, channels]``.
Rounder = Callable[[NDArray[Any]], NDArray[Any]]
INT8_TOKENS = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
FLOAT8_TENSOR = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
INT8_TENSOR = {**FLOAT8_TENSOR, "type": "int"}


@dataclass(frozen=True)
class Asked:
    """What the configuration of a checkpoint asks for.

    Attributes:
        inputs: Of activations.
        cache: Of keys and values.
        scale: Of all inputs, where it is stored.
        cache_scales: Of keys and of values, where they are stored.
    """

    inputs: Mapping[str, Any] | None = None
    cache: Mapping[str, Any] | None = None
    scale: float | None = None
    cache_scales: tuple[float, float] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


def write_quantized(floats: Path, folder: Path, asked: Asked) -> Path:
    """The checkpoint with matrices of its blocks in int8 per row, and all scales that are asked for."""
    stored = load_file(floats / "model.safetensors")
    tensors: made.Tensors = {}
    for name, values in stored.items():
        if not is_layer(name, values):
            tensors[name] = ("F32", np.asarray(values, np.float32))
            continue
        codes, scale = int8_codes(values)
        base = name.removesuffix(".weight")
        tensors[name] = ("I8", codes)
        tensors[f"{base}.weight_scale"] = ("F32", scale)
        if asked.scale is not None:
            tensors[f"{base}.input_scale"] = ("F32", np.array([asked.scale], np.float32))
        attention, _, last = base.rpartition(".")
        if asked.cache_scales is not None and last in ("k_proj", "qkv_proj", "c_attn", "kv_a_proj_with_mqa"):
            for kind, number in zip("kv", asked.cache_scales, strict=True):
                tensors[f"{attention}.{kind}_scale"] = ("F32", np.array([number], np.float32))
    config = made.json.loads((floats / "config.json").read_text())
    weights = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": asked.inputs}
    said = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": asked.cache,
        **asked.config,
    }
    return made.write_folder(folder, tensors, {**config, "quantization_config": said})


def is_layer(name: str, values: NDArray[Any]) -> bool:
    """A matrix that tools quantize: one of a block, and no router."""
    inside = ".layers." in name or ".h." in name or name.startswith("h.")
    return inside and values.ndim == 2 and not name.endswith("gate.weight")


def int8_codes(values: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    scale = (np.abs(values).max(1, keepdims=True) / 127).astype(np.float32)
    return np.clip(np.rint(values / scale), -128, 127).astype(np.int8), scale


def with_int8_weights(floats: Path) -> Any:
    """The whole model with the weights that the checkpoint stands for."""
    folder = floats.parent / f"{floats.name}-int8"
    if not folder.exists():
        lm.saved(lm.opened(floats), folder)
        stored = load_file(folder / "model.safetensors")
        for name, values in stored.items():
            if is_layer(name, values):
                codes, scale = int8_codes(values)
                stored[name] = codes.astype(np.float32) * scale
        made.write_file(
            folder / "model.safetensors", {name: ("F32", own) for name, own in stored.items()}, {"format": "pt"}
        )
    return lm.opened(folder)


def int8_tokens(values: NDArray[Any]) -> NDArray[Any]:
    """In float32, which decides whether the largest value, of 127.5 steps, gets the code -127 or -128."""
    own = values.astype(np.float32)
    scale = np.abs(own).max(-1, keepdims=True) / np.float32(127.5)
    scale = np.where(scale == 0, np.float32(1), scale)
    return np.clip(np.rint(own / scale), -128, 127).astype(np.float64) * scale


def int8_with(scale: float) -> Rounder:
    return lambda values: np.clip(np.rint(values / np.float32(scale)), -128, 127) * np.float64(np.float32(scale))


def float8_with(scale: float) -> Rounder:
    return lambda values: (
        np.clip(values / np.float32(scale), -448, 448)
        .astype(np.float32)
        .astype(ml_dtypes.float8_e4m3fn)
        .astype(np.float64)
        * np.float64(np.float32(scale))
    )


def hooked(model: Any, inputs: Rounder | None = None, caches: tuple[Rounder, Rounder] | None = None) -> Any:
    """The model with the inputs of the matrices of its blocks, and its keys and values, quantized."""
    model.set_attn_implementation("eager")
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        is_matrix = isinstance(weight, torch.nn.Parameter) and weight.ndim == 2 and not name.endswith("gate")
        if inputs is not None and is_matrix and (".layers." in name or ".h." in name):
            module.register_forward_pre_hook(lambda _, args: (_rounded(args[0], inputs), *args[1:]))
        if (
            inputs is not None
            and hasattr(module, "gate_up_proj")
            and module.gate_up_proj.__class__ is torch.nn.Parameter
        ):
            module.forward = _experts(module, inputs)
    if caches is not None:
        _quantize_caches(model, caches)
    return model


def _quantize_caches(model: Any, caches: tuple[Rounder, Rounder]) -> None:
    """By the function that attention calls, which gets keys and values behind the rotary embedding."""
    file = sys.modules[type(model).__module__]
    own: Any = getattr(file.eager_attention_forward, "plain", file.eager_attention_forward)

    def attend(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        rounders = getattr(module, "rounders", None)
        if rounders is not None:
            key, value = (_rounded(each, own) for each, own in zip((key, value), rounders, strict=True))
        return own(module, query, key, value, *args, **kwargs)

    attend.plain = own  # type: ignore[attr-defined]
    file.eager_attention_forward = attend  # type: ignore[attr-defined]
    for module in model.modules():
        if hasattr(module, "layer_idx"):
            module.rounders = caches


def _rounded(values: torch.Tensor, rounder: Rounder) -> torch.Tensor:
    rows = [rounder(row.numpy().astype(np.float64)) for row in values] if values.ndim > 2 else rounder(values.numpy())
    return torch.from_numpy(np.asarray(rows, np.float32)).reshape(values.shape)


def _experts(module: Any, rounder: Rounder) -> Any:
    """Expert by expert as transformers does it, for a difference in the last digit decides between two codes."""

    def run(hidden: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        found = torch.zeros_like(hidden)
        for expert in range(len(module.gate_up_proj)):
            tokens, places = torch.where(chosen == expert)
            if not len(tokens):
                continue
            own = torch.nn.functional.linear(_rounded(hidden[tokens], rounder), module.gate_up_proj[expert])
            gate, up = own.chunk(2, dim=-1)
            inner = _rounded(module.act_fn(gate) * up, rounder)
            outputs = torch.nn.functional.linear(inner, module.down_proj[expert])
            found.index_add_(0, tokens, outputs * shares[tokens, places, None])
        return found

    return run
