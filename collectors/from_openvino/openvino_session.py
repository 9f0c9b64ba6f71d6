"""Running OpenVINO models with the CPU plugin, and what exposing tensors does to it.

Models are compiled as an application compiles them, but for ``INFERENCE_PRECISION_HINT``, which is float32: bfloat16
and float16, which the plugin chooses by itself where a processor has them, would add errors of their own. Where sums
must not saturate (``QUANTMEDIC_EXACT_KERNELS``) and this processor may do so, weights are handed over as real values:
the plugin then computes the same products of the same rounded activations in float32.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_openvino.openvino_file import IrModel, import_openvino, telling_line
from quantmedic.collectors.from_openvino.openvino_graph import OpenVINOGraph
from quantmedic.collectors.from_openvino.openvino_site import Place
from quantmedic.collectors.measure.host import has_vnni, wants_exact_kernels
from quantmedic.collectors.measure.models import Runner
from quantmedic.collectors.native.runs import run_native
from quantmedic.collectors.pair.feed import feed_error
from quantmedic.engine.errors import ModelError

if TYPE_CHECKING:
    import openvino

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
#: What OpenVINO raises where a model fails on its data.
_FAILURES = (RuntimeError, ValueError, TypeError)


class Session:
    """Compiled copies of one model with some tensors exposed, each lent to one thread at a time."""

    def __init__(self, graph: OpenVINOGraph, exposed: Sequence[Place], threads: int, *, exact: bool = False) -> None:
        """Compile the first copy.

        Args:
            graph: The model.
            exposed: Tensors that it returns behind its own outputs.
            threads: Threads of one run.
            exact: Sums must not saturate, whatever this processor does.

        Raises:
            ModelError: OpenVINO refuses the model.
        """
        file = graph.file
        self._file, self._exposed, self._threads = file, list(exposed), threads
        self._weights = graph.weights if exact else {}
        self._own, ends = len(file.model.outputs), _places_of_outputs(file)
        #: Outputs of the model among them, by their number; the model does not return a tensor twice.
        self._results = {place: ends.index(place) for place in self._exposed if place in ends}
        self._added = [place for place in self._exposed if place not in ends]
        self._lock = threading.Lock()
        self._free = [self._compile()]

    def run(self, feed: Sequence[Array]) -> tuple[list[Array], dict[Place, Array]]:
        """Outputs of one batch, and the exposed tensors, as copies.

        Args:
            feed: Arrays in the order of the inputs.

        Raises:
            ModelError: The model fails on this input; names the file and OpenVINO's words.
        """
        with self._lock:
            compiled = self._free.pop() if self._free else None
        compiled = compiled or self._compile()
        request = compiled.create_infer_request()
        try:
            run_native(
                lambda: request.infer(_in_c_order(feed)),
                str(self._file.path),
                request.cancel,
            )
            found = [np.array(request.get_output_tensor(k).data) for k in range(self._own + len(self._added))]
        except ModelError:
            raise
        except _FAILURES as error:
            raise feed_error(f"{self._file.path}: {telling_line(error)}", feed) from error
        finally:
            with self._lock:
                self._free.append(compiled)
        shown = dict(zip(self._added, found[self._own :], strict=True))
        return found[: self._own], shown | {place: found[k] for place, k in self._results.items()}

    def call(self, feed: Sequence[Array]) -> Callable[[], object]:
        """A function that runs this batch over and over."""
        request = self._free[0].create_infer_request()
        arrays = _in_c_order(feed)
        return lambda: request.infer(arrays)

    def list_kernels(self) -> list[tuple[tuple[str, ...], str]]:
        """Kernels of the compiled model: the operators of the file that each stands for, and its precision.

        The names are those of the file, in order; what the plugin added has none.
        """
        found = []
        for op in self._free[0].get_runtime_model().get_ordered_ops():
            told = op.get_rt_info()
            if "originalLayersNames" in told and "primitiveType" in told:
                names = tuple(name for name in str(told["originalLayersNames"].astype(str)).split(",") if name)
                found.append((names, str(told["primitiveType"].astype(str))))
        return found

    def _compile(self) -> "openvino.CompiledModel":
        model = self._file.model
        if self._added or self._weights:
            model = model.clone()
            operators = model.get_ordered_ops()
            model.add_outputs([operators[place.operator].output(place.output) for place in self._added])
            _hold_as_values(operators, self._weights)
        return _compile_model(self._file.path, model, self._threads)


def _in_c_order(feed: Sequence[Array]) -> list[Array]:
    """Arrays in C order; unlike ``numpy.ascontiguousarray``, which makes a row of a scalar, in their own shapes."""
    return [np.asarray(array, order="C") for array in feed]


def may_saturate() -> bool:
    """Sums of products must not saturate, and for all that is known of this processor they may."""
    return wants_exact_kernels() and has_vnni() is not True


def _hold_as_values(operators: Sequence["openvino.Node"], weights: Mapping[int, Array]) -> None:
    """Let what reads weights, by the place of the operator that makes them of codes, read real values instead."""
    from openvino import opset13  # an optional package

    for number, values in weights.items():
        constant = opset13.constant(values)
        for reader in operators[number].output(0).get_target_inputs():
            reader.replace_source_output(constant.output(0))


def _compile_model(path: Path, model: "openvino.Model", threads: int) -> "openvino.CompiledModel":
    """A model as the CPU plugin runs it; ``path`` is what messages call it.

    Raises:
        ModelError: OpenVINO refuses it.
    """
    core = import_openvino(path)
    options = {
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(threads),
        "ENABLE_CPU_PINNING": "NO",
    }
    try:
        return run_native(lambda: core().compile_model(model, "CPU", options), f"{path}: OpenVINO compiles it")
    except ModelError:
        raise
    except _FAILURES as error:
        raise ModelError(
            "OpenVINO cannot compile the model",
            where=f"{path}: {telling_line(error)}",
            help="does it run by itself? quantmedic show --environment tells the version of openvino",
        ) from error


class Sessions:
    """Two models, and their sessions as far as they were made."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, tuple[Place, ...], int], Session] = {}
        self._lock = threading.Lock()

    def session(self, graph: OpenVINOGraph, threads: int, exposed: Sequence[Place] = ()) -> Session:
        """The session of a model with these tensors exposed, made once.

        Raises:
            ModelError: OpenVINO refuses the model.
        """
        key = (str(graph.file.path), tuple(exposed), threads)
        with self._lock:
            if key not in self._made:
                self._made[key] = Session(graph, exposed, threads, exact=may_saturate())
            return self._made[key]

    def runner(self, graph: OpenVINOGraph, positions: Sequence[int], threads: int) -> Runner:
        """Runs a model as it is; returns its outputs at these positions.

        Raises:
            ModelError: OpenVINO refuses the model.
        """
        session = self.session(graph, threads)

        def run(batch: Batch) -> list[Float32]:
            found = session.run(graph.feed(batch))[0]
            return [np.asarray(found[k], np.float32) for k in positions]

        return run

    def forget(self, file: IrModel, kept: Sequence[Sequence[Place]]) -> None:
        """Let go of copies of a model that were made to try out what can be exposed, but for those that show these."""
        wanted = {(), *(tuple(places) for places in kept)}
        with self._lock:
            self._made = {key: made for key, made in self._made.items() if key[0] != str(file.path) or key[1] in wanted}


def _places_of_outputs(file: IrModel) -> list[Place]:
    """Where the outputs of a model are written."""
    numbers = {op.get_name(): number for number, op in enumerate(file.model.get_ordered_ops())}
    sources = [result.input_value(0) for result in file.model.get_results()]
    return [Place(numbers[source.get_node().get_name()], source.get_index()) for source in sources]
