"""All cases of the zoo, in two parts: one to tune rules on, and one that tuning never sees."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

# Importing them registers their faults and controls.
from . import controls, faults_coarse, faults_codes, faults_declared, faults_gains, faults_moved, faults_running  # noqa: F401
from .networks import ARCHITECTURES, Architecture, Network
from .patient import Patient, float_patient
from .registry import BASES, CONTROLS, FAULTS, Fault

Part = Literal["tune", "untouched"]
PARTS: tuple[Part, ...] = ("tune", "untouched")
#: Seed of the training, and those of what is drawn.
TRAINED: dict[Part, int] = {"tune": 1, "untouched": 101}
#: A control whose perplexity grows by more is none ...
HEALTHY_GROWTH = 0.01
#: ... and a fault that is to be felt has to make it grow by as much as this; what lies between is mild.
FELT_GROWTH = 0.02


@dataclass(frozen=True)
class Spec:
    """One case.

    Attributes:
        architecture: Of its network.
        seed: Of the training.
        kind: Of the fault, or the name of the control.
        is_control: It is healthy.
    """

    architecture: Architecture
    seed: int
    kind: str
    is_control: bool

    @property
    def name(self) -> str:
        return f"{self.architecture.name}-{self.seed}/{self.kind}"

    @property
    def fault(self) -> Fault | None:
        return None if self.is_control else FAULTS[self.kind]

    @property
    def family(self) -> str:
        return FAULTS[self.kind].family if not self.is_control else "control"


def specs(part: Part, seed: int | None = None) -> Iterator[Spec]:
    """All cases of a part, network by network; with another seed, of other trainings and draws."""
    own = TRAINED[part] if seed is None else seed
    for architecture in ARCHITECTURES.values():
        if part == "untouched" or architecture.is_tuned:
            for kind in FAULTS:
                yield Spec(architecture, own, kind, is_control=False)
            for name in CONTROLS:
                yield Spec(architecture, own, name, is_control=True)


def built(spec: Spec, network: Network) -> Patient:
    """The patient of a case.

    Raises:
        Inapplicable: The network has no place for it.
    """
    patient = float_patient(network, spec.seed)
    if spec.fault is None:
        return CONTROLS[spec.kind](patient)
    base = str(patient.random(f"base of {spec.kind}").choice(sorted(spec.fault.bases)))
    return spec.fault.apply(patient.with_scheme(BASES[base]))
