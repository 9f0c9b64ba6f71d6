"""The places of a search: what a network quantizes, layer by layer, and how that is left in float."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from quantmedic.collectors.from_onnx.codes import MOVES
from quantmedic.collectors.measure.models import SimulatedNetwork
from quantmedic.engine.case.records import CaseRecord
from quantmedic.engine.formulas.change import Change, Targets
from quantmedic.engine.formulas.tensors import grid_of


@dataclass(frozen=True)
class Unit:
    """What is quantized or left in float together, by index into the tables of the case.

    Attributes:
        name: Name of the layer in the float model, or of the network input.
        op_type: Its operator type.
        operator: The layer whose weights, bias and small constants can be left in float; None where none is quantized.
        tensors: Activations whose quantizers can be turned off.
        quantized: What has a quantizer, in words.
    """

    name: str
    op_type: str
    operator: int | None
    tensors: tuple[int, ...]
    quantized: tuple[str, ...]


def left_in_float(units: Iterable[Unit], weighted: Collection[int]) -> Change:
    """All quantizers of these units turned off.

    Args:
        units: What is left in float.
        weighted: Operators with weights, by index; constants of the others count as biases.
    """
    units = list(units)
    operators = [unit.operator for unit in units if unit.operator is not None]
    tensors = [i for unit in units for i in unit.tensors]
    forms = [k for k in operators if k in weighted]
    return Change(dict.fromkeys(tensors), dict.fromkeys(forms, "float"), frozenset(operators))


def units_of(record: CaseRecord, network: SimulatedNetwork) -> list[Unit]:
    """Units in the order of execution, network inputs first; layers without a simulated quantizer are left out."""
    owner: dict[int | None, int] = {}
    for k, op in enumerate(record.operators):
        at_run_time = [i for i in op.inputs if i is not None and record.tensors[i].quantizer.dynamic]
        fixed = [i for i in op.outputs if i is not None and not record.tensors[i].quantizer.dynamic]
        # A grid that is found at run time belongs to what reads it.
        # An activation that is fused into the operator before it has that one's output.
        for i in (*at_run_time, *fixed) if k in network.weighted else fixed:
            owner.setdefault(i, k)
    found = [
        Unit(f"{t.float_name} (input)" if t.is_input else t.float_name, t.producer, None, (i,), ("values",))
        for i, t in enumerate(record.tensors)
        if i in network.tensors and i not in owner
    ]
    for k, op in enumerate(record.operators):
        ends = dict.fromkeys((*op.inputs, *op.outputs))
        tensors = tuple(i for i in ends if i is not None and i in network.tensors and owner.get(i) == k)
        weighted, constants = k in network.weighted, k in network.with_constants
        known = {
            "weight": weighted,
            "bias": weighted and bool(op.bias.bits),
            "constants": constants,
            "output": any(i in op.outputs for i in tensors),
            "input": any(i in op.inputs for i in tensors),
        }
        parts = tuple(part for part, is_quantized in known.items() if is_quantized)
        if parts:
            found.append(Unit(op.name, op.op_type, k if weighted or constants else None, tensors, parts))
    return found


def quantizers_not_simulated(record: CaseRecord, network: SimulatedNetwork) -> tuple[str, ...]:
    """Layers and activations with a quantizer that no run can turn on or off."""
    weights = [
        op.name for k, op in enumerate(record.operators) if op.weight.quantizer.bits and k not in network.weighted
    ]
    outputs = [t.float_name for i, t in enumerate(record.tensors) if t.quantizer.bits and i not in network.tensors]
    return tuple(dict.fromkeys([*weights, *outputs]))


@dataclass(frozen=True)
class Group:
    """What leaves int8 together: a layer, and the operators behind it that only move its values on the same grid."""

    units: tuple[Unit, ...]
    operators: tuple[int, ...]

    @property
    def name(self) -> str:
        """Name of the layer."""
        return self.units[0].name

    @property
    def tensors(self) -> tuple[int, ...]:
        """Activations that lose their quantizer."""
        return tuple(i for unit in self.units for i in unit.tensors)


def targets_of(groups: Iterable[Group]) -> Targets:
    """These groups, by index into the tables of the case."""
    groups = list(groups)
    return Targets(
        tuple(dict.fromkeys(i for group in groups for i in group.tensors)),
        tuple(dict.fromkeys(k for group in groups for k in group.operators)),
    )


def groups_of(record: CaseRecord, units: Sequence[Unit]) -> list[Group]:
    """Units without those that round a second time what is on the grid already: alone, neither of the two matters."""
    writer: dict[int, int] = {}
    for k, op in enumerate(record.operators):
        for i in op.outputs:
            if i is not None:
                writer.setdefault(i, k)
    home = {i: number for number, unit in enumerate(units) for i in unit.tensors}
    joined: dict[int, list[int]] = {}
    for number, unit in enumerate(units):
        source = _source(record, unit, writer)
        target = home.get(source, number) if source is not None else number
        joined.setdefault(target, []).append(number)
        home |= dict.fromkeys(unit.tensors, target)
    return [_make_group([units[n] for n in numbers], writer) for numbers in joined.values()]


def _source(record: CaseRecord, unit: Unit, writer: dict[int, int]) -> int | None:
    """The tensor that a unit only moves, where it rounds to the same grid."""
    if unit.operator is not None or len(unit.tensors) != 1 or unit.tensors[0] not in writer:
        return None
    op = record.operators[writer[unit.tensors[0]]]
    read = next((i for i in op.inputs if i is not None), None)
    if op.op_type not in MOVES or read is None:
        return None
    grids = [grid_of(record.tensors[i].quantizer) for i in (read, unit.tensors[0])]
    return read if grids[0] == grids[1] else None


def _make_group(units: Sequence[Unit], writer: dict[int, int]) -> Group:
    own = [unit.operator for unit in units if unit.operator is not None]
    written = [writer[i] for unit in units for i in unit.tensors if i in writer]
    return Group(tuple(units), tuple(dict.fromkeys([*own, *written])))
