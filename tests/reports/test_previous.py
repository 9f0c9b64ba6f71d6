"""What became of the previous diagnosis, in every format."""

from collections.abc import Callable

import pytest

from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.contract.previous_report import Changed, Effect, Previous, SettingChange, Tried
from quantmedic.reports.context import advice_text, build_context
from quantmedic.reports.page.html import render_index
from quantmedic.reports.terminal.console import render_console
from quantmedic.reports.write import render_markdown

FAILED = Tried(
    cause="channel-range-imbalance",
    remedy="per-channel-weights",
    title="per-channel weights",
    subjects=("features.1", "features.2"),
    everywhere=False,
    effect_db=0.2,
    helped=False,
)
EFFECT = Effect(
    same_data=True,
    sqnr_before=12.1,
    sqnr=12.3,
    gain_db=0.2,
    agreement_before=0.61,
    agreement=0.62,
    metric="top1",
    drop_before=0.0776,
    drop_before_low=0.0691,
    drop_before_high=0.086,
    drop=0.077,
    drop_low=0.068,
    drop_high=0.085,
    helped=False,
)
RANGE = Changed(
    setting="range",
    of="activation",
    count=9,
    examples=(SettingChange(subject="f.1", before=(-1.0, 1.0), after=(-2.0, 2.0)),),
)
SYMMETRY = Changed(
    setting="symmetry", of="layer", count=1, examples=(SettingChange(subject="f.2", before=True, after=False),)
)
BOX = Previous(effect=EFFECT, changed=(RANGE, SYMMETRY), tried=(FAILED,))


def since(diagnosis: Diagnosis, previous: Previous = BOX, **changes: object) -> Diagnosis:
    """The diagnosis as one that follows another."""
    marked = [cause.model_copy(update={"tried": previous.tried}) for cause in diagnosis.causes[:1]]
    causes = (*diagnosis.causes[1:], *marked)
    return diagnosis.model_copy(update={"previous": previous, "causes": causes, **changes})


def formats(diagnosis: Diagnosis, manuals: dict[str, str]) -> dict[str, str]:
    context = build_context(diagnosis, manuals)
    return {
        "console": " ".join(render_console(diagnosis, verbosity="verbose").split()),
        "markdown": render_markdown(context).replace("\\", ""),
        "html": render_index(context, diagnosis),
    }


def test_outcome_changes_and_what_was_tried_are_told(diagnosis: Diagnosis, manuals: dict[str, str]) -> None:
    told = (
        "ince the previous case: without effect (+0.2 dB)",
        "output SQNR 12.1 → 12.3 dB",
        "agreement 61.00 % → 62.00 %",
        "top-1 drop 7.76 → 7.70 points, 95 % interval before 6.91 … 8.60 points",
        "range of 9 activations (f.1: -1 … 1 → -2 … 2)",
        "symmetry of 1 layer (f.2: yes → no)",
        "Per-channel weights, for channel-range-imbalance: without effect (on features.1 and 1 more)",
        "ried without effect (+0.2 dB): Per-channel weights",
    )
    for form, text in formats(since(diagnosis), manuals).items():
        assert [part for part in told if part not in text] == [], form
    for form, text in formats(diagnosis, manuals).items():
        assert "previous case" not in text and "tried without effect" not in text, form


def test_general_page_comes_first_where_all_was_tried(diagnosis: Diagnosis, manuals: dict[str, str]) -> None:
    one = diagnosis.model_copy(update={"causes": diagnosis.causes[:1]})
    found = since(one, advice=("preprocessing",), advice_place="first")
    context = build_context(found, manuals)
    assert context.first is not None
    assert context.first.title == "Preprocessing"
    assert "tried without effect" in context.first.detail
    assert advice_text(found) == "What was tried for the causes had no effect."
    assert build_context(since(diagnosis), manuals).first.code == "D001"


def test_general_advice_stands_in_front_of_causes_or_folded_below(
    subtests: pytest.Subtests, diagnosis: Diagnosis, manuals: dict[str, str]
) -> None:
    for place in ["first", "folded"]:
        with subtests.test(place=place):
            shown = diagnosis.model_copy(update={"advice": ("preprocessing",), "advice_place": place})
            texts = {
                "html": (
                    render_index(build_context(shown, manuals), shown),
                    '<section id="advice"',
                    '<section id="causes"',
                ),
                "markdown": (render_markdown(build_context(shown, manuals)), "## General advice", "## Causes"),
                "console": (render_console(shown, verbosity="verbose"), "preprocessing", "D001"),
            }
            for form, (text, advice, causes) in texts.items():
                assert (text.index(advice) < text.index(causes)) == (place == "first"), form
            assert ("<details><summary>1 general measures" in texts["html"][0]) == (place == "folded")


def test_verdict_and_unknown_numbers(subtests: pytest.Subtests, diagnosis: Diagnosis) -> None:
    for helped, word in [(True, "helped"), (False, "without effect"), (None, "not comparable")]:
        with subtests.test(helped=helped, word=word):
            previous = Previous(effect=Effect(same_data=False, helped=helped), changed=(), tried=())
            shown = diagnosis.model_copy(update={"previous": previous})
            text = " ".join(render_console(shown, verbosity="verbose").split())
            assert f"Since the previous case: {word} the two cases were not judged on the same samples" in text
            assert "changed: no setting that is measured" in text


def test_hostile_names_stay_inert(hostile: Diagnosis, manuals: dict[str, str], case: Callable[..., CaseFacts]) -> None:
    name = "</script><script>alert(1)</script>\n::error::x"
    change = Changed(
        setting="range", of="activation", count=1, examples=(SettingChange(subject=name, before=1.0, after=2.0),)
    )
    bad = BOX.model_copy(update={"changed": (change,), "tried": (FAILED.model_copy(update={"subjects": (name,)}),)})
    attacked = since(hostile, bad)
    assert "<script>alert" not in render_index(build_context(attacked, manuals), attacked)
    assert not [line for line in render_console(since(hostile, bad)).splitlines() if line.lstrip().startswith("::")]
