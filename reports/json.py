"""The JSON report, the versioned contract, and its schema."""

import json
import math
from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import FloatSchema

from quantmedic.engine.diagnosis import Diagnosis

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def render_json(diagnosis: Diagnosis) -> str:
    """``report.json``: sorted keys, valid JSON, safe inside markup and terminals; not finite becomes null."""
    text = json.dumps(_plain(diagnosis.model_dump(mode="python")), indent=1, sort_keys=True, allow_nan=False)
    return (
        text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("\x7f", "\\u007f") + "\n"
    )


def render_schema() -> str:
    """The JSON schema of ``report.json``, as kept in ``manuals/report.schema.json``."""
    schema = Diagnosis.model_json_schema(mode="serialization", schema_generator=_NullableFloats)
    return json.dumps({"$schema": SCHEMA_DIALECT} | schema, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


class _NullableFloats(GenerateJsonSchema):
    """Any number may be null: JSON has no infinity."""

    def float_schema(self, schema: FloatSchema) -> JsonSchemaValue:
        return {"type": ["number", "null"]}


def _plain(value: Any) -> Any:
    """Mappings, lists, strings and finite numbers only."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return _plain(value.item()) if hasattr(value, "item") else str(value)
