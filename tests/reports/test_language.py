"""Sentences about language models: how far predictions differ, and what of the network makes it, the cause first."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

from quantmedic.engine.case.facts import LanguageFacts, ModelFacts
from quantmedic.engine.case.language_facts import BlockFacts
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.rules.evaluate import Evidence
from quantmedic.reports.sections.language import PUBLISHED, language_box, published_text

LANGUAGE = LanguageFacts(
    texts=16,
    tokens=1520,
    kl_mean=1.19,
    kl_low=0.93,
    kl_high=1.34,
    kl_tail=7.9,
    same_top=0.4586,
    same_top_low=0.378,
    same_top_high=0.546,
    delta_p=0.3704,
    blocks=(BlockFacts(name="model.layers.0", own_share=0.5), BlockFacts(name="model.layers.1", own_share=0.5)),
    worst_block="model.layers.0",
    worst_block_share=0.5,
    trial_texts=(1, 5, 9, 13),
    kl_tried=1.26,
    kl_mended=1.26,
    worst_block_gain=0.0,
    worst_block_gain_low=-0.004,
    worst_block_gain_high=0.0003,
    activations="int8 per token",
    kl_float_activations=1.2,
    activations_gain=0.05,
    cache="float8 per tensor, stored scales",
    kl_float_cache=5.2e-6,
    cache_gain=1.0,
    head_gain=0.01,
)
BLOCK, HEAD, INPUTS, CACHE = "The block", "With the float output layer", "Inputs of layers", "Keys and values"


def diagnosis_of(language: LanguageFacts, *facts: str) -> Diagnosis:
    """A diagnosis whose first cause rests on these facts."""
    blank = Diagnosis.model_construct(model=ModelFacts(language=language), causes=())
    if not facts:
        return blank
    rows = tuple(Evidence(fact=fact, value=1.0, comparison="gt", threshold=0.5, subject="model") for fact in facts)
    cause = CauseReport.model_construct(cause="a-cause", evidence=rows, explained_by=None)
    return blank.model_copy(update={"causes": (cause,)})


def order(*facts: str, language: LanguageFacts = LANGUAGE) -> list[str]:
    box = language_box(diagnosis_of(language, *facts))
    assert box is not None
    starts = {text: start for text in box.told for start in (BLOCK, HEAD, INPUTS, CACHE) if text.startswith(start)}
    return [starts[text] for text in box.told if text in starts]


def test_what_the_first_cause_is_about_is_told_first(subtests: pytest.Subtests) -> None:
    for facts, first in [
        (("harmed", "language.cache_gain", "language.text_scales_share"), CACHE),
        (("language.activations_gain", "language.activation_block_share"), INPUTS),
        (("model.harmed", "block_gain"), BLOCK),
        (("language.head_gain",), HEAD),
        (("weight.rounding.sqnr_db",), CACHE),
        ((), CACHE),
    ]:
        with subtests.test(facts=facts, first=first):
            told = order(*facts)
            assert told[0] == first and sorted(told) == sorted([BLOCK, HEAD, INPUTS, CACHE])
            rest = [start for start in (CACHE, INPUTS, HEAD, BLOCK) if start != first]
            assert told[1:] == rest, "what costs more comes before what costs less"


def test_a_cause_that_another_explains_does_not_lead() -> None:
    found = diagnosis_of(LANGUAGE, "block_gain")
    hidden = found.causes[0].model_copy(update={"explained_by": "kv-scales-unfit"})
    box = language_box(found.model_copy(update={"causes": (hidden,)}))
    assert box is not None and box.told[0].startswith(CACHE)


def test_routers_are_told_by_what_they_cost() -> None:
    routed = LANGUAGE.model_copy(
        update={"router_agreement": 0.718, "router_block": "model.layers.1", "router_gain": 0.78, "cache": None}
    )
    box = language_box(diagnosis_of(routed))
    assert box is not None and box.told[0].startswith("Routers choose the same experts as in float for 71.8 % of the")
    assert box.told[1] == "With the float routers, 78 % of the divergence of 4 texts is gone."


def test_how_far_predictions_differ_is_told_with_a_yardstick() -> None:
    box = language_box(diagnosis_of(LANGUAGE))
    assert box is not None and box.amount == "16 texts"
    divergence, same = box.brief
    assert divergence.startswith("KL divergence of the predictions 1.19 nats per token (0.93 … 1.34), what Llama 3 8B")
    assert "between Q2_K (0.45) and IQ1_S (2.3)" in divergence and "99.9 % of the tokens below 7.9" in divergence
    assert same.startswith("Both models put the same token first for 45.86 % of the tokens (37.80 % … 54.60 %)")
    assert "the token that follows in the text changes by 37.04 points" in same


def test_an_interval_without_width_is_not_shown() -> None:
    box = language_box(diagnosis_of(LANGUAGE))
    assert box is not None and any("on 4 texts: 0 % of it is gone" in text for text in box.told)


def test_nothing_but_that_is_told_of_predictions_that_are_no_numbers() -> None:
    box = language_box(diagnosis_of(LanguageFacts(texts=2, tokens=9, nonfinite_tokens=3)))
    assert box is not None and box.told == ()
    assert box.brief == ("The quantized model predicts what is no number for 3 tokens.",)


def test_published_divergences_grow() -> None:
    assert all(finer[1] < coarser[1] for finer, coarser in pairwise(PUBLISHED))


@given(some.floats(0, 1e3))
def test_a_divergence_lies_between_the_types_that_are_named(divergence: float) -> None:
    text = published_text(divergence)
    named = [value for name, value in PUBLISHED if f"{name} (" in text]
    if text.startswith("less"):
        assert named == [PUBLISHED[0][1]] and divergence < named[0]
    elif text.startswith("no less"):
        assert named == [PUBLISHED[-1][1]] and divergence >= named[0]
    else:
        finer, coarser = named
        assert finer <= divergence < coarser


def test_all_scales_that_are_off_are_told_as_they_are_stored() -> None:
    needed = {f"model.layers.{k}.mlp.down_proj.input_global_scale": 100.0 for k in range(10)}
    stored = {name: 100.0 * (3 + k) for k, name in enumerate(needed)}
    found = LANGUAGE.model_copy(update={"input_scales": needed, "input_scales_stored": stored})
    box = language_box(diagnosis_of(found, "language.activations_gain"))
    assert box is not None
    text = next(text for text in box.told if text.startswith("Stored scales"))
    assert "model.layers.9.mlp.down_proj.input_global_scale 1200 → 100 (12 times), model.layers.8" in text
    assert "and 2 more, in report.json" in text and "is the inverse of the scale" in text


def test_scales_that_are_no_numbers_are_no_accident(subtests: pytest.Subtests) -> None:
    for stored, needed in [(None, 1.0), (0.0, 1.0), (1.0, 0.0), (float("nan"), 1.0)]:
        with subtests.test(stored=stored, needed=needed):
            own = {} if stored is None else {"a.k_scale": stored}
            found = LANGUAGE.model_copy(update={"cache_scales": {"a.k_scale": needed}, "cache_scales_stored": own})
            box = language_box(diagnosis_of(found, "language.cache_gain"))
            assert box is not None and any("a.k_scale" in text for text in box.told)
