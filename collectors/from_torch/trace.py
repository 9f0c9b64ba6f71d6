"""The calls of a module's first batch, written down as a graph: operators, constants, and where codes can be read."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from quantmedic.collectors.from_torch.calls import tensors_of
from quantmedic.collectors.from_torch.module import is_watching, to_array
from quantmedic.collectors.from_torch.quantizers import (
    Quantized,
    activation_grid,
    encode_in_bytes,
    of_tensor,
    quantizes_activation,
    stored_grid,
)
from quantmedic.collectors.from_torch.recorder import Call
from quantmedic.collectors.from_torch.torch_graph import Place, TorchGraph
from quantmedic.collectors.from_torch.torch_operators import CallAsOperator, Operand, operator_of_call, plain_name
from quantmedic.collectors.pair.constants import Constant
from quantmedic.collectors.pair.graph import Attribute, Attributes, Node, Operator, Shape, Tap, TensorSpec, consumers_of
from quantmedic.collectors.pair.quantizer import Quantizer
from quantmedic.engine.errors import ModelError

#: What Sony MCT adds to a layer's name for the module that quantizes its result.
_HOLDER = "_activation_holder_quantizer"
#: Classes of quantization-aware training that scale weights by the gain of the normalization behind them.
_TRAINED_WITH_NORMALIZATION = ("ConvBn", "LinearBn")
#: Operators with weights and a bias, which integer kernels get as one object.
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm")


def trace_graph(
    module: torch.nn.Module, calls: Sequence[Call], inputs: Mapping[str, torch.Tensor], result: object, what: str
) -> TorchGraph:
    """The graph of the calls of one run.

    Args:
        module: The module that ran.
        calls: What a ``Recorder`` kept.
        inputs: What it was given, by name.
        result: What it returned.
        what: ``float model`` or ``quantized model``, for messages.

    Raises:
        ModelError: It returns no tensor that depends on its inputs.
    """
    return _Writer(module, calls, what).write(inputs, result)


class _Writer:
    def __init__(self, module: torch.nn.Module, calls: Sequence[Call], what: str) -> None:
        self._module, self._calls, self._what = module, calls, what
        self.graph = TorchGraph(Path(f"{what} {type(module).__name__}"))
        self.graph.calls = [call.name for call in calls]
        #: Name of each tensor by identity; the calls keep them alive.
        self._names: dict[int, str] = {}
        self._constants: dict[str, torch.Tensor] = {}
        self._grids: dict[str, tuple[Quantizer | None, torch.Tensor | None]] = {}
        self._versions: dict[str, tuple[torch.Tensor, int | None]] = {}
        self._taken: dict[str, int] = {}
        self._single = _single_calls(calls, module)
        self._held = dict(_held_names(calls))
        self._reads: dict[int, dict[str, list[Place]]] = {}

    def write(self, inputs: Mapping[str, torch.Tensor], result: object) -> TorchGraph:
        graph = self.graph
        self._samples = next(iter(inputs.values())).shape[0]
        for name, tensor in inputs.items():
            self._names[id(tensor)] = name
            graph.shapes[name] = self._shape(tensor)
        graph.input_specs = [_spec(name, tensor) for name, tensor in inputs.items()]
        self._taken |= dict.fromkeys(inputs, 0)
        for name, tensor in _parameters_and_buffers(self._module):
            if id(tensor) not in self._names:
                self._add_constant(name, tensor)
        for number, call in enumerate(self._calls):
            self._add(number, call)
        self._add_outputs(tensors_of(result))
        self._prune()
        if not graph.outputs or not graph.operators:
            raise ModelError(
                f"no operator of the {self._what} can be seen between its inputs and its outputs",
                where=f"{type(self._module).__name__} returns {type(result).__name__}",
                help="does its forward return tensors that it computes from its inputs with torch?",
            )
        self._settle_constants()
        self._fold_normalizations()
        for index, op in enumerate(graph.operators):
            op.index = index
        graph.read = {op.index: self._reads[id(op)] for op in graph.operators}
        graph.producers = {name: op for op in graph.operators for name in op.outputs}
        graph.consumers = consumers_of(graph.operators)
        graph.rewritten = {name for name, (tensor, version) in self._versions.items() if _is_rewritten(tensor, version)}
        return graph

    def _add_outputs(self, returned: Sequence[torch.Tensor]) -> None:
        graph = self.graph
        graph.returned = len(returned)
        for position, tensor in enumerate(returned):
            name = self._names.get(id(tensor))
            if name is not None and name not in self._constants:
                graph.positions.append(position)
                graph.output_specs.append(_spec(name, tensor))

    def _add(self, number: int, call: Call) -> None:
        sources = [self._name_of(tensor) for tensor in call.inputs]
        if call.is_alias and sources:
            for tensor in call.results:
                self._names[id(tensor)] = sources[0]
        elif call.quantization is not None:
            self._add_quantizer(number, call, call.quantization)
        elif all(name in self._constants for name in sources):
            self._add_folded(call, sources)
        else:
            self._add_operator(number, call)

    def _name_of(self, tensor: torch.Tensor) -> str:
        """Name of a tensor; one that no call has made is a constant."""
        if id(tensor) not in self._names:
            self._add_constant("constant", tensor)
        return self._names[id(tensor)]

    def _add_constant(self, name: str, tensor: torch.Tensor) -> str:
        name = self._unique(name)
        self._names[id(tensor)] = name
        self._constants[name] = tensor
        return name

    def _add_folded(self, call: Call, sources: Sequence[str]) -> None:
        """Add what is computed from constants alone as a constant, under the name of the first of them."""
        base = sources[0] if sources else call.path or "constant"
        for tensor in call.results:
            name = self._add_constant(base, tensor)
            known = self._grids.get(sources[0]) if sources else None
            moved = _moved_grid(known[0], call) if known is not None else None
            if moved is not None:
                self._grids[name] = (moved, None)

    def _add_quantizer(self, number: int, call: Call, found: Quantized) -> None:
        graph, source = self.graph, self._name_of(found.source)
        target = call.results[0]
        graph.qdq_nodes += found.quantizer is not None
        if source in self._constants:
            codes = target if found.kind == "encode" else found.source if found.kind == "decode" else None
            name = self._add_constant(source, target)
            known = self._grids.get(source, (None, None))
            self._grids[name] = (found.quantizer or known[0], codes if codes is not None else known[1])
            return
        name = self._unique(f"{graph.root(source)}.{found.kind}d")
        self._names[id(target)] = name
        graph.roots[name] = source
        self._note_result(name, Place(number, 0), target)
        graph.quantizing[name] = (number, found.kind)
        if found.kind == "decode":
            graph.decoded.setdefault(source, name)
            if source in graph.codes:
                graph.codes[name] = graph.codes[source]
            return
        if found.quantizer is None:
            return
        graph.codes[name] = found.quantizer
        graph.dynamic_nodes += found.quantizer.dynamic
        tap = Tap("" if found.quantizer.dynamic else name, found.quantizer, decoded=found.kind == "fake")
        graph.quantizers.setdefault(graph.root(source), []).append(tap)

    def _add_operator(self, number: int, call: Call) -> None:
        found = operator_of_call(call.name, call.args, call.kwargs, call.result)
        packed = _unpacked_weights(call) if "::" in call.name else None
        name = self._unique(self._operator_name(call))
        operands = [*found.inputs[:1], *packed] if packed is not None and found.op_type in _WEIGHTED else found.inputs
        inputs = [self._operand(operand, f"{name}.operand") for operand in operands]
        while inputs and inputs[-1] is None:
            inputs.pop()
        results = call.results
        outputs = [name, *(self._unique(f"{name}.{k}") for k in range(1, len(results)))]
        before = f"{name}.{found.op_type}" if found.fused else None
        op = self._append(name, found, [n for n in inputs if n], [before] if before else outputs)
        self._reads[id(op)] = self._places(number, call, [n for n in inputs if n])
        if found.fused and before:
            fused = self._append(f"{name}.{found.fused}", CallAsOperator(found.fused, ()), [before], outputs[:1])
            self._reads[id(fused)] = {}
        self._add_activation_grid(call, op)
        for k, (output, tensor) in enumerate(zip(outputs, results, strict=True)):
            self._names[id(tensor)] = output
            self._note_result(output, Place(number, k), tensor)
            if tensor.is_quantized:
                self.graph.integer_nodes += 1
                self.graph.write_codes(output, of_tensor(tensor))
                self.graph.integer.update((output, *op.outputs))

    def _add_activation_grid(self, call: Call, op: Operator) -> None:
        """Where a kernel quantizes its input by itself, that input has a quantizer, and a copy that is not observed."""
        if not op.inputs or op.inputs[0] in self._constants:
            return
        graph, root = self.graph, op.inputs[0]
        if call.name.endswith("_dynamic") or any(quantizes_activation(tensor) for tensor in call.inputs):
            graph.dynamic_nodes += 1
            graph.quantizers.setdefault(root, []).append(Tap("", Quantizer.at_run_time()))
            return
        grid = next((found for tensor in call.inputs if (found := activation_grid(tensor)) is not None), None)
        if grid is None:
            return
        graph.qdq_nodes += 1
        copy = self._unique(f"{root}.coded")
        graph.roots[copy], graph.codes[copy] = root, grid
        graph.quantizers.setdefault(root, []).append(Tap(root, grid, decoded=True))
        op.node.inputs[0] = copy

    def _append(self, name: str, found: CallAsOperator, inputs: list[str], outputs: list[str]) -> Operator:
        node = Node(found.op_type, list(inputs), list(outputs), name)
        # Coded copies stand for their tensors, as in any graph; the node keeps the names of the copies.
        roots = [self.graph.root(own) for own in inputs]
        attributes, hints = (_attributes_of_call(own) for own in (found.attributes, found.hints))
        op = Operator(0, name, found.op_type, roots, list(outputs), attributes, node, hints)
        self.graph.operators.append(op)
        return op

    def _operand(self, operand: Operand, name: str) -> str | None:
        if operand is None:
            return None
        if isinstance(operand, torch.Tensor):
            return self._name_of(operand)
        if isinstance(operand, bool | int | float):
            return self._add_constant(name, torch.tensor(float(operand)))
        return None

    def _places(self, number: int, call: Call, inputs: Sequence[str]) -> dict[str, list[Place]]:
        found: dict[str, list[Place]] = {}
        for place, tensor in enumerate(call.inputs):
            name = self._names.get(id(tensor))
            if name in inputs:
                found.setdefault(str(name), []).append(Place(number, place))
        return found

    def _note_result(self, name: str, place: Place, tensor: torch.Tensor) -> None:
        self.graph.written[name] = place
        self.graph.shapes[name] = self._shape(tensor)
        if tensor.dtype == torch.float16:
            self.graph.half.add(name)
        call = self._calls[place.call]
        if place.place < len(call.versions):
            self._versions[name] = (tensor, call.versions[place.place])

    def _shape(self, tensor: torch.Tensor) -> tuple[int | None, ...]:
        shape = tuple(tensor.shape)
        return (None, *shape[1:]) if shape[:1] == (self._samples,) else shape

    def _operator_name(self, call: Call) -> str:
        """The module's name if this is all that it does, else its name and the function's."""
        if call.path and self._single.get(call.path):
            return call.path
        held = self._held.get(id(call.results[0]))
        if held is not None:
            return held
        plain, _ = plain_name(call.name)
        return ".".join(filter(None, (call.path, plain.removeprefix("get "))))

    def _unique(self, name: str) -> str:
        count = self._taken.get(name)
        if count is None:
            self._taken[name] = 0
            return name
        while True:
            count += 1
            if f"{name}_{count}" not in self._taken:
                break
        self._taken[name] = count
        self._taken[f"{name}_{count}"] = 0
        return f"{name}_{count}"

    def _prune(self) -> None:
        """Keep the operators that the outputs depend on, without what observers and checks compute."""
        graph = self.graph
        needed = {graph.root(name) for name in graph.outputs}
        kept: list[Operator] = []
        for op in reversed(graph.operators):
            if needed & set(op.outputs):
                kept.append(op)
                needed.update(op.inputs)
        graph.operators = kept[::-1]
        graph.quantizers = {root: taps for root, taps in graph.quantizers.items() if root in needed}

    def _settle_constants(self) -> None:
        """Read the constants that operators have; those of a quantized type are the values they stand for."""
        graph = self.graph
        for op in graph.operators:
            for name in op.inputs:
                if name in self._constants and name not in graph.constants:
                    graph.constants[name] = self._constant(name)

    def _fold_normalizations(self) -> None:
        """Layers trained with their normalization: what divides the scaled product again is part of the same layer."""
        graph = self.graph
        kinds = {path: type(part).__name__ for path, part in self._module.named_modules()}
        readers = consumers_of(graph.operators)
        for op in list(graph.operators):
            path = op.name.rpartition(".")[0]
            if not kinds.get(path, "").startswith(_TRAINED_WITH_NORMALIZATION) or op.op_type not in _WEIGHTED:
                continue
            chain = _chain(op, readers, path)
            bias = _folded_bias(chain, graph.constants)
            if bias is None:
                continue
            op.name, op.outputs, op.node.name = path, list(chain[-1].outputs), path
            op.inputs[2:] = [f"{path}.folded_bias"]
            graph.constants[op.inputs[2]] = Constant(op.inputs[2], bias)
            gone = {id(own) for own in chain}
            graph.operators = [own for own in graph.operators if id(own) not in gone]

    def _constant(self, name: str) -> Constant:
        tensor = self._constants[name]
        quantizer, codes = self._grids.get(name, (None, None))
        if quantizer is None:
            quantizer, codes = stored_grid(tensor)
        if quantizer is not None:
            self.graph.qdq_nodes += 1
        if tensor.is_quantized:
            codes, tensor = tensor, tensor.dequantize()
        if not tensor.is_floating_point() and quantizer is None:
            integers = tensor.dtype == torch.int64
            return Constant(name, None, integers=np.asarray(to_array(tensor), np.int64) if integers else None)
        values = np.asarray(to_array(tensor), np.float32)
        if quantizer is not None and codes is None and not quantizer.dynamic:
            return Constant(name, values, quantizer, encode_in_bytes(values, quantizer))
        return Constant(name, values, quantizer, to_array(codes) if codes is not None else None)


def _is_rewritten(tensor: torch.Tensor, version: int | None) -> bool:
    """The memory of a tensor was, or may have been, written to since: inference tensors do not count writes."""
    return version is None or tensor._version != version


def _chain(op: Operator, readers: Mapping[str, Sequence[Operator]], path: str) -> list[Operator]:
    """Operators of one module behind another, each the only reader of the one before, up to a normalization."""
    found: list[Operator] = []
    while len(found) < 3 and (not found or found[-1].op_type != "BatchNormalization"):
        behind = readers.get((found or [op])[-1].outputs[0], [])
        if len(behind) != 1 or not behind[0].name.startswith(f"{path}."):
            return []
        found.append(behind[0])
    return found


def _folded_bias(chain: Sequence[Operator], constants: Mapping[str, Constant]) -> NDArray[np.float32] | None:
    """What Div, Add and BatchNormalization of such a layer add to its product; None for other chains."""
    kinds = [op.op_type for op in chain]
    if kinds not in (["Div", "BatchNormalization"], ["Div", "Add", "BatchNormalization"]):
        return None
    bias = constants[chain[1].inputs[1]].values if len(chain) == 3 else np.zeros(1, np.float32)
    found = [constants[name].values for name in chain[-1].inputs[1:5]]
    if bias is None or len(found) < 4 or any(values is None for values in found):
        return None
    gain, shift, mean, variance = (np.asarray(values, np.float64) for values in found)
    gain = gain / np.sqrt(variance + chain[-1].attributes.number("epsilon", 1e-5))
    return np.asarray((bias.ravel() - mean) * gain + shift, np.float32)


def _single_calls(calls: Sequence[Call], module: torch.nn.Module) -> dict[str, bool]:
    """Modules of which every run makes one call that is an operator, and whose parts make none."""
    watching = {path for path, part in module.named_modules() if is_watching(part)}
    found: dict[str, dict[str, None]] = {}
    for call in calls:
        if call.is_alias or call.path in watching:
            continue
        if call.quantization is None:
            found.setdefault(call.path, {})[call.name] = None
    whole = {path[:cut] for path in found for cut in range(len(path)) if path[cut] == "."}
    return {path: len(names) == 1 and path not in whole for path, names in found.items()}


def _held_names(calls: Sequence[Call]) -> Iterator[tuple[int, str]]:
    """Identity of each tensor that a holder quantizes, and the name of the layer that the holder is named after."""
    for call in calls:
        if call.path.endswith(_HOLDER) and call.quantization is not None:
            yield id(call.quantization.source), call.path.removesuffix(_HOLDER)


def _parameters_and_buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=True)
    yield from module.named_buffers(remove_duplicate=True)


def _spec(name: str, tensor: torch.Tensor) -> TensorSpec:
    """An input or output: halves are shown as float32, the first axis counts samples."""
    shape: Shape = (None, *tensor.shape[1:]) if tensor.dim() else ()
    return TensorSpec(name, shape, np.dtype(np.float32 if tensor.is_floating_point() else np.int64))


def _attributes_of_call(arguments: Mapping[str, object]) -> Attributes:
    """Arguments of a call that are numbers, texts, or lists of them."""
    known = {name: _attribute_value(value) for name, value in arguments.items()}
    return Attributes({name: value for name, value in known.items() if value is not None})


def _attribute_value(value: object) -> Attribute | None:
    if isinstance(value, int | float | str):
        return value
    if not isinstance(value, list | tuple) or not value:
        return None
    for kind in (int, str):
        if all(isinstance(entry, kind) for entry in value):
            return tuple(value)
    return tuple(map(float, value)) if all(isinstance(entry, int | float) for entry in value) else None


def _unpacked_weights(call: Call) -> list[Operand] | None:
    """Weights and bias of an integer kernel, which gets them as one object."""
    for argument in call.args:
        unpack = getattr(argument, "unpack", None) if not isinstance(argument, torch.Tensor) else None
        if unpack is None:
            continue
        weight, bias = unpack()[:2]
        return [weight, bias]
    return None


def _moved_grid(quantizer: Quantizer | None, call: Call) -> Quantizer | None:
    """The grid of a constant behind a call that may turn it."""
    if quantizer is None or quantizer.axis is None:
        return quantizer
    found = operator_of_call(call.name, call.args, call.kwargs, call.result)
    order = found.attributes.get("perm") if found.op_type == "Transpose" else None
    if not isinstance(order, list) or quantizer.block_size:
        return None
    return quantizer.transpose(order)
