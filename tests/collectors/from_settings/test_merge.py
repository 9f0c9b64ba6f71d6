"""Several files of one model in one case: who stands, what is named, and what is added to what was measured."""

from collections.abc import Mapping
from typing import Any

from quantmedic.collectors.toolchain_files.formats import Imported
from quantmedic.collectors.toolchain_files.merge import Source, imported_case, with_sources
from quantmedic.engine.case.facts import QuantizerFacts, RecordedFacts, ReportedFacts, SettingsFacts, TensorDataFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.tensors import recorded_facts


def source(name: str, **told: Any) -> Source:
    return Source(name, f"kind of {name}", "onnxruntime", Imported(**told))


def ranges(**ends: tuple[float, float]) -> Mapping[str, RecordedFacts]:
    return {name: RecordedFacts(low=low, high=high) for name, (low, high) in ends.items()}


def alone(*sources: Source) -> Case:
    return imported_case(sources)


def said(case: Case) -> str:
    return "\n".join(case.record.notices[1:])


def test_files_that_complete_each_other() -> None:
    case = alone(
        source("log", layers={"conv": ReportedFacts(cosine=0.9)}, layer_types={"conv": "Conv", "add": "Add"}),
        source("csv", layers={"conv": ReportedFacts(mse=0.5)}, tensors=ranges(conv=(-1, 1))),
        source("yaml", settings=SettingsFacts(calibration_method="kl")),
    )
    conv, add = case.record.operators
    assert (conv.reported.cosine, conv.reported.mse, conv.reported.origin) == (0.9, 0.5, "log, csv")
    assert (conv.op_type, conv.is_compute, add.is_compute) == ("Conv", True, False)
    (tensor,) = case.record.tensors
    assert (tensor.recorded.high, tensor.recorded.origin, conv.outputs) == (1, "csv", (0,))
    assert case.record.model.settings.calibration_method == "kl"
    assert case.record.model.settings.toolchain == "onnxruntime"
    assert not said(case)
    assert [row.lacks for row in case.record.imports] == [
        ("settings", "thresholds"),
        ("settings",),
        ("thresholds", "errors of layers"),
    ]


def test_of_contradictions_the_first_stands_and_both_are_named() -> None:
    case = alone(
        source("a", settings=SettingsFacts(calibration_method="kl", weight_bits=8), tensors=ranges(x=(0, 4), y=(0, 1))),
        source(
            "b",
            settings=SettingsFacts(calibration_method="minmax", weight_bits=8),
            tensors={"x": RecordedFacts(low=0, high=9, bits=4), **ranges(y=(0, 2))},
        ),
    )
    assert case.record.model.settings.calibration_method == "kl"
    x = case.record.tensors[0].recorded
    assert (x.high, x.bits, x.origin) == (4, None, "a"), "nothing of another threshold is mixed in"
    assert said(case).splitlines() == [
        "a and b contradict each other: calibration_method is kl there and minmax here; a stands",
        "a and b contradict each other: high of x is 4 there and 9 here, and 1 more thresholds differ; a stands",
    ]
    few_digits = alone(source("a", tensors=ranges(x=(-1.0, 4.0))), source("b", tensors=ranges(x=(-1.0004, 3.999))))
    assert not said(few_digits)


def test_unknown_keys_of_all_files_are_counted_and_none_is_a_fact_too() -> None:
    found = alone(
        source("a", settings=SettingsFacts(weight_bits=8), unknown=("wieght",)),
        source("b", settings=SettingsFacts(activation_bits=8), unknown=("kl_", "wieght")),
    ).record.model.settings
    assert (found.unknown_key_count, found.unknown_keys) == (2, ("wieght", "kl_"))
    assert alone(source("a", settings=SettingsFacts(weight_bits=8))).record.model.settings.unknown_key_count == 0
    assert alone(source("a", tensors=ranges(x=(0, 1)))).record.model.settings.unknown_key_count is None


def measured() -> Case:
    """Stands for a measured case: names of its own that files are matched with."""
    return alone(
        source(
            "m", layers={"block/conv": ReportedFacts(min=0.0)}, tensors=ranges(**{"block/conv": (-9, 9), "in": (0, 1)})
        )
    )


def test_names_that_match_nothing_are_counted_with_what_they_resemble() -> None:
    case = with_sources(measured(), [source("t", tensors=ranges(**{"block/conw": (0, 1), "in": (0, 1)}))])
    assert "t: 1 of its 2 tensors not found in this model: block/conw, did you mean block/conv?" in said(case)
    other = with_sources(measured(), [source("t", tensors=ranges(a=(0, 1), b=(0, 1)))])
    assert "t: none of its 2 tensors is in this model; it may be of another one: a; b" in said(other)
    assert other.record.imports[-1].tells == ("thresholds of 2 tensors, 0 of them in this model",)
    inside = with_sources(measured(), [source("t", tensors=ranges(**{"block/conv_output_0": (0, 1), "in": (0, 1)}))])
    assert not said(inside), "tensors inside of a fused layer are no strangers"


def test_thresholds_by_the_name_of_a_layer_go_to_its_output() -> None:
    case = alone(source("a", layers={"conv": ReportedFacts(cosine=1.0)}, tensors=ranges(conv=(0, 1))))
    record = case.record.model_copy(
        update={"tensors": (case.record.tensors[0].model_copy(update={"name": "t0", "float_name": "t0"}),)}
    )
    found = with_sources(Case(record, {}), [source("b", tensors={"conv": RecordedFacts(bits=8)})])
    assert found.record.tensors[0].recorded.bits == 8


def test_a_threshold_against_the_values() -> None:
    for values, low, high, overshoot, slack in (
        ((-1.0, 1.0), -1.0, 1.0, 0.0, 1.0),
        ((-1.0, 5.0), -1.0, 1.0, 2.0, 0.2),
        ((0.0, 1.0), 0.0, 4.0, 0.0, 4.0),
    ):
        ends = {"min": values[0], "max": values[1], "absmax": max(map(abs, values)), "p1": values[0], "p99": values[1]}
        data = TensorDataFacts.model_validate({"values": ends})
        quantizer = QuantizerFacts(low=-2.0, high=2.0)
        found = recorded_facts(RecordedFacts(low=low, high=high), [data, TensorDataFacts()], quantizer)
        assert (found.overshoot, found.bulk_overshoot, found.slack) == (overshoot, overshoot, slack)
        assert found.deployed_ratio == max(4 / (high - low), (high - low) / 4)


def test_what_is_not_known_of_a_threshold_stays_unknown() -> None:
    bare = recorded_facts(RecordedFacts(low=0.0, high=1.0), [], QuantizerFacts())
    assert (bare.overshoot, bare.slack, bare.deployed_ratio) == (None, None, None)
    scale_only = RecordedFacts(scale=0.1)
    assert recorded_facts(scale_only, [], QuantizerFacts(low=0.0, high=1.0)) == scale_only
    empty = RecordedFacts(low=0.0, high=0.0)
    assert recorded_facts(empty, [], QuantizerFacts(low=0.0, high=1.0)) == empty


def test_thresholds_of_what_a_layer_reads() -> None:
    case = alone(source("log", inputs=ranges(conv=(-1, 2)), layers={"conv": ReportedFacts(cosine=0.9)}))
    (conv,), (read,) = case.record.operators, case.record.tensors
    assert (conv.inputs, read.name, read.recorded.high) == ((0,), "input of conv", 2)
    again = with_sources(case, [source("other", inputs=ranges(conv=(-1, 2), cnov=(0, 1)))])
    assert "1 of its 2 layers not found in this model: cnov, did you mean conv?" in said(again)
    assert again.record.imports[-1].tells == ("thresholds of 2 tensors, 1 of them in this model",)
