"""Base of what is kept as JSON in a case."""

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Base of the JSON half of a case."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=True)
