"""Baselines: what is kept of findings, read back the same, found again and pruned."""

import json
import math
from typing import Any

from builders.comparisons import BASE, facts, layer

from quantmedic.engine.gate.baseline import Baseline, KnownFinding, baseline_of, render_baseline
from quantmedic.engine.gate.verdict import gone_findings
from quantmedic.engine.rules.evaluate import evaluate

LAYERS = [layer("a", ratio=50.0), layer("b", rounding=12.0), layer("c")]


def baseline(layers: list[dict[str, Any]] = LAYERS, growth: float = 0.2) -> Baseline:
    found = facts(layers, growth)
    return baseline_of(found, evaluate(BASE, found))


def test_every_finding_is_kept_with_its_headline() -> None:
    assert baseline().findings == (
        KnownFinding(rule="A001", layer="b", fact="data.rounding.sqnr_db", value=12.0),
        KnownFinding(rule="D001", layer="representative", fact="range_growth", value=0.2),
        KnownFinding(rule="W001", layer="a", fact="weight.channel_range_ratio", value=50.0),
    )


def test_what_is_not_finite_is_kept_without_a_value() -> None:
    (found,) = baseline([layer("a", ratio=math.inf)], growth=0.0).findings
    assert found.value is None


def test_it_is_read_back_the_same_with_one_finding_a_line() -> None:
    for name in ("plain", 'quo"te', "line\nbreak", "</script>", "snow☃man", "bidi\u202e"):
        written = baseline([layer(name, ratio=50.0), layer("b")])
        text = render_baseline(written)
        assert Baseline.model_validate(json.loads(text)) == written
        assert text.isascii()
        assert sum('"W001"' in line for line in text.splitlines()) == 1, name


def test_equal_findings_give_equal_bytes_in_any_order() -> None:
    found = facts(LAYERS, 0.2)
    results = evaluate(BASE, found)
    assert render_baseline(baseline_of(found, results)) == render_baseline(baseline_of(found, results[::-1]))


def test_pruning_removes_what_is_gone_and_nothing_else() -> None:
    now = facts([layer("a", ratio=3.0), layer("b", rounding=None), layer("c", ratio=99.0)], 0.2)
    written = baseline()
    gone, not_judged = gone_findings(written, written.renamer_for(now.layers), evaluate(BASE, now))
    assert [f.layer for f in gone] == ["a"] and [f.layer for f in not_judged] == ["b"]
    assert [f.layer for f in written.without(gone).findings] == ["b", "representative"]
    assert written.without(gone).layers == written.layers


def test_a_rule_that_is_not_in_force_is_not_gone() -> None:
    chosen = BASE.choose(ignore=["W001"])
    now = facts([layer("a", ratio=3.0), layer("b"), layer("c")], 0.2)
    gone, not_judged = gone_findings(baseline(), baseline().renamer_for(now.layers), evaluate(chosen, now))
    assert [f.rule for f in gone] == ["A001"] and [f.rule for f in not_judged] == ["W001"]


def test_operands_follow_their_layer() -> None:
    renamed = baseline([layer("x"), layer("old"), layer("y")]).renamer_for(
        facts([layer("x"), layer("new"), layer("y")]).layers
    )
    assert [renamed(name) for name in ("old", "old[1]", "x", "representative")] == [
        "new",
        "new[1]",
        "x",
        "representative",
    ]
