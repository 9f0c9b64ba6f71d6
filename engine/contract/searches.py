"""What the searches have found: layer by layer, layers to leave in float, ways to calibrate, the debugger's table.

All of them are one search: places of a network, changes of each, and what the network gives then.
"""

import math
from typing import Literal

from pydantic import ConfigDict, Field, model_validator

from quantmedic.engine.contract.advised_remedies import Configuration, Prescription
from quantmedic.engine.json_record import Record
from quantmedic.engine.rules.toolchain import Chosen


class _Frozen(Record):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=True, ser_json_inf_nan="strings")


class SearchRecord(_Frozen):
    """What every search keeps; tables, pages and files are made of it without the models."""

    schema_version: Literal[1] = 1
    quantmedic_version: str
    float_model: str


class Estimate(_Frozen):
    """A number with its interval, of 95 % where nothing else is said."""

    value: float
    low: float
    high: float


class Outcome(_Frozen):
    """The network's output after a change, against the float network on the same samples.

    ``sqnr_db`` is infinite without noise, "Infinity" in JSON.
    """

    sqnr_db: float = Field(description="10·log10(signal power / noise power) over all outputs")
    agreement: float | None = Field(default=None, description="share of samples with the float network's class")
    metric: float | None = Field(default=None, description="task metric")
    drop: float | None = Field(default=None, description="float metric minus this one, turned so that worse is more")
    drop_low: float | None = Field(default=None, description="lower end of the drop's paired 95 % interval")
    drop_high: float | None = Field(default=None, description="upper end of the drop's paired 95 % interval")


class WorstOutcome(Outcome):
    """The same, judged by the worst output, of its columns that count by themselves, and its operands."""

    sqnr_low: float = Field(description="lower end of the 95 % interval of that SQNR")
    sqnr_high: float = Field(description="upper end of it")
    worst: str | None = Field(default=None, description="which column or operand that is; None: an output as a whole")
    whole_sqnr_db: float | None = Field(default=None, description="of the worst output as a whole")


#: One layer quantized, the rest float; one layer float, the rest quantized; all layers up to one quantized.
Mode = Literal["one", "all-but-one", "cumulative"]
MODES: tuple[Mode, ...] = ("one", "all-but-one", "cumulative")


class SensitivityUnit(Record):
    """What is quantized or left in float together: a layer with its output, or a network input."""

    name: str
    op_type: str
    quantized: tuple[str, ...] = Field(
        description="what has a quantizer: weight, bias, constants, output; of an input: values"
    )


class SensitivityRun(Outcome):
    """One run: which layers it was about, and their share of the whole noise.

    ``share`` is the noise power of this run in shares of the noise of all layers; of ``all-but-one`` it is the part
    that the layer's absence takes away, negative where the noise grows. None where all layers make no noise.
    """

    mode: Mode
    unit: int
    share: float | None


class SensitivityRecord(SearchRecord):
    """What each layer does to the output, run by run."""

    quantized_model: str
    float_sha256: str
    quantized_sha256: str
    data: str = Field(description="where the samples came from")
    data_sha256: str = Field(description="hash of the samples and labels that were used")
    samples: int = Field(ge=1)
    seed: int
    batch_size: int
    metric: str | None
    metric_output: str | None
    metric_options: str | None = None
    higher_is_better: bool | None = Field(default=None, description="direction of the metric; None: not kept")
    float_metric: float | None
    modes: tuple[Mode, ...] = Field(min_length=1)
    units: tuple[SensitivityUnit, ...] = Field(min_length=1)
    unsimulated: tuple[str, ...] = Field(description="layers with a quantizer that no run can turn on")
    columns: int | None = Field(description="output columns that are judged, where noise hides in few; None for all")
    deployed: Outcome = Field(description="the quantized model itself")
    simulated: Outcome = Field(description="the simulated network with all quantizers")
    runs: tuple[SensitivityRun, ...] = ()

    @model_validator(mode="after")
    def _runs_are_planned(self) -> "SensitivityRecord":
        made = [(run.mode, run.unit) for run in self.runs]
        if len(set(made)) < len(made) or not set(made) <= set(self.planned):
            raise ValueError("it holds a run twice, or one of a layer or mode that it does not have")
        return self

    @property
    def simulation_gap_db(self) -> float:
        """Output SQNR of the deployed network minus that of the simulated one; 0 where neither has noise."""
        deployed, simulated = self.deployed.sqnr_db, self.simulated.sqnr_db
        return 0.0 if deployed == simulated else deployed - simulated

    @property
    def planned(self) -> tuple[tuple[Mode, int], ...]:
        """All runs in their order, as mode and unit."""
        return tuple((mode, unit) for mode in self.modes for unit in range(len(self.units)))

    @property
    def missing(self) -> tuple[tuple[Mode, int], ...]:
        """Runs that are still to be made."""
        done = {(run.mode, run.unit) for run in self.runs}
        return tuple(key for key in self.planned if key not in done)

    def add_run(self, mode: Mode, unit: int, outcome: Outcome) -> "SensitivityRecord":
        """The record with one more run, in the planned order."""
        run = SensitivityRun(mode=mode, unit=unit, share=self._share(mode, outcome), **outcome.model_dump())
        place = {key: i for i, key in enumerate(self.planned)}
        runs = sorted([*self.runs, run], key=lambda r: place[r.mode, r.unit])
        return self.model_copy(update={"runs": tuple(runs)})

    def rank_runs(self, mode: Mode) -> list[SensitivityRun]:
        """The runs of one mode: those with the largest share first, ``cumulative`` in order of execution."""
        runs = [run for run in self.runs if run.mode == mode]
        return runs if mode == "cumulative" else sorted(runs, key=lambda r: -(r.share or 0.0))

    def leading(self, mode: Mode, count: int, least: float = 0.0) -> list[SensitivityRun]:
        """The runs of one mode that matter most; ``cumulative`` those at which the noise grows most, in their order.

        Args:
            mode: Which runs.
            count: At most this many.
            least: Only what has a larger share of the noise, or adds one.
        """
        runs = self.rank_runs(mode)
        shares = {run.unit: run.share or 0.0 for run in runs}
        if mode == "cumulative":
            shares = {unit: shares[unit] - shares.get(unit - 1, 0.0) for unit in shares}
        kept = sorted((run for run in runs if shares[run.unit] > least), key=lambda r: -shares[r.unit])[:count]
        return [run for run in runs if run in kept]

    def _share(self, mode: Mode, outcome: Outcome) -> float | None:
        if math.isinf(self.simulated.sqnr_db):
            return None
        share = float(10.0 ** ((self.simulated.sqnr_db - outcome.sqnr_db) / 10.0))
        return 1.0 - share if mode == "all-but-one" else share


#: ``met``: on samples and a model that the search did not see. ``unsure``: it may be, the interval includes the goal.
#: ``none``: no set meets it in the simulated network. ``unchecked``: interrupted before.
FallbackVerdict = Literal["met", "unsure", "missed", "none", "unchecked"]


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


class Check(_Frozen):
    """The quantized model itself, before and after it was edited."""

    samples: int
    shared: bool = Field(description="there were too few samples: these are the ones that were searched on")
    before: WorstOutcome
    after: WorstOutcome | None = Field(description="None where it could not be edited, or nothing had to be")
    failed: str | None = None
    unedited: tuple[str, ...] = Field(default=(), description="what of the set could not be carried out")


class FallbackStep(_Frozen):
    """One set that was evaluated in the simulated network."""

    layers: tuple[int, ...] = Field(description="places among the units")
    value: float = Field(description="SQNR in dB of the worst column or operand, or drop")
    met: bool


class FallbackRecord(SearchRecord):
    """The set, what it brings and costs, and how it was found."""

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
    def verdict(self) -> FallbackVerdict:
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


#: ``best``: the winner. ``as-good``: not proven worse than the winner. ``behind``: proven worse than the winner.
#: ``failed``: no model came out, or none that can be judged.
Standing = Literal["best", "as-good", "behind", "failed"]


class JudgedSetting(_Frozen):
    """A way to calibrate, and how good its model is."""

    toolchain: str
    choices: dict[str, str] = Field(description="what is chosen, by kind: method, weights, activations")
    standing: Standing
    metric: Estimate | None = Field(default=None, description="task metric; None without labels")
    sqnr_db: Estimate | None = Field(default=None, description="median of the samples' SQNR at the output, dB")
    agreement: float | None = Field(default=None, description="share of samples with the float model's class")
    behind: Estimate | None = Field(
        default=None, description="how far it is behind the winner, paired by sample: drop of the metric, or median dB"
    )
    failed: str | None = Field(default=None, description="the toolchain's own words")


class OtherToolchain(_Frozen):
    """The winner's choices in the options of a toolchain that does not run here."""

    title: str
    form: str
    configuration: Configuration
    lacking: tuple[str, ...] = Field(description="choices of the winner that it has no option for")
    notes: tuple[str, ...] = ()


class Unjudged(_Frozen):
    """A toolchain whose settings were not judged, and why."""

    title: str
    reason: str


class CalibrationsRecord(SearchRecord):
    """All settings, the best first, and what to paste."""

    toolchain: str = Field(description="as in reports")
    toolchain_version: str | None
    representative: str = Field(description="where the calibration samples came from")
    representative_samples: int
    validation: str = Field(description="where the samples that judge came from")
    validation_samples: int
    labelled_by: str | None = Field(description="task metric; None: the settings were judged by the output's noise")
    seed: int
    float_metric: float | None = Field(default=None, description="of the float model; None without labels")
    settings: tuple[JudgedSetting, ...]
    configuration: Configuration | None = Field(description="the winner's text; None without a winner")
    given: dict[str, str] = Field(default={}, description="names in it that are the user's own")
    notes: tuple[str, ...] = Field(default=(), description="what its user has to know")
    warnings: tuple[str, ...] = Field(default=(), description="why the ranking may be another one elsewhere")
    seconds: float | None = Field(default=None, description="what it took; None where it was not measured")
    others: tuple[OtherToolchain, ...] = ()
    unjudged: tuple[Unjudged, ...] = ()

    @property
    def best(self) -> JudgedSetting | None:
        """The winner."""
        return next((each for each in self.settings if each.standing == "best"), None)


#: Columns before the metrics, the metrics that are always there, and columns behind all metrics: in this order.
LEADING = ("op_name", "tensor_idx")
METRICS = ("num_elements", "stddev", "mean_error", "max_abs_error", "mean_squared_error")
TRAILING = ("scale", "zero_point", "tensor_name")
#: Columns behind those of LiteRT: the two figures that its guide computes from them.
COMPUTED = ("range", "rmse/scale")
#: Layers at the beginning that LiteRT's guide suspects beside those of large errors.
FIRST_LAYERS = 5


class DebuggerLayer(_Frozen):
    """One quantized tensor: the operator that writes it, its grid, and each metric averaged over the samples.

    A metric without any number is NaN.
    """

    op_name: str
    tensor_idx: int
    tensor_name: str
    scale: float
    zero_point: int
    bits: int
    metrics: dict[str, float]

    @property
    def first_name(self) -> str:
        """What tells a fused tensor from others: its name lists all that was fused, and the first part suffices."""
        return self.tensor_name.partition(";")[0]

    @property
    def rmse_over_scale(self) -> float:
        """√mean_squared_error / scale; NaN where the error is unknown."""
        square = self.metrics["mean_squared_error"]
        return float(square**0.5 / self.scale) if self.scale > 0 else float("nan")

    @property
    def range(self) -> float:
        """What all codes together span: 255 · scale for 8 bits, 65535 · scale for 16."""
        return float(2**self.bits - 1) * self.scale


class DenylistOutcome(_Frozen):
    """What one denylist gives, with its ``layers`` in float."""

    name: str
    layers: tuple[str, ...] = ()
    outcome: WorstOutcome | None = Field(default=None, description="None where it failed")
    failed: str | None = None


class DebuggerRecord(SearchRecord):
    """The table, in order of execution, and the metrics of the network's outputs.

    ``suspect_steps`` is the √mean_squared_error in steps above which a layer is suspected. ``unmeasured`` names
    quantized tensors whose operator cannot be measured apart from its neighbours. ``denylists`` were judged on
    ``judged_samples``, by the task metric ``metric`` where they are labelled.
    """

    framework: str
    quantized_model: str
    data: str
    samples: int
    suspect_steps: float
    layers: tuple[DebuggerLayer, ...]
    outputs: dict[str, float] = Field(default_factory=dict)
    unmeasured: tuple[str, ...] = ()
    metric: str | None = None
    float_metric: float | None = None
    judged_samples: int = 0
    denylists: tuple[DenylistOutcome, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics, in the order of the columns."""
        return tuple(self.layers[0].metrics) if self.layers else METRICS

    @property
    def worst(self) -> list[DebuggerLayer]:
        """Layers by error in steps, the largest first; those without a number last."""
        known = [layer for layer in self.layers if layer.rmse_over_scale >= 0]
        unknown = [layer for layer in self.layers if not layer.rmse_over_scale >= 0]
        return [*sorted(known, key=lambda layer: -layer.rmse_over_scale), *unknown]

    @property
    def suspected(self) -> list[DebuggerLayer]:
        """Layers whose error is larger than rounding explains, in order of execution."""
        return [layer for layer in self.layers if layer.rmse_over_scale > self.suspect_steps]

    @property
    def first_beside(self) -> list[DebuggerLayer]:
        """The first layers that are not suspected; none where no layer is."""
        suspected = self.suspected
        return [layer for layer in self.layers[:FIRST_LAYERS] if layer not in suspected] if suspected else []

    @property
    def denylisted_nodes(self) -> list[str]:
        """Whole names of what LiteRT's guide leaves in float: the suspected layers, then the first ones."""
        return list(dict.fromkeys(layer.tensor_name for layer in (*self.suspected, *self.first_beside)))

    @property
    def denylisted_ops(self) -> list[str]:
        """Operator types of which every layer is suspected: the same as a list of types."""
        suspected = self.suspected
        fine = {layer.op_name for layer in self.layers if layer not in suspected}
        return [kind for kind in dict.fromkeys(layer.op_name for layer in suspected) if kind not in fine]
