"""A pair of models that was measured and simulated, on which changes are tried."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, quantize_static

import quantmedic
from builders.onnx_models import images, own, save_pair, session
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.datasets import open_dataset
from quantmedic.collectors.from_onnx.onnx_models import OnnxModels, open_models
from quantmedic.collectors.from_onnx.onnx_session import make_session, run
from quantmedic.collectors.measure.measurement import Measurement
from quantmedic.collectors.measure.models import Fitting
from quantmedic.collectors.measure.options import Options
from quantmedic.collectors.measure.simulation import Simulation
from quantmedic.collectors.pair.feed import feed_of
from quantmedic.engine.case.records import Case
from quantmedic.engine.diagnosis.prediction import output_sqnr_db
from quantmedic.engine.formulas.change import Change, Targets
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.formulas.simulate import Grid
from quantmedic.engine.rules.remedy_kinds import change_of
from quantmedic.trials.from_onnx.onnx_remedies import OnnxEdited, edit

Array = NDArray[Any]
#: Above this the output is float but for the order of sums.
FLOAT_DB = 90.0


class Reader(CalibrationDataReader):
    """Feeds calibration samples sixteen at a time."""

    def __init__(self, name: str, samples: Array) -> None:
        self._feeds = iter([{name: samples[i : i + 16]} for i in range(0, len(samples), 16)])

    def get_next(self) -> dict[str, Array] | None:
        return next(self._feeds, None)


def quantized(source: Path, target: Path, name: str, samples: Array, **options: Any) -> Path:
    """What onnxruntime's quantizer makes of a model."""
    quantize_static(own(source, target.parent), target, Reader(name, samples), **options)
    return target


class Bench:
    """Changes of one quantized model, carried out and simulated on the same samples."""

    def __init__(self, float_path: Path, quantized_path: Path, data: Mapping[str, Array] | Array) -> None:
        self.case: Case = quantmedic.collect(float_path, quantized_path, validation=data, attribution=False)
        self.models: OnnxModels = open_models(float_path, quantized_path)
        self.data = open_dataset(data, self.models.input_specs, role="validation")
        self.facts = derive(self.case, quantmedic.load_rulebase())
        self.every = Targets(tuple(range(len(self.facts.tensors))), tuple(range(len(self.facts.layers))))
        self._simulation: Simulation | None = None

    @property
    def simulation(self) -> Simulation:
        if self._simulation is None:
            self._simulation = Simulation(
                Measurement(self.models, {"validation": self.data}, Options()), "validation", self.case
            )
        return self._simulation

    def tensor(self, name: str) -> int:
        return next(i for i, t in enumerate(self.case.record.tensors) if name in (t.name, t.float_name))

    def layer(self, name: str) -> int:
        return next(k for k, op in enumerate(self.case.record.operators) if name in (op.name, op.quantized_name))

    def change(self, kind: str, targets: Targets | None = None) -> Change:
        return change_of(kind, self.case, self.facts, targets or self.every)

    def edit(self, change: Change) -> OnnxEdited:
        """The edited model, which is sound."""
        edited = edit(self.models, self.case, change, Fitting(tuple(self.data.batches(32))))
        if all(value.type.tensor_type.HasField("shape") for value in edited.model.graph.output):
            onnx.checker.check_model(edited.model)
        return edited

    def outputs(
        self, model: onnx.ModelProto, *, plain: bool = False, batches: Iterable[Batch] | None = None
    ) -> list[list[Array]]:
        """Outputs by batch, of all samples unless batches are given."""
        graph = self.models.quantized
        names = [graph.outputs[j] for _, j in self.models.match.outputs]
        opened = make_session(model, graph.path, 1, plain=plain)
        wanted = self.data.batches(16, None) if batches is None else batches
        return [[np.asarray(x) for x in run(opened, names, feed_of(batch, graph), graph.path)] for batch in wanted]

    def edited_db(self, change: Change, *, plain: bool = False) -> float:
        """Output SQNR of the edited model as the runtime executes it, or as it is written."""
        batches = self.simulation.batches
        found = self.outputs(self.edit(change).model, plain=plain, batches=batches)
        outputs = [[np.asarray(x, np.float32) for x in arrays] for arrays in found]
        return output_sqnr_db(np.array(self.simulation.record.power), self.simulation._noise.compare(outputs))

    def simulated_db(self, change: Change) -> float:
        """Output SQNR of the simulated network on all samples, also where the change recovers nothing."""
        outputs = [self.simulation.network.outputs(batch, change) for batch in self.simulation.batches]
        return output_sqnr_db(np.array(self.simulation.record.power), self.simulation._noise.compare(outputs))

    def grids_of(self, other: Path) -> dict[int, Grid]:
        """Grids that another quantization of the same network gives to the tensors."""
        graph = open_models(self.models.float_graph.path, other).quantized
        found = {}
        for i, tensor in enumerate(self.case.record.tensors):
            quantizer = next((t.quantizer for t in graph.quantizers.get(tensor.name, []) if t.quantizer), None)
            if quantizer is not None:
                step, zero = float(quantizer.scale), int(quantizer.zero_point)
                found[i] = Grid(step * (quantizer.qmin - zero), step * (quantizer.qmax - zero), step)
        return found


def agree(a: float, b: float, db: float = 1.0) -> bool:
    return abs(a - b) <= db or min(a, b) > FLOAT_DB


def bench(folder: Path, float_model: onnx.ModelProto, model: onnx.ModelProto, data: Any = None) -> Bench:
    pair = save_pair(folder, float_model, model)
    return Bench(*pair, {"image": images(32)} if data is None else data)


def float_outputs(bench: Bench) -> Array:
    graph = bench.models.float_graph
    opened = session(graph.model)
    batches = bench.data.batches(16, None)
    return np.concatenate([opened.run(None, {k: batch.inputs[k] for k in graph.inputs})[0] for batch in batches])


def edited_outputs(bench: Bench, change: Change) -> Array:
    return np.concatenate([found[0] for found in bench.outputs(bench.edit(change).model)])


def everything_float(bench: Bench) -> Change:
    layers = range(len(bench.case.record.operators))
    weighted = [k for k in layers if bench.facts.layers[k].weight.quantizer.bits is not None]
    quantized = [i for i, t in enumerate(bench.case.record.tensors) if t.quantizer.bits and not t.quantizer.dynamic]
    return Change(dict.fromkeys(quantized), dict.fromkeys(weighted, "float"), frozenset(layers))
