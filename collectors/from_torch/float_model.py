"""A float torch module by itself: its parameters; what it computes would take data to find out."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from quantmedic.collectors.measure.float_model import FloatModel
from quantmedic.engine.case.facts import FloatFacts, ModelFacts
from quantmedic.engine.errors import ModelError

if TYPE_CHECKING:
    import torch  # an optional package; who gives a module has it


@runtime_checkable
class _Module(Protocol):
    """What is read of a ``torch.nn.Module``, so that torch need not be imported."""

    def named_parameters(self) -> "Iterable[tuple[str, torch.Tensor]]": ...

    def named_buffers(self) -> "Iterable[tuple[str, torch.Tensor]]": ...

    def modules(self) -> "Iterable[torch.nn.Module]": ...


def read_torch_float(module: object) -> FloatModel:
    """What the parameters and buffers of a module tell.

    Raises:
        ModelError: It is no module.
    """
    if not isinstance(module, _Module):
        raise ModelError(
            "the float model is neither a file nor a torch.nn.Module",
            where=type(module).__name__,
            help="give the path of an ONNX or LiteRT file, or the module itself",
        )
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    broken = [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]
    facts = FloatFacts(
        format="torch",
        operators=sum(1 for child in module.modules() if not list(child.children())),
        constant_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
        nonfinite_constants=len(broken),
        first_nonfinite_constant=broken[0] if broken else None,
    )
    return FloatModel(ModelFacts(name=type(module).__name__, float_model=facts))
