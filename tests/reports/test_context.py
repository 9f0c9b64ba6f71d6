"""Templates use documented variables only, and the context says what the diagnosis says."""

import dataclasses
import typing
from collections.abc import Callable, Mapping
from html import escape
from importlib.resources import files
from types import UnionType

import jinja2.meta
import pytest
from builders.gates import regression
from builders.tables import column, part_of, shown, tables_of

from quantmedic.engine.case.facts import CaseFacts, DatasetFacts, MetricFacts, RelationFacts
from quantmedic.engine.case.proof import ExecutionRecord
from quantmedic.engine.contract.advised_remedies import Recovery
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.block_markdown import blocks_markdown
from quantmedic.reports.blocks import Panel, Span
from quantmedic.reports.context import ReportContext, build_context
from quantmedic.reports.page.html import render_index
from quantmedic.reports.sections.data_sets import SOUND
from quantmedic.reports.sections.gate import (
    CARE,
    check_of,
    exemption_text,
    others_text,
    split_findings,
    standing_text,
    status_label,
)
from quantmedic.reports.sections.prescription import REQUANTIZED
from quantmedic.reports.sections.tables import LAYERS_SHOWN, RELATIONS
from quantmedic.reports.templating import OTHER_VARIABLES, html_environment
from quantmedic.reports.text import sentence
from quantmedic.reports.write import render_markdown

TEMPLATES = sorted(path.name for path in files("quantmedic.reports").joinpath("templates").iterdir())


def dataclasses_of(cls: type) -> set[type]:
    """A dataclass and all that its fields hold."""
    found = {cls}
    for hint in typing.get_type_hints(cls).values():
        parts = [hint, *typing.get_args(hint)] if typing.get_origin(hint) in (tuple, UnionType) else [hint]
        for part in parts:
            if dataclasses.is_dataclass(part):
                found |= dataclasses_of(part)
    return found


def test_every_field_of_a_context_is_frozen_and_documented(subtests: pytest.Subtests) -> None:
    for cls in sorted(dataclasses_of(ReportContext), key=lambda cls: cls.__name__):
        with subtests.test(cls=cls):
            assert cls.__dataclass_params__.frozen
            hints = typing.get_type_hints(cls, include_extras=True)
            for name in (field.name for field in dataclasses.fields(cls)):
                documented = getattr(hints[name], "__metadata__", ("",))[0]
                assert documented, f"{cls.__name__}.{name}: write Annotated[…, 'what it holds']"


@pytest.mark.thorough
def test_templates_use_documented_variables_only(subtests: pytest.Subtests) -> None:
    for name in TEMPLATES:
        with subtests.test(name=name):
            environment = html_environment()
            source, *_ = environment.loader.get_source(environment, name)
            tree = environment.parse(source)
            used = jinja2.meta.find_undeclared_variables(tree)
            imported = {macro for node in tree.find_all(jinja2.nodes.FromImport) for macro in node.names}
            fields = {field.name for field in dataclasses.fields(ReportContext)}
            unknown = used - fields - set(OTHER_VARIABLES) - imported - set(environment.globals)
            assert not unknown, f"{name}: document {unknown} in ReportContext or OTHER_VARIABLES"


@pytest.mark.thorough
def test_every_variable_of_the_context_is_used() -> None:
    environment, used = html_environment(), set()
    for name in TEMPLATES:
        source, *_ = environment.loader.get_source(environment, name)
        used |= jinja2.meta.find_undeclared_variables(environment.parse(source))
    assert {field.name for field in dataclasses.fields(ReportContext)} <= used


@pytest.mark.source("insights-accuracy")
def test_headline_equals_the_diagnosis(diagnosis: Diagnosis, manuals: Mapping[str, str]) -> None:
    context = build_context(diagnosis, manuals)
    assert context.verdict == "degraded"
    assert (context.drop.float_value, context.drop.quantized_value) == ("71.88 %", "64.12 %")
    assert (context.drop.change, context.drop.interval) == ("7.76 points", "6.91 … 8.60 points")
    assert context.drop_text.startswith("The drop is large, more than 4 points")
    assert context.first.title == "Per-channel weights" and context.first.code == "W001"
    assert context.first.gain.text == "+6.90 of 7.76 points"
    born = next(row for row in diagnosis.layers if row.born)
    assert context.counts[:3] == (
        "53 layers", f"4 degraded, which begins at {born.float_name or born.name} and 3 more", "2 causes",
    )  # fmt: skip


def test_a_healthy_network_needs_nothing(healthy: Diagnosis, manuals: Mapping[str, str]) -> None:
    context = build_context(healthy, manuals)
    assert context.verdict == "healthy"
    assert context.first is None
    assert "No drop is proven" in context.strength_text
    assert context.drop.interval == "-0.21 … 0.46 points"


def test_without_labels_the_drop_is_not_measured(
    judged: Callable[[CaseFacts], Diagnosis], case: Callable[..., CaseFacts]
) -> None:
    context = build_context(judged(case(("a", "b", "c", "d", "e"), roles=("representative",))), {})
    assert context.drop is None and context.drop_text == ""
    assert "not measured" in context.strength_text
    (table,) = tables_of(part_of(context, "layers").blocks)
    assert set(column(table, "accumulated, validation")) == {"-"} != set(column(table, "worst channel"))


def test_a_drop_without_a_cause_leads_to_general_pages(diagnosis: Diagnosis, manuals: Mapping[str, str]) -> None:
    bare = diagnosis.model_copy(
        update={
            "causes": (),
            "advice": ("preprocessing", "no-such-page", "calibration-search"),
            "advice_place": "open",
        }
    )
    context = build_context(bare, manuals)
    assert [page.code for page in context.pages] == ["general/preprocessing", "general/calibration-search"]
    assert context.first.title == "Preprocessing"
    assert "no rule found out why" in context.verdict_text


def test_evidence_shows_the_worst_subjects_and_counts_the_rest(
    judged: Callable[[CaseFacts], Diagnosis], case: Callable[..., CaseFacts]
) -> None:
    card = build_context(judged(case(tuple(f"layer{i}" for i in range(20)))), {}).causes[0]
    worst, others = tables_of(card.blocks)[:2]
    assert len(set(column(worst, "where"))) == 3
    assert len(set(column(others, "where"))) == len(card.layers) - 3
    assert shown(worst)[1][0] == "weight.channel_range_ratio" and shown(worst)[1][2:4] == (">", "16")
    (_, described), (_, silent) = worst.rows[1][0], worst.rows[4][0]
    assert described.text and not silent.text


def test_the_gate_is_none_where_none_was_asked_for(diagnosis: Diagnosis) -> None:
    context = build_context(diagnosis, {})
    assert context.gate is None and not any(card.exempted or card.struck for card in context.causes)


def test_the_gate_says_what_counts_and_what_does_not(diagnosis: Diagnosis) -> None:
    check = check_of(regression(diagnosis))
    assert build_context(regression(diagnosis), {}).gate == Span("REGRESSION", "gate-word gate-degraded", "#gate")
    assert [status_label(gate.status) for gate in check.gates] == ["fail", "pass", "open", "fail", "not judged"]
    counted, others = split_findings(check)
    assert [standing_text(finding, check) for finding in counted] == ["new", "worse, baseline 22"]
    assert [(standing_text(finding, check), bool(exemption_text(finding, check))) for finding in others] == [
        ("exempted", True),
        ("left out by fail_on, new", False),
    ]
    assert others_text(check) == "1 exempted, 1 left out by fail_on"
    assert [use.status in CARE for use in check.exemptions] == [True, True, True]


def test_a_finding_exempted_on_one_layer_of_two_rules_is_not_exempted(diagnosis: Diagnosis) -> None:
    found = regression(diagnosis)
    assert found.check is not None
    counts = found.check.findings[2].model_copy(update={"rule": "W002", "exemption": None})
    check = found.check.model_copy(update={"findings": (*found.check.findings, counts)})
    assert build_context(found, {}).causes[0].exempted.startswith("1 of 3 layers is exempted: ")
    assert build_context(found.model_copy(update={"check": check}), {}).causes[0].exempted == ""


def test_explained_findings_are_counted_by_rule(diagnosis: Diagnosis) -> None:
    card = build_context(diagnosis, {}).causes[1]
    assert card.cause == "too-few-samples"
    assert "#### Explains 13 findings: A001 ×13" in blocks_markdown(card.blocks)


def test_snippets_are_grouped_by_toolchain_and_the_model_s_own_comes_first(diagnosis: Diagnosis) -> None:
    (own, _), (other, blocks) = build_context(diagnosis, {}).causes[0].remedies[0].ways.ways
    assert (own, other) == ("ONNX Runtime", "Sony MCT")
    assert '["features.3.conv.0.0", "features.4.conv.1.0", "classifier.1"]' in blocks_markdown(blocks)


def test_of_many_layers_the_worst_are_shown(
    judged: Callable[[CaseFacts], Diagnosis], case: Callable[..., CaseFacts]
) -> None:
    part = part_of(build_context(judged(case(tuple(f"layer{i}" for i in range(300)))), {}), "layers")
    (table,) = tables_of(part.blocks)
    assert len(table.rows) == LAYERS_SHOWN
    assert f"The {LAYERS_SHOWN} worst of 300 layers" in blocks_markdown(part.blocks)
    levels = [float(text) for text in column(table, "accumulated, validation")]
    assert levels == sorted(levels)


def test_data_sets_stand_side_by_side(diagnosis: Diagnosis) -> None:
    part = part_of(build_context(diagnosis, {}), "data")
    table = tables_of(part.blocks)[0]
    assert [head.head for head in table.columns] == ["fact", "representative", "validation"]
    rows = {label: values for label, *values in shown(table)}
    assert rows["samples"] == ["32", "5000"]
    assert rows["labelled"] == ["no", "yes"]
    text = blocks_markdown(part.blocks)
    assert "effective rank" not in rows and "effective rank" not in text, "what was not measured is for the page"
    assert "Representative against validation inputs: both sets were prepared alike." in text


def test_a_set_that_mends_the_model_is_not_called_wrong(subtests: pytest.Subtests, diagnosis: Diagnosis) -> None:
    """Of a model that was calibrated on other data, the set that was given is the right one."""
    for remedy, sound in [("calibrate-again", True), ("recalibrate-on-proper-data", False)]:
        with subtests.test(remedy=remedy, sound=sound):
            cause = diagnosis.causes[0]
            advice = cause.remedies[0].model_copy(update={"id": remedy})
            own = {"subjects": ("representative",), "layers": (), "remedies": (advice,)}
            found = diagnosis.model_copy(update={"causes": (cause.model_copy(update=own),)})
            context = build_context(found, {})
            panel = next(block for block in part_of(context, "data").blocks if isinstance(block, Panel))
            said = blocks_markdown(panel.blocks)
            assert panel.label == "representative set" and "\n- (" in said and (SOUND in said) == sound
            for text in (render_index(context, found), render_markdown(context)):
                assert ("of the model, not of this set" in text) == sound


def test_every_relation_has_a_sentence() -> None:
    known = typing.get_args(typing.get_args(RelationFacts.model_fields["kind"].annotation)[0])
    assert set(RELATIONS) == set(known)


def test_a_missing_data_set_reads_not_measured(diagnosis: Diagnosis) -> None:
    only = diagnosis.model_copy(update={"datasets": (DatasetFacts(role="representative", samples=3),)})
    part = part_of(build_context(only, {}), "data")
    assert shown(tables_of(part.blocks)[0]) == [("samples", "3", "-")]
    assert "validation inputs: not measured." in blocks_markdown(part.blocks)


def test_a_proven_remedy_for_no_cause_comes_first(proven: Diagnosis) -> None:
    """The chain begins with what no cause names: all of these together recover less."""
    row = proven.proof.chain[0].model_copy(update={"causes": (), "remedy": "2 of 49 layers in float: a/Conv, <b>"})
    found = proven.proof.model_copy(update={"chain": (row,)})
    first = build_context(proven.model_copy(update={"proof": found}), {}).first
    assert first.title == "2 of 49 layers in float"
    assert first.detail == "no cause by itself explains the loss; the layers: a/Conv, <b>"
    assert (first.gain.kind, first.gain.look, first.code) == ("measured", "measured", "")
    assert "proven on" in first.gain.judged


def test_the_first_step_says_why_on_the_first_screen(diagnosis: Diagnosis) -> None:
    """Who reads the first card alone has to learn what is wrong, not only what to do."""
    context = build_context(diagnosis, {})
    card = next(card for card in context.causes if card.code == context.first.code)
    assert context.first.why == card.message and context.first.found == card.found
    head = render_index(context, diagnosis).partition("<main>")[0]
    assert f"Why: {escape(sentence(card.message))}" in head
    assert card.message in render_markdown(context).partition("## ")[0]


def test_quantizing_again_with_nothing_changed_names_the_cause_first(proven: Diagnosis) -> None:
    """What such a run means stands with the prescription; beside a named cause it would be a riddle."""
    given, cause = proven.prescription, proven.causes[0]
    assert given is not None and proven.proof is not None
    trial = proven.proof.chain[0].trial
    run = {"toolchain": "onnxruntime", "version": "1", "reads": "r", "choices": (), "titles": ("again",)}
    again = ExecutionRecord.model_construct(trial=trial, **run)
    proof = proven.proof.model_copy(update={"executions": (again,), "baseline": 0})
    step = given.steps[0].model_copy(update={"causes": (cause.cause,)})
    changes = {"executed": again, "grade": "executed", "steps": (step,)}
    found = proven.model_copy(update={"proof": proof, "prescription": given.model_copy(update=changes)})
    first = build_context(found, {}).first
    assert first.code == cause.rules[0] and first.why and REQUANTIZED not in first.detail
    nameless = step.model_copy(update={"causes": ()})
    changes = {**changes, "steps": (nameless,)}
    found = proven.model_copy(update={"proof": proof, "prescription": given.model_copy(update=changes)})
    assert build_context(found, {}).first.detail == REQUANTIZED


def test_a_metric_that_nobody_named_is_said_with_its_reason(diagnosis: Diagnosis) -> None:
    assert "no metric was named" not in build_context(diagnosis, {}).drop_text
    unnamed = diagnosis.model_copy(update={"run": {**diagnosis.run, "metric_by_default": True}})
    said = "Top-1 was taken because the labels are classes and no metric was named; --metric names another."
    assert build_context(unnamed, {}).drop_text.endswith(said)


def test_how_outputs_are_read_is_said_where_it_was_found_out(diagnosis: Diagnosis) -> None:
    assert build_context(diagnosis, {}).reading_text == ""
    run = {**diagnosis.run, "metric_by_default": True, "metric_reading": "boxes cxcywh in pixels, 3 classes"}
    metrics = diagnosis.metrics.model_copy(update={"name": "map"})
    context = build_context(diagnosis.model_copy(update={"run": run, "metrics": metrics}), {})
    assert context.reading_text.startswith("outputs read as: boxes cxcywh in pixels, 3 classes (--metric-option")
    assert "mAP was taken because the labels are boxes and no metric was named" in context.drop_text


def test_labels_that_no_metric_reads_are_said_in_place_of_the_drop(diagnosis: Diagnosis) -> None:
    why = "the labels were not used as boxes: labels reach 80, the input is 64 wide; …"
    strength = diagnosis.evidence_strength.model_copy(update={"statement": "not-measured", "low": None, "high": None})
    changes = {
        "metrics": MetricFacts(),
        "warnings": ("another notice", why),
        "evidence_strength": strength,
        "run": {**diagnosis.run, "metric_reading": None},
    }
    context = build_context(diagnosis.model_copy(update=changes), {})
    assert context.reading_text == why
    assert context.strength_text == "The drop in accuracy was not measured: no metric read the labels."


def test_a_diagnosis_is_shown_in_one_line(diagnosis: Diagnosis) -> None:
    shown = repr(diagnosis)
    assert shown == str(diagnosis) and len(shown) < 200
    assert "degraded" in shown and diagnosis.causes[0].cause in shown


def test_a_remedy_that_gains_nothing_or_anything_does_not_lead(diagnosis: Diagnosis) -> None:
    first = build_context(diagnosis, {}).first
    assert first is not None and first.code
    at_most = Recovery(gain_db=-0.1, low_db=-1.5, high_db=1.4, share=-0.01, bound=True)
    anything = Recovery(gain_db=4.1, low_db=-190.0, high_db=198.0, share=0.6, bound=False)
    for nothing in (at_most, anything):
        causes = []
        for cause in diagnosis.causes:
            remedies = tuple(advice.model_copy(update={"predicted": nothing}) for advice in cause.remedies)
            causes.append(cause.model_copy(update={"remedies": remedies}))
        hopeless = build_context(diagnosis.model_copy(update={"causes": tuple(causes)}), {}).first
        assert hopeless is None or not hopeless.code


def test_without_a_metric_the_agreement_is_told(diagnosis: Diagnosis) -> None:
    model = diagnosis.model.model_copy(update={"output_agreement": 0.1276, "output_worst_sqnr_db": -2.5})
    metrics = diagnosis.metrics.model_copy(update={"drop": None})
    unlabelled = diagnosis.model_copy(update={"model": model, "metrics": metrics})
    said = "The class is the float model's on 12.76 % of the samples, and the outputs keep -2.5 dB."
    assert said in build_context(unlabelled, {}).drop_text
    assert "The class is" not in build_context(diagnosis, {}).drop_text
