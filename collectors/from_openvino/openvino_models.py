"""Two OpenVINO models that belong together: read, paired, described, and run and observed by the CPU plugin."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_models import graph_runner
from quantmedic.collectors.from_onnx.onnx_record import describe_files
from quantmedic.collectors.from_openvino.dropped_bounds import dropped_bounds
from quantmedic.collectors.from_openvino.exposing import Exposed, find_exposable
from quantmedic.collectors.from_openvino.folded_factors import folded_factors
from quantmedic.collectors.from_openvino.openvino_file import read_ir
from quantmedic.collectors.from_openvino.openvino_graph import OpenVINOGraph, graph_of
from quantmedic.collectors.from_openvino.openvino_session import Session, Sessions, may_saturate
from quantmedic.collectors.from_openvino.openvino_site import Place
from quantmedic.collectors.from_translation.translated_models import TranslatedFiles, shared_pairs
from quantmedic.collectors.measure.host import installed_version
from quantmedic.collectors.measure.models import Description, Faithfulness, Kernel, Reading, Runner, View
from quantmedic.collectors.measure.outputs import added_noise_ratio
from quantmedic.collectors.measure.plan import feature_of
from quantmedic.collectors.pair.graph import Shape, Tap
from quantmedic.collectors.pair.match import match
from quantmedic.collectors.pair.same_network import match_files
from quantmedic.collectors.pair.tensor_pairs import Pair
from quantmedic.engine.errors import ModelError

#: What the CPU plugin calls a kernel that reads codes, behind the name of its implementation.
_INTEGER_KERNELS = ("_i8", "_u8")
#: Operators that round, which no kernel has to itself.
_ROUNDERS = frozenset({"FakeQuantize"})
Array = NDArray[np.generic]
Float32 = NDArray[np.float32]


class OpenVINOView(View):
    """Shows numbered pairs of tensors; see ``View``.

    Outputs always come from the models as they are; copies of them show the tensors (``exposing.py``).
    """

    def __init__(self, models: "OpenVINOModels", pairs: Mapping[int, Pair], first: Batch, threads: int) -> None:
        """Compile what shows the pairs."""
        self._sessions, self._threads, self._match = models.sessions, threads, models.match
        self._float, self._quantized = models.float_graph, models.quantized
        self.pairs = dict(pairs)
        self._feature = feature_of(self._float)
        wanted = {number: pair for number, pair in pairs.items() if pair.tap.tensor not in self._quantized.inputs}
        self._exposed = self._find(wanted, first)
        shown = {place for places in self._exposed.copies for place in places}
        self.taps: dict[int, Tap] = {
            number: pair.tap
            for number, pair in pairs.items()
            if number not in wanted or self._quantized.places[pair.tap.tensor] in shown
        }
        plain = self._match_outputs(self._run(self._quantized, first), 1)
        self.observed = Faithfulness.of_outputs(plain, self._match_outputs(self._exposed.outputs, 1))

    def _find(self, pairs: Mapping[int, Pair], first: Batch) -> Exposed:
        graph = self._quantized
        codes = {graph.places[p.tap.tensor] for p in pairs.values() if p.tap.quantizer is not None}
        others = {graph.places[p.tap.tensor] for p in pairs.values()} - codes
        found = find_exposable(self._sessions, graph, codes, others, graph.feed(first), self._threads)
        self._sessions.forget(graph.file, found.copies)
        return found

    @property
    def faithful(self) -> list[int]:
        """Numbers of the taps that show what is deployed: inputs, and what the copy shows that computes the same."""
        if not self.observed.simulated:
            return list(self.taps)
        places, same = self._quantized.places, set(self._exposed.same)
        return [n for n, tap in self.taps.items() if tap.tensor in self._quantized.inputs or places[tap.tensor] in same]

    def read_tensors(self, batch: Batch) -> Reading:
        """Run both models.

        Raises:
            ModelError: One of them fails on this batch.
        """
        graph = self._quantized
        fed = graph.feed(batch)
        shown: dict[Place, Array] = {}
        for places in self._exposed.copies:
            shown |= self._sessions.session(graph, self._threads, places).run(fed)[1]
        inputs = dict(zip(graph.inputs, fed, strict=True))
        codes = {number: self._codes(tap, shown, inputs) for number, tap in self.taps.items()}
        floats = self._floats(batch)
        own = [floats[name] for name in self._float.outputs]
        return Reading(floats, codes, (self._match_outputs(own, 0), self._match_outputs(self._run(graph, batch), 1)))

    def _codes(self, tap: Tap, shown: Mapping[Place, Array], inputs: Mapping[str, Array]) -> Array:
        """What a tap shows: codes, which the plugin has as the values that they stand for."""
        graph = self._quantized
        if tap.tensor in inputs:
            return inputs[tap.tensor]
        values = shown[graph.places[tap.tensor]]
        decoder = graph.decoders.get(tap.tensor)
        if decoder is None:
            return values
        kind = np.dtype(f"{'' if decoder.signed else 'u'}int{max(decoder.bits, 8)}")
        return decoder.encode(np.asarray(values, np.float32)).astype(kind)

    def _floats(self, batch: Batch) -> dict[str, Array]:
        """Tensors of the float model by name, its inputs and outputs too."""
        graph = self._float
        names = {pair.twin for pair in self.pairs.values()}
        wanted = sorted({*names, *([self._feature] if self._feature else []), *graph.outputs} - {*graph.inputs})
        at = {name: graph.places[graph.shown_by(name)] for name in wanted}
        places = sorted({*at.values()})
        fed = graph.feed(batch)
        shown = self._sessions.session(graph, self._threads, places).run(fed)[1]
        found = {name: graph.values_of(name, shown[place]) for name, place in at.items()}
        found |= dict(zip(graph.inputs, fed, strict=True))
        # The copy that shows the tensors may round the outputs a little otherwise.
        return found | dict(zip(graph.outputs, self._run(graph, batch), strict=True))

    def _run(self, graph: OpenVINOGraph, batch: Batch) -> list[Array]:
        """Outputs of a model as it is."""
        return self._sessions.session(graph, self._threads).run(graph.feed(batch))[0]

    def _match_outputs(self, outputs: Sequence[Array], side: int) -> list[Array]:
        return [np.asarray(outputs[pair[side]], np.float32) for pair in self._match.outputs]

    def read_floats(self, batch: Batch, names: Sequence[str]) -> list[Array]:
        """These tensors in one run of the float model alone."""
        found = self._floats(batch)
        return [found[name] for name in names]


@dataclass
class OpenVINOModels(TranslatedFiles[OpenVINOGraph]):
    """Two IRs; see ``Models``. ``pairs`` are those that OpenVINO has in both."""

    framework: ClassVar[str] = "openvino"
    reference: ClassVar[str] = "OpenVINO"

    sessions: Sessions = field(default_factory=Sessions, kw_only=True)
    """Compiled models."""

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Shapes as OpenVINO infers them of the float model."""
        return self.float_graph.stated

    def view(
        self, pairs: Mapping[int, Pair], first: Batch, threads: int, plain: Sequence[Array] | None = None
    ) -> OpenVINOView:
        """Both models, and copies of them that show these pairs."""
        self.first = self.first or first
        return OpenVINOView(self, pairs, first, threads)

    def kernel_facts(self, first: Batch, reading: Reading, threads: int) -> dict[str, object]:
        """What the integer kernels of this machine add to the quantization, measured on one batch.

        The model as deployed is held against its graph as it is written, which is the translation without
        optimizations. Where its weights are stored as float32, the plugin finds nothing to lower and computes the same
        graph with sums that cannot saturate.

        Returns:
            The runtime, and how noisy its kernels are: mean d² between an execution and the graph as it is written /
            mean d² between the latter and the float model. Figures are left out where there is no translation or no
            noise.
        """
        graph = self.quantized
        if not graph.is_quantized:
            return {}
        import openvino  # an optional package

        facts: dict[str, object] = {"runtime": f"openvino {openvino.get_version().partition('-')[0]}"}
        if graph.untranslated:
            return facts
        ends = [graph.outputs[j] for _, j in self.match.outputs]
        try:
            plain = graph_runner(graph, ends, threads, plain=True)(first)
        except ModelError:
            return facts  # The file itself runs: that its translation does not is said where it is needed.
        deployed = added_noise_ratio(reading.outputs[0], plain, reading.outputs[1])
        if deployed is None:
            return facts
        found = Session(graph, [], threads, exact=True).run(graph.feed(first))[0]
        exact = [np.array(found[j]) for _, j in self.match.outputs]
        return facts | {
            "integer_kernel_noise": deployed,
            "exact_kernel_noise": added_noise_ratio(reading.outputs[0], plain, exact),
        }

    def describe(self) -> Description:
        """What the files tell besides their graphs."""
        settings = self.quantized.file.settings
        version = settings.get("nncf/version")
        marks = sorted(f"rt_info {key}" for key in settings if key.startswith("nncf/"))
        facts: dict[str, object] = {
            "format": self.quantized.format,
            "toolchain": f"nncf {version}" if version else None,
            "toolchain_marks": tuple(marks),
        }
        return describe_files(self, self.framework, facts, {"openvino": installed_version("openvino")})

    def kernels(self, threads: int) -> dict[str, Kernel]:
        """How the CPU plugin computes each tensor of the quantized model, by the kernels of the compiled model.

        A kernel stands for all operators that were fused into it.
        """
        # Which kernels the runtime chooses is another question than whether their sums saturate here.
        graph = self.quantized
        session = Session(graph, [], threads) if may_saturate() else self.sessions.session(graph, threads)
        kinds = {
            name: Kernel.INTEGER if primitive.lower().endswith(_INTEGER_KERNELS) else Kernel.FLOAT
            for names, primitive in session.list_kernels()
            for name in names
        }
        operators = graph.file.model.get_ordered_ops()
        return {
            tensor: kinds[op.get_friendly_name()]
            for tensor, place in graph.places.items()
            if (op := operators[place.operator]).get_friendly_name() in kinds and op.get_type_name() not in _ROUNDERS
        }

    def runner_of(self, graph: OpenVINOGraph, positions: Sequence[int], threads: int) -> Runner:
        """Runs an IR with the CPU plugin."""
        return self.sessions.runner(graph, positions, threads)

    def repeated_run(self, graph: OpenVINOGraph, batch: Batch, threads: int) -> Callable[[], object]:
        """A function that runs a model on this batch over and over."""
        return self.sessions.session(graph, threads).call(graph.feed(batch))

    def compared_tensors(
        self, graph: OpenVINOGraph, first: Batch, threads: int
    ) -> tuple[Sequence[str], Sequence[Float32]]:
        """The outputs; of Sigmoid and Softmax at the end, which blow the last bits of large inputs up, the inputs."""
        names = [_before_saturation(graph, name) for name in graph.outputs]
        places = [graph.places[name] for name in names]
        shown = self.sessions.session(graph, threads, sorted({*places})).run(graph.feed(first))[1]
        return names, [np.asarray(shown[place], np.float32) for place in places]


def _before_saturation(graph: OpenVINOGraph, name: str) -> str:
    """An output, or what its Sigmoid or Softmax reads."""
    producer = graph.producers.get(graph.root(name))
    if producer is None or producer.op_type not in ("Sigmoid", "Softmax") or graph.root(name) in graph.quantizers:
        return name
    source = producer.inputs[0]
    return source if source in graph.places and source not in graph.quantizers else name


def open_models(float_path: Path, quantized_path: Path) -> OpenVINOModels:
    """Read both models, translate them and pair their tensors; neither is run.

    Raises:
        ModelError: A file cannot be read, they are swapped, their inputs differ, or no layer matches.
    """
    files = read_ir(float_path), read_ir(quantized_path)
    float_graph, quantized = (graph_of(file) for file in files)
    matched = match(float_graph, quantized)
    factors = folded_factors(float_graph, quantized, matched)
    if factors:
        float_graph = graph_of(files[0], factors=factors)
        matched = match(float_graph, quantized)
    dropped = dropped_bounds(float_graph, quantized, matched)
    if dropped:
        quantized = graph_of(files[1], dropped)
    matched = match_files(float_graph, quantized)
    return OpenVINOModels(float_graph, quantized, matched, shared_pairs(float_graph, quantized, matched))
