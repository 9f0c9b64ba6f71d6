"""Remedies carried out on ONNX models: changes of a copy, without any toolchain, and prescriptions run by their own.

Prescriptions of ONNX Runtime and of other toolchains run in a process of their own.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_file import load_model, save_model
from quantmedic.collectors.from_onnx.onnx_graph import OnnxGraph, PairedOnnxGraphs
from quantmedic.collectors.from_onnx.onnx_models import OnnxModels, graph_runner, open_models
from quantmedic.collectors.from_onnx.onnx_record import kernels_of_model
from quantmedic.collectors.from_onnx.onnx_session import executed_types
from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.collectors.measure.models import Edited, Fitting, Kernel, Models
from quantmedic.collectors.measure.record import kernel_of
from quantmedic.collectors.pair.feed import feed_of
from quantmedic.collectors.pair.graph import Shape
from quantmedic.collectors.pair.match import Match
from quantmedic.collectors.pair.same_network import match_files
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError
from quantmedic.engine.formulas.change import Change, Learned
from quantmedic.engine.output_files import copy_file
from quantmedic.trials.edit import ReadSamples, Remedies, Repairable
from quantmedic.trials.execute import ScriptExecutor
from quantmedic.trials.from_onnx.bias_correction import correct_model
from quantmedic.trials.from_onnx.draft import Draft, LearnedModel
from quantmedic.trials.from_onnx.dynamic import settle_dynamic, unpack_weights
from quantmedic.trials.from_onnx.grids import settle_grids
from quantmedic.trials.from_onnx.layers import (
    layers_of,
    products_of_precise_inputs,
    scales_of,
    settle_layers,
    settle_operands,
)
from quantmedic.trials.from_onnx.qdq import to_qdq
from quantmedic.trials.from_onnx.rounding import round_model

#: Reads the graph of a model that stands for the file of this path.
Reader = Callable[[Path, onnx.ModelProto], OnnxGraph]
Array = NDArray[np.generic]
#: Values of the widest grid of 8-bit codes.
CODES_8_BIT = 256
#: Names of the files that a prescription for ONNX models reads and writes.
FLOAT, MADE = "float.onnx", "int8.onnx"
#: The user's calibration data reader: the stored batches, one after the other.
_READER = """
from onnxruntime.quantization import CalibrationDataReader as _CalibrationDataReader

class _Reader(_CalibrationDataReader):
    def __init__(self):
        self.rewind()

    def rewind(self):
        self.feeds = iter(_StoredBatches())

    def get_next(self):
        return next(self.feeds, None)

reader = _Reader()
"""
_DATASET = """
import nncf as _nncf

dataset = _nncf.Dataset(_StoredBatches())
"""
#: A loader yields the inputs of a batch, one array or one per input, and labels, which nothing reads.
_LOADER = """
class _Loader(_StoredBatches):
    batch_size = 1

    def __iter__(self):
        for feed in super().__iter__():
            yield (next(iter(feed.values())) if len(feed) == 1 else tuple(feed.values())), 0

dataloader = _Loader()
"""


@dataclass(frozen=True)
class OnnxEdited(Edited):
    """An ONNX model with a change carried out, or made anew from the float one; ``model`` is never the original."""

    model: onnx.ModelProto = field(kw_only=True)


def edit(
    models: OnnxModels,
    case: Case,
    change: Change,
    fitting: Fitting | None = None,
    *,
    runtime: str = "onnxruntime",
    read: Reader = parse,
) -> OnnxEdited:
    """The deployed model as a remedy would leave it.

    - A new grid is given to every quantizer of its tensor, in the type of its codes, or uint8 or uint16 where the grid
      has more codes. Where an operator only moves values and one grid held before and behind it, what the tensor
      before it gets, the tensor behind it gets too: onnxruntime runs such operators on codes only so.
    - Where a quantizer is taken out, or reaches beyond a Relu or Clip that was left to it, the activation of the float
      model is put back. Outputs of the network keep their names.
    - Weights come from the float model, with a normalization folded in where it was. Codes are stored as int8, or in
      as many bits as before, on symmetric grids.
    - An int32 bias is rounded anew to the step of its input times that of its weights; where it would not fit, the
      weights get a wider step, as onnxruntime's own quantizer does it. What a stored bias has lost already, or gained
      by a correction, stays lost or gained.
    - A float bias stays int32 between layers that compute with codes, for onnxruntime would round it by itself: it is
      rounded from the float model's, with wider steps of the weights where it did not fit.

    - What is learned on samples comes last: first how weights are rounded, then what biases make up for.

    Remedies on top of each other are one change (``Change.join``). ``runtime`` is what messages call the runtime, and
    ``read`` reads the graph of a changed copy.

    Raises:
        ModelError: Nothing of the change can be carried out, or the model fails on the samples.
    """
    fixed = replace(change, learned=frozenset())
    if fixed:
        model, unedited = _edit_constants(models, case, fixed, runtime)
    else:
        model, unedited = Draft(models.quantized.model).model, []
    if change.learned:
        model, left = _learn(models, model, change.learned, fitting, read)
        unedited += left
    return OnnxEdited(
        lambda threads: models.quantized_runner(threads, model),
        tuple(unedited),
        lambda path: save_model(model, path),
        lambda case, change: left_integer(models, case, model, change),
        model=model,
    )


def _learn(
    models: OnnxModels, model: onnx.ModelProto, parts: Collection[Learned], fitting: Fitting | None, read: Reader
) -> tuple[onnx.ModelProto, list[str]]:
    """The edited model with what is learned on samples, and what could not be learned, in words."""
    if fitting is None:
        raise ValueError("nothing can be learned without samples")
    left: list[str] = []
    for part, (word, learn) in LEARNERS.items():
        if part not in parts:
            continue
        graph = read(models.quantized.path, model)
        pair = _Pair(models.float_graph, graph, match_files(models.float_graph, graph), models.shapes)
        found = learn(pair, lambda: fitting.batches, threads=fitting.threads, deadline=fitting.deadline)
        model = found.model
        left += [f"the {word} of {words}" for words in found.left]
    return model, left


#: How each part is learned, and what it is called, in the order in which they are done.
LEARNERS: dict[Learned, tuple[str, Callable[..., LearnedModel]]] = {
    "rounding": ("rounding", round_model),
    "biases": ("bias", correct_model),
}


@dataclass(frozen=True)
class _Pair:
    """An edited model beside its float model; see ``PairedOnnxGraphs``."""

    float_graph: OnnxGraph
    quantized: OnnxGraph
    match: Match
    shapes: Mapping[str, Shape]


def _edit_constants(models: OnnxModels, case: Case, change: Change, runtime: str) -> tuple[onnx.ModelProto, list[str]]:
    """A copy with new grids, weights and biases, and what of these could not be carried out, in words."""
    draft = Draft(models.quantized.model)
    to_qdq(draft, models.quantized)
    draft.touched = False
    unpack_weights(draft, models, change)
    names = {op.index: op.name for op in case.record.operators}
    layers = layers_of(draft, models, names)
    for layer in layers.values():
        layer.before = scales_of(draft, layer)
    fixed = {i: grid for i, grid in change.grids.items() if not case.record.tensors[i].quantizer.dynamic}
    unedited = settle_grids(draft, models, case, fixed)
    unedited += settle_layers(draft, layers, change)
    settle_operands(draft, models, case, change)
    dynamic, refused = settle_dynamic(draft, models, case, change)
    unedited += refused
    missing = [k for k in change.weights if k not in layers and k not in dynamic]
    unedited += [f"the weights of {names[k]}: no input of the operator holds them as codes" for k in missing]
    if unedited and not draft.touched:
        raise ModelError(
            "the change cannot be carried out on the quantized model",
            where=[str(models.quantized.path), *unedited[:5]],
            help="apply the remedy with the tool that quantized the model",
        )
    draft.index()
    products = products_of_precise_inputs(draft, layers.values())
    model = draft.finish()
    return model, [*unedited, *_rounded_inputs(models.quantized, model, products, runtime)]


def _rounded_inputs(
    graph: OnnxGraph, edited: onnx.ModelProto, products: Sequence[tuple[onnx.NodeProto, str]], runtime: str
) -> list[str]:
    """Which of these products' inputs the installed onnxruntime rounds to 8 bits, in words."""
    if not products:
        return []
    executed = executed_types(replace(graph, model=edited), 1)
    rounded = [words for product, words in products if executed.get(product.output[0]) == "MatMulNBits"]
    return [f"{words}: {runtime} rounds it to 8 bits, as the weights are codes" for words in rounded]


def left_integer(
    models: PairedOnnxGraphs, case: Case, after: onnx.ModelProto, change: Change, *, threads: int = 1
) -> tuple[str, ...]:
    """Layers that an integer kernel computes in the deployed model and none in the edited one, against the change.

    Layers that the change leaves in float, or gives 16-bit codes or a float bias, are not among them.
    """
    graph = models.quantized
    before = {k: op for k, op in enumerate(case.record.operators) if op.executed_as == Kernel.INTEGER}
    found = kernels_of_model(replace(graph, model=after), threads)
    # What an integer operator wrote is written by a quantizer once it is rewritten: its kernel is what feeds that.
    for node in after.graph.node:
        if node.op_type == "QuantizeLinear" and found.get(node.input[0]) == Kernel.INTEGER:
            found[node.output[0]] = Kernel.INTEGER
    meant = {k for k, form in change.weights.items() if form == "float"} | change.biases
    apart = {i for i, grid in change.grids.items() if grid is None or grid.codes > CODES_8_BIT}
    meant |= {k for k, op in before.items() if apart & {*op.inputs, *op.outputs}}
    left = [k for k in before if k not in meant and kernel_of(graph.operators[k], graph, found) != Kernel.INTEGER]
    return tuple(before[k].name for k in left)


@dataclass(frozen=True)
class OnnxExecutor(ScriptExecutor):
    """Runs prescriptions of a toolchain that reads ``float.onnx`` and writes ``int8.onnx``."""

    made: ClassVar[str] = MADE
    before: int | None = None
    """First major version whose calls are others."""

    def missing(self) -> str | None:
        """Its package is not installed, or of another version."""
        found = self.version()
        if found is not None and self.before is not None and int(found.partition(".")[0]) >= self.before:
            return f"{self.package} {found} has other calls; version {self.before - 1} quantizes ONNX models"
        return super().missing()

    def write_float(self, models: Models, folder: Path) -> None:
        """Write the float model with its external data."""
        copy_model(_onnx_models(models).float_graph.path, folder / FLOAT)

    def feeds(self, models: Models, calibration: Iterable[Batch]) -> Iterable[Mapping[str, Array]]:
        """The inputs of each batch by the names of the float model."""
        return (feed_of(batch, _onnx_models(models).float_graph) for batch in calibration)

    def open_made(self, models: Models, path: Path) -> OnnxEdited:
        """Read the model that the script wrote: it has the inputs and, by their names, the outputs of the float one."""
        pair, made = _onnx_models(models), load_model(path)
        require_outputs(made, pair)
        graph = replace(pair.float_graph, path=Path(MADE))
        names = [graph.outputs[i] for i, _ in pair.match.outputs]
        return OnnxEdited(
            lambda threads: graph_runner(graph, names, threads, changed=made),
            save=lambda path: save_model(made, path),
            model=made,
        )


class _OnnxRuntime(OnnxExecutor):
    """``onnxruntime.quantization``, which quantmedic itself needs; a build such as onnxruntime-gpu has no version."""

    def missing(self) -> str | None:
        """Nothing."""
        return None


def _onnx_models(models: Models) -> OnnxModels:
    """The models, which the front end leads here."""
    assert isinstance(models, OnnxModels)
    return models


def copy_model(source: Path, target: Path) -> None:
    """A copy of a model with its external data, which lies beside it under the same names."""
    copy_file(source, target)
    stored = onnx.load(str(source), load_external_data=False).graph.initializer
    places = {ExternalDataInfo(tensor).location for tensor in stored if uses_external_data(tensor)}
    for place in places:
        inside = (target.parent / place).resolve()
        if not inside.is_relative_to(target.parent.resolve()):
            raise ModelError("external data lie outside the model's folder", where=f"{source}: {place}")
        copy_file(source.parent / place, inside)


def require_outputs(made: onnx.ModelProto, models: OnnxModels) -> None:
    """Refuse a model that lacks outputs of the float model.

    Raises:
        ModelError: It does.
    """
    names = {output.name for output in made.graph.output}
    lost = [name for name in models.float_graph.outputs if name not in names]
    if lost:
        raise ModelError("the model that came out lacks outputs of the float model", where=lost[:5])


ONNX_RUNTIME = _OnnxRuntime("onnxruntime", "onnxruntime", frozenset({"reader"}), _READER)


NNCF = OnnxExecutor("NNCF", "nncf", frozenset({"dataset"}), _DATASET)


NEURAL_COMPRESSOR = OnnxExecutor(
    "Intel Neural Compressor", "neural-compressor", frozenset({"dataloader"}), _LOADER, before=3
)


EXECUTORS = (ONNX_RUNTIME, NNCF, NEURAL_COMPRESSOR)


def open_repairable(float_path: Path, quantized_path: Path, data: object, read: ReadSamples) -> Repairable:
    """Two files to be repaired on samples; see ``trials.edit``."""
    models = open_models(float_path, quantized_path)
    return Repairable(models, read(data, models.input_specs), save_model)


REMEDIES = Remedies(edit, learns=True, executors=EXECUTORS, open_repairable=open_repairable)
