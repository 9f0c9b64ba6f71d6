"""Weights of modules in memory as a checkpoint: what layers compute with, dequantized or rounded by fake quantizers."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.from_checkpoint.safetensors_file import Checkpoint, Rows, Stored
from quantmedic.engine.errors import ModelError

#: What fake-quantized layers call the part that rounds their weights: torch.ao and torchao.
_ROUNDERS = ("weight_fake_quant", "weight_fake_quantizer")
_FINGERPRINT = 1024


@dataclass(frozen=True)
class _Held(Stored):
    """A tensor of a module.

    Attributes:
        read: Gives it as float32.
    """

    read: Callable[[], torch.Tensor] = field(default=lambda: torch.empty(0), compare=False)

    def view(self, rows: Rows | None, columns: slice | None) -> Array:
        """Some rows and columns, where they lie."""
        values = self.read()
        part = values if rows is None else values[rows]
        part = part if columns is None else part[:, columns]
        return part.numpy()


@dataclass(frozen=True)
class HeldCheckpoint(Checkpoint):
    """The tensors of a module."""

    def fingerprint(self) -> str:
        """SHA-256 of names, shapes and the first numbers of all tensors."""
        digest = hashlib.sha256()
        for name in sorted(self.tensors):
            tensor = self.tensors[name]
            digest.update(f"{name}\0{tensor.shape}\0".encode())
            digest.update(tensor.load(slice(0, 1) if tensor.shape else None).tobytes()[:_FINGERPRINT])
        return digest.hexdigest()


def checkpoint_of_module(model: nn.Module) -> HeldCheckpoint:
    """What the layers of a module compute with; nothing is copied until it is read.

    Raises:
        ModelError: It holds no weights.
    """
    last: dict[str, torch.Tensor] = {}
    tensors = {own.name: own for own in _tensors(model, last)}
    if not tensors:
        raise ModelError(
            "the module holds no weights", where=type(model).__name__, help="give the whole language model"
        )
    config = getattr(model, "config", None)
    settings = json.loads(cast("Any", config).to_json_string()) if hasattr(config, "to_json_string") else {}
    return HeldCheckpoint(Path(type(model).__name__), (), tensors, settings)


def _tensors(model: nn.Module, last: dict[str, torch.Tensor]) -> Iterator[_Held]:
    """Parameters, by the names that they have without parametrizations."""
    path = Path(type(model).__name__)
    for name, part in model.named_modules():
        if "parametrizations" in name.split("."):
            continue
        for own in _tensor_names(part):
            value = getattr(part, own, None)
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                full = f"{name}.{own}".lstrip(".")
                yield _Held(full, path, "F32", tuple(value.shape), 0, _reader(part, own, full, last))


def _tensor_names(part: nn.Module) -> list[str]:
    given = cast("Mapping[str, Any]", getattr(part, "parametrizations", {}))
    return [*(own for own, _ in part.named_parameters(recurse=False)), *given.keys()]


def _reader(part: nn.Module, own: str, name: str, last: dict[str, torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Slices of one tensor are asked for one after the other: the tensor that was read last is kept."""

    def load() -> torch.Tensor:
        found = last.get(name)
        if found is None:
            found = value_in_force(part, own)
            last.clear()
            last[name] = found
        return found

    return load


def value_in_force(part: nn.Module, own: str) -> torch.Tensor:
    """What a layer computes with in place of one of its tensors, as float32 in the processor's memory."""
    with torch.no_grad():
        value = getattr(part, own)
        for rounder in _ROUNDERS:
            if own == "weight" and callable(getattr(part, rounder, None)):
                value = getattr(part, rounder)(value)
        if type(value) not in (torch.Tensor, nn.Parameter) or value.is_quantized:
            value = value.dequantize()
        return cast("torch.Tensor", value.detach().to("cpu", torch.float32).contiguous())
