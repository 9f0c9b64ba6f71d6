"""The schema of policies, held against the policies that the repository shows."""

import copy
import json
import re
import tomllib
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from quantmedic.engine.gate.policy import Policy, render_policy_schema

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads(render_policy_schema())
#: A table of a policy, be it in a file of its own or in pyproject.toml.
TABLE = re.compile(r"^\[\[?(?:tool\.quantmedic\.)?(?:check|rules|thresholds|ignore)\b", re.MULTILINE)


def policies() -> dict[str, dict[str, Any]]:
    """Every policy that is shown, by where: the example file, and what the README and the manual print."""
    texts = {"examples/ci/quantmedic.toml": (ROOT / "examples" / "ci" / "quantmedic.toml").read_text(encoding="utf-8")}
    pages = [ROOT / "README.md", *sorted((ROOT / "manuals" / "general").glob("*.md"))]
    for page in pages:
        blocks = re.findall(r"^```toml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        texts |= {f"{page.name} {place}": block for place, block in enumerate(blocks) if TABLE.search(block)}
    return {name: policy_of(tomllib.loads(text)) for name, text in texts.items()}


def policy_of(content: dict[str, Any]) -> dict[str, Any]:
    """What an editor checks: dates are texts there."""
    tables = content.get("tool", {}).get("quantmedic", content)
    return json.loads(json.dumps(tables, default=lambda own: own.isoformat() if isinstance(own, date) else None))


POLICIES = policies()


def test_the_schema_file_is_the_generated_one() -> None:
    stored = files("quantmedic.manuals").joinpath("policy.schema.json").read_text(encoding="utf-8")
    function = "from quantmedic.engine.gate.policy import render_policy_schema as f"
    assert stored == render_policy_schema(), (
        f"write it anew: python -c \"{function}; print(f(), end='')\" > manuals/policy.schema.json"
    )


def test_it_is_a_schema() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert len(POLICIES) >= 3


def test_every_policy_that_is_shown_is_accepted() -> None:
    for policy in POLICIES.values():
        jsonschema.validate(policy, SCHEMA, jsonschema.Draft7Validator)
        Policy.model_validate(policy)


def test_a_misspelt_key_is_refused() -> None:
    for path in ("chekc", "check.budgte", "check.fail_on.severty", "check.budget.0.max_dorp", "rules.x"):
        policy = copy.deepcopy(POLICIES["examples/ci/quantmedic.toml"])
        table: Any = policy
        *parents, key = path.split(".")
        for parent in parents:
            table = table[int(parent)] if parent.isdigit() else table.setdefault(parent, {})
        table[key] = {}
        assert refused(policy), path


def test_a_wrong_value_is_refused() -> None:
    checks: list[dict[str, Any]] = [
        {"fail_on": {"severity": "terrible"}},
        {"coverage": {"min": 1.5}},
        {"budget": [{"max_drop": 1.0}]},
        {"budget": [{"metric": "top1", "max_drop": -1}]},
        {"budget": [{"metric": "top1", "max_drop": 1, "unit": "percents"}]},
        {"verdicts": {"anomalous": "ignore"}},
        {"baseline": ""},
    ]
    assert not [check for check in checks if not refused({"check": check})]


def refused(policy: dict[str, Any]) -> bool:
    """The schema refuses it, and so does quantmedic: an editor marks nothing that would run."""
    with pytest.raises(ValidationError):
        Policy.model_validate(policy)
    return not jsonschema.Draft7Validator(SCHEMA).is_valid(policy)
