"""Mutations of what lies beside the weights of a language model: they know which fields the readers look at."""

import json
import random
from collections.abc import Callable
from typing import Any

from mutate_text import NUMBERS, STRINGS, any_value, times
from mutate_trees import json_bytes, mutate_json

#: Fields that count, and fields that measure, in one architecture or another.
_COUNTS = (
    "num_hidden_layers n_layer num_layers n_layers decoder_layers encoder_layers num_blocks num_experts "
    "num_local_experts n_routed_experts num_attention_heads num_key_value_heads n_head num_labels num_experts_per_tok"
)
_SIZES = (
    "hidden_size intermediate_size vocab_size head_dim max_position_embeddings n_positions sliding_window rope_theta "
    "n_embd d_model moe_intermediate_size kv_lora_rank bos_token_id pad_token_id rms_norm_eps initializer_range "
    "rotary_dim partial_rotary_factor final_logit_softcapping logit_scale"
)
_INNER = (
    "text_config",
    "rope_scaling",
    "rope_parameters",
    "attn_config",
    "decoder",
    "vision_config",
    "quantization_config",
)
_KINDS = (
    "gpt2 mistral mixtral qwen2 qwen3 qwen2_moe gemma gemma2 phi phi3 opt bloom falcon gpt_neox gptj mpt mamba jamba "
    "falcon_mamba bamba zamba2 deepseek_v3 gpt_oss olmoe cohere granite t5 bart bert llava qwen2_vl whisper llama4 dbrx"
)
_NAMING = {
    "attn_implementation": ("kernels-community/flash-attn3", "flash_attention_2", "org/name@main:attend", "sdpa"),
    "_attn_implementation": ("kernels-community/flash-attn3", {"": "kernels-community/paged"}),
    "_attn_implementation_internal": ("kernels-community/flash-attn3",),
    "experts_implementation": ("grouped_mm", "org/experts"),
    "auto_map": ({"AutoConfig": "org/name--mine.Config", "AutoModelForCausalLM": "mine.Model"},),
    "quantization_config": ({"quant_method": "gptq", "bits": 4}, {"quant_method": "fbgemm_fp8"}),
    "tokenizer_class": ("mine.Tokenizer",),
    "device_map": ("cuda", {"": "disk"}),
    "dtype": ("float8_e4m3fn", "bool", "__import__"),
    "layer_types": (["full_attention"] * 3, ["mamba"], ["x"]),
    "hidden_act": ("gelu", "org/kernel", "xielu"),
    "rope_scaling": (
        {"rope_type": "yarn", "factor": 0.0},
        {"rope_type": "longrope"},
        {"type": "dynamic", "factor": 1e308},
    ),
}


def mutate_config(content: bytes, rng: random.Random) -> bytes:
    """Counts and sizes of all architectures, in inner tables too, and fields that name code; rarely any other."""
    if rng.random() < 0.2:
        return mutate_json(content, rng)
    tree = json.loads(content)
    for _ in times(rng):
        place = tree if rng.random() < 0.8 else tree.setdefault(rng.choice(_INNER), {})
        _change_config(place if isinstance(place, dict) else tree, rng)
    return json_bytes(tree)


def _change_config(tree: dict[str, Any], rng: random.Random) -> None:
    change = rng.random()
    if change < 0.35:
        tree[rng.choice(_COUNTS.split())] = rng.choice((0, 2, 3, 1.0, "1", *NUMBERS))
    elif change < 0.65:
        tree[rng.choice(_SIZES.split())] = rng.choice((1, 2, 16, 64, 1e-9, None, *NUMBERS))
    elif change < 0.85:
        key = rng.choice(list(_NAMING))
        tree[key] = rng.choice(_NAMING[key])
    elif change < 0.95:
        tree["model_type"] = rng.choice(_KINDS.split())
    else:
        tree[rng.choice(("to_dict", "__class__", "__dict__", "get_text_config", *STRINGS))] = any_value(rng)


#: What is changed of a tokenizer, by the part that it stands in.
_PARTS: dict[str, tuple[Any, ...]] = {
    "normalizer": (
        {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
        {"type": "Replace", "pattern": {"Regex": "(a*)*b"}, "content": "x"},
        {"type": "Replace", "pattern": {"String": ""}, "content": "x" * 99},
        {"type": "Prepend", "prepend": "x" * 100_000},
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Nmt"}]},
    ),
    "pre_tokenizer": (
        {"type": "Split", "pattern": {"Regex": "(?=.)"}, "behavior": "Isolated", "invert": False},
        {"type": "Split", "pattern": {"String": ""}, "behavior": "Removed", "invert": True},
        {"type": "FixedLength", "length": 0},
        {"type": "Digits", "individual_digits": True},
        {"type": "Metaspace", "replacement": "ab", "prepend_scheme": "always", "split": True},
        {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": False},
        {"type": "UnicodeScripts"},
    ),
    "post_processor": (
        {
            "type": "RobertaProcessing",
            "sep": ["a", 2**32 - 1],
            "cls": ["b", 0],
            "trim_offsets": True,
            "add_prefix_space": True,
        },
        {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "none", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        },
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    ),
    "decoder": (
        {"type": "WordPiece", "prefix": "", "cleanup": True},
        {"type": "Strip", "content": "a", "start": 2**40, "stop": 2**40},
        {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ),
    "padding": (
        {"strategy": {"Fixed": 2**31}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "a"},
        {
            "strategy": "BatchLongest",
            "pad_to_multiple_of": 0,
            "direction": "Left",
            "pad_id": 9,
            "pad_type_id": 0,
            "pad_token": "a",
        },
    ),
    "truncation": ({"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 5},),
}


def mutate_tokenizer(content: bytes, rng: random.Random) -> bytes:
    """Parts replaced by others, the vocabulary and its merges damaged; rarely any other field."""
    if rng.random() < 0.2:
        return mutate_json(content, rng)
    tree = json.loads(content)
    for _ in times(rng):
        _change_tokenizer(tree, rng)
    return json_bytes(tree)


def _change_tokenizer(tree: dict[str, Any], rng: random.Random) -> None:
    model = tree["model"]
    vocab = model["vocab"] if isinstance(model.get("vocab"), dict) else {}
    changes: list[Callable[[], Any]] = [
        lambda: tree.update(added_tokens=[_added(rng)] * rng.choice((1, 2, 3000))),
        lambda: model.update(dropout=rng.choice((0.1, 0.5, 1.0, 0, 2.0, "x", -1))),
        lambda: model.update(unk_token=rng.choice((None, "none", "a", ""))),
        lambda: model.update(continuing_subword_prefix=rng.choice(("##", "é", "x" * 999))),
        lambda: model.update(byte_fallback=True, ignore_merges=True, fuse_unk=True),
        lambda: model.update(merges=[rng.choice(("a b", "zz yy", ["a", "b"], ["", ""], "a", ["a"] * 3))]),
        lambda: vocab.update(
            {rng.choice(list(vocab) or ["a"]): rng.choice((0, 7, 511, 512, 2**31, 2**32 - 1, 2**32, -1))}
        ),
        lambda: vocab.pop(rng.choice(list(vocab) or ["a"]), None),
        lambda: tree.update(model=_other_model(vocab, rng)),
    ]
    part = rng.choice(list(_PARTS))
    changes += [lambda: tree.update({part: rng.choice(_PARTS[part])})] * 6
    rng.choice(changes)()


def _added(rng: random.Random) -> dict[str, Any]:
    flags = {name: rng.random() < 0.5 for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
    return {"id": rng.choice((0, 50, 511, 2**31, 2**32 - 1)), "content": rng.choice(("a", "", "<x>", " ")), **flags}


def _other_model(vocab: dict[str, int], rng: random.Random) -> dict[str, Any]:
    pieces = [[word, rng.choice((-1.0, 0.0, -1e308, 1e308))] for word in vocab] * rng.choice((0, 1))
    return rng.choice(
        (
            {"type": "WordLevel", "vocab": vocab, "unk_token": rng.choice(("a", "none"))},
            {
                "type": "WordPiece",
                "vocab": vocab,
                "unk_token": rng.choice(("a", "none")),
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": rng.choice((0, 100)),
            },
            {
                "type": "Unigram",
                "vocab": pieces,
                "unk_id": rng.choice((0, None, 99)),
                "byte_fallback": rng.random() < 0.5,
            },
        )
    )
