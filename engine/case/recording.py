"""What a file of recorded outputs tells of the installation that they were recorded on."""

from pydantic import BaseModel, ConfigDict, Field

from quantmedic.engine.case.fact_base import Words


class Recording(BaseModel):
    """Where outputs were recorded, and how good they were there."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    runtime: Words[str] = Field(max_length=200, description="the library that computed them, with its version")
    processor: Words[str] = Field(
        max_length=200, description="kind of the processor, and whether it has VNNI where known"
    )
    quantized_sha256: str | None = Field(max_length=64, description="of the quantized model's file, where it is one")
    samples: int = Field(ge=1, description="samples of the validation data")
    sqnr_db: float | None = Field(description="of the outputs against those of the float model, on that installation")
