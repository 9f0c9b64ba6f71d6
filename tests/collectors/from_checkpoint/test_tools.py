"""Remedies are written for the tool that made the checkpoint, with the names of its layers."""

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import checkpoints as made
from builders import gguf_files

import quantmedic
from quantmedic.engine.contract.diagnosis import Diagnosis

FLOATS = made.language_model(layers=1)
DEAD = "model.layers.0.self_attn.v_proj"
ROUTER = "model.layers.0.mlp.gate"
TORCHAO = {"quantization_config": {"quant_method": "torchao"}}
CONFIGS: dict[str, dict[str, Any]] = {
    "AutoAWQ": made.configuration("awq"),
    "GPTQModel": made.configuration("gptq"),
    "llm-compressor": made.configuration("compressed"),
    "NVIDIA ModelOpt": {},
    "bitsandbytes": {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
    "torchao": TORCHAO,
}
WRITERS = {"AutoAWQ": "awq", "GPTQModel": "gptq", "llm-compressor": "compressed"}


def codes_of(values: Any) -> tuple[Any, Any]:
    scale = np.abs(values).max(axis=1, keepdims=True) / 127
    return np.rint(values / scale).astype(np.int8), scale.astype(np.float32)


def dead(name: str, codes: Any, scale: Any, zero: Any) -> tuple[Any, Any, Any]:
    if name == DEAD:
        codes = codes.copy()
        codes[3, : made.GROUP] = zero[3, 0]
    return codes, scale, zero


def in_bytes(tool: str) -> made.Tensors:
    """Eight bits per code, one channel of one layer dead."""
    found = dict(FLOATS)
    for name in made.linear_names(FLOATS):
        codes, scale = codes_of(made.from_bfloat16(found.pop(f"{name}.weight")[1]))
        if name == DEAD:
            codes[3] = 0
        if tool == "torchao":
            found |= {f"{name}._weight_qdata": ("I8", codes), f"{name}._weight_scale": ("F32", scale)}
        elif tool == "bitsandbytes":
            found |= {f"{name}.weight": ("I8", codes), f"{name}.SCB": ("F32", scale[:, 0] * 127)}
        else:
            found |= {f"{name}.weight": ("I8", codes), f"{name}.weight_scale": ("F32", scale)}
    return found


def judged(folder: Path, tool: str) -> Diagnosis:
    kind = WRITERS.get(tool)
    tensors = in_bytes(tool) if kind is None else made.quantized_model(FLOATS, kind, damage=dead)
    if tool == "NVIDIA ModelOpt":
        declared = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "INT8"}}
        (folder / "quantized").mkdir()
        (folder / "quantized" / "hf_quant_config.json").write_text(json.dumps(declared))
    return made.compare(folder, FLOATS, tensors, CONFIGS[tool])


def tools_of(diagnosis: Diagnosis) -> set[str]:
    return {s.toolchain for cause in diagnosis.causes for advice in cause.remedies for s in advice.snippets}


@pytest.mark.thorough
def test_the_tool_is_recognised_and_its_words_are_used(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for tool in CONFIGS:
        with subtests.test(tool):
            (tmp_path / tool).mkdir()
            diagnosis = judged(tmp_path / tool, tool)
            assert [cause.cause for cause in diagnosis.causes] == ["dead-weight-groups"]
            assert diagnosis.toolchain is not None and diagnosis.toolchain.name == tool
            assert diagnosis.prescription is not None
            ast.parse(diagnosis.prescription.configurations[0].code)
            assert not tools_of(diagnosis) & {"onnxruntime", "Sony MCT", "ai-edge-quantizer", "llama.cpp"}


@pytest.mark.thorough
def test_names_of_llama_cpp_stand_in_its_options(tmp_path: Path) -> None:
    before = made.write_folder(tmp_path / "float", FLOATS)
    scales = {f"{DEAD}.weight": 8.0}
    blocks = gguf_files.converted(FLOATS, lambda name: "F16" if "embed" in name else "Q4_0", scales)
    after = gguf_files.written(tmp_path / "model.gguf", blocks)
    diagnosis = quantmedic.diagnose(before, after, weights_only=True)
    assert [(cause.cause, cause.subjects) for cause in diagnosis.causes] == [("wrong-weight-scale", (DEAD,))]
    assert diagnosis.toolchain is not None and diagnosis.toolchain.name == "llama.cpp"
    assert tools_of(diagnosis) == {"llama.cpp"}
    layer = next(row for row in diagnosis.layers if row.name == DEAD)
    assert layer.quantized_name == "blk.0.attn_v"


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ("GPTQModel", "dynamic={f'-:^{re.escape(name)}$': {} for name in [\"model.layers.0.mlp.gate\"]}"),
        ("AutoAWQ", '"modules_to_not_convert": ["model.layers.0.mlp.gate"]'),
        ("llm-compressor", 'ignore=["model.layers.0.mlp.gate", "lm_head"]'),
    ],
)
def test_a_quantized_router_is_left_out_by_name(tmp_path: Path, tool: str, said: str) -> None:
    floats = {name.replace("mlp.", "mlp.experts.0."): tensor for name, tensor in FLOATS.items()}
    weights = made.bfloat16(np.random.default_rng(0).normal(0, 0.02, (64, made.HIDDEN)))
    floats["model.layers.0.mlp.gate_proj.weight"] = ("BF16", weights)
    tensors = made.quantized_model(floats, WRITERS[tool])
    floats, tensors = (
        {name.replace("layers.0.mlp.gate_proj", "layers.0.mlp.gate"): t for name, t in each.items()}
        for each in (floats, tensors)
    )
    diagnosis = made.compare(tmp_path, floats, tensors, CONFIGS[tool])
    assert [(cause.cause, cause.subjects) for cause in diagnosis.causes] == [("quantized-router", (ROUTER,))]
    assert diagnosis.prescription is not None
    code = diagnosis.prescription.configurations[0].code
    ast.parse(code)
    assert said in " ".join(code.split())
