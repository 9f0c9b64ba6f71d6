"""Layers that runtimes compute as one, whose scales of the whole tensor differ although only one of them is used."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from quantmedic.collectors.from_checkpoint.safetensors_file import Stored

#: Layers that vLLM, SGLang and TensorRT-LLM put together, by the last part of their names.
_FUSED: tuple[tuple[str, ...], ...] = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
)
#: Scales of a whole tensor beside scales per block; kernels take one for all parts.
_SCALES = ("weight_global_scale", "weight_scale_2")


@dataclass(frozen=True)
class FusedScales:
    """What was found of layers that are computed as one.

    Attributes:
        ratios: Largest over smallest scale of the parts, by the name of what they are put together into.
    """

    ratios: Mapping[str, float]

    @property
    def worst(self) -> str | None:
        """The one whose scales differ most."""
        return max(self.ratios, key=lambda name: self.ratios[name], default=None)


def fused_scales(layers: Iterable[str], tensors: Mapping[str, Stored]) -> FusedScales:
    """Ratios of the scales of parts, of all fused layers that have such scales."""
    known = set(layers)
    found: dict[str, float] = {}
    for name in sorted(known):
        parent, _, last = name.rpartition(".")
        group = next((group for group in _FUSED if group[0] == last), None)
        if group is None:
            continue
        scales = [*_scales_of([f"{parent}.{part}".lstrip(".") for part in group], tensors)]
        if len(scales) > 1:
            found[f"{parent}.{'/'.join(group)}".lstrip(".")] = max(scales) / min(scales)
    return FusedScales(found)


def _scales_of(names: Sequence[str], tensors: Mapping[str, Stored]) -> Iterator[float]:
    for name in names:
        stored = next((tensors[f"{name}.{part}"] for part in _SCALES if f"{name}.{part}" in tensors), None)
        value = float(stored.floats().ravel()[0]) if stored is not None and stored.is_float and stored.size == 1 else 0
        if value > 0:
            yield value
