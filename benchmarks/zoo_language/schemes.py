"""How layers are quantized, and how each format stores them.

Quantizers are plain formulas, but for torchao, which is asked itself, and GPTQ (``gptq.py``). The bytes are laid out by
the builders of the tests, which share nothing with the reader that is measured here.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))

from builders import checkpoints as made  # the path comes first
from builders import nf4, small_floats
from builders.checkpoints import Tensors

from .networks import Values

Kind = Literal["gptq", "awq", "packed", "int8", "float8", "rounded", "nvfp4", "mxfp4", "nf4", "torchao"]
#: Largest number of E4M3.
_LARGEST_FLOAT8 = 448.0


@dataclass(frozen=True)
class Scheme:
    """How a layer is quantized.

    Attributes:
        kind: The format: ``packed`` is compressed-tensors' pack-quantized, ``rounded`` real numbers on a grid.
        bits: Of a code.
        size: Weights of a row that share a scale; 0 for the whole row.
        symmetric: Without zero points.
        is_per_tensor: One scale for all rows.
        reach: Share of the range that the codes cover: under 1, large weights are clipped.
        is_cut: Codes are rounded down instead of to the nearest.
        is_searched: The range of each group is the one with the least squared error.
    """

    kind: Kind
    bits: int = 4
    size: int = 32
    symmetric: bool = True
    is_per_tensor: bool = False
    reach: float = 1.0
    is_cut: bool = False
    is_searched: bool = False

    def __str__(self) -> str:
        return f"{self.kind}-{self.bits}{f'-g{self.size}' if self.size else ''}"


@dataclass(frozen=True)
class Codes:
    """A layer on an even grid: ``values`` from 0 on, ``[outputs, inputs]``; the others ``[outputs, groups]``.

    Attributes:
        options: How the writer departs from its format.
    """

    values: made.Array
    scale: made.Array
    zero: made.Array
    bits: int
    options: Mapping[str, Any]

    def dequantized(self) -> made.Array:
        return made.dequantize(self.values, self.scale, self.zero)


def quantize(weights: Values, scheme: Scheme) -> Codes:
    """Codes of a layer on an even grid, with scales as float16 or bfloat16 keeps them."""
    if not scheme.is_searched:
        return _rounded(weights, scheme)
    tried = [_rounded(weights, replace(scheme, reach=reach)) for reach in np.linspace(0.7, 1.0, 13)]
    groups = tried[0].scale.shape[1]
    errors = np.stack([_errors_of_groups(weights, codes, groups) for codes in tried])
    best = errors.argmin(axis=0)
    scale, zero = (np.take_along_axis(np.stack(parts), best[None], 0)[0] for parts in _grids(tried))
    size = weights.shape[1] // groups
    steps, zeros = (np.repeat(part, size, axis=1) for part in (scale, zero))
    values = np.clip(np.rint(weights / steps) + zeros, 0, 2**scheme.bits - 1).astype(np.uint8)
    return replace(tried[0], values=values, scale=scale, zero=zero)


def _grids(tried: list[Codes]) -> list[list[made.Array]]:
    return [[codes.scale for codes in tried], [codes.zero for codes in tried]]


def _errors_of_groups(weights: Values, codes: Codes, groups: int) -> made.Array:
    return ((codes.dequantized() - weights) ** 2).reshape(len(weights), groups, -1).sum(axis=2)


def _rounded(weights: Values, scheme: Scheme) -> Codes:
    size = scheme.size if 0 < scheme.size < weights.shape[1] else weights.shape[1]
    groups = weights.reshape(len(weights), -1, size).astype(np.float64)
    top = 2**scheme.bits - 1
    if scheme.symmetric:
        largest = np.abs(groups).max(axis=2)
        largest = np.full_like(largest, largest.max()) if scheme.is_per_tensor else largest
        scale = largest * scheme.reach / (2 ** (scheme.bits - 1) - 1)
        zero = np.full(scale.shape, 2 ** (scheme.bits - 1))
    else:
        low, high = np.minimum(groups.min(axis=2), 0) * scheme.reach, np.maximum(groups.max(axis=2), 0) * scheme.reach
        scale = (high - low) / top
        # GPTQ stores zero points less 1, and loaders do not agree on what a 0 is then.
        least = 1 if scheme.kind == "gptq" else 0
        zero = np.clip(np.rint(-low / np.where(scale == 0, 1, scale)), least, top)
    scale = _as_stored(scale, scheme.kind)
    wanted = groups / np.where(scale == 0, 1, scale)[:, :, None]
    whole = np.floor(wanted) if scheme.is_cut else np.rint(wanted)
    values = np.clip(whole + zero[:, :, None], 0, top).reshape(weights.shape).astype(np.uint8)
    return Codes(values, scale, zero.astype(np.int64), scheme.bits, {})


def _as_stored(scale: made.Array, kind: Kind) -> made.Array:
    """As the format keeps it: compressed-tensors in bfloat16, the others in float16."""
    if kind in ("packed", "int8", "rounded"):
        return made.from_bfloat16(made.bfloat16(scale)).astype(np.float64)
    return scale.astype(np.float16).astype(np.float64)


#: Changes the codes of a layer before they are stored.
Damage = Callable[[Codes], Codes]


def stored_layer(name: str, weights: Values, scheme: Scheme, damage: Damage | None = None) -> Tensors:
    """Tensors of one layer."""
    plain = _PLAIN.get(scheme.kind)
    if plain is not None:
        return plain(name, weights)
    codes = quantize(weights, scheme)
    codes = damage(codes) if damage is not None else codes
    return _OF_CODES[scheme.kind](name, codes)


def _gptq(name: str, codes: Codes) -> Tensors:
    return made.gptq(name, codes.values, codes.scale, codes.zero, codes.bits, **codes.options)


def _awq(name: str, codes: Codes) -> Tensors:
    return made.awq(name, codes.values, codes.scale, codes.zero, codes.bits, **codes.options)


def _packed(name: str, codes: Codes) -> Tensors:
    is_even = bool((codes.zero == 2 ** (codes.bits - 1)).all())
    zero = None if is_even else codes.zero
    return made.compressed(name, codes.values, codes.scale, zero, codes.bits, **codes.options)


def _int8(name: str, codes: Codes) -> Tensors:
    signed = (codes.values.astype(np.int16) - 2 ** (codes.bits - 1)).astype(np.int8)
    return {f"{name}.weight": ("I8", signed), f"{name}.weight_scale": ("BF16", made.bfloat16(codes.scale))}


def _real(name: str, codes: Codes) -> Tensors:
    return {f"{name}.weight": ("F32", codes.dequantized().astype(np.float32))}


def _float8(name: str, weights: Values) -> Tensors:
    scale = np.abs(weights).max(axis=1, keepdims=True) / _LARGEST_FLOAT8
    scale = made.from_bfloat16(made.bfloat16(np.where(scale == 0, 1, scale)))
    codes = np.clip(weights / scale, -_LARGEST_FLOAT8, _LARGEST_FLOAT8).astype(ml_dtypes.float8_e4m3fn)
    return {f"{name}.weight": ("F8_E4M3", codes), f"{name}.weight_scale": ("BF16", made.bfloat16(scale))}


def _torchao(name: str, weights: Values) -> Tensors:
    """As torchao itself quantizes the layer."""
    import torch  # with torchao, takes seconds
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    layer = torch.nn.Sequential(torch.nn.Linear(weights.shape[1], weights.shape[0], bias=False))
    layer[0].weight = torch.nn.Parameter(torch.from_numpy(weights), requires_grad=False)
    quantize_(layer, Int8WeightOnlyConfig())
    found = layer[0].weight
    return {
        f"{name}._weight_qdata": ("I8", found.qdata.numpy()),
        f"{name}._weight_scale": ("F32", found.scale.float().numpy().reshape(-1, 1)),
    }


_OF_CODES: Mapping[Kind, Callable[[str, Codes], Tensors]] = {
    "gptq": _gptq,
    "awq": _awq,
    "packed": _packed,
    "int8": _int8,
    "rounded": _real,
}
_PLAIN: Mapping[Kind, Callable[[str, Values], Tensors]] = {
    "float8": _float8,
    "nvfp4": small_floats.of_compressed_tensors,
    "mxfp4": small_floats.mx_of_compressed_tensors,
    "torchao": _torchao,
    "nf4": lambda name, weights: nf4.nf4(name, weights)[0],
}
