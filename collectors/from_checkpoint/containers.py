"""The containers that checkpoints come in: safetensors files and GGUF files of llama.cpp.

Experts that one tensor holds become a layer each, in both checkpoints: GPT-OSS stores MXFP4 ``…_blocks`` ``[experts,
outputs, groups, 16]`` and ``…_scales`` of all experts of a layer, while the float model has ``[experts, inputs,
outputs]``.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from quantmedic.collectors.from_checkpoint.gguf.checkpoint import is_gguf, open_gguf
from quantmedic.collectors.from_checkpoint.packed.packed_layer import Settings
from quantmedic.collectors.from_checkpoint.packed.packed_weights import packed_layers
from quantmedic.collectors.from_checkpoint.packed.small_floats import small_float_layer
from quantmedic.collectors.from_checkpoint.safetensors_file import (
    INDEX_ENDING,
    SAFETENSORS,
    Stored,
    open_checkpoint,
)
from quantmedic.collectors.from_checkpoint.weight_values import Opened
from quantmedic.engine.errors import ModelError

_BLOCKS, _SCALES = "_blocks", "_scales"
_BYTES, _LENGTH = 16, 32
_MAX_EXPERTS = 4096


def open_both(float_path: Path, quantized_path: Path) -> tuple[Opened, Opened]:
    """The float checkpoint and the quantized one.

    Raises:
        ModelError: One cannot be read, or the float one is a GGUF file and the other one is not.
    """
    if is_gguf(float_path) and not is_gguf(quantized_path):
        raise ModelError(
            "float weights in GGUF are compared with GGUF alone",
            where=[f"float     {float_path}", f"quantized {quantized_path}"],
            help="give the float weights as safetensors",
        )
    floats = _open_container(float_path)
    quantized = _open_container(quantized_path, None if is_gguf(float_path) else floats.tensors)
    return with_single_experts(floats, quantized)


def _open_container(path: Path, floats: Collection[str] | None = None) -> Opened:
    """One checkpoint; ``floats`` are names of Hugging Face that a GGUF file is to get."""
    if is_gguf(path):
        return open_gguf(path, floats)
    checkpoint = open_checkpoint(path)
    layers, refused = packed_layers(checkpoint.tensors, Settings.of(checkpoint.settings))
    return Opened(**vars(checkpoint), layers=layers, refused=refused)


def is_checkpoint(path: Path) -> bool:
    """A file of weights by its name, or a folder; what a folder holds is found out when it is opened."""
    return path.suffix == SAFETENSORS or path.name.endswith(INDEX_ENDING) or is_gguf(path) or path.is_dir()


def framework_of(path: Path) -> str:
    """What the report calls the container."""
    return "gguf" if is_gguf(path) else "safetensors"


def with_single_experts(floats: Opened, quantized: Opened) -> tuple[Opened, Opened]:
    """Both checkpoints with a tensor per expert where the quantized one holds them in blocks."""
    bases = [*_find_fused(floats.tensors, quantized.tensors)]
    if not bases:
        return floats, quantized
    whole, packed = dict(floats.tensors), dict(quantized.tensors)
    layers = dict(quantized.layers)
    for base in bases:
        blocks, scales, own = packed.pop(f"{base}{_BLOCKS}"), packed.pop(f"{base}{_SCALES}"), whole.pop(base)
        outputs, groups = blocks.shape[1:3]
        for number in range(blocks.shape[0]):
            name = f"{base}.{number}"
            parts = {
                "weight_packed": _part(blocks, number, f"{name}.weight_packed", (outputs, groups * _BYTES)),
                "weight_scale": _part(scales, number, f"{name}.weight_scale", (outputs, groups)),
            }
            whole[f"{name}.weight"] = _part(own, number, f"{name}.weight", own.shape[1:])
            packed |= {part.name: part for part in parts.values()}
            layers[name] = replace(small_float_layer(parts), is_turned=True)
    return replace(floats, tensors=whole), replace(quantized, tensors=packed, layers=layers)


def _find_fused(floats: Mapping[str, Stored], packed: Mapping[str, Stored]) -> Iterator[str]:
    """Names of tensors of experts that fit together."""
    for name, blocks in packed.items():
        base = name.removesuffix(_BLOCKS)
        scales, own = packed.get(f"{base}{_SCALES}"), floats.get(base)
        if base == name or scales is None or own is None or not own.is_float or len(blocks.shape) != 4:
            continue
        experts, outputs, groups, width = blocks.shape
        fits = own.shape == (experts, groups * _LENGTH, outputs) and scales.shape == (experts, outputs, groups)
        is_known = blocks.dtype == scales.dtype == "U8" and width == _BYTES
        if fits and is_known and 0 < experts <= _MAX_EXPERTS:
            yield base


def _part(stored: Stored, number: int, name: str, shape: tuple[int, ...]) -> Stored:
    """One of the tensors that lie behind one another."""
    offset = stored.offset + number * (stored.nbytes // stored.shape[0])
    return Stored(name, stored.path, stored.dtype, shape, offset)
