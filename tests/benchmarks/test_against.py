"""Another version of quantmedic is asked in a process of its own, with what every version has."""

import subprocess
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from zoo.cases import Built, Spec
from zoo.protocol.against import ask_other
from zoo.protocol.row import Cause

pytestmark = pytest.mark.thorough

#: It knows nothing but ``diagnose``, and fails where it is given a metric.
OTHER = """
import sys

class Diagnosis:
    def model_dump(self, mode, include):
        cause = {"cause": "wide-range", "severity": "high", "confidence": 0.5, "rules": ["A001"], "subjects": ["y"]}
        return {"verdict": "degraded", "causes": [cause]}

def diagnose(float_model, quantized_model, *, representative, validation, threads, metric=None, prove=None):
    print("noise on the standard output")
    if metric:
        raise ValueError(f"no metric {metric}")
    if prove:
        sys.exit(3)
    return Diagnosis()
"""


def checkout(folder: Path) -> Path:
    (folder / "quantmedic").mkdir(parents=True)
    (folder / "quantmedic" / "__init__.py").write_text(OTHER)
    (folder / ".gitignore").write_text("__pycache__/\n")
    return folder


def case(folder: Path, kind: str, metric: str | None = None) -> Built:
    nodes = [helper.make_node("Relu", ["x"], ["y"], "relu")]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    (folder / kind).mkdir()
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y])), str(folder / kind / "float.onnx"))
    return Built(Spec("demo", (kind,)), folder / kind, "fault", metric=metric)


def test_each_case_gets_an_answer_or_a_reason(tmp_path: Path) -> None:
    cases = [case(tmp_path, "wide-ranges"), case(tmp_path, "wide-branch", "zoo.metrics:tail_top1")]
    found = ask_other(cases, checkout(tmp_path / "other"), None)
    said, failed = found["demo/wide-ranges"], found["demo/wide-branch"]
    assert said.causes == (Cause("wide-range", "high", 0.5, "A001"),)
    assert said.layers == ("relu",) and said.budget is None
    assert failed.error == "ValueError: no metric zoo.metrics:tail_top1"


def test_a_version_that_ends_early_has_no_answer(tmp_path: Path) -> None:
    found = ask_other([case(tmp_path, "wide-ranges")], checkout(tmp_path / "other"), 5.0)
    assert found["demo/wide-ranges"].error == "the other version ended without an answer"


def test_answers_of_a_commit_are_kept_beside_the_case(tmp_path: Path) -> None:
    other, built = checkout(tmp_path / "other"), case(tmp_path, "wide-ranges")
    git = ["git", "-C", str(other), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "code"]):
        subprocess.run([*git, *command], check=True)
    first = ask_other([built], other, None)
    (kept,) = built.folder.glob("against-*-0.json")
    kept.write_text(kept.read_text().replace("wide-range", "kept"))
    assert [said.names for said in first.values()] == [("wide-range",)]
    assert ask_other([built], other, None)["demo/wide-ranges"].names == ("kept",)
