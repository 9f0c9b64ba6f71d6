"""What the source documents advise in words, and pages and remedies say as well."""

import pytest

from quantmedic.api.explain import explanation
from quantmedic.api.rulebase import load_rulebase


def said(word: str) -> str:
    """A page without its line breaks."""
    return " ".join(explanation(word).split())


@pytest.mark.source(
    "mct-concatenation-moved", "mct-gptq-labels", "mct-hessian-cost", "mct-target-resources", "mct-error-method-default"
)
def test_advice_of_the_troubleshooting_manual() -> None:
    assert "Separate outputs" in said("G001") and "move it behind the next layer" in said("G001")
    assert "it needs inputs, not labels" in said("gptq")
    assert "the search takes longer" in said("hessian-scores") and "noisier than plain distance" in said(
        "hessian-scores"
    )
    notes = [snippet.note for snippet in load_rulebase().remedies["loosen-target"].snippets]
    assert any("activation_memory, total_memory, bops, one of them only" in (note or "") for note in notes)


@pytest.mark.source(
    "horizon-methods-order",
    "horizon-data-scenes",
    "horizon-data-detection",
    "horizon-data-background",
    "horizon-read-libraries",
    "horizon-float-stage-checks",
)
def test_advice_of_the_accuracy_guide() -> None:
    page = said("horizon")
    assert "`mix`, then `kl`, then `max`" in page
    assert "about 100, all classes and scenes" in page
    assert "check the configuration" in page and "does the post-processing give the same from both?" in page
    assert "skimage gives RGB floats from 0 to 1, OpenCV BGR bytes, Pillow RGB bytes" in page
    assert "usually fewer samples than classification" in said("representative-data")
    assert "few images of background alone" in said("representative-data")


@pytest.mark.source("horizon-tail-few")
def test_few_operators_of_the_tail_go_to_the_processor() -> None:
    assert "more than two operators cost speed" in load_rulebase().remedies["float-tail"].unsafe
