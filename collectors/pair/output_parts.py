"""What the columns of an output are joined of: found by walking back from it to the Concat that joins them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from quantmedic.collectors.pair.channels import channel_axes, reshaped_axis
from quantmedic.collectors.pair.detector_heads import Part, decoder_of, has_shared_sigmoid, kinds_of
from quantmedic.collectors.pair.graph import Graph, Operator, Shape
from quantmedic.collectors.pair.tensor_pairs import PairedGraphs
from quantmedic.engine.case.output_columns import MAX_PARTS, parts_of
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.stored_bins import main_role
from quantmedic.engine.operator_types import LAYOUTS, RESHAPES

#: Operators whose result is a score between 0 and 1.
_SCORES = frozenset({"Sigmoid", "HardSigmoid", "Softmax"})
#: A number of samples that no other side has, for shapes that leave it open.
_SAMPLES = 7919
#: Axes of a batch of maps.
MAP_RANK = 4


@dataclass(frozen=True)
class Joint:
    """Where the columns of an output stand, and what they are joined of.

    Attributes:
        axis: Axis of the columns; None where the output has none.
        size: How many there are; 0 without an axis.
        parts: Operands of the Concat along this axis, in order; empty where none joins them.
        carriers: Tensors of the float model that hold the columns as they come out, the output first.
        is_score: Without parts, the output ends in a Sigmoid or Softmax.
        decoder: Operators of the float model between the last layers with weights and the head of a detector.
    """

    axis: int | None
    size: int = 0
    parts: tuple[Part, ...] = ()
    carriers: tuple[str, ...] = ()
    is_score: bool = False
    decoder: tuple[str, ...] = ()


def joints_of(models: PairedGraphs, shapes: Mapping[str, Shape] = MappingProxyType({})) -> list[Joint]:
    """The joints of all matched outputs, in their order.

    Args:
        models: Both models.
        shapes: Shapes in one real batch, None for the axis of the samples, where the model itself leaves them open.
    """
    graph, known = models.float_graph, {**shapes, **{n: s for n, s in models.shapes.items() if None not in s[1:]}}
    axes = channel_axes(graph, models.shapes, models.shapes)
    maps = {shape[1] for root in graph.output_roots if len(shape := known.get(root, ())) == MAP_RANK and shape[1]}
    found = []
    for position, _ in models.match.outputs:
        root = graph.output_roots[position]
        joint, channels = _with_head(graph, joint_of(graph, known, root), root, maps), axes.get(root)
        size = models.shapes[root][channels] if channels else None
        found.append(replace(joint, axis=channels, size=size) if not joint.parts and size else joint)
    return found


def _with_head(graph: Graph, joint: Joint, root: str, maps: Collection[int]) -> Joint:
    """The joint with what its parts hold, and what decodes them, where it is the head of a detector."""
    kinds = kinds_of(graph, joint.parts, maps)
    if not any(kinds):
        return joint
    told = [part._replace(kind=kind) for part, kind in zip(joint.parts, kinds, strict=True)]
    parts = tuple(_with_objectness(graph, told))
    scores = tuple(part._replace(is_score=part.is_score or part.kind == "scores") for part in parts)
    return replace(joint, parts=scores, decoder=decoder_of(graph, root))


def _with_objectness(graph: Graph, parts: Sequence[Part]) -> Iterator[Part]:
    """The parts, of the scores that share a Sigmoid with the boxes the first column by itself."""
    boxes = [part.tensor for part in parts if part.kind == "boxes"]
    is_told = any(part.kind in ("objectness", "classes") for part in parts)
    for part in parts:
        splits = part.kind == "scores" and not is_told and part.stop - part.start > 1
        if splits and has_shared_sigmoid(graph, boxes, part.tensor):
            yield part._replace(stop=part.start + 1, kind="objectness")
            yield part._replace(start=part.start + 1)
        else:
            yield part


def recorded_joints(case: Case) -> list[Joint]:
    """The same from a case, as far as it holds them; an output that no Concat joins is divided by scale."""
    statistics = case.statistics.get(main_role(case))
    found = statistics.comparisons if statistics is not None else {}
    joints = []
    for k, output in enumerate(case.record.outputs):
        parts = tuple(Part(**dict(part)) for part in parts_of(output, found.get(f"column.{k}")))
        joints.append(Joint(output.axis, parts=parts, is_score=output.is_score))
    return joints


def joint_of(graph: Graph, shapes: Mapping[str, Shape], output: str) -> Joint:
    """The joint of one output of the float model.

    Args:
        graph: The float model.
        shapes: Shapes of its tensors, None for a side that depends on the data.
        output: Root of the output.
    """
    shape = shapes.get(output)
    walker = _Walker(graph, shapes)
    found = []
    for axis in range(1, len(shape or ())):
        carriers: dict[str, None] = {}
        parts = walker.parts(output, axis, carriers)
        if parts is not None and 1 < len(parts) <= MAX_PARTS:
            found.append((parts[-1].stop, axis, parts, tuple(carriers)))
    if found:
        size, joined, parts, names = min(found)
        return Joint(joined, size, parts, names)
    moved = tuple(walker.follow_moves(output))
    length, shorter = shorter_axis(_declared_fixed(graph, output, shape))
    return Joint(shorter, length, (), moved, walker.is_score(moved[-1]))


def _declared_fixed(graph: Graph, output: str, shape: Shape | None) -> Shape | None:
    """The shape without sides that the network leaves open: time, which is as long as the sample, has no columns."""
    declared = next((spec.shape for spec in graph.output_specs if graph.root(spec.name) == output), None)
    if shape is None or declared is None or len(declared) != len(shape):
        return shape
    return tuple(size if given is not None else None for size, given in zip(shape, declared, strict=True))


def shorter_axis(shape: Sequence[int | None] | None) -> tuple[int, int | None]:
    """The shorter of axis 1 and the last one, if its length is fixed, behind that length."""
    if shape is None or len(shape) < 2:
        return 0, None
    return min(((size, axis) for axis in (1, len(shape) - 1) if (size := shape[axis])), default=(0, None))


class _Walker:
    def __init__(self, graph: Graph, shapes: Mapping[str, Shape]) -> None:
        self._graph, self._shapes = graph, shapes

    def parts(self, name: str, axis: int, carriers: dict[str, None]) -> tuple[Part, ...] | None:
        """What is joined along an axis of a tensor; None where nothing is, or the sizes are not known."""
        place: int | None = axis
        # A chain is walked in a loop: it may be longer than Python's stack.
        while place is not None:
            carriers[name] = None
            op = self._graph.producers.get(name)
            if op is not None and op.op_type == "Concat":
                return self._join(op, name, place, carriers)
            source = self._source(op) if op is not None else None
            if op is None or source is None:
                return None
            place, name = self._axis_before(op, source, name, place), source
        return None

    def _join(self, op: Operator, name: str, axis: int, carriers: dict[str, None]) -> tuple[Part, ...] | None:
        rank = len(self._shapes.get(name, ()))
        if not rank or (op.attributes.integer("axis") % rank) != axis:
            # Joined along another axis: every operand has these columns.
            layouts = [self.parts(source, axis, carriers) for source in op.inputs]
            known = [layout for layout in layouts if layout is not None]
            same = len(known) == len(layouts) and len({tuple(p[:2] for p in layout) for layout in known}) == 1
            return known[0] if known and same else None
        sizes = [_side_of_axis(self._shapes.get(source), axis) for source in op.inputs]
        total = _side_of_axis(self._shapes.get(name), axis)
        if sizes.count(None) == 1 and total is not None:
            sizes[sizes.index(None)] = total - sum(size or 0 for size in sizes)
        found: list[Part] = []
        for source, size in zip(op.inputs, sizes, strict=True):
            start = found[-1].stop if found else 0
            if not size:
                return None
            inner = self.parts(source, axis, {}) or (Part(0, size, source, self.is_score(source)),)
            found += [part._replace(start=start + part.start, stop=start + part.stop) for part in inner]
        return tuple(found)

    def _source(self, op: Operator) -> str | None:
        """The one activation that an operator reads."""
        if op.op_type in LAYOUTS:
            # What else a Reshape reads is a shape, which exporters compute where sides are left open.
            return op.inputs[0] if op.inputs[0] not in self._graph.constants else None
        read = [name for name in op.inputs if name not in self._graph.constants]
        return read[0] if len(read) == 1 else None

    def _axis_before(self, op: Operator, source: str, name: str, axis: int) -> int | None:
        """Where an axis of a result stands in what the operator reads."""
        before, after = self._shapes.get(source), self._shapes.get(name)
        if op.op_type == "Transpose":
            order = op.attributes.integers("perm") or ()
            return order[axis] if axis < len(order) else None
        if before is None or after is None:
            return None
        if op.op_type in RESHAPES:
            return reshaped_axis(axis, *map(_with_samples, (after, before)))
        return axis if len(before) == len(after) and before[axis] == after[axis] else None

    def follow_moves(self, name: str) -> list[str]:
        """A tensor, and those before it that hold the same values in the same or another order."""
        found = [name]
        while (op := self._graph.producers.get(found[-1])) is not None and (source := self._source(op)) is not None:
            if op.op_type not in LAYOUTS:
                break
            found.append(source)
        return found

    def is_score(self, name: str) -> bool:
        """A tensor holds scores: columns of a Sigmoid or Softmax, or a product of such."""
        op = self._graph.producers.get(self.follow_moves(name)[-1])
        while op is not None and op.op_type in ("Split", "Slice"):
            op = self._graph.producers.get(self.follow_moves(op.inputs[0])[-1])
        if op is None:
            return False
        read = [source for source in op.inputs if source not in self._graph.constants]
        if op.op_type == "Mul" and len(read) == 2:
            # The first of x · Sigmoid(x), a Swish, is none.
            return all(self.is_score(source) for source in read)
        return op.op_type in _SCORES


def _side_of_axis(shape: Shape | None, axis: int) -> int | None:
    return shape[axis] if shape is not None and axis < len(shape) else None


def _with_samples(shape: Sequence[int | None]) -> tuple[int | None, ...]:
    return tuple(_SAMPLES if size is None and place == 0 else size for place, size in enumerate(shape))
