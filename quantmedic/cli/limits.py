"""Limits on the command line of ``check``, which hold beside those of a policy."""

from dataclasses import dataclass, replace
from typing import Annotated

import click
from pydantic import ValidationError

from quantmedic.api.options import MAX_DROP, MIN_SQNR, Option
from quantmedic.cli.groups import declared_group
from quantmedic.engine.gate.policy import AGREEMENT, KL, SAME_TOP, SQNR, Budget, PolicyFile


@dataclass(frozen=True)
class Limits:
    """Bounds of the command line, each None where it was not given."""

    max_drop: Annotated[float | None, MAX_DROP] = None
    min_agreement: Annotated[
        float | None,
        Option(
            "Least share of samples with the float model's class, such as 0.95.",
            takes="SHARE",
            kind="share",
        ),
    ] = None
    min_sqnr_db: Annotated[float | None, MIN_SQNR] = None
    max_kl: Annotated[
        float | None,
        Option(
            "Most divergence of a language model per token; needs --tokens.",
            takes="NATS",
            kind="at least 0.0",
            daily=True,
        ),
    ] = None
    min_same_top: Annotated[
        float | None,
        Option(
            "Least share of tokens that both predict first, such as 0.9; needs --tokens.",
            takes="SHARE",
            kind="share",
            daily=True,
        ),
    ] = None

    def added_to(self, file: PolicyFile, metric: str | None) -> PolicyFile:
        """A policy with these limits as further budgets.

        Args:
            file: The policy in force.
            metric: The task metric that was measured; None where none was, which leaves its limit not judged.

        Raises:
            UsageError: A limit says nothing about this metric.
        """
        bounds = (
            (metric or "top1", "max_drop", self.max_drop),
            (AGREEMENT, "min", self.min_agreement),
            (SQNR, "min", self.min_sqnr_db),
            (KL, "max", self.max_kl),
            (SAME_TOP, "min", self.min_same_top),
        )
        given = [{"metric": figure, bound: value} for figure, bound, value in bounds if value is not None]
        try:
            budgets = [Budget.model_validate(bound) for bound in given]
        except ValidationError as error:
            found = error.errors()[0]
            where = "".join(f"{name}: " for name in found["loc"])
            raise click.UsageError(where + found["msg"].removeprefix("Value error, ")) from error
        check = file.policy.check
        check = check.model_copy(update={"budget": (*check.budget, *budgets)})
        return replace(file, policy=file.policy.model_copy(update={"check": check}))


limit_options = declared_group("limits", Limits, "Limits")
