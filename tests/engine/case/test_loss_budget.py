"""A loss budget whose parts do not fit together is no record."""

from typing import Any

import pytest
from pydantic import ValidationError

from quantmedic.engine.case.budget_record import LossBudget

TASK = {"share": [0.0, 1.0], "alone": [0.0, 1.0], "last": [0.0, 1.0]}
SOURCE = {"kind": "weight", "operators": [0]}
PIECE: dict[str, Any] = {"sources": [SOURCE], "shares": [1.0], "alone": [1.0], "last": [1.0], "task": TASK}
BUDGET: dict[str, Any] = {
    "dataset": "validation",
    "samples": 2,
    "runs": 3,
    "outputs": [{"output": 0}],
    "simulated": [0.1],
    "deployed": [0.1],
    "pieces": [PIECE],
    "complete": True,
}


def with_piece(**changes: Any) -> dict[str, Any]:
    return {**BUDGET, "pieces": [PIECE, {**PIECE, **changes}]}


def test_parts_of_different_numbers_of_outputs_or_samples_are_refused() -> None:
    assert len(LossBudget.model_validate(with_piece()).pieces) == 2
    for found in (
        BUDGET | {"simulated": []},
        with_piece(shares=[0.5, 0.5]),
        with_piece(clipped_low=[0.5, 0.5]),
        with_piece(heals={"range": []}),
        with_piece(hidden={"clipped_low": [0.5, 0.5]}),
        with_piece(task={**TASK, "share": [0.0]}),
        BUDGET | {"departures": [{"tensor": 0, "nmse": 0.1, "shares": []}]},
    ):
        with pytest.raises(ValidationError, match="a loss budget with"):
            LossBudget.model_validate(found)
    with pytest.raises(ValidationError, match="sources"):
        LossBudget.model_validate(with_piece(sources=[]))
