"""Two loss budgets side by side: what is matched with what, and that no noise is lost or counted twice."""

from dataclasses import replace
from typing import Any

import pytest
from builders.comparisons import compared, facts, judged, layer
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.case.budget_record import (
    LossBudget,
    OutputPart,
    PieceRecord,
    SourceRecord,
    TaskLossRecord,
    TaskShareRecord,
)
from quantmedic.engine.case.facts import QuantizerFacts
from quantmedic.engine.case.records import OutputRecord, TensorRecord
from quantmedic.engine.versus.budget_changes import BudgetChange, SourceChange
from quantmedic.engine.versus.side_by_side import Judged

OPPOSITE = {"went": "came", "came": "went", "less": "more", "more": "less", "stayed": "stayed", None: None}
LAYERS = ("a", "b", "c", "d", "e", "f")


def tensor(name: str) -> TensorRecord:
    return TensorRecord(
        name=f"{name}_q", float_name=f"{name}_out", producer="Conv", producer_name=name, consumers=(), axis=None,
        channels=1, bucketed=False, is_input=False, quantizer=QuantizerFacts(bits=8),
    )  # fmt: skip


def case_of(
    groups: list[tuple[tuple[str, ...], float]] | None, noise: float = 0.5, names: tuple[str, ...] = LAYERS, **more: Any
) -> Judged:
    """A case whose noise the outputs of these layers make, in groups that were not taken apart; None: no budget."""
    found = judged(facts([layer(name, **more) for name in names]))
    places = {name: place for place, name in enumerate(names)}
    pieces = tuple(
        PieceRecord(
            sources=tuple(SourceRecord(kind="activation", tensors=(places[name],)) for name in group),
            shares=(share,),
            alone=(share,),
            last=(share,),
        )
        for group, share in groups or ()
    )
    budget = LossBudget(
        dataset="validation", samples=8, runs=1, outputs=(OutputPart(output=0),), simulated=(noise,), deployed=(noise,),
        pieces=pieces, complete=True,
    )  # fmt: skip
    record = found.case.record.model_copy(
        update={
            "tensors": tuple(tensor(name) for name in names),
            "outputs": (OutputRecord(name="y", tensor=len(names) - 1, quantizer=QuantizerFacts(), columns=1),),
            "loss_budget": budget if groups is not None else None,
        }
    )
    return replace(found, case=replace(found.case, record=record))


def change(before: Judged, after: Judged) -> BudgetChange:
    found = compared(before, after).loss_budget
    assert found is not None
    return found


def by_place(found: BudgetChange) -> dict[str, SourceChange]:
    return {row.places[0]: row for row in found.sources if not row.words.startswith("all other")}


def test_a_share_is_of_its_own_noise_and_the_noise_is_told_too() -> None:
    rest = (("b", "c", "d", "e", "f"), 0.2)
    found = change(case_of([(("a",), 0.8), rest]), case_of([(("a",), 0.8), rest], noise=0.05))
    row = by_place(found)["a_out"]
    assert (row.share_before, row.share_after, row.fate) == (0.8, 0.8, "went")
    assert row.noise_after == pytest.approx(0.04) and row.gain_db == pytest.approx(10.0)
    assert found.whole.gain_db == pytest.approx(10.0)


def losing(found: Judged, samples: int, *shares: float) -> Judged:
    """The case with a loss of agreement on so many of 100 samples, which its pieces take these shares of."""
    lost = tuple([1.0] * samples + [0.0] * (100 - samples))
    budget = found.case.record.loss_budget
    assert budget is not None
    parts = [tuple(share * value for value in lost) for share in shares]
    pieces = tuple(
        piece.model_copy(update={"task": TaskShareRecord(share=part, alone=part, last=part)})
        for piece, part in zip(budget.pieces, parts, strict=True)
    )
    task = TaskLossRecord(measure="agreement", deployed=lost, simulated=lost, interaction=(0.0,) * 100)
    record = found.case.record.model_copy(
        update={"loss_budget": budget.model_copy(update={"task": task, "pieces": pieces})}
    )
    return replace(found, case=replace(found.case, record=record))


def test_what_the_task_lost_stands_beside_the_noise_where_it_is_told() -> None:
    groups: list[tuple[tuple[str, ...], float]] = [(("a",), 0.8), (("b", "c", "d", "e", "f"), 0.2)]
    found = change(losing(case_of(groups), 40, 0.75, 0.25), losing(case_of(groups, noise=0.05), 1, 0.5, 0.5))
    row = by_place(found)["a_out"]
    assert row.lost_before is not None and row.lost_before.lost == pytest.approx(0.3) and row.lost_before.judged
    assert row.lost_after is None
    others = next(row for row in found.sources if row.words.startswith("all other"))
    assert others.lost_before is not None and others.lost_before.lost == pytest.approx(0.1)
    assert found.before.lost is not None and found.before.lost.judged and found.before.lost.lost == pytest.approx(0.4)
    assert found.after.lost is not None and not found.after.lost.judged


def test_what_one_case_did_not_tell_apart_is_bounded_by_its_group() -> None:
    before = case_of([(("a",), 0.5), (("b",), 0.45), (("c", "d", "e", "f"), 0.05)])
    after = case_of([(("a", "b", "c", "d"), 0.02), (("e",), 0.9), (("f",), 0.08)], noise=0.1)
    rows = by_place(change(before, after))
    assert {place: row.fate for place, row in rows.items()} == {
        "a_out": "went", "b_out": "went", "e_out": "more", "f_out": None,
    }  # fmt: skip
    assert rows["f_out"].noise_after < 0.05 * 0.5, "it may have been all of what its neighbours make, or nothing of it"
    assert (rows["a_out"].share_after, rows["a_out"].among_after, rows["e_out"].among_before) == (None, 4, 4)


def test_a_quantizer_that_was_taken_out_went() -> None:
    before = case_of([(("a",), 0.9), (("b", "c", "d", "e", "f"), 0.1)])
    after = case_of([(("b",), 1.0), (("c", "d", "e", "f"), 0.0)], noise=0.05)
    rows = by_place(change(before, after))
    assert (rows["a_out"].fate, rows["a_out"].share_after, rows["a_out"].among_after) == ("went", None, None)


def test_a_healthy_case_without_a_budget_bounds_what_is_left() -> None:
    before = case_of([(("a",), 0.9), (("b", "c", "d", "e", "f"), 0.1)], noise=0.5)
    after = case_of(None, sqnr=40.0)
    rows = by_place(change(before, after))
    assert rows["a_out"].fate == "went" and rows["a_out"].share_after is None
    assert by_place(change(after, before))["a_out"].fate == "came"
    assert compared(case_of(None), case_of(None)).loss_budget is None
    loud = by_place(change(before, case_of(None, sqnr=4.0)))
    assert loud["a_out"].fate is None, "as much noise may still come from there"


def test_renamed_layers_are_followed() -> None:
    groups = [(("a",), 0.7), (("b", "c", "d", "e", "f"), 0.3)]
    renamed = [(tuple(f"new_{name}" for name in group), share) for group, share in groups]
    found = change(case_of(groups), case_of(renamed, names=tuple(f"new_{name}" for name in LAYERS)))
    (row,) = by_place(found).values()
    assert (row.places, row.fate, row.gain_db) == (("new_a_out",), "stayed", 0.0)


@st.composite
def budgets(draw: st.DrawFn) -> list[tuple[tuple[str, ...], float]]:
    """Any partition of a part of the layers, with shares that sum up to 1."""
    names = draw(st.lists(st.sampled_from(LAYERS), min_size=1, unique=True).map(sorted))
    cuts = draw(st.lists(st.booleans(), min_size=len(names), max_size=len(names)))
    groups: list[tuple[str, ...]] = []
    for name, cut in zip(names, cuts, strict=True):
        groups = [*groups, (name,)] if cut or not groups else [*groups[:-1], (*groups[-1], name)]
    # A ratio to the least numbers that there are is infinite, and its inverse is not 0.
    weight = st.floats(-1.0, 5.0).map(lambda value: round(value, 12))
    weights = draw(st.lists(weight, min_size=len(groups), max_size=len(groups)))
    total = sum(weights)
    if abs(total) < 0.1:
        return [(tuple(names), 1.0)]
    return [(group, weight / total) for group, weight in zip(groups, weights, strict=True)]


@examples(40)
@given(budgets(), budgets(), st.floats(1e-4, 10.0), st.floats(1e-4, 10.0))
def test_no_noise_is_lost_or_counted_twice(before: Any, after: Any, loud: float, other: float) -> None:
    found = change(case_of(before, loud), case_of(after, other))
    for side, noise in (("before", loud), ("after", other)):
        shares = [getattr(row, f"share_{side}") for row in (*found.sources, found.unsimulated)]
        noises = [getattr(row, f"noise_{side}") for row in (*found.sources, found.unsimulated)]
        assert sum(share or 0.0 for share in shares) == pytest.approx(1.0, abs=1e-6)
        assert sum(part or 0.0 for part in noises) == pytest.approx(noise, rel=1e-6)
    places = [place for row in found.sources for place in row.places]
    loud_ones = [row.places[0] for row in found.sources if not row.words.startswith("all other")]
    assert len(loud_ones) == len(set(loud_ones))
    assert set(places) == {f"{name}_out" for groups in (before, after) for group, _ in groups for name in group}


@examples(40)
@given(budgets(), budgets(), st.floats(1e-4, 10.0), st.floats(1e-4, 10.0))
def test_swapped_cases_mirror(before: Any, after: Any, loud: float, other: float) -> None:
    one, two = case_of(before, loud), case_of(after, other)
    there, back = change(one, two), change(two, one)
    rows = {(row.source, row.places): row for row in back.sources}
    for row in there.sources:
        twin = rows[row.source, row.places]
        assert (row.share_before, row.share_after) == (twin.share_after, twin.share_before)
        assert (row.among_before, row.among_after) == (twin.among_after, twin.among_before)
        assert row.fate == OPPOSITE[twin.fate]
        assert row.gain_db == (None if twin.gain_db is None else pytest.approx(-twin.gain_db, abs=1e-9))
