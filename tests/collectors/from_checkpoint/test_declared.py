"""What a configuration declares against the tensors: cache scales, patterns of modules, overrides, tied weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import checkpoints as made

import quantmedic
from quantmedic.collectors.from_checkpoint.name_patterns import expression
from quantmedic.engine.contract.diagnosis import Diagnosis

pytestmark = pytest.mark.thorough

BLOCKS = 2
PATIENT = "model.layers.1.mlp.down_proj"
KEYS = [f"model.layers.{block}.self_attn" for block in range(BLOCKS)]
every_seed = pytest.mark.parametrize("seed", range(3))


def config_of(kind: str, **more: Any) -> dict[str, Any]:
    own = {**made.CONFIGS[kind], **more}
    if kind == "compressed":
        own["config_groups"] = {
            "group_0": {"targets": ["Linear"], **made.CONFIGS[kind]["config_groups"]["group_0"]},
            **more.get("config_groups", {}),
        }
        own.setdefault("ignore", ["lm_head"])
    return {"quantization_config": own}


def judged(
    folder: Path,
    floats: made.Tensors,
    kind: str,
    config: dict[str, Any],
    *,
    more: made.Tensors | None = None,
    in_float: tuple[str, ...] = (),
) -> Diagnosis:
    before = made.write_folder(folder / "float", floats, {k: v for k, v in config.items() if k.startswith("tie")})
    tensors = {**made.quantized_model(floats, kind), **(more or {})}
    for name in in_float:
        tensors = {key: value for key, value in tensors.items() if not key.startswith(f"{name}.")}
        tensors[f"{name}.weight"] = floats[f"{name}.weight"]
    return quantmedic.compare_weights(before, made.write_folder(folder / "quantized", tensors, config))


def causes(diagnosis: Diagnosis) -> list[str]:
    return [cause.cause for cause in diagnosis.causes]


def cache_scales(value: float | None, form: str = "{block}.{kind}_scale") -> made.Tensors:
    random = np.random.default_rng(0)
    return {
        form.format(block=block, kind=kind): ("F32", np.array([value or random.uniform(0.01, 0.2)], np.float32))
        for block in KEYS
        for kind in "kv"
    }


ASKED = {"num_bits": 8, "type": "float", "dynamic": False}


@every_seed
@pytest.mark.parametrize(
    ("scheme", "scales", "expected"),
    [
        (ASKED, cache_scales(None), []),
        (ASKED, cache_scales(None, "{block}.{kind}_proj.{kind}_scale"), []),
        (ASKED, {}, ["kv-scales-missing"]),
        (ASKED, dict([*cache_scales(None).items()][:3]), ["kv-scales-missing"]),
        (ASKED, cache_scales(1.0), ["kv-scales-missing"]),
        ({**ASKED, "dynamic": True}, {}, []),
        (None, {}, []),
    ],
)
def test_scales_of_the_cache(
    tmp_path: Path, seed: int, scheme: dict[str, Any] | None, scales: made.Tensors, expected: list[str]
) -> None:
    floats = made.language_model(BLOCKS, seed)
    found = judged(tmp_path, floats, "compressed", config_of("compressed", kv_cache_scheme=scheme), more=scales)
    assert causes(found) == expected


@pytest.mark.parametrize(("value", "expected"), [(None, []), (1.0, []), (0.0, ["kv-scales-missing"])])
def test_scales_of_the_cache_of_modelopt(tmp_path: Path, value: float | None, expected: list[str]) -> None:
    """It raises small scales of FP8 to 1."""
    scales = {} if value == 0.0 else cache_scales(value, "{block}.{kind}_proj.{kind}_scale")
    floats, config = made.language_model(BLOCKS), config_of("compressed", kv_cache_quant_algo="FP8")
    assert causes(judged(tmp_path, floats, "compressed", config, more=scales)) == expected


GROUP = {"weights": {"num_bits": 8, "group_size": 64, "symmetric": True}}
NEXT_BITS = {"weights": {"num_bits": 4, "group_size": 64, "symmetric": True}}


def group(target: str, scheme: dict[str, Any]) -> dict[str, Any]:
    """A group beside that of all linear layers."""
    return {"config_groups": {"group_1": {"targets": [target], **scheme}}}


@every_seed
@pytest.mark.parametrize(
    ("more", "expected", "fact"),
    [
        ({}, [], None),
        ({"ignore": ["lm_head", "re:.*embed_tokens"]}, [], None),
        ({"ignore": ["re:.*lm_head", "re:vision_tower.*"]}, ["ignores-match-nothing"], "first_idle_ignore"),
        ({"ignore": ["lm_head", "model.layer.0.mlp.down_proj"]}, ["ignores-match-nothing"], "first_idle_ignore"),
        ({"ignore": ["lm_head", PATIENT]}, ["configuration-not-met"], "first_declared_float"),
        ({"ignore": ["lm_head", "layers.1.mlp.down_proj"]}, ["configuration-not-met"], "first_declared_float"),
        (group("re:.*mlp.dwn", NEXT_BITS), ["configuration-not-met"], "first_idle_target"),
        (group("re:.*down_proj$", NEXT_BITS), [], None),
        (group("re:.*down_proj$", GROUP), ["configuration-not-met"], "first_unmet_override"),
        (group(PATIENT, GROUP), ["configuration-not-met"], "first_unmet_override"),
        ({"ignore": ["lm_head", r"re:(.*)*x"]}, [], None),
    ],
)
def test_patterns_of_compressed_tensors(
    tmp_path: Path, seed: int, more: dict[str, Any], expected: list[str], fact: str | None
) -> None:
    found = judged(tmp_path, made.language_model(BLOCKS, seed), "compressed", config_of("compressed", **more))
    assert causes(found) == expected
    assert fact is None or getattr(found.model.checkpoint, fact)


@every_seed
@pytest.mark.parametrize(("said", "expected"), [(True, []), (False, ["configuration-not-met"])])
def test_a_layer_in_float_has_to_be_ignored(tmp_path: Path, seed: int, said: bool, expected: list[str]) -> None:
    config = config_of("compressed", ignore=["lm_head", *([PATIENT] if said else [])])
    floats = made.language_model(5, seed)
    found = judged(tmp_path, floats, "compressed", config, in_float=(PATIENT,))
    assert causes(found) == expected
    assert found.model.checkpoint.declared_quantized == (0 if said else 1)


@every_seed
@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [
        ("gptq", {"dynamic": {}}, []),
        ("gptq", {"dynamic": {r"-:.*embed_tokens": {}}}, []),
        ("gptq", {"dynamic": {r".*\.mlp\.down_proj": {"bits": 4}}}, []),
        ("gptq", {"dynamic": {r".*\.mlp\.down_proj": {"bits": 8}}}, ["configuration-not-met"]),
        ("gptq", {"dynamic": {r"+:.*\.mlp\.down_proj": {"group_size": 32}}}, ["configuration-not-met"]),
        ("gptq", {"dynamic": {r"-:.*\.mlp\.down_proj": {}}}, ["configuration-not-met"]),
        ("gptq", {"dynamic": {r".*\.moe\.down_proj": {"bits": 8}}}, ["configuration-not-met"]),
        ("awq", {"modules_to_not_convert": ["lm_head"]}, []),
        ("awq", {"modules_to_not_convert": ["down_proj"]}, ["configuration-not-met"]),
        ("awq", {"modules_to_not_convert": ["block_sparse_moe"]}, ["ignores-match-nothing"]),
        ("compressed", {"exclude_modules": ["lm_head", "model.embed*"]}, []),
        ("compressed", {"exclude_modules": ["model.layers.1.mlp*"]}, ["configuration-not-met"]),
    ],
)
def test_patterns_of_other_tools(
    tmp_path: Path, seed: int, kind: str, more: dict[str, Any], expected: list[str]
) -> None:
    assert causes(judged(tmp_path, made.language_model(BLOCKS, seed), kind, config_of(kind, **more))) == expected


def tied(seed: int) -> made.Tensors:
    floats = made.language_model(BLOCKS, seed)
    return {name: tensor for name, tensor in floats.items() if name != "lm_head.weight"}


@every_seed
@pytest.mark.parametrize(
    ("head", "expected"),
    [("none", []), ("equal", []), ("scaled", ["tied-weights-differ"]), ("quantized", ["tied-weights-differ"])],
)
def test_tied_weights(tmp_path: Path, seed: int, head: str, expected: list[str]) -> None:
    floats = tied(seed)
    table = made.from_bfloat16(floats["model.embed_tokens.weight"][1])
    codes = made.quantize(table, 4, made.GROUP, symmetric=False)
    more: dict[str, made.Tensors] = {
        "none": {},
        "equal": {"lm_head.weight": ("BF16", made.bfloat16(table))},
        "scaled": {"lm_head.weight": ("BF16", made.bfloat16(1.5 * table))},
        "quantized": made.gptq("lm_head", *codes, 4),
    }
    config = {**config_of("gptq"), "tie_word_embeddings": True}
    assert causes(judged(tmp_path, floats, "gptq", config, more=more[head])) == expected


def test_weights_that_are_not_tied_may_differ(tmp_path: Path) -> None:
    config = {**config_of("gptq"), "tie_word_embeddings": False}
    assert causes(judged(tmp_path, made.language_model(BLOCKS), "gptq", config)) == []


@pytest.mark.parametrize("text", ["(a+)+$", "(.*)*x", "a*" * 9, "a{1,}{1,}", "(", "x" * 600, r"(a)\1"])
def test_expressions_that_may_never_end_are_not_matched(text: str) -> None:
    assert expression(text) is None


@pytest.mark.parametrize(
    "text", [r".*mlp\.gate$", r"model\.layers\.(0|1)\..*", r".*self_attn.*q_proj$", r".*\.[1-3]\..+"]
)
def test_usual_expressions_are_matched(text: str) -> None:
    assert expression(text) is not None


@pytest.mark.parametrize(
    "settings",
    [
        {"config_groups": {"g": {"targets": [1, None, "a"], "weights": {"num_bits": "x", "group_size": []}}}},
        {"config_groups": {"g": 5, "h": {"targets": "Linear", "weights": {}}}, "ignore": "lm_head"},
        {"config_groups": [], "ignore": {"a": 1}, "modules_to_not_convert": 7, "exclude_modules": [[]]},
        {"dynamic": {"(": 3, "-:[": {}, ".*": {"bits": True}}},
        {"dynamic": [], "kv_cache_scheme": [], "kv_cache_quant_algo": 8},
        {"kv_cache_scheme": {"num_bits": {}, "type": [1]}, "quant_method": 5},
    ],
)
def test_configurations_of_strangers_raise_nothing(tmp_path: Path, settings: dict[str, Any]) -> None:
    floats = made.language_model(1)
    before = made.write_folder(tmp_path / "float", floats)
    config = {"quantization_config": settings, "tie_word_embeddings": "yes", "text_config": 3}
    after = made.write_folder(tmp_path / "quantized", made.quantized_model(floats, "gptq"), config)
    assert quantmedic.compare_weights(before, after).model.checkpoint.tensors == len(floats)


@pytest.mark.parametrize(
    "kind, more, expected",
    [
        ("gptq", {"sym": False, "desc_act": True, "group_size": -1}, (-1, False, True)),
        ("gptq", {"sym": "no", "group_size": None}, (None, None, False)),
        ("compressed", {}, (made.GROUP, True, None)),
        ("awq", {}, (made.GROUP, None, None)),
    ],
)
def test_how_weights_were_quantized_is_told(
    tmp_path: Path, kind: str, more: dict[str, Any], expected: tuple[int | None, bool | None, bool | None]
) -> None:
    said = judged(tmp_path, made.language_model(BLOCKS), kind, config_of(kind, **more)).model.checkpoint
    assert (said.declared_group_size, said.declared_symmetric, said.declared_order) == expected
