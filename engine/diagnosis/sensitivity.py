"""Sensitivity of the output to single layers: what was measured with the quantizers of some layers only."""

import math
from typing import Literal

from pydantic import ConfigDict, Field, model_validator

from quantmedic.engine.diagnosis.prediction import FAITHFUL_DB
from quantmedic.engine.errors import CaseError
from quantmedic.engine.record import Record

#: One layer quantized, the rest float; one layer float, the rest quantized; all layers up to one quantized.
Mode = Literal["one", "all-but-one", "cumulative"]
MODES: tuple[Mode, ...] = ("one", "all-but-one", "cumulative")
#: What an interrupted measurement has to be repeated with, in the order in which differences are reported.
_RESUMED = {
    "float_sha256": "models",
    "quantized_sha256": "models",
    "units": "models",
    "seed": "options",
    "batch_size": "options",
    "metric": "options",
    "metric_output": "options",
    "metric_options": "options",
    "modes": "options",
    "samples": "data",
    "data_sha256": "data",
}


class Outcome(Record):
    """The network's output in one run, against the float network on the same samples.

    ``sqnr_db`` is infinite without noise, "Infinity" in JSON.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=True, ser_json_inf_nan="strings")

    sqnr_db: float = Field(description="10·log10(signal power / noise power) over all outputs")
    agreement: float | None = Field(default=None, description="share of samples with the float network's class")
    metric: float | None = Field(default=None, description="task metric")
    drop: float | None = Field(default=None, description="float metric minus this one, turned so that worse is more")
    drop_low: float | None = Field(default=None, description="lower end of the drop's paired 95 % interval")
    drop_high: float | None = Field(default=None, description="upper end of the drop's paired 95 % interval")


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


class SensitivityRecord(Record):
    """Everything that table and graph show; the models are not needed again."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=True, ser_json_inf_nan="strings")

    schema_version: Literal[1] = 1
    quantmedic_version: str
    float_model: str
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
    def is_faithful(self) -> bool:
        """The simulated network is about as noisy as the deployed one."""
        return abs(self.simulation_gap_db) <= FAITHFUL_DB

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


def resume_sensitivity(begun: SensitivityRecord, now: SensitivityRecord) -> SensitivityRecord:
    """An interrupted record to go on with, where ``now`` is what a new one would be.

    Raises:
        CaseError: It was begun with other models, data or options.
    """
    for name, kind in _RESUMED.items():
        then, here = getattr(begun, name), getattr(now, name)
        if then != here:
            raise CaseError(
                f"the interrupted run was started with other {kind}",
                where=f"{name}: {_brief(then)} then, {_brief(here)} now",
                help=f"repeat the {kind} of the first run, or start anew without --resume",
            )
    return begun


def _brief(value: object) -> str:
    if not isinstance(value, tuple):
        return str(value)[:16]
    names = [entry if isinstance(entry, str) else entry.name for entry in value]
    return f"{len(names)} layers" if len(names) > len(MODES) else ", ".join(names) or "none"
