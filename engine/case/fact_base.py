"""What all facts share: how a field is declared, and the names of scopes, data sets and patterns."""

from enum import Enum
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

Role = Literal["representative", "validation"]
Pattern = Literal["swish", "softmax-input", "none"]
#: What shows that the quantized model is the float model itself: equal bytes, or equal weights without any quantizer.
SameModel = Literal["bytes", "weights", "no"]
Scope = Literal["model", "dataset", "layer", "tensor", "operand", "output"]
ROLES: tuple[Role, ...] = get_args(Role)
T = TypeVar("T")


class Shown(Enum):
    """What the texts of a field are where a case is given away; those of a field without it become hashes."""

    WORDS = "what tools and formats define: each stays where its words are public"
    WORD_KEYS = "names, by keys that are such words"
    KEY = "names of changes, in texts or as keys of a mapping"
    PHRASE = "public as a whole, or left out"
    PROSE = "prose, code and lines of logs, which may quote anything: left out"


Words = Annotated[T, Shown.WORDS]
WordKeys = Annotated[T, Shown.WORD_KEYS]
Key = Annotated[T, Shown.KEY]
Phrase = Annotated[T, Shown.PHRASE]
Prose = Annotated[T, Shown.PROSE]


def fact(description: str, unit: str | None = None) -> Any:
    """Declare one measurable field; ``unit`` is None for counts, names and flags."""
    return Field(default=None, description=description, json_schema_extra={"unit": unit})


def declared_unit(field: FieldInfo) -> str | None:
    """Unit of a fact as it was declared; None for counts, names and flags."""
    extra = field.json_schema_extra
    unit = extra.get("unit") if isinstance(extra, dict) else None
    return unit if isinstance(unit, str) else None


class Facts(BaseModel):
    """Base of all facts: frozen, and a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True)
