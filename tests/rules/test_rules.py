"""The rule base as a whole: every rule, remedy, threshold and hint, checked against its examples and its page."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from quantmedic.api.rulebase import load_manuals
from quantmedic.engine.case.facts import SCOPES, CaseFacts, fact_paths
from quantmedic.engine.diagnosis.advice import advise
from quantmedic.engine.diagnosis.snippets import render_snippet, render_snippets
from quantmedic.engine.rules.conditions import All, Any_, Condition
from quantmedic.engine.rules.evaluate import Finding, Unknown, evaluate, render_message
from quantmedic.engine.rules.examples import Example, example_case, explained_rules, rule_examples
from quantmedic.engine.rules.lint import lint
from quantmedic.engine.rules.load import load_rules
from quantmedic.engine.rules.remedies import EACH_FIELDS, NAME_FIELDS, Remedy
from quantmedic.engine.rules.remedy_kinds import REMEDY_KINDS
from quantmedic.engine.rules.rule import GLOBAL_SCOPES, Rule, message_fields
from quantmedic.engine.rules.rulebase import asks_for_data

RULES_FOLDER = Path(str(files("quantmedic.rules")))
MANUALS = Path(str(files("quantmedic.manuals")))
BASE = load_rules([RULES_FOLDER])
RULES = {rule.id: rule for rule in BASE.rules}
ROOT = Path(__file__).parents[2]
HEADINGS = ["Detection", "Fix", "References"]
LINK = re.compile(r"\]\(([^)#:]+\.md)\)")
NUMERIC = ("gt", "ge", "lt", "le")
GENERAL = {path.stem for path in (MANUALS / "general").glob("*.md")}
TOOLCHAINS = {toolchain.name for toolchain in BASE.toolchains}
#: A layer and its output with all names that a snippet can ask for.
NAMED_OUTPUT = {
    "fill": -1e9,
    "unmasked_end": -28.0,
    "name": "conv_out",
    "float_name": "conv_out",
    "producer_name": "conv",
    "readers": ["fc"],
    "negative_ratio": 0.1,
    "data": {"values": {"min": -0.1, "max": 1.0}, "predicted_best_low": -0.1, "predicted_best_high": 0.9},
}
NAMED_CASE = CaseFacts.model_validate(
    {
        "model": {
            "first_nonfinite_layer": "conv",
            "opset": 17,
            "language": {
                "cache_scales": {"attn.k_scale": 0.01},
                "cache_scales_off": 1,
                "activation_block": {"input_layer": "blocks.0.down_proj"},
                "input_scales": {"mlp.down_proj.input_scale": 0.01},
                "input_scales_off": 1,
            },
        },
        "layers": [
            {
                "name": "conv",
                "float_name": "conv",
                "decoder_layers": 1,
                "quantized_name": "conv_bn",
                "float_nodes": ["conv", "relu"],
                "op_type": "Conv",
                "weight": {"name": "conv.weight"},
                "output": NAMED_OUTPUT,
                "feeders": [],
            }
        ],
        "tensors": [NAMED_OUTPUT],
    }
)


PAGES = load_manuals(BASE)


def page(rule: Rule) -> str:
    """The page that explains the rule; rules of one cause may share it."""
    return PAGES[rule.id]


def examples(rule: Rule, kind: str) -> list[Example]:
    """Examples of a rule of one kind."""
    return [example for example in rule_examples(rule) if example.kind == kind]


def judge(rule: Rule, facts: Mapping[str, Any]) -> Any:
    return evaluate(BASE.model_copy(update={"rules": (rule,)}), example_case(rule, facts))[0]


def without(facts: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A copy of nested facts that lacks one dotted path."""
    head, _, rest = path.partition(".")
    if not rest:
        return {key: value for key, value in facts.items() if key != head}
    return {**facts, head: without(facts.get(head) or {}, rest)}


def positive(node: Any) -> list[Condition]:
    """Conditions that stand under no negation."""
    if isinstance(node, Condition):
        return [node]
    parts = node.all if isinstance(node, All) else node.any if isinstance(node, Any_) else ()
    return [condition for part in parts for condition in positive(part)]


def _in_alternatives(node: Any) -> set[str]:
    """Facts that stand under ``any``."""
    if isinstance(node, Any_):
        return {condition.fact for condition in positive(node)}
    return {fact for part in node.all for fact in _in_alternatives(part)} if isinstance(node, All) else set()


def of_each(found: Callable[[Any], Iterable[object]], of: Iterable[Any] = BASE.rules) -> dict[str, list[object]]:
    """What was found wrong with each rule or remedy; those with nothing wrong are left out."""
    return {each.id: wrong for each in of if (wrong := [*found(each)])}


def test_every_file_is_a_rule_of_its_family_with_a_name_of_its_own() -> None:
    paths = sorted(RULES_FOLDER.rglob("[A-Z][0-9][0-9][0-9].yaml"))
    assert [(path.stem, path.parent.name) for path in paths] == sorted((r.id, r.family) for r in BASE.rules)
    assert len({rule.name for rule in BASE.rules}) == len(BASE.rules)


@pytest.mark.thorough
def test_rules_pass_their_own_lint() -> None:
    assert not lint(BASE, {rule.id: page(rule) for rule in BASE.rules})


def test_own_evidence_of_harm_is_stated_only_where_it_is_needed() -> None:
    """Without its ``harm``, the rule would be refused; one about the device is right beside clean outputs here."""
    stated = (rule for rule in BASE.rules if rule.harm is not None and rule.scope != "model")
    silent = tuple(rule.model_copy(update={"harm": None}) for rule in stated)
    remarks = lint(BASE.model_copy(update={"rules": silent}), {rule.id: page(rule) for rule in silent})
    assert silent and [remark.rule for remark in remarks] == [rule.id for rule in silent]
    assert all("without asking for harm" in remark.message for remark in remarks)


def test_rule_and_cause_have_one_name_or_the_page_names_both() -> None:
    def wrong(rule: Rule) -> Iterator[str]:
        if rule.name == rule.cause:
            return
        if not [other for other in BASE.rules if other.cause == rule.cause and other is not rule]:
            yield "a cause of one rule is called what its rule is called"
        yield from (name for name in (rule.name, rule.cause) if name not in page(rule))

    assert not of_each(wrong)


def test_a_page_explains_the_rules_of_its_title() -> None:
    """Its first rule names the file. Where there are several, all are of one cause."""
    for path in sorted(MANUALS.glob("[A-Z][0-9]*.md")):
        text = path.read_text(encoding="utf-8")
        explained = [RULES[code] for code in explained_rules(text)]
        assert explained and explained[0].id == path.stem, path
        assert len({rule.cause for rule in explained}) == 1, path


def test_message_states_the_problem() -> None:
    def wrong(rule: Rule) -> Iterator[str]:
        if rule.message.endswith(".") or not (rule.message[0].islower() or rule.message[0] == "{"):
            yield "a message is no sentence"
        if re.search(r"\b(use|should|try|please|enable|disable)\b", rule.message):
            yield "a message holds no advice"
        told = render_message(rule.message, lambda path: None)
        if "not measured" not in told and message_fields(re.sub(r" \([^()]*\)", "", rule.message.split("; ")[0])):
            yield "what was not measured is not said"

    assert not of_each(wrong)


def test_repair_of_data_set_rules_is_recalibration() -> None:
    repairs = {rule.id: {BASE.remedies[name].simulate for name in rule.remedies} for rule in BASE.rules}
    assert not [rule.id for rule in BASE.rules if rule.family == "data" and "recalibrate" not in repairs[rule.id]]


def test_page_has_title_headings_and_both_verdicts() -> None:
    def wrong(rule: Rule) -> Iterator[object]:
        text = page(rule)
        explained = explained_rules(text)
        whole = {other.id for other in BASE.rules if other.cause == rule.cause} == {*explained}
        if not text.startswith(f"# {rule.cause if whole else RULES[explained[0]].name} ("):
            yield "the title"
        if (headings := re.findall(r"^## (.+)$", text, re.M)) != HEADINGS:
            yield headings
        if not re.search(r"^When not to:", text, re.M):
            yield "say when not to follow it"
        asked = {condition.threshold for condition in positive(rule.when)} - {None}
        if unnamed := {name for name in asked if f"`{name}`" not in text}:
            yield f"explain under 'Detection': {unnamed}"

    assert not of_each(wrong)


@pytest.mark.thorough
def test_rule_fires_on_its_examples_and_not_without_what_they_rest_on() -> None:
    """Without a number that it rests on, a rule is not judged.

    It may also pass where it asks ``known`` or ``if_unknown: false``, and still fire where an alternative holds.
    """

    def wrong(rule: Rule) -> Iterator[object]:
        required = {condition.fact for condition in positive(rule.when)}
        asked = {c.fact for c in rule.conditions() if c.op == "known" or c.if_unknown is False}
        spared = _in_alternatives(rule.when)
        for example in examples(rule, "fires"):
            result = judge(rule, example.facts)
            if result.verdict != "fired":
                yield example.number, result.verdict
                continue
            (finding,) = result.findings
            if not finding.message or "{" in finding.message:
                yield example.number, finding.message
            for fact in {e.fact for e in finding.evidence if e.comparison in NUMERIC and e.fact in required}:
                rest = judge(rule, without(example.facts, fact))
                allowed = {"not-judged", *(("passed", "not-applicable") if fact in asked else ())}
                allowed |= {"fired"} if fact in spared else set()
                named = fact in asked or all(fact in unknown.missing for unknown in rest.unknown)
                if rest.verdict not in allowed or not named:
                    yield example.number, f"without {fact}", rest.verdict, rest.unknown

    assert not of_each(wrong)


def test_silent_examples_are_silent_by_decision() -> None:
    def wrong(rule: Rule) -> Iterator[object]:
        for example in examples(rule, "silent"):
            result = judge(rule, example.facts)
            if result.verdict not in ("passed", "not-applicable"):
                yield example.number, result.verdict, [unknown.missing for unknown in result.unknown]

    assert not of_each(wrong)


def test_nothing_is_found_on_an_empty_case() -> None:
    assert not of_each(lambda rule: judge(rule, {}).findings)


def test_every_fact_that_may_be_missing_has_a_hint() -> None:
    """One of its own: the entry for all facts is for rules of users. It stands in rules/hints.yaml."""
    assert not of_each(lambda rule: {c.fact for c in rule.conditions() if BASE.hint(c.fact) == BASE.hints[""]})


def test_hints_are_of_use() -> None:
    for path in ("representative.x", "validation.x", "relation.x", "model.metric.x", "data.step.x"):
        assert BASE.hint(path)
    known = {prefix for scope in SCOPES for prefix in _prefixes(scope)}
    assert set(BASE.hints) <= known | {""}, f"no fact begins with {set(BASE.hints) - known}"
    assert not BASE.needs_data("is_last"), "what is said of any fact asks for nothing"
    assert all(hint[0].islower() and not hint.endswith(".") for hint in BASE.hints.values())


def test_hints_of_checkpoints_are_of_use() -> None:
    """They name no option that the command lacks, and say nothing of images."""
    of_checkpoints = BASE.with_hints_for("safetensors")
    known = {prefix for scope in SCOPES for prefix in _prefixes(scope)}
    assert set(of_checkpoints.hints) <= known
    options = {word for hint in of_checkpoints.hints.values() for word in hint.split() if word.startswith("--")}
    assert options == {"--tokens"} and of_checkpoints.needs_data("model.harmed")
    assert of_checkpoints.hint("relation.kind") is None and BASE.with_hints_for("onnx") is BASE


def test_every_threshold_has_a_source_and_is_used() -> None:
    asking = (*BASE.rules, *BASE.remedies.values())
    used = {condition.threshold for each in asking for condition in each.conditions() if condition.threshold}
    assert set(BASE.thresholds) - used == _thresholds_in_code() - used
    for threshold in BASE.thresholds.values():
        assert threshold.source and threshold.description and threshold.unit


def test_every_remedy_is_advised_by_a_rule_or_tried_on_the_whole_network() -> None:
    general = {kind.everywhere.remedy for kind in REMEDY_KINDS.values() if kind.everywhere is not None}
    assert set(BASE.remedies) <= {name for rule in BASE.rules for name in rule.remedies} | general


def test_remedy_says_what_it_costs_and_when_it_is_unsafe() -> None:
    def wrong(remedy: Remedy) -> list[str]:
        texts = (remedy.title, remedy.changes, remedy.cost.says, remedy.unsafe)
        return [text for text in texts if not text or text.endswith(".") or "{" in text]

    assert not of_each(wrong, BASE.remedies.values())


def test_snippets_render() -> None:
    """Of a form with steps an excerpt lists its options: without any, and without code, nothing is left to copy."""

    def wrong(remedy: Remedy) -> Iterator[object]:
        fields: dict[str, Any] = dict.fromkeys(NAME_FIELDS, ("/a/Conv", "b"))
        fields |= {
            name: 0.5 if isinstance(given, str) else {"t": (1.0,) * len(given)} for name, given in remedy.values.items()
        }
        for snippet in remedy.snippets:
            code = render_snippet(snippet.code, fields, remedy.id)
            if snippet.toolchain not in TOOLCHAINS or "{{" in code or "{" in (snippet.note or ""):
                yield snippet.toolchain, code, snippet.note
            stepped = all(snippet.forms[form].steps for form in snippet.options)
            if stepped and not any(snippet.options.values()) and not (snippet.code.strip() or snippet.after.strip()):
                yield snippet.toolchain, "say in its code what changes"
            try:
                if snippet.toolchain != "Horizon OpenExplorer":
                    compile(code, remedy.id, "exec")
                    continue
                yaml.safe_load(code)
            except (SyntaxError, yaml.YAMLError) as error:
                yield snippet.toolchain, error
            if snippet.mark != "documentation" or "public documentation" in (snippet.note or ""):
                yield snippet.toolchain, "it was never tried: its mark says so, once"

    assert not of_each(wrong, BASE.remedies.values())


def test_every_remedy_of_a_rule_can_be_advised_for_its_findings() -> None:
    """A finding on each rule's scope names what the snippets of its remedies ask for."""
    views = {"layer": NAMED_CASE.layers[0], "tensor": NAMED_CASE.tensors[0]}
    reasons = ("already", "onnxruntime has no", "its values reach", "weights in float have no scales")

    def wrong(rule: Rule) -> Iterator[object]:
        view = views.get(rule.scope, NAMED_CASE.model)
        finding = Finding(rule, "conv", "conv" if rule.scope not in GLOBAL_SCOPES else None, "", (), view)
        advised, withheld = advise([finding], BASE, NAMED_CASE)
        yield from {advice.id for advice in (*advised, *withheld)} ^ set(rule.remedies)
        yield from (held for held in withheld if not held.because.startswith(reasons))
        for advice in advised:
            remedy = BASE.remedies[advice.id]
            # Of the toolchains of language models none quantizes the ONNX model of the case.
            if bool(advice.snippets) != any(snippet.takes("onnx") for snippet in remedy.snippets):
                yield advice.id, advice.snippets
            codes = render_snippets(advice, [rule.id])
            fields = {*NAME_FIELDS, *EACH_FIELDS, *remedy.values}
            yield from (name for name in fields for code in codes if f"{{{name}}}" in code)

    assert not of_each(wrong)


NEVER_ADVISED = {
    "mixed_precision.distance_weighting": "the module is gone",
    "shift_negative_params_searc": "the name is misspelt, or the option crashes",
    "shift_negative_activation_correction": "is the default already",
    "concat_threshold_update": "raises a branch to the joint threshold",
    '"weights": {{': "raises in Intel Neural Compressor: the key is weight",
    "fast_bias_correction=True": "never reaches the algorithm of Intel Neural Compressor",
    "weight_correction": "never reaches the algorithm of Intel Neural Compressor",
    "256 / scale": "the range of a LiteRT tensor is 255 · scale",
    "CalibrationMethod.Distribution": "is for float8",
    "disable_channel_alignment": "does nothing on ONNX and torch",
    "configuration_overwrite": "is ignored without a resource target",
    "mct.xquant": "is no attribute",
    "input_scaling": "raises in PyTorch",
    "HMSE": "raises outside of GPTQ",
    "enable_activation_quantization=False": "raises",
    "smooth_quant_alpha=": "is deprecated",
}


def test_what_is_known_not_to_work_is_never_advised() -> None:
    codes = [(remedy.id, snippet.code) for remedy in BASE.remedies.values() for snippet in remedy.snippets]
    assert not [(id_, text, why) for text, why in NEVER_ADVISED.items() for id_, code in codes if text in code]


def test_finer_steps_are_not_advised_against_clipping() -> None:
    facts = CaseFacts.model_validate(
        {"tensors": [{"name": "t", "float_name": "t", "data": {"clipping": {"energy_share": 0.9}}}]}
    )
    finding = Finding(
        RULES["A003"].model_copy(update={"remedies": ("activations-16-bit",)}), "t", None, "", (), facts.tensors[0]
    )
    advised, (held,) = advise([finding], BASE, facts)
    assert not advised
    assert held.because == "clipping makes 90 % of its rounding error, which finer steps leave as it is"


def test_general_pages() -> None:
    assert GENERAL
    for stem in GENERAL:
        text = (MANUALS / "general" / f"{stem}.md").read_text(encoding="utf-8")
        assert re.match(r"# \S", text)
        assert "\n## References\n" in text


def test_index_lists_every_page() -> None:
    text = load_manuals(BASE)["index"]
    for rule in BASE.rules:
        assert f"[{rule.id}]({rule.id}.md) {rule.name}" in text
    for stem in GENERAL:
        assert f"(general/{stem}.md)" in text


def test_links_and_line_length() -> None:
    wrong = []
    for path in MANUALS.rglob("*.md"):
        text = path.read_text(encoding="utf-8")
        wrong += [(path.stem, link) for link in LINK.findall(text) if not (path.parent / link).is_file()]
        wrong += [(path.stem, line) for line in text.splitlines() if len(line) > 120]
    assert not wrong


def _thresholds_in_code() -> set[str]:
    """Thresholds whose name stands as a text in a module: the engine, a trial or the API reads them itself."""
    folders = ("engine", "trials", "reports", "quantmedic")
    code = "".join(path.read_text(encoding="utf-8") for top in folders for path in (ROOT / top).rglob("*.py"))
    return {name for name in BASE.thresholds if f'"{name}"' in code}


def _prefixes(scope: Any) -> set[str]:
    prefixes: set[str] = set()
    for path in fact_paths(scope):
        parts = path.split(".")
        prefixes |= {path, *(".".join(parts[:end]) + "." for end in range(1, len(parts)))}
    return prefixes


def test_healthy_network_gives_no_verdict() -> None:
    """An 8-bit Swish network as measured: long tails, few negative levels, and nothing wrong with it."""
    tensors = [
        {"producer": "Mul", "negative_levels": 5.4, "range_excess_bits": 0.96, "z": 22.6, "tail": 9e-5, "db": 32.3},
        {"producer": "Relu", "negative_levels": 0.0, "range_excess_bits": 0.36, "z": 12.6, "tail": 4e-3, "db": 40.4},
        {"producer": "Conv", "negative_levels": 107, "range_excess_bits": 1.02, "z": 10.5, "tail": 2e-4, "db": 33.1},
    ]
    views = [
        {
            "producer": row["producer"],
            "is_half": False,
            "quantizer": {
                "scale": 0.05,
                "bits": 8,
                "granularity": "per_tensor",
                "symmetric": False,
                "power_of_two": False,
            },
            "pattern": "none",
            "negative_levels": row["negative_levels"],
            "range_excess_bits": row["range_excess_bits"],
            "data": {
                "values": {
                    "zscore_max": row["z"],
                    "tail_share": row["tail"],
                    "range_inflation_bits": row["range_excess_bits"],
                    "negative_share": 0.5,
                    "absmax": 6.0,
                    "channel_absmax_ratio": 3.0,
                    "absmax_over_median": 20.0,
                    "sample_range_ratio": 0.6,
                },
                "rounding": {"sqnr_db": row["db"], "rmse_over_scale": 0.29},
                "clipping": {"share": 0.0, "energy_share": 0.01},
                "predicted_best_gain_db": 1.5,
            },
        }
        for row in tensors
    ]
    facts = CaseFacts.model_validate(
        {
            "model": {
                "framework": "onnx",
                "compute_operators": 13,
                "quantized_share": 1.0,
                "nonfinite_in": "none",
                "nonfinite_output": "none",
                "harmed": False,
                "input_nonfinite": False,
                "output_sqnr_db": 25.7,
                "rounding_sqnr_min_db": 30.3,
                "weight_sqnr_min_db": 38.0,
                "sqnr_worst_step_db": 3.0,
                "sqnr_slope_db": -8.0,
                "float_rerun_difference": 0.0,
                "training_nodes": 0,
                "opset_deficit": 0,
                "cpu_vnni": True,
                "metric": {"name": "top1", "gain_share": -0.01, "label_fault": "none", "kappa": 0.8},
            },
            "datasets": [
                {
                    "role": "representative",
                    "samples": 500,
                    "unique_share": 1.0,
                    "blank_share": 0.0,
                    "stray_factor": 1.0,
                    "nonfinite_samples": 0,
                    "range_growth": 0.022,
                    "halves_disagreement": 0.03,
                    "feature_spread": 1.0,
                    "clipped_share": 0.0,
                    "image": True,
                    "spatial_correlation": 0.85,
                    "saturation_excess": 0.0,
                    "class_coverage_ratio": 1.0,
                    "unseen_channel_share": 0.0,
                    "clipped_share_max": 0.0,
                    "clipped_share_median": 0.0,
                    "exact_range_share": 1.0,
                    "range_reach": 1.0,
                    "input_range_ratio": 1.0,
                    "input_clipped_share": 0.0,
                    "input_clipped_ratio": 0.0,
                    "input_range_reading": "image is quantized from 0 to 1, these samples span 0 to 1",
                    "relation": {
                        "kind": "same",
                        "method": "lattice",
                        "scale_mismatch": 1.0,
                        "certainty": 1.0,
                        "sharpness_mismatch_low": 1.0,
                    },
                },
                {
                    "role": "validation",
                    "samples": 512,
                    "stray_factor": 1.0,
                    "nonfinite_samples": 0,
                    "clipped_share": 1e-5,
                    "clipped_share_ratio": 11.0,
                },
            ],
            "tensors": views,
            "layers": [
                {
                    "op_type": "Conv",
                    "is_compute": True,
                    "compute_index": 12,
                    "is_last": True,
                    "weight": {
                        "quantizer": {"granularity": "per_tensor", "bits": 8},
                        "channel_range_ratio": 9.0,
                        "rounding": {"worst_channel_sqnr_db": 25.0},
                    },
                    "bias": {
                        "bits": 32,
                        "overflowing_channels": 0,
                        "scale_departure": 0.0,
                        "rounding": {"sqnr_db": 70.0},
                    },
                    "constant": {"bits": 8, "misplaced_steps": 0.5},
                    "fusion": {"split": False},
                    "output": views[2],
                }
            ],
            "outputs": [
                {
                    "is_integer": False,
                    "is_codes": False,
                    "affine": {"r2": 0.999, "slope_mismatch": 1.001, "offset_over_std": 0.001},
                    "columns": {"worst_sqnr_db": 24.9, "dead": 0},
                }
            ],
        }
    )
    results = evaluate(BASE, facts)
    assert not [finding.message for result in results for finding in result.findings]
    unknown = {result.rule.id: result.unknown for result in results if result.verdict == "not-judged"}
    lacking = {rule: subjects for rule, subjects in unknown.items() if not all(map(_is_for_the_user_to_give, subjects))}
    assert not lacking, "add the facts that these rules ask for to the network above, with their healthy values"


def _is_for_the_user_to_give(unknown: Unknown) -> bool:
    """What is missing are outputs of other programs, logs or a number, by the options that the hints name."""
    hints = [BASE.hint(fact) or "" for fact in unknown.missing]
    return all("pass --" in hint and not asks_for_data(hint) for hint in hints)
