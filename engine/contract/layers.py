"""The layer table of report.json."""

from pydantic import Field

from quantmedic.engine.case.facts import AskedFacts, ErrorFacts, RecordedFacts, ReportedFacts
from quantmedic.engine.json_record import Contract


class ErrorRow(Contract):
    """The errors of one layer's output on one data set."""

    samples: int | None = None
    rounding: ErrorFacts
    accumulated: ErrorFacts
    step: ErrorFacts = ErrorFacts()


class GroupRow(Contract):
    """Weights of one layer of a checkpoint, by groups that share a scale."""

    size: int | None
    worst_channel_sqnr_db: float | None
    worst_group_sqnr_db: float | None
    worst_group: str | None = Field(description="output channel / group")
    dead: int | None
    outliers: int | None = Field(description="groups whose range one weight takes")


class LayerRow(Contract):
    """One line of the layer table."""

    index: int
    name: str
    float_name: str | None
    quantized_name: str | None
    op_type: str
    executed_as: str | None
    bits: int | None
    scale: float | None
    zero_point: int | None
    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    weight_bits: int | None
    weight_granularity: str | None
    weight_sqnr_db: float | None
    degraded: bool | None
    born: bool | None = Field(default=None, description="degraded although none of its inputs is")
    added_nmse: float | None = Field(
        default=None, description="step nmse, else accumulated nmse less the largest of its inputs"
    )
    amplification: float | None = Field(
        default=None, description="accumulated nmse over the largest of its inputs, on the set judged"
    )
    representative: ErrorRow
    validation: ErrorRow
    groups: GroupRow | None = Field(default=None, description="where checkpoints were compared")
    role: str | None = Field(default=None, description="what the weights are for, where checkpoints were compared")
    operations: int | None = None
    time_ms: float | None = None
    time_share: float | None = None
    reported: ReportedFacts | None = Field(default=None, description="what a file of the toolchain reports of it")
    asked: AskedFacts | None = Field(default=None, description="what a configuration asks of it by name")
    recorded: RecordedFacts | None = Field(default=None, description="what a file records of its output's grid")
    device_sqnr_db: float | None = Field(
        default=None, description="output of the device against the quantized model here, from --device-tensors"
    )
    device_departs: bool | None = Field(default=None, description="a departure of the device begins here")
    findings: tuple[str, ...] = ()
