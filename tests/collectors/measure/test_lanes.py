"""Batches side by side: in order, all or nothing, and with the same sums however the data are cut into batches."""

import random as python_random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from builders.onnx_models import branch_net, conv_net, every_tensor, images, qdq, residual_net, save_pair

import quantmedic
from quantmedic.collectors.measure.lanes import Lane, LaneClosed, side_by_side
from quantmedic.demo import patient
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.statistics import ERROR_KINDS

pytestmark = pytest.mark.thorough

THREADS = (1, 2, 3, 4, 8)
STATIONS = 4
#: Seconds after which a test hangs.
PATIENCE = 20.0


class Works:
    """Work that passes all stations with pauses, writes down who was where, and fails where it is told to."""

    def __init__(self, seed: int = 0, failing: dict[int, int] | None = None, pause: float = 2e-3) -> None:
        self._random, self._failing, self._pause = python_random.Random(seed), failing or {}, pause
        self.visits: list[tuple[int, int]] = []
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.closed: list[int] = []
        self._inside: set[int] = set()

    def __call__(self, item: int, lane: Lane) -> None:
        self.begun.append(item)
        try:
            for station in range(STATIONS):
                time.sleep(self._random.random() * self._pause)
                if self._failing.get(item) == station:
                    raise ValueError(item)
                with lane.station(station):
                    assert station not in self._inside, "two lanes in one station"
                    self._inside.add(station)
                    time.sleep(self._random.random() * self._pause / 4)
                    self.visits.append((station, item))
                    self._inside.remove(station)
        except LaneClosed:
            self.closed.append(item)
            raise
        finally:
            self.ended.append(item)

    def visitors(self, station: int) -> list[int]:
        return [item for where, item in self.visits if where == station]


def soon(action: Callable[[], Any]) -> Any:
    """The result of an action, or its exception; fails if it hangs."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append((action(), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert found, "hangs"
    result, error = found[0]
    if error is not None:
        raise error
    return result


# --- lanes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("threads", THREADS)
def test_items_come_out_and_pass_every_station_in_order(threads, seed):
    work = Works(seed)
    assert soon(lambda: list(side_by_side(range(17), work, threads))) == list(range(17))
    for station in range(STATIONS):
        assert work.visitors(station) == list(range(17))
    assert sorted(work.ended) == list(range(17))


@pytest.mark.parametrize("count", [0, 1, 2, 5])
@pytest.mark.parametrize("threads", THREADS)
def test_fewer_items_than_threads(threads, count):
    work = Works()
    assert soon(lambda: list(side_by_side(range(count), work, threads))) == list(range(count))
    assert work.visitors(STATIONS - 1) == list(range(count))


def test_lanes_do_work_side_by_side():
    """Two items that wait for each other get through only together."""
    meeting = threading.Barrier(2, timeout=PATIENCE)

    def work(item: int, lane: Lane) -> None:
        meeting.wait()
        with lane.station(0):
            pass

    assert soon(lambda: list(side_by_side(range(4), work, 2))) == [0, 1, 2, 3]


@pytest.mark.parametrize("threads", THREADS)
def test_no_more_is_read_ahead_than_threads_can_use(threads):
    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in range(40):
            taken.append(item)
            yield item

    for done, item in enumerate(side_by_side(items(), Works(pause=1e-4), threads)):
        assert item == done
        assert len(taken) <= done + threads + 1


@pytest.mark.parametrize("station", range(STATIONS))
@pytest.mark.parametrize("failing", [0, 3, 11])
@pytest.mark.parametrize("threads", THREADS)
def test_a_failure_is_what_the_caller_sees_and_nothing_is_added_behind_it(threads, failing, station):
    work = Works(failing, {failing: station}, pause=1e-3)
    done: list[int] = []

    def run() -> None:
        for item in side_by_side(range(12), work, threads):
            done.append(item)

    with pytest.raises(ValueError, match=f"^{failing}$"):
        soon(run)
    assert done == list(range(failing))
    assert sorted(work.begun) == sorted(work.ended)
    for where in range(STATIONS):
        seen = work.visitors(where)
        assert seen == sorted(seen)
        assert seen[: failing + 1] == list(range(failing + (where < station)))[: failing + 1]
        if where >= station:
            assert seen == list(range(failing)), "added behind the failure"
    assert failing not in work.closed


@pytest.mark.parametrize("threads", THREADS)
def test_of_several_failures_the_first_in_order_is_seen(threads):
    """The later ones fail earlier in time."""

    def work(item: int, lane: Lane) -> None:
        time.sleep(0.03 if item == 2 else 0)
        if item >= 2:
            raise ValueError(item)
        with lane.station(0):
            pass

    with pytest.raises(ValueError, match=r"^2$"):
        soon(lambda: list(side_by_side(range(9), work, threads)))


@pytest.mark.parametrize("threads", THREADS)
def test_a_reader_that_fails_comes_after_the_items_before_it(threads):
    def items() -> Iterator[int]:
        yield from range(5)
        raise OSError("unreadable")

    work = Works()
    with pytest.raises(OSError, match="unreadable"):
        soon(lambda: list(side_by_side(items(), work, threads)))
    assert sorted(work.ended) == list(range(5))
    assert work.visitors(STATIONS - 1) == list(range(5))


@pytest.mark.parametrize("threads", THREADS)
def test_work_that_fails_before_the_reader_fails_is_what_the_caller_sees(threads):
    def items() -> Iterator[int]:
        yield from range(2)
        raise OSError("unreadable")

    with pytest.raises(ValueError, match=r"^0$"):
        soon(lambda: list(side_by_side(items(), Works(failing={0: STATIONS - 1}), threads)))


@pytest.mark.parametrize("stop", [0, 1, 6])
@pytest.mark.parametrize("threads", THREADS)
def test_who_closes_early_gets_everything_finished_that_was_begun(threads, stop):
    work, before = Works(pause=5e-3), threading.active_count()

    def run() -> int:
        running = side_by_side(range(20), work, threads)
        for _ in range(stop + 1):
            next(running)
        running.close()
        return len(work.ended)

    at_close = soon(run)
    assert at_close == len(work.begun) == len(work.ended) < 20
    for station in range(STATIONS):
        assert work.visitors(station) == list(range(at_close))
    assert threading.active_count() <= before


@pytest.mark.parametrize("threads", THREADS)
def test_an_interrupt_in_the_consumer_leaves_nothing_half_done(threads):
    work = Works(pause=5e-3)

    def run() -> None:
        try:
            for item in side_by_side(range(20), work, threads):
                if item == 4:
                    raise KeyboardInterrupt
        finally:
            settled.append(sorted(work.begun) == sorted(work.ended))

    settled: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        soon(run)
    assert settled == [True]
    assert 5 <= len(work.ended) < 20
    assert work.visitors(0) == work.visitors(STATIONS - 1) == list(range(len(work.ended)))


# --- batches and order -----------------------------------------------------------------------------------------------

X = np.round(images(29) * 20).clip(-100, 100).astype(np.float32) / 20
NETS = {"conv": conv_net(), "residual": residual_net(), "branch": branch_net()}
COUNTED = ("count", "nonfinite", "min", "max", "clipped", "accumulated.count", "rounding.count")


def assert_as_exact_as_the_runtime(a: Case, b: Case, steady: set[str]) -> None:
    """Tensors that the runtime computes bit by bit alike are counted alike; sums are the same up to rounding."""
    mine, theirs = a.statistics["validation"], b.statistics["validation"]
    for i, record in enumerate(a.record.tensors):
        x, y = mine.tensor(i), theirs.tensor(i)
        rows = slice(int(mine.offsets[i]), int(mine.offsets[i + 1]))
        if record.float_name in steady:
            for name in COUNTED:
                np.testing.assert_array_equal(mine.columns[name][rows], theirs.columns[name][rows], err_msg=name)
            np.testing.assert_array_equal(x.histogram, y.histogram, err_msg=record.float_name)
            np.testing.assert_array_equal(x.bucket_min, y.bucket_min)
            np.testing.assert_array_equal(x.bucket_max, y.bucket_max)
        std = np.sqrt(x.m2 / x.count)
        np.testing.assert_allclose(np.sqrt(y.m2 / y.count), std, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(y.mean, x.mean, rtol=1e-6, atol=1e-6 * std.max())
        for kind in ERROR_KINDS:
            p, q = x.errors[kind], y.errors[kind]
            np.testing.assert_array_equal(p["count"], q["count"])
            noise = np.sqrt(p["square"] * p["count"])
            for name, unit in (("square", p["square"]), ("power", p["power"]), ("sum", noise)):
                assert (np.abs(p[name] - q[name]) <= 1e-5 * unit + 1e-12).all(), (record.float_name, kind, name)
            assert (np.abs(p["cross"] - q["cross"]) <= 1e-5 * np.sqrt(p["square"] * p["power"]) + 1e-12).all()
    assert len(mine.codes) == len(theirs.codes) > 0
    for used, also in zip(mine.codes, theirs.codes, strict=True):
        np.testing.assert_array_equal(used, also)
    for known, also in zip(mine.lattice, theirs.lattice, strict=True):
        np.testing.assert_array_equal(known, also)
    np.testing.assert_array_equal(mine.tensor_samples, theirs.tensor_samples)
    np.testing.assert_array_equal(np.sort(mine.samples["hash"]), np.sort(theirs.samples["hash"]))
    assert mine.feature_count == theirs.feature_count
    assert mine.flipped_count == theirs.flipped_count
    np.testing.assert_allclose(mine.feature_sum, theirs.feature_sum, rtol=1e-5, atol=1e-5)


def steady_tensors(model: Any, x: Any) -> set[str]:
    """Tensors of which the runtime computes the same bits for a sample alone and among others."""
    together = every_tensor(model, {"image": x})
    alone = [every_tensor(model, {"image": x[i : i + 1]}) for i in range(len(x))]
    return {name for name, y in together.items() if np.array_equal(y, np.concatenate([one[name] for one in alone]))}


@pytest.fixture(scope="module", params=NETS)
def net(request, tmp_path_factory):
    """A pair of models, how one pass in batches of 5 measures it, and its steady tensors."""
    model = NETS[request.param]
    paths = save_pair(tmp_path_factory.mktemp("net"), model, qdq(model, {"image": X * np.float32(0.7)}))
    case = quantmedic.collect(*paths, validation=X, batch_size=5, threads=1)
    return paths, case, steady_tensors(model, X)


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_batches_of_any_size_are_counted_alike(net, batch_size):
    paths, case, steady = net
    assert len(steady) >= 5
    other = quantmedic.collect(*paths, validation=X, batch_size=batch_size, threads=2)
    assert_as_exact_as_the_runtime(case, other, steady)


def test_samples_in_any_order_are_counted_alike(net):
    paths, case, steady = net
    order = np.random.default_rng(3).permutation(len(X))
    other = quantmedic.collect(*paths, validation=X[order], batch_size=5, threads=2)
    assert_as_exact_as_the_runtime(case, other, steady)
    mine, theirs = (c.statistics["validation"].samples for c in (case, other))
    for name in ("hash", "mean", "deviation", "class_float", "class_quantized", "bad_float"):
        np.testing.assert_array_equal(theirs[name], mine[name][order], err_msg=name)


def test_the_demo_in_batches_of_any_size():
    models, options = patient()
    cases = [quantmedic.collect(*models, **options, samples=48, batch_size=size, threads=2) for size in (1, 3, 8, 22)]
    for case in cases[1:]:
        assert_as_exact_as_the_runtime(cases[0], case, {"image"})
        for role, mine in cases[0].statistics.items():
            found = case.statistics[role]
            for name in ("metric_float", "metric_quantized", "class_quantized", "label"):
                np.testing.assert_array_equal(found.samples[name], mine.samples[name])
