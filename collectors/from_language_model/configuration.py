"""What of a ``config.json`` reaches the library that builds the network, and how much that may build.

Fields that name code, kernels, files, repositories or devices are dropped, for the library would load them. Numbers,
and what is built of them, are bounded by the weights beside the file: a damaged one counts billions of blocks.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from quantmedic.collectors.from_checkpoint.safetensors_file import Checkpoint
from quantmedic.engine.json_text import read_json

#: Words in names of fields whose texts and lists name code, kernels, files, repositories or devices. Numbers name none:
#: ``conv_kernel`` is a size.
_NAMING = re.compile(
    r"(^|_)(auto|backend|class|code|commit|compression|devices?|files?|implementation|kernels?|map|modules?|name|path"
    r"|pipelines|plan|processor|quantization|repo|repository|revision|tokenizer|url)(_|\Z)",
    re.IGNORECASE,
)
#: Labels, of which a language model has none.
_LABELS = ("num_labels", "id2label", "label2id")
#: Texts that are no path, address or repository, whatever their field is called.
_HARMLESS = re.compile(r"[^/\\:]{0,4096}")
#: Words in names of fields that bound no part of the network: places of a text, tokens, bases of frequencies.
_NO_SIZE = re.compile(r"position|theta|token|window|length|seq|context|ctx|chunk|base|seed", re.IGNORECASE)
_LARGEST = 2**31 - 1
#: The most that a number may be in a network however small, and how often packed codes fit into one that is stored.
_ALWAYS, _PACKED = 1 << 16, 16
#: Parameters and parts for each tensor that is stored: fused ones are stored as several, and some have no parameters.
_PARAMETERS, _PARTS, _FEW = 8, 64, 1024


class TooMuchError(ValueError):
    """A configuration asks for more than the weights hold."""


@dataclass(frozen=True)
class Held:
    """What the weights of a checkpoint hold.

    Attributes:
        tensors: How many.
        longest: The longest axis of one.
        bits: Of all of them, each of which is at most one number.
    """

    tensors: int
    longest: int
    bits: int

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Held":
        """What is known without reading any weights."""
        shapes = [tensor.shape for tensor in checkpoint.tensors.values() if tensor.size]
        longest = max((side for shape in shapes for side in shape), default=0)
        return cls(len(shapes), longest, 8 * checkpoint.nbytes)


def read_configuration(file: Path, held: Held) -> dict[str, object]:
    """The fields of a ``config.json`` that describe a network.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no JSON object, or one of its numbers is beyond what the weights hold.
        LimitError: It is too large.
    """
    content = read_json(file)
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    return _plain_fields(content, max(_ALWAYS, _PACKED * held.longest))


def _plain_fields(content: dict[str, object], most: int) -> dict[str, object]:
    kept = {key: value for key, value in content.items() if not _names_something(key, value)}
    return {key: _bounded_value(key, value, most) for key, value in kept.items()}


def _names_something(key: str, value: object) -> bool:
    """A field is for the library alone, or names what the library would load."""
    if key.startswith("_") or key in _LABELS:
        return True
    if value is None or isinstance(value, int | float):
        return False
    texts = [own for own in (value if isinstance(value, list) else [value]) if isinstance(own, str)]
    return _NAMING.search(key) is not None or not all(map(_HARMLESS.fullmatch, texts))


def _bounded_value(key: str, value: object, most: int) -> object:
    """A value whose numbers the weights can hold, and without fields that are dropped."""
    if isinstance(value, dict):
        return _plain_fields(value, most)
    if isinstance(value, list):
        return [_bounded_value(key, own, most) for own in value]
    bound = _LARGEST if _NO_SIZE.search(key) else most
    if isinstance(value, int) and abs(value) > bound:
        shown = value if abs(value) < 1 << 64 else "too large"
        raise TooMuchError(f"{key[:80]} is {shown}, more than the {bound} that the weights can hold")
    return value


@contextmanager
def bounded_building(held: Held) -> Iterator[None]:
    """Context in which modules are built that have no more parts, parameters and numbers than the weights may fill.

    Raises:
        TooMuchError: They have more.
    """
    parts, parameters, numbers = 0, 0, 0

    def count_part(parent: nn.Module, name: str, part: nn.Module | None) -> None:
        nonlocal parts
        parts += 1
        if parts > _FEW + _PARTS * held.tensors:
            raise TooMuchError(f"it describes more than {parts - 1} parts, and the weights are {held.tensors} tensors")

    def count_parameter(parent: nn.Module, name: str, value: torch.Tensor | None) -> None:
        nonlocal parameters, numbers
        parameters, numbers = parameters + 1, numbers + (0 if value is None else value.numel())
        if parameters > _FEW + _PARAMETERS * held.tensors:
            raise TooMuchError(
                f"it describes more than {parameters - 1} parameters, and the weights are {held.tensors}"
            )
        if numbers > held.bits:
            raise TooMuchError(f"it describes {numbers} numbers or more, and the weights have {held.bits // 8} bytes")

    handles = [
        torch_module.register_module_module_registration_hook(count_part),
        torch_module.register_module_parameter_registration_hook(count_parameter),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
