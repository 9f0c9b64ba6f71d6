"""The comparison with the previous case in report.json: changed settings, their effect, remedies that were tried."""

from pydantic import Field

from quantmedic.engine.json_record import Contract


class SettingChange(Contract):
    """One setting of one layer, activation or data set, then and now."""

    subject: str
    before: object
    after: object


class Changed(Contract):
    """One kind of setting that changed."""

    setting: str = Field(description="what was set: 'range', 'weight granularity', 'samples'")
    of: str = Field(description="layer, block, activation or data set")
    count: int = Field(description="subjects on which it changed")
    examples: tuple[SettingChange, ...] = Field(description="the first of them")


class Effect(Contract):
    """The outcome then and now; better is a positive gain."""

    same_data: bool = Field(description="both cases were judged on the same samples, so that noise can be compared")
    sqnr_before: float | None = Field(default=None, description="lowest sqnr_db of the outputs in the previous case")
    sqnr: float | None = Field(default=None, description="the same now")
    gain_db: float | None = Field(default=None, description="sqnr - sqnr_before, where the data are the same")
    agreement_before: float | None = Field(default=None, description="share of samples with the float model's class")
    agreement: float | None = Field(default=None, description="the same now")
    metric: str | None = Field(default=None, description="task metric that was measured in both cases")
    drop_before: float | None = Field(default=None, description="drop of the metric in the previous case")
    drop_before_low: float | None = Field(default=None, description="lower end of its 95 % interval")
    drop_before_high: float | None = Field(default=None, description="upper end of that interval")
    drop: float | None = Field(default=None, description="drop of the metric now")
    drop_low: float | None = Field(default=None, description="lower end of its 95 % interval")
    drop_high: float | None = Field(default=None, description="upper end of that interval")
    helped: bool | None = Field(
        default=None,
        description="the output gained at least the threshold previous_effect_db, or the drop fell below its earlier "
        "interval; None where neither is known",
    )


class Tried(Contract):
    """A remedy of the previous diagnosis that was applied since."""

    cause: str
    remedy: str
    title: str
    subjects: tuple[str, ...] = Field(description="what it was applied to; all of them")
    everywhere: bool = Field(description="it concerns the model or a data set as a whole")
    effect_db: float | None = Field(description="gain at the output, of this remedy and all other changes together")
    helped: bool | None


class Previous(Contract):
    """What became of the previous diagnosis."""

    effect: Effect
    changed: tuple[Changed, ...]
    tried: tuple[Tried, ...]
