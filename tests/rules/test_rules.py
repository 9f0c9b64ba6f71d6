"""The rule base as a whole: every rule, remedy, threshold and hint, checked against its manual page."""

import re
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
from quantmedic.engine.rules.examples import example_case, example_values, page_examples
from quantmedic.engine.rules.lint import lint
from quantmedic.engine.rules.load import load_rules
from quantmedic.engine.rules.remedies import EACH_FIELDS, NAME_FIELDS
from quantmedic.engine.rules.remedy_kinds import REMEDY_KINDS
from quantmedic.engine.rules.rule import GLOBAL_SCOPES, Rule, message_fields
from quantmedic.engine.rules.rulebase import RuleBase, asks_for_data

RULES_FOLDER = Path(str(files("quantmedic.rules")))
MANUALS = Path(str(files("quantmedic.manuals")))
BASE = load_rules([RULES_FOLDER])
RULES = {rule.id: rule for rule in BASE.rules}
ROOT = Path(__file__).parents[2]
HEADINGS = ["What it is", "Why it hurts", "How it was measured", "What to do", "Examples", "References"]
LINK = re.compile(r"\]\(([^)#:]+\.md)\)")
NUMERIC = ("gt", "ge", "lt", "le")
GENERAL = {path.stem for path in (MANUALS / "general").glob("*.md")}
TOOLCHAINS = {toolchain.name for toolchain in BASE.toolchains}
#: A layer and its output with all names that a snippet can ask for.
NAMED_OUTPUT = {
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

every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
every_remedy = pytest.mark.parametrize("remedy", BASE.remedies.values(), ids=list(BASE.remedies))


def page(rule: Rule) -> str:
    return (MANUALS / f"{rule.id}.md").read_text(encoding="utf-8")


def examples(verdict: str) -> list[Any]:
    found = []
    for rule in RULES.values():
        for number, example in enumerate(page_examples(page(rule))):
            if example.kind == verdict:
                found.append(pytest.param(rule, example_values(example), id=f"{rule.id}-{number}"))
    return found


def judge(rule: Rule, facts: dict[str, Any], base: RuleBase = BASE) -> Any:
    better = tuple(other for other in base.rules if other.id in rule.yields_to)
    return evaluate(base.model_copy(update={"rules": (rule, *better)}), example_case(rule, facts))[0]


def without(facts: dict[str, Any], path: str) -> dict[str, Any]:
    """A copy of nested facts that lacks one dotted path."""
    head, _, rest = path.partition(".")
    if not rest:
        return {key: value for key, value in facts.items() if key != head}
    return facts | {head: without(facts.get(head) or {}, rest)}


def positive(node: Any) -> list[Condition]:
    """Conditions that stand under no negation."""
    if isinstance(node, Condition):
        return [node]
    parts = node.all if isinstance(node, All) else node.any if isinstance(node, Any_) else ()
    return [condition for part in parts for condition in positive(part)]


def test_ids_names_and_files_are_unique() -> None:
    paths = sorted(RULES_FOLDER.rglob("[A-Z][0-9][0-9][0-9].yaml"))
    assert sorted(path.stem for path in paths) == sorted(RULES)
    assert len({rule.name for rule in BASE.rules}) == len(BASE.rules)


@every_rule
def test_rule_stands_in_its_family(rule: Rule) -> None:
    assert rule.path is not None
    assert rule.path.stem == rule.id
    assert rule.path.parent.name == rule.family


@every_rule
def test_rule_passes_its_own_lint(rule: Rule) -> None:
    assert not lint(BASE.model_copy(update={"rules": (rule,)}), {rule.id: page(rule)})


@every_rule
def test_own_evidence_of_harm_is_stated_only_where_it_is_needed(rule: Rule) -> None:
    """Without its ``harm``, the rule would be refused."""
    if rule.harm is not None:
        silent = rule.model_copy(update={"harm": None})
        (remark,) = lint(BASE.model_copy(update={"rules": (silent,)}), {rule.id: page(rule)})
        assert "without asking for harm" in remark.message


@every_rule
def test_rule_and_cause_have_one_name_or_the_page_says_why(rule: Rule) -> None:
    text = " ".join(page(rule).split())
    alike = [other for other in BASE.rules if other.cause == rule.cause and other is not rule]
    assert rule.name == rule.cause or alike, "a cause of one rule is called what its rule is called"
    stated = f"Its cause is named `{rule.cause}`, like that of "
    assert (stated in text) == (rule.name != rule.cause)
    if rule.name != rule.cause:
        sentence = text.partition(stated)[2].partition(": ")[0]
        assert all(f"[{other.name}]({other.id}.md)" in sentence for other in alike)


@every_rule
def test_name_is_a_defect(rule: Rule) -> None:
    for name in (rule.name, rule.cause):
        assert not re.match(r"(use|prefer|avoid|enable|disable|add|set|fix)-", name), f"{name} names a fix"


@every_rule
def test_message_states_the_problem(rule: Rule) -> None:
    assert not rule.message.endswith(".")
    assert rule.message[0].islower() or rule.message[0] == "{"
    assert not re.search(r"\b(use|should|try|please|enable|disable)\b", rule.message), "a message holds no advice"


@every_rule
def test_message_renders_without_and_with_facts(rule: Rule) -> None:
    assert "not measured" in render_message(rule.message, lambda path: None) or not message_fields(rule.message)
    for example in page_examples(page(rule)):
        if example.kind == "fires":
            (finding,) = judge(rule, example_values(example)).findings
            assert finding.message
            assert "{" not in finding.message


@every_rule
def test_repair_of_data_set_rules_is_recalibration(rule: Rule) -> None:
    simulated = {BASE.remedies[name].simulate for name in rule.remedies} - {None}
    assert "recalibrate" in simulated or rule.family != "data"


@every_rule
def test_page_has_title_headings_and_both_verdicts(rule: Rule) -> None:
    text = page(rule)
    assert text.startswith(f"# {rule.name} ({rule.id})\n")
    assert re.findall(r"^## (.+)$", text, re.M) == HEADINGS
    assert {example.kind for example in page_examples(text)} == {"fires", "silent"}
    assert re.search(r"^When not to:", text, re.M), "the page says when not to follow it"


@every_rule
def test_page_names_every_threshold(rule: Rule) -> None:
    text = page(rule)
    nodes = [rule.when, *([rule.experiment.when] if rule.experiment is not None else [])]
    asked = [condition for node in nodes for condition in positive(node) if condition.threshold]
    missing = {c.threshold for c in asked if f"`{c.threshold}`" not in text}
    assert not missing, f"explain these thresholds under 'How it was measured': {missing}"


@pytest.mark.parametrize("rule, facts", examples("fires"))
def test_example_fires(rule: Rule, facts: dict[str, Any]) -> None:
    assert judge(rule, facts).verdict == "fired"


@pytest.mark.parametrize("rule, facts", examples("silent"))
def test_example_is_silent_by_decision(rule: Rule, facts: dict[str, Any]) -> None:
    result = judge(rule, facts)
    assert result.verdict in ("passed", "not-applicable"), [unknown.missing for unknown in result.unknown]


@pytest.mark.parametrize("rule, facts", examples("fires"))
def test_missing_fact_is_no_finding(rule: Rule, facts: dict[str, Any]) -> None:
    """Without a number that it rests on, a rule is not judged; where it asks ``known``, it may also pass."""
    (finding,) = judge(rule, facts).findings
    if finding.by_experiment:
        return  # The symptom is judged without it, and was not seen.
    required = {condition.fact for condition in positive(rule.when)}
    asked = {condition.fact for condition in rule.conditions() if condition.op == "known"}
    for evidence in finding.evidence:
        if evidence.op in NUMERIC and evidence.fact in required:
            result = judge(rule, without(facts, evidence.fact))
            expected = ("not-judged", "passed", "not-applicable") if evidence.fact in asked else ("not-judged",)
            assert result.verdict in expected, f"{rule.id} without {evidence.fact}: {result.verdict}"
            for unknown in result.unknown:
                assert evidence.fact in unknown.missing or evidence.fact in asked


@every_rule
def test_nothing_is_found_on_an_empty_case(rule: Rule) -> None:
    assert not judge(rule, {}).findings


@every_rule
def test_every_fact_that_may_be_missing_has_a_hint(rule: Rule) -> None:
    """One of its own: the entry for all facts is for rules of users."""
    without = {condition.fact for condition in rule.conditions() if BASE.hint(condition.fact) == BASE.hints[""]}
    assert not without, "say in rules/hints.yaml how a user supplies these facts"


def test_hints_are_of_use() -> None:
    for path in ("representative.x", "validation.x", "relation.x", "model.metric.x", "data.operator.x"):
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


def test_every_rule_has_known_remedies() -> None:
    assert {name for rule in BASE.rules for name in rule.remedies} <= set(BASE.remedies)


def test_every_remedy_is_advised_by_a_rule_or_tried_on_the_whole_network() -> None:
    general = {kind.everywhere.remedy for kind in REMEDY_KINDS.values() if kind.everywhere is not None}
    assert set(BASE.remedies) <= {name for rule in BASE.rules for name in rule.remedies} | general


@every_remedy
def test_remedy_says_what_it_costs_and_when_it_is_unsafe(remedy: Any) -> None:
    for text in (remedy.title, remedy.changes, remedy.cost.says, remedy.unsafe):
        assert text
        assert not text.endswith(".")
        assert "{" not in text


@every_remedy
def test_snippets_render(remedy: Any) -> None:
    fields: dict[str, Any] = dict.fromkeys(NAME_FIELDS, ("/a/Conv", "b"))
    fields |= {
        name: 0.5 if isinstance(given, str) else {"t": (1.0,) * len(given)} for name, given in remedy.values.items()
    }
    for snippet in remedy.snippets:
        assert snippet.toolchain in TOOLCHAINS
        code = render_snippet(snippet.code, fields, remedy.id)
        assert "{{" not in code
        assert not snippet.note or "{" not in snippet.note
        if snippet.toolchain == "Horizon OpenExplorer":
            assert snippet.note.startswith("from public documentation")
            assert snippet.mark == "documentation"
            yaml.safe_load(code)
        else:
            compile(code, remedy.id, "exec")


@every_remedy
def test_no_snippet_is_empty_where_it_is_the_change_alone(remedy: Any) -> None:
    """Of a form with steps an excerpt lists its options: without any, and without code, nothing is left to copy."""
    for snippet in remedy.snippets:
        stepped = all(snippet.forms[form].steps for form in snippet.options)
        if stepped and not any(snippet.options.values()):
            assert snippet.code.strip() or snippet.after.strip(), f"{snippet.toolchain}: say in its code what changes"


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_every_remedy_of_a_rule_can_be_advised_for_its_findings(rule: Rule) -> None:
    """A finding on each rule's scope names what the snippets of its remedies ask for."""
    views = {"layer": NAMED_CASE.layers[0], "tensor": NAMED_CASE.tensors[0]}
    view = views.get(rule.scope, NAMED_CASE.model)
    finding = Finding(rule, "conv", "conv" if rule.scope not in GLOBAL_SCOPES else None, "", (), view)
    advised, withheld = advise([finding], BASE, NAMED_CASE)
    assert {advice.id for advice in (*advised, *withheld)} == set(rule.remedies)
    reasons = ("already", "onnxruntime has no", "its values reach", "weights in float have no scales")
    assert not [held for held in withheld if not held.because.startswith(reasons)]
    for advice in advised:
        fields = {*NAME_FIELDS, *EACH_FIELDS, *BASE.remedies[advice.id].values}
        # Of the toolchains of language models none quantizes the ONNX model of the case.
        fitting = [snippet for snippet in BASE.remedies[advice.id].snippets if snippet.takes("onnx")]
        assert bool(advice.snippets) == bool(fitting)
        for code in render_snippets(advice, [rule.id]):
            assert not [name for name in fields if f"{{{name}}}" in code]


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


@pytest.mark.parametrize("text, why", NEVER_ADVISED.items())
def test_what_is_known_not_to_work_is_never_advised(text: str, why: str) -> None:
    found = [remedy.id for remedy in BASE.remedies.values() for s in remedy.snippets if text in s.code]
    assert not found, f"{text} {why}"


def test_finer_steps_are_not_advised_against_clipping() -> None:
    facts = CaseFacts.model_validate(
        {"tensors": [{"name": "t", "float_name": "t", "data": {"clipping": {"energy_share": 0.9}}}]}
    )
    finding = Finding(
        RULES["A003"].model_copy(update={"remedies": ("activations-16-bit",)}), "t", None, "", (), facts.tensors[0]
    )
    advised, (held,) = advise([finding], BASE, facts)
    assert not advised
    assert held.because == "clipping makes 90% of its rounding error, which finer steps leave as it is"


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


@pytest.mark.parametrize("path", sorted(MANUALS.rglob("*.md")), ids=lambda path: path.stem)
def test_links_and_line_length(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for link in LINK.findall(text):
        assert (path.parent / link).is_file(), f"{path.name} links to {link}"
    assert all(len(line) <= 120 for line in text.splitlines())


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
                "matched_share": 1.0,
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
                    "input_range_reading": "the range of image is 0 to 1, 1 times that of these samples, 0 to 1",
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
                    "columns": {"worst_sqnr_db": 24.9, "dead": 0, "erased_operands": 0},
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
