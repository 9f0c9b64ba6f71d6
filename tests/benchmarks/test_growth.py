"""What is done for a network grows with its nodes, and not with their square."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import networks
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import quantmedic
from quantmedic.collectors.from_onnx.models import open_models
from quantmedic.collectors.from_onnx.session import make_session, run
from quantmedic.collectors.measure.collect import MAX_BATCH, batch_size_for
from quantmedic.engine.case.loss_budget import SourceRecord
from quantmedic.engine.diagnosis.budget_lines import NamedBy, names_it
from quantmedic.engine.formulas.change import Targets

#: Work of twice the size takes less than so many times the processor time; the square would take 4 times.
TWICE = 2.6


def seconds_of(work: Callable[[], object], rounds: int = 15) -> float:
    """Processor seconds of this thread, the least of some rounds."""
    found = []
    for _ in range(rounds):
        begun = time.thread_time()
        work()
        found.append(time.thread_time() - begun)
    return min(found)


def seconds_of_inputs(count: int, folder: Path) -> float:
    """Running a network of so many inputs."""
    names = [f"x{k}" for k in range(count)]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in names]
    total = helper.make_tensor_value_info("total", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Sum", names, ["total"])], "inputs", values, [total])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = make_session(model, folder, 1)
    feed = {name: np.ones(1, np.float32) for name in names}
    assert run(session, ["total"], feed, folder)[0] == count
    return seconds_of(lambda: run(session, ["total"], feed, folder))


def test_running_grows_with_the_inputs(tmp_path: Path) -> None:
    assert seconds_of_inputs(8000, tmp_path) < TWICE * seconds_of_inputs(4000, tmp_path)


def write_pair(folder: Path, layers: int, side: int = 8) -> tuple[Path, Path]:
    model = networks.branches(layers, 8, side)
    paths = folder / f"{layers}.onnx", folder / f"{layers}.int8.onnx"
    onnx.save(model, paths[0])
    onnx.save(networks.with_qdq(model), paths[1])
    return paths


def test_small_tensors_come_in_more_samples_and_large_ones_fit_the_cache(tmp_path: Path) -> None:
    assert batch_size_for(open_models(*write_pair(tmp_path, 50))) == MAX_BATCH
    # 16 MB hold one sample of 3500 tensors of 512 values; of 8 samples each of these has 4096.
    assert batch_size_for(open_models(*write_pair(tmp_path, 3500))) == 8
    assert batch_size_for(open_models(*write_pair(tmp_path, 51, side=512))) == 1


@pytest.mark.thorough
def test_a_whole_collection_grows_with_the_nodes(tmp_path: Path) -> None:
    data = np.random.default_rng(0).standard_normal((8, 8, 8, 8), dtype=np.float32)
    np.save(tmp_path / "data.npy", data)

    def seconds(layers: int) -> float:
        paths = write_pair(tmp_path, layers)
        return seconds_of(lambda: quantmedic.collect(*paths, validation=tmp_path / "data.npy", threads=1), 1)

    seconds(50)  # what is imported and compiled once
    assert seconds(600) < TWICE * seconds(300)


def seconds_of_names(count: int) -> float:
    """Asking whether a cause with so many findings names each of as many places: none of them."""
    rule = SimpleNamespace(family="weights", scope="layer")
    named = NamedBy("noisy", [SimpleNamespace(rule=rule)] * count, Targets(operators=tuple(range(count))))
    places = [SourceRecord(kind="weight", operators=(count + k,)) for k in range(count)]
    return seconds_of(lambda: [names_it(named, place) for place in places])


def test_naming_places_grows_with_the_places() -> None:
    assert seconds_of_names(8000) < TWICE * seconds_of_names(4000)
