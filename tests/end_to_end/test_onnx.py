"""Drawn faults of the zoo in ONNX: from files to ``report.json``, and what the printed script brings back."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from builders.tiers import others_nightly
from zoo.cases import Built, Spec, all_specs, build
from zoo.paste import Shown, known, measure, noise_share

import quantmedic

pytestmark = pytest.mark.thorough

RECORD: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("drawn.yaml").read_text(encoding="utf-8"))
#: The first drawn of images and of boxes; all others run in the night.
OF_EACH_COMMIT = [next(name for name in RECORD if name.startswith(f"{network}/")) for network in ("demo", "detector")]
SINGLE = {spec.name: spec for spec in all_specs() if spec.group == "single"}


def test_the_record_holds_what_the_seed_drew_in_its_order() -> None:
    drawn = [list(SINGLE)[i] for i in np.random.default_rng(45).permutation(len(SINGLE))]
    assert [name for name in drawn if name in RECORD] == list(RECORD)
    for name, said in RECORD.items():
        (right,) = SINGLE[name].expected
        assert (said["first"] not in right) == said.get("miss", False), name


@pytest.mark.parametrize("name", others_nightly(RECORD, *OF_EACH_COMMIT))
def test_a_drawn_fault_is_named_and_healed_as_recorded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QUANTMEDIC_NO_PROVE")
    said, built = RECORD[name], build_fault(SINGLE[name], tmp_path)
    float_model, ill, representative, validation = (
        built.folder / file for file in ("float.onnx", "quantized.onnx", "representative.npz", "validation.npz")
    )
    report, healed = tmp_path / "report", tmp_path / "healed.onnx"
    data = {"representative": representative, "validation": validation}
    quantmedic.diagnose(float_model, ill, output=report, threads=1, **data, **built.told_metric)
    causes = json.loads((report / "report.json").read_text(encoding="utf-8"))["causes"]
    assert causes[0]["cause"] == said["first"], [cause["cause"] for cause in causes]
    script = report / "run.py"
    assert script.is_file() == (said["healed"] is not None)
    if script.is_file():
        monkeypatch.setattr(sys, "argv", [str(word) for word in (script, float_model, representative, healed)])
        runpy.run_path(str(script), run_name="__main__")
        after = measure(built, onnx.load(str(healed)), known(built), (), Shown("run as printed"))
        assert noise_share(built, after) == pytest.approx(said["healed"], abs=0.05)


def build_fault(spec: Spec, folder: Path) -> Built:
    built = build(spec, folder)
    assert built.status == "fault", built.reason
    return built
