"""Experts that one tensor holds: GPT-OSS stores MXFP4 ``…_blocks`` and ``…_scales`` of all experts of a layer.

Each expert becomes a layer of its own, in both checkpoints. Blocks are ``[experts, outputs, groups, 16]``, while the
float model has ``[experts, inputs, outputs]``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from quantmedic.collectors.from_checkpoint.packed_layer import PackedLayer
from quantmedic.collectors.from_checkpoint.safetensors_file import Checkpoint, Stored
from quantmedic.collectors.from_checkpoint.small_floats import small_float_layer

_BLOCKS, _SCALES = "_blocks", "_scales"
_BYTES, _LENGTH = 16, 32
_MAX_EXPERTS = 4096


def with_single_experts(
    floats: Checkpoint, quantized: Checkpoint
) -> tuple[Checkpoint, Checkpoint, dict[str, PackedLayer]]:
    """Both checkpoints with a tensor per expert where the quantized one holds them in blocks, and their layers."""
    bases = [*_find_fused(floats.tensors, quantized.tensors)]
    if not bases:
        return floats, quantized, {}
    whole, packed = dict(floats.tensors), dict(quantized.tensors)
    layers: dict[str, PackedLayer] = {}
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
            layers[name] = replace(small_float_layer(name, parts), is_turned=True)
    return replace(floats, tensors=whole), replace(quantized, tensors=packed), layers


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
