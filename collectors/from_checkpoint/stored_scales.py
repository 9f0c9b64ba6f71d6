"""Scales of inputs and of the K/V cache that a checkpoint stores, whatever its configuration says of their use."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from quantmedic.collectors.from_checkpoint.kv_scales import CACHE_SCALES
from quantmedic.collectors.from_checkpoint.safetensors_file import natural_order

#: Names of the scale of inputs beside ``weight``; the second is multiplied where the others divide.
INVERSE_SCALE = "input_global_scale"
INPUT_SCALES = ("input_scale", INVERSE_SCALE, "act_scale", "activation_scale")


@dataclass(frozen=True)
class StoredScales:
    """Names of tensors, in their order.

    Attributes:
        inputs: Scales of inputs of layers.
        caches: Scales of keys and of values.
    """

    inputs: tuple[str, ...] = ()
    caches: tuple[str, ...] = ()


def stored_scales(names: Iterable[str], floats: Collection[str]) -> StoredScales:
    """The scales among the tensors of a quantized checkpoint.

    Args:
        names: Of its tensors.
        floats: Names that the network has anyway: what it calls a scale itself is a parameter like others.
    """
    added = sorted((name for name in names if name not in floats), key=natural_order)
    return StoredScales(*(tuple(n for n in added if _ends(n, parts)) for parts in (INPUT_SCALES, CACHE_SCALES)))


def _ends(name: str, parts: Iterable[str]) -> bool:
    return any(name.endswith(f".{part}") for part in parts)
