"""Remedies in report.json: what to change, what that recovers, and the configuration that does it."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from quantmedic.engine.case.proof import ExecutionRecord, Grade, Proven, TrialRecord
from quantmedic.engine.json_record import Contract
from quantmedic.engine.rules.conditions import Data
from quantmedic.engine.rules.remedies import Cost, Mark, RemedyScope, Snippet
from quantmedic.engine.rules.remedy_kinds import Simulation
from quantmedic.engine.rules.toolchain_options import Language, Options

#: A remedy that takes away this share of the noise is not disproven where too few samples are noisy to prove it.
MUCH = 0.4


class Present(Data):
    """The present value of a setting."""

    fact: str
    value: object
    subjects: tuple[str, ...] = Field(description="layers, tensors or data sets that have this value")


class Recovery(Data):
    """What a remedy recovers at the network's output, by a simulated run."""

    gain_db: float = Field(description="rise of the output's SQNR")
    low_db: float = Field(description="lower end of its 95 % interval, the error of the simulation included")
    high_db: float = Field(description="upper end of that interval")
    share: float = Field(description="share of the output's noise power that goes")
    bound: bool = Field(default=False, description="at most this: what it repairs was taken away, not repaired")
    typical: bool = Field(
        default=False,
        description="the gain is that of the median sample: few samples hold most of the noise, its sum is unsure",
    )


class Advice(Data):
    """A remedy for a cause of this model."""

    id: str
    title: str
    changes: str
    cost: Cost
    unsafe: str
    scope: RemedyScope
    simulate: Simulation | None = None
    predicted: Recovery | None = None
    measured: TrialRecord | None = Field(default=None, description="what it recovered on a copy of the model")
    now: tuple[Present, ...] = Field(default=(), description="present values of what it changes")
    layers: tuple[str, ...] = Field(default=(), description="layers that it is for, by name; empty: the whole model")
    tensors: tuple[str, ...] = Field(default=(), description="activations that it is for, named as in the float model")
    spread: bool = Field(
        default=False,
        description="it is for every place that it is predicted to help, as was tried, not only where the rules fired",
    )
    unsure: tuple[str, ...] = Field(
        default=(),
        description="facts that were not measured, and would show whether it is in force already, or out of place",
    )
    snippets: tuple[Snippet, ...] = Field(default=(), description="how toolchains apply it; in report.json filled in")
    fields: Mapping[str, object] = Field(default={}, exclude=True, description="names and values for the snippets")
    in_force: Mapping[str, Options] = Field(
        default={},
        exclude=True,
        description="the settings in force, by the call of the toolchain in use that takes them",
    )
    helpers: Mapping[str, str] = Field(
        default={}, exclude=True, description="definitions that the settings in force may use, by name"
    )
    imports: Mapping[str, str | tuple[str, ...]] = Field(
        default={}, exclude=True, description="names that a whole call may use, by the module that they come from"
    )

    @property
    def is_disproven(self) -> bool:
        """It was carried out, and recovered nothing for sure, nor much of the noise, or made the task metric worse."""
        measured = self.measured
        if measured is None or measured.failed is not None or measured.proven:
            return False
        return measured.bound or measured.is_worse or (measured.share or 0.0) < MUCH


class Withheld(Data):
    """A remedy of the rules that is not advised, and why."""

    id: str
    title: str
    because: str = Field(description="the reason, with the numbers of the worst layer")
    layers: tuple[str, ...] = Field(default=(), description="layers that it holds for, worst first; empty: all")


class PairedRemedy(Contract):
    """One remedy of a pair."""

    key: str = Field(description="name of its simulated run")
    kind: str = Field(description="what is changed: a kind of engine/rules/remedy_kinds.py")
    title: str
    causes: tuple[str, ...] = Field(description="causes that it is advised for; empty: it is for the whole network")
    predicted: Recovery = Field(description="what it recovers by itself")


class RemedyPair(Contract):
    """Two remedies that recover clearly more together than any single one that was simulated."""

    remedies: tuple[PairedRemedy, PairedRemedy] = Field(description="the better one first")
    predicted: Recovery = Field(description="what both recover together")


class TrialRow(Contract):
    """A trial, with the remedy that it carried out and the causes that advise it."""

    causes: tuple[str, ...] = Field(description="causes that the remedy is advised for; empty: for none")
    remedy: str = Field(description="title of the remedy, or what was changed")
    trial: TrialRecord


class Proof(Proven, Contract):
    """Which remedies were carried out on copies of the quantized model, and what they recovered."""

    weights: TrialRecord | None = Field(default=None, description="all weights and biases in float")
    activations: TrialRecord | None = Field(default=None, description="all activations in float")
    trials: tuple[TrialRow, ...] = Field(default=(), description="every remedy by itself, in the order of the trials")
    chain: tuple[TrialRow, ...] = Field(
        default=(), description="proven remedies, each carried out on top of those before it"
    )
    explained: float | None = Field(
        default=None, description="share of the output's noise that the whole chain takes away"
    )


#: ``without-effect``: it was executed, and nothing was recovered for sure. ``refused``: the toolchain could not run it.
Basis = Literal["proven", "predicted", "untried", "without-effect", "refused"]


class Step(Data):
    """One remedy of the prescription."""

    remedy: str = Field(description="id of the remedy; empty: what was tried belongs to no remedy of the rules")
    title: str
    changes: str = ""
    causes: tuple[str, ...] = Field(default=(), description="causes that it repairs")
    measured: TrialRecord | None = Field(default=None, description="what it recovered, on top of the steps before it")
    predicted: Recovery | None = None
    mark: Mark | None = Field(
        default=None, description="how far its option was checked; None: the toolchain has none, or is not known"
    )
    notes: tuple[str, ...] = Field(default=(), description="remarks on its option")
    stands_in_for: str | None = Field(
        default=None, description="title of the better remedy that the toolchain has no option for"
    )
    is_edit: bool = Field(default=False, description="an edit of model, data or application, in every toolchain")
    says: tuple[str, ...] = Field(default=(), description="what was found in the data, for remedies of the data")


class Configuration(Data):
    """What to paste."""

    language: Language
    file: str = Field(description="file of the report's folder that holds it")
    code: str


class Prescription(Data):
    """The remedies to apply together, and the configuration that does."""

    basis: Basis = Field(description="what the choice of remedies rests on")
    grade: Grade | None = Field(default=None, description="how what it recovers is known; None: it is not")
    executed: ExecutionRecord | None = Field(
        default=None, description="the run of this very text with its toolchain, and what that recovered"
    )
    steps: tuple[Step, ...]
    configurations: tuple[Configuration, ...] = ()
    mark: Mark | None = Field(default=None, description="how far the options were checked, the weakest of all")
    checked: str = Field(default="", description="version of the toolchain with which they were checked")
    given: Mapping[str, str] = Field(default={}, description="names in the code that are the user's own")
    conflicts: tuple[str, ...] = Field(
        default=(), description="options that two remedies set differently; those of the first stand"
    )
