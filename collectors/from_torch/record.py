"""What a case says of two torch modules besides their statistics."""

import hashlib
import platform
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from quantmedic.collectors.data.metrics import Metric
from quantmedic.collectors.from_onnx.record import case_record, pair_facts
from quantmedic.collectors.from_torch.models import TorchModels
from quantmedic.collectors.from_torch.module import to_array
from quantmedic.collectors.measure.observer import Observer, Options
from quantmedic.engine.case.facts import ModelFacts
from quantmedic.engine.case.records import CaseRecord, WeightArrays


def torch_record(
    models: TorchModels, observer: Observer, options: Options, version: str, metric: Metric | None
) -> tuple[CaseRecord, dict[int, WeightArrays]]:
    """Everything that does not change while data are read, and the arrays of the weights by operator.

    Data sets and notices are left empty.
    """
    graph: Any = models.quantized
    # Of a fake-quantized module nobody knows what the device will run.
    executed = {name: "QLinear" if name in graph.integer else "float" for name in graph.producers}
    record, arrays = case_record(
        models, observer, version, metric, executed=executed if graph.integer else {}, half=frozenset(graph.half)
    )
    # Fake-quantized modules hold their weights in float, and integer kernels keep theirs to themselves.
    is_stored_so = any(is_traceable_wrapper_subclass(own) for own in models.quantized_module.parameters())
    sizes = [_bytes(module) if is_stored_so else None for module in (models.float_module, models.quantized_module)]
    training = [name for name, part in models.float_module.named_modules() if part.training and _is_training(part)]
    facts = ModelFacts(
        **pair_facts(models, observer, record.operators),
        name=type(models.quantized_module).__name__,
        framework="torch",
        toolchain=None,
        toolchain_marks=tuple(toolchain_marks(models.quantized_module, graph.calls)),
        bytes_float=sizes[0],
        bytes_quantized=sizes[1],
        size_ratio=sizes[1] / sizes[0] if sizes[0] and sizes[1] else None,
        training_nodes=len(training),
        first_training_node=next(iter(training), None),
    )
    return record.model_copy(update={"model": facts, "run": record.run | _run_record(models, options)}), arrays


def _is_training(part: torch.nn.Module) -> bool:
    return isinstance(part, torch.nn.modules.batchnorm._BatchNorm | torch.nn.modules.dropout._DropoutNd)


def toolchain_marks(module: torch.nn.Module, calls: Iterable[str]) -> Iterator[str]:
    """Packages whose classes a quantized module and its weights are made of, and namespaces of operators it calls."""
    kinds = [type(part) for part in module.modules()] + [type(own) for own in module.parameters()]
    packages = {kind.__module__.partition(".")[0] for kind in kinds}
    yield from (f"class of {name}" for name in sorted(packages - {"torch", "builtins", "__main__"}))
    if any(kind.__module__.startswith("torch.ao") for kind in kinds):
        yield "class of torch.ao"
    namespaces = {name.partition("::")[0] for name in calls if "::" in name}
    yield from (f"calls of {name}" for name in sorted(namespaces))


def _bytes(module: torch.nn.Module) -> int:
    """Bytes of all parameters and buffers, packed ones as they are stored."""
    tensors = {id(own): own for own in (*module.parameters(), *module.buffers())}.values()
    return sum(part.numel() * part.element_size() for own in tensors for part in _stored(own))


def _stored(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors that a tensor of another class consists of."""
    names = tensor.__tensor_flatten__()[0] if is_traceable_wrapper_subclass(tensor) else None
    if names is None:
        yield tensor
        return
    for name in names:
        yield from _stored(getattr(tensor, name))


def _run_record(models: TorchModels, options: Options) -> dict[str, Any]:
    return {
        "float_model": type(models.float_module).__name__,
        "float_sha256": _sha256(models.float_module),
        "quantized_model": type(models.quantized_module).__name__,
        "quantized_sha256": _sha256(models.quantized_module),
        **options.run,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def _sha256(module: torch.nn.Module) -> str:
    """Hash of all parameters and buffers by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted((*module.named_parameters(), *module.named_buffers())):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(to_array(tensor)).data)
    return digest.hexdigest()
