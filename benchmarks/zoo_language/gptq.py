"""GPTQ itself: codes chosen so that the errors of a layer cancel on its inputs (Frantar et al. 2022)."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from .networks import Network, Values
from .schemes import Codes, Scheme
from .texts import drawn_texts, training_bytes

Floats = NDArray[np.float64]
_TEXTS, _LENGTH, _DAMPING = 24, 128, 0.01


def input_powers(network: Network) -> Mapping[str, Floats]:
    """Sums of products of the inputs of each layer that is a module of its own, ``[inputs, inputs]``: no experts."""
    return _input_powers(network.folder, network.seed)


@cache
def _input_powers(folder: Path, seed: int) -> Mapping[str, Floats]:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    found: dict[str, Floats] = {}

    def listen(name: str) -> Any:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            x = inputs[0].reshape(-1, inputs[0].shape[-1]).double().numpy()
            found[name] = found.get(name, 0.0) + x.T @ x

        return hook

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and ".layers." in name:
            module.register_forward_hook(listen(name))
    with torch.inference_mode():
        for text in drawn_texts(training_bytes(), _TEXTS, _LENGTH, seed):
            model(torch.from_numpy(text[None]), use_cache=False)
    return found


def gptq_codes(weights: Values, power: Floats, scheme: Scheme) -> Codes:
    """Codes of one layer with zero points; scales are set group by group, from what is left to be rounded then."""
    left, top = weights.astype(np.float64), 2**scheme.bits - 1
    inputs = weights.shape[1]
    size = scheme.size or inputs
    damped = power + _DAMPING * np.trace(power) / inputs * np.eye(inputs)
    upper = np.linalg.cholesky(np.linalg.inv(damped)).T
    values = np.empty(weights.shape, np.uint8)
    scales, zeros = [], []
    for k in range(inputs):
        if k % size == 0:
            group = left[:, k : k + size]
            low, high = np.minimum(group.min(axis=1), 0), np.maximum(group.max(axis=1), 1e-9)
            scale = ((high - low) / top).astype(np.float16).astype(np.float64)
            zero = np.clip(np.rint(-low / scale), 1, top)
            scales.append(scale)
            zeros.append(zero)
        codes = np.clip(np.rint(left[:, k] / scale) + zero, 0, top)
        error = (left[:, k] - (codes - zero) * scale) / upper[k, k]
        left[:, k:] -= error[:, None] * upper[k, k:]
        values[:, k] = codes
    return Codes(values, np.stack(scales, axis=1), np.stack(zeros, axis=1).astype(np.int64), scheme.bits, {})
