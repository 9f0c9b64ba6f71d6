"""What follows from a bound of memory, that numbers do not depend on it, and that processes keep to it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.onnx_models import Net, conv_net, images, qdq, random, save_pair, static

import quantmedic
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_models import open_models
from quantmedic.collectors.measure import memory
from quantmedic.collectors.measure.host import free_memory, resident_memory
from quantmedic.collectors.measure.memory import Need, in_groups, settle_memory
from quantmedic.engine.errors import ModelError

MB = 1 << 20
needs_linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read from Linux")


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of other tests have all the memory again."""
    monkeypatch.setattr(memory, "_short", [None])


def test_lanes_go_first_then_groups_of_tensors_as_many_as_sessions_can_be_opened_for() -> None:
    small, large, one = Need(10 * MB, MB), Need(100 * MB, 5 * MB), Need(10 * MB, MB).of(2)
    found = settle_memory(small, 8 << 30, 100 * MB, 16, 16, 4)
    assert (found.lanes, found.tensors, found.saved) == (4, None, False)
    found = settle_memory(small, 100 * MB + 3 * one, 100 * MB, 2, 2, 8)
    assert (found.lanes, found.tensors, found.saved) == (3, None, True)
    assert found.needed <= 100 * MB + 3 * one
    found = settle_memory(large, 100 * MB + large.of(1) - MB, 100 * MB, 1, 1, 8)
    assert (found.lanes, found.tensors, found.needed) == (1, 99 * MB, 100 * MB + large.of(1) - MB)
    # Less than the largest tensor is more than was allowed.
    found = settle_memory(Need(100 * MB, 50 * MB), 50 * MB, 100 * MB, 1, 1, 8)
    assert found.tensors == 50 * MB and found.needed == 100 * MB + Need(0, 50 * MB).of(1) + 50 * MB
    many = Need(800 * MB, MB)
    found = settle_memory(many, 110 * MB, 100 * MB, 1, 2, 8)
    assert found.tensors == 200 * MB and found.needed == 300 * MB + many.of(2, 0)


def test_groups_keep_the_order_and_hold_one_at_least() -> None:
    sizes = {4: 3, 1: 3, 7: 9, 2: 1}
    assert in_groups(sizes, None) == [[4, 1, 7, 2]]
    assert in_groups(sizes, 6) == [[4, 1], [7], [2]]
    assert in_groups(sizes, 1) == [[4], [1], [7], [2]]


def system(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


MEMINFO = {"proc/meminfo": "MemTotal: 16000 kB\nMemAvailable:    8000 kB\n"}
V1 = "sys/fs/cgroup/memory"


SYSTEMS: list[tuple[dict[str, str], int]] = [
    (MEMINFO, 8000 * 1024),
    ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 8000 * 1024),
    (
        {
            "proc/self/cgroup": "0::/job/step\n",
            "sys/fs/cgroup/job/memory.max": "1000000\n",
            "sys/fs/cgroup/job/memory.current": "400000\n",
            "sys/fs/cgroup/job/memory.stat": "anon 300000\ninactive_file 100000\n",
            "sys/fs/cgroup/job/step/memory.max": "max\n",
            "sys/fs/cgroup/job/step/memory.current": "400000\n",
        },
        700_000,
    ),
    (
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n",
            f"{V1}/memory.limit_in_bytes": "2000000\n",
            f"{V1}/memory.usage_in_bytes": "500000\n",
        },
        1_500_000,
    ),
    (
        {
            "proc/self/cgroup": "4:memory:/\n",
            f"{V1}/memory.limit_in_bytes": "1000\n",
            f"{V1}/memory.usage_in_bytes": "5000\n",
        },
        0,
    ),
]


def test_what_is_free_is_what_the_system_and_every_group_leave(tmp_path: Path) -> None:
    found = [free_memory(system(tmp_path / str(i), MEMINFO | files)) for i, (files, _) in enumerate(SYSTEMS)]
    assert found == [expected for _, expected in SYSTEMS]


@needs_linux
def test_without_a_bound_a_quarter_of_what_is_free_is_taken() -> None:
    free, own = free_memory(), resident_memory()
    assert free is not None and own is not None and own > 10 * MB
    assert memory.Memory.begin(None).size == pytest.approx(free / 4, rel=0.5)
    assert memory.Memory.begin(5 * MB).size == 5 * MB


def residual_net() -> onnx.ModelProto:
    """Convolutions whose activations and sums onnxruntime fuses where nobody looks at what they are made of."""
    net = Net(17)
    x = net.input("image", ["n", 3, 32, 32])
    x = net.conv(x, random(1, 16, 3, 3, 3, scale=0.3), random(2, 16, scale=0.1), out="c0", pads=[1, 1, 1, 1])
    x = net.add("Relu", x, out="r0")
    for k in range(1, 4):
        y = net.conv(x, random(k, 16, 16, 3, 3, scale=0.1), random(k, 16), out=f"c{k}", pads=[1, 1, 1, 1])
        x = net.add("Relu", net.add("Add", x, y, out=f"s{k}"), out=f"r{k}")
    x = net.add("Flatten", net.add("GlobalAveragePool", x, out="pool"), out="flat")
    net.const("head", random(9, 16, 5))
    net.output(net.add("MatMul", x, "head", out="scores"), shape=["n", 5])
    return net.model()


@pytest.mark.thorough
def test_groups_of_tensors_show_the_numbers_of_all_at_once(tmp_path: Path) -> None:
    x = random(3, 2, 3, 32, 32)
    net = residual_net()
    models = open_models(*save_pair(tmp_path, net, static(net, {"image": x}, tmp_path)))
    pairs, batch = dict(enumerate(models.pairs)), Batch({"image": x})
    whole = models.view(pairs, batch, 1)
    models.limit_memory(2 * 16 * 32 * 32 * 5 + 1)
    parts = models.view(pairs, batch, 1)
    assert len(parts._groups) > 3 and parts.taps == whole.taps and not parts.observed.simulated
    expected, found = whole.read_tensors(batch), parts.read_tensors(batch)
    for name in expected.floats:
        np.testing.assert_array_equal(found.floats[name], expected.floats[name], err_msg=name)
    assert list(found.codes) == list(expected.codes)
    for number in expected.codes:
        np.testing.assert_array_equal(found.codes[number], expected.codes[number], err_msg=str(number))


@pytest.mark.thorough
def test_numbers_do_not_depend_on_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "FIXED", 0)
    monkeypatch.setattr(memory, "WEIGHTS", 0)
    monkeypatch.setattr(memory, "PER_TENSOR", 0)
    x = random(3, 6, 3, 32, 32)
    net = residual_net()
    pair = save_pair(tmp_path, net, static(net, {"image": x}, tmp_path))
    whole = quantmedic.collect(*pair, validation=x, batch_size=1, attribution=False)
    need = Need(*_need(pair))
    for bound in (need.of(1, need.tensors // 3), need.of(1) + 10_000):
        monkeypatch.setattr(memory.Memory, "left", property(lambda self: self.size))
        parts = quantmedic.collect(*pair, validation=x, memory=bound, attribution=False)
        grouped = [notice for notice in parts.record.notices if "observed in groups" in notice]
        assert bool(grouped) == (bound < need.of(1)) and parts.record.run["batch_size"] == 1
        for name, column in whole.statistics["validation"].columns.items():
            np.testing.assert_array_equal(column, parts.statistics["validation"].columns[name], err_msg=name)


@pytest.mark.thorough
def test_a_share_that_nobody_asked_for_makes_no_groups_that_cannot_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = random(3, 2, 3, 32, 32)
    net = residual_net()
    pair = save_pair(tmp_path, net, static(net, {"image": x}, tmp_path))
    monkeypatch.setattr(memory.Memory, "begin", lambda asked: memory.Memory(MB, 0, asked=False))
    found = quantmedic.collect(*pair, validation=x, attribution=False)
    assert not [notice for notice in found.record.notices if "observed in groups" in notice]


def _need(pair: tuple[Path, Path]) -> tuple[int, int]:
    models = open_models(*pair)
    sizes = memory.sizes_of(dict(enumerate(models.pairs)), models.shapes, 1)
    assert sizes is not None
    return sum(sizes.values()), max(sizes.values())


def test_shapes_of_open_axes_come_from_the_first_sample(tmp_path: Path) -> None:
    net = conv_net()
    for axis in (2, 3):
        net.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"side{axis}"
    x = images(2)
    models = open_models(*save_pair(tmp_path, net, qdq(net, {"image": x})))
    batch = Batch({"image": x})
    shapes, shown = models.shapes_on(batch, 1), models.view(dict(enumerate(models.pairs)), batch, 1).read_tensors(batch)
    for pair in models.pairs:
        assert tuple(s or 2 for s in shapes[pair.twin]) == shown.floats[pair.twin].shape


#: Page faults of a process that takes and frees blocks of 2 MiB a hundred times.
TAKE_AND_FREE = """
import resource, sys
import numpy as np
from quantmedic.collectors.measure.memory import Memory, Need, return_free_blocks, save_memory

for tight in sys.argv[1:]:
    save_memory(Memory(1 << 30, None, asked=True), Need(1, 1), tight=tight == "tight")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        return_free_blocks()
        np.empty(1 << 21, np.uint8).fill(1)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.thorough
@needs_linux
def test_blocks_are_taken_again_unless_the_bound_is_tight() -> None:
    """Pages that go back are cleared by the system when they are taken again: half of the time of large tensors."""
    done = subprocess.run(
        [sys.executable, "-c", TAKE_AND_FREE, "loose", "tight", "loose"], capture_output=True, text=True, check=True
    )
    loose, tight, again = map(int, done.stdout.split())
    assert max(loose, again) < 5000 < 40_000 < tight


def test_a_bound_that_cannot_be_kept_says_what_is_needed() -> None:
    from quantmedic.demo import patient

    (float_model, quantized), given = patient()
    with pytest.raises(ModelError, match="do not fit into the memory") as error:
        quantmedic.collect(float_model, quantized, memory=10**6, **given)
    assert "allows 1 MB;" in error.value.where[1]
    assert (error.value.help or "").startswith("allow ") and "--memory" in (error.value.help or "")


#: Bytes of a test with LiteRT files.
LITERT_BOUND = 420
#: Bytes of a test with many weights.
WEIGHTS_BOUND = 480
CHILD = """
import json, sys
from pathlib import Path

import quantmedic
import quantmedic.api.opening as api
import quantmedic.collectors.from_onnx.simulated
import quantmedic.collectors.statistics.numba_loops
import quantmedic.trials.departures

quantmedic.trials.departures.LOOKED_FOR = -1.0  # departures are looked for in any case: that opens more sessions


def peak(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key))


def open_pair(*arguments, **named):
    global base
    found = opened(*arguments, **named)
    base = peak("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    return found


opened, api.open_pair = api.open_pair, open_pair
float_model, quantized, data, options = sys.argv[1:]
case = quantmedic.collect(float_model, quantized, validation=data, **json.loads(options))
print(json.dumps({"peak": peak("VmHWM") - base, "simulated": case.record.simulation is not None,
                  "notices": case.record.notices}))
"""


def run_child(float_model: Path, quantized: Path, data: Path, **options: object) -> dict[str, object]:
    """Peak of a fresh process beyond what is resident once the models are open."""
    command = [sys.executable, "-c", CHILD, str(float_model), str(quantized), str(data), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def chain_net(side: int, depth: int, channels: int = 16) -> onnx.ModelProto:
    """Convolutions on a square image."""
    net = Net(17)
    x = net.input("image", ["n", 3, side, side])
    for k in range(depth):
        own = random(k, channels, channels if k else 3, 3, 3, scale=1.6 / channels)
        x = net.add("Relu", net.conv(x, own, random(k + 50, channels), out=f"c{k}", pads=[1, 1, 1, 1]), out=f"r{k}")
    x = net.add("Flatten", net.add("GlobalAveragePool", x, out="pool"), out="flat")
    net.const("head", random(9, channels, 5))
    net.output(net.add("MatMul", x, "head", out="scores"), shape=["n", 5])
    return net.model()


@needs_linux
@pytest.mark.nightly
@pytest.mark.parametrize(("bound", "grouped"), [(240, True), (340, False)])
def test_a_process_keeps_to_its_bound_with_large_images(tmp_path: Path, bound: int, grouped: bool) -> None:
    x = random(3, 2, 3, 384, 384)
    net = chain_net(384, 6)
    pair = save_pair(tmp_path, net, static(net, {"image": x[:1]}, tmp_path))
    np.savez(tmp_path / "val.npz", image=x)
    found = run_child(*pair, tmp_path / "val.npz", memory=bound * MB, threads=2)
    assert found["simulated"] and any("in groups" in str(n) for n in list(found["notices"])) == grouped  # type: ignore[call-overload]
    assert int(str(found["peak"])) <= bound * MB


@pytest.mark.nightly
@needs_linux
def test_a_process_keeps_to_its_bound_with_many_weights(tmp_path: Path) -> None:
    """Sessions of a simulation hold them several times."""
    x = random(3, 4, 3, 12, 12)
    net = chain_net(12, 9, 288)
    pair = save_pair(tmp_path, net, static(net, {"image": x[:1]}, tmp_path))
    np.savez(tmp_path / "val.npz", image=x)
    found = run_child(*pair, tmp_path / "val.npz", memory=WEIGHTS_BOUND * MB, threads=2)
    assert found["simulated"] and int(str(found["peak"])) <= WEIGHTS_BOUND * MB


@needs_linux
@pytest.mark.nightly
def test_a_process_with_litert_files_keeps_to_its_bound(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
    from litert_networks import Network, build, mobilenet

    build(Network(lambda: mobilenet(224), 224, 6), tmp_path)
    files = tmp_path / "float.tflite", tmp_path / "int8.tflite", tmp_path / "val.npz"
    found = run_child(*files, memory=LITERT_BOUND * MB, threads=2)
    assert found["simulated"] and int(str(found["peak"])) <= LITERT_BOUND * MB
