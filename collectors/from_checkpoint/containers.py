"""The containers that checkpoints come in: safetensors files, packages of Core ML, and GGUF files of llama.cpp."""

from collections.abc import Collection
from pathlib import Path

from quantmedic.collectors.from_checkpoint.core_ml.package import is_core_ml, open_core_ml
from quantmedic.collectors.from_checkpoint.fused_experts import with_single_experts
from quantmedic.collectors.from_checkpoint.gguf.checkpoint import is_gguf, open_gguf
from quantmedic.collectors.from_checkpoint.packed_layer import PackedLayer, Settings
from quantmedic.collectors.from_checkpoint.packed_weights import packed_layers
from quantmedic.collectors.from_checkpoint.safetensors_file import (
    INDEX_ENDING,
    SAFETENSORS,
    Checkpoint,
    open_checkpoint,
)
from quantmedic.engine.errors import ModelError

#: A checkpoint, its quantized layers by name, and why others cannot be read.
Opened = tuple[Checkpoint, dict[str, PackedLayer], dict[str, str]]


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
    quantized = _open_container(quantized_path, None if is_gguf(float_path) else floats[0].tensors)
    whole, packed, experts = with_single_experts(floats[0], quantized[0])
    return (whole, *floats[1:]), (packed, {**quantized[1], **experts}, quantized[2])


def _open_container(path: Path, floats: Collection[str] | None = None) -> Opened:
    """One checkpoint; ``floats`` are names of Hugging Face that a GGUF file is to get."""
    if is_core_ml(path):
        return open_core_ml(path)
    if is_gguf(path):
        return open_gguf(path, floats)
    checkpoint = open_checkpoint(path)
    return checkpoint, *packed_layers(checkpoint.tensors, Settings.of(checkpoint.settings))


def is_checkpoint(path: Path) -> bool:
    """A file of weights by its name, or a folder; what a folder holds is found out when it is opened."""
    return path.suffix == SAFETENSORS or path.name.endswith(INDEX_ENDING) or is_gguf(path) or path.is_dir()


def framework_of(path: Path) -> str:
    """What the report calls the container."""
    if is_core_ml(path):
        return "coreml"
    return "gguf" if is_gguf(path) else "safetensors"
