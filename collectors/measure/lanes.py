"""Batches side by side on several threads, with the result of one after the other.

Every batch runs in a lane. Lanes pass the same stations in the same order, and a lane enters a station only after the
lane before has left it: so whatever is added up at a station is added in the order of the batches, and the sums do not
depend on the number of threads.
"""

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from threading import Condition
from typing import TypeVar

from quantmedic.collectors.native.runs import Crew, Job, wait_for

T = TypeVar("T")


class LaneClosed(Exception):
    """The batch before failed, so this one must not be added."""


class Lane:
    """One batch on its way through the stations."""

    def __init__(self, before: "Lane | None" = None) -> None:
        self._before = before
        self._index = 0
        self._passed: float = 0
        self._failed = False
        self._moved = Condition()

    def station(self, index: int) -> "Lane":
        """Hold station ``index`` for a ``with`` block; stations are entered in ascending order.

        Raises:
            LaneClosed: On entering: the lane before failed.
        """
        self._index = index
        return self

    def __enter__(self) -> None:
        if self._before is not None:
            self._before._wait(self._index + 1)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self._advance(self._index + 1, failed=False)

    def close(self, *, failed: bool) -> None:
        """Let the next lane through to the end, or stop it."""
        self._before = None
        self._advance(math.inf, failed=failed)

    def _wait(self, passed: int) -> None:
        if self._passed >= passed and not self._failed:  # the usual case, without a lock
            return
        with self._moved:
            self._moved.wait_for(lambda: self._passed >= passed)
            if self._failed:
                raise LaneClosed

    def _advance(self, passed: float, *, failed: bool) -> None:
        with self._moved:
            self._failed = self._failed or failed  # before the number, for that is read without a lock
            self._passed = passed
            self._moved.notify_all()


class Abandoned(KeyboardInterrupt):
    """Interrupted again while begun items were finished: some of them are being worked on still."""


def side_by_side(items: Iterable[T], work: Callable[[T, Lane], None], threads: int) -> Generator[T, None, None]:
    """Work on items in ``threads`` lanes; yields each item when it is done, in order.

    Whatever ends the iteration early, Ctrl-C too, first waits until every item that was taken has been worked on. So
    one lane runs in a thread of its own as well: an interrupt must not cut an item in two. Runs of models that go on
    for longer than a grace are stopped.

    Raises:
        TimeLimitError: A run of a model took longer than the limit.
        Abandoned: A second Ctrl-C during that wait, or a run that cannot be stopped.
    """
    crew = Crew(threads)
    running: deque[tuple[T, Job[None]]] = deque()
    try:
        lane = None
        for item in _after(running, items):
            lane = Lane(lane)
            running.append((item, crew.start(partial(_run_in_lane, work, item, lane))))
            # One more than there are threads, so that none of them waits while data are read.
            if len(running) > threads:
                yield _wait_for_first(running)
        while running:
            yield _wait_for_first(running)
    finally:
        _finish(crew, running)


def _finish(crew: Crew, running: "deque[tuple[T, Job[None]]]") -> None:
    """Wait for what was begun."""
    try:
        ended = crew.finish()
    except KeyboardInterrupt:
        if all(job.done() for _, job in running):
            raise
        raise Abandoned from None
    if not ended and not isinstance(sys.exception(), Exception):
        raise Abandoned


def _after(running: "deque[tuple[T, Job[None]]]", items: Iterable[T]) -> Iterator[T]:
    """The items; where they fail, an item before them that failed as well comes first."""
    try:
        yield from items
    except Exception:
        while running:
            _wait_for_first(running)
        raise


def _run_in_lane(work: Callable[[T, Lane], None], item: T, lane: Lane) -> None:
    failed = True
    try:
        work(item, lane)
        failed = False
    finally:
        lane.close(failed=failed)


def _wait_for_first(running: "deque[tuple[T, Job[None]]]") -> T:
    item, job = running[0]
    wait_for(job)
    running.popleft()
    return item


class Until(Iterator[T]):
    """One item, and more until a moment has come; ``exhausted`` tells whether there are no more."""

    def __init__(self, items: Iterator[T], deadline: float) -> None:
        self._items, self._deadline = items, deadline
        self._begun = self.exhausted = False

    def __next__(self) -> T:
        if self._begun and time.monotonic() >= self._deadline:
            raise StopIteration
        self._begun = True
        try:
            return next(self._items)
        except StopIteration:
            self.exhausted = True
            raise
