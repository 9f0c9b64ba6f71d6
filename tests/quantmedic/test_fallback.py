"""The smallest fallback set through API and command line: found, not found, interrupted, refused."""

import ast
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from builders.commands import run_quantmedic
from builders.onnx_models import conv_net, images, qdq, save_pair
from builders.tiers import others_nightly

import quantmedic
from quantmedic.demo import patient
from quantmedic.engine.errors import DataError, ModelError
from quantmedic.reports.search_formats import render_search, search_json

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    model = conv_net()
    return save_pair(tmp_path_factory.mktemp("pair"), model, qdq(model, {"image": images()}))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "val.npz"
    np.savez(path, image=images(160))
    return path


def run(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run_quantmedic("search", "fallback", *arguments, cwd=cwd)


def test_the_patient_needs_its_input_in_float_and_no_layer() -> None:
    paths, options = patient()
    options.pop("representative")
    record = quantmedic.search("fallback", *paths, max_drop=2.0, threads=1, **options)
    assert record.goal.metric == "top1" and record.goal.limit == 0.02
    assert [layer.name for layer in record.layers] == ["image (input)"]
    assert record.verdict in ("met", "unsure")
    assert record.check is not None and record.check.after is not None
    assert (record.check.before.drop_low or 0) > 0.5 > (record.check.after.drop_high or 1)


@pytest.mark.source("litert-smallest-set")
@pytest.mark.source("insights-fallback")
def test_console_says_set_check_cost_and_snippet(pair: tuple[Path, Path], data: Path) -> None:
    before = quantmedic.search("fallback", *pair, validation=data, min_sqnr_db=0.0, threads=1).steps[0].value
    goal = before + 3
    done = run(*pair, "-v", data, "--min-sqnr", f"{goal:.2f}", "--threads", 1)
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert f"goal: SQNR of at least {goal:.1f} dB" in text
    assert " layers leave int8; 80 samples of val.npz searched, seed 0" in text
    assert "Measured on the quantized model itself, 80 samples, not those of the search" in text
    assert "Cost: " in text and "multiply-adds leave int8" in text
    assert "Search: " in text and "one layer at a time takes" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "For ONNX Runtime (the model does not show its toolchain; --toolchain names another)" in text
    (names,) = re.findall(r"nodes_to_exclude=(\[[^\]]*\])", text)
    named = set(ast.literal_eval(names))
    assert named and named <= {node.name for node in onnx.load(pair[0]).graph.node}


@pytest.mark.parametrize("toolchain", others_nightly(["fx", "pt2e"]))
def test_torch_modules_get_the_form_of_their_toolchain(toolchain: str) -> None:
    torch_models = pytest.importorskip("builders.torch_models", reason="torch or torchao is not installed")
    net, quantized, x = torch_models.pair(toolchain)
    record = quantmedic.search("fallback", net, quantized, validation=x.numpy(), min_sqnr_db=60.0, threads=1)
    assert record.layers and record.prescription is not None and record.toolchain is not None
    code = record.prescription.configurations[0].code
    assert f"prepare_{toolchain}(" in code and "nodes_to_exclude" not in render_search(record)
    names = [name for name, _ in net.named_modules() if name]
    assert any(f'"{name}"' in code for name in names), code


@pytest.mark.source("insights-fallback")
def test_another_toolchain_is_asked_for_by_name(pair: tuple[Path, Path], data: Path) -> None:
    done = run(*pair, "-v", data, "--min-sqnr", 45, "--threads", 1, "--toolchain", "inc")
    assert "For Intel Neural Compressor (named by the user" in done.stdout
    assert "op_name_dict=" in done.stdout and "nodes_to_exclude" not in done.stdout
    assert run(*pair, "-v", data, "--min-sqnr", 45, "--toolchain", "nothing").returncode == 2


@pytest.mark.nightly
def test_json_holds_record_verdict_and_nodes(pair: tuple[Path, Path], data: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"validation": data, "min_sqnr_db": 45.0, "threads": 1}
    record = quantmedic.search("fallback", *pair, **options)
    done = run(*pair, "-v", data, "--min-sqnr", 45, "--threads", 1, "--format", "json")
    assert done.returncode == (0 if record.verdict in ("met", "unsure") else 1)
    assert done.stdout == search_json(record)
    quantmedic.write_search(record, tmp_path)
    text = (tmp_path / "prescription.py").read_text()
    assert text.startswith("# Prescription of quantmedic for ") and "Define before you run it" in text
    found = json.loads(done.stdout)
    assert found["verdict"] == record.verdict
    assert found["nodes_to_exclude"] == list(record.nodes_to_exclude)
    assert found["evaluations"] == record.evaluations


def test_goal_that_is_met_already(pair: tuple[Path, Path], data: Path) -> None:
    done = run(*pair, "-v", data, "--min-sqnr", 1, "--threads", 1)
    assert done.returncode == 0
    assert "none of " in done.stdout and "The goal is met" in done.stdout
    assert "nodes_to_exclude" not in done.stdout


def test_missed_goal_tells_a_stricter_one(pair: tuple[Path, Path], data: Path) -> None:
    record = quantmedic.search("fallback", *pair, validation=data, min_sqnr_db=45.0, threads=1)
    assert record.check is not None
    level = record.check.before.model_copy(update={"sqnr_db": 41.0, "sqnr_low": 40.0, "sqnr_high": 42.0})
    missed = record.model_copy(update={"check": record.check.model_copy(update={"after": level})})
    assert missed.verdict == "missed"
    assert "The goal is missed on these samples\nHelp: search again with --min-sqnr 49.0\n" in render_search(missed)


def test_reversals_are_said_in_words(pair: tuple[Path, Path], data: Path) -> None:
    record = quantmedic.search("fallback", *pair, validation=data, min_sqnr_db=45.0, threads=1)
    first = record.steps[0]
    worse = first.model_copy(update={"layers": (1, 2), "value": first.value - 1})
    changed = record.model_copy(update={"steps": (first, worse), "reversals": ((0, 1),)})
    text = render_search(changed)
    assert "Not monotone: 0 layers in float: " in text
    assert record.units[1] in text and "more noise" in " ".join(text.split())


def test_unclear_goals_are_refused(pair: tuple[Path, Path]) -> None:
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "exactly one goal is needed"),
        ({"max_drop": 1.0, "min_sqnr_db": 30.0}, "exactly one goal is needed"),
        ({"max_drop": -1.0}, "no model can reach this goal"),
        ({"min_sqnr_db": float("nan")}, "no model can reach this goal"),
        ({"min_sqnr_db": 30.0, "validation": None}, "no data was given"),
    )
    for options, words in wrong:
        with pytest.raises(DataError, match=words) as raised:
            quantmedic.search("fallback", *pair, **{"validation": images(24), **options})
        assert raised.value.help


def test_float_model_given_twice_is_refused(pair: tuple[Path, Path]) -> None:
    with pytest.raises(ModelError, match="no layer of the quantized model is quantized"):
        quantmedic.search("fallback", pair[0], pair[0], validation=images(24), min_sqnr_db=30.0)


def test_errors_exit_with_two(pair: tuple[Path, Path], data: Path) -> None:
    done = run(*pair, "-v", data)
    assert done.returncode == 2 and "error: exactly one goal is needed" in done.stderr
    done = run(*pair, "-v", "missing.npz", "--min-sqnr", 30)
    assert done.returncode == 2 and "missing.npz" in done.stderr


def test_interrupted_search_prints_what_it_has(pair: tuple[Path, Path], data: Path, tmp_path: Path) -> None:
    """Ctrl-C comes from the metric, in the middle of the search."""
    (tmp_path / "halting.py").write_text(
        "import os, signal\n"
        # A test runner may ignore SIGINT, and its children would too.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "calls = []\n"
        "def error(outputs, labels):\n"
        "    calls.append(1)\n"
        "    if len(calls) == 450:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return ((outputs['scores'] - labels) ** 2).mean(axis=1)\n"
        "error.higher_is_better = False\n"
    )
    scores = ort.InferenceSession(pair[0]).run(None, {"image": images(160)})[0]
    np.save(tmp_path / "labels.npy", scores)
    goal = ["-v", data, "--labels", tmp_path / "labels.npy", "--metric", "halting:error", "--max-drop", 1e-9]
    done = run(*pair, *goal, "--threads", 1, cwd=tmp_path)
    assert done.returncode == 130, done.stderr
    assert done.stderr.endswith("interrupted\n") and "Traceback" not in done.stderr
    assert "FALLBACK" in done.stdout and "interrupted" in done.stdout
