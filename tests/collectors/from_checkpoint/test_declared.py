"""What a configuration declares against the tensors: cache scales, patterns of modules, overrides, tied weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import checkpoints as made

from quantmedic.collectors.from_checkpoint.declared.declared_layers import expression
from quantmedic.engine.contract.diagnosis import Diagnosis

pytestmark = pytest.mark.thorough

BLOCKS = 2
PATIENT = "model.layers.1.mlp.down_proj"
KEYS = [f"model.layers.{block}.self_attn" for block in range(BLOCKS)]
FLOATS = made.language_model(BLOCKS)


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
    kind: str,
    config: dict[str, Any],
    floats: made.Tensors = FLOATS,
    *,
    more: made.Tensors | None = None,
    in_float: tuple[str, ...] = (),
) -> Diagnosis:
    tensors = {**made.quantized_model(floats, kind), **(more or {})}
    for name in in_float:
        tensors = {key: value for key, value in tensors.items() if not key.startswith(f"{name}.")}
        tensors[f"{name}.weight"] = floats[f"{name}.weight"]
    return made.compare(folder, floats, tensors, config, {k: v for k, v in config.items() if k.startswith("tie")})


def cache_scales(value: float | None, form: str = "{block}.{kind}_scale") -> made.Tensors:
    random = np.random.default_rng(0)
    return {
        form.format(block=block, kind=kind): ("F32", np.array([value or random.uniform(0.01, 0.2)], np.float32))
        for block in KEYS
        for kind in "kv"
    }


ASKED = {"num_bits": 8, "type": "float", "dynamic": False}


OF_PROJECTIONS = "{block}.{kind}_proj.{kind}_scale"


@pytest.mark.nightly
def test_scales_of_the_cache(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """ModelOpt raises small scales of FP8 to 1."""
    for scheme, scales, expected in (
        (ASKED, cache_scales(None), []),
        (ASKED, cache_scales(None, OF_PROJECTIONS), []),
        (ASKED, {}, ["kv-scales-missing"]),
        (ASKED, dict([*cache_scales(None).items()][:3]), ["kv-scales-missing"]),
        (ASKED, cache_scales(1.0), ["kv-scales-missing"]),
        ({**ASKED, "dynamic": True}, {}, []),
        ("FP8", cache_scales(1.0, OF_PROJECTIONS), []),
        ("FP8", {}, ["kv-scales-missing"]),
    ):
        asked = "kv_cache_quant_algo" if scheme == "FP8" else "kv_cache_scheme"
        with subtests.test(scheme=scheme, scales=[*scales]):
            config = config_of("compressed", **{asked: scheme})
            assert made.causes_of(judged(tmp_path, "compressed", config, more=scales)) == expected


GROUP = {"weights": {"num_bits": 8, "group_size": 64, "symmetric": True}}
NEXT_BITS = {"weights": {"num_bits": 4, "group_size": 64, "symmetric": True}}


def group(target: str, scheme: dict[str, Any]) -> dict[str, Any]:
    """A group beside that of all linear layers."""
    return {"config_groups": {"group_1": {"targets": [target], **scheme}}}


NOT_MET, IDLE = ["configuration-not-met"], ["ignores-match-nothing"]


def test_patterns_of_compressed_tensors(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for more, expected, fact in (
        ({}, [], None),
        ({"ignore": ["lm_head", "re:.*embed_tokens"]}, [], None),
        ({"ignore": ["re:.*lm_head", "re:vision_tower.*"]}, IDLE, "first_idle_ignore"),
        ({"ignore": ["lm_head", PATIENT]}, NOT_MET, "first_declared_float"),
        ({"ignore": ["lm_head", "layers.1.mlp.down_proj"]}, NOT_MET, "first_declared_float"),
        (group("re:.*mlp.dwn", NEXT_BITS), NOT_MET, "first_idle_target"),
        (group("re:.*down_proj$", NEXT_BITS), [], None),
        (group("re:.*down_proj$", GROUP), NOT_MET, "first_unmet_override"),
        ({"ignore": ["lm_head", r"re:(.*)*x"]}, [], None),
    ):
        with subtests.test(**more):
            found = judged(tmp_path, "compressed", config_of("compressed", **more))
            assert made.causes_of(found) == expected
            assert fact is None or getattr(found.model.checkpoint, fact)


@pytest.mark.nightly
def test_a_layer_in_float_has_to_be_ignored(tmp_path: Path) -> None:
    floats = made.language_model(5)
    for ignored, expected in ([PATIENT], []), ([], NOT_MET):
        config = config_of("compressed", ignore=["lm_head", *ignored])
        found = judged(tmp_path, "compressed", config, floats, in_float=(PATIENT,))
        assert made.causes_of(found) == expected
        assert found.model.checkpoint.declared_quantized == len(expected)


@pytest.mark.nightly
def test_patterns_of_other_tools(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for kind, more, expected in (
        ("gptq", {"dynamic": {r"-:.*embed_tokens": {}}}, []),
        ("gptq", {"dynamic": {r".*\.mlp\.down_proj": {"bits": 4}}}, []),
        ("gptq", {"dynamic": {r".*\.mlp\.down_proj": {"bits": 8}}}, NOT_MET),
        ("gptq", {"dynamic": {r"+:.*\.mlp\.down_proj": {"group_size": 32}}}, NOT_MET),
        ("gptq", {"dynamic": {r"-:.*\.mlp\.down_proj": {}}}, NOT_MET),
        ("gptq", {"dynamic": {r".*\.moe\.down_proj": {"bits": 8}}}, NOT_MET),
        ("awq", {"modules_to_not_convert": ["down_proj"]}, NOT_MET),
        ("awq", {"modules_to_not_convert": ["block_sparse_moe"]}, IDLE),
        ("compressed", {"exclude_modules": ["lm_head", "model.embed*"]}, []),
        ("compressed", {"exclude_modules": ["model.layers.1.mlp*"]}, NOT_MET),
    ):
        with subtests.test(kind, **more):
            assert made.causes_of(judged(tmp_path, kind, config_of(kind, **more))) == expected


@pytest.mark.nightly
def test_tied_weights(tmp_path: Path, subtests: pytest.Subtests) -> None:
    tied = {name: tensor for name, tensor in FLOATS.items() if name != "lm_head.weight"}
    table = made.from_bfloat16(FLOATS["model.embed_tokens.weight"][1])
    codes = made.quantize(table, 4, made.GROUP, symmetric=False)
    heads: dict[str, tuple[made.Tensors, list[str]]] = {
        "none": ({}, []),
        "equal": ({"lm_head.weight": ("BF16", made.bfloat16(table))}, []),
        "scaled": ({"lm_head.weight": ("BF16", made.bfloat16(1.5 * table))}, ["tied-weights-differ"]),
        "quantized": (made.gptq("lm_head", *codes, 4), ["tied-weights-differ"]),
    }
    config = {**config_of("gptq"), "tie_word_embeddings": True}
    for head, (more, expected) in heads.items():
        with subtests.test(head):
            assert made.causes_of(judged(tmp_path, "gptq", config, tied, more=more)) == expected
    not_tied = {**config_of("gptq"), "tie_word_embeddings": False}
    assert made.causes_of(judged(tmp_path, "gptq", not_tied)) == []


def test_expressions_are_matched_where_they_end() -> None:
    endless = ["(a+)+$", "(.*)*x", "a*" * 9, "a{1,}{1,}", "(", "x" * 600, r"(a)\1"]
    assert [text for text in endless if expression(text) is not None] == []
    usual = [r".*mlp\.gate$", r"model\.layers\.(0|1)\..*", r".*self_attn.*q_proj$", r".*\.[1-3]\..+"]
    assert [text for text in usual if expression(text) is None] == []


@pytest.mark.nightly
def test_how_weights_were_quantized_is_told(tmp_path: Path) -> None:
    for kind, more, expected in (
        ("gptq", {"sym": False, "desc_act": True, "group_size": -1}, (-1, False, True)),
        ("gptq", {"sym": "no", "group_size": None}, (None, None, False)),
        ("compressed", {}, (made.GROUP, True, None)),
        ("awq", {}, (made.GROUP, None, None)),
    ):
        said = judged(tmp_path, kind, config_of(kind, **more)).model.checkpoint
        assert (said.declared_group_size, said.declared_symmetric, said.declared_order) == expected, (kind, more)
