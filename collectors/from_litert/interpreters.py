"""The interpreters of two matched LiteRT files."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_litert.feed import decode, feed_of, outputs_of
from quantmedic.collectors.from_litert.graph import LiteRTGraph
from quantmedic.collectors.from_litert.session import Session
from quantmedic.collectors.measure.models import Runner
from quantmedic.collectors.pair.match import Match

Float32 = NDArray[np.float32]


@dataclass
class Interpreters:
    """Two files, and their interpreters as far as they were made."""

    float_graph: LiteRTGraph
    quantized: LiteRTGraph
    match: Match
    _sessions: dict[tuple[str, int, bool, bool], Session] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def session(self, graph: LiteRTGraph, threads: int, *, observed: bool = False, delegated: bool = True) -> Session:
        """The interpreters of one of the two files, made once for each way to run it; see ``Session``.

        Raises:
            ModelError: The interpreter refuses the file.
        """
        key = (str(graph.path), threads, observed, delegated)
        with self._lock:
            if key not in self._sessions:
                self._sessions[key] = Session(graph.file, threads, observed=observed, delegated=delegated)
            return self._sessions[key]

    def release(self) -> None:
        """Let go of all interpreters, which keep room for what they computed; they are made again when needed."""
        with self._lock:
            self._sessions.clear()

    def float_runner(self, threads: int) -> Runner:
        """Runs the float file; returns the matched outputs."""
        return self.runner(self.float_graph, [i for i, _ in self.match.outputs], threads)

    def quantized_runner(self, threads: int) -> Runner:
        """Runs the quantized file; returns the matched outputs."""
        return self.runner(self.quantized, [j for _, j in self.match.outputs], threads)

    def runner(self, graph: LiteRTGraph, positions: Sequence[int], threads: int) -> Runner:
        """Runs one of the two files; returns its outputs at these positions as real values.

        Raises:
            ModelError: The interpreter refuses the file.
        """
        session, ends = self.session(graph, threads), list(outputs_of(graph).values())
        places = [ends[i] for i in positions]

        def run(batch: Batch) -> list[Float32]:
            found = session.run(feed_of(batch, graph), places)
            return [decode(graph, place, found[place]) for place in places]

        return run
