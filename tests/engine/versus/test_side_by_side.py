"""Two cases side by side: the answer, the causes, the layers, and what was changed."""

import json
from pathlib import Path
from typing import Any

import pytest
from builders.comparisons import BASE, compared, facts, judged, layer, pair, table

from quantmedic.engine.rules.conditions import All, Condition
from quantmedic.engine.versus.cause_changes import CauseChange, FactChange
from quantmedic.engine.versus.side_by_side import ComparisonReport
from quantmedic.reports.block_markdown import document_markdown
from quantmedic.reports.sections.comparison import compare_document

OPPOSITE = {"healed": "broken", "broken": "healed", "better": "worse", "worse": "better"}
FATES = {"healed": "new", "new": "healed", "better": "worse", "worse": "better"}


def causes(record: ComparisonReport) -> dict[str, CauseChange]:
    return {cause.cause: cause for cause in record.causes}


def fates(before: list[Any], after: list[Any], **options: Any) -> dict[str, CauseChange]:
    return causes(compared(judged(facts(before, **options)), judged(facts(after, **options))))


@pytest.fixture(scope="module")
def record() -> ComparisonReport:
    return compared(*pair())


def test_the_same_case_twice_is_unchanged() -> None:
    one, _ = pair()
    record = compared(one, one)
    assert record.word == "unchanged" and record.measured == "same"
    assert {cause.status for cause in record.causes} == {"unchanged"}
    assert {s.status for cause in record.causes for s in cause.subjects} == {"unchanged"}
    assert not any(layer.gain_db for layer in record.layers)
    assert (record.changed, record.settings, record.options, record.thresholds, record.tried) == ((), (), (), (), ())
    assert record.same_float is record.same_quantized is record.same_data is True


def test_causes_heal_break_and_change_by_layer(record: ComparisonReport) -> None:
    found = causes(record)
    assert {name: cause.status for name, cause in found.items()} == {
        "noisy-tensors": "new",
        "weight-spread": "mixed",
        "few-samples": "healed",
    }
    assert [cause.cause for cause in record.causes] == ["noisy-tensors", "weight-spread", "few-samples"]
    spread = found["weight-spread"]
    assert (spread.fact, spread.before, spread.after, spread.threshold) == ("weight.channel_range_ratio", 64, 90, 16)
    assert [(s.subject, s.status, s.before, s.after) for s in spread.subjects] == [
        ("block2/conv", "worse", 32, 90),
        ("block1/conv", "healed", 64, 3),
    ]
    assert (spread.found_before, spread.found_after) == (2, 1)
    samples = found["few-samples"]
    assert (samples.fact, samples.before, samples.after) == ("range_growth", 0.3, 0.01)
    assert samples.severity_before == "medium" and samples.severity_after is None


def test_ten_percent_of_the_smaller_value_and_half_a_decibel_count() -> None:
    for before, after, status in [
        (20, 21.9, "unchanged"),
        (20, 22.1, "worse"),
        (22.1, 20, "better"),
        (20, 20, "unchanged"),
        (8, 20, "new"),
    ]:
        assert fates([layer("a", ratio=before)], [layer("a", ratio=after)])["weight-spread"].status == status
    for before, after, status in [(15, 14.6, "unchanged"), (15, 14.4, "worse"), (14, 15, "better"), (15, 30, "healed")]:
        assert fates([layer("a", rounding=before)], [layer("a", rounding=after)])["noisy-tensors"].status == status


def test_what_could_not_be_judged_has_not_healed() -> None:
    found = fates([layer("a", ratio=64)], [layer("a", ratio=None)])["weight-spread"]
    assert found.status == "not-judged" and found.missing == ("weight.channel_range_ratio",)
    assert (found.before, found.after) == (64, None)
    back = fates([layer("a", ratio=None)], [layer("a", ratio=64)])["weight-spread"]
    assert back.status == "not-judged"


def test_a_cause_on_a_layer_that_is_gone_has_not_healed() -> None:
    found = fates([layer("a"), layer("b", ratio=64, op_type="Gemm")], [layer("a")])["weight-spread"]
    assert found.status == "gone"


def test_a_cause_follows_a_layer_to_its_new_name() -> None:
    before = [layer("in"), layer("conv_1", ratio=64), layer("out")]
    after = [layer("in"), layer("conv_9", ratio=20), layer("out")]
    found = fates(before, after)["weight-spread"]
    (subject,) = found.subjects
    assert (found.status, subject.subject, subject.before_name) == ("better", "conv_9", "conv_1")
    record = compared(judged(facts(before)), judged(facts([*after[:1], layer("conv_9", bits=4), *after[2:]])))
    assert (record.matched.by_name, record.matched.by_position) == (2, 1)
    assert [(c.setting, c.examples[0].subject) for c in record.changed] == [("bits", "conv_9_out")]


def test_a_cause_that_another_one_explains_is_not_new() -> None:
    """Findings that were absorbed before stand alone once that cause is gone."""
    before, after = judged(facts([layer("a", ratio=64, rounding=10)])), judged(facts([layer("a", rounding=10)]))
    lead, other = before.diagnosis.causes
    absorbed = {"rule": "A001", "name": "noisy-tensors", "subject": "a", "message": "bad"}
    lead = type(lead).model_validate({**lead.model_dump(), "absorbs": [absorbed]})
    diagnosis = before.diagnosis.model_copy(update={"causes": (lead,)})
    record = compared(type(before)(before.case, before.facts, diagnosis), after)
    found = causes(record)["noisy-tensors"]
    assert other.cause == "noisy-tensors"
    assert (found.status, found.explained_by, found.severity_before) == ("explained", "weight-spread", None)
    assert causes(record)["weight-spread"].status == "healed"


def test_swapped_cases_give_the_opposite(record: ComparisonReport) -> None:
    one, other = pair()
    back = compared(other, one)
    assert back.word == OPPOSITE[record.word]
    assert {c.cause: c.status for c in back.causes} == {c.cause: FATES.get(c.status, c.status) for c in record.causes}
    assert [layer.gain_db for layer in back.layers] == [
        -layer.gain_db if layer.gain_db else layer.gain_db for layer in record.layers
    ]
    assert back.metric is not None and record.metric is not None
    assert (back.metric.gain, back.metric.low, back.metric.high) == (
        pytest.approx(-record.metric.gain),
        pytest.approx(-record.metric.high),
        pytest.approx(-record.metric.low),
    )


def test_layers_settings_and_sizes(record: ComparisonReport) -> None:
    by_name = {row.name: row for row in record.layers}
    assert (record.matched.by_name, record.matched.by_position, record.dataset) == (11, 1, "validation")
    assert by_name["new/name"].before_name == "old/name" and by_name["new/name"].matched == "position"
    noisy = by_name["block3/conv"]
    assert (noisy.gain_db, noisy.weight_bits_before, noisy.weight_bits_after) == (-12.0, 8, 4)
    assert (noisy.degraded_before, noisy.degraded_after) == (False, True)
    assert {(c.setting, c.of, c.count) for c in record.changed} >= {
        ("weights", "layer", 1),
        ("weight granularity", "layer", 1),
    }
    assert [(s.fact, s.before, s.after) for s in record.settings] == [("format", "QDQ", "QOperator")]
    assert [(o.subject, o.before, o.after) for o in record.options] == [("mode", "exact", "fast")]
    assert {c.fact: (c.before, c.after) for c in record.costs} == {
        "bytes_float": (400_000, 400_000),
        "bytes_quantized": (101_000, 90_500),
    }


def word(before: Any, after: Any) -> str:
    there, back = compared(before, after), compared(after, before)
    assert back.word == OPPOSITE.get(there.word, there.word)
    return there.word


def test_the_word_of_the_whole() -> None:
    bad, good = facts([layer("a", 8.0, 64)]), facts([layer("a", 30.0)])
    assert word(judged(bad), judged(good)) == "healed"
    assert word(judged(bad), judged(facts([layer("a", 12.0, 64)]))) == "better"
    assert word(judged(bad), judged(facts([layer("a", 8.4, 60)]))) == "unchanged"
    elsewhere = {"validation": table(first=5000)}
    assert word(judged(bad), judged(good, elsewhere)) == "undecided", "other samples without labels"
    nan = facts([layer("a", 8.0)], nonfinite_output="float")
    assert word(judged(bad), judged(nan)) == "not-comparable"


def test_a_proven_metric_and_a_noisier_output_are_mixed() -> None:
    before = judged(facts([layer("a", 15.0)]), {"validation": table(200)})
    after = judged(facts([layer("a", 12.0)]), {"validation": table(300)})
    assert word(before, after) == "mixed"


def test_checkpoints_are_compared_by_their_causes_and_weights() -> None:
    def weights(ratio: float, sqnr: float) -> Any:
        found = facts([layer("w", None, ratio, weight_sqnr=sqnr), layer("v", None)], framework="safetensors")
        return judged(found, {})

    assert word(weights(64, 10.0), weights(2, 30.0)) == "healed"
    assert word(weights(64, 10.0), weights(30, 20.0)) == "better"
    record = compared(weights(64, 10.0), weights(64, 10.0))
    assert record.word == "unchanged" and record.dataset is None
    assert record.layers[0].weight_gain_db == 0.0 and record.layers[0].gain_db is None


def test_another_float_model_is_compared_by_names() -> None:
    before, after = judged(facts([layer("a", 8.0, 64)])), judged(facts([layer("a")]), run={"float_sha256": "0" * 64})
    record = compared(before, after)
    assert record.same_float is False and record.matched.by_name == 1
    assert record.word == "healed" and record.tried == ()
    unknown = compared(before, judged(facts([layer("a")]), run={"float_sha256": None}))
    assert unknown.same_float is None


def test_networks_with_nothing_in_common() -> None:
    record = compared(
        judged(facts([layer("a")])), judged(facts([layer("b", op_type="Gemm")]), {"validation": table(first=900)})
    )
    assert record.word == "undecided" and record.layers == ()
    assert (record.matched.only_before, record.matched.only_after) == (("a",), ("b",))


def test_the_record_is_json_and_comes_back(record: ComparisonReport, tmp_path: Path) -> None:
    text = record.model_dump_json()
    assert ComparisonReport.model_validate_json(text) == record
    assert json.loads(text)["word"] == record.word
    assert BASE.threshold("previous_effect_db") == 1.0


def test_what_healed_beyond_its_threshold_tells_the_fact_that_decided_it() -> None:
    """The headline fact is over its threshold in both; that the network is harmed no longer holds."""
    rule = next(rule for rule in BASE.rules if rule.cause == "weight-spread")
    harmed = Condition.model_validate({"fact": "model.harmed", "is": True})
    both = rule.model_copy(update={"when": All.model_validate({"all": [rule.when, harmed]})})
    base = BASE.model_copy(update={"rules": tuple(both if own is rule else own for own in BASE.rules)})
    before, after = (judged(facts([layer("a", ratio=64.0)], harmed=state), base=base) for state in (True, False))
    change = causes(compared(before, after, base))["weight-spread"]
    assert change.status == "healed"
    assert [(own.fact, own.before, own.after) for own in change.turned] == [("model.harmed", True, False)]
    text = document_markdown(compare_document(compared(before, after, base)))
    assert "weight-spread: another condition of its rule no longer holds: model.harmed yes → no" in text
    assert causes(compared(after, before, base))["weight-spread"].turned == (
        FactChange(fact="model.harmed", before=False, after=True),
    )
