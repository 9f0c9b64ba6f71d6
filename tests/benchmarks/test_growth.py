"""What is done for a network grows with its nodes, and not with their square."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from builders.onnx_models import Net, codes_of, random
from onnx import TensorProto, helper

import quantmedic
from quantmedic.collectors.from_onnx.onnx_models import open_models
from quantmedic.collectors.from_onnx.onnx_session import make_session, run
from quantmedic.collectors.measure.collect_pair import MAX_BATCH, batch_size_for
from quantmedic.engine.case.budget_record import SourceRecord
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


@pytest.mark.nightly
def test_running_grows_with_the_inputs(tmp_path: Path) -> None:
    # Four times as many; the square would take 16 times as long.
    assert seconds_of_inputs(8000, tmp_path) < TWICE**2 * seconds_of_inputs(2000, tmp_path)


CHANNELS, STEP, WEIGHT_STEP = 8, 0.05, 0.02


def blocks(layers: int, side: int, is_quantized: bool) -> Net:
    """Residual blocks (convolution, ReLU, convolution, sum, ReLU), about ``layers`` operators; all on fixed grids."""
    net = Net()

    def seen(x: str) -> str:
        return net.quantize(x, STEP, np.uint8(128)) if is_quantized else x

    def conv(x: str, size: int, groups: int, out: str) -> str:
        weight, bias = random(1, CHANNELS, CHANNELS // groups, size, size), random(2, CHANNELS, scale=0.05)
        names = [net.const(f"{out}.weight", weight), net.const(f"{out}.bias", bias)]
        if is_quantized:
            codes = codes_of(weight, np.float32(WEIGHT_STEP), np.int8(0))
            biases = codes_of(bias, np.float32(STEP * WEIGHT_STEP), np.int32(0))
            names = [net.stored(f"{out}.w", codes, WEIGHT_STEP), net.stored(f"{out}.b", biases, STEP * WEIGHT_STEP)]
        return seen(net.add("Conv", x, *names, out=out, pads=[size // 2] * 4, group=groups))

    x = seen(net.input("image", ["n", CHANNELS, side, side]))
    for block in range(max(1, layers // 5)):
        y = seen(net.add("Relu", conv(x, 3, CHANNELS, f"deep{block}"), out=f"relu{block}"))
        total = seen(net.add("Add", conv(y, 1, 1, f"flat{block}"), x, out=f"sum{block}"))
        x = seen(net.add("Relu", total, out=f"out{block}"))
    net.output(net.add("Identity", x, out="output"), shape=["n", CHANNELS, side, side])
    return net


def write_pair(folder: Path, layers: int, side: int = 8) -> tuple[Path, Path]:
    paths = folder / f"{layers}.onnx", folder / f"{layers}.int8.onnx"
    for path, is_quantized in zip(paths, (False, True), strict=True):
        blocks(layers, side, is_quantized).save(path)
    return paths


@pytest.mark.nightly
def test_small_tensors_come_in_more_samples_and_large_ones_fit_the_cache(tmp_path: Path) -> None:
    assert batch_size_for(open_models(*write_pair(tmp_path, 50))) == MAX_BATCH
    # 16 MB hold one sample of 3500 tensors of 512 values; of 8 samples each of these has 4096.
    assert batch_size_for(open_models(*write_pair(tmp_path, 3500))) == 8
    assert batch_size_for(open_models(*write_pair(tmp_path, 51, side=512))) == 1


@pytest.mark.nightly
def test_a_whole_collection_grows_with_the_nodes(tmp_path: Path) -> None:
    data = np.random.default_rng(0).standard_normal((8, 8, 8, 8), dtype=np.float32)
    np.save(tmp_path / "data.npy", data)

    def seconds(layers: int) -> float:
        paths = write_pair(tmp_path, layers)
        return seconds_of(lambda: quantmedic.collect(*paths, validation=tmp_path / "data.npy", threads=1), 1)

    seconds(50)  # what is imported and compiled once
    assert seconds(600) < TWICE * seconds(300)


class Counted(list[object]):
    """A list that counts how often it is gone through."""

    times = 0

    def __iter__(self) -> Iterator[object]:
        self.times += 1
        return super().__iter__()


def test_naming_places_goes_through_the_findings_once() -> None:
    rule = SimpleNamespace(family="weights", scope="layer")
    findings = Counted([SimpleNamespace(rule=rule)] * 10)
    named = NamedBy("noisy", findings, Targets(operators=tuple(range(10))))
    found = [names_it(named, SourceRecord(kind="weight", operators=(k,))) for k in range(20)]
    assert found == [True] * 10 + [False] * 10
    assert findings.times == 1
