"""Weights of two checkpoints by command line and in Python, with good and bad input."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import checkpoints as made
from builders.commands import run_quantmedic

import quantmedic

pytestmark = pytest.mark.thorough

FLOATS = made.language_model(layers=2)
DEAD = "model.layers.0.self_attn.q_proj"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_quantmedic("diagnose", *arguments, *(() if "--tokens" in arguments else ("--weights-only",)))


def damage(name: str, codes: Any, scale: Any, zero: Any) -> tuple[Any, Any, Any]:
    if name == DEAD:
        codes = codes.copy()
        codes[0, : made.GROUP] = 5
    return codes, scale, zero


@pytest.fixture(scope="module")
def folders(tmp_path_factory: Any) -> tuple[Path, Path]:
    top = tmp_path_factory.mktemp("checkpoints")
    before = made.write_folder(top / "float", FLOATS)
    tensors = made.quantized_model(FLOATS, "gptq", damage=damage)
    return before, made.write_folder(top / "gptq", tensors, made.configuration("gptq"))


@pytest.mark.nightly
def test_it_writes_a_report(folders: tuple[Path, Path], tmp_path: Path) -> None:
    done = run(*folders, "-o", tmp_path / "report", "--verbose")
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first.startswith("DEGRADED") and first.endswith("/gptq  only weights were judged")
    assert "safetensors gptq 4-bit in groups of 64" in done.stdout
    assert "W014 dead-weight-groups" in done.stdout
    assert "Only weights were compared" in done.stdout
    assert re.search(r"lm_head +lm_head +in float", done.stdout)
    report = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    row = next(layer for layer in report["layers"] if layer["name"] == DEAD)
    assert (row["groups"]["dead"], row["groups"]["size"], row["weight_bits"]) == (1, made.GROUP, 4)
    page = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "| worst group | dead groups |" in page
    assert "Errors along the network" not in page
    html = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "SQNR of the stored weights against the float ones in dB" in html
    assert 'href="#errors"' not in html


@pytest.mark.nightly
def test_formats_and_single_files(folders: tuple[Path, Path], tmp_path: Path) -> None:
    before = made.write_file(tmp_path / "float.safetensors", FLOATS)
    after = made.write_file(tmp_path / "gptq.safetensors", made.quantized_model(FLOATS, "gptq"))
    done = run(before, after, "-o", tmp_path / "report", "--format", "markdown", "--quiet")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("HEALTHY")
    assert (tmp_path / "report" / "report.md").is_file()
    assert not (tmp_path / "report" / "index.html").exists()


@pytest.mark.nightly
def test_a_budget_that_needs_texts_is_no_pass_without_them(tmp_path: Path) -> None:
    before = made.write_file(tmp_path / "float.safetensors", FLOATS)
    after = made.write_file(tmp_path / "gptq.safetensors", made.quantized_model(FLOATS, "gptq"))
    assert run(before, after, "-o", tmp_path / "report", "--quiet").returncode == 0
    policy = tmp_path / "policy.toml"
    for metric, bound in (("perplexity", "max_drop = 1"), ("kl", "max = 0.01"), ("top1", "max_drop = 1")):
        policy.write_text(f'[[check.budget]]\nmetric = "{metric}"\n{bound}\n', encoding="utf-8")
        done = run_quantmedic("check", tmp_path / "report", "--config", policy)
        assert done.returncode == 3 and done.stdout.splitlines()[-1].startswith("INSUFFICIENT_DATA"), done.stdout
        assert ("--tokens" in done.stdout) == (metric != "top1")
    asked = run_quantmedic("check", before, after, "--static", "--config", policy)
    assert asked.returncode == 0 and "judged without data" in asked.stdout, asked.stdout + asked.stderr


def test_thresholds_and_own_selection(folders: tuple[Path, Path], tmp_path: Path) -> None:
    done = run(*folders, "-o", tmp_path / "report", "--ignore", "W014", "-q")
    assert done.returncode == 0 and done.stdout.startswith("HEALTHY")


def test_bad_input_is_exit_code_2(folders: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    for content, said in (
        (None, "no such checkpoint"),
        (b"\x80\x02garbage", "not a readable safetensors file"),
        ((2**62).to_bytes(8, "little"), "not a readable safetensors file"),
    ):
        if content is not None:
            path.write_bytes(content)
        for pair in ((path, folders[1]), (folders[0], path)):
            done = run(*pair, "-o", tmp_path / "report")
            assert done.returncode == 2
            assert done.stderr.startswith("error: ") and said in done.stderr
            assert "help: " in done.stderr and "Traceback" not in done.stderr
            assert not (tmp_path / "report").exists()


def test_models_that_are_none(folders: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"onnx")
    done = run(folders[0], tmp_path / "model.onnx")
    assert done.returncode == 2 and "other models are run on data" in done.stderr


def test_in_python(folders: tuple[Path, Path], tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    diagnosis = quantmedic.diagnose(
        *folders,
        output=tmp_path / "report",
        formats=["json"],
        progress=lambda *step: told.append(step),
        weights_only=True,
    )
    assert [cause.cause for cause in diagnosis.causes] == ["dead-weight-groups"]
    assert told[-1] == ("weights", len(FLOATS), len(FLOATS))
    assert (tmp_path / "report" / "quantmedic.case").is_file()


def test_a_case_of_before_tells_what_changed(folders: tuple[Path, Path], tmp_path: Path) -> None:
    better = made.write_folder(tmp_path / "better", made.quantized_model(FLOATS, "gptq"), made.configuration("gptq"))
    before, now = (
        quantmedic.collect(*folders, weights_only=True),
        quantmedic.collect(folders[0], better, weights_only=True),
    )
    assert not quantmedic.judge(now, previous=before).causes


def test_embeddings_of_int8_count_as_layers(tmp_path: Path) -> None:
    floats: made.Tensors = {
        "model.embed_tokens.weight": FLOATS["model.embed_tokens.weight"],
        "lm_head.weight": FLOATS["lm_head.weight"],
    }
    tensors: made.Tensors = {}
    for name, (_, bits) in floats.items():
        x = made.from_bfloat16(bits)
        scale = np.abs(x).max(axis=1, keepdims=True) / 127
        tensors[name] = ("I8", np.rint(x / scale).astype(np.int8))
        tensors[name.removesuffix("weight") + "weight_scale"] = ("F32", scale)
    paths = [made.write_file(tmp_path / f"{n}.safetensors", t) for n, t in (("float", floats), ("int8", tensors))]
    case = quantmedic.collect(*paths, weights_only=True)
    kinds = {op.name: (op.op_type, op.is_compute, op.weight.quantizer.granularity) for op in case.record.operators}
    assert kinds == {
        "lm_head": ("Gemm", True, "per_channel"),
        "model.embed_tokens": ("Gather", False, "per_channel"),
    }
    assert all((op.weight.rounding.sqnr_db or 0) > 35 for op in case.record.operators)
