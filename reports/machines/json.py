"""The JSON report, the versioned contract, and its schema."""

import json

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import FloatSchema

from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.snippets import render_snippets
from quantmedic.reports.machines.records import record_json

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def render_json(diagnosis: Diagnosis) -> str:
    """``report.json``: ASCII, safe inside markup and terminals; what is not finite becomes null."""
    return record_json(_filled_in(diagnosis))


def _filled_in(diagnosis: Diagnosis) -> Diagnosis:
    """Snippets with this model's names: a reader of the file should need nothing else to use them."""
    causes = []
    for cause in diagnosis.causes:
        remedies = [
            advice.model_copy(
                update={
                    "snippets": tuple(
                        snippet.model_copy(update={"code": code})
                        for snippet, code in zip(advice.snippets, render_snippets(advice, cause.rules), strict=True)
                    )
                }
            )
            for advice in cause.remedies
        ]
        causes.append(cause.model_copy(update={"remedies": tuple(remedies)}))
    return diagnosis.model_copy(update={"causes": tuple(causes)})


def render_schema() -> str:
    """The JSON schema of ``report.json``, as kept in ``manuals/report.schema.json``."""
    schema = Diagnosis.model_json_schema(mode="serialization", schema_generator=_NullableFloats)
    return json.dumps({"$schema": SCHEMA_DIALECT} | schema, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


class _NullableFloats(GenerateJsonSchema):
    """Any number may be null: JSON has no infinity."""

    def float_schema(self, schema: FloatSchema) -> JsonSchemaValue:
        return {"type": ["number", "null"]}
