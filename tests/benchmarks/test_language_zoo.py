"""The zoo of language models: its parts, its figures, and one fault and one control asked from end to end."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
from safetensors.numpy import load_file
from zoo.protocol.row import Cause, Said
from zoo_language.activations import (
    INT8_TENSOR,
    built_model,
    reached,
    with_cache,
    with_constant_keys,
    with_inputs,
    with_loud_keys,
    with_massive_tokens,
)
from zoo_language.asking import Asker, Result
from zoo_language.cases import Spec, specs
from zoo_language.networks import ARCHITECTURES, Network, trained
from zoo_language.patient import float_patient
from zoo_language.registry import BASES, CONTROLS, FAULTS
from zoo_language.surgery import Inapplicable
from zoo_language.tables import render, render_misses
from zoo_language.texts import VOCABULARY, drawn_texts, held_out_bytes, training_bytes, unigram_entropy

from quantmedic.api.rulebase import load_rulebase

pytestmark = pytest.mark.thorough


def test_tuning_does_not_see_the_untouched_part() -> None:
    tune, untouched = list(specs("tune")), list(specs("untouched"))
    assert not {spec.seed for spec in tune} & {spec.seed for spec in untouched}
    unseen = {spec.architecture.name for spec in untouched} - {spec.architecture.name for spec in tune}
    assert unseen == {"phi3", "qwen3moe"}
    assert len({spec.name for spec in [*tune, *untouched]}) == len(tune) + len(untouched)
    assert {spec.seed for spec in specs("untouched", 7)} == {7}
    assert len(FAULTS) >= 20 and len(CONTROLS) >= 30


def test_causes_that_are_right_are_causes_of_rules() -> None:
    known = {rule.cause for rule in load_rulebase().rules}
    for fault in FAULTS.values():
        assert {*fault.expected, *fault.also} <= known, fault.kind


def test_texts_that_are_asked_about_were_not_learned_from() -> None:
    assert len(training_bytes()) > 6 * len(held_out_bytes()) > 100_000
    assert 2 < unigram_entropy() < 4 and training_bytes().max() < VOCABULARY


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Network:
    """A few steps of training: enough for weights with a structure."""
    return trained(ARCHITECTURES["llama"], 1, tmp_path_factory.mktemp("networks"), steps=4)


def ask(kind: str, network: Network, keep: Path | None = None, *, is_quick: bool = False) -> Result:
    spec = Spec(network.architecture, network.seed, kind, is_control=kind in CONTROLS)
    return Asker(keep, is_quick).ask(spec, network)


@pytest.mark.nightly
def test_a_fault_is_named(network: Network, tmp_path: Path) -> None:
    result = ask("gate-and-up-exchanged", network, tmp_path)
    assert [result.place(answer) for answer in result.answers] == [1, 1]
    again = ask("gate-and-up-exchanged", network, tmp_path, is_quick=True)
    assert (again.plain, again.told, again.growth) == (result.plain, result.told, result.growth)


@pytest.mark.nightly
def test_a_control_is_healthy(network: Network) -> None:
    result = ask("int8", network)
    assert result.counts and not result.plain.serious and not result.told.serious


def test_larger_activations_and_keys_leave_the_float_function(network: Network) -> None:
    """But they are larger: scales that are calibrated on them are."""
    patient = float_patient(network, 1).with_scheme(BASES["int8"])
    ids = torch.from_numpy(drawn_texts(held_out_bytes(), 2, 32, 5))
    first = reached(network, patient.floats)
    for change, factor in ((with_massive_tokens, 64.0), (with_loud_keys, 32.0)):
        changed = change(patient, factor)
        with torch.inference_mode():
            before, after = (built_model(network, weights)(ids).logits for weights in (patient.floats, changed))
        torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-3)
        second = reached(network, changed)
        figures = [found.inputs if change is with_massive_tokens else found.caches for found in (first, second)]
        assert any(np.max(figures[1][name]) > 4 * np.max(figures[0][name]) for name in figures[0]), change


@pytest.mark.nightly
def test_a_constant_in_keys_hardly_changes_what_the_float_network_predicts(network: Network, tmp_path: Path) -> None:
    """And only networks whose keys have biases can have one."""
    with pytest.raises(Inapplicable, match="no biases"):
        with_constant_keys(float_patient(network, 1), 512.0)
    own = trained(ARCHITECTURES["qwen2"], 1, tmp_path, steps=4)
    patient = float_patient(own, 1)
    changed = with_constant_keys(patient, 512.0)
    ids = torch.from_numpy(drawn_texts(held_out_bytes(), 2, 32, 5))
    with torch.inference_mode():
        before, after = (built_model(own, weights)(ids).logits for weights in (patient.floats, changed))
    assert (after - before).abs().mean() < 0.05 * before.std()
    first, second = (reached(own, weights).caches for weights in (patient.floats, changed))
    assert all(second[name][0] > 50 * first[name][0] and second[name][1] < 2 * first[name][1] for name in first)


def test_scales_of_caches_and_inputs_are_stored(network: Network, tmp_path: Path) -> None:
    patient = with_cache(with_inputs(float_patient(network, 1).with_scheme(BASES["int8"]), INT8_TENSOR), INT8_TENSOR)
    _, folder = patient.written(tmp_path)
    names = {name for file in folder.glob("*.safetensors") for name in load_file(file)}
    assert sum(name.endswith(".input_scale") for name in names) == 28
    assert sum(name.endswith(("k_scale", "v_scale")) for name in names) == 8
    said = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert said["config_groups"]["group_0"]["input_activations"] == INT8_TENSOR
    assert said["kv_cache_scheme"] == INT8_TENSOR and said["config_groups"]["group_0"]["weights"]["num_bits"] == 8


def test_a_missing_shard_is_an_error_where_texts_are_run(network: Network) -> None:
    result = ask("tensors-lost", network)
    assert result.told.error and [result.place(answer) for answer in result.answers] == [1, 1]


def result(kind: str, growth: float, *names: str, severity: str = "high") -> Result:
    spec = Spec(ARCHITECTURES["llama"], 1, kind, is_control=kind in CONTROLS)
    answer = Said("degraded", tuple(Cause(name, severity) for name in names))
    return Result(spec, answer, answer, growth)


def test_the_table_counts_what_is_felt() -> None:
    found = [
        result("all-at-2-bits", 0.5, "noise-of-one-block", "too-few-weight-bits"),
        result("blocks-exchanged", 0.5, "exchanged-weights"),
        result("groups-too-large", 0.015, "noise-of-one-block"),
        result("int8", 0.0),
        result("float8", 0.0, "foreign-weights"),
        result("nf4", 0.02, "foreign-weights"),
    ]
    text = render(found)
    assert "| all | 2 | 50.0 % (9.5 … 90.5) | 100.0 % (34.2 … 100.0) |" in text, "Wilson's interval"
    assert "| all | 2 | 50.0 % (9.5 … 90.5) | 50.0 % (9.5 … 90.5) |" in text
    assert "1 faults that the perplexity hardly feels (1 with a false alarm), 1 controls" in text
    misses = render_misses(found)
    assert misses.count("MISS") == misses.count("ALARM") == 2 and "nf4" not in misses
