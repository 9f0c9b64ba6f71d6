"""The skeleton of a front end, for a toy format: dense layers in ``.toy`` files, which numpy reads and runs.

Its entry point stands in ``quantmedic_toy-1.0.dist-info`` beside this package, as that of any installed package.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.hashes import sha256_of
from quantmedic.collectors.measure.float_model import FloatModel
from quantmedic.collectors.measure.front_end import FileFrontEnd, FrontEnd
from quantmedic.collectors.measure.latency import Profile, latency_facts
from quantmedic.collectors.measure.models import (
    Description,
    Faithfulness,
    Kernel,
    Models,
    Reading,
    Runner,
    SimulatedNetwork,
    View,
)
from quantmedic.collectors.pair.constants import Constant
from quantmedic.collectors.pair.graph import Attributes, Graph, Node, Operator, Tap, TensorSpec, consumers_of
from quantmedic.collectors.pair.quantizer import Quantizer
from quantmedic.collectors.pair.same_network import match_files
from quantmedic.collectors.pair.tensor_pairs import Pair, pairs_of
from quantmedic.engine.case.facts import ModelFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
SIZES = (16, 24, 4)


@dataclass
class ToyGraph(Graph):
    """A file: weights, biases, and where there are any, the steps that results are rounded to."""

    layers: list[tuple[Float32, Float32, float]] = field(default_factory=list)

    def run(self, inputs: Array) -> dict[str, Array]:
        """Every tensor of a batch; codes of a quantized file under ``NAME.codes``."""
        x: Float32 = np.asarray(inputs, np.float32)
        found: dict[str, Array] = {"x": x}
        for k, (weight, bias, step) in enumerate(self.layers):
            x = np.maximum(x @ weight + bias, 0.0) if k + 1 < len(self.layers) else x @ weight + bias
            if step:
                codes = np.clip(np.rint(x / step), -128, 127).astype(np.int8)
                found[f"h{k}.codes"], x = codes, codes * np.float32(step)
            found[f"h{k}"] = x
        return found


def read(path: Path) -> ToyGraph:
    """A file as a graph."""
    try:
        with np.load(path) as file:
            layers = [(file[f"w{k}"], file[f"b{k}"], float(file["steps"][k])) for k in range(len(file["steps"]))]
    except (OSError, ValueError, KeyError) as error:
        raise ModelError("not a readable toy model", where=f"{path}: {error}", help="write it again") from error
    graph = ToyGraph(path, layers=layers, input_specs=[TensorSpec("x", (None, SIZES[0]), np.dtype("f4"))])
    for k, (weight, bias, step) in enumerate(layers):
        names = ["x" if k == 0 else f"h{k - 1}", f"w{k}", f"b{k}"]
        graph.constants |= {names[1]: Constant(names[1], weight), names[2]: Constant(names[2], bias)}
        node = Node("Gemm", names, [f"h{k}"], f"layer{k}")
        graph.operators.append(Operator(k, node.name, "Gemm", names, node.outputs, Attributes(), node))
        if step:
            grid = Quantizer(np.array(step, np.float32), np.array(0), 8, True)
            graph.roots[f"h{k}.codes"], graph.codes[f"h{k}.codes"] = f"h{k}", grid
            graph.quantizers[f"h{k}"] = [Tap(f"h{k}.codes", grid)]
            graph.qdq_nodes += 1
    graph.output_specs = [TensorSpec(f"h{len(layers) - 1}", (None, SIZES[-1]), np.dtype("f4"))]
    graph.producers = {name: op for op in graph.operators for name in op.outputs}
    graph.consumers = consumers_of(graph.operators)
    return graph


def runner_of(graph: ToyGraph) -> Runner:
    """Runs one file."""
    return lambda batch: [np.asarray(graph.run(*batch.inputs.values())[graph.outputs[0]], np.float32)]


class ToyView(View):
    """Every tensor of a run is there already; see ``View``."""

    def __init__(self, models: "ToyModels", pairs: Mapping[int, Pair], first: Batch) -> None:
        self._models, self.pairs = models, dict(pairs)
        self.taps = {number: pair.tap for number, pair in pairs.items()}
        self.observed = Faithfulness(self.read_tensors(first).outputs[1], simulated=False, difference=0.0)

    def read_tensors(self, batch: Batch) -> Reading:
        (x,), end = batch.inputs.values(), self._models.float_graph.outputs[0]
        floats, seen = self._models.float_graph.run(x), self._models.quantized.run(x)
        codes = {number: seen[tap.tensor] for number, tap in self.taps.items()}
        return Reading(floats, codes, ([floats[end]], [seen[end]]))

    def read_floats(self, batch: Batch, names: Sequence[str]) -> list[Array]:
        floats = self.read_tensors(batch).floats
        return [floats[name] for name in names]


@dataclass
class ToyModels(Models):
    """Two files; see ``Models``. Remedies are neither simulated nor tried."""

    framework: ClassVar[str] = "toy"

    float_graph: ToyGraph
    quantized: ToyGraph

    @property
    def shapes(self) -> dict[str, tuple[int | None, ...]]:
        layers = self.float_graph.layers
        sizes = {"x": SIZES[0]} | {f"h{k}": len(bias) for k, (_, bias, _) in enumerate(layers)}
        return {name: (None, size) for name, size in sizes.items()}

    def static_types(self, samples: int) -> tuple[dict[str, TensorSpec], dict[str, TensorSpec]]:
        types = {name: TensorSpec(name, shape, np.dtype("f4")) for name, shape in self.shapes.items()}
        return types, types

    def view(
        self, pairs: Mapping[int, Pair], first: Batch, threads: int, plain: Sequence[Array] | None = None
    ) -> ToyView:
        return ToyView(self, pairs, first)

    def profile(self, batch: Batch, threads: int) -> Profile:
        calls = [lambda run=run: run(batch) for run in (self.float_runner(threads), self.quantized_runner(threads))]
        return Profile(latency_facts(*calls, threads=threads, batch=batch.samples))

    def describe(self) -> Description:
        names, hashes = zip(
            *((graph.path.name, sha256_of([graph.path])) for graph in (self.float_graph, self.quantized)), strict=True
        )
        facts = ModelFacts(name=names[1], framework=self.framework, format=self.quantized.format)
        return Description(facts, half=frozenset(), names=names, hashes=hashes)

    def kernels(self, threads: int) -> dict[str, Kernel]:
        return dict.fromkeys(self.quantized.producers, Kernel.FLOAT)

    def simulate(self, case: Case, threads: int) -> SimulatedNetwork:
        raise ModelError("toy models are not simulated", where=str(self.quantized.path))

    def editable(self) -> Models:
        raise ModelError("toy models are not edited", where=str(self.quantized.path))

    def float_runner(self, threads: int) -> Runner:
        return runner_of(self.float_graph)

    def quantized_runner(self, threads: int) -> Runner:
        return runner_of(self.quantized)


class ToyFrontEnd(FileFrontEnd):
    """Reads ``.toy`` files."""

    name: ClassVar[str] = "toy"
    title: ClassVar[str] = "toy"

    def recognizes(self, model: object) -> bool:
        return isinstance(model, str | Path) and Path(model).suffix == ".toy"

    def open_paths(self, float_path: Path, quantized_path: Path) -> Models:
        float_graph, quantized = read(float_path), read(quantized_path)
        matched = match_files(float_graph, quantized)
        return ToyModels(float_graph, quantized, matched, pairs_of(float_graph, quantized, matched))

    def read_float_path(self, path: Path) -> FloatModel:
        return FloatModel(ModelFacts(name=read(path).path.name), files=(path,))


FRONT_END: FrontEnd = ToyFrontEnd()


def save_toy_pair(folder: Path) -> tuple[tuple[Path, Path], Array]:
    """A float file, its quantized counterpart, and 40 samples."""
    rng = np.random.default_rng(0)
    sizes = pairwise(SIZES)
    arrays = [(rng.normal(size=size).astype("f4"), rng.normal(size=size[1]).astype("f4")) for size in sizes]
    parts = {f"{letter}{k}": array for k, layer in enumerate(arrays) for letter, array in zip("wb", layer, strict=True)}
    paths = folder / "float.toy", folder / "quantized.toy"
    for path, steps in zip(paths, ([0.0, 0.0], [0.1, 0.4]), strict=True):
        with path.open("wb") as stream:
            np.savez(stream, **{"steps": np.array(steps), **parts})  # type: ignore[arg-type]  # numpy's own stub
    return paths, rng.normal(size=(40, SIZES[0])).astype("f4")
