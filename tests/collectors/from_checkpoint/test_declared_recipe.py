"""What a configuration of compressed-tensors says, as a recipe of llm-compressor takes it."""

import json
from typing import Any

import pytest
from builders.strange_configurations import strange_configurations
from hypothesis import given

from quantmedic.collectors.from_checkpoint.declared.declared_facts import declared_recipe, is_per_channel

WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 64, "dynamic": False}


def groups_of(settings: dict[str, Any]) -> Any:
    text = declared_recipe(settings)["declared_groups"]
    return None if text is None else json.loads(str(text))


def test_what_says_how_numbers_are_quantized_is_kept() -> None:
    told = {**WEIGHTS, "actorder": "group", "observer": "mse", "observer_kwargs": {}, "block_structure": None}
    inputs = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "scale_dtype": None}
    group = {"targets": ["Linear"], "weights": told, "input_activations": inputs, "output_activations": None}
    found = groups_of({"config_groups": {"group_0": {**group, "format": "pack-quantized"}}})
    wanted = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
    assert found == {"group_0": {"targets": ["Linear"], "weights": WEIGHTS, "input_activations": wanted}}
    kept = groups_of({"config_groups": {"a": {**group, "weights": {**told, "actorder": "weight"}}}})
    assert kept["a"]["weights"]["actorder"] == "weight"


def test_the_cache_is_kept() -> None:
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    found = declared_recipe({"kv_cache_scheme": {**scheme, "observer": "minmax", "group_size": None}})
    assert json.loads(str(found["declared_cache"])) == scheme and found["declared_groups"] is None


def test_what_is_not_known_whole_is_not_told() -> None:
    unknown: list[Any] = [None, {}, [], {"a": {"targets": "Linear"}}, {"a": {"targets": [3]}}]
    unknown += [{"a": {"targets": ["Linear"]}, "b": {"targets": []}}, {"a": {"targets": ["x" * 201]}}]
    unknown += [{str(number): {"targets": ["Linear"]} for number in range(65)}]
    assert [groups for groups in unknown if groups_of({"config_groups": groups}) is not None] == []


def test_one_scale_per_channel() -> None:
    for strategies, expected in (["channel"], True), (["channel", "group"], False), ([], False):
        groups = {str(k): {"targets": ["Linear"], "weights": {"strategy": own}} for k, own in enumerate(strategies)}
        assert is_per_channel({"config_groups": groups}) is expected, strategies


@given(strange_configurations())
def test_no_configuration_is_an_accident(settings: dict[str, Any]) -> None:
    for text in declared_recipe(settings).values():
        assert text is None or isinstance(json.loads(str(text)), dict)
    assert is_per_channel(settings) in (True, False)


@pytest.mark.thorough
def test_what_compressed_tensors_writes_is_read_back_by_it(subtests: pytest.Subtests) -> None:
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.quantization import QuantizationScheme, preset_name_to_scheme

    left = {"observer", "zp_dtype"}  # chosen anew; of symmetric numbers no zero points are stored
    for preset in ("W4A16", "W8A8", "FP8", "NVFP4", "MXFP4", "MXFP8", "FP8_BLOCK"):
        with subtests.test(preset):
            scheme = preset_name_to_scheme(preset, ["Linear"])
            told = groups_of({"config_groups": {"a": scheme.model_dump()}})["a"]
            found = QuantizationScheme.model_validate(told)
            for part in ("weights", "input_activations"):
                own, wanted = getattr(found, part), getattr(scheme, part)
                assert (own is None) == (wanted is None)
                assert own is None or own.model_dump(exclude=left) == wanted.model_dump(exclude=left)
