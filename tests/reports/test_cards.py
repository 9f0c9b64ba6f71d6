"""Cards of causes and their remedies, and what to do first."""

import pytest

from quantmedic.engine.contract.advised_remedies import Present
from quantmedic.engine.rules.evaluate import Evidence
from quantmedic.reports.sections.cards import Gain, _present_values, _without_repeats
from quantmedic.reports.sections.first_step import DO_FIRST, FirstStep, _beside_drop, _layers_text


def test_what_a_remedy_finds_is_said_with_what_has_it(subtests: pytest.Subtests) -> None:
    for present, said in [
        ([("executed_as", "float"), ("weight.quantizer.bits", 8)], ["float kernels", "weight 8 bits"]),
        ([("quantizer.bits", 4), ("quantizer.bits", 8)], ["4 bits … 8 bits"]),
        ([("weight.quantizer.granularity", "per_tensor")], ["per_tensor"]),
        ([("bias.max_code", 7)], ["max_code 7 codes"]),
    ]:
        with subtests.test(present=present, said=said):
            rows = [Present(fact=fact, value=value, subjects=("a",)) for fact, value in present]
            assert list(_present_values(rows)) == said


def test_facts_of_several_rules_of_one_cause_stand_once() -> None:
    def row(fact: str, comparison: str = "shown", threshold: object = None, subject: str = "a") -> Evidence:
        return Evidence(fact=fact, value=1, comparison=comparison, threshold=threshold, subject=subject)

    rows = [
        row("similarity"), row("channels"), row("channels", ">", 0), row("similarity"), row("channels", ">", 0),
        row("channels", ">", 5), row("channels", subject="b"),
    ]  # fmt: skip
    found = [(each.subject, each.fact, each.comparison, each.threshold) for each in _without_repeats(rows)]
    assert found == [
        ("a", "similarity", "shown", None),
        ("a", "channels", ">", 0),
        ("a", "channels", ">", 5),
        ("b", "channels", "shown", None),
    ]


BLOCK = tuple(f"model.layers.2.{name}" for name in ("mlp.down_proj", "mlp.up_proj", "self_attn.q_proj"))


def test_layers_of_one_part_are_told_by_that_part(subtests: pytest.Subtests) -> None:
    for layers, told in [
        (BLOCK, "3 layers of model.layers.2"),
        (BLOCK[:1], BLOCK[0]),
        (("/features/1/Conv", "/features/1/conv/Conv"), "2 layers of /features/1"),
        (("model.layers.12.q", "model.layers.1.q"), "model.layers.12.q, model.layers.1.q"),
        (("stem", "head", "neck", "tail", "end"), "stem, head, neck and 2 more"),
        (("conv1", "conv10"), "conv1, conv10"),
        ((), ""),
    ]:
        with subtests.test(layers=layers, told=told):
            assert _layers_text(layers) == told


def test_the_title_stands_with_the_layers() -> None:
    step = FirstStep("Keep named layers in float", "", None, "W030", DO_FIRST, where=_layers_text(BLOCK))
    assert step.named == "Keep named layers in float: 3 layers of model.layers.2"
    assert FirstStep("Per-channel weights", "", None, "W001", DO_FIRST).named == "Per-channel weights"


def test_a_gain_stands_beside_the_drop() -> None:
    gain = Gain("measured", "+79.88 points", "proven on all 512 samples")
    whole = _beside_drop(gain, 0.7988, 0.7949, "top1").said
    assert whole == "recovers the whole drop of 79.49 points (measured +79.88), proven on all 512 samples"
    assert _beside_drop(gain, 0.5, 0.7949, "top1").said.startswith("measured +50.00 of 79.49 points, proven")
