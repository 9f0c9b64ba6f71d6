"""Devices of torch: which there are, and what differs on them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

from quantmedic.collectors.data.messages import cause_line, first_line
from quantmedic.engine.errors import ModelError

PROCESSOR = torch.device("cpu")
#: Kinds of devices that have no float64.
SINGLE = frozenset({"mps"})
#: Parts of torch that may multiply float32 numbers in fewer bits, by their place in ``torch.backends``.
_MULTIPLIERS = ("cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")
_EXACT = "ieee"
T = TypeVar("T")


def usable_device(name: str) -> torch.device:
    """The device of that name.

    Raises:
        ModelError: torch knows none, or cannot use it here.
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).add(1).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ModelError(
            "torch cannot use this device",
            where=[
                f"--device {name}",
                f"torch {torch.__version__}: {first_line(error)[:200]}",
                f"it sees {', '.join(devices_here())}",
            ],
            help="name one that this torch was built for (cpu, cuda, cuda:1, mps, xpu), or leave --device out",
        ) from error
    return device


def move_modules(modules: Iterable[nn.Module], name: str) -> torch.device:
    """Move modules to the device of that name, where they stay; gives the device.

    Raises:
        ModelError: torch has no such device here, or a module cannot be moved there.
    """
    device = usable_device(name)
    with enough_memory(device):
        for module in modules:
            _move(module, device)
    return device


def _move(module: nn.Module, device: torch.device) -> None:
    try:
        module.to(device)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a module raises, as one whose weights are packed for one device
        raise ModelError(
            "a module cannot be moved to the device",
            where=[type(module).__name__, f"--device {device}", cause_line(error)],
            help="leave --device out: a module runs where it is",
        ) from error


def devices_here() -> list[str]:
    """Names of the devices that torch sees."""
    counts = {kind: getattr(torch, kind).device_count() for kind in ("cuda", "xpu") if hasattr(torch, kind)}
    found = [f"{kind}:{index}" for kind, count in counts.items() for index in range(count)]
    return ["cpu", *found, *(["mps"] if torch.backends.mps.is_available() else [])]


def title_of(device: torch.device) -> str:
    """The name of a device, with that of the hardware where torch tells it: results depend on both."""
    if device.type not in ("cuda", "xpu"):
        return str(device)
    return f"{device} ({getattr(torch, device.type).get_device_name(device)})"


def widen(values: torch.Tensor) -> torch.Tensor:
    """The values as float64: where they are, or in the processor's memory where their device has no such numbers."""
    return values.to(wide_place(values.device)).double()


def wide_place(device: torch.device) -> torch.device:
    """The device itself, or the processor where it has no float64."""
    return PROCESSOR if device.type in SINGLE else device


@contextmanager
def enough_memory(device: torch.device) -> Iterator[None]:
    """Context in which it is said where the memory of a device does not suffice.

    Raises:
        ModelError: It does not.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ModelError(
            "the memory of the device does not suffice",
            where=[title_of(device), first_line(error)[:200]],
            help="look what else is in it, use shorter texts (--text-length), or leave --device out",
        ) from error


@contextmanager
def exact_products() -> Iterator[None]:
    """Context in which float32 numbers are multiplied with all their bits: no TF32, no bfloat16 in between.

    Afterwards torch is set as it was. It has an older and a newer setting of the same, and refuses to multiply where
    they contradict each other: both are set.
    """
    products = _read_older(torch.get_float32_matmul_precision)
    convolutions = _read_older(lambda: torch.backends.cudnn.allow_tf32)
    newer = {part: part.fp32_precision for part in _multipliers()}
    try:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        for part in newer:
            part.fp32_precision = _EXACT
        yield
    finally:
        if products is not None:
            torch.set_float32_matmul_precision(products)
        if convolutions is not None:
            torch.backends.cudnn.allow_tf32 = convolutions
        for part, before in newer.items():
            part.fp32_precision = before


def _read_older(read: Callable[[], T]) -> T | None:
    """An older setting; None where the newer ones were changed alone, for then torch does not tell it."""
    try:
        return read()
    except RuntimeError:
        return None


def _multipliers() -> list[Any]:
    """The parts that have the newer setting, which came with torch 2.9."""
    found = []
    for name in _MULTIPLIERS:
        part: Any = torch.backends
        for own in name.split("."):
            part = getattr(part, own, None)
        if hasattr(part, "fp32_precision"):
            found.append(part)
    return found
