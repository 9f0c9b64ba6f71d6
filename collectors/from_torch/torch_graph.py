"""The graph of a torch module, and where its tensors are found again in every run."""

from dataclasses import dataclass, field

from quantmedic.collectors.from_torch.quantizers import Kind
from quantmedic.collectors.pair.graph import Graph, Shape


@dataclass(frozen=True)
class Place:
    """Where a call has or makes a tensor: its number, and the place among its tensor arguments or results."""

    call: int
    place: int


@dataclass
class TorchGraph(Graph):
    """A graph whose tensors can be found again in every run of the module.

    Attributes:
        calls: Names of the calls in their order.
        written: Where each tensor that is no input or constant is made, coded copies included.
        read: Where each operator reads its inputs: for operator index and tensor name, the places.
        quantizing: The call that makes each rounded or coded copy of a tensor, and how, by the copy's name.
        rewritten: Tensors whose memory is written to after they were made.
        shapes: Shape of every tensor; None for the axis of the samples.
        half: Tensors in float16.
        integer: Tensors that an integer kernel writes.
        returned: Number of tensors that the module returns.
        positions: Which of them are the outputs; constants are none.
    """

    calls: list[str] = field(default_factory=list)
    written: dict[str, Place] = field(default_factory=dict)
    read: dict[int, dict[str, list[Place]]] = field(default_factory=dict)
    quantizing: dict[str, tuple[int, Kind]] = field(default_factory=dict)
    rewritten: set[str] = field(default_factory=set)
    shapes: dict[str, Shape] = field(default_factory=dict)
    half: set[str] = field(default_factory=set)
    integer: set[str] = field(default_factory=set)
    returned: int = 0
    positions: list[int] = field(default_factory=list)
