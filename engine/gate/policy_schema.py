"""The policy as a JSON schema, by which editors complete and check a policy while it is written."""

import json

from quantmedic.engine.gate.policy import Policy

#: The dialect that editors of TOML understand.
_DIALECT = "http://json-schema.org/draft-07/schema#"


def render_policy_schema() -> str:
    """The schema of a policy file, as kept in ``manuals/policy.schema.json``.

    It knows keys, types, choices and ranges. What hangs on two keys at once, such as a budget with both bounds, and
    names of rules and thresholds are checked by ``quantmedic check`` alone.
    """
    schema = Policy.model_json_schema(ref_template="#/definitions/{model}")
    schema["definitions"] = schema.pop("$defs")
    return json.dumps({"$schema": _DIALECT} | schema, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
