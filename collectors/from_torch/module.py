"""Running a user's torch module as it is deployed; afterwards the module and torch are as before."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from quantmedic.collectors.data.messages import cause_line, first_line
from quantmedic.collectors.pair.feed import feed_error
from quantmedic.engine.errors import ModelError

Array = NDArray[np.generic]
#: Buffer of a fake quantizer that switches observing on.
_OBSERVING = "observer_enabled"


@contextmanager
def as_deployed(*modules: torch.nn.Module) -> Iterator[None]:
    """Context in which modules do not train and fake quantizers do not observe.

    Afterwards, also after an exception, every mode, buffer and random state is what it was.
    """
    parts = list({id(part): part for module in modules for part in module.modules()}.values())
    training = [(part, part.training) for part in parts]
    buffers = list({id(own): own for part in parts for own in part.buffers(recurse=False)}.values())
    kept = [buffer.detach().clone() for buffer in buffers]
    devices = sorted({tensor.device.index or 0 for tensor in buffers if tensor.device.type == "cuda"})
    with ExitStack() as stack, torch.no_grad():
        stack.enter_context(torch.random.fork_rng(devices=devices))
        if "torch._dynamo" in sys.modules:  # what is compiled hides its operators
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            for part in parts:
                part.training = False  # exported modules refuse eval()
                observing = part._buffers.get(_OBSERVING)
                if observing is not None:
                    observing.zero_()
            yield
        finally:
            for part, mode in training:
                part.training = mode
            for buffer, before in zip(buffers, kept, strict=True):
                _put_back(buffer, before)


def _put_back(buffer: torch.Tensor, before: torch.Tensor) -> None:
    if buffer.layout != torch.strided:  # torch compares no sparse tensors
        buffer.copy_(before)
        return
    if buffer.shape != before.shape:
        buffer.resize_(before.shape)
    if not torch.equal(buffer, before):
        buffer.copy_(before)


def device_of(module: torch.nn.Module) -> torch.device:
    """Where a module wants its inputs: with its first parameter or buffer."""
    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return torch.device("cpu")


def fixed_batch_of(module: torch.nn.Module) -> int | None:
    """Samples that a module takes at once, where it was exported without a free first axis; None: any number."""
    if not isinstance(module, torch.fx.GraphModule):
        return None
    values = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
    sides = [value.shape[0] for value in values if isinstance(value, torch.Tensor) and value.dim()]
    fixed = {side for side in sides if isinstance(side, int)}  # a symbol where the axis is free
    return fixed.pop() if len(fixed) == 1 and all(isinstance(side, int) for side in sides) else None


def require_module(module: object, what: str) -> torch.nn.Module:
    """The module to observe: of a compiled one, the module that was compiled.

    Raises:
        ModelError: It is no module, or one that hides what it computes.
    """
    module = getattr(module, "_orig_mod", module)
    if not isinstance(module, torch.nn.Module):
        raise ModelError(
            f"the {what} is no torch.nn.Module",
            where=type(module).__name__,
            help="give the module itself, with its weights loaded, or the path of an ONNX file for both models",
        )
    scripted = next((name for name, m in module.named_modules() if isinstance(m, torch.jit.ScriptModule)), None)
    if scripted is not None:
        raise ModelError(
            f"the {what} is scripted, so that its operators cannot be seen",
            where=scripted or type(module).__name__,
            help="give the module that it was scripted from",
        )
    empty = next((name for name, own in (*module.named_parameters(), *module.named_buffers()) if own.is_meta), None)
    if empty is not None:
        raise ModelError(
            f"the {what} holds no numbers: its weights lie on the device meta", where=empty, help="load its weights"
        )
    return module


def to_array(tensor: torch.Tensor) -> Array:
    """The numbers of a tensor in the memory of the processor, without a copy where they are there already.

    Of a quantized tensor its codes, of half precision and bfloat16 the same numbers in float32.

    Raises:
        ModelError: It is not dense, or has no numbers, as on the meta device.
    """
    with _refusing(tensor):
        tensor = tensor.detach()
        if tensor.is_quantized:
            tensor = tensor.int_repr()
        if (
            type(tensor) is not torch.Tensor
            and not isinstance(tensor, torch.nn.Parameter)
            and hasattr(tensor, "dequantize")
        ):
            tensor = tensor.dequantize()
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            tensor = tensor.float()
        return tensor.resolve_conj().resolve_neg().contiguous().to("cpu").numpy()


@contextmanager
def _refusing(tensor: torch.Tensor) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, TypeError) as error:
        raise ModelError(
            "a tensor of a module cannot be read",
            where=[f"{tensor.dtype}, {tensor.layout}, on {tensor.device}", cause_line(error)],
            help="modules have to give dense tensors of numbers",
        ) from error


def is_watching(part: torch.nn.Module) -> bool:
    """An observer or fake quantizer, of whatever package."""
    return _is(part, "ObserverBase") or _is(part, "FakeQuantizeBase")


def without_quantizers(module: torch.nn.Module, is_quantized: bool) -> list[str]:
    """Why a module that should be quantized is not: it is only prepared, or its fake quantizers are switched off."""
    if is_quantized:
        return []
    off = sum(_is(part, "FakeQuantizeBase") for part in module.modules())
    if off:
        return [
            f"the quantized model holds no quantizer that is on: all {off} fake quantizers are switched off; "
            "model.apply(torch.ao.quantization.enable_fake_quant) switches them on"
        ]
    watching = sum(_is(part, "ObserverBase") for part in module.modules())
    if watching:
        return [
            f"the quantized model holds no quantizers: it is only prepared, with {watching} observers; convert it with "
            "the tool that prepared it, such as convert_pt2e or convert_fx"
        ]
    return []


class FakeQuantizers(NamedTuple):
    """How many fake quantizers a module has, and the names of those that are off while their observers go on."""

    total: int = 0
    idle: tuple[str, ...] = ()


def fake_quantizers_of(module: torch.nn.Module) -> FakeQuantizers:
    """The fake quantizers of a module as it is given: while it is measured, none observes."""
    found = {name: part for name, part in module.named_modules() if _is(part, "FakeQuantizeBase")}
    idle = [name for name, part in found.items() if _is_on(part, _OBSERVING) and not _is_on(part, "fake_quant_enabled")]
    return FakeQuantizers(len(found), tuple(idle))


def _is_on(part: torch.nn.Module, switch: str) -> bool:
    """A switch of a fake quantizer, a tensor of one number or of several; on where it has none."""
    value = getattr(part, switch, None)
    return True if value is None else bool(torch.as_tensor(value).any())


def _is(part: torch.nn.Module, base: str) -> bool:
    return any(kind.__name__ == base for kind in type(part).__mro__)


def run_error(error: BaseException, what: str, feed: Mapping[str, Array]) -> ModelError:
    """The error of a module that fails on its data."""
    return feed_error(f"{type(error).__name__}: {first_line(error)[:300]}", feed, what)
