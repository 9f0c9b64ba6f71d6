"""What a search for the best calibration has found, and what it took."""

from typing import Literal

from pydantic import ConfigDict, Field

from quantmedic.engine.contract.remedies import Configuration
from quantmedic.engine.record import Record

#: ``best``: the winner. ``as-good``: not proven worse than the winner. ``behind``: proven worse than the winner.
#: ``dropped``: proven worse than the leader of its time, and judged on fewer samples than the winner. ``same``: makes
#: the very model that another setting makes. ``failed``: no model came out, or none that can be judged.
Standing = Literal["best", "as-good", "behind", "dropped", "same", "failed"]
#: Why no more samples were used; see ``trials.racing``.
Stopped = Literal["one", "close", "tied", "spent", "none"]


class _Frozen(Record):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=True, ser_json_inf_nan="strings")


class Estimate(_Frozen):
    """A number with its interval, of 95 % where nothing else is said."""

    value: float
    low: float
    high: float


class Dropped(_Frozen):
    """Why a setting left the race before the winner was known."""

    leader: int = Field(description="place among the settings of the one that it was proven worse than")
    behind: Estimate = Field(description="how far it was behind that one then, with the interval that dropped it")
    confidence: float = Field(description="coverage of that interval")


class JudgedSetting(_Frozen):
    """A way to calibrate, and how good its model is."""

    toolchain: str
    choices: dict[str, str] = Field(description="what is chosen, by kind: method, weights, activations")
    standing: Standing
    samples: int = Field(description="samples that it was judged on")
    metric: Estimate | None = Field(default=None, description="task metric; None without labels")
    sqnr_db: Estimate | None = Field(default=None, description="median of the samples' SQNR at the output, dB")
    agreement: float | None = Field(default=None, description="share of samples with the float model's class")
    behind: Estimate | None = Field(
        default=None,
        description="how far it is behind the winner on the samples of both: drop of the metric, or median dB",
    )
    winner_there: float | None = Field(
        default=None, description="the winner's metric, or without labels its median dB, on those samples"
    )
    dropped: Dropped | None = Field(default=None, description="why it left the race; None where it did not")
    same_as: int | None = Field(default=None, description="place among the settings of the one with the same model")
    failed: str | None = Field(default=None, description="the toolchain's own words")


class PrintedRun(_Frozen):
    """The printed text of the winner, run by its toolchain, and the model that came out on all samples."""

    samples: int
    same_model: bool | None = Field(description="it is the model that won, to the bit; None where that is not known")
    metric: Estimate | None = None
    float_metric: float | None = None
    sqnr_db: Estimate | None = None
    agreement: float | None = None
    failed: str | None = None


class SearchCost(_Frozen):
    """Runs of a network on one sample, those of the float model for reference left out, and seconds."""

    calibration_runs: int = Field(description="runs of the float model that ranges were taken from")
    judging_runs: int = Field(description="runs of quantized models")
    exhaustive_runs: int = Field(description="runs where each setting calibrates by itself and is judged on everything")
    seconds: float


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


class CalibrationsRecord(_Frozen):
    """All settings, the best first, and what to paste."""

    schema_version: Literal[1] = 1
    quantmedic_version: str
    float_model: str
    toolchain: str = Field(description="as in reports")
    toolchain_version: str | None
    representative: str = Field(description="where the calibration samples came from")
    representative_samples: int
    validation: str = Field(description="where the samples that judge came from")
    validation_samples: int
    labelled_by: str | None = Field(description="task metric; None: the settings were judged by the output's noise")
    seed: int
    negligible: float = Field(description="a difference that does not matter: dB, or in the unit of the metric")
    stopped: Stopped
    raced_samples: int = Field(description="samples that had been used when the race ended")
    settings: tuple[JudgedSetting, ...]
    configuration: Configuration | None = Field(description="the winner's text; None without a winner")
    given: dict[str, str] = Field(default={}, description="names in it that are the user's own")
    notes: tuple[str, ...] = Field(default=(), description="what its user has to know")
    warnings: tuple[str, ...] = Field(default=(), description="why the ranking may be another one elsewhere")
    printed: PrintedRun | None = Field(default=None, description="None where it was not run")
    cost: SearchCost | None = Field(default=None, description="None where it was not measured")
    others: tuple[OtherToolchain, ...] = ()
    unjudged: tuple[Unjudged, ...] = ()

    @property
    def best(self) -> JudgedSetting | None:
        """The winner."""
        return next((each for each in self.settings if each.standing == "best"), None)
