"""What one quantizer does to the noise at the output, as facts that rules can ask for."""

import numpy as np
import pytest

from quantmedic.engine.case.budget_record import (
    LossBudget,
    OutputPart,
    PieceRecord,
    SourceRecord,
    TaskLossRecord,
    TaskShareRecord,
)
from quantmedic.engine.formulas.noise_sources import leading_output, source_facts

CLIPPED = PieceRecord(
    sources=(SourceRecord(kind="activation", tensors=(3,)),),
    shares=(0.9, 0.1),
    alone=(0.9, 0.1),
    last=(0.8, 0.1),
    clipped_low=(0.01, 0.0),
    clipped_high=(0.7, 0.0),
    heals={"full-range": (0.7, 0.0), "best-range": (0.2, 0.0)},
)
WEIGHTS = PieceRecord(
    sources=(SourceRecord(kind="weight", operators=(5,)),),
    shares=(0.1, 0.9),
    alone=(0.1, 0.9),
    last=(0.2, 0.9),
    heals={"per-channel-weights": (0.15, 0.0)},
)
TOGETHER = PieceRecord(
    sources=(SourceRecord(kind="weight", operators=(6,)), SourceRecord(kind="weight", operators=(7,))),
    shares=(0.0, 0.0),
    alone=(0.0, 0.0),
    last=(0.0, 0.0),
)


def budget(simulated: float = 0.5) -> LossBudget:
    return LossBudget(
        dataset="validation",
        samples=8,
        runs=20,
        outputs=(OutputPart(output=0), OutputPart(output=1)),
        simulated=(simulated, 0.01),
        deployed=(0.5, 0.01),
        pieces=(CLIPPED, WEIGHTS, TOGETHER),
        complete=True,
    )


def test_facts_are_of_the_output_where_most_of_the_task_is_lost() -> None:
    """Boxes may lose it while scores are noisier."""

    def with_losses(of_clipped: float, of_weights: float, noise: float = 0.01) -> LossBudget:
        wobble = noise * np.sin(np.arange(8.0))
        lost = {0: of_clipped + wobble, 1: of_weights - wobble, 2: 0.0 * wobble}
        pieces = tuple(
            piece.model_copy(update={"task": TaskShareRecord(share=tuple(lost[k]), alone=(), last=())})
            for k, piece in enumerate(budget().pieces)
        )
        whole = tuple(sum(lost.values()))
        task = TaskLossRecord(measure="metric", deployed=whole, simulated=whole, interaction=(0.0,) * 8)
        return budget().model_copy(update={"pieces": pieces, "task": task})

    noisiest, other = 0, 1
    assert WEIGHTS.shares[other] > WEIGHTS.shares[noisiest]
    assert leading_output(with_losses(0.02, 0.3)) == other
    assert leading_output(with_losses(0.3, 0.02)) == noisiest
    assert leading_output(with_losses(0.02, 0.3, noise=2.0)) == noisiest, "chance explains that loss"
    assert leading_output(budget()) == noisiest


def test_facts_are_of_the_noisiest_output() -> None:
    found = source_facts(budget())
    clipped, weights = found["activation", 3], found["weight", 5]
    assert (clipped.share, clipped.last, clipped.mechanism) == (0.9, 0.8, "clipped-high")
    assert clipped.outcome.full_range == pytest.approx(0.7 / 0.8)
    assert (weights.share, weights.mechanism, weights.outcome.per_channel_weights) == (0.1, None, pytest.approx(0.75))
    assert source_facts(budget(simulated=0.25))["activation", 3].share == pytest.approx(0.45), "of the deployed noise"


def test_what_was_not_measured_by_itself_is_unknown() -> None:
    found = source_facts(budget())
    assert ("weight", 6) not in found
    assert found["weight", 5].outcome.eight_bit_weights == 0.0, "it would alter nothing"
    unhealed = budget().model_copy(update={"pieces": (WEIGHTS.model_copy(update={"heals": {}}),)})
    assert source_facts(unhealed)["weight", 5].outcome.per_channel_weights is None
