"""The worst column and the worst operand of an output: what counts, what is dead, and what is no fault."""

import numpy as np
import pytest

from quantmedic.collectors.measure.outputs import compare_outputs
from quantmedic.engine.case.facts import OutputColumnFacts, QuantizerFacts
from quantmedic.engine.case.output_columns import output_column_facts, parts_of
from quantmedic.engine.case.records import OutputRecord, PartRecord
from quantmedic.engine.decibels import sqnr_db

BOXES, SCORES = PartRecord(start=0, stop=4, tensor="boxes"), PartRecord(start=4, stop=7, tensor="scores", is_score=True)


class Limits:
    """The thresholds as they are shipped."""

    def threshold(self, name: str) -> float:
        return {"quantize_error_sqnr_db": 20.0, "lost_sqnr_db": 3.0}[name]


def detections(n: int = 200) -> np.ndarray:
    rng = np.random.default_rng(3)
    return np.concatenate([rng.uniform(0, 640, (n, 4)), rng.uniform(0, 1, (n, 3))], axis=1).astype(np.float32)


def judged(
    x: np.ndarray, y: np.ndarray, *parts: PartRecord, classes: bool = False, is_score: bool = False
) -> OutputColumnFacts:
    record = OutputRecord(
        name="found", tensor=None, quantizer=QuantizerFacts(), columns=0, axis=1, parts=parts, is_score=is_score
    )
    found = compare_outputs(x, y, 1)
    return output_column_facts(record, found, by_operand=False, classes=classes, limits=Limits())


def rounded(x: np.ndarray, step: float) -> np.ndarray:
    return (np.round(x / step) * step).astype(np.float32)


def test_scores_on_the_grid_of_boxes_are_dead() -> None:
    x = detections()
    for classes in (False, True):
        facts = judged(x, rounded(x, 640 / 255), BOXES, SCORES, classes=classes)
        assert (facts.dead, facts.dead_places, facts.worst) == (3, "4…6", "columns 4…6 (scores)")
        assert facts.worst_sqnr_db == pytest.approx(0.0)
        assert facts.spoiled is True
        boxes, scores = facts.operands
        assert boxes.sqnr_db is not None and boxes.sqnr_db > 40
        assert scores.sqnr_db == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("scales", "found"),
    [
        ([640, 300, 2, 1, 0.5], [(0, 2, False), (2, 5, True)]),
        ([0.5, 640, 640, 1, 0, 1], [(0, 1, True), (1, 3, False), (3, 6, True)]),
        ([640, 9, 3], []),
        ([640, 320, 1e-6], []),
        ([1, 1, 1e-3], []),
    ],
    ids=["at the widest gap", "on both sides", "one scale", "rounding of float32", "rare scores"],
)
def test_columns_that_no_concat_joins_are_parted_by_scale(
    scales: list[float], found: list[tuple[int, int, bool]]
) -> None:
    x = np.random.default_rng(2).uniform(0, 1, (200, len(scales))) * np.array(scales)
    record = OutputRecord(name="found", tensor=None, quantizer=QuantizerFacts(), columns=0, axis=1)
    parts = parts_of(record, compare_outputs(x, x, 1))
    assert [(part.start, part.stop, part.is_score) for part in parts] == found


def test_what_is_not_dead() -> None:
    """Few levels are spoiled, and of a column that does not vary, or of one sample, nothing is told."""
    x = detections()
    y = np.concatenate([x[:, :4], rounded(x[:, 4:], 0.4)], axis=1)
    facts = judged(x, y, BOXES, SCORES)
    assert (facts.dead, facts.spoiled) == (0, True)
    assert facts.worst_sqnr_db is not None and 10 < facts.worst_sqnr_db < 15
    x[:, 6] = 0.25
    assert judged(x, rounded(x, 1 / 256), BOXES, SCORES).dead == 0
    assert judged(x[:1], rounded(x[:1], 640 / 255), BOXES, SCORES).dead == 0


def test_grids_of_their_own_spoil_nothing() -> None:
    x = detections()
    y = np.concatenate([rounded(x[:, :4], 640 / 255), rounded(x[:, 4:], 1 / 255)], axis=1)
    facts = judged(x, y, BOXES, SCORES)
    assert (facts.dead, facts.dead_places, facts.spoiled) == (0, None, False)
    assert facts.worst_sqnr_db is not None and facts.worst_sqnr_db > 35


def test_the_worst_level_is_that_of_numpy() -> None:
    x = detections()
    y = x + np.random.default_rng(5).standard_normal(x.shape).astype(np.float32) * 0.05
    facts = judged(x, y, BOXES, SCORES)
    error, power = ((np.float64(y) - x) ** 2).sum(axis=0), (np.float64(x) ** 2).sum(axis=0)
    assert facts.worst == "columns 4…6 (scores)"
    assert facts.worst_sqnr_db == pytest.approx(sqnr_db(power[4:].sum(), error[4:].sum()))


def test_a_class_that_hardly_ever_occurs_is_no_fault() -> None:
    """A column of a classifier with hardly any power falls to zero on the grid of the others."""
    rng = np.random.default_rng(1)
    x = rng.uniform(0, 1, (300, 5)).astype(np.float32)
    x[:, 2] *= 1e-3
    facts = judged(x, rounded(x, 1 / 255), classes=True)
    assert (facts.dead, facts.spoiled) == (0, False)
    assert facts.worst != "column 2"


def test_a_class_as_loud_as_the_others_is_a_fault_where_it_is_constant() -> None:
    x = np.random.default_rng(1).standard_normal((300, 5)).astype(np.float32)
    y = x.copy()
    y[:, 3] = 0.5
    facts = judged(x, y, classes=True)
    assert (facts.dead, facts.dead_places, facts.spoiled) == (1, "3", True)


def test_operands_stand_for_columns_where_there_are_too_many() -> None:
    x = detections()
    y = rounded(x, 640 / 255)
    tables = [compare_outputs(x[:, :4], y[:, :4], None).table, compare_outputs(x[:, 4:], y[:, 4:], None).table]
    found = compare_outputs(x, y, None)
    found.table = np.concatenate(tables)
    record = OutputRecord(
        name="found", tensor=None, quantizer=QuantizerFacts(), columns=0, axis=1, parts=(BOXES, SCORES)
    )
    facts = output_column_facts(record, found, by_operand=True, classes=False, limits=Limits())
    assert facts.dead == 3
    assert facts.dead_places == "4…6"
    assert (facts.worst, facts.spoiled) == ("columns 4…6 (scores)", True)
