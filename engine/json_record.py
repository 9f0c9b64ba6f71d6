"""Bases of what is written as JSON: into a case, and into a report."""

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Base of the JSON half of a case."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=True)


class Contract(BaseModel):
    """Base of everything in ``report.json``: frozen, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")
