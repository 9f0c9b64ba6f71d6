"""Models of llama.cpp as its converter and ``llama-quantize`` lay them out, written here byte by byte.

Nothing is shared with the reader under test: blocks are put together code by code. The K types are rounded plainly, run
by run, without the search that llama.cpp does; of IQ2_S the nearest point of the lattice is taken for every 8 weights.
"""

import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from builders.checkpoints import Array, Tensors, from_bfloat16

NUMBERS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11}
NUMBERS |= {"Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ2_XXS": 16, "IQ4_NL": 20, "IQ4_XS": 23, "BF16": 30, "MXFP4": 39}
NUMBERS |= {"IQ2_XS": 17, "IQ3_XXS": 18, "IQ1_S": 19, "IQ3_S": 21, "IQ2_S": 22, "IQ1_M": 29, "TQ1_0": 34, "TQ2_0": 35}
NUMBERS |= {"NVFP4": 40, "Q1_0": 41}
HEADS, KV_HEADS = 4, 2
LLAMA: Mapping[str, int | str] = {
    "general.architecture": "llama",
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
}
#: Names of llama.cpp by those of Hugging Face, within a block and outside.
INSIDE = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
#: Type, shape as numpy has it, and bytes of tensors by name.
Blocks = dict[str, tuple[str, tuple[int, ...], bytes]]
Value = int | str | list[str]


def llama_name(name: str) -> str:
    """The name that the converter gives."""
    base, _, ending = name.rpartition(".")
    if base in OUTSIDE:
        return f"{OUTSIDE[base]}.{ending}"
    _, _, number, part = base.split(".", 3)
    return f"blk.{number}.{INSIDE[part]}.{ending}"


def permute(weights: Array, heads: int) -> Array:
    """Rows of q and k as ``LlamaModel.permute`` of the converter orders them."""
    halves = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return halves.swapaxes(1, 2).reshape(weights.shape)


def converted(tensors: Tensors, kind_of: Callable[[str], str], scales: Mapping[str, float] | None = None) -> Blocks:
    """A Llama as the converter and ``llama-quantize`` write it; ``scales`` multiply the scales of blocks, by name."""
    found: Blocks = {}
    for name, (_, bits) in tensors.items():
        values = from_bfloat16(bits)
        if "q_proj" in name or "k_proj" in name:
            values = permute(values, HEADS if "q_proj" in name else KV_HEADS)
        kind = "F32" if values.ndim == 1 else kind_of(name)
        if kind.endswith("_K") and values.shape[-1] % 256:
            kind = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}[kind]  # as llama-quantize falls back
        found[llama_name(name)] = (kind, values.shape, quantized(values, kind, (scales or {}).get(name, 1.0)))
    return found


def written(path: Path, tensors: Blocks, metadata: Mapping[str, Value] = LLAMA, version: int = 3) -> Path:
    """A file; tensors start at multiples of 32 bytes."""
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        header += _text(key) + _value(value)
    data = b""
    for name, (kind, shape, content) in tensors.items():
        header += _text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape[::-1])
        header += struct.pack("<IQ", NUMBERS[kind], len(data))
        data += content + bytes(-len(content) % 32)
    path.write_bytes(header + bytes(-len(header) % 32) + data)
    return path


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Value) -> bytes:
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_text(part) for part in value)


def quantized(values: Array, kind: str, gain: float = 1.0) -> bytes:
    """Bytes of a tensor; ``gain`` multiplies the scales of its blocks."""
    if kind in ("F32", "F16"):
        return values.astype({"F32": "<f4", "F16": "<f2"}[kind]).tobytes()
    if kind == "BF16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    runs = values.astype(np.float64).reshape(-1, 256 if kind.endswith("_K") else 32)
    return np.hstack([np.ascontiguousarray(part).view(np.uint8) for part in _BLOCKS[kind](runs, gain)]).tobytes()


def _halves(numbers: Array) -> Array:
    """Numbers ``[blocks, 1]`` as float16 holds them."""
    return numbers.astype(np.float16)


def _codes(values: Array, scale: Array, low: int, high: int) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.clip(np.rint(np.nan_to_num(values / scale)), low, high).astype(int)


def _tops(runs: Array) -> Array:
    """The number of the largest magnitude of each run, ``[…, 1]``."""
    return np.take_along_axis(runs, np.abs(runs).argmax(axis=-1)[..., None], axis=-1)


def _nibbles(codes: Array) -> Array:
    """Codes of the first half in the low bits of bytes, of the second in the high ones."""
    low, high = np.split(codes & 15, 2, axis=1)
    return (low | high << 4).astype(np.uint8)


def _q8_0(x: Array, gain: float) -> list[Array]:
    scale = _halves(np.abs(_tops(x)) / 127).astype(float)
    return [_halves(scale * gain), _codes(x, scale, -128, 127).astype(np.int8)]


def _q4_0(x: Array, gain: float) -> list[Array]:
    scale = _halves(_tops(x) / -8).astype(float)
    return [_halves(scale * gain), _nibbles(_codes(x, scale, -8, 7) + 8)]


def _q5_0(x: Array, gain: float) -> list[Array]:
    scale = _halves(_tops(x) / -16).astype(float)
    codes = _codes(x, scale, -16, 15) + 16
    high = (codes >> 4 << np.arange(32)).sum(axis=1, keepdims=True).astype("<u4")
    return [_halves(scale * gain), high, _nibbles(codes)]


def _q4_k(x: Array, gain: float) -> list[Array]:
    runs = x.reshape(-1, 8, 32)
    low = np.minimum(runs.min(axis=2), 0)
    steps = (runs.max(axis=2) - low) / 15
    d, dmin = (_halves(top.max(axis=1, keepdims=True) / 63).astype(float) for top in (steps, -low))
    scales, offsets = _codes(steps, d, 0, 63), _codes(-low, dmin, 0, 63)
    codes = _codes(runs + (dmin * offsets)[..., None], (d * scales)[..., None], 0, 15)
    packed = [
        scales[:, :4] | (scales[:, 4:] >> 4) << 6,
        offsets[:, :4] | (offsets[:, 4:] >> 4) << 6,
        scales[:, 4:] & 15 | (offsets[:, 4:] & 15) << 4,
    ]
    pairs = codes.reshape(-1, 4, 2, 32)
    body = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128).astype(np.uint8)
    return [_halves(d * gain), _halves(dmin * gain), *(part.astype(np.uint8) for part in packed), body]


def _q6_k(x: Array, gain: float) -> list[Array]:
    runs = x.reshape(-1, 16, 16)
    tops = _tops(runs)[..., 0] / -32
    d = _halves(_tops(tops) / -128).astype(float)
    scales = _codes(tops, d, -128, 127)
    codes = (_codes(runs, (d * scales)[..., None], -32, 31) + 32).reshape(-1, 2, 4, 32)
    first, second, third, fourth = (codes[:, :, k] for k in range(4))
    low = np.concatenate([first & 15 | (third & 15) << 4, second & 15 | (fourth & 15) << 4], axis=2)
    high = first >> 4 | second >> 4 << 2 | third >> 4 << 4 | fourth >> 4 << 6
    parts = [part.reshape(len(x), -1).astype(np.uint8) for part in (low, high)]
    return [*parts, scales.astype(np.int8), _halves(d * gain)]


#: The largest number of a point stands for so many root mean squares of a run; and that number.
_REACH, _LARGEST = 2.2, 43


def iq2_s(values: Array, points: Array) -> bytes:
    """Blocks of 256 weights; ``points`` are those of the lattice, ``[1024, 8]``."""
    lattice = np.abs(points).astype(np.float32)
    x = values.reshape(-1, 16, 16).astype(np.float32)
    wanted = np.sqrt((x**2).mean(axis=2)) * _REACH / _LARGEST
    whole = (wanted.max(axis=1, keepdims=True) / 15.5 * 4).astype(np.float16)
    codes = np.clip(np.rint(wanted / whole.astype(np.float32) * 4 - 0.5), 0, 15).astype(np.uint8)
    scales = whole.astype(np.float32) * (0.5 + codes) / 4
    runs = (np.abs(x) / scales[:, :, None]).reshape(-1, 8)
    norms = (lattice**2).sum(axis=1)
    places = np.concatenate([(norms - 2 * part @ lattice.T).argmin(axis=1) for part in np.array_split(runs, 8)])
    places = places.reshape(len(x), 32)
    bits = np.arange(8, dtype=np.uint8)
    signs = ((x.reshape(len(x), 32, 8) < 0).astype(np.uint8) << bits).sum(axis=2).astype(np.uint8)
    high = ((places >> 8).astype(np.uint8).reshape(len(x), 8, 4) << bits[:8:2]).sum(axis=2).astype(np.uint8)
    parts = (whole.view(np.uint8), (places & 255).astype(np.uint8), signs, high, codes[:, 0::2] | codes[:, 1::2] << 4)
    return np.hstack(parts).tobytes()


_BLOCKS: Mapping[str, Callable[[Array, float], list[Array]]] = {
    "Q4_0": _q4_0,
    "Q5_0": _q5_0,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}
