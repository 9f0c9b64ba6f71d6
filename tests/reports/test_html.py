"""The HTML report."""

import json
import re
from collections.abc import Mapping

import pytest
from builders.gates import regression
from builders.html_pages import Page

from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.context import build_context
from quantmedic.reports.machines.json import render_json
from quantmedic.reports.page.html import LOADER, SCRIPTS, THEME, compress, program_of, render_index


def gated(page: str, request: pytest.FixtureRequest) -> Diagnosis:
    """A diagnosis by the name of its fixture, or such a one with a gate's verdict: ``proven+gate``."""
    name, _, gate = page.partition("+")
    found = request.getfixturevalue(name)
    attacked = request.getfixturevalue("hostile_gate") if name.startswith("hostile") else regression
    return attacked(found) if gate else found


@pytest.mark.source("insights-page")
@pytest.mark.thorough
def test_every_page_loads_nothing_and_runs_only_its_own_program(
    subtests: pytest.Subtests, manuals: Mapping[str, str], request: pytest.FixtureRequest
) -> None:
    kinds = ("diagnosis", "proven", "healthy", "hostile", "hostile_proven", "proven+gate", "hostile+gate")
    for name in kinds:
        with subtests.test(name):
            found = gated(name, request)
            page = Page(render_index(build_context(found, manuals), found))
            page.assert_sound()
            policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-"
            assert policy in " ".join(page.values("content"))
            own = r"#.*|manual/[\w/-]+\.html(#[\w-]+)?|prescription\.(py|yaml|json)|https://arxiv\.org/.*"
            assert not [href for href in page.values("href") if not re.fullmatch(own, href)]


def test_every_number_of_the_headline_equals_json(diagnosis: Diagnosis, manuals: Mapping[str, str]) -> None:
    report = json.loads(render_json(diagnosis))
    text = " ".join(Page(render_index(build_context(diagnosis, manuals), diagnosis)).text)
    for key in ("float_value", "quantized_value", "drop", "drop_low", "drop_high"):
        assert f"{100 * report['metrics'][key]:.2f}" in text
    assert f"n = {report['metrics']['samples']}" in text
    assert f"+{report['causes'][0]['measured_gain_db']:.1f} dB" in text
    assert f"{len(report['causes'])} causes" in text
    assert f"{len(report['layers'])} layers" in text


def test_the_page_tells_the_whole_story(diagnosis: Diagnosis, manuals: Mapping[str, str]) -> None:
    text = " ".join(Page(render_index(build_context(diagnosis, manuals), diagnosis)).text)
    for part in (
        "Do this first",
        "Explains 13 findings",
        "per_channel=True",
        "MSE · representative",
        "SQNR · validation",
        "run on the target, or pass --device-outputs FILE",
        "S001 not-quantized-at-all",
        "A per-tensor scale is set by the widest channel",
        "quantize_error_sqnr_db",
        "versions · onnxruntime",
        "2 tensors were not observed",
    ):
        assert part in text, part


def test_the_page_tells_what_was_tried(proven: Diagnosis, manuals: Mapping[str, str]) -> None:
    page = Page(render_index(build_context(proven, manuals), proven))
    text = re.sub(r"\s+", " ", " ".join(page.text))
    for part in (
        "measured +6.90 of 7.76 points, proven on 256 other samples (edited)",
        "measured +12.4 dB (11.8 … 13.0), +6.90 points (5.10 … 8.70), proven on 256 other samples (edited)",
        "not proven: the interval includes zero",
        "not proven it makes the output noisier",
        "These two together remove 98 % of the output noise.",
        "Without weight noise +11.1 dB (10.5 … 11.7), 92 % of the noise",
        "The two shares do not add up",
        "onnxruntime refused the model: <b>|no kernel|</b>",
        "left their integer kernels without being meant to: features.3.conv.0.0, classifier.1",
        "4 remedies in 42 s of 60 s; the loss is explained.",
        "Remedies were fitted on 256 samples of the validation set and judged on 256 others.",
        "recognized by its producer onnx.quantize",
        "Every remedy below is proven on this model.",
    ):
        assert part in text, part
    assert {"prescription", "proof"} <= set(page.values("id"))


def test_without_a_proof_nothing_says_that_there_was_one(diagnosis: Diagnosis, manuals: Mapping[str, str]) -> None:
    page = Page(render_index(build_context(diagnosis, manuals), diagnosis))
    assert "proof" not in page.values("id") and "What was tried" not in " ".join(page.text)


def test_the_page_tells_what_the_gate_rests_on(proven: Diagnosis, manuals: Mapping[str, str]) -> None:
    found = regression(proven)
    html = render_index(build_context(found, manuals), found)
    page = Page(html)
    text = re.sub(r"\s+", " ", " ".join(page.text))
    for part in (
        "gate: REGRESSION",
        "2 of 5 gates failed (accuracy top1, findings), 1 open, 1 not judged. Exit code 1.",
        "✗ fail accuracy top1 7.76 points at most 1.00 points 6.91 … 8.60 (95 %) McNemar p 1e-9, not used 5000",
        "? open agreement 98.80 % at least 99.00 %",
        "– not judged coverage The share of quantized operators is not known",
        "Worse, baseline 22",
        "Exempted swish is fixed in the accelerator, VIS-214 (until 2026-11-30)",
        "! expired 314 days ago",
        "10 known, 1 new, 1 worse, 1 gone. quantmedic check CASE --prune-baseline",
        "W003 features.9.conv",
        "1 of 3 layers is exempted: swish is fixed in the accelerator, VIS-214 (until 2026-11-30).",
    ):
        assert part in text, part
    ids = page.values("id")
    assert ids.index("first") < ids.index("gate") < ids.index("causes")
    assert "<s>" not in html


def test_a_cause_that_is_exempted_as_a_whole_is_struck_through(proven: Diagnosis, manuals: Mapping[str, str]) -> None:
    found = regression(proven)
    assert found.check is not None
    rows = tuple(
        row.model_copy(update={"exemption": 0}) if row.cause == "too-few-samples" else row
        for row in found.check.findings
    )
    free = found.model_copy(update={"check": found.check.model_copy(update={"findings": rows})})
    html = render_index(build_context(free, manuals), free)
    assert re.findall("<s>(.*?)</s>", html) == ["too-few-samples"]
    assert '<p class="exempted">Exempted: swish is fixed in the accelerator' in html


def test_without_a_gate_nothing_says_that_there_was_one(diagnosis: Diagnosis, manuals: Mapping[str, str]) -> None:
    html = render_index(build_context(diagnosis, manuals), diagnosis)
    assert "gate-word" not in html and "exempted" not in html and "#gate" not in html


def test_graphs_are_drawn(diagnosis: Diagnosis, manuals: Mapping[str, str]) -> None:
    page = Page(render_index(build_context(diagnosis, manuals), diagnosis))
    assert page.tags.count("svg") == 1 + 6 + min(len(diagnosis.histograms), 24)


def test_a_page_without_pages_of_the_manual_has_no_dead_links(diagnosis: Diagnosis) -> None:
    page = Page(render_index(build_context(diagnosis, {}), diagnosis))
    assert "manual" not in page.values("id")
    assert not [href for href in page.values("href") if href.startswith("manual/")]


def test_names_stay_text(hostile: Diagnosis, manuals: Mapping[str, str]) -> None:
    html = render_index(build_context(hostile, manuals), hostile)
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", html, re.DOTALL)
    assert html.count("<script") == html.count("</script") == len(scripts) == 3
    assert scripts == [program_of(THEME), compress(program_of(SCRIPTS)), program_of(LOADER)]
    assert "{{7*7}}" in html and "{{ 7" not in html
    assert not [char for char in html if not char.isprintable() and char != "\n"]
    assert len(html) < 400_000
