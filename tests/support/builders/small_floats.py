"""Layers of NVFP4, MXFP4 and MXFP8 as compressed-tensors, ModelOpt and GPT-OSS store them, after the specifications.

Nothing is shared with the reader under test: numbers are found by searching all that a type can hold.
"""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from builders.checkpoints import Tensors

Array = NDArray[Any]
#: Numbers of E2M1 by code, computed from sign, exponent and mantissa.
E2M1 = np.array(
    [
        (-1) ** (code >> 3)
        * ((code & 1) * 0.5 if code & 6 == 0 else (1 + (code & 1) / 2) * 2.0 ** ((code >> 1 & 3) - 1))
        for code in range(16)
    ]
)
LARGEST, LARGEST_SCALE = 6.0, 448.0


def codes_of(values: Array) -> Array:
    """The code of the nearest number."""
    borders = (E2M1[1:8] + E2M1[:7]) / 2
    codes = np.searchsorted(borders, np.abs(values))
    return (codes | (values < 0) << 3).astype(np.uint8)


def packed(codes: Array) -> Array:
    """Two codes to a byte, the first in the low bits."""
    return (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)


def global_scale_of(values: Array) -> float:
    """The scale of a tensor that gives its largest block the largest scale."""
    return float(np.float32(np.abs(values).max() / (LARGEST * LARGEST_SCALE)))


def nvfp4(values: Array, scale: float | None = None) -> tuple[Array, Array, float, Array]:
    """Bytes, float8 scales per 16, the scale of the tensor, and what they stand for, in float64."""
    whole = global_scale_of(values) if scale is None else scale
    blocks = values.reshape(len(values), -1, 16).astype(np.float64)
    wanted = np.clip(np.abs(blocks).max(axis=2) / LARGEST / whole, 0, LARGEST_SCALE)
    scales = wanted.astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
    steps = scales.astype(np.float64)[:, :, None] * whole
    codes = codes_of(np.divide(blocks, steps, out=np.zeros_like(blocks), where=steps > 0))
    stored = (E2M1[codes] * steps).reshape(values.shape)
    return packed(codes.reshape(values.shape)), scales, whole, stored


def of_compressed_tensors(name: str, values: Array, scale: float | None = None) -> Tensors:
    """NVFP4 with the inverse of the scale of the tensor."""
    codes, scales, whole, _ = nvfp4(values, scale)
    return {
        f"{name}.weight_packed": ("U8", codes),
        f"{name}.weight_scale": ("F8_E4M3", scales),
        f"{name}.weight_global_scale": ("F32", np.array([1 / whole], np.float32)),
    }


def of_modelopt(name: str, values: Array, scale: float | None = None) -> Tensors:
    codes, scales, whole, _ = nvfp4(values, scale)
    return {
        f"{name}.weight": ("U8", codes),
        f"{name}.weight_scale": ("F8_E4M3", scales),
        f"{name}.weight_scale_2": ("F32", np.array(whole, np.float32)),
        f"{name}.input_scale": ("F32", np.array(0.01, np.float32)),
    }


def mxfp4(values: Array, shift: int = 0) -> tuple[Array, Array, Array]:
    """Bytes, exponents per 32, and what they stand for."""
    blocks = values.reshape(*values.shape[:-1], -1, 32).astype(np.float64)
    powers = np.floor(np.log2(np.abs(blocks).max(axis=-1))).astype(int) - 2 + shift
    codes = codes_of(blocks / 2.0 ** powers[..., None])
    stored = (E2M1[codes] * 2.0 ** powers[..., None]).reshape(values.shape)
    return packed(codes.reshape(values.shape)), (powers + 127).astype(np.uint8), stored


def mx_of_compressed_tensors(name: str, values: Array) -> Tensors:
    codes, exponents, _ = mxfp4(values)
    return {f"{name}.weight_packed": ("U8", codes), f"{name}.weight_scale": ("U8", exponents)}


def mxfp6(values: Array) -> tuple[Array, Array, Array]:
    """Bytes, exponents per 32, and what they stand for: a sign, two bits of exponent, three of mantissa."""
    blocks = values.reshape(len(values), -1, 32).astype(np.float64)
    powers = np.floor(np.log2(np.abs(blocks).max(axis=-1))).astype(int) - 2
    scaled = blocks / 2.0 ** powers[..., None]
    numbers = np.array(
        [(1 + part / 8) * 2**power if power >= 0 else part / 8 for power in (-1, 0, 1, 2) for part in range(8)]
    )
    codes = np.searchsorted((numbers[1:] + numbers[:-1]) / 2, np.abs(scaled))
    stored = np.where(scaled < 0, -1, 1) * numbers[codes] * 2.0 ** powers[..., None]
    four = (codes | (scaled < 0) << 5).reshape(len(values), -1, 4)
    word = sum(four[..., place] << 6 * place for place in range(4))
    packed_codes = np.stack([word >> shift & 255 for shift in (0, 8, 16)], axis=-1).astype(np.uint8)
    return packed_codes.reshape(len(values), -1), (powers + 127).astype(np.uint8), stored.reshape(values.shape)


def mx6_of_compressed_tensors(name: str, values: Array) -> Tensors:
    codes, exponents, _ = mxfp6(values)
    return {f"{name}.weight_packed": ("U8", codes), f"{name}.weight_scale": ("U8", exponents)}


def mxfp8_of_compressed_tensors(name: str, values: Array) -> tuple[Tensors, Array]:
    """Float8 codes, exponents per 32, and what they stand for."""
    blocks = values.reshape(len(values), -1, 32).astype(np.float64)
    powers = np.ceil(np.log2(np.abs(blocks).max(axis=-1) / LARGEST_SCALE)).astype(int)
    codes = (blocks / 2.0 ** powers[..., None]).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
    stored = (codes.astype(np.float64) * 2.0 ** powers[..., None]).reshape(values.shape)
    exponents = (powers + 127).astype(np.uint8)
    return {
        f"{name}.weight": ("F8_E4M3", codes.reshape(values.shape)),
        f"{name}.weight_scale": ("U8", exponents),
    }, stored
