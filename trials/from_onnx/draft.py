"""A copy of an ONNX model in the making: nodes by what they write, names that are free, constants that are added."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_graph import OnnxGraph, opset_of, unique_name
from quantmedic.collectors.from_onnx.onnx_session import make_session, run
from quantmedic.collectors.from_onnx.segments import captured_by, reads_of
from quantmedic.collectors.pair.feed import feed_of

Array = NDArray[Any]
#: Attributes of a node, of the types that ``onnx.helper.make_node`` takes.
Attributes = dict[str, Any]
MICROSOFT = "com.microsoft"
_ALIASES = ("Identity", "Dropout")
#: First opset of the default domain whose quantizers take a scale per channel, and codes of 4 and 16 bits.
PER_CHANNEL_OPSET, ALL_WIDTHS_OPSET = 13, 21


@dataclass(frozen=True)
class LearnedLayer:
    """A layer of which something was learned on samples.

    Attributes:
        layer: Its name.
        error_before: Of rounding, E‖(W - Q) x‖² over E‖W x‖²; of a bias, the mean errors of its channels over the
            deviation of what it writes, root mean square.
        error_after: The same afterwards; of a bias, of what its codes could not take up.
        moved: Share of the weight codes that changed.
    """

    layer: str
    error_before: float
    error_after: float
    moved: float = 0.0


@dataclass(frozen=True)
class LearnedModel:
    """A model of which something was learned on samples.

    Attributes:
        model: The model; of a LiteRT file its translation to ONNX.
        layers: What was learned, in order.
        left: Layers of which nothing was, each with the reason.
    """

    model: onnx.ModelProto
    layers: tuple[LearnedLayer, ...]
    left: tuple[str, ...]


class Draft:
    """The copy. ``nodes`` are worked on as a list; ``finish`` puts them back in an order in which they can be run.

    Attributes:
        model: The copy.
        nodes: All nodes, in any order.
        writers: The node that writes each tensor.
        computed: The node that computes what the original model wrote first under a name.
        dequantizers: The nodes that read each tensor of codes as real values.
        outputs: Names of the network's outputs.
        opset: Opset of the default domain.
        touched: Anything was changed.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.nodes: list[onnx.NodeProto] = list(self.model.graph.node)
        self.computed = {node.output[0]: node for node in self.nodes if node.output}
        self.writers: dict[str, onnx.NodeProto] = {}
        self.dequantizers: dict[str, list[onnx.NodeProto]] = {}
        self.outputs = {value.name for value in self.model.graph.output}
        self._tensors = {t.name: t for t in self.model.graph.initializer}
        self._taken_out: set[str] = set()
        self.touched = False
        self._names = {*self._tensors, *(value.name for value in self.model.graph.input), *self.outputs}
        self.opset = opset_of(self.model)
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        self.index()

    def index(self) -> None:
        """Index again which node writes each tensor, and which nodes read codes."""
        self.writers = {name: node for node in self.nodes for name in node.output if name}
        self._names |= self.writers.keys()
        self.dequantizers, self._readers = {}, {}
        for node in self.nodes:
            if node.op_type == "DequantizeLinear":
                self.dequantizers.setdefault(self.source(node.input[0]), []).append(node)
            elif node.op_type not in _ALIASES:
                for name in reads_of(node):
                    self._readers.setdefault(self.source(name), []).append(node)

    def readers_of(self, name: str) -> list[onnx.NodeProto]:
        """Nodes that read a tensor otherwise than to dequantize it."""
        return self._readers.get(name, [])

    def source(self, name: str) -> str:
        """The tensor behind operators that hand on what they read as it is."""
        while name in self.writers and self.writers[name].op_type in _ALIASES:
            name = self.writers[name].input[0]
        return name

    def before_activation(self, name: str) -> str:
        """What a tensor is before the activation, of bounds ``low`` and ``high``, that its operator has built in.

        Only LiteRT's operators have one; of other tensors the name comes back.
        """
        node = self.writers.get(name)
        bounds = {"low", "high"}
        if node is None or node.op_type == "FakeQuant" or not bounds & {a.name for a in node.attribute}:
            return name
        target = self.fresh(f"{name}:linear")
        plain = helper.make_node(node.op_type, node.input, [target], name=target, domain=node.domain)
        plain.attribute.extend(a for a in node.attribute if a.name not in bounds)
        self.nodes.append(plain)
        self.writers[target] = plain
        return target

    def writes_codes(self, name: str) -> bool:
        """A tensor is quantized, at once or behind an activation, and its codes are read."""
        for reader in self._readers.get(name, []):
            target = reader.output[0]
            if reader.op_type in ("Relu", "Clip") and self.writes_codes(target):
                return True
            live = any(d.op_type == "DequantizeLinear" for d in self.dequantizers.get(target, []))
            if reader.op_type == "QuantizeLinear" and (live or target in self.outputs):
                return True
        return False

    def fresh(self, base: str) -> str:
        """A name that nothing has yet."""
        return unique_name(base, self._names)

    def add_constant(self, base: str, values: Array, kind: int | None = None) -> str:
        """Add an initializer and return its name; ``kind`` is its ONNX type where that of numpy is another."""
        name = self.fresh(base)
        self.touched = True
        if kind is not None:
            values = np.asarray(values).astype(helper.tensor_dtype_to_np_dtype(kind))
        self.model.graph.initializer.append(numpy_helper.from_array(np.asarray(values), name))
        self._tensors[name] = self.model.graph.initializer[-1]
        return name

    def change_constant(self, node: onnx.NodeProto, place: int, values: Array) -> None:
        """Give an input of a node another constant, of the type that it had; what nothing else reads keeps its name."""
        name = node.input[place]
        kind, tensor = self.type_of(name), self._tensors.get(name)
        users = sum(each == name for other in self.nodes for each in reads_of(other))
        if tensor is None or users > 1 or name in self.outputs:
            node.input[place] = self.add_constant(name, values, kind)
            return
        self.touched = True
        tensor.CopyFrom(numpy_helper.from_array(values.astype(helper.tensor_dtype_to_np_dtype(kind)), name))

    def add_dequantizer(
        self, base: str, codes: Array, kind: int, scale: Array, zero: int = 0, axis: int | None = None
    ) -> str:
        """A new constant that is kept as codes; returns what it is dequantized to.

        Args:
            base: What its names begin with.
            codes: Whole numbers.
            kind: Their type.
            scale: One, or one per index of ``axis``.
            zero: Zero point of all of them.
            axis: Axis of the scales where there are several.
        """
        names = [
            self.add_constant(f"{base}_quantized", codes, kind),
            self.add_constant(f"{base}_scale", np.asarray(scale, np.float32)),
            self.add_constant(f"{base}_zero_point", np.full(np.shape(scale), zero), kind),
        ]
        target = self.fresh(f"{base}_dequantized")
        attributes: Attributes = {} if axis is None else {"axis": axis}
        node = helper.make_node("DequantizeLinear", names, [target], name=target, **attributes)
        self.settle_domain(node, kind)
        self.nodes.append(node)
        self.writers[target] = node
        self.dequantizers.setdefault(names[0], []).append(node)
        return target

    def set_grid(self, node: onnx.NodeProto, scale: str, zero: str, axis: int | None = None) -> None:
        """Give a quantizer, or what reads its codes, the scale and zero point of all values, or of each channel."""
        node.input[:] = [node.input[0], scale, zero]
        del node.attribute[:]
        if axis is not None:
            node.attribute.append(helper.make_attribute("axis", axis))
        self.settle_domain(node, self.type_of(zero))

    def take_out(self, node: onnx.NodeProto, source: str) -> None:
        """What read codes hands on the real values that they stood for."""
        self.touched = True
        node.CopyFrom(helper.make_node("Identity", [source], [node.output[0]], name=node.name))
        self._taken_out.add(node.output[0])

    def settle_domain(self, node: onnx.NodeProto, kind: int) -> None:
        """Name the domain of a quantizer of codes of this type.

        Old opsets know neither scales per channel nor codes of 4 and 16 bits; onnxruntime's own domain does.
        """
        needed = ALL_WIDTHS_OPSET if kind in (TensorProto.INT4, TensorProto.UINT4) else 0
        if kind in (TensorProto.INT16, TensorProto.UINT16):
            needed = ALL_WIDTHS_OPSET
        if any(a.name == "axis" for a in node.attribute):
            needed = max(needed, PER_CHANNEL_OPSET)
        if self.opset >= needed:
            return
        node.domain = MICROSOFT
        if not any(o.domain == MICROSOFT for o in self.model.opset_import):
            self.model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))

    def type_of(self, name: str) -> int:
        """Type of a constant; float32 where it is not known."""
        tensor = self._tensor(name)
        return int(TensorProto.FLOAT if tensor is None else tensor.data_type)

    def value_of(self, name: str) -> Array | None:
        """Value of a constant; None where the tensor is not constant."""
        tensor = self._tensor(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def _tensor(self, name: str) -> TensorProto | None:
        if name in self._tensors:
            return self._tensors[name]
        node = self.writers.get(name)
        if node is not None and node.op_type == "Constant" and node.attribute[0].type == onnx.AttributeProto.TENSOR:
            return node.attribute[0].t
        return None

    def forget_type(self, name: str) -> None:
        """The type that the model states for a tensor no longer holds."""
        values = self.model.graph.value_info
        kept = [value for value in values if value.name != name]
        if len(kept) < len(values):
            del values[:]
            values.extend(kept)

    def open_reader(
        self, names: Iterable[str], graph: OnnxGraph, threads: int
    ) -> Callable[[Batch], Mapping[str, Array]]:
        """Gives these tensors of a batch, and the inputs; of the draft, nothing is left but what they need.

        Raises:
            ModelError: onnxruntime refuses it, or later fails on a batch.
        """
        computed = [name for name in dict.fromkeys(names) if name not in graph.inputs]
        if not computed:
            return lambda batch: feed_of(batch, graph)
        self.outputs = set(computed)
        del self.model.graph.output[:]
        self.model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in sorted(self.outputs))
        model = self.finish()
        # Where an operator is a function, onnxruntime's moving of transposes makes graphs that fail.
        session = make_session(model, graph.path, threads, plain=bool(model.functions))
        fed = {value.name for value in session.get_inputs()}

        def read_computed(batch: Batch) -> Mapping[str, Array]:
            feed = feed_of(batch, graph)
            own = {name: array for name, array in feed.items() if name in fed}
            return {**feed, **dict(zip(computed, run(session, computed, own, graph.path), strict=True))}

        return read_computed

    def finish(self) -> onnx.ModelProto:
        """The model, without what nothing reads and with every node behind those that it reads."""
        self._unwrap()
        self.nodes = _nodes_behind(self.nodes, self.outputs)
        graph = self.model.graph
        known = {"", *(value.name for value in graph.input), *(t.name for t in graph.initializer)}
        ordered = _sort_nodes(self.nodes, known | {t.values.name for t in graph.sparse_initializer})
        del graph.node[:]
        graph.node.extend(ordered)
        read = {name for node in ordered for name in reads_of(node)} | self.outputs
        read |= {value.name for value in graph.input}
        for place in reversed(range(len(graph.initializer))):
            if graph.initializer[place].name not in read:
                del graph.initializer[place]
        return self.model

    def _unwrap(self) -> None:
        """Take out the identities that stand where a quantizer was; the network's outputs keep their names."""
        captured = {name for node in self.nodes for name in captured_by(node)}
        inputs = {value.name for value in self.model.graph.input}
        renamed: dict[str, str] = {}
        kept = []
        for node in self.nodes:
            if not node.output or node.output[0] not in self._taken_out:
                kept.append(node)
                continue
            source, target = node.input[0], node.output[0]
            if target not in self.outputs and target not in captured:
                renamed[target] = source
            elif (
                target in self.outputs and source in self.writers and not {source} & (captured | self.outputs | inputs)
            ):
                renamed.setdefault(source, target)
                if renamed[source] != target:
                    kept.append(node)
            else:
                kept.append(node)
        for node in kept:
            node.input[:] = [_last(name, renamed) for name in node.input]
            node.output[:] = [_last(name, renamed) if name in renamed else name for name in node.output]
        self.nodes = kept


def _last(name: str, renamed: dict[str, str]) -> str:
    while name in renamed:
        name = renamed[name]
    return name


def _nodes_behind(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> list[onnx.NodeProto]:
    """The nodes that the outputs depend on."""
    writers = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    wanted: set[int] = set()
    frontier = [writers[name] for name in outputs if name in writers]
    while frontier:
        i = frontier.pop()
        if i in wanted:
            continue
        wanted.add(i)
        frontier += [writers[name] for name in reads_of(nodes[i]) if name in writers]
    return [node for i, node in enumerate(nodes) if i in wanted]


def _sort_nodes(nodes: Sequence[onnx.NodeProto], known: set[str]) -> list[onnx.NodeProto]:
    """The nodes with each behind those that it reads, otherwise as they were."""
    writers = {name: i for i, node in enumerate(nodes) for name in node.output if name and name not in known}
    done: set[int] = set()
    ordered = []
    for start in range(len(nodes)):
        stack = [start]
        while stack:
            i = stack[-1]
            before = [] if i in done else [writers[n] for n in reads_of(nodes[i]) if n in writers]
            before = [j for j in before if j not in done and j != i]
            if before:
                stack += before
                continue
            stack.pop()
            if i not in done:
                done.add(i)
                ordered.append(nodes[i])
    return ordered
