"""Sensitivity through API and command line: measured, interrupted, refused."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from builders.commands import run_quantmedic
from builders.onnx_models import conv_net, images, own, qdq, save_pair
from builders.processes import start_python
from onnxruntime.quantization import CalibrationDataReader, quantize_static

import quantmedic
from quantmedic.demo import patient
from quantmedic.engine.contract.searches import MODES, SensitivityRecord
from quantmedic.engine.errors import DataError, ModelError

pytestmark = pytest.mark.thorough

RESNET8 = Path(__file__).parents[3] / "shared" / "models" / "resnet8"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    model = conv_net()
    return save_pair(tmp_path_factory.mktemp("pair"), model, qdq(model, {"image": images()}))


def measure(pair: tuple[Path, Path], **options: Any) -> SensitivityRecord:
    return quantmedic.search("sensitivity", *pair, **{"validation": images(24), "threads": 1, **options})


def stopping_after(runs: int) -> Any:
    """Ctrl-C after so many runs."""
    seen: list[int] = []

    def progress(mode: str, done: int, total: int | None) -> None:
        seen.append(done)
        if len(seen) == runs:
            raise KeyboardInterrupt

    return progress


def run(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run_quantmedic(*arguments, cwd=cwd)


@pytest.mark.nightly
@pytest.mark.source("horizon-sensitive-nodes", "horizon-debug-tool")
def test_the_patient_is_hurt_by_its_input_alone() -> None:
    paths, options = patient()
    options.pop("representative")
    record = quantmedic.search("sensitivity", *paths, threads=1, **options)
    assert record.samples == 64 and record.metric == "top1" and abs(record.simulation_gap_db) < 1
    assert abs(record.simulation_gap_db) < 0.5
    for mode in ("one", "all-but-one"):
        worst = record.rank_runs(mode)[0]
        assert record.units[worst.unit].name == "image (input)"
        assert worst.share is not None and worst.share > 0.9
    hurt, healed = record.rank_runs("one")[0], record.rank_runs("all-but-one")[0]
    assert hurt.drop_low is not None and hurt.drop_low > 0.5
    assert healed.drop_low is not None and healed.drop_low < 0 < (healed.drop_high or 0)


def test_labels_of_a_file_and_a_metric_of_numbers(pair: tuple[Path, Path], tmp_path: Path) -> None:
    session = ort.InferenceSession(pair[0])
    np.save(tmp_path / "labels.npy", session.run(None, {"image": images(24)})[0])
    record = measure(pair, labels=tmp_path / "labels.npy", metric="rmse", modes=("cumulative",))
    assert record.metric == "rmse" and record.float_metric == pytest.approx(0, abs=1e-6)
    assert all(run.agreement is None for run in record.runs)
    last = record.runs[-1]
    assert last.metric is not None and last.metric > 0
    assert last.drop == pytest.approx(last.metric, abs=1e-6)


def test_without_labels_there_is_no_metric(pair: tuple[Path, Path]) -> None:
    record = measure(pair)
    assert record.metric is None and record.float_metric is None
    assert all(run.metric is None and run.drop is None and run.agreement is not None for run in record.runs)


def test_an_interrupt_leaves_the_runs_that_were_made(pair: tuple[Path, Path]) -> None:
    whole, part = measure(pair), measure(pair, progress=stopping_after(5))
    assert len(part.runs) == 5 and part.runs == whole.runs[:5] and part.missing == whole.planned[5:]


def test_nothing_quantized(pair: tuple[Path, Path]) -> None:
    with pytest.raises(ModelError, match="no layer of the quantized model is quantized"):
        measure((pair[0], pair[0]))


def test_a_network_of_an_old_opset_is_measured(tmp_path: Path) -> None:
    model = conv_net(opset=11)
    assert measure(save_pair(tmp_path, model, qdq(model, {"image": images()}))).units


def test_no_data_and_unknown_modes(pair: tuple[Path, Path]) -> None:
    with pytest.raises(DataError, match="no data was given"):
        quantmedic.search("sensitivity", *pair)
    with pytest.raises(DataError, match="mode is not known"):
        measure(pair, modes=("two",))


def test_one_sample(pair: tuple[Path, Path]) -> None:
    record = measure(pair, validation={"image": images(1), "labels": np.array([2])})
    assert record.samples == 1 and not record.missing
    assert all(run.drop is not None for run in record.runs)


class TestCommand:
    @pytest.fixture
    @staticmethod
    def data(tmp_path: Path) -> Path:
        np.savez(tmp_path / "val.npz", image=images(24), labels=np.arange(24) % 5)
        return tmp_path / "val.npz"

    def test_table_and_files(self, pair: tuple[Path, Path], data: Path, tmp_path: Path) -> None:
        done = run("search", "sensitivity", *pair, "-v", data, "-o", tmp_path / "out", "--threads", "1")
        assert done.returncode == 0, done.stderr
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
            f"sensitivity.{suffix}" for suffix in ("csv", "json", "md", "svg")
        ]
        assert "simulation gap" in done.stdout and "drop in top-1" in done.stdout and "conv1" in done.stdout
        record = SensitivityRecord.model_validate_json((tmp_path / "out" / "sensitivity.json").read_text())
        again = quantmedic.write_search(record, tmp_path / "again")
        for path, size in again:
            assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes() and size == path.stat().st_size

    def test_one_mode(self, pair: tuple[Path, Path], data: Path, tmp_path: Path) -> None:
        (tmp_path / "graphs").mkdir()
        (tmp_path / "graphs" / "mse-validation.svg").write_text("<svg/>")
        done = run(
            "search", "sensitivity", *pair, "-v", data, "-o", tmp_path, "--runs", "one", "--samples", "4", "--verbose"
        )
        assert done.returncode == 0, done.stderr
        record = json.loads((tmp_path / "sensitivity.json").read_text())
        assert record["modes"] == ["one"] and record["samples"] == 4
        assert "cumulative" not in done.stdout and "more:" not in done.stdout
        assert (tmp_path / "graphs" / "mse-validation.svg").exists(), "graphs of a report beside it stay"

    def test_bad_input(self, pair: tuple[Path, Path], data: Path) -> None:
        for arguments in ([], ["-v", "no.npz"], ["-v", "val.npz", "--metric", "top7"]):
            done = run("search", "sensitivity", *pair, *arguments, "-o", "out", cwd=data.parent)
            assert done.returncode == 2
            assert "error:" in done.stderr and "help:" in done.stderr and "Traceback" not in done.stderr
            assert not (data.parent / "out").exists()

    @pytest.mark.nightly
    def test_a_signal_keeps_what_was_measured(self, pair: tuple[Path, Path], data: Path, tmp_path: Path) -> None:
        """Runs are slowed down, so that the signal comes between the first and the last."""
        code = (
            "import pathlib, time, quantmedic.trials.layer_search as t\n"
            "from quantmedic.cli.main import main\n"
            "whole = t.Experiment.run\n"
            "def slow(self, mode, unit):\n"
            "    pathlib.Path('begun').touch()\n"
            "    time.sleep(0.3)\n"
            "    return whole(self, mode, unit)\n"
            "t.Experiment.run = slow\n"
            "main()"
        )
        arguments = ["search", "sensitivity", *map(str, pair), "-v", str(data), "-o", "out", "--threads", "1"]
        running = start_python(code, *arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while not (tmp_path / "begun").exists():
            assert running.poll() is None
            time.sleep(0.02)
        time.sleep(0.5)
        os.kill(running.pid, signal.SIGTERM)
        _, told = running.communicate()
        assert running.returncode == 128 + signal.SIGTERM, told
        record = SensitivityRecord.model_validate_json((tmp_path / "out" / "sensitivity.json").read_text())
        assert 0 < len(record.runs) < len(record.planned)
        assert "interrupted after" in (tmp_path / "out" / "sensitivity.md").read_text()


@pytest.mark.nightly
@pytest.mark.skipif(not RESNET8.is_dir(), reason="the ResNet8 of MLPerf Tiny is not beside the project")
def test_resnet8_loses_nothing_anywhere(tmp_path: Path) -> None:
    data = np.load(RESNET8 / "cifar10_subset.npz")
    model = RESNET8 / "float.onnx"
    name = ort.InferenceSession(str(model)).get_inputs()[0].name
    representative, validation = (data[key].astype(np.float32) / 128 - 1 for key in ("representative", "validation"))

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._feeds = iter([{name: representative[i : i + 16]} for i in range(0, len(representative), 16)])

        def get_next(self) -> dict[str, Any] | None:
            return next(self._feeds, None)

    quantize_static(str(own(model, tmp_path)), str(tmp_path / "int8.onnx"), Reader(), per_channel=True)
    record = quantmedic.search(
        "sensitivity", model, tmp_path / "int8.onnx", validation={name: validation, "labels": data["validation_labels"]}
    )
    assert record.modes == MODES and abs(record.simulation_gap_db) < 1
    assert record.runs[-1].sqnr_db == record.simulated.sqnr_db
    assert all(run.drop_low is not None and run.drop_low < 0.05 for run in record.runs)
