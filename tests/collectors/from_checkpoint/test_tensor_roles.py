"""What weights of language models are for, by the names of their families, and by shapes where names tell nothing."""

from pathlib import Path

import numpy as np
import pytest
from builders import checkpoints as made

from quantmedic.collectors.from_checkpoint.tensor_roles import reads_a_norm, role_of

BLOCK = "model.layers.3."
NAMES = {
    "embedding": ["model.embed_tokens.weight", "transformer.wte.weight", "token_embd.weight"],
    "norm": [
        "model.norm.weight", f"{BLOCK}input_layernorm.weight", f"{BLOCK}pre_feedforward_layernorm.weight",
        f"{BLOCK}self_attn.q_norm.weight", f"{BLOCK}self_attn.kv_a_layernorm.weight", "transformer.h.0.ln_1.weight",
        "transformer.ln_f.bias", "blk.0.attn_norm.weight", "output_norm.weight", "model.final_layernorm.bias",
    ],
    "attention": [
        f"{BLOCK}self_attn.q_proj.weight", f"{BLOCK}self_attn.qkv_proj.weight", f"{BLOCK}self_attn.dense.weight",
        f"{BLOCK}self_attn.kv_a_proj_with_mqa.weight", f"{BLOCK}self_attn.kv_b_proj.weight",
        "transformer.h.0.attn.c_attn.weight", "blk.0.attn_output.weight", f"{BLOCK}linear_attn.in_proj_qkvz.weight",
    ],
    "mlp": [
        f"{BLOCK}mlp.gate_proj.weight", f"{BLOCK}mlp.gate_up_proj.weight", f"{BLOCK}mlp.fc1.weight",
        "transformer.h.0.mlp.c_fc.weight", "blk.0.ffn_gate.weight", "layers.0.feed_forward.w1.weight",
    ],
    "router": [
        f"{BLOCK}block_sparse_moe.gate.weight", f"{BLOCK}mlp.gate.weight", f"{BLOCK}mlp.router.weight",
        f"{BLOCK}mlp.shared_expert_gate.weight", "blk.0.ffn_gate_inp.weight", f"{BLOCK}feed_forward.router.weight",
    ],
    "expert": [
        f"{BLOCK}block_sparse_moe.experts.7.w1.weight", f"{BLOCK}mlp.experts.0.gate_proj.weight",
        f"{BLOCK}mlp.shared_experts.up_proj.weight", f"{BLOCK}mlp.experts.gate_up_proj_blocks",
        "blk.0.ffn_up_exps.weight",
    ],
    "lm_head": ["lm_head.weight", "output.weight", "embed_out.weight"],
}  # fmt: skip


def test_names() -> None:
    wrong = [(name, role) for role, names in NAMES.items() for name in names if role_of(name) != role]
    assert not wrong


def test_shapes() -> None:
    expected: dict[tuple[str, tuple[int, ...]], str | None] = {
        ("x.3.a.weight", (64, 64)): "attention",
        ("x.3.a.weight", (16, 64)): "attention",
        ("x.3.b.weight", (176, 64)): "mlp",
        ("x.3.b.weight", (64, 176)): "mlp",
        ("x.3.c.weight", (64,)): "norm",
        ("x.3.c.bias", (64,)): None,
        ("x.3.d", (8, 64, 128)): "expert",
        ("words.weight", (1000, 64)): "embedding",
        ("x.3.e.weight", (32, 48)): None,
    }
    assert {(name, shape): role_of(name, shape, 64) for name, shape in expected} == expected


def test_layers_that_write_the_stream_read_no_norm() -> None:
    assert not reads_a_norm(f"{BLOCK}self_attn.o_proj.weight")
    assert not reads_a_norm(f"{BLOCK}block_sparse_moe.experts.7.w2.weight")
    assert reads_a_norm(f"{BLOCK}mlp.gate.weight")


def test_roles_are_reported_and_what_rightly_stays_float_is_no_finding(tmp_path: Path) -> None:
    """One block of a mixture: as many routers, heads and tables in float as would look partly quantized."""
    random = np.random.default_rng(0)
    floats = {n.replace("mlp.", "mlp.experts.0."): t for n, t in made.language_model(layers=1).items()}
    for name in ("gate", "shared_expert_gate"):
        floats[f"model.layers.0.mlp.{name}.weight"] = ("BF16", made.bfloat16(random.normal(0, 0.02, (8, made.HIDDEN))))
    found = made.compare(tmp_path, floats, made.quantized_model(floats, "gptq"), made.configuration("gptq"))
    assert (found.verdict, found.causes) == ("healthy", ())
    assert found.model.quantized_share == 1.0
    roles = {layer.name.rpartition(".")[2]: layer.role for layer in found.layers}
    assert roles == {
        "embed_tokens": "embedding", "lm_head": "lm_head", "gate": "router", "shared_expert_gate": "router",
        **dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), "attention"),
        **dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "expert"),
    }  # fmt: skip


ROUTER = "model.layers.0.mlp.gate"
EXPERTS = tuple(f"model.layers.0.mlp.experts.{k}.up_proj" for k in range(2))


def test_a_router_of_four_bits_is_named(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for names, shape, bits, is_named in (
        ((ROUTER, *EXPERTS), (4, 128), 4, True),
        ((ROUTER, *EXPERTS), (4, 128), 8, False),
        ((ROUTER, "model.layers.0.mlp.up_proj"), (4, 128), 4, False),
        ((ROUTER, *EXPERTS), (256, 128), 4, False),
        (("model.layers.0.mlp.gate_proj", *EXPERTS), (64, 128), 4, False),
    ):
        random = np.random.default_rng(2)
        shapes = dict.fromkeys(names, (64, 128)) | {names[0]: shape}
        floats = {f"{name}.weight": random.normal(0, 0.05, own) for name, own in shapes.items()}
        quantized = {name: made.rounded(x, bits if name == f"{names[0]}.weight" else 4) for name, x in floats.items()}
        with subtests.test(names=names, shape=shape, bits=bits):
            found = made.named(made.compare(tmp_path, made.as_float32(floats), made.as_float32(quantized)))
            subjects = {subject for cause, subject in found if cause == "quantized-router"}
            assert subjects == ({ROUTER} if is_named else set())
