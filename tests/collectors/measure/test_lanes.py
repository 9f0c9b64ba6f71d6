"""Batches side by side: in order, all or nothing, and with the same sums however the data are cut into batches."""

import random as python_random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from builders.onnx_models import branch_net, conv_net, every_tensor, images, qdq, residual_net, save_pair
from builders.tiers import others_nightly

import quantmedic
from quantmedic.collectors.measure.lanes import Lane, LaneClosed, side_by_side
from quantmedic.demo import patient
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.statistics import ERROR_KINDS

pytestmark = pytest.mark.thorough

THREADS = (1, 2, 3, 8)
STATIONS = 4
#: Seconds after which a test hangs.
PATIENCE = 120.0


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


def ended_with(error: type[BaseException], message: str, action: Callable[[], Any]) -> None:
    with pytest.raises(error, match=message):
        soon(action)


@pytest.mark.parametrize("threads", THREADS)
def test_items_come_out_and_pass_every_station_in_order(threads):
    """Also where there are fewer items than threads."""
    for count in (0, 1, 2, 5, 17):
        work = Works(count)
        assert soon(lambda own=work, n=count: list(side_by_side(range(n), own, threads))) == list(range(count))
        assert all(work.visitors(station) == list(range(count)) for station in range(STATIONS))
        assert sorted(work.ended) == list(range(count))


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


@pytest.mark.parametrize("threads", THREADS)
def test_a_failure_is_what_the_caller_sees_and_nothing_is_added_behind_it(threads):
    for failing in (0, 3, 11):
        for station in (0, STATIONS - 2, STATIONS - 1):
            work, done = Works(failing, {failing: station}, pause=1e-3), []

            def run(work: Works = work, done: list[int] = done) -> None:
                for item in side_by_side(range(12), work, threads):
                    done.append(item)

            ended_with(ValueError, f"^{failing}$", run)
            assert done == list(range(failing))
            assert sorted(work.begun) == sorted(work.ended)
            for where in range(STATIONS):
                seen = work.visitors(where)
                assert seen == sorted(seen)
                assert seen[: failing + 1] == list(range(failing + (where < station)))[: failing + 1]
                assert where < station or seen == list(range(failing)), "added behind the failure"
            assert failing not in work.closed


@pytest.mark.parametrize("threads", THREADS)
def test_the_first_failure_in_order_is_seen(threads):
    """Of work that fails late before work that fails early, and of work before the reader that fails."""

    def work(item: int, lane: Lane) -> None:
        time.sleep(0.03 if item == 2 else 0)
        if item >= 2:
            raise ValueError(item)
        with lane.station(0):
            pass

    def items(count: int) -> Iterator[int]:
        yield from range(count)
        raise OSError("unreadable")

    ended_with(ValueError, r"^2$", lambda: list(side_by_side(range(9), work, threads)))
    failing, sound = Works(failing={0: STATIONS - 1}), Works()
    ended_with(ValueError, r"^0$", lambda: list(side_by_side(items(2), failing, threads)))
    ended_with(OSError, "unreadable", lambda: list(side_by_side(items(5), sound, threads)))
    assert sorted(sound.ended) == sound.visitors(STATIONS - 1) == list(range(5))


@pytest.mark.parametrize("threads", THREADS)
def test_who_closes_early_gets_everything_finished_that_was_begun(threads):
    for stop in (0, 6):
        work, before = Works(pause=5e-3), threading.active_count()

        def run(work: Works = work, stop: int = stop) -> int:
            running = side_by_side(range(20), work, threads)
            for _ in range(stop + 1):
                next(running)
            running.close()
            return len(work.ended)

        at_close = soon(run)
        assert at_close == len(work.begun) == len(work.ended) < 20
        assert all(work.visitors(station) == list(range(at_close)) for station in range(STATIONS))
        assert threading.active_count() <= before


@pytest.mark.parametrize("threads", THREADS)
def test_an_interrupt_in_the_consumer_leaves_nothing_half_done(threads):
    work, settled = Works(pause=5e-3), []

    def run() -> None:
        try:
            for item in side_by_side(range(20), work, threads):
                if item == 4:
                    raise KeyboardInterrupt
        finally:
            settled.append(sorted(work.begun) == sorted(work.ended))

    ended_with(KeyboardInterrupt, "", run)
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


@pytest.mark.parametrize("name", others_nightly(NETS))
def test_batches_of_any_size_and_samples_in_any_order_are_counted_alike(name, tmp_path):
    model = NETS[name]
    steady, order = steady_tensors(model, X), np.random.default_rng(3).permutation(len(X))
    assert len(steady) >= 5
    paths = save_pair(tmp_path, model, qdq(model, {"image": X * np.float32(0.7)}))
    case = quantmedic.collect(*paths, validation=X, batch_size=5, threads=1, attribution=False)
    for batch_size in (1, 8):
        other = quantmedic.collect(*paths, validation=X, batch_size=batch_size, threads=2, attribution=False)
        assert_as_exact_as_the_runtime(case, other, steady)
    other = quantmedic.collect(*paths, validation=X[order], batch_size=5, threads=2, attribution=False)
    assert_as_exact_as_the_runtime(case, other, steady)
    mine, theirs = (c.statistics["validation"].samples for c in (case, other))
    for column in ("hash", "mean", "deviation", "class_float", "class_quantized", "bad_float"):
        np.testing.assert_array_equal(theirs[column], mine[column][order], err_msg=column)


@pytest.mark.nightly
def test_the_demo_in_batches_of_any_size():
    models, options = patient()
    cases = [quantmedic.collect(*models, **options, samples=48, batch_size=size, threads=2) for size in (1, 22)]
    assert_as_exact_as_the_runtime(*cases, {"image"})
    for role, mine in cases[0].statistics.items():
        for name in ("metric_float", "metric_quantized", "class_quantized", "label"):
            np.testing.assert_array_equal(cases[1].statistics[role].samples[name], mine.samples[name])
