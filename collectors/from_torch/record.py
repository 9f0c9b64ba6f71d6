"""What a case says of two torch modules besides their statistics."""

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from quantmedic.collectors.from_torch.graph import TorchGraph
from quantmedic.collectors.from_torch.module import to_array
from quantmedic.collectors.from_torch.torch_pair import TorchPair
from quantmedic.collectors.measure.models import Description, Kernel
from quantmedic.engine.case.facts import ModelFacts

#: Fake quantizers that are named.
MAX_NAMED = 8


def describe_modules(models: TorchPair) -> Description:
    """What two torch modules tell besides their graphs."""
    modules = (models.float_module, models.quantized_module)
    # Fake-quantized modules hold their weights in float, and integer kernels keep theirs to themselves.
    is_stored_so = any(is_traceable_wrapper_subclass(own) for own in models.quantized_module.parameters())
    sizes = [_stored_bytes(module) if is_stored_so else None for module in modules]
    training = [name for name, part in models.float_module.named_modules() if part.training and _is_training(part)]
    names = [type(module).__name__ for module in modules]
    hashes = [_sha256(module) for module in modules]
    facts = ModelFacts(
        name=names[1],
        framework="torch",
        format=models.quantized.format,
        toolchain=None,
        toolchain_marks=tuple(marks_of_module(models.quantized_module, models.quantized.calls)),
        bytes_float=sizes[0],
        bytes_quantized=sizes[1],
        size_ratio=sizes[1] / sizes[0] if sizes[0] and sizes[1] else None,
        training_nodes=len(training),
        first_training_node=next(iter(training), None),
        fake_quantizers=models.fakes.total,
        idle_fake_quantizers=len(models.fakes.idle),
        idle_fake_quantizer_names=models.fakes.idle[:MAX_NAMED],
    )
    return Description(
        facts,
        half=frozenset(models.quantized.half),
        names=(names[0], names[1]),
        hashes=(hashes[0], hashes[1]),
        versions={"torch": torch.__version__},
        # Integer kernels keep their attributes to themselves.
        attributes_of_twins=True,
    )


def kernels_of_module(graph: TorchGraph) -> dict[str, Kernel]:
    """How each tensor is computed; empty for a fake-quantized module, since the device is not known."""
    if not graph.integer:
        return {}
    return {name: Kernel.INTEGER if name in graph.integer else Kernel.FLOAT for name in graph.producers}


def _is_training(part: torch.nn.Module) -> bool:
    return isinstance(part, torch.nn.modules.batchnorm._BatchNorm | torch.nn.modules.dropout._DropoutNd)


def marks_of_module(module: torch.nn.Module, calls: Iterable[str]) -> Iterator[str]:
    """Packages whose classes a quantized module and its weights are made of, and namespaces of operators it calls."""
    kinds = [type(part) for part in module.modules()] + [type(own) for own in module.parameters()]
    packages = {kind.__module__.partition(".")[0] for kind in kinds}
    yield from (f"class of {name}" for name in sorted(packages - {"torch", "builtins", "__main__"}))
    if any(kind.__module__.startswith("torch.ao") for kind in kinds):
        yield "class of torch.ao"
    namespaces = {name.partition("::")[0] for name in calls if "::" in name}
    yield from (f"calls of {name}" for name in sorted(namespaces))


def _stored_bytes(module: torch.nn.Module) -> int:
    """Bytes of all parameters and buffers, packed ones as they are stored."""
    tensors = {id(own): own for own in (*module.parameters(), *module.buffers())}.values()
    return sum(part.numel() * part.element_size() for own in tensors for part in _plain_tensors(own))


def _plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors that a tensor of another class consists of."""
    names = tensor.__tensor_flatten__()[0] if is_traceable_wrapper_subclass(tensor) else None
    if names is None:
        yield tensor
        return
    for name in names:
        yield from _plain_tensors(getattr(tensor, name))


def _sha256(module: torch.nn.Module) -> str:
    """Hash of all parameters and buffers by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted((*module.named_parameters(), *module.named_buffers())):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(to_array(tensor)).data)
    return digest.hexdigest()
