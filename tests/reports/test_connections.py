"""One defect under several names: causes of the same noise, and a prescription that heals by another way."""

import pytest
from builders.budgets import line, with_budget

from quantmedic.engine.case.proof import ExecutionRecord, TrialRecord
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.context import build_context
from quantmedic.reports.sections.cards import connections
from quantmedic.reports.terminal.console import render_console
from quantmedic.reports.write import render_markdown


def told(diagnosis: Diagnosis) -> list[tuple[str, ...]]:
    return [connections(cause, diagnosis) for cause in diagnosis.causes]


@pytest.fixture
def two(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis with its two first causes."""
    assert len(diagnosis.causes) >= 2
    return diagnosis.model_copy(update={"causes": diagnosis.causes[:2], "prescription": None})


def test_causes_of_the_same_noise_name_each_other(two: Diagnosis) -> None:
    first, other = two.causes
    same = with_budget(two, (line("a", 0.6, causes=(first.cause, other.cause)), line("b", 0.1, causes=(first.cause,))))
    assert [text.partition(":")[0] for texts in told(same) for text in texts] == ["The same noise has another name"] * 2
    assert f"{other.rules[0]} {other.cause}" in told(same)[0][0] and first.cause in told(same)[1][0]
    assert told(same)[0][0] in " ".join(render_console(same, verbosity="verbose").split())
    assert "The same noise has another name" in render_markdown(build_context(same, {}))


def test_a_cause_in_the_data_is_repaired_before_what_it_explains(two: Diagnosis) -> None:
    names = tuple(cause.cause for cause in two.causes)
    rules = {cause.rules[0][0] for cause in two.causes}
    assert rules == {"W", "D"}
    for cause, (said,) in zip(two.causes, told(with_budget(two, (line("a", 0.9, causes=names),))), strict=True):
        assert ("If the data are wrong, they come first" in said) == cause.rules[0].startswith("W")


def test_causes_that_share_little_do_not(two: Diagnosis) -> None:
    first, other = (cause.cause for cause in two.causes)
    lines = (line("a", 0.5, causes=(first,)), line("b", 0.3, causes=(other,)), line("c", 0.1, causes=(first, other)))
    assert told(with_budget(two, lines)) == [(), ()]
    assert told(two) == [(), ()], "without a budget nothing is known"


def test_a_prescription_that_heals_by_another_way_is_told(subtests: pytest.Subtests, diagnosis: Diagnosis) -> None:
    for share, said in [(0.97, True), (0.2, False), (None, False)]:
        with subtests.test(share=share, said=said):
            given = diagnosis.prescription
            assert given is not None
            step = given.steps[0].model_copy(update={"title": "quantize this very model again", "causes": ()})
            run = ExecutionRecord.model_construct(trial=TrialRecord(key="k", kind="full-range", share=share))
            update = {"steps": (step,), "executed": run, "grade": "executed"}
            found = diagnosis.model_copy(update={"prescription": given.model_copy(update=update)})
            serious = [texts for texts, cause in zip(told(found), found.causes, strict=True) if cause.is_serious]
            assert serious and all(bool(texts) == said for texts in serious)
            if said:
                assert "removes 97 % of the noise in another way: quantize this very model again" in serious[0][0]
