"""Which remedies are prescribed, and what a toolchain makes of them together."""

import ast
import json
from typing import Any

import pytest
import yaml
from builders.python_names import undefined_names

from quantmedic.api.rulebase import load_manuals, load_rulebase
from quantmedic.engine.case.facts import DatasetFacts, MetricFacts, ModelFacts, RelationFacts
from quantmedic.engine.case.proof import PRESCRIPTION, REPAIRED_DATA, ExecutionRecord, TrialRecord
from quantmedic.engine.case.settings_in_force import SettingsInForce
from quantmedic.engine.contract.advised_remedies import Advice, Prescription, Proof, Recovery, TrialRow
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis, EvidenceStrength
from quantmedic.engine.diagnosis.candidates import Candidates, Choice
from quantmedic.engine.diagnosis.competition import rank_executed
from quantmedic.engine.diagnosis.input_repair import InputRepair
from quantmedic.engine.diagnosis.prescription import code_of, prescribe, write_prescription
from quantmedic.engine.diagnosis.snippets import render_snippets
from quantmedic.engine.rules.remedy_kinds import REMEDY_KINDS
from quantmedic.engine.rules.toolchain import find_toolchain

BASE = load_rulebase()
ORT = find_toolchain("onnxruntime", BASE.toolchains)
NNCF = find_toolchain("nncf", BASE.toolchains)
FIELDS = {
    "layers": ("/a/Conv", "/b/Softmax"),
    "nodes": ("/a/Conv", "/b/Softmax"),
    "around": ("/a/Conv", "/b/Softmax", "/c/MatMul"),
    "group": ("/a/Conv",),
    "typed": ("/a/Conv", "/d/Conv"),
    "tensors": ("a_out", "b_out"),
    "weights": ("a.weight",),
    "quantized_layers": ("a_bn",),
    "quantized_tensors": ("a_out", "b_out"),
    "types": ("Conv", "Softmax"),
    "ranges": {"a_out": (-1.0, 2.0)},
    "taken": {"a_out": (0.004,)},
    "weight_axes": {"a.weight": (0,)},
    "channel_axes": {"a.weight": (0,)},
    "repair": InputRepair("image", 1, (2, 1, 0)).code(),
    "pixel_mean": "123.675 116.28 103.53",
    "pixel_scale": "0.0171 0.0175 0.0174",
    "pixel_kept": "mean 123.675 116.28 103.53, factor 0.0171 0.0175 0.0174",
}


SHOWN = SettingsInForce(
    format="QDQ",
    activation_type="uint8",
    weight_type="int8",
    other_activations={"uint16": ("b_out",)},
    symmetric_activations=False,
    per_channel_weights=True,
    float_layers={"Conv": ("/x/Conv",), "Custom": ("/y",)},
    calibration_method="percentile",
    percentile=99.9,
)
SYMMETRIC = SettingsInForce(activation_type="int8", symmetric_activations=True)


def advice(remedy: str, **changes: Any) -> Advice:
    """A remedy of the rules, advised for two layers."""
    known = BASE.remedies[remedy]
    fields = {name: getattr(known, name) for name in ("id", "title", "changes", "cost", "unsafe", "scope", "simulate")}
    snippets = tuple(snippet for snippet in known.snippets if not snippet.formats)
    return Advice(**fields, snippets=snippets, fields=FIELDS, **changes)


def tried(gain: float, kind: str = "k", **fields: Any) -> TrialRecord:
    return TrialRecord(key="k", kind=kind, gain_db=gain, low_db=gain - 1, high_db=gain + 1, **fields)


def cause(name: str, *remedies: Advice) -> CauseReport:
    return CauseReport(
        cause=name,
        rules=("X001",),
        severity="high",
        confidence=0.5,
        subjects=(),
        layers=(),
        message=f"{name} was found",
        evidence=(),
        remedies=remedies,
        manual="manual/X001",
    )


def proof_of(**fields: Any) -> Proof:
    sizes: dict[str, Any] = {"fitted": 8, "judged": 8, "cross_fitted": False, "budget_seconds": 1, "spent_seconds": 1}
    return Proof(dataset="validation", stopped="explained", **sizes, **fields)


def diagnosis(*causes: CauseReport, chain: tuple[str, ...] = (), **fields: Any) -> Diagnosis:
    """A diagnosis of these causes; ``chain`` names those whose first remedies were proven one after the other."""
    rows = tuple(
        TrialRow(causes=(each.cause,), remedy=each.remedies[0].title, trial=tried(3.0))
        for each in causes
        if each.cause in chain
    )
    given: dict[str, Any] = {
        "quantmedic_version": "0",
        "verdict": "degraded",
        "drop_class": None,
        "evidence_strength": EvidenceStrength(statement="not-measured"),
        "causes": causes,
        "model": ModelFacts(toolchain="onnx.quantize 0.1.0"),
        "metrics": MetricFacts(),
        "proof": proof_of(chain=rows) if chain else None,
        "run": {},
    }
    lists = ("passed", "not_judged", "not_applicable", "ignored", "advice", "layers", "outputs", "datasets")
    empty = dict.fromkeys((*lists, "thresholds", "warnings"), ())
    return Diagnosis(**{**empty, **given, **fields})


def prescription(found: Diagnosis, asked: str | None = None) -> Prescription:
    given = prescribe(found, BASE, asked).prescription
    assert given is not None
    return given


def two(first: str, second: str) -> Diagnosis:
    return diagnosis(cause("one", advice(first)), cause("two", advice(second)), chain=("one", "two"))


def test_the_proven_chain_is_prescribed_whole_and_nothing_beside_it() -> None:
    causes = cause("one", advice("per-channel-weights")), cause("no", advice("reduce-range"))
    found = prescription(diagnosis(*causes, cause("two", advice("float-tail")), chain=("one", "two")))
    assert [step.remedy for step in found.steps] == ["per-channel-weights", "float-tail"]
    assert found.basis == "proven"
    assert "reduce_range" not in found.configurations[0].code


def test_without_a_proof_the_first_cause_is_treated_and_it_is_said_that_this_is_predicted() -> None:
    predicted = Recovery(gain_db=9.0, low_db=8.0, high_db=10.0, share=0.9)
    causes = cause("one", advice("per-channel-weights", predicted=predicted)), cause("two", advice("float-tail"))
    found = prescription(diagnosis(*causes))
    assert ([step.remedy for step in found.steps], found.basis) == (["per-channel-weights"], "predicted")
    assert prescription(diagnosis(cause("one", advice("per-channel-weights")))).basis == "untried"


def test_a_remedy_of_which_only_a_bound_is_known_is_untried_and_executed_in_its_turn() -> None:
    """Its weights or activations in float show the most that it could bring: neither simulated nor proven."""
    most = Recovery(gain_db=9.0, low_db=8.0, high_db=10.0, share=0.9, bound=True)
    for remedy, toolchain in (("smooth-quant", NNCF), ("learned-rounding", ORT)):
        bounded = advice(remedy, predicted=most)
        found = prescription(diagnosis(cause("one", bounded)), toolchain.name)
        assert ([step.remedy for step in found.steps], found.basis, found.grade) == ([remedy], "untried", None)
        if remedy != "learned-rounding":  # no copy can show it: behind what trials can tell apart
            causes = cause("one", bounded, advice("per-channel-weights", measured=tried(-1.0)))
            turns = Candidates(diagnosis(causes, cause("two", advice("float-tail"))), BASE, toolchain).leading()
            order = [choice.lead.id for (choice,) in turns if choice.lead is not None]
            assert order[-1] == remedy and "float-tail" in order and "per-channel-weights" not in order


def test_what_was_tried_in_vain_is_not_prescribed() -> None:
    vain, failed = tried(0.2), TrialRecord(key="k", kind="k", failed="crashed")
    first = cause("one", advice("per-channel-weights", measured=vain), advice("float-tail", measured=failed))
    found = prescription(diagnosis(first))
    assert [step.remedy for step in found.steps] == ["float-tail"], "a trial that failed disproves nothing"
    only = diagnosis(cause("one", advice("per-channel-weights", measured=vain)))
    assert prescribe(only, BASE).prescription is None


def test_what_takes_much_away_is_no_trial_in_vain_where_few_samples_are_noisy() -> None:
    """One sample of twelve holds all of the noise: no interval can lie above zero."""
    unsure, vain = (tried(0.5, share=share) for share in (0.74, 0.2))
    assert not unsure.proven and not advice("per-channel-weights", measured=unsure).is_disproven
    assert advice("per-channel-weights", measured=vain).is_disproven
    bound = unsure.model_copy(update={"bound": True})
    assert advice("per-channel-weights", measured=bound).is_disproven
    found = prescription(diagnosis(cause("one", advice("per-channel-weights", measured=unsure))))
    assert [step.remedy for step in found.steps] == ["per-channel-weights"] and found.basis != "proven"


def test_without_harm_or_a_known_toolchain_there_is_no_configuration() -> None:
    treated = cause("one", advice("float-tail"))
    healthy = prescribe(diagnosis(treated, verdict="healthy"), BASE)
    assert healthy.prescription is None and healthy.toolchain is not None
    found = prescribe(diagnosis(treated, model=ModelFacts(toolchain="pytorch 2.4")), BASE)
    assert found.toolchain is not None and found.toolchain.name is None
    assert found.prescription is not None
    assert found.prescription.steps[0].mark is None and not found.prescription.configurations


def test_horizon_gets_one_file_with_the_names_of_both_remedies() -> None:
    found = prescription(two("activations-16-bit", "limit-activation-range"), "horizon")
    (configuration,) = found.configurations
    assert (configuration.file, found.mark, found.checked) == ("prescription.yaml", "documentation", "")
    assert yaml.safe_load(configuration.code) == {
        "model_parameters": {
            "node_info": {
                "/a/Conv": {"ON": "BPU", "InputType": "int16", "OutputType": "int16"},
                "/b/Softmax": {"ON": "BPU", "InputType": "int16", "OutputType": "int16"},
            }
        },
        "calibration_parameters": {"calibration_type": "max", "max_percentile": 0.9999},
    }


def test_horizon_options_of_two_tools_go_to_two_files() -> None:
    found = prescription(two("keep-operator-types-float", "float-tail"), "horizon")
    files = {each.file: each.code for each in found.configurations}
    assert json.loads(files["prescription.json"]) == {
        "op_config": {"Conv": {"qtype": "int16"}, "Softmax": {"qtype": "int16"}}
    }
    assert yaml.safe_load(files["prescription.yaml"]) == {
        "model_parameters": {"node_info": {"/a/Conv": {"ON": "CPU"}, "/b/Softmax": {"ON": "CPU"}}}
    }
    shown = prescription(diagnosis(cause("one", advice("one-preprocessing"))), "horizon")
    assert yaml.safe_load(shown.configurations[0].code)["input_parameters"] == {
        "norm_type": "data_mean_and_scale",
        "mean_value": "123.675 116.28 103.53",
        "scale_value": "0.0171 0.0175 0.0174",
    }, "the preprocessing that the data show"


def test_the_guide_of_the_toolchain_leads_the_general_pages() -> None:
    asked = diagnosis(cause("one", advice("float-tail")), advice=("preprocessing", "qat"))
    assert prescribe(asked, BASE, "horizon").advice == ("horizon", "preprocessing", "qat")
    assert prescribe(asked, BASE, "ort").advice == ("preprocessing", "qat")
    assert prescribe(diagnosis(cause("one", advice("float-tail")), advice=()), BASE, "horizon").advice == ()
    guides = {f"general/{toolchain.guide}" for toolchain in BASE.toolchains if toolchain.guide}
    assert guides and guides <= set(load_manuals(BASE))


def test_inc_gets_one_dictionary() -> None:
    found = prescription(two("keep-layers-float", "per-channel-weights"), "inc")
    (configuration,) = found.configurations
    *_, statement, fit, save = ast.parse(configuration.code).body
    assert [ast.unparse(each).split("(")[0] for each in (fit, save)] == [
        "quantized = quantization.fit",
        "quantized.save",
    ]
    assert statement.targets[0].id == "conf" and statement.value.func.id == "PostTrainingQuantConfig"
    (keyword,) = statement.value.keywords
    assert keyword.arg == "op_name_dict"
    named = ast.literal_eval(keyword.value)
    in_float = {"activation": {"dtype": ["fp32"]}, "weight": {"dtype": ["fp32"]}}
    assert named["/c/MatMul"] == in_float
    assert named["/a/Conv"] == {**in_float, "weight": {"dtype": ["fp32"], "granularity": ["per_channel"]}}
    assert configuration.code.startswith("from neural_compressor import PostTrainingQuantConfig, quantization\n")


def test_options_inside_options_are_merged_too() -> None:
    (configuration,) = prescription(two("limit-activation-range", "per-channel-weights"), "nncf").configurations
    assert configuration.code.count("nncf.AdvancedQuantizationParameters(") == 1
    assert "activations_range_estimator_params" in configuration.code and "per_channel=True" in configuration.code


@pytest.mark.thorough
def test_every_toolchain_writes_what_its_language_reads() -> None:
    for remedy in BASE.remedies:
        for toolchain in BASE.toolchains:
            for each in prescription(diagnosis(cause("one", advice(remedy))), toolchain.name).configurations:
                read = {"python": ast.parse, "yaml": yaml.safe_load, "json": json.loads}[each.language]
                assert read(each.code), (remedy, toolchain.name)


@pytest.mark.thorough
def test_code_for_onnxruntime_leaves_only_the_names_open_that_are_said_to_be_the_users() -> None:
    wrong = {}
    for remedy in BASE.remedies:
        found = prescription(diagnosis(cause("one", advice(remedy)), settings_in_force=SHOWN), "onnxruntime")
        for each in found.configurations:
            if left := undefined_names(each.code) - set(found.given):
                wrong[remedy] = left
    assert not wrong


def test_the_settings_in_force_are_kept_and_the_change_is_marked() -> None:
    found = prescription(diagnosis(cause("one", advice("keep-layers-float")), settings_in_force=SHOWN))
    code = found.configurations[0].code
    assert code.endswith(
        """quantize_static(
    "float.onnx",
    "int8.onnx",
    equal_batches(reader),
    quant_format=QuantFormat.QDQ,
    activation_type=QuantType.QUInt8,
    weight_type=QuantType.QInt8,
    per_channel=True,
    calibrate_method=CalibrationMethod.Percentile,
    nodes_to_exclude=["/a/Conv", "/b/Softmax", "/c/MatMul", "/x/Conv"],  # changed by the remedy
    extra_options={
        "ActivationSymmetric": False,
        "CalibPercentile": 99.9,
        "TensorQuantOverrides": {"b_out": [{"quant_type": QuantType.QUInt16}]},
    },
)
"""
    )
    names = "CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static"
    assert f"import {names}" in code or f"import (\n    {names},\n)" in code
    assert code.index("class Feeds(") < code.index("def equal_batches(") < code.index("quantize_static(\n")


def test_a_remedy_of_a_card_is_the_whole_call() -> None:
    found = diagnosis(cause("one", advice("keep-layers-float")), settings_in_force=SHOWN)
    (judged,) = prescribe(found, BASE, "onnxruntime").causes
    texts = render_snippets(judged.remedies[0], judged.rules)
    (static,) = [text for text in texts if "quantize_static(" in text]
    given = prescription(found).configurations[0].code
    assert given.endswith(static[static.rindex("quantize_static(") :] + "\n")
    assert "def equal_batches(" in static
    names = "CalibrationMethod, QuantFormat, QuantType, quantize_static"
    assert "from onnxruntime.quantization import " in static and names in static
    assert any("changed by" not in text for text in texts), "other toolchains have the change alone"
    elsewhere = diagnosis(cause("one", advice("limit-activation-range")), settings_in_force=SHOWN)
    assert "changed by" not in prescription(elsewhere, "aimet").configurations[0].code
    (unknown,) = prescribe(diagnosis(cause("one", advice("keep-layers-float"))), BASE, "onnxruntime").causes
    alone = render_snippets(unknown.remedies[0], unknown.rules)
    assert not any("changed by" in text for text in alone), "without settings in force it is the change alone"


def test_what_is_in_force_already_is_not_told_as_the_change() -> None:
    """Ranges that cover all that calibration saw: of the extremes that are taken already, fixed ranges are left."""
    said = {"minmax": "TensorQuantOverrides", "moving-average": "CalibMovingAverage", "entropy": "MinMax"}
    for method, option in said.items():
        settings = SHOWN.model_copy(update={"calibration_method": method, "percentile": None})
        found = diagnosis(cause("a", advice("widen-activation-range")), settings_in_force=settings)
        assert option in code_of(prescription(found, "onnxruntime"))
        remedy = prescribe(found, BASE, "onnxruntime").causes[0].remedies[0]
        first, second = [snippet for snippet in remedy.snippets if snippet.toolchain == "onnxruntime"]
        assert ("TensorQuantOverrides" in str(first.options)) is (method == "minmax")
        assert ("TensorQuantOverrides" in str(second.options)) is (method != "minmax")


def test_a_remedy_wins_over_a_setting_in_force() -> None:
    found = prescription(diagnosis(cause("one", advice("unsigned-activations")), settings_in_force=SYMMETRIC))
    code = found.configurations[0].code
    assert "    activation_type=QuantType.QUInt8,  # changed by the remedy\n" in code
    assert '{"ActivationSymmetric": False' in code or '"ActivationSymmetric": False,  # changed' in code
    assert found.conflicts == (), "what is in force is no second remedy"


def test_what_a_toolchain_cannot_do_is_said_and_the_next_remedy_stands_in() -> None:
    both = cause("one", advice("shift-negative"), advice("per-channel-weights"))
    (step,) = prescription(diagnosis(both)).steps
    assert step.remedy == "per-channel-weights"
    assert step.stands_in_for == BASE.remedies["shift-negative"].title
    (step,) = prescription(diagnosis(cause("one", advice("shift-negative")))).steps
    assert (step.mark, step.is_edit) == (None, False)
    (step,) = prescription(diagnosis(cause("one", advice("fixed-output-scale")))).steps
    assert (step.mark, step.is_edit) == (None, True), "an edit in every toolchain"


def test_remedies_of_the_data_say_what_is_wrong_in_words() -> None:
    reading = "representative = x / 255, validation = (x / 255 - 0.286) / 0.353"
    for offset, undone in [(0.286, "(x - 0.286) / 0.353"), (-0.286, "(x + 0.286) / 0.353")]:
        relation = RelationFacts(kind="partly-normalized", slope=0.353, offset=offset, reading=reading)
        sets = (DatasetFacts(role="representative", relation=relation),)
        found = prescription(diagnosis(cause("one", advice("one-preprocessing")), datasets=sets))
        (step,) = found.steps
        assert step.says[:2] == ("one was found", reading) and undone in step.says[2]
        assert f"# {reading}\n" in found.configurations[0].code
        assert set(found.given) == {"reader"}


def prescribed_after(remedy: str, *rows: TrialRow, keep: bool = False) -> Prescription:
    """What is prescribed where these trials are the proven chain, perhaps behind that of the remedy."""
    found = diagnosis(cause("one", advice(remedy)), chain=("one",))
    assert found.proof is not None
    chain = (*found.proof.chain, *rows) if keep else rows
    return prescription(found.model_copy(update={"proof": found.proof.model_copy(update={"chain": chain})}))


def test_a_trial_of_no_remedy_is_named_and_left_to_the_user() -> None:
    row = TrialRow(causes=(), remedy="what was changed", trial=tried(2.0))
    last = prescribed_after("float-tail", row, keep=True).steps[-1]
    assert (last.title, last.remedy, last.mark) == ("what was changed", "", None)


def test_a_proven_repair_of_the_whole_network_needs_no_cause() -> None:
    for kind in (kind.name for kind in REMEDY_KINDS.values() if kind.everywhere is not None):
        given = prescribed_after("float-tail", TrialRow(causes=(), remedy="everywhere", trial=tried(2.0, kind=kind)))
        (step,) = given.steps
        assert (step.title, step.causes) == ("everywhere", ()), kind
        if kind == "sixteen-bit":
            assert "activation_type=QuantType.QUInt16" in given.configurations[0].code


def test_a_repair_of_the_data_is_prescribed_for_its_cause() -> None:
    record = tried(20.0, kind=REPAIRED_DATA, detail="(x - 0.286) / 0.353")
    row = TrialRow(causes=("one",), remedy="(x - 0.286) / 0.353", trial=record)
    (step,) = prescribed_after("one-preprocessing", row).steps
    assert step.remedy == "one-preprocessing" and "proven by itself: (x - 0.286) / 0.353" in step.says


def test_nothing_is_prescribed_that_would_make_the_better_model_worse() -> None:
    known: list[tuple[dict[str, Any], bool]] = [
        ({"drop": -0.2, "drop_low": -0.3, "drop_high": -0.1}, False),
        ({"drop": -0.02, "drop_low": -0.05, "drop_high": 0.01}, True),
        ({"label_fault": "chance", "float_value": 0.1, "quantized_value": 0.9}, False),
        ({"label_fault": "chance", "float_value": 0.1, "quantized_value": 0.1}, True),
    ]
    for metrics, prescribed in known:
        harmed = diagnosis(cause("one", advice("per-channel-weights")), metrics=MetricFacts(name="top1", **metrics))
        assert (prescribe(harmed, BASE).prescription is not None) == prescribed, metrics


def executed(found: Diagnosis, code: str, gain_db: float) -> Diagnosis:
    """The diagnosis with the prescription of one cause carried out, and what that has brought."""
    run = ExecutionRecord(
        toolchain="onnxruntime",
        choices=("one:per-channel-weights",),
        titles=("per channel",),
        code=code,
        reads="the representative set",
        trial=tried(gain_db).model_copy(update={"kind": PRESCRIPTION, "share": 0.99}),
    )
    return prescribe(found.model_copy(update={"proof": proof_of(executions=(run,), best=0)}), BASE)


def test_a_cause_that_no_edit_was_tried_for_is_proven_by_the_executed_text() -> None:
    """Integer kernels of torch cannot be edited: what was executed stands for the cause, and decides its severity."""
    untried = cause("one", advice("per-channel-weights")).model_copy(update={"severity": "medium"})
    found = diagnosis(untried, cause("two", advice("unsigned-activations")).model_copy(update={"severity": "low"}))
    text = prescribe(found, BASE).prescription
    assert text is not None and code_of(text) is not None
    proven = executed(found, code_of(text) or "", 20.0)
    assert proven.prescription is not None and proven.prescription.grade == "executed"
    first, second = proven.causes
    assert (first.severity, first.proven, first.measured_gain_db) == ("high", True, 20.0)
    assert (second.severity, second.proven) == ("low", None)


def test_what_heals_without_a_cause_leads_none() -> None:
    found = diagnosis(cause("one", advice("per-channel-weights")))
    text = prescribe(found, BASE).prescription
    healed = executed(found, (text and code_of(text)) or "", 20.0).prescription
    assert healed is not None and healed.grade == "executed"
    assert rank_executed((), healed, BASE) == ()


def test_what_was_executed_and_heals_leads_whatever_a_copy_shows() -> None:
    """A cause as severe of which nothing is known does not come before it, nor a copy that was edited incompletely."""
    untried = cause("untried", advice("reduce-range"))
    for edited, severity in [(2.0, "medium"), (30.0, "high")]:
        weak = cause("one", advice("per-channel-weights")).model_copy(
            update={"severity": severity, "measured_gain_db": edited, "proven": True}
        )
        found = diagnosis(untried, weak)
        choice = Choice("one:per-channel-weights", ((weak, weak.remedies[0]),), weak.remedies[0].title, None)
        text = code_of(write_prescription(found, [choice], ORT))
        proven = executed(found, text or "", 20.0)
        assert [each.cause for each in proven.causes] == ["one", "untried"]
        assert proven.causes[0].severity == "high"
        assert proven.causes[0].measured_gain_db == max(edited, 20.0)
