"""A simulated network in segments, one behind the other: a run computes only those from its first change on.

Runs differ in few quantizers. What a segment gives under settings that it had before, behind segments that had theirs,
is kept, and so are the outputs. A segment with all of its quantizers off, or all as deployed, has a session of its own
where the settings are constants: without branches onnxruntime takes half of the time.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_graph import subgraphs_of
from quantmedic.collectors.from_onnx.onnx_session import make_session, run
from quantmedic.collectors.from_onnx.scalars import SCALAR, Rows, fill_rows, join_scalars
from quantmedic.collectors.measure.memory import kept_bytes

Array = NDArray[np.generic]
Feed = Mapping[str, Array]
#: Segments at most, and tensors that may cross from one to the next.
MAX_SEGMENTS, MAX_CROSSING = 4, 3
#: Nodes of a segment, about, at least.
LEAST_NODES = 24
#: Nodes that a quantizer counts for where the others count one: where a network is cut decides on the last bits of what
#: it gives, and quantizers had so many nodes outside of their branches when thresholds were set.
QUANTIZER = 3
#: Bytes that are kept of what segments gave, at most.
KEPT_BYTES = 512 << 20
#: Bytes that are kept of outputs, with the samples that they are of: beside what crosses segments, which is large, they
#: would be let go of before their run comes again.
OUTPUT_BYTES = 64 << 20
#: Runs under the same settings that cost about as much as opening a session of their own.
OFTEN = 8
#: Models of more bytes have no sessions with constant settings: those would hold all weights once more.
CONSTANT_BYTES = 64 << 20
#: Copies of the weights that these sessions take.
COPIES = 6
#: Types of tensors that may cross.
_TYPES = {"tensor(float)": TensorProto.FLOAT, "tensor(int64)": TensorProto.INT64, "tensor(bool)": TensorProto.BOOL}


@dataclass
class _Segment:
    """Neighbouring nodes as a model.

    Attributes:
        inputs: What it takes.
        rows: Scalars of that, which are fed together.
        model: The nodes with the constants that they read; None where no session with constant settings is opened.
        gives: Tensors that later segments read, and outputs of the network.
        carries: Tensors that are needed behind it, its own or older ones.
        session: With settings as inputs.
        expected: Numbers of settings that come often.
        runs: Runs under settings that are faster as constants, by their number.
        constant: Sessions with these as constants.
        often: Runs behind which these are opened.
    """

    inputs: frozenset[str]
    rows: Rows
    model: onnx.ModelProto | None
    gives: tuple[str, ...]
    carries: frozenset[str]
    session: ort.InferenceSession
    expected: set[int] = field(default_factory=set)
    runs: dict[int, int] = field(default_factory=dict)
    constant: dict[int, ort.InferenceSession] = field(default_factory=dict)
    often: int = OFTEN

    def comes_often(self, settings: int) -> bool:
        """These settings came so often that a session of their own pays."""
        if settings not in self.runs:
            return False
        self.runs[settings] += 1
        return self.runs[settings] > self.often


class _Values(NamedTuple):
    """What is needed behind a segment, and the batch that it is of, whose place in memory no other one may take."""

    batch: Batch
    found: dict[str, Array]
    bytes: int


class _Room:
    """Holds what was computed, up to a number of bytes."""

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        #: By batch and settings. Where there is no room, those of the first go first, of each what is oldest.
        self._held: tuple[OrderedDict[tuple[int, int], _Values], ...] = OrderedDict(), OrderedDict()

    def find(self, batch: Batch, state: int) -> dict[str, Array] | None:
        """What is held of a batch under settings; it becomes the youngest."""
        key = id(batch), state
        for held in self._held:
            if key in held:
                held.move_to_end(key)
                return held[key].found
        return None

    def keep(self, state: int, values: _Values, *, longer: bool = False) -> None:
        """Hold values of settings that are not held yet, and longer than others where asked."""
        self._held[longer][id(values.batch), state] = values
        self._bytes += values.bytes
        while self._bytes > self._most:
            _, oldest = (self._held[False] or self._held[True]).popitem(last=False)
            self._bytes -= oldest.bytes

    def clear(self) -> None:
        for held in self._held:
            held.clear()
        self._bytes = 0


class Step(NamedTuple):
    """A node, all that it and its branches read, and what it makes."""

    node: onnx.NodeProto
    reads: frozenset[str]
    makes: tuple[str, ...]


class State(NamedTuple):
    """What is in force, by numbers.

    Attributes:
        own: Of every segment the number of its settings.
        until: Of every segment the number of its settings and those of all before it.
    """

    own: tuple[int, ...]
    until: tuple[int, ...]


class Segments:
    """A model cut into segments."""

    def __init__(self, model: onnx.ModelProto, outputs: Sequence[str], path: Path, threads: int) -> None:
        """Cut the model, whose nodes may stand in any order.

        Args:
            model: The model.
            outputs: What a run gives.
            path: Where the model came from, for messages.
            threads: Threads within an operator.

        Raises:
            ModelError: onnxruntime refuses the model.
        """
        self._outputs, self._path, self._threads = list(outputs), path, threads
        most = kept_bytes(KEPT_BYTES)
        self._crossing, self._whole = _Room(most), _Room(min(OUTPUT_BYTES, most))
        self._numbers: dict[tuple[int, Hashable], int] = {}
        self._chains: dict[tuple[int, int], int] = {}
        weights = sum(len(c.raw_data) for c in model.graph.initializer)
        self._small = weights <= kept_bytes(CONSTANT_BYTES * COPIES) / COPIES
        steps = in_order(model.graph)
        self._segments = self._open(model, steps, _cuts(steps, outputs))

    def inputs(self) -> list[frozenset[str]]:
        """What every segment takes from outside."""
        made = {name for segment in self._segments for name in segment.gives}
        return [segment.inputs - made for segment in self._segments]

    def fill(self, segment: int, feed: Mapping[str, Array | float]) -> dict[str, Array]:
        """What to feed to a segment, by its number, where its inputs have these values."""
        return fill_rows(self._segments[segment].rows, feed)

    def state_of(self, settings: Sequence[Hashable]) -> State:
        """What is in force where every segment has these settings."""
        own, until = [], []
        before = -1
        for k, each in enumerate(settings):
            own.append(self._numbers.setdefault((k, each), len(self._numbers)))
            before = self._chains.setdefault((before, own[-1]), len(self._chains))
            until.append(before)
        return State(tuple(own), tuple(until))

    def expect(self, settings: Sequence[Hashable]) -> None:
        """Most changes begin behind these settings of every segment: what it gives under them is kept longer."""
        for segment, number in zip(self._segments, self.state_of(settings).own, strict=True):
            segment.expected.add(number)

    def hold_constant(self, settings: Sequence[Hashable]) -> None:
        """Be fast under these settings of every segment, where there is room for a session of their own."""
        if self._small:
            for segment, number in zip(self._segments, self.state_of(settings).own, strict=True):
                segment.runs[number] = 0

    def choose_at_once(self) -> None:
        """Sessions round differently: which of them runs is to depend on the settings alone, not on earlier runs."""
        self._crossing.clear()
        self._whole.clear()
        for segment in self._segments:
            segment.often = 0

    def run(self, batch: Batch, state: State, feed: Callable[[int], Feed], given: Feed) -> list[Array]:
        """The outputs for one batch.

        Args:
            batch: The samples.
            state: What is in force.
            feed: What that means to the inputs of a segment, by its number.
            given: Inputs of the network.

        Raises:
            ModelError: The network fails on this batch.
        """
        start, values = self._longest(batch, state.until)
        for k, segment in enumerate(self._segments[start:], start):
            taken, session = {**given, **values}, segment.constant.get(state.own[k])
            if session is None and segment.comes_often(state.own[k]):
                session = segment.constant[state.own[k]] = self._open_constant(segment, feed(k))
            if session is None:
                taken, session = {**taken, **feed(k)}, segment.session
            own = {value.name: taken[value.name] for value in session.get_inputs()}
            found = dict(zip(segment.gives, run(session, segment.gives, own, self._path), strict=True))
            values = {name: array for name, array in {**values, **found}.items() if name in segment.carries}
            if k + 1 < len(self._segments):
                self._keep(batch, state, k, values)
            else:
                self._keep_outputs(batch, state, values)
        return [values[name] for name in self._outputs]

    def _longest(self, batch: Batch, states: Sequence[int]) -> tuple[int, dict[str, Array]]:
        """The first segment to run, and what those before it gave."""
        for k in reversed(range(len(states))):
            room = self._crossing if k + 1 < len(states) else self._whole
            found = room.find(batch, states[k])
            if found is not None:
                return k + 1, found
        return 0, {}

    def _keep(self, batch: Batch, state: State, k: int, values: dict[str, Array]) -> None:
        """Keep what segment ``k`` gave, longer where all up to it have expected settings: most runs start there."""
        is_expected = all(
            own in segment.expected for own, segment in zip(state.own, self._segments[: k + 1], strict=False)
        )
        self._crossing.keep(state.until[k], _Values(batch, values, _bytes_of(values)), longer=is_expected)

    def _keep_outputs(self, batch: Batch, state: State, values: dict[str, Array]) -> None:
        """Keep the outputs; samples that are read anew in every run stay for their sake, so they count as well."""
        size = _bytes_of(values) + _bytes_of(batch.inputs)
        self._whole.keep(state.until[-1], _Values(batch, values, size))

    def _open_constant(self, segment: _Segment, values: Feed) -> ort.InferenceSession:
        """A session with constant values of inputs."""
        model = onnx.ModelProto()
        assert segment.model is not None
        model.CopyFrom(segment.model)
        make_constant(model.graph, values)
        return make_session(model, self._path, self._threads, exposed=segment.gives, in_float=True)

    def _open(self, model: onnx.ModelProto, steps: Sequence[Step], cuts: Sequence[int]) -> list[_Segment]:
        """One segment between two cuts; a single one where something crosses that is no common tensor."""
        bounds = [0, *cuts, len(steps)]
        last = {name: k for k, step in enumerate(steps) for name in step.reads}
        last |= dict.fromkeys(self._outputs, len(steps))
        types: dict[str, onnx.TypeProto] = {}
        carried: set[str] = set()
        segments = []
        for start, stop in pairwise(bounds):
            gives = tuple(name for step in steps[start:stop] for name in step.makes if last.get(name, -1) >= stop)
            carried = {name for name in (*carried, *gives) if last[name] >= stop}
            part = _model_of(model, steps[start:stop], types)
            inputs = frozenset(value.name for value in part.graph.input)
            rows = join_scalars(part)
            session = make_session(part, self._path, self._threads, exposed=gives)
            for value in session.get_outputs():
                if cuts and value.type not in _TYPES:
                    return self._open(model, steps, ())
                types[value.name] = _type_of(value)
            kept = part if self._small else None
            segments.append(_Segment(inputs, rows, kept, gives, frozenset(carried), session))
        return segments


def make_constant(graph: onnx.GraphProto, values: Feed) -> None:
    """Turn inputs of a graph into constants; ``values`` may name others than inputs."""
    inputs = list(graph.input)
    del graph.input[:]
    graph.input.extend(value for value in inputs if value.name not in values)
    graph.initializer.extend(
        numpy_helper.from_array(np.ascontiguousarray(values[value.name]), value.name)
        for value in inputs
        if value.name in values
    )


def _type_of(value: ort.NodeArg) -> onnx.TypeProto:
    """Its type and number of axes; how long they are, the data tell.

    onnxruntime says the same of a tensor without axes and of one whose number of axes it does not know, as behind a
    Reshape to a computed shape: called a scalar, its Shape would be folded into an empty one.
    """
    axes = [None] * len(value.shape) if value.shape else None
    found: onnx.TypeProto = helper.make_tensor_type_proto(_TYPES.get(value.type, TensorProto.UNDEFINED), axes)
    return found


def _model_of(model: onnx.ModelProto, steps: Sequence[Step], types: Mapping[str, onnx.TypeProto]) -> onnx.ModelProto:
    """Some of a model's nodes with the constants and inputs that they read; ``types`` are those of other nodes."""
    read = {name for step in steps for name in step.reads}
    made = {name for step in steps for name in step.makes}
    part = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    part.graph.name = model.graph.name or "segment"
    part.graph.node.extend(step.node for step in steps)
    constants = [c for c in model.graph.initializer if c.name in read]
    part.graph.initializer.extend(constants)
    part.graph.sparse_initializer.extend(c for c in model.graph.sparse_initializer if c.values.name in read)
    part.graph.input.extend(value for value in model.graph.input if value.name in read)
    part.graph.input.extend(
        onnx.ValueInfoProto(name=name, type=kind) for name, kind in types.items() if name in read and name not in made
    )
    return part


def reads_of(node: onnx.NodeProto) -> list[str]:
    """All that a node reads, its branches included, as often as it does."""
    return [*(name for name in node.input if name), *captured_by(node)]


def captured_by(node: onnx.NodeProto) -> list[str]:
    """What the branches of a node read from outside of them."""
    found = []
    for graph in subgraphs_of(node):
        own = {value.name for value in (*graph.input, *graph.initializer)}
        own.update(name for inner in graph.node for name in inner.output)
        read = [name for inner in graph.node for name in reads_of(inner)]
        found += [name for name in (*read, *(value.name for value in graph.output)) if name not in own]
    return found


def in_order(graph: onnx.GraphProto) -> list[Step]:
    """The nodes in their order, but each behind all that it reads, and added ones no sooner than they are read."""
    steps = [Step(node, frozenset(reads_of(node)), tuple(name for name in node.output if name)) for node in graph.node]
    writers = {name: k for k, step in enumerate(steps) for name in step.makes}
    needed = [sorted({writers[name] for name in step.reads if name in writers}) for step in steps]
    ends = {k for own in needed for k in own}
    done: dict[int, None] = {}
    for last in (k for k in range(len(steps)) if k not in ends):
        stack = [(last, False)]
        while stack:
            k, is_ready = stack.pop()
            if is_ready:
                done[k] = None
            elif k not in done:
                stack.append((k, True))
                stack.extend((other, False) for other in reversed(needed[k]) if other not in done)
    return [steps[k] for k in done]


def _cuts(steps: Sequence[Step], outputs: Sequence[str]) -> list[int]:
    """Places that part the nodes about evenly, where few tensors cross; the numbers of the nodes behind them."""
    first = {name: k for k, step in enumerate(steps) for name in step.makes}
    if not first.keys() >= set(outputs):
        return []
    last = {name: k for k, step in enumerate(steps) for name in step.reads if name in first}
    crossing = np.zeros(len(steps) + 1, int)
    for name, k in last.items():
        crossing[first[name] + 1] += 1
        crossing[k + 1] -= 1
    crossing = np.cumsum(crossing)
    places = np.cumsum([0, *map(_weight, steps)])
    count = int(np.clip(places[-1] // LEAST_NODES, 1, MAX_SEGMENTS))
    width = places[-1] / count
    found = []
    for middle in (width * k for k in range(1, count)):
        low, high = max(int(middle - width / 2) + 1, 1), min(int(middle + width / 2), int(places[-1]) - 1)
        near = np.flatnonzero((places >= low) & (places <= high))
        if near.size:
            best = int(min(near, key=lambda k: (crossing[k], abs(places[k] - middle))))
            found += [best] if crossing[best] <= MAX_CROSSING else []
    return sorted(set(found))


def _weight(step: Step) -> int:
    """How many nodes a step counts for: quantizers, which alone read so many scalars, for some more."""
    return QUANTIZER if sum(name.startswith(SCALAR) for name in step.reads) > 2 else 1


def _bytes_of(values: Mapping[str, Array]) -> int:
    return sum(array.nbytes for array in values.values())
