"""What a fault and a control of the zoo are, and the lists of all."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .patient import Patient
from .schemes import Scheme

Apply = Callable[[Patient], Patient]
#: Schemes that a fault is put into, by the names that faults give them.
BASES: Mapping[str, Scheme] = {
    "gptq-8": Scheme("gptq", 8, 32, symmetric=False),
    "gptq-4": Scheme("gptq", 4, 32, symmetric=False),
    "awq-4": Scheme("awq", 4, 32, symmetric=False),
    "packed-8": Scheme("packed", 8, 32),
    "packed-4": Scheme("packed", 4, 32),
    "int8": Scheme("int8", 8, 0),
    "rounded-8": Scheme("rounded", 8, 0),
    "nvfp4": Scheme("nvfp4", 4, 16),
    "mxfp4": Scheme("mxfp4", 4, 32),
    "llama.cpp": Scheme("rounded", 8, 0),
}
#: Where nothing is said: those of them that cost next to nothing.
USUAL = ("gptq-8", "gptq-4", "awq-4", "packed-8", "packed-4", "int8")


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        kind: Its name.
        family: What it is a fault of.
        expected: Causes of which any counts as right, by what the fault is.
        apply: Makes a patient ill; raises ``Inapplicable`` where the network has no place for it.
        bases: Schemes, one of which is drawn.
        also: Causes that follow from the expected one or say the same less exactly: true, but not right.
        is_felt: It has to raise the perplexity to count; else it is a fault of the file or of a runtime.
        error: With texts, an error that says so is the right answer.
    """

    kind: str
    family: str
    expected: tuple[str, ...]
    apply: Apply
    bases: tuple[str, ...] = USUAL
    also: tuple[str, ...] = ()
    is_felt: bool = True
    error: str = ""


FAULTS: dict[str, Fault] = {}
CONTROLS: dict[str, Apply] = {}


def fault(
    kind: str,
    family: str,
    *expected: str,
    bases: tuple[str, ...] = USUAL,
    also: tuple[str, ...] = (),
    is_felt: bool = True,
    error: str = "",
) -> Callable[[Apply], Apply]:
    """Register a function as a fault."""

    def register(apply: Apply) -> Apply:
        if kind in FAULTS:
            raise ValueError(f"two faults are named {kind!r}: give one of them another name")
        FAULTS[kind] = Fault(kind, family, expected, apply, bases, also, is_felt, error)
        return apply

    return register


def control(name: str) -> Callable[[Apply], Apply]:
    """Register a function as a healthy control: it gets a patient without a plan."""

    def register(apply: Apply) -> Apply:
        if name in CONTROLS:
            raise ValueError(f"two controls are named {name!r}: give one of them another name")
        CONTROLS[name] = apply
        return apply

    return register
