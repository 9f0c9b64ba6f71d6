"""The policy of ``quantmedic check``: what fails, what is exempted, and until when."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from quantmedic.engine.metrics.kinds import is_share
from quantmedic.engine.rules.rule import Severity

#: Budgets by the figure that they bound; any other metric is the task metric.
AGREEMENT, SQNR = "agreement", "sqnr_db"
#: The same of language models on texts.
KL, SAME_TOP, PERPLEXITY = "kl", "same_top", "perplexity"
#: Beyond any bound on a figure that anybody means: formulas and their digits stay within what floats hold.
_MOST = 1e12
#: The dialect of JSON schemas that editors of TOML understand.
_DIALECT = "http://json-schema.org/draft-07/schema#"
Unit = Literal["points", "percent", "absolute"]
Text = Annotated[str, Field(min_length=1)]


class Settings(BaseModel):
    """Base of the policy's tables: frozen, no unknown keys. The description of a key is what it takes."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FailOn(Settings):
    """Findings that fail: from a severity on, and of rules by id, id prefix, name or cause whatever their severity.

    ``known``: findings that the baseline holds fail as well.
    """

    severity: Severity | Literal["never"] = Field(
        default="high", description='"high", "medium", "low", "info" or "never"'
    )
    rules: tuple[Text, ...] = Field(default=(), description='a list of rules such as ["S003"]')
    known: bool = Field(default=False, description="true or false")


class Verdicts(Settings):
    """Whether a verdict other than REGRESSION fails.

    ``undecided``: a diagnosis that is undecided counts as too few samples.
    """

    insufficient_data: Literal["fail", "pass"] = Field(default="fail", description='"fail" or "pass"')
    anomalous: Literal["fail", "pass"] = Field(default="fail", description='"fail" or "pass"')
    undecided: Literal["fail", "pass"] = Field(default="pass", description='"fail" or "pass"')


class Coverage(Settings):
    """Least share of the compute operators with quantized inputs or weights."""

    min: float = Field(ge=0, le=1, description="a share from 0 to 1")


class Budget(Settings):
    """A bound on one figure.

    ``agreement`` (share of samples whose class both models predict) and ``sqnr_db`` (of an output, its worst column and
    operand included; of the worst output without ``output``) have a ``min``; any other metric is the task metric, and
    has a ``max_drop`` in ``unit``: points are percentage points of a share, percent is of the float model's value,
    absolute is the metric's own unit. Of language models, ``kl`` has a ``max`` in nats per token, and ``same_top``
    (share of tokens that both models predict first) a ``min``.
    """

    metric: Text = Field(description='a name such as "top1"')
    max_drop: float | None = Field(
        default=None, ge=0, le=_MOST, allow_inf_nan=False, description="a number from 0 to 1e12"
    )
    min: float | None = Field(
        default=None, ge=-_MOST, le=_MOST, allow_inf_nan=False, description="a number from -1e12 to 1e12"
    )
    max: float | None = Field(default=None, ge=0, le=_MOST, allow_inf_nan=False, description="a number from 0 to 1e12")
    unit: Unit | None = Field(default=None, description='"points", "percent" or "absolute"')
    output: str | None = Field(default=None, description="the name of an output")
    # Closer to 1, its normal quantile is lost to rounding.
    confidence: float = Field(default=0.95, gt=0.5, le=0.999999, description="a number between 0.5 and 1 such as 0.95")

    @model_validator(mode="after")
    def _has_its_bound(self) -> "Budget":
        wanted = self._bound
        others = {"max_drop", "min", "max"} - {wanted}
        if getattr(self, wanted) is None or any(getattr(self, other) is not None for other in others):
            raise ValueError(f"a budget of {self.metric} has {wanted} and no {' nor '.join(sorted(others))}")
        if self.is_level and self.unit is not None:
            raise ValueError(f"a budget of {self.metric} has no unit")
        if self.metric in (AGREEMENT, SAME_TOP) and not 0 < self.min <= 1:  # type: ignore[operator]
            raise ValueError(f"min of {self.metric} is a share such as 0.99")
        if not self.is_level and self.drop_unit == "points" and self.max_drop > 100:  # type: ignore[operator]
            raise ValueError("max_drop in points is at most 100: they are percentage points of a share")
        return self

    @property
    def is_level(self) -> bool:
        """Bounds a level rather than a drop."""
        return self.metric in (AGREEMENT, SQNR, KL, SAME_TOP)

    @property
    def _bound(self) -> str:
        """What bounds it."""
        return "max" if self.metric == KL else "min" if self.is_level else "max_drop"

    @property
    def drop_unit(self) -> Unit:
        """The unit of ``max_drop``: points for shares, the metric's own otherwise, unless it is given."""
        return self.unit or ("points" if is_share(self.metric) else "absolute")


class Check(Settings):
    """Table ``[check]``."""

    fail_on: FailOn = Field(default=FailOn(), description='a table such as {severity = "high"}')
    verdicts: Verdicts = Field(default=Verdicts(), description='a table such as {insufficient_data = "pass"}')
    coverage: Coverage | None = Field(default=None, description="a table such as {min = 0.9}")
    baseline: Text | None = Field(default=None, description="the name of a file")
    budget: tuple[Budget, ...] = Field(default=(), description="a list of tables, each under [[check.budget]]")


class RuleChoice(Settings):
    """Table ``[rules]``: rules that are judged and left out, by id, id prefix, name or cause; folders of own rules."""

    select: tuple[Text, ...] = Field(default=(), description='a list of rules such as ["W", "S003"]')
    ignore: tuple[Text, ...] = Field(default=(), description='a list of rules such as ["D012"]')
    folders: tuple[Text, ...] = Field(default=(), description='a list of folders such as ["ci/rules"]')


class Exemption(Settings):
    """One ``[[ignore]]``: findings of a rule that do not count on some layers, why, and until when (inclusive)."""

    rule: Text = Field(description='a rule such as "A004"')
    layers: tuple[Text, ...] = Field(default=("*",), description='a list of patterns such as ["head/*"]')
    reason: str = Field(min_length=1, pattern=r"\S", description="a text that says why")
    expires: date | Literal["never"] = Field(description='a date such as 2026-11-30, or "never"')


class Policy(Settings):
    """A whole policy; without a file, findings of high severity fail, and a measured loss without a baseline."""

    check: Check = Field(default=Check(), description="a table, under [check]")
    rules: RuleChoice = Field(default=RuleChoice(), description="a table, under [rules]")
    thresholds: Mapping[str, object] = Field(default={}, description="a table of names and numbers, under [thresholds]")
    ignore: tuple[Exemption, ...] = Field(default=(), description="a list of tables, each under [[ignore]]")


@dataclass(frozen=True)
class PolicyFile:
    """A policy and where it stands.

    Attributes:
        policy: What it says.
        path: Its file; None where there is none.
        lines: Line of each table and key by its path, such as ``check.budget.0`` or ``ignore.1``; the first is 1.
    """

    policy: Policy = field(default_factory=Policy)
    path: Path | None = None
    lines: Mapping[str, int] = field(default_factory=dict)

    def line(self, key: str) -> int:
        """Line of a key, else of the nearest table around it, else 1."""
        while key and key not in self.lines:
            key = key.rpartition(".")[0]
        return self.lines.get(key, 1)

    def beside(self, name: str) -> Path:
        """A file that the policy names: relative to its folder."""
        return self.path.parent / name if self.path is not None else Path(name)


def render_policy_schema() -> str:
    """The schema of a policy file, as kept in ``manuals/policy.schema.json``.

    It knows keys, types, choices and ranges. What hangs on two keys at once, such as a budget with both bounds, and
    names of rules and thresholds are checked by ``quantmedic check`` alone.
    """
    schema = Policy.model_json_schema(ref_template="#/definitions/{model}")
    schema["definitions"] = schema.pop("$defs")
    return json.dumps({"$schema": _DIALECT} | schema, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
