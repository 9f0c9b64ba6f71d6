"""Workers of a Dask cluster measure what one machine does, to the bit, whatever becomes of them."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import checkpoints

import quantmedic
from quantmedic.cluster.units import describe_worker, run_errand, wrong_versions
from quantmedic.collectors.case_file.case_arrays import arrays_of_statistics
from quantmedic.collectors.measure.collect_pair import Interrupted
from quantmedic.demo import patient
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import DataError, QuantmedicError

pytest.importorskip("distributed", reason="dask and distributed are not installed")

from builders.clusters import cluster_of

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> dict[str, Path]:
    """The demo's data as the network wants them: of 400 samples there are five slices, of 160 two."""
    folder = tmp_path_factory.mktemp("data")
    given = patient()[1]
    for role, count in (("representative", 160), ("validation", 400)):
        with np.load(given[role]) as stored:
            arrays = {name: stored[name][:count] for name in stored.files}
        np.savez(folder / f"{role}.npz", **{**arrays, "image": arrays["image"].astype(np.float32) / 255})
    return {role: folder / f"{role}.npz" for role in ("representative", "validation")}


def collected(data: dict[str, Path], **options: Any) -> Case:
    return quantmedic.collect(*patient()[0], **({"threads": 1, "attribution": False, **data} | options))


@pytest.fixture(scope="module")
def alone(data) -> Case:
    return collected(data)


def content(case: Case) -> dict[str, bytes]:
    sets = case.statistics.items()
    return {
        f"{role}/{name}": array.tobytes() for role, own in sets for name, array in arrays_of_statistics(own).items()
    }


def assert_same(found: Case, expected: Case) -> None:
    assert content(found) == content(expected)
    assert found.record == expected.record


def test_figures_do_not_depend_on_the_workers(data, alone):
    seen: list[tuple[str, int, int | None]] = []
    with cluster_of(3) as client:
        found = collected(data, cluster=client, progress=lambda *told: seen.append(told))
    assert_same(found, alone)
    assert ("validation slices", 5, 5) in seen and ("representative slices", 2, 2) in seen


@pytest.mark.nightly
def test_fast_mode_is_divided_by_its_parts(data):
    with cluster_of(2) as client:
        assert_same(collected(data, cluster=client, mode="fast"), collected(data, mode="fast"))


@pytest.mark.nightly
def test_a_worker_that_is_killed_costs_nothing_but_time(data, alone, monkeypatch):
    """Results travel, as no folder is shared: those of the worker are lost with it."""
    monkeypatch.setattr("quantmedic.cluster.connection.sees_file", lambda path: False)
    with cluster_of(2, processes=True) as client:
        pids = list(client.run(os.getpid).values())

        def progress(stage: str, done: int, total: int | None) -> None:
            if stage == "validation slices" and pids:
                os.kill(pids.pop(), signal.SIGKILL)
                pids.clear()

        found = collected(data, cluster=client, progress=progress)
    assert not pids
    assert_same(found, alone)


@pytest.mark.nightly
def test_an_interrupt_leaves_a_case_that_goes_on(data, alone, tmp_path):
    def progress(stage: str, done: int, total: int | None) -> None:
        if stage == "validation slices" and done == 3:
            raise KeyboardInterrupt

    path = tmp_path / "part.case"
    with cluster_of(1) as client:
        with pytest.raises(Interrupted) as caught:
            collected(data, cluster=client, progress=progress, checkpoint=path)
        part = quantmedic.load_case(path)
        assert sum(count for _, count in part.record.datasets["validation"].spans) in (3, 4)
        assert part.record.datasets["validation"].seen == caught.value.case.record.datasets["validation"].seen
        assert quantmedic.check(part).gate is not None
        found = collected(data, cluster=client, checkpoint=path, resume=True)
    assert_same(found, alone)
    assert [entry.name for entry in tmp_path.iterdir()] == ["part.case"]


def test_another_version_of_a_worker_is_named(data):
    other = {**describe_worker(), "onnxruntime": "1.0"}
    answer = run_errand("measure_slice", other)
    assert answer.where[0].startswith("this process  onnxruntime ")
    error = wrong_versions({"tcp://10.0.0.7:41": other}, describe_worker())
    assert "tcp://10.0.0.7:41  onnxruntime 1.0, here" in str(error)


def test_workers_with_other_kernels_are_refused(data, monkeypatch):
    monkeypatch.setenv("QUANTMEDIC_EXACT_KERNELS", "1")
    with cluster_of(1, processes=True) as client:
        monkeypatch.delenv("QUANTMEDIC_EXACT_KERNELS")
        with pytest.raises(QuantmedicError, match="other figures than this machine") as caught:
            collected(data, cluster=client)
    assert caught.value.where[0].startswith("tcp://") and "exact, here" in caught.value.where[0]


def test_what_lies_in_memory_does_not_travel(data):
    with np.load(data["validation"]) as stored:
        image = stored["image"]
    with cluster_of(1) as client, pytest.raises(DataError, match="only paths travel"):
        collected({"validation": image}, cluster=client)


@pytest.mark.nightly
def test_an_error_of_a_worker_is_the_users(data, tmp_path):
    with np.load(data["validation"]) as stored:
        image = stored["image"].copy()
    for number in range(len(image)):
        np.save(tmp_path / f"{number:03}.npy", image[number])
    (tmp_path / "300.npy").write_bytes(b"broken")
    with cluster_of(2) as client, pytest.raises(DataError, match=r"300\.npy"):
        collected({"validation": tmp_path}, cluster=client)


@pytest.mark.nightly
def test_sensitivity_is_that_of_one_machine(data):
    own = {"validation": data["validation"], "threads": 1, "modes": ["one", "cumulative"]}
    seen: list[tuple[str, int, int | None]] = []
    with cluster_of(2) as client:
        found = quantmedic.search(
            "sensitivity", *patient()[0], cluster=client, progress=lambda *told: seen.append(told), **own
        )
    assert found == quantmedic.search("sensitivity", *patient()[0], **own)
    units = len(found.units)
    assert ("one", units, units) in seen and ("cumulative", units, units) in seen


@pytest.mark.nightly
def test_layers_in_float_are_those_of_one_machine(data):
    own = {"validation": data["validation"], "threads": 1, "min_sqnr_db": 25.0}
    with cluster_of(3) as client:
        found = quantmedic.search("fallback", *patient()[0], cluster=client, **own)
    assert found == quantmedic.search("fallback", *patient()[0], **own)


@pytest.mark.nightly
def test_weights_are_those_of_one_machine(tmp_path):
    paths = tmp_path / "float.safetensors", tmp_path / "quantized.safetensors"
    floats = checkpoints.language_model()
    rounded: checkpoints.Tensors = {}
    for name, (kind, bits) in floats.items():
        values = np.round(checkpoints.from_bfloat16(bits) * 200) / np.float32(200)
        rounded[name] = ("F32", values) if name.endswith("_proj.weight") else (kind, bits)
    for path, tensors in zip(paths, (floats, rounded), strict=True):
        checkpoints.write_file(path, tensors)
    with cluster_of(2) as client:
        found = quantmedic.collect(*paths, cluster=client, weights_only=True)
    assert found.record == quantmedic.collect(*paths, threads=1, weights_only=True).record
    assert len(found.record.operators) > 5


def test_a_cluster_that_is_none_is_refused(data):
    for where in ("lokal", "local:0", "local:x"):
        with pytest.raises(DataError, match="cluster cannot be read"):
            collected(data, cluster=where)


def test_a_file_of_a_scheduler_that_is_of_no_use_is_named(data, tmp_path):
    for number, (content, words) in enumerate(
        (
            (None, "there is no such file of a scheduler"),
            ("{}", "holds no address"),
            ("[]", "holds no address"),
            ('{"address": 8786}', "holds no address"),
            ('{"address": "host:8786"}', "holds no address"),
            ("{", "cannot be read"),
            ('{"address": "tcp://"}', "does not answer"),
            ('{"address": "tcp://nowhere.invalid:x"}', "does not answer"),
        )
    ):
        path = tmp_path / f"scheduler{number}.json"
        if content is not None:
            path.write_text(content)
        with pytest.raises(DataError, match=words) as caught:
            collected(data, cluster=path)
        assert path.name in caught.value.where[0]
