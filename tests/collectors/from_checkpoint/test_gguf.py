"""Models of llama.cpp: blocks as its package reads them, names, healthy conversions, and faults that are named."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import checkpoints as made
from builders import gguf_files as llama

import quantmedic
from quantmedic.collectors.from_checkpoint.gguf.blocks import BLOCK_TYPES, BLOCKS
from quantmedic.collectors.from_checkpoint.gguf.checkpoint import open_gguf, open_gguf_files
from quantmedic.engine.case.facts import WeightFacts
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.errors import ModelError

RECORDED = Path(__file__).parents[2] / "recordings/gguf"
EXPECTED = np.load(RECORDED / "blocks.npz")
FLOATS = made.language_model(layers=2)
# Tokens that no text holds end as zeros, whose block has a scale of 0.
FLOATS["model.embed_tokens.weight"][1][:2] = 0
PATIENT = "model.layers.1.mlp.up_proj"


def mixed(name: str) -> str:
    """As Q4_K_M mixes types."""
    return "Q6_K" if "v_proj" in name or "down_proj" in name or "lm_head" in name else "Q4_K"


@pytest.fixture(scope="module")
def float_folder(tmp_path_factory: Any) -> Path:
    return made.write_folder(tmp_path_factory.mktemp("float"), FLOATS)


def compared(floats: Path, quantized: Path) -> tuple[Diagnosis, dict[str, WeightFacts]]:
    case = quantmedic.collect(floats, quantized, weights_only=True)
    return quantmedic.judge(case), made.facts_of(case)


# blocks and the container, against llama.cpp's package


def test_blocks_are_those_of_the_package_to_the_bit(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for kind in sorted(BLOCK_TYPES):
        with subtests.test(kind):
            blocks, values = EXPECTED[f"{kind}/blocks"], EXPECTED[f"{kind}/values"]
            shape = (len(blocks), BLOCKS[kind][0])
            path = llama.written(tmp_path / "x.gguf", {"blk.0.ffn_up.weight": (kind, shape, blocks.tobytes())})
            layer = open_gguf(path).layers["blk.0.ffn_up"]
            found = layer.read(slice(3, 9), layer.declared)
            np.testing.assert_array_equal(found.values().view(np.uint32), values[3:9].view(np.uint32))
            if layer.even:
                assert found.codes.min() >= layer.ends[0] and found.codes.max() <= layer.ends[1]


def test_a_file_of_the_package(tmp_path: Path) -> None:
    metadata, tensors = open_gguf_files(RECORDED / "q4_0.gguf")
    assert metadata["general.architecture"] == "llama" and metadata["general.tested"] is True
    assert [(own.name, own.dtype, own.shape) for own in tensors] == [
        ("blk.0.ffn_up.weight", "Q4_0", (64, 64)),
        ("blk.0.ffn_norm.weight", "F32", (64,)),
    ]
    found, weights = compared(RECORDED / "f16.gguf", RECORDED / "q4_0.gguf")
    assert (found.verdict, found.causes, found.model.framework) == ("healthy", (), "gguf")
    facts = weights["blk.0.ffn_up"]
    assert (facts.quantizer.bits, facts.group_size, facts.format) == (4, 32, "gguf q4_0")
    assert facts.rounding.sqnr_db == pytest.approx(19.5, abs=2)


def test_what_needs_even_steps_is_not_judged_without(tmp_path: Path) -> None:
    blocks = EXPECTED["IQ4_NL/blocks"]
    values = EXPECTED["IQ4_NL/values"].astype(np.float32)
    name, shape = "blk.0.ffn_up.weight", values.shape
    floats = llama.written(tmp_path / "f.gguf", {name: ("F32", shape, (values * 1.01).tobytes())})
    path = llama.written(tmp_path / "q.gguf", {name: ("IQ4_NL", shape, blocks.tobytes())})
    facts = compared(floats, path)[1]["blk.0.ffn_up"]
    assert (facts.quantizer.bits, facts.group_size, facts.rounding.sqnr_db) == (4, 32, pytest.approx(40.1, abs=0.2))
    assert facts.misplaced_share is facts.clipped_share is facts.end_share is facts.outlier_groups is None


# healthy conversions


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["Q4_0", "mixed"])
def test_a_healthy_conversion_is_clean(kind: str, float_folder: Path, tmp_path: Path) -> None:
    path = llama.written(tmp_path / "x.gguf", llama.converted(FLOATS, mixed if kind == "mixed" else lambda _: kind))
    diagnosis, weights = compared(float_folder, path)
    assert (diagnosis.verdict, diagnosis.causes) == ("healthy", ())
    assert not [text for text in diagnosis.warnings if "counterpart" in text or "only in" in text or "not comp" in text]
    assert len(weights) == 16 and all((facts.similarity or 0) > 0.99 for facts in weights.values())
    assert weights["model.embed_tokens"].broken_scales == 0
    facts = weights[PATIENT]
    own = "Q4_K" if kind == "mixed" else kind
    assert (facts.format, facts.quantizer.bits) == (f"gguf {own.lower()}", int(own[1]))
    assert (facts.group_size, facts.misplaced_share) == (16 if own == "Q6_K" else 32, 0)


@pytest.mark.thorough
def test_float_ggufs_of_any_type_and_names_as_they_are(float_folder: Path, tmp_path: Path) -> None:
    quantized = llama.written(tmp_path / "q.gguf", llama.converted(FLOATS, mixed))
    for kind in ("F32", "F16", "BF16"):
        floats = llama.written(tmp_path / f"{kind}.gguf", llama.converted(FLOATS, lambda _, kind=kind: kind))
        diagnosis, weights = compared(floats, quantized)
        assert (diagnosis.verdict, diagnosis.causes) == ("healthy", ())
        assert "blk.1.ffn_up" in weights and len(weights) == 16
    # Rows of q and k are put back in float tensors as well.
    diagnosis, _ = compared(float_folder, tmp_path / "F16.gguf")
    assert not [text for text in diagnosis.warnings if "changed although" in text]


@pytest.mark.thorough
def test_split_files(float_folder: Path, tmp_path: Path) -> None:
    tensors = list(llama.converted(FLOATS, lambda _: "Q8_0").items())
    files = [tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    stated = {"split.count": 2, "split.tensors.count": len(tensors)}
    for number, file in enumerate(files):
        llama.written(file, dict(tensors[number::2]), {**llama.LLAMA, **stated} if not number else {})
    diagnosis, weights = compared(float_folder, files[0])
    assert diagnosis.causes == () and len(weights) == 16
    llama.written(files[1], dict(tensors[3::2]), {})
    with pytest.raises(ModelError, match=r"(?s)not those that the model was split into.*split\.tensors\.count"):
        open_gguf(files[0])
    files[1].unlink()
    with pytest.raises(ModelError, match=r"(?s)a file of a split model is missing.*00002-of-00002"):
        open_gguf(files[0])


# faults that are named


@pytest.mark.thorough
def test_scales_of_another_size_are_named(float_folder: Path, tmp_path: Path) -> None:
    blocks = llama.converted(FLOATS, mixed, {f"{PATIENT}.weight": 8.0})
    first = compared(float_folder, llama.written(tmp_path / "x.gguf", blocks))[0].causes[0]
    assert (first.cause, first.subjects) == ("wrong-weight-scale", (PATIENT,)) and "W025" in first.rules


@pytest.mark.thorough
def test_rows_that_were_not_reordered_are_other_weights(float_folder: Path, tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj"
    blocks = llama.converted(FLOATS, lambda _: "Q8_0")
    values = made.from_bfloat16(FLOATS[f"{name}.weight"][1])
    blocks["blk.0.attn_q.weight"] = ("Q8_0", values.shape, llama.quantized(values, "Q8_0"))
    diagnosis, weights = compared(float_folder, llama.written(tmp_path / "x.gguf", blocks))
    assert diagnosis.causes[0].subjects == (name,)
    other = {**llama.LLAMA, "general.architecture": "qwen2"}  # whose rows stay as they are
    _, weights = compared(float_folder, llama.written(tmp_path / "x.gguf", blocks, other))
    assert (weights[name].similarity or 0) > 0.999 > (weights["model.layers.1.self_attn.q_proj"].similarity or 0)


# other architectures


def test_norms_that_compute_1_plus_w(tmp_path: Path) -> None:
    norm = made.bfloat16(np.random.default_rng(0).normal(0, 0.2, 64))
    weight = made.bfloat16(np.random.default_rng(1).normal(0, 0.05, (64, 64)))
    floats: made.Tensors = {
        "model.layers.0.pre_feedforward_layernorm.weight": ("BF16", norm),
        "model.layers.0.post_attention_layernorm.weight": ("BF16", norm[::-1].copy()),
        "model.layers.0.mlp.up_proj.weight": ("BF16", weight),
    }
    folder = made.write_folder(tmp_path / "float", floats)
    values = made.from_bfloat16(norm)
    blocks: llama.Blocks = {
        "blk.0.ffn_norm.weight": ("F32", (64,), llama.quantized(values + 1, "F32")),
        "blk.0.post_attention_norm.weight": ("F32", (64,), llama.quantized(values[::-1] + 1, "F32")),
        "blk.0.ffn_up.weight": ("Q8_0", (64, 64), llama.quantized(made.from_bfloat16(weight), "Q8_0")),
    }
    path = llama.written(tmp_path / "x.gguf", blocks, {"general.architecture": "gemma2"})
    diagnosis, _ = compared(folder, path)
    assert (diagnosis.verdict, diagnosis.causes) == ("healthy", ())
    assert not [text for text in diagnosis.warnings if "changed" in text or "counterpart" in text]
    blocks["blk.0.ffn_norm.weight"] = ("F32", (64,), llama.quantized(values, "F32"))
    diagnosis, _ = compared(folder, llama.written(path, blocks, {"general.architecture": "gemma2"}))
    assert [cause.rules for cause in diagnosis.causes] == [("S035",)]


@pytest.mark.parametrize("names", ["mlp.experts.{}.{}_proj", "block_sparse_moe.experts.{}.{}"])
def test_experts_of_one_tensor_are_layers(names: str, tmp_path: Path) -> None:
    weights = made.bfloat16(np.random.default_rng(1).normal(0, 0.05, (3, 4, 64, 64)))
    own = ("w1", "w3", "w2") if "sparse" in names else ("gate", "up", "down")
    parts = dict(zip(("gate", "up", "down"), own, strict=True))
    router = made.bfloat16(np.random.default_rng(2).normal(0, 0.05, (4, 64)))
    floats: made.Tensors = {
        f"model.layers.0.{names.format(expert, part)}.weight": ("BF16", weights[number, expert])
        for number, part in enumerate(parts.values())
        for expert in range(4)
    }
    floats[f"model.layers.0.{names.partition('.')[0]}.gate.weight"] = ("BF16", router)
    blocks: llama.Blocks = {
        f"blk.0.ffn_{part}_exps.weight": (
            "Q8_0",
            (4, 64, 64),
            llama.quantized(made.from_bfloat16(weights[number]), "Q8_0"),
        )
        for number, part in enumerate(parts)
    }
    blocks["blk.0.ffn_gate_inp.weight"] = ("F32", (4, 64), llama.quantized(made.from_bfloat16(router), "F32"))
    path = llama.written(tmp_path / "x.gguf", blocks)
    diagnosis, found = compared(made.write_folder(tmp_path / "float", floats), path)
    assert len(found) == 13 and not diagnosis.causes
    assert sum((facts.similarity or 0) > 0.999 for facts in found.values()) == 12


# files that cannot be compared, damaged and hostile ones


@pytest.mark.thorough
def test_what_is_not_read_is_named(float_folder: Path, tmp_path: Path) -> None:
    """Heads that are not stated, and a type that is not known."""
    blocks = llama.converted(FLOATS, lambda _: "Q8_0")
    path = llama.written(tmp_path / "x.gguf", blocks, {"general.architecture": "llama"})
    diagnosis, weights = compared(float_folder, path)
    assert len(weights) == 12 and any("do not fit None heads" in text for text in diagnosis.warnings)
    blocks["blk.1.ffn_up.weight"] = ("Q1_0", (384, 256), bytes(384 * 36))
    diagnosis, weights = compared(float_folder, llama.written(path, blocks))
    assert PATIENT not in weights
    assert any(f"not comparable: {PATIENT}: its type Q1_0 is not read" in text for text in diagnosis.warnings)


def test_the_wrong_way_round(float_folder: Path, tmp_path: Path) -> None:
    path = llama.written(tmp_path / "x.gguf", llama.converted(FLOATS, lambda _: "Q8_0"))
    with pytest.raises(ModelError, match="compared with GGUF alone"):
        quantmedic.diagnose(path, float_folder, weights_only=True)
    with pytest.raises(ModelError, match="quantized itself"):
        quantmedic.diagnose(path, path, weights_only=True)


def test_files_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    blocks: llama.Blocks = {"a.weight": ("Q8_0", (2, 32), bytes(68)), "b.weight": ("F32", (4,), bytes(16))}
    whole = llama.written(path, blocks, {"general.architecture": "x", "k": ["a", "b"]}).read_bytes()
    first = whole.index(b"a.weight") + 8
    for place, content, says in (
        (0, b"GGML", "does not start with GGUF"),
        (4, struct.pack("<I", 1), "its version is 1"),
        (4, struct.pack(">I", 3), "big-endian"),
        (8, struct.pack("<Q", 2**60), "1152921504606846976 tensors"),
        (16, struct.pack("<Q", 2**63), "entries of metadata"),
        (24 + 8 + 20 + 4, struct.pack("<Q", 2**40), "are announced at byte"),
        (first, struct.pack("<I", 9), "has 9 dimensions"),
        (first + 4, struct.pack("<Q", 2**62), "a.weight takes bytes"),
        (first + 24, struct.pack("<Q", 2**50), "a.weight takes bytes"),
        (whole.index(b"b.weight"), b"a.weight", "two tensors have one name"),
    ):
        path.write_bytes(whole[:place] + content + whole[place + len(content) :])
        with pytest.raises(ModelError, match="convert the model again") as error:
            open_gguf(path)
        assert says in str(error.value) and "x.gguf" in str(error.value)
    with pytest.raises(ModelError, match="no such file"):
        open_gguf(tmp_path / "none.gguf")
