"""Records as JSON in ASCII, safe inside markup and terminals."""

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from quantmedic.engine.json_text import with_whole_text
from quantmedic.reports.text import inert_json


def record_json(record: BaseModel) -> str:
    """A record; a number that is not finite becomes null, half of a character becomes text."""
    try:
        text = record.model_dump_json(indent=1, fallback=str)
    except PydanticSerializationError:  # a name of a file that is no UTF-8
        text = to_json(with_whole_text(record.model_dump()), indent=1, inf_nan_mode="null", fallback=str).decode()
    return inert_json(text)
