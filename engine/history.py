"""Figures of earlier checks, and how they went."""

from typing import Literal

from pydantic import Field

from quantmedic.engine.record import Contract


class Figure(Contract):
    """One figure of one run."""

    name: str = Field(description="drop top1, agreement, sqnr_db, sqnr_db of an output, findings high, coverage, …")
    unit: str | None = None
    value: float
    low: float | None = Field(default=None, description="lower end of its interval")
    high: float | None = Field(default=None, description="upper end of its interval")
    limit: float | None = Field(default=None, description="what the policy allowed at that time")
    better: Literal["higher", "lower"] | None = None


class HistoryRun(Contract):
    """One recorded check."""

    number: int = Field(description="number of the run in its history, from 1")
    time: str = Field(description="when it was recorded: ISO 8601, UTC, seconds")
    label: str | None = Field(default=None, description="what the user calls it, such as a commit")
    verdict: str
    quantized_sha256: str | None = None
    figures: tuple[Figure, ...]


class Trend(Contract):
    """Recorded checks of one model, oldest first."""

    model: str
    runs: tuple[HistoryRun, ...]
