"""How many samples run at a time: by what their tensors take, also where the data decide how large these are."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.onnx_models import conv_net, images, random, save_pair, static

import quantmedic
from quantmedic.api.judging import inspect
from quantmedic.collectors.measure import collect_pair
from quantmedic.engine.case.records import Case

pytestmark = pytest.mark.thorough

#: Elements of the measured tensors of ``conv_net`` per pixel (image and both activations), and bytes of each.
PIXEL_BYTES = 13 * 5


def open_net() -> onnx.ModelProto:
    """Takes images of any size."""
    net = conv_net()
    for axis in (2, 3):
        net.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"side{axis}"
    return net


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("open")
    net = open_net()
    return save_pair(folder, net, static(net, {"image": images(16)}, folder))


def squares(count: int, side: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    return random(side, count, 3, side, side)


def run_sizes(pair: tuple[Path, Path], data: object, monkeypatch: pytest.MonkeyPatch) -> tuple[Case, list[int]]:
    """The case, and samples of every run that is measured."""
    found: list[int] = []
    observe = collect_pair.Observer.observe

    def noted(self, batch, *arguments, **named):  # type: ignore[no-untyped-def]
        found.append(batch.samples)
        observe(self, batch, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(collect_pair.Observer, "observe", noted)
        return quantmedic.collect(*pair, validation=data, threads=1), found


@pytest.mark.nightly
def test_the_first_sample_tells_how_many_fit(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for side, count in ((8, 40), (128, 5), (512, 3)):
        case, sizes = run_sizes(pair, squares(count, side), monkeypatch)
        expected = min(max(collect_pair.BATCH_BYTES // (PIXEL_BYTES * side**2), 1), collect_pair.MAX_BATCH)
        size = case.record.run["batch_size"]
        assert size == pytest.approx(expected, rel=0.25) and max(sizes) == min(size, count)
    assert sizes == [1, 1, 1]


def test_later_samples_that_are_larger_run_in_smaller_batches(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def batches():  # type: ignore[no-untyped-def]
        yield {"image": squares(40, 8)}
        yield {"image": squares(3, 512)}

    case, sizes = run_sizes(pair, batches, monkeypatch)
    assert sizes == [32, 8, 1, 1, 1]
    assert case.record.datasets["validation"].seen == 43


def test_the_size_is_known_beforehand_where_shapes_are_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = conv_net()
    fixed = save_pair(tmp_path, net, static(net, {"image": images(16)}, tmp_path))
    case, _ = run_sizes(fixed, images(40), monkeypatch)
    assert case.record.run["batch_size"] == collect_pair.MAX_BATCH


def test_the_figures_are_those_of_one_sample_at_a_time(pair: tuple[Path, Path]) -> None:
    data = squares(40, 8)
    own = quantmedic.collect(*pair, validation=data, threads=1)
    single = quantmedic.collect(*pair, validation=data, threads=1, batch_size=1)
    assert own.record.run["batch_size"] > 1
    for mine, other in zip(inspect(own).facts.tensors, inspect(single).facts.tensors, strict=True):
        a, b = mine.data.values, other.data.values
        assert (a.min, a.max, a.mean) == pytest.approx((b.min, b.max, b.mean), rel=1e-4, abs=1e-6)
        assert mine.data.accumulated.sqnr_db == pytest.approx(other.data.accumulated.sqnr_db, abs=0.1)


def test_shards_make_up_one_pass(pair: tuple[Path, Path]) -> None:
    data = squares(40, 64)
    whole = quantmedic.collect(*pair, validation=data, threads=1)
    shards = [quantmedic.collect(*pair, validation=part, threads=1) for part in (data[:16], data[16:])]
    merged = shards[0].merge(shards[1])
    assert len({case.record.run["batch_size"] for case in (whole, *shards)}) == 1
    for mine, other in zip(inspect(merged).facts.tensors, inspect(whole).facts.tensors, strict=True):
        assert mine.data.accumulated.sqnr_db == pytest.approx(other.data.accumulated.sqnr_db, abs=1e-3)
