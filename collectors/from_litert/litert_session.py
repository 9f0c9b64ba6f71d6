"""Running LiteRT models: interpreters of one file, one for each thread that asks, and what they show of a batch.

The interpreters are those that an application gets on this processor, with the delegate that LiteRT chooses by itself
(XNNPACK). One that also shows intermediate tensors keeps all of them in memory; they are copied one at a time, when
they are asked for.
"""

import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.messages import error_line
from quantmedic.collectors.from_litert.litert_file import LiteModel
from quantmedic.collectors.from_litert.litert_graph import LiteRTGraph
from quantmedic.collectors.measure.models import Runner
from quantmedic.collectors.measure.outputs import output_difference
from quantmedic.collectors.native.runs import run_native
from quantmedic.collectors.pair.feed import feed_error
from quantmedic.engine.errors import ModelError, RefusedModelError

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
#: Samples at once with which is found out whether a model takes more than one.
PROBED = 2
#: Of its largest value an output may differ from that of one sample at a time, where kernels round by the batch.
SAME_BATCHED = 0.02
#: An interpreter that was fed with so many times the samples of a batch is made anew, for it keeps the room.
MOST_SAMPLES = 2
_GREETING = threading.Lock()
_greeted: list[bool] = []
#: What interpreters raise where a model fails on its data.
_FAILURES = (ValueError, RuntimeError, TypeError)


class Session:
    """Interpreters of one file, each lent to one thread at a time."""

    def __init__(self, model: LiteModel, threads: int, *, observed: bool = False, delegated: bool = True) -> None:
        """Make the first interpreter.

        Args:
            model: The file.
            threads: Threads of one interpreter.
            observed: Keep intermediate tensors, so that they can be read.
            delegated: Let LiteRT choose its default delegate, as an application does; False: its own kernels.

        Raises:
            ModelError: The interpreter refuses the model; names the file and its words.
        """
        self._model, self._threads = model, threads
        self._observed, self._delegated = observed, delegated
        self._free = [self._make_interpreter()]
        self._shown: dict[int, weakref.ref[Shown]] = {}

    def run(self, feed: Mapping[int, Array], wanted: Sequence[int]) -> dict[int, Array]:
        """Tensors of one batch by their places, as copies.

        Args:
            feed: Arrays by the place of the input; its first axis is resized to theirs.
            wanted: Places of the tensors to read.

        Raises:
            ModelError: The model fails on this input; names the file and the interpreter's words.
        """
        shown = self.show(feed, wanted)
        return {place: shown[place] for place in dict.fromkeys(wanted)}

    def show(self, feed: Mapping[int, Array], wanted: Sequence[int]) -> "Shown":
        """The same, but each tensor is copied when it is asked for: the interpreter is lent while what it shows lives.

        Raises:
            ModelError: The model fails on this input; names the file and the interpreter's words.
        """
        interpreter = self._take(feed)

        def failure(error: Exception) -> ModelError:
            named = {self._model.tensors[place].name: array for place, array in feed.items()}
            return feed_error(f"{self._model.path}: {error_line(error)}", named)

        try:
            run_native(lambda: interpreter.run(feed), str(self._model.path))
        except ModelError:
            raise
        except _FAILURES as error:  # one whose run fails is not used again
            raise failure(error) from error
        shown = Shown(interpreter, wanted, self._free.append, failure)
        self._shown[threading.get_ident()] = weakref.ref(shown)
        return shown

    def readable(self, feed: Mapping[int, Array], wanted: Sequence[int]) -> set[int]:
        """Places of tensors that hold values after a run.

        Raises:
            ModelError: The model fails on this input.
        """
        interpreter = self._take(feed)
        run_native(lambda: interpreter.run(feed), str(self._model.path))
        self._free.append(interpreter)
        return {place for place in wanted if interpreter.holds(place)}

    def call(self, feed: Mapping[int, Array]) -> Callable[[], None]:
        """A function that runs this batch, which it feeds beforehand, over and over on an interpreter of its own."""
        interpreter = self._make_interpreter()
        run_native(lambda: interpreter.run(feed), str(self._model.path))
        return interpreter.again

    def _take(self, feed: Mapping[int, Array]) -> "_Interpreter":
        """A free interpreter, else the one that this thread still looks at; not one that is far too large."""
        try:
            interpreter = self._free.pop()
        except IndexError:
            looked_at = self._shown.pop(threading.get_ident(), lambda: None)()
            interpreter = (looked_at.part() if looked_at is not None else None) or self._make_interpreter()
        return self._make_interpreter() if interpreter.is_too_large(feed) else interpreter

    def _make_interpreter(self) -> "_Interpreter":
        try:
            return run_native(
                lambda: _Interpreter(self._model.content, self._threads, self._observed, self._delegated),
                f"{self._model.path}: LiteRT loads it",
            )
        except (ValueError, RuntimeError) as error:
            raise RefusedModelError(
                self._model.path,
                error_line(error),
                runtime="the LiteRT interpreter",
                help="does it run by itself? quantmedic show --environment tells the version of ai-edge-litert",
            ) from error


class Shown(Mapping[int, Array]):
    """Tensors of one run by their places, each copied from the interpreter when it is asked for."""

    def __init__(
        self,
        interpreter: "_Interpreter",
        wanted: Sequence[int],
        give_back: Callable[["_Interpreter"], None],
        error_of: Callable[[Exception], ModelError],
    ) -> None:
        self._interpreter: _Interpreter | None = interpreter
        self._wanted, self._give_back, self._error_of = list(dict.fromkeys(wanted)), give_back, error_of
        self._copies: dict[int, Array] = {}

    def __getitem__(self, place: int) -> Array:
        if self._interpreter is None:
            return self._copies[place]
        if place not in self._wanted:
            raise KeyError(place)
        try:
            return self._interpreter.copy_tensor(place)
        except _FAILURES as error:
            raise self._error_of(error) from error

    def __iter__(self) -> Iterator[int]:
        return iter(self._wanted)

    def __len__(self) -> int:
        return len(self._wanted)

    def part(self) -> "_Interpreter | None":
        """Copy everything and hand the interpreter over; None where that was done before."""
        self._copies = dict(self)
        interpreter, self._interpreter = self._interpreter, None
        return interpreter

    def __del__(self) -> None:
        if self._interpreter is not None:
            self._give_back(self._interpreter)


class _Interpreter:
    """One interpreter with the shapes that its inputs have now."""

    def __init__(self, content: bytes, threads: int, observed: bool, delegated: bool) -> None:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType  # an optional package

        kinds = OpResolverType.BUILTIN if delegated else OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        with warnings.catch_warnings(), _without_greeting():
            warnings.simplefilter("ignore")  # that preserved tensors take memory
            self._interpreter = Interpreter(
                model_content=content,
                num_threads=threads,
                experimental_op_resolver_type=kinds,
                experimental_preserve_all_tensors=observed,
            )
            self._interpreter.allocate_tensors()
        details = self._interpreter.get_input_details()
        self._shapes = {each["index"]: tuple(int(side) for side in each["shape"]) for each in details}
        self._most = _samples_in(self._shapes)

    def run(self, feed: Mapping[int, Array]) -> None:
        """Run it on arrays by place."""
        resized = {place: array.shape for place, array in feed.items() if self._shapes[place] != array.shape}
        for place, shape in resized.items():
            self._interpreter.resize_tensor_input(place, list(shape))
        if resized:
            self._interpreter.allocate_tensors()
            self._shapes.update(resized)
            self._most = max(self._most, _samples_in(self._shapes))
        for place, array in feed.items():
            self._interpreter.set_tensor(place, np.ascontiguousarray(array).reshape(array.shape))
        self._interpreter.invoke()

    def is_too_large(self, feed: Mapping[int, Array]) -> bool:
        """It has room for much more than it is fed with, and would keep it."""
        return self._most >= MOST_SAMPLES * _samples_in({place: array.shape for place, array in feed.items()})

    def again(self) -> None:
        """Run it on what it was fed with last."""
        self._interpreter.invoke()

    def copy_tensor(self, place: int) -> Array:
        """A copy of a tensor."""
        found: Array = self._interpreter.get_tensor(place)
        return found

    def holds(self, place: int) -> bool:
        """A tensor has values."""
        try:
            self._interpreter.get_tensor(place)
        except ValueError:
            return False
        return True


def _samples_in(shapes: Mapping[int, tuple[int, ...]]) -> int:
    return max((shape[0] for shape in shapes.values() if shape), default=1)


class Sessions:
    """Files, and their interpreters as far as they were made."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int, bool, bool], Session] = {}
        self._lock = threading.Lock()

    def session(self, graph: LiteRTGraph, threads: int, *, observed: bool = False, delegated: bool = True) -> Session:
        """The interpreters of a file, made once for each way to run it; see ``Session``.

        Raises:
            ModelError: The interpreter refuses the file.
        """
        key = (str(graph.path), threads, observed, delegated)
        with self._lock:
            if key not in self._made:
                self._made[key] = Session(graph.file, threads, observed=observed, delegated=delegated)
            return self._made[key]

    def release(self) -> None:
        """Let go of all interpreters, which keep room for what they computed; they are made again when needed."""
        with self._lock:
            self._made.clear()

    def runner(self, graph: LiteRTGraph, positions: Sequence[int], threads: int) -> Runner:
        """Runs a file; returns its outputs at these positions as real values.

        Raises:
            ModelError: The interpreter refuses the file.
        """
        session, ends = self.session(graph, threads), list(graph.ends.values())
        places = [ends[i] for i in positions]

        def run(batch: Batch) -> list[Float32]:
            found = session.run(graph.feed(batch), places)
            return [graph.decode(place, found[place]) for place in places]

        return run


def is_open(model: LiteModel) -> bool:
    """The shapes of all inputs leave open how many samples a batch has."""
    shapes = [model.tensors[place].shape for place in model.inputs]
    return bool(shapes) and all(shape and shape[0] is None for shape in shapes)


def takes_batches(session: Session, model: LiteModel) -> bool:
    """Whether a model whose inputs are open computes several samples at once, and the same as one at a time.

    Constant shapes within may refuse more than one sample, or mix them: outputs of two are held against those of one
    and one.
    """
    rng = np.random.default_rng(0)
    feed = {place: _probe_samples(model, place, rng) for place in model.inputs}
    outputs = list(model.outputs)
    try:
        alone = [session.run({k: array[i : i + 1] for k, array in feed.items()}, outputs) for i in range(PROBED)]
        together = session.run(feed, outputs)
    except ModelError:
        return False
    single = [[found[place] for found in alone] for place in outputs]
    if any(array.ndim == 0 for arrays in single for array in arrays):
        return False
    expected = [np.concatenate(arrays) for arrays in single]
    return output_difference(expected, [together[place] for place in outputs]) <= SAME_BATCHED


def _probe_samples(model: LiteModel, place: int, rng: np.random.Generator) -> Array:
    """Two samples that differ; of an integer input without a grid zeros, for it may hold places in a table."""
    tensor = model.tensors[place]
    shape = (PROBED, *(side or 1 for side in tensor.shape[1:]))
    kind = tensor.dtype
    if kind.kind == "f":
        return rng.random(shape).astype(kind)
    if kind.kind == "i" and tensor.quantizer is not None:
        return rng.integers(tensor.quantizer.qmin, tensor.quantizer.qmax + 1, shape).astype(kind)
    return np.zeros(shape, kind)


@contextmanager
def _without_greeting() -> Iterator[None]:
    """Keep off the terminal what the first interpreter of a process writes there, past Python, of its delegate."""
    if _greeted:
        yield
        return
    with _GREETING:
        try:
            kept, void = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        except OSError:  # there is no terminal to keep clean
            yield
            return
        try:
            os.dup2(void, 2)
            yield
            _greeted.append(True)
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            os.close(void)
