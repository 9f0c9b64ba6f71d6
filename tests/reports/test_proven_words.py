"""What is called proven, and of what; and that no sentence takes it back."""

import pytest

from quantmedic.engine.case.proof import ExecutionRecord, MetricTrial, ProofRecord, TrialRecord
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.context import build_context
from quantmedic.reports.sections.cards import cause_cards
from quantmedic.reports.sections.proof import proven_word, trial_text
from quantmedic.reports.write import render_markdown


def metric_trial(name: str, low: float, high: float) -> MetricTrial:
    gain = (low + high) / 2
    return MetricTrial.model_construct(name=name, gain=gain, low=low, high=high, left=0.01, left_low=0.0)


def trial(low_db: float, points: tuple[float, float] | None = None, **fields: object) -> TrialRecord:
    """A trial whose gain is from ``low_db`` on, and whose task metric gains between these points."""
    metric = metric_trial("top1", *points) if points is not None else None
    gains = {"gain_db": low_db + 1.0, "low_db": low_db, "high_db": low_db + 2.0}
    known = TrialRecord.model_validate({"key": "k", "kind": "full-range", **gains, **fields})
    return known.model_copy(update={"metric": metric})


def test_points_whose_interval_includes_zero_are_not_proven_with_the_noise() -> None:
    open_points = trial(5.0, (-0.05, 0.15))
    assert open_points.proven
    assert proven_word(open_points.metric) == "proven in dB, not in points,"
    assert trial_text(open_points).endswith("proven (edited): in dB; the interval of top-1 includes zero")
    sure = trial(5.0, (0.02, 0.15))
    assert proven_word(sure.metric) == "proven" and trial_text(sure).endswith("proven (edited)")
    assert proven_word(None) == "proven"
    assert proven_word(metric_trial("psnr", -1.0, 3.0)).startswith("proven in dB, not in ")


def test_what_is_called_proven_is_never_taken_back(subtests: pytest.Subtests) -> None:
    for executed in [False, True]:
        for low_db in [-1.0, 5.0]:
            for bound in [False, True]:
                with subtests.test(executed=executed, low_db=low_db):
                    run = trial(low_db, bound=bound)
                    one = (
                        {"executions": (ExecutionRecord.model_construct(trial=run),)}
                        if executed
                        else {"trials": (run,)}
                    )
                    record = ProofRecord.model_construct(**{"trials": (), "executions": (), **one})
                    assert ("no remedy was proven" in record.unwritten) == (not run.proven)


def test_what_quantizing_again_recovers_as_well_is_no_merit_of_a_remedy(
    subtests: pytest.Subtests, proven: Diagnosis
) -> None:
    """The remedy recovers 95 % of the noise; the same options on the same data recover this much."""
    for share, said in [(0.9, True), (0.86, True), (0.5, False), (None, False)]:
        with subtests.test(share=share, said=said):
            first, proof = proven.causes[0], proven.proof
            assert proof is not None
            remedy = first.remedies[0].model_copy(update={"measured": trial(9.0, (0.02, 0.15), share=0.95)})
            cause = first.model_copy(update={"remedies": (remedy, *first.remedies[1:]), "proven": True})
            again = ExecutionRecord.model_construct(
                trial=trial(8.0, share=share), own=None, choices=(), titles=("again",)
            )
            tried = proof.model_copy(update={"executions": (again,), "baseline": 0})
            found = proven.model_copy(update={"causes": (cause, *proven.causes[1:]), "proof": tried})
            (gain, *_) = (card := cause_cards(found, ())[0]).gains
            assert (
                ("no merit of it alone" in gain.judged)
                == said
                == ("no merit of it alone" in card.remedies[0].facts["measured"])
            )
            assert gain.look == ("unproven" if said else "measured")
            assert ("quantizing again with nothing changed" in render_markdown(build_context(found, {}))) == said


def test_quantizing_again_with_nothing_changed_is_confirmed_by_the_toolchain_and_not_refuted(proven: Diagnosis) -> None:
    """And what asks for other data than those given does not carry the figures of these."""
    first, proof = proven.causes[0], proven.proof
    assert proof is not None
    run = trial(9.0, (0.02, 0.15), share=0.95, samples=200)
    own = first.remedies[0].model_copy(update={"id": "calibrate-again", "measured": run})
    other = own.model_copy(update={"id": "recalibrate-on-proper-data", "title": "calibrate on proper data"})
    cause = first.model_copy(update={"remedies": (own, other), "proven": True})
    again = ExecutionRecord.model_construct(trial=trial(8.0, share=0.95), own=None, choices=(), titles=("again",))
    tried = proof.model_copy(update={"executions": (again,), "baseline": 0})
    card = cause_cards(proven.model_copy(update={"causes": (cause,), "proof": tried}), ())[0]
    assert "no merit of it alone" not in card.gains[0].judged and card.gains[0].look == "measured"
    assert "of 9.50 points lost on 200 samples" in card.remedies[0].facts["measured"]
    assert "quantized again by the toolchain with no option changed, +9.0 dB" in card.remedies[0].facts["measured"]
    assert card.remedies[1].facts["measured"] == "no, that takes other inputs than those given"
    assert card.remedies[1].changes.startswith("only if the inputs given are not like those of the application")
    assert card.remedies[1].predicted == ""


def test_a_first_step_whose_text_failed_says_so(diagnosis: Diagnosis) -> None:
    given = diagnosis.prescription
    assert given is not None and "failed when it was run" not in render_markdown(build_context(diagnosis, {}))
    refused = diagnosis.model_copy(update={"prescription": given.model_copy(update={"basis": "refused"})})
    assert "the text that does it failed when it was run, see the prescription" in render_markdown(
        build_context(refused, {})
    )
