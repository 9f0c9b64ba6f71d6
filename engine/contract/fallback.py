"""What a search for layers to leave in float has found, and what it costs."""

from typing import Literal

from pydantic import ConfigDict, Field

from quantmedic.engine.contract.remedies import Prescription
from quantmedic.engine.record import Record
from quantmedic.engine.rules.toolchain import Chosen

#: ``met``: on samples and a model that the search did not see. ``unsure``: it may be, the interval includes the goal.
#: ``none``: no set meets it in the simulated network. ``unchecked``: interrupted before.
Verdict = Literal["met", "unsure", "missed", "none", "unchecked"]


class _Frozen(Record):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=True, ser_json_inf_nan="strings")


class Goal(_Frozen):
    """What the quantized model has to reach: SQNR of at least so many dB, or a metric's drop of at most this.

    The SQNR is that of the worst column or operand of any output.
    """

    kind: Literal["sqnr", "drop"]
    limit: float = Field(description="dB, or in the unit of the metric: 0.01 is one point of a share")
    metric: str | None = Field(
        default=None, description="task metric, or agreement with the float model's class where there are no labels"
    )

    higher_is_better: bool | None = Field(default=None, description="direction of the metric; None: not kept")

    def is_met(self, value: float) -> bool:
        """Whether this SQNR or drop is good enough."""
        return value >= self.limit if self.kind == "sqnr" else value <= self.limit


class FallbackLayer(_Frozen):
    """A layer to leave in float, by the names of the float model."""

    name: str
    op_type: str
    nodes: tuple[str, ...] = Field(description="its nodes")
    readers: tuple[str, ...] = Field(description="nodes that read its output, and would quantize it")


class Cost(_Frozen):
    """What leaves the integers: the layers, and the layers that read them."""

    readers: int = Field(description="layers that run in float too without being in the set")
    bytes: int = Field(description="bytes that float32 weights take more")
    operations: int | None = Field(description="multiply-adds per sample that leave the integers; None if not known")
    operations_all: int | None = Field(description="multiply-adds per sample of the whole network")


class Level(_Frozen):
    """How good a model is; SQNR in dB, drop positive where it is worse, each with its 95 % interval."""

    sqnr_db: float = Field(description="of the worst output, of its columns that count by themselves, and its operands")
    sqnr_low: float
    sqnr_high: float
    worst: str | None = Field(default=None, description="which column or operand that is; None: an output as a whole")
    whole_sqnr_db: float | None = Field(default=None, description="of the worst output as a whole")
    metric: float | None = None
    drop: float | None = None
    drop_low: float | None = None
    drop_high: float | None = None


class Check(_Frozen):
    """The quantized model itself, before and after it was edited."""

    samples: int
    shared: bool = Field(description="there were too few samples: these are the ones that were searched on")
    before: Level
    after: Level | None = Field(description="None where it could not be edited, or nothing had to be")
    failed: str | None = None
    unedited: tuple[str, ...] = Field(default=(), description="what of the set could not be carried out")


class FallbackStep(_Frozen):
    """One set that was evaluated in the simulated network."""

    layers: tuple[int, ...] = Field(description="places among the units")
    value: float = Field(description="SQNR in dB of the worst column or operand, or drop")
    met: bool


class FallbackRecord(_Frozen):
    """The set, what it brings and costs, and how it was found."""

    schema_version: Literal[1] = 1
    quantmedic_version: str
    float_model: str
    quantized_model: str
    data: str = Field(description="where the samples came from")
    goal: Goal
    seed: int
    samples: int = Field(description="samples of one evaluation")
    units: tuple[str, ...] = Field(description="layers and network inputs that could leave int8, by name")
    layers: tuple[FallbackLayer, ...] = Field(description="the set in the order of execution; empty: none needed")
    cost: Cost | None = Field(description="None without a set")
    found: bool = Field(description="a set meets the goal in the simulated network")
    interrupted: bool
    evaluations: int = Field(description="passes over the samples, the ones for the ranking included, rounded up")
    one_at_a_time: int = Field(description="passes that a run for each layer and a bisection would take")
    steps: tuple[FallbackStep, ...]
    reversals: tuple[tuple[int, int], ...] = Field(
        description="pairs of steps: the second has more layers in float, and more noise"
    )
    check: Check | None
    unsimulated: tuple[str, ...] = Field(description="quantizers that no run could turn off")
    toolchain: Chosen | None = Field(default=None, description="toolchain that the prescription is written for")
    prescription: Prescription | None = Field(
        default=None, description="the set in the toolchain's own form; None without a set, or without a toolchain"
    )

    @property
    def verdict(self) -> Verdict:
        """How far the goal is reached."""
        if not self.found:
            return "unchecked" if self.interrupted else "none"
        if self.check is None or self.check.failed is not None:
            return "unchecked"
        level = self.check.after or self.check.before
        sqnr = self.goal.kind == "sqnr"
        value, best = (level.sqnr_db, level.sqnr_high) if sqnr else (level.drop, level.drop_low)
        assert value is not None and best is not None
        return "met" if self.goal.is_met(value) else "unsure" if self.goal.is_met(best) else "missed"

    @property
    def nodes_to_exclude(self) -> tuple[str, ...]:
        """Nodes of the float model that a quantizer has to pass over: the layers, and those that read them."""
        names = [name for layer in self.layers for name in (*layer.nodes, *layer.readers)]
        return tuple(dict.fromkeys(names))
