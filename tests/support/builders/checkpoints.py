"""Checkpoints of a small language model, float and quantized, written here after the formats' specifications.

Nothing is shared with the reader under test: words are put together code by code with shifts, files byte by byte.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import quantmedic
from quantmedic.engine.case.facts import WeightFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.diagnosis import Diagnosis

Array = NDArray[Any]
Tensors = dict[str, tuple[str, Array]]

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
IN_SEQUENCE = tuple(range(8))
HIDDEN, INNER, VOCABULARY, GROUP = 256, 384, 512, 64
LINEAR = {f"self_attn.{name}_proj": (HIDDEN, HIDDEN) for name in "qkvo"}
LINEAR |= {"mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER)}


def bfloat16(values: Array) -> Array:
    """Bits of float32 numbers rounded to bfloat16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits: Array) -> Array:
    return np.left_shift(bits.astype(np.uint32), 16).view(np.float32)


def write_file(path: Path, tensors: Tensors, metadata: Mapping[str, str] | None = None) -> Path:
    """A safetensors file: length of the header, header, data."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    position, chunks = 0, []
    for name, (dtype, array) in tensors.items():
        data = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [position, position + len(data)]}
        position += len(data)
        chunks.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(chunks))
    return path


def write_folder(folder: Path, tensors: Tensors, config: Mapping[str, Any] | None = None, shards: int = 2) -> Path:
    """Shards with an index and a configuration."""
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        own = names[number::shards]
        write_file(folder / file, {name: tensors[name] for name in own})
        weight_map |= dict.fromkeys(own, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **(config or {})}))
    return folder


def language_model(layers: int = 3, seed: int = 0) -> Tensors:
    """Names and shapes as of Llama, random weights whose channels differ by a factor of about two, in bfloat16."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> Array:
        channels = np.exp(random.normal(0, 0.3, (shape[0], 1)))
        return bfloat16(0.02 * channels * random.normal(size=shape))

    found: Tensors = {"model.embed_tokens.weight": ("BF16", normal(VOCABULARY, HIDDEN))}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for name, shape in LINEAR.items():
            found[f"{prefix}{name}.weight"] = ("BF16", normal(*shape))
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{prefix}{norm}.weight"] = ("BF16", bfloat16(random.uniform(0.5, 1.5, HIDDEN)))
    found["model.norm.weight"] = ("BF16", bfloat16(random.uniform(0.5, 1.5, HIDDEN)))
    found["lm_head.weight"] = ("BF16", normal(VOCABULARY, HIDDEN))
    return found


def linear_names(tensors: Tensors) -> list[str]:
    """The layers that are quantized: all linear ones but the last."""
    return [name.removesuffix(".weight") for name in tensors if name.endswith("_proj.weight")]


def pack(codes: Array, bits: int) -> Array:
    """Codes along the last axis as int32 words: code k occupies the bits from k · bits of the stream on."""
    count = codes.shape[-1]
    words = np.zeros((*codes.shape[:-1], -(-count * bits // 32) + 1), np.uint64)
    for k in range(count):
        word, offset = divmod(k * bits, 32)
        code = codes[..., k].astype(np.uint64)
        words[..., word] |= (code << np.uint64(offset)) & np.uint64(0xFFFFFFFF)
        words[..., word + 1] |= (code << np.uint64(offset)) >> np.uint64(32)
    return words[..., : -(-count * bits // 32)].astype(np.uint32).view(np.int32)


def pack_padded(codes: Array, bits: int) -> Array:
    """The same with whole codes only in each word."""
    per_word = 32 // bits
    words = np.zeros((*codes.shape[:-1], -(-codes.shape[-1] // per_word)), np.uint32)
    for k in range(codes.shape[-1]):
        words[..., k // per_word] |= codes[..., k].astype(np.uint32) << np.uint32(bits * (k % per_word))
    return words.view(np.int32)


def shuffled(codes: Array, order: tuple[int, ...]) -> Array:
    """Position k of each word gets the code of its column ``order[k]``."""
    found = np.empty_like(codes)
    for column in range(codes.shape[-1]):
        word, k = divmod(column, len(order))
        found[..., column] = codes[..., word * len(order) + order[k]]
    return found


def quantize(values: Array, bits: int, size: int, *, symmetric: bool) -> tuple[Array, Array, Array]:
    """Codes from 0 on ``[outputs, inputs]``, scales (as float16 keeps them) and zero points ``[outputs, groups]``."""
    groups = values.reshape(len(values), -1, size).astype(np.float64)
    top = 2**bits - 1
    if symmetric:
        scale = np.abs(groups).max(axis=2) / (2 ** (bits - 1) - 0.5)
        zero = np.full(scale.shape, 2 ** (bits - 1))
    else:
        low, high = np.minimum(groups.min(axis=2), 0), np.maximum(groups.max(axis=2), 0)
        scale = (high - low) / top
        zero = np.clip(np.rint(-low / np.where(scale == 0, 1, scale)), 0, top)
    scale = scale.astype(np.float16).astype(np.float64)
    steps = np.where(scale == 0, 1, scale)[:, :, None]
    codes = np.clip(np.rint(groups / steps) + zero[:, :, None], 0, top)
    return codes.reshape(values.shape).astype(np.uint8), scale, zero.astype(np.int64)


def dequantize(codes: Array, scale: Array, zero: Array) -> Array:
    size = codes.shape[1] // scale.shape[1]
    return (codes - np.repeat(zero, size, axis=1)) * np.repeat(scale, size, axis=1)


def gptq(
    name: str,
    codes: Array,
    scale: Array,
    zero: Array,
    bits: int,
    *,
    stored_zero: int = -1,
    order: tuple[int, ...] = IN_SEQUENCE,
    g_idx: Array | None = None,
) -> Tensors:
    """``codes`` in the order of the inputs; ``stored_zero`` is added to zero points, -1 in the v1 format."""
    size = codes.shape[1] // scale.shape[1]
    groups = np.arange(codes.shape[1]) // size if g_idx is None else g_idx
    zeros = (zero + stored_zero) & (2**bits - 1)
    reorder = (lambda c: shuffled(c, order)) if order != IN_SEQUENCE else (lambda c: c)
    return {
        f"{name}.qweight": ("I32", np.ascontiguousarray(pack(reorder(codes), bits).T)),
        f"{name}.qzeros": ("I32", pack(np.ascontiguousarray(zeros.T), bits)),
        f"{name}.scales": ("F16", scale.T.astype(np.float16)),
        f"{name}.g_idx": ("I32", groups.astype(np.int32)),
    }


def awq(
    name: str, codes: Array, scale: Array, zero: Array, bits: int = 4, *, order: tuple[int, ...] = AWQ_ORDER
) -> Tensors:
    return {
        f"{name}.qweight": ("I32", pack(shuffled(np.ascontiguousarray(codes.T), order), bits)),
        f"{name}.qzeros": ("I32", pack(shuffled(np.ascontiguousarray(zero.T), order), bits)),
        f"{name}.scales": ("F16", scale.T.astype(np.float16)),
    }


def compressed(name: str, codes: Array, scale: Array, zero: Array | None, bits: int, *, pad: bool = False) -> Tensors:
    """pack-quantized: signed codes are stored plus 2^(bits-1), which makes them ``codes``; so are zero points."""
    put = pack_padded if pad else pack
    found: Tensors = {
        f"{name}.weight_packed": ("I32", put(codes, bits)),
        f"{name}.weight_scale": ("BF16", bfloat16(scale)),
        f"{name}.weight_shape": ("I64", np.array(codes.shape, np.int64)),
    }
    if zero is not None:
        found[f"{name}.weight_zero_point"] = ("I32", np.ascontiguousarray(put(np.ascontiguousarray(zero.T), bits).T))
    return found


#: Writes one layer from codes, scales and zero points.
Writer = Callable[..., Tensors]
CONFIGS: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False, "desc_act": False},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
    "compressed": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": GROUP, "symmetric": True}}},
    },
}
WRITERS: dict[str, Writer] = {
    "gptq": lambda name, codes, scale, zero, **options: gptq(name, codes, scale, zero, 4, **options),
    "awq": lambda name, *parts, **options: awq(name, *parts, **options),
    "compressed": lambda name, codes, scale, zero, **options: compressed(name, codes, scale, None, 4, **options),
}


def moved(values: Array, codes: Array, scale: Array, zero: Array) -> tuple[Array, Array, Array]:
    """Codes of which a few are the second nearest, as GPTQ chooses them, where that costs next to nothing."""
    size = values.shape[1] // scale.shape[1]
    steps, zeros = (np.repeat(part, size, axis=1) for part in (scale, zero))
    left = values / np.where(steps == 0, 1, steps) + zeros - codes
    is_near = (np.abs(left) > 0.42) & (np.abs(left) < 0.47) & (codes > 0) & (codes < 15)
    return np.where(is_near, codes + np.sign(left), codes).astype(np.uint8), scale, zero


def quantized_model(
    floats: Tensors,
    kind: str,
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    symmetric: bool | None = None,
    damage: Callable[[str, Array, Array, Array], tuple[Array, Array, Array]] = lambda name, *parts: parts,  # type: ignore[assignment,return-value]
) -> Tensors:
    """The float model with its linear layers in 4 bits; ``options`` of the writer by layer, ``""`` for all.

    ``damage`` may change codes, scales and zero points of a layer before they are stored. Of GPTQ, the last layer has
    some codes that are not the nearest ones.
    """
    layers, given = set(linear_names(floats)), options or {}
    chosen = linear_names(floats)[-1] if kind == "gptq" and layers else None
    found: Tensors = {}
    for name, tensor in floats.items():
        base = name.removesuffix(".weight")
        if base not in layers:
            found[name] = tensor
            continue
        values = from_bfloat16(tensor[1])
        even = kind == "compressed" if symmetric is None else symmetric
        parts = quantize(values, 4, GROUP, symmetric=even)
        if base == chosen:
            parts = moved(values, *parts)
        found |= WRITERS[kind](base, *damage(base, *parts), **{**given.get("", {}), **given.get(base, {})})
    return found


def configuration(kind: str) -> dict[str, Any]:
    """What ``config.json`` says of the quantization."""
    return {"quantization_config": CONFIGS[kind]}


def collect(
    folder: Path,
    floats: Tensors,
    quantized: Tensors,
    config: Mapping[str, Any] | None = None,
    float_config: Mapping[str, Any] | None = None,
) -> Case:
    """The case of two checkpoints, which are written into ``folder``."""
    before = write_folder(folder / "float", floats, float_config)
    return quantmedic.collect(before, write_folder(folder / "quantized", quantized, config), weights_only=True)


def compare(folder: Path, floats: Tensors, quantized: Tensors, *configs: Mapping[str, Any] | None) -> Diagnosis:
    return quantmedic.judge(collect(folder, floats, quantized, *configs))


def facts_of(case: Case) -> dict[str, WeightFacts]:
    return {operator.name: operator.weight for operator in case.record.operators}


def named(diagnosis: Diagnosis) -> set[tuple[str, str]]:
    """Causes with their subjects."""
    return {(cause.cause, subject) for cause in diagnosis.causes for subject in cause.subjects}


def causes_of(diagnosis: Diagnosis) -> list[str]:
    return [cause.cause for cause in diagnosis.causes]


def as_float32(arrays: Mapping[str, Array]) -> Tensors:
    return {name: ("F32", array.astype(np.float32)) for name, array in arrays.items()}


def rounded(weight: Array, bits: int = 4, size: int = 32) -> Array:
    """Real numbers on the grid of one scale for ``size`` inputs."""
    x = weight.reshape(len(weight), -1, size)
    scale = np.abs(x).max(axis=2, keepdims=True) / (2 ** (bits - 1) - 1)
    return (np.rint(x / scale) * scale).reshape(weight.shape).astype(np.float32)
