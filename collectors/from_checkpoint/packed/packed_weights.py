"""The quantized layers of a checkpoint, by the names of their tensors; one module per way to pack codes reads them.

The layouts follow the public documentation and sources of the tools. Codes lie in a word from its lowest bits up.
"""

from collections.abc import Callable, Iterable, Mapping

from quantmedic.collectors.from_checkpoint.packed.byte_codes import (
    FOUR_BIT_PARTS,
    bitsandbytes_layer,
    is_bitsandbytes,
    plain_layer,
    torchao_layer,
)
from quantmedic.collectors.from_checkpoint.packed.packed_layer import PackedLayer, Parts, Settings, UnreadableLayerError
from quantmedic.collectors.from_checkpoint.packed.small_floats import is_small_float, small_float_layer
from quantmedic.collectors.from_checkpoint.packed.word_codes import gptq_or_awq_layer, pack_quantized_layer
from quantmedic.collectors.from_checkpoint.safetensors_file import EIGHT_BIT_FLOATS, INTEGERS, Stored

#: Last parts of the names of tensors that belong to a layer's quantization and are not weights themselves.
_PARTS = (
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
    "_weight_qdata",
    "_weight_scale",
    "_weight_zero_point",
    "SCB",
    "weight_format",
    "scale",
    "zero_point",
    "weight_scales",
    "weight_zeros",
    "weight_global_scale",
    "weight_scale_2",
    "input_scale",
    "input_zero_point",
    "input_global_scale",
    "output_scale",
    "output_zero_point",
    "k_scale",
    "v_scale",
    "q_scale",
)
#: Endings of the names of such tensors of bitsandbytes.
_BITSANDBYTES = tuple(f".{part}" for part in FOUR_BIT_PARTS)


def _packed_layer(parts: Parts, settings: Settings) -> PackedLayer:
    return small_float_layer(parts) if is_small_float(parts) else pack_quantized_layer(parts, settings)


def _weight_layer(parts: Parts, settings: Settings) -> PackedLayer:
    if is_bitsandbytes(parts):
        return bitsandbytes_layer(parts)
    return small_float_layer(parts) if is_small_float(parts) else plain_layer(parts, settings)


#: What describes how a layer is read, by the name of the tensor with its codes; an ``UnreadableLayerError`` of theirs
#: says how its tensors do not fit together.
_FORMATS: Mapping[str, Callable[[Parts, Settings], PackedLayer]] = {
    "qweight": gptq_or_awq_layer,
    "weight_packed": _packed_layer,
    "_weight_qdata": torchao_layer,
    "weight": _weight_layer,
}


def packed_layers(tensors: Mapping[str, Stored], settings: Settings) -> tuple[dict[str, PackedLayer], dict[str, str]]:
    """Layers whose quantization is understood, by name, and why others are not.

    Args:
        tensors: All tensors of the quantized checkpoint.
        settings: What its configuration declares.
    """
    layers: dict[str, PackedLayer] = {}
    refused: dict[str, str] = {}
    for name in tensors:
        base, _, last = name.rpartition(".")
        parts = _parts_of(base, tensors)
        layer_of = _FORMATS.get(last)
        if layer_of is None or (last == "weight" and parts["weight"].dtype not in (*INTEGERS, *EIGHT_BIT_FLOATS)):
            continue
        try:
            layers[base] = layer_of(parts, settings)
        except UnreadableLayerError as why:
            refused[base] = str(why)
    return layers, refused


def belongs(name: str, bases: Iterable[str]) -> bool:
    """The tensor is a part of a quantized layer and not a weight itself."""
    base, _, last = name.rpartition(".")
    return last in _PARTS or name.endswith(_BITSANDBYTES) or (last == "weight" and base in bases)


def _parts_of(base: str, tensors: Mapping[str, Stored]) -> dict[str, Stored]:
    names = ((part, f"{base}.{part}" if base else part) for part in (*_PARTS, *FOUR_BIT_PARTS, "weight"))
    return {part: tensors[name] for part, name in names if name in tensors}
