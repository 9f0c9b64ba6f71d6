"""Carry out a change on a copy of the quantized ONNX model, without any toolchain."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import onnx

from quantmedic.collectors.from_onnx.file import save_model
from quantmedic.collectors.from_onnx.graph import OnnxGraph, PairedOnnxGraphs
from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.collectors.from_onnx.record import kernels_of_model
from quantmedic.collectors.from_onnx.session import executed_types
from quantmedic.collectors.measure.models import Fitting, Kernel, Runner
from quantmedic.collectors.measure.record import kernel_of
from quantmedic.collectors.pair.graph import Shape
from quantmedic.collectors.pair.match import Match
from quantmedic.collectors.pair.same_network import match_files
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError
from quantmedic.engine.formulas.change import Change, Learned
from quantmedic.trials.from_onnx import execute
from quantmedic.trials.from_onnx.bias_correction import correct_model
from quantmedic.trials.from_onnx.draft import Draft
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

#: What is learned on samples can be carried out.
LEARNS = True
#: Toolchains whose prescriptions run here.
EXECUTORS = execute.EXECUTORS
#: Reads the graph of a model that stands for the file of this path.
Reader = Callable[[Path, onnx.ModelProto], OnnxGraph]
#: Values of the widest grid of 8-bit codes.
CODES_8_BIT = 256


class EditableModels(PairedOnnxGraphs, Protocol):
    """Models whose quantized one is an ONNX graph, of which changed copies can be run."""

    def quantized_runner(self, threads: int, changed: onnx.ModelProto | None = None) -> Runner:
        """Runs the quantized model, or a changed copy of it."""


@dataclass(frozen=True)
class Edited:
    """A quantized model with a change carried out; see ``measure.models.Edited``.

    Attributes:
        models: The models that were edited.
        model: A changed copy; the original is never touched.
        unedited: What of the change could not be carried out, or the runtime undoes by itself, in words.
    """

    models: EditableModels
    model: onnx.ModelProto
    unedited: tuple[str, ...] = ()

    def runner(self, threads: int) -> Runner:
        """Runs the changed copy."""
        return self.models.quantized_runner(threads, self.model)

    def left_integer(self, case: Case, change: Change) -> tuple[str, ...]:
        """Layers that an integer kernel computes in the deployed model and none in the copy, against the change."""
        return left_integer(self.models, case, self.model, change)

    @property
    def save(self) -> Callable[[Path], None] | None:
        """Writes the changed copy to a file."""
        return lambda path: save_model(self.model, path)


@dataclass(frozen=True)
class EditedTranslation:
    """The translation of a model of another runtime with a change carried out; see ``measure.models.Edited``.

    Attributes:
        translation: The changed translation.
        save: Writes a file of that runtime, where one can be made; a translation is none.
    """

    translation: Edited
    save: Callable[[Path], None] | None = None

    @property
    def unedited(self) -> tuple[str, ...]:
        """What of the change could not be carried out, or the runtime undoes by itself, in words."""
        return self.translation.unedited

    def runner(self, threads: int) -> Runner:
        """Runs the changed translation."""
        return self.translation.runner(threads)

    def left_integer(self, case: Case, change: Change) -> tuple[str, ...]:
        """None: the translation does not show which kernels the runtime would choose."""
        return ()


def edit(
    models: EditableModels,
    case: Case,
    change: Change,
    fitting: Fitting | None = None,
    *,
    runtime: str = "onnxruntime",
    read: Reader = parse,
) -> Edited:
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
        edited = _edit_constants(models, case, fixed, runtime)
    else:
        edited = Edited(models, Draft(models.quantized.model).model)
    return _learn(edited, change, fitting, read) if change.learned else edited


def _learn(edited: Edited, change: Change, fitting: Fitting | None, read: Reader) -> Edited:
    """The edited model with what is learned on samples."""
    if fitting is None:
        raise ValueError("nothing can be learned without samples")
    model, left, models = edited.model, [*edited.unedited], edited.models
    for learned in LEARNERS:
        if learned not in change.learned:
            continue
        graph = read(models.quantized.path, model)
        pair = _Pair(models.float_graph, graph, match_files(models.float_graph, graph), models.shapes)
        model, undone = LEARNERS[learned](pair, fitting)
        left += undone
    return Edited(models, model, tuple(left))


def _round(pair: PairedOnnxGraphs, fitting: Fitting) -> tuple[onnx.ModelProto, list[str]]:
    found = round_model(pair, lambda: fitting.batches, threads=fitting.threads, deadline=fitting.deadline)
    return found.model, [f"the rounding of {words}" for words in found.unrounded]


def _correct(pair: PairedOnnxGraphs, fitting: Fitting) -> tuple[onnx.ModelProto, list[str]]:
    found = correct_model(pair, lambda: fitting.batches, threads=fitting.threads, deadline=fitting.deadline)
    return found.model, [f"the bias of {name}: there is none to correct" for name in found.uncorrected]


#: How each part is learned, in the order in which they are done.
LEARNERS: dict[Learned, Callable[[PairedOnnxGraphs, Fitting], tuple[onnx.ModelProto, list[str]]]] = {
    "rounding": _round,
    "biases": _correct,
}


@dataclass(frozen=True)
class _Pair:
    """An edited model beside its float model; see ``PairedOnnxGraphs``."""

    float_graph: OnnxGraph
    quantized: OnnxGraph
    match: Match
    shapes: Mapping[str, Shape]


def _edit_constants(models: EditableModels, case: Case, change: Change, runtime: str) -> Edited:
    """New grids, weights and biases."""
    draft = Draft(models.quantized.model)
    to_qdq(draft, models.quantized)
    draft.touched = False
    unpack_weights(draft, models, change)
    names = {op.index: op.name for op in case.record.operators}
    layers = layers_of(draft, models, names)
    before = {k: scales_of(draft, layer) for k, layer in layers.items()}
    unedited = settle_grids(draft, models, case, change.grids)
    unedited += settle_layers(draft, layers, change, before)
    settle_operands(draft, models, case, change)
    dynamic, refused = settle_dynamic(draft, models, change, names)
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
    products = products_of_precise_inputs(draft, layers, before)
    model = draft.finish()
    return Edited(models, model, (*unedited, *_rounded_inputs(models.quantized, model, products, runtime)))


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
