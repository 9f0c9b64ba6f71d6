"""What torch calls tell of quantizers: fake quantization, conversion to codes and back, and quantized tensors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from quantmedic.collectors.from_torch.calls import Kwargs, tensors_of
from quantmedic.collectors.from_torch.operators import Arguments, plain_name
from quantmedic.collectors.pair.quantizer import Quantizer

Kind = Literal["fake", "encode", "decode"]
_DTYPE_BITS = {torch.quint8: (8, False), torch.qint8: (8, True), torch.qint32: (32, True), torch.quint4x2: (4, False)}


@dataclass(frozen=True)
class Quantized:
    """A call that quantizes ``source``, or takes it back: to the values after a round trip, to codes, to values."""

    kind: Kind
    source: torch.Tensor
    quantizer: Quantizer | None


def quantized(name: str, args: Sequence[Any], kwargs: Kwargs, result: Any) -> Quantized | None:
    """What a call does to a tensor if it is one of a quantizer; None for all others."""
    plain, _ = plain_name(name)
    a = Arguments(args, kwargs)
    if plain == "fake_quantize_per_tensor_affine":
        grid = grid_of(a.get(1, "scale"), a.get(2, "zero_point"), a.get(3, "quant_min"), a.get(4, "quant_max"))
        return Quantized("fake", a.get(0, "input"), grid)
    if plain == "fake_quantize_per_channel_affine":
        ends = a.get(4, "quant_min"), a.get(5, "quant_max")
        grid = grid_of(a.get(1, "scale"), a.get(2, "zero_point"), *ends, axis=a.get(3, "axis"))
        return Quantized("fake", a.get(0, "input"), grid)
    if plain in ("fused_moving_avg_obs_fake_quant", "_fused_moving_avg_obs_fq_helper"):
        return _fused(a)
    if plain in ("quantize_per_tensor", "quantize_per_channel", "quantize_per_tensor_dynamic"):
        return _encoded(name, plain, a, result)
    if plain in ("dequantize_per_tensor", "dequantize_per_channel"):
        return Quantized("decode", a.get(0, "input"), _decomposed(plain, a))
    if plain == "dequantize":
        source = a.get(0, "input")
        return Quantized("decode", source, of_tensor(source)) if isinstance(source, torch.Tensor) else None
    if plain in ("quantize_affine", "dequantize_affine"):
        return _affine(plain, a)
    return None


def _fused(a: Arguments) -> Quantized:
    source, is_on = a.get(0, "x", "input"), a.get(2, "fake_quant_on")
    if not bool(is_on.any()):
        return Quantized("fake", source, None)
    axis = a.get(10, "ch_axis") if a.get(11, "per_row_fake_quant") else None
    ends = a.get(8, "quant_min"), a.get(9, "quant_max")
    return Quantized("fake", source, grid_of(a.get(5, "scale"), a.get(6, "zero_point"), *ends, axis=axis))


def _encoded(name: str, plain: str, a: Arguments, result: Any) -> Quantized:
    if name.startswith("quantized_decomposed"):
        return Quantized("encode", a.get(0, "input"), _decomposed(plain, a))
    if plain == "quantize_per_tensor_dynamic":
        return Quantized("encode", a.get(0, "input"), Quantizer.at_run_time())
    return Quantized("encode", a.get(0, "input"), of_tensor(tensors_of(result)[0]))


def _decomposed(plain: str, a: Arguments) -> Quantizer | None:
    """Scale, zero point, (axis,) lowest and highest code, as quantized_decomposed orders them."""
    if plain.endswith("per_channel"):
        ends = a.get(4, "quant_min"), a.get(5, "quant_max")
        return grid_of(a.get(1, "scales"), a.get(2, "zero_points"), *ends, axis=a.get(3, "axis"))
    ends = a.get(3, "quant_min"), a.get(4, "quant_max")
    return grid_of(a.get(1, "scale"), a.get(2, "zero_point"), *ends)


def _affine(plain: str, a: Arguments) -> Quantized | None:
    """torchao's affine primitives: (input, block_size, scale, zero_point, dtype, lowest and highest code)."""
    source, block, scale = a.get(0, "input"), a.get(1, "block_size"), a.get(2, "scale")
    if not isinstance(scale, torch.Tensor) or scale.dim() > source.dim():
        return None
    place = 5 if plain == "dequantize_affine" else 4
    kind: Kind = "decode" if plain == "dequantize_affine" else "encode"
    dtype = a.get(place, "input_dtype", "output_dtype")
    low, high = a.get(place + 1, "quant_min"), a.get(place + 2, "quant_max")
    if low is None or high is None:
        info = torch.iinfo(dtype) if isinstance(dtype, torch.dtype) and not dtype.is_floating_point else None
        low, high = (info.min, info.max) if info is not None else (None, None)
    if low is None or high is None:
        return Quantized(kind, source, None)
    return Quantized(kind, source, blocked(scale, a.get(3, "zero_point"), low, high, source.shape, list(block)))


def blocked(
    scale: torch.Tensor, zero: torch.Tensor | None, low: int, high: int, shape: Sequence[int], block: Sequence[int]
) -> Quantizer | None:
    """The grid of a tensor cut into equal blocks that share a scale; None for blocks along more than one axis."""
    counts = [max(side // max(own, 1), 1) for side, own in zip(shape, block, strict=True)]
    zero = torch.zeros_like(scale) if zero is None else zero
    cut = [i for i, n in enumerate(counts) if n > 1]
    if not cut:
        return grid_of(scale.reshape(-1)[:1], zero.reshape(-1)[:1], low, high)
    if len(cut) == 1 and counts[cut[0]] == shape[cut[0]]:
        return grid_of(scale.reshape(-1), zero.reshape(-1), low, high, axis=cut[0])
    grouped = [i for i in cut if 1 < block[i] < shape[i]]
    if len(grouped) != 1 or any(block[i] != 1 for i in cut if i != grouped[0]) or scale.dim() != len(shape):
        return None
    grid = grid_of(scale, zero, low, high, axis=grouped[0])
    return None if grid is None else Quantizer(
        grid.scale.reshape(scale.shape), grid.zero_point.reshape(scale.shape), grid.bits, grid.signed, grouped[0],
        int(block[grouped[0]]),
    )  # fmt: skip


def of_tensor(tensor: torch.Tensor) -> Quantizer | None:
    """The grid of a quantized tensor."""
    if not tensor.is_quantized:
        return None
    bits, signed = _DTYPE_BITS.get(tensor.dtype, (8, False))
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return grid_of(tensor.q_scale(), tensor.q_zero_point(), low, high)
    ends = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return grid_of(*ends, low, high, axis=tensor.q_per_channel_axis())


def grid_of(scale: Any, zero: Any, low: Any, high: Any, *, axis: int | None = None) -> Quantizer | None:
    """A grid by its lowest and highest code; None where the codes are no whole numbers of bits."""
    scales, zeros = (_numbers(value) for value in (scale, zero))
    low, high = int(low), int(high)
    signed = low < 0
    bits = round(math.log2(high - low + 1)) if high > low else 1
    if signed and high == -low:  # the restricted range, such as ±127
        bits = round(math.log2(high + 1)) + 1
    if not np.isfinite(scales).all():
        return None
    if scales.size == 1:
        axis, scales = None, scales.reshape(())
    zeros = np.rint(zeros).astype(np.int64)
    zeros = zeros.reshape(()) if zeros.size == 1 and scales.ndim == 0 else np.broadcast_to(zeros, scales.shape)
    return Quantizer(scales.astype(np.float32), zeros, bits, signed, axis)


def _numbers(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", torch.float64).numpy()
    return np.asarray(value, np.float64)
