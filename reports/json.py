"""The JSON report, the versioned contract, and its schema."""

import json
import math
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring_ascii
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import FloatSchema

from quantmedic.engine.diagnosis import Diagnosis

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def render_json(diagnosis: Diagnosis) -> str:
    """``report.json``: sorted keys, valid JSON, safe inside markup and terminals; not finite becomes null."""
    text = _indented(diagnosis.model_dump(mode="python"), "\n")
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


def _indented(value: Any, newline: str) -> str:
    """A value as JSON, one entry per line: made plain and written in one pass, since a large report has a million."""
    deeper = newline + " "
    if isinstance(value, Mapping):
        named = {str(key): entry for key, entry in value.items()}
        texts = [(k, write(v) if (write := _WRITERS.get(type(v))) else _indented(v, deeper)) for k, v in named.items()]
        entries = [f"{encode_basestring_ascii(key)}: {text}" for key, text in sorted(texts)]
        return f"{{{deeper}{f',{deeper}'.join(entries)}{newline}}}" if entries else "{}"
    if isinstance(value, list | tuple | set | frozenset):
        entries = [write(v) if (write := _WRITERS.get(type(v))) else _indented(v, deeper) for v in value]
        return f"[{deeper}{f',{deeper}'.join(entries)}{newline}]" if entries else "[]"
    plain = _plain(value)
    return _WRITERS[type(plain)](plain)


def _plain(value: Any) -> float | int | str:
    """What is of no type that JSON has: a number of numpy, or its text."""
    found = value.item() if hasattr(value, "item") else value
    return next((kind(found) for kind in (bool, int, float) if isinstance(found, kind)), str(found))


#: Text of the types that have no entries; a number that is not finite becomes null.
_WRITERS: dict[type, Callable[[Any], str]] = {
    float: lambda value: repr(value) if math.isfinite(value) else "null",
    str: encode_basestring_ascii,
    int: repr,
    bool: lambda value: "true" if value else "false",
    type(None): lambda value: "null",
}
