"""Language models side by side: their texts are paired, and what cannot be is said to be not compared."""

import math

import numpy as np
import pytest
from builders.comparisons import Judged, compared, facts, judged, layer
from builders.tables import shown, tables_of

from quantmedic.engine.case.language_facts import LanguageFacts
from quantmedic.engine.case.output_facts import MetricFacts
from quantmedic.reports.sections.comparison import compare_document, metric_gain

TOKENS = np.array([20, 31, 7, 40, 25, 33, 28, 12])
RANDOM = np.random.default_rng(0)
LOSS = RANDOM.uniform(1.0, 2.0, len(TOKENS)) * TOKENS


def of_texts(loss: np.ndarray, hashes: list[int] | None = None, tokens: np.ndarray = TOKENS, **known: object) -> Judged:
    """A case of two language models: surprise of the quantized one on each text."""
    names = list(range(len(tokens))) if hashes is None else hashes
    language = LanguageFacts(
        texts=len(tokens),
        tokens=int(tokens.sum()),
        tokens_by_text=tuple(tokens.tolist()),
        surprise_by_text=tuple(loss.tolist()),
        text_hashes=tuple(names),
        kl_mean=float(loss.sum() / tokens.sum()) / 100,
        same_top=0.9,
    )
    value = math.exp(loss.sum() / tokens.sum())
    metric = MetricFacts(
        name="perplexity",
        higher_is_better=False,
        dataset="validation",
        samples=len(tokens),
        float_value=2.0,
        quantized_value=value,
        drop=value - 2.0,
        drop_low=value - 2.2 if len(tokens) > 1 else None,
        drop_high=value - 1.8 if len(tokens) > 1 else None,
    )
    return judged(facts([layer("a", None)], None, language=language, metric=metric), {}, run=dict(known))


def test_the_same_texts_are_paired() -> None:
    record = compared(of_texts(LOSS * 1.2), of_texts(LOSS))
    before, after = (math.exp(loss.sum() / TOKENS.sum()) for loss in (LOSS * 1.2, LOSS))
    change = record.metric
    assert change is not None and change.paired and change.samples == len(TOKENS)
    assert (change.before, change.after) == (pytest.approx(before), pytest.approx(after))
    assert change.gain == pytest.approx(before - after) and change.low > 0 and change.direction == "better"
    assert (record.word, record.same_data) == ("better", True)
    assert [(shared.role, shared.share) for shared in record.shared] == [("validation", 1.0)]
    assert record.before.samples == record.after.samples == {"validation": len(TOKENS)}


def test_the_order_of_the_texts_does_not_matter() -> None:
    order = np.array([3, 1, 0, 2, 7, 6, 5, 4])
    straight = compared(of_texts(LOSS * 1.2), of_texts(LOSS)).metric
    turned = compared(of_texts(LOSS * 1.2), of_texts(LOSS[order], order.tolist(), TOKENS[order])).metric
    assert straight == turned


def test_texts_of_both_alone_are_paired() -> None:
    record = compared(of_texts(LOSS * 1.2), of_texts(LOSS, [0, 1, 2, 3, 4, 5, 90, 91]))
    assert record.metric is not None and record.metric.paired and record.metric.samples == 6
    assert not record.same_data and [shared.share for shared in record.shared] == [0.6]


def test_one_text_alone_decides_nothing() -> None:
    one = TOKENS[:1]
    record = compared(of_texts(LOSS[:1] * 1.2, tokens=one), of_texts(LOSS[:1], tokens=one))
    assert record.metric is None and record.word == "undecided"


def test_other_texts_compare_the_drops_of_one_float_model() -> None:
    others = [100 + k for k in range(len(TOKENS))]
    found = [
        compared(of_texts(LOSS * 1.2, float_sha256=own), of_texts(LOSS, others, float_sha256=own)).metric
        for own in ("f" * 64, None)
    ]
    before, now = (math.exp(loss.sum() / TOKENS.sum()) for loss in (LOSS * 1.2, LOSS))
    assert found[0] is not None and not found[0].paired and found[0].gain == pytest.approx(before - now)
    assert found[1] is None


def test_a_case_that_does_not_tell_its_texts_is_not_paired() -> None:
    known = {"float_sha256": None}
    older = of_texts(LOSS * 1.2, **known)
    blank = older.case.record.model.language.model_copy(
        update={"text_hashes": (), "surprise_by_text": (), "tokens_by_text": ()}
    )
    model = older.case.record.model.model_copy(update={"language": blank})
    older.case.record = older.case.record.model_copy(update={"model": model})
    record = compared(older, of_texts(LOSS, **known))
    assert record.metric is None and not record.same_data


def test_divergence_and_same_token_stand_beside_perplexity_and_texts_are_no_samples() -> None:
    document = compare_document(compared(of_texts(LOSS * 1.2), of_texts(LOSS)))
    rows = {label: tuple(values) for label, *values in shown(tables_of(document.sections[0].blocks)[0])}
    nats = [f"{loss.sum() / TOKENS.sum() / 100:.3g} nats" for loss in (LOSS * 1.2, LOSS)]
    assert rows["KL divergence per token"] == (*nats, "")
    assert rows["same token first"][:2] == ("90.00 %", "90.00 %")
    assert rows["texts"] == ("8 texts", "8 texts", "the same texts")
    assert not any("sample" in text for row in rows.values() for text in row)
    other = compare_document(compared(of_texts(LOSS * 1.2), of_texts(LOSS, [0, 1, 2, 3, 4, 5, 90, 91])))
    assert any("of the texts are in both cases" in text for text in other.notices)
    assert not any("sample" in text for text in other.notices)


def test_perplexity_that_falls_is_better_and_one_that_rises_worse_by_as_much() -> None:
    """A sign would be read the wrong way: of perplexity less is better."""
    better, worse = (compared(of_texts(LOSS * a), of_texts(LOSS * b)).metric for a, b in ((1.2, 1.0), (1.0, 1.2)))
    assert better is not None and worse is not None
    told = [metric_gain(better), metric_gain(worse)]
    assert told[0].startswith(f"better by {better.gain:.4g} (") and told[1].startswith(f"worse by {better.gain:.4g} (")
    assert told[1].partition(" ")[2] == told[0].partition(" ")[2] and "-" not in told[1]
