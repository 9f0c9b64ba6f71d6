"""Quantizers among torch calls: fake quantization, conversion to codes and back, and quantized tensors."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from quantmedic.collectors.from_torch.calls import Kwargs, tensors_of
from quantmedic.collectors.from_torch.torch_operators import Arguments, plain_name
from quantmedic.collectors.pair.quantizer import Quantizer, code_ends

Kind = Literal["fake", "encode", "decode"]
#: Scales or zero points: a tensor, or one number.
Numbers = torch.Tensor | float
_DTYPE_BITS = {torch.quint8: (8, False), torch.qint8: (8, True), torch.qint32: (32, True), torch.quint4x2: (4, False)}
_BITS_IN_NAME = re.compile(r"int(\d+)$")


@dataclass(frozen=True)
class Quantized:
    """A call that quantizes or dequantizes ``source``.

    ``kind`` is ``fake`` for a round trip through codes, ``encode`` for values to codes, ``decode`` for the way back.
    """

    kind: Kind
    source: torch.Tensor
    quantizer: Quantizer | None


def quantization_of(name: str, args: Sequence[object], kwargs: Kwargs, result: object) -> Quantized | None:
    """What a call does to a tensor if it is one of a quantizer; None for all others."""
    plain, _ = plain_name(name)
    a = Arguments(args, kwargs)
    if plain in ("fake_quantize_per_tensor_affine", "fake_quantize_per_channel_affine"):
        return Quantized("fake", a.tensor(0, "input"), _stated_grid(plain, a))
    if plain in ("fused_moving_avg_obs_fake_quant", "_fused_moving_avg_obs_fq_helper"):
        return _fake_quantization(a)
    if plain in ("quantize_per_tensor", "quantize_per_channel", "quantize_per_tensor_dynamic"):
        return _encoding(name, plain, a, result)
    if plain in ("dequantize_per_tensor", "dequantize_per_channel"):
        return Quantized("decode", a.tensor(0, "input"), _stated_grid(plain, a))
    if plain == "dequantize":
        source = a.get(0, "input")
        return Quantized("decode", source, of_tensor(source)) if isinstance(source, torch.Tensor) else None
    if plain in ("quantize_affine", "dequantize_affine"):
        return _affine(plain, a)
    return None


def _fake_quantization(a: Arguments) -> Quantized:
    source, is_on = a.tensor(0, "x", "input"), a.tensor(2, "fake_quant_on")
    if not bool(is_on.any()):
        return Quantized("fake", source, None)
    axis = a.integer(10, "ch_axis") if a.get(11, "per_row_fake_quant") else None
    ends = a.integer(8, "quant_min"), a.integer(9, "quant_max")
    return Quantized("fake", source, grid_of(a.numbers(5, "scale"), a.numbers(6, "zero_point"), *ends, axis=axis))


def _encoding(name: str, plain: str, a: Arguments, result: object) -> Quantized:
    if name.startswith("quantized_decomposed"):
        return Quantized("encode", a.tensor(0, "input"), _stated_grid(plain, a))
    if plain == "quantize_per_tensor_dynamic":
        return Quantized("encode", a.tensor(0, "input"), Quantizer.at_run_time())
    return Quantized("encode", a.tensor(0, "input"), of_tensor(tensors_of(result)[0]))


def _stated_grid(plain: str, a: Arguments) -> Quantizer | None:
    """Scale, zero point, (axis,) lowest and highest code, as torch and quantized_decomposed order them."""
    by_channel = "per_channel" in plain
    low = 4 if by_channel else 3
    return grid_of(
        a.numbers(1, "scale", "scales"),
        a.numbers(2, "zero_point", "zero_points"),
        a.integer(low, "quant_min"),
        a.integer(low + 1, "quant_max"),
        axis=a.integer(3, "axis") if by_channel else None,
    )


def _affine(plain: str, a: Arguments) -> Quantized | None:
    """torchao's affine primitives: (input, block_size, scale, zero_point, dtype, lowest and highest code)."""
    source, block, scale = a.tensor(0, "input"), a.integers(1, "block_size") or [], a.get(2, "scale")
    if not isinstance(scale, torch.Tensor) or scale.dim() > source.dim():
        return None
    place = 5 if plain == "dequantize_affine" else 4
    kind: Kind = "decode" if plain == "dequantize_affine" else "encode"
    ends, zero = _ends_of_codes(a, place), a.get(3, "zero_point")
    if ends is None:
        return Quantized(kind, source, None)
    zero = zero if isinstance(zero, torch.Tensor) else None
    return Quantized(kind, source, block_grid(scale, zero, *ends, source.shape, block))


def _ends_of_codes(a: Arguments, place: int) -> tuple[int, int] | None:
    """Lowest and highest code: as stated behind the type at a place, else those of the type; None for floats."""
    if a.get(place + 1, "quant_min") is not None and a.get(place + 2, "quant_max") is not None:
        return a.integer(place + 1, "quant_min"), a.integer(place + 2, "quant_max")
    dtype = a.get(place, "input_dtype", "output_dtype")
    if not isinstance(dtype, torch.dtype) or dtype.is_floating_point:
        return None
    info = torch.iinfo(dtype)
    return info.min, info.max


def block_grid(
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
    low, high = code_ends(*_DTYPE_BITS.get(tensor.dtype, (8, False)))
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return grid_of(tensor.q_scale(), tensor.q_zero_point(), low, high)
    ends = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return grid_of(*ends, low, high, axis=tensor.q_per_channel_axis())


def grid_of(scale: Numbers, zero: Numbers, low: int, high: int, *, axis: int | None = None) -> Quantizer | None:
    """A grid by its lowest and highest code; None where the codes are no whole numbers of bits."""
    scales, zeros = (_to_float64(value) for value in (scale, zero))
    signed = low < 0
    bits = round(math.log2(high - low + 1)) if high > low else 1
    if signed and high == -low:  # the restricted range, such as ±127
        bits = round(math.log2(high + 1)) + 1
    if not np.isfinite(scales).all():
        return None
    if scales.size == 1:
        axis, scales = None, scales.reshape(())
    points = np.rint(zeros).astype(np.int64)
    points = points.reshape(()) if points.size == 1 and scales.ndim == 0 else np.broadcast_to(points, scales.shape)
    return Quantizer(scales.astype(np.float32), points, bits, signed, axis)


def _to_float64(value: Numbers) -> NDArray[np.float64]:
    if isinstance(value, torch.Tensor):
        return np.asarray(value.detach().to("cpu", torch.float64).numpy())
    return np.asarray(value, np.float64)


def stored_grid(tensor: torch.Tensor) -> tuple[Quantizer | None, torch.Tensor | None]:
    """Grid and codes of a tensor that carries them: quantized, or of a class that holds codes and scales."""
    if tensor.is_quantized:
        return of_tensor(tensor), tensor
    codes, scale = (getattr(tensor, name, None) for name in ("qdata", "scale"))
    block = getattr(tensor, "block_size", None)
    if not isinstance(codes, torch.Tensor) or not isinstance(scale, torch.Tensor) or block is None:
        return None, None
    if codes.dtype not in (torch.int8, torch.uint8) or codes.shape != tensor.shape:
        return None, None
    # Codes of few bits lie in bytes.
    few = _BITS_IN_NAME.search(str(getattr(tensor, "target_dtype", codes.dtype)))
    bits = int(few[1]) if few is not None else 8
    low, high = code_ends(bits, codes.dtype == torch.int8)
    zero = getattr(tensor, "zero_point", None)
    return block_grid(scale, zero, low, high, tensor.shape, list(block)), codes


def quantizes_activation(tensor: torch.Tensor) -> bool:
    """The kernel of these weights quantizes the activation too, on a grid that it computes at run time."""
    asked = any(getattr(tensor, name, None) is not None for name in ("act_quant_kwargs", "activation_quantization"))
    return asked and getattr(tensor, "act_quant_scale", None) is None


def activation_grid(tensor: torch.Tensor) -> Quantizer | None:
    """The grid that weights prescribe for the activation; None where there is none, or more than one step."""
    scale = getattr(tensor, "act_quant_scale", None)
    if not isinstance(scale, torch.Tensor) or scale.numel() != 1:
        return None
    zero = getattr(tensor, "act_quant_zero_point", None)
    return grid_of(scale, torch.zeros(1) if zero is None else zero, -128, 127)


def encode_in_bytes(values: NDArray[np.float32], quantizer: Quantizer) -> NDArray[np.generic]:
    """Codes of values, in the smallest type of whole bytes."""
    kind = np.int8 if quantizer.signed else np.uint8
    return quantizer.encode(values).astype(kind if quantizer.bits <= 8 else np.int32)
