"""Which tensor of the quantized model is which of the float model: by structure, and by names where they agree."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from quantmedic.collectors.pair.graph import FOLDABLE, Graph, Operator

#: Weights of a layer that are compared with another's: enough to tell whether the two are the same.
LIKENESS_WEIGHTS = 1 << 14
#: Operator types that stand for each other when one toolchain fuses what the other keeps apart.
_SAME = {"Gemm": "MatMul", "FusedMatMul": "MatMul", "FusedGemm": "MatMul", "FusedConv": "Conv", "QuickGelu": "Gelu"}
_HOPS = 4


@dataclass
class Match:
    """Tensors and operators of the quantized graph with their twins in the float graph.

    Attributes:
        tensors: Twin of each quantized root.
        operators: Twin of each quantized operator, by its index.
        outputs: For each output of the float model that has a twin, (its position, the twin's position).
        unmatched: Names of the quantized operators without a twin.
    """

    tensors: dict[str, str] = field(default_factory=dict)
    operators: dict[int, Operator] = field(default_factory=dict)
    outputs: list[tuple[int, int]] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)


def match(
    float_graph: Graph,
    quantized: Graph,
    given: Mapping[str, str] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> Match:
    """Pair the graphs from the inputs downwards; an operator's inputs decide what its name leaves open.

    ``given`` is what the user knows: float operators by quantized operators, by name. ``renamed`` is the same,
    derived from a toolchain's way of naming; it counts as much as equal names do.

    Weights count before names, which toolchains give anew. Where operators then read what their twins do not, because
    weights of two layers changed places, names count first if that leaves fewer of these.
    """
    by_weights = _Matcher(float_graph, quantized, given or {}, renamed or {})
    found = by_weights.run()
    if not by_weights.contradictions:
        return found
    by_names = _Matcher(float_graph, quantized, given or {}, renamed or {}, names_first=True)
    other = by_names.run()
    return other if by_names.contradictions < by_weights.contradictions else found


class _Matcher:
    def __init__(
        self,
        float_graph: Graph,
        quantized: Graph,
        given: Mapping[str, str],
        renamed: Mapping[str, str],
        *,
        names_first: bool = False,
    ) -> None:
        self.float_graph, self.quantized = float_graph, quantized
        self.names_first = names_first
        #: Operators that read what their twins do not.
        self.contradictions = 0
        named = {op.name: op for op in float_graph.operators}
        self.given = {mine: named[theirs] for mine, theirs in given.items()}
        self.renamed = {mine: named[theirs] for mine, theirs in renamed.items()}
        self.producers = float_graph.producers
        self.consumers = float_graph.consumers
        self.taken: set[int] = {op.index for op in self.given.values()}
        self.result = Match()
        #: Products without a bias whose twins have one, until the addition that makes up for it is met.
        self.owed: dict[str, str] = {}
        self.names = self._name_index()

    def run(self) -> Match:
        self._match_ends(self.quantized.inputs, self.float_graph.inputs)
        for op in self.quantized.operators:
            if self._is_late_bias(op):
                continue
            twin = self._twin(op)
            if twin is not None:
                self._pair(op, twin)
        for product, twin_output in self.owed.items():
            self.result.tensors.setdefault(product, twin_output)
        self._settle_outputs()
        self._settle_names()
        self.result.unmatched = [
            op.name for op in self.quantized.operators if not any(o in self.result.tensors for o in op.outputs)
        ]
        return self.result

    def _match_ends(self, mine: list[str], theirs: list[str]) -> None:
        for position, name in enumerate(mine):
            if name in theirs:
                self.result.tensors[name] = name
            elif len(mine) == len(theirs):
                self.result.tensors[name] = theirs[position]

    def _name_index(self) -> dict[str, list[str]]:
        """All names of each quantized root: its own and those of its quantized copies."""
        index: dict[str, list[str]] = {}
        for name in self.quantized.roots:
            index.setdefault(self.quantized.root(name), []).append(name)
        return index

    def _twin(self, op: Operator) -> Operator | None:
        """The float operator that this one stands for, or None: what it reads and holds counts before its name."""
        if op.name in self.given:
            return self.given[op.name]
        candidates = list(self._structural(op))
        named = self._twin_by_name(op)
        if named is not None and kind_of(named) == kind_of(op) and not any(c is named for c in candidates):
            candidates.append(named)
        if candidates:
            return max(candidates, key=lambda c: self._score(op, c))
        return named

    def _is_late_bias(self, op: Operator) -> bool:
        """An addition that gives a product the bias which its twin has built in; paired as one with the product."""
        constants = sum(name in self.quantized.constants for name in op.inputs)
        product = next((name for name in op.inputs if name in self.owed), None)
        if op.op_type != "Add" or constants != 1 or product is None:
            return False
        self.result.tensors[op.outputs[0]] = self.owed.pop(product)
        return True

    def _twin_by_name(self, op: Operator) -> Operator | None:
        renamed = self.renamed.get(op.name)
        if renamed is not None and renamed.index not in self.taken:
            return renamed
        for output in op.outputs:
            for name in [output, *self.names.get(output, [])]:
                twin = self.producers.get(name) or self.producers.get(self._prefix(name))
                if twin is not None and twin.index not in self.taken:
                    return twin
        return None

    def _prefix(self, name: str) -> str:
        """Longest float tensor name that this name extends by a suffix, whatever the tool calls it."""
        cut = len(name)
        while (cut := max(name.rfind("_", 0, cut), name.rfind(".", 0, cut), name.rfind("/", 0, cut))) > 0:
            if name[:cut] in self.producers:
                return name[:cut]
        return ""

    def _structural(self, op: Operator) -> Iterator[Operator]:
        """Free float operators of the same type that read the twins of this operator's inputs."""
        sources = [self.result.tensors[name] for name in op.inputs if name in self.result.tensors]
        if not sources:
            return
        seen: set[int] = set()
        for source in sources[:1]:
            for tensor in self._downstream(source):
                for reader in self.consumers.get(tensor, []):
                    fits = kind_of(reader) == kind_of(op) and reader.index not in self.taken | seen
                    if fits and self._inputs_fit(op, reader):
                        seen.add(reader.index)
                        yield reader

    def _downstream(self, tensor: str) -> Iterator[str]:
        """The tensor, and what foldable operators that were not paired make of it."""
        frontier = [(tensor, 0)]
        while frontier:
            name, hops = frontier.pop(0)
            yield name
            if hops == _HOPS:
                continue
            for reader in self.consumers.get(name, []):
                if reader.op_type in FOLDABLE and reader.index not in self.taken and self._one_operand(reader):
                    frontier.append((reader.outputs[0], hops + 1))

    def _one_operand(self, op: Operator) -> bool:
        return sum(name not in self.float_graph.constants for name in op.inputs) == 1

    def _inputs_fit(self, op: Operator, twin: Operator) -> bool:
        mine = [n for n in op.inputs if n not in self.quantized.constants]
        theirs = [n for n in twin.inputs if n not in self.float_graph.constants]
        if len(mine) != len(theirs):
            return False
        reach = [set(self._downstream(self.result.tensors[n])) for n in mine if n in self.result.tensors]
        return all(any(name in options for name in theirs) for options in reach)

    def _score(self, op: Operator, twin: Operator) -> tuple[bool, float, bool, bool, bool, bool, int]:
        return (
            self.names_first and op.name == twin.name,
            round(self._weight_likeness(op, twin), 1),
            self._reads_alike(op, twin),
            op.attributes == twin.attributes,
            bool(set(op.outputs) & set(twin.outputs)),
            op.name == twin.name,
            -twin.index,
        )

    def _reads_alike(self, op: Operator, twin: Operator) -> bool:
        known = [self.result.tensors[name] for name in op.inputs if name in self.result.tensors]
        return bool(known) and self._inputs_fit(op, twin)

    def _weight_likeness(self, op: Operator, twin: Operator) -> float:
        """Cosine of the (first) weights, 0 where there are none or their shapes differ."""
        mine = [self.quantized.constants[n].values for n in op.inputs if n in self.quantized.constants]
        theirs = [self.float_graph.constants[n].values for n in twin.inputs if n in self.float_graph.constants]
        if not mine or not theirs or mine[0] is None or theirs[0] is None or mine[0].shape != theirs[0].shape:
            return 0.0
        a, b = (v.ravel()[:LIKENESS_WEIGHTS].astype(np.float64) for v in (mine[0], theirs[0]))
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            return 0.0
        scale = np.sqrt((a @ a) * (b @ b))
        return float(a @ b / scale) if scale > 0 else 0.0

    def _pair(self, op: Operator, twin: Operator) -> None:
        self.contradictions += not self._reads_alike(op, twin) and any(n in self.result.tensors for n in op.inputs)
        self.taken.add(twin.index)
        self.result.operators[op.index] = twin
        self._settle_inputs(op, twin)
        if _has_bias(twin) and not _has_bias(op) and self._adds_constant_after(op):
            self.owed[op.outputs[0]] = twin.outputs[0]
            return
        for mine, theirs in zip(op.outputs, twin.outputs, strict=False):
            self.result.tensors.setdefault(mine, theirs)

    def _adds_constant_after(self, op: Operator) -> bool:
        readers = self.quantized.consumers.get(op.outputs[0], [])
        constants = self.quantized.constants
        return len(readers) == 1 and readers[0].op_type == "Add" and any(n in constants for n in readers[0].inputs)

    def _settle_inputs(self, op: Operator, twin: Operator) -> None:
        """An input whose twin feeds this operator only through folded operators stands for their result."""
        theirs = [n for n in twin.inputs if n not in self.float_graph.constants]
        for name in op.inputs:
            known = self.result.tensors.get(name)
            if known is None or known in theirs:
                continue
            reachable = set(self._downstream(known))
            for tensor in theirs:
                if tensor in reachable:
                    self.result.tensors[name] = tensor
                    break

    def _settle_outputs(self) -> None:
        """Pair the outputs of both models: by what they were found to be, else by name, else by position."""
        mine, theirs = self.quantized.output_roots, self.float_graph.output_roots
        order: dict[int, int] = {}
        choices = [self._found_output, self._named_output]
        if len(mine) == len(theirs):  # else a missing output would shift the rest
            choices.append(lambda position: position)
        for choose in choices:
            for position in range(len(mine)):
                target = choose(position)
                free = target not in order and position not in order.values()
                if target is not None and target < len(theirs) and free:
                    order[target] = position
        for target, position in order.items():
            if mine[position] not in self.quantized.inputs:
                self.result.tensors[mine[position]] = theirs[target]
        self.result.outputs = sorted(order.items())

    def _found_output(self, position: int) -> int | None:
        known = self.result.tensors.get(self.quantized.output_roots[position])
        reachable = list(self._downstream(known)) if known is not None else []
        return next((i for i, root in enumerate(self.float_graph.output_roots) if root in reachable), None)

    def _named_output(self, position: int) -> int | None:
        name = self.quantized.outputs[position]
        return self.float_graph.outputs.index(name) if name in self.float_graph.outputs else None

    def _settle_names(self) -> None:
        """A tensor whose copy carries the name of a folded operator's result stands for that result."""
        for root, known in list(self.result.tensors.items()):
            reachable = set(self._downstream(known)) - {known}
            for name in self.names.get(root, []):
                if name in reachable or (name := self._prefix(name)) in reachable:
                    self.result.tensors[root] = name
                    break


def kind_of(op: Operator) -> str:
    """Operator type, one for all that stand for each other."""
    return _SAME.get(op.op_type, op.op_type)


def _has_bias(op: Operator) -> bool:
    return op.op_type in ("Conv", "ConvTranspose", "Gemm") and len(op.inputs) > 2
