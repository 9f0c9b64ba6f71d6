"""Runs of models, which are native code: each ends by itself, at the time limit, or at an interrupt.

Python handles no signal while its main thread is in native code, and a run that never ends would never give it back. So
runs take place in threads of the background, and whoever waits for them looks around now and then: what takes longer
than the limit is stopped, and what cannot be stopped is left behind.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from queue import SimpleQueue
from typing import TypeVar, cast

from quantmedic.engine.errors import ModelError
from quantmedic.engine.reading_limits import RUN_SECONDS, LimitError

T = TypeVar("T")
#: Seconds in which who waits looks around.
STEP = 0.1
#: Seconds that a run gets to end by itself when it is interrupted, and to give up when it was stopped.
GRACE = 5.0
#: Seconds after which Python code that did not end is interrupted once more.
AGAIN = 1.0
#: Seconds; 0 is no limit, None the usual one.
_limit: ContextVar[float | None] = ContextVar("limit", default=None)
_here = threading.local()


class TimeLimitError(ModelError, LimitError):
    """A run of a model took longer than the time limit."""

    def __init__(self, where: str, seconds: float) -> None:
        super().__init__(
            "a run of the model takes longer than the time limit",
            where=[where, f"the limit is {seconds:g} s for one batch"],
            help="does it end at all (a Loop without end does not), and is the machine busy with something else? "
            f"--timeout {2 * seconds:g}s gives it more time, --timeout 0 all that it takes",
        )


class Stopped(Exception):
    """A run was not begun, for the work that it belongs to was stopped."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Context in which one run of a model may take so many seconds; 0 is no limit, None is ``RUN_SECONDS``."""
    token = _limit.set(RUN_SECONDS.in_force if seconds is None else seconds)
    try:
        yield
    finally:
        _limit.reset(token)


def current_limit() -> float | None:
    """Seconds that one run of a model may take; None where there is no limit."""
    seconds = _limit.get()
    return RUN_SECONDS.in_force if seconds is None else seconds or None


class _Run:
    """One run of a model, and how to stop it."""

    def __init__(self, where: str, stop: Callable[[], None]) -> None:
        self.where, self.limit, self.begun = where, current_limit(), time.monotonic()
        self._stop, self.is_stopped = stop, False

    @property
    def overdue(self) -> float:
        """Seconds since the limit; negative before it."""
        return -1.0 if self.limit is None else time.monotonic() - self.begun - self.limit

    def stop(self) -> None:
        if not self.is_stopped:
            self.is_stopped = True
            self._stop()

    def error(self) -> TimeLimitError:
        return TimeLimitError(self.where, self.limit or 0.0)


class Job(Future[T]):
    """Work in a thread of the background, and the run that it is in at this moment."""

    def __init__(self) -> None:
        super().__init__()
        self.run: _Run | None = None
        self.is_stopping = False

    def stop(self) -> None:
        """Stop the run that it is in, and let it begin no other."""
        self.is_stopping = True
        if (run := self.run) is not None:
            run.stop()


#: Work that was left behind because it could not be stopped.
_left: list[Job[object]] = []
_Task = tuple[Context, Callable[[], object], Job[object]]


class Crew:
    """Threads of the background, which keep no process from ending, and the jobs that they do."""

    def __init__(self, threads: int) -> None:
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._jobs: list[Job[object]] = []
        self._threads = threads
        self._begun = 0

    def start(self, work: Callable[[], T]) -> Job[T]:
        """Have work done, which sees the context of this thread, as soon as a thread is free."""
        self.forget_finished()
        job: Job[T] = Job()
        self._jobs.append(cast(Job[object], job))
        self._tasks.put((copy_context(), work, cast(Job[object], job)))
        if self._begun < min(self._threads, len(self._jobs)):
            self._begun += 1
            threading.Thread(target=_do_all, args=[self._tasks], name="quantmedic", daemon=True).start()
        return job

    def forget_finished(self) -> None:
        """Keep nothing of work that has ended: what came of it may be a model, with threads that a fork would lack."""
        self._jobs = [job for job in self._jobs if not job.done()]

    def finish(self, *, at_once: bool = False) -> bool:
        """Wait until all work has ended and let the threads go; what takes longer than the grace is stopped.

        Returns:
            Whether all has ended: what could not be stopped is left behind.
        """
        self.release()
        if not at_once and _wait_for_all(self._jobs, GRACE):
            return True
        for job in self._jobs:
            job.stop()
        if _wait_for_all(self._jobs, GRACE):
            return True
        _left.extend(job for job in self._jobs if not job.done())
        return False

    def release(self) -> None:
        """Let the threads end once they have done what was started."""
        for _ in range(self._begun):
            self._tasks.put(None)
        self._begun = 0

    def __del__(self) -> None:
        self.release()


def _do_all(tasks: "SimpleQueue[_Task | None]") -> None:
    """Do work until there is none."""
    while (task := tasks.get()) is not None:
        _do(*task)
        del task  # what it holds would stay until the next one comes


def _do(context: Context, work: Callable[[], object], job: Job[object]) -> None:
    _here.job = job
    try:
        job.set_result(context.run(work))
    except BaseException as error:
        job.set_exception(error)
    finally:
        _here.job = None


def wait_for(job: Job[T]) -> T:
    """What came of work in the background.

    Raises:
        TimeLimitError: A run of it took longer than the limit.
    """
    while True:
        try:
            return job.result(STEP)
        except NotYet:
            if job.done():
                return job.result()
        run = job.run
        if run is not None and run.overdue > 0:
            run.stop()
            if run.overdue > GRACE:
                _left.append(cast(Job[object], job))
                raise run.error()


def run_native(work: Callable[[], T], where: str, stop: Callable[[], None] = lambda: None) -> T:
    """Do work that is one run of a model, in the background, and wait for it.

    Args:
        work: Native code that Python cannot interrupt.
        where: The model, for messages.
        stop: Makes the work end early, with an error; called by another thread.

    Raises:
        TimeLimitError: It took longer than the limit.
    """
    return in_background(lambda: _count_run(work, where, stop))


def in_background(work: Callable[[], T]) -> T:
    """Do work that has many runs of models in one thread of the background, and wait for it.

    Raises:
        TimeLimitError: A run of it took longer than the limit.
    """
    if getattr(_here, "job", None) is not None:
        return work()
    crew = _own_crew()
    job = crew.start(work)
    try:
        return wait_for(job)
    except (KeyboardInterrupt, TimeLimitError):
        _here.crew = None
        crew.finish(at_once=True)
        raise
    finally:
        crew.forget_finished()


@contextmanager
def meanwhile(work: Callable[[], T], threads: int) -> Iterator[Callable[[], T]]:
    """Context in which work is done in the background, most of it native code; gives what waits for its result.

    Work that nobody has waited for is stopped at the end. With one of ``threads`` it is done where it is waited for.
    """
    if threads < 2:
        yield work
        return
    crew = Crew(1)
    job = crew.start(work)
    try:
        yield lambda: wait_for(job)
    finally:
        crew.finish(at_once=not job.done())


def _own_crew() -> Crew:
    """The one thread of the background that does what this thread would else do itself."""
    crew: Crew | None = getattr(_here, "crew", None)
    if crew is None:
        crew = _here.crew = Crew(1)
    return crew


def _forget_crew() -> None:
    _here.crew = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_crew)  # where its thread is missing


def _count_run(work: Callable[[], T], where: str, stop: Callable[[], None]) -> T:
    """Work of a job, as the run that it is in."""
    job: Job[object] = _here.job
    if job.is_stopping:
        raise Stopped
    run = job.run = _Run(where, stop)
    try:
        return work()
    except Exception as error:
        if run.is_stopped and run.overdue > 0:
            raise run.error() from error
        raise
    finally:
        job.run = None


def run_python(work: Callable[[], T], where: str) -> T:
    """Do work that is one run of a model and Python code, in this thread: an error is raised in it at the limit.

    Raises:
        TimeLimitError: It took longer than the limit.
    """
    limit = current_limit()
    if limit is None:
        return work()
    run, interrupts = _Run(where, lambda: None), _Interrupts()
    sender = threading.Thread(target=interrupts.send, args=[limit, run.stop], name="quantmedic", daemon=True)
    try:
        try:
            sender.start()
            return work()
        finally:
            interrupts.end()
    except Exception as error:
        interrupts.end()  # one may have come while the others were ended
        if run.is_stopped:
            raise run.error() from error
        raise


class _Settled(Exception):
    """Raised in this thread and caught at once."""


class _Interrupts:
    """Errors raised in the thread that made this, one a second: code that catches every error swallows one or two."""

    def __init__(self) -> None:
        self._thread = ctypes.c_ulong(threading.get_ident())
        self._lock, self._ended, self._sent = threading.Lock(), threading.Event(), False

    def send(self, after: float, first: Callable[[], None]) -> None:
        """Raise errors from so many seconds on until they are ended; before the first of them, do this."""
        while not self._ended.wait(after):
            with self._lock:
                if not self._ended.is_set():
                    first()
                    self._sent = True
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, ctypes.py_object(Stopped))
            after = AGAIN

    def end(self) -> None:
        """None comes any more, also none that was sent and is not raised yet."""
        with self._lock:
            # First: an error raised while the event is set would leave its lock taken.
            if self._sent:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, None)
            self._ended.set()
        if self._sent:
            self._sent = False
            self._settle()

    def _settle(self) -> None:
        """Let an error come and catch it.

        Where one was taken back, Python 3.11 goes on looking for it at every step, and under a tracer it never goes on
        to the next: until another one is raised.
        """
        try:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, ctypes.py_object(_Settled))
            while True:
                pass
        except _Settled:
            pass


def is_anything_left() -> bool:
    """Whether native code runs that could not be stopped: the process must not wait for it."""
    return any(not job.done() for job in _left)


def _wait_for_all(jobs: Iterable[Job[T]], seconds: float) -> bool:
    """Wait until all jobs are done, at most so long; their errors are nobody's here."""
    end = time.monotonic() + seconds
    for job in jobs:
        while not job.done():
            left = end - time.monotonic()
            if left <= 0:
                return False
            try:
                job.exception(min(left, STEP))
            except NotYet:
                continue
    return True
