"""What a case says of two OpenVINO models besides graphs and statistics."""

from collections.abc import Iterator

from quantmedic.collectors.from_openvino.graph import OpenVINOGraph
from quantmedic.collectors.from_openvino.session import Session
from quantmedic.collectors.measure.models import Kernel

#: What the CPU plugin calls a kernel that reads codes, behind the name of its implementation.
_INTEGER_KERNELS = ("_i8", "_u8")
#: Operators that round, which no kernel has to itself.
_ROUNDERS = frozenset({"FakeQuantize"})


def file_facts(graph: OpenVINOGraph) -> dict[str, object]:
    """Fields of ``ModelFacts`` that a quantized IR tells besides its graph."""
    return {"format": graph.format, "toolchain": toolchain_of(graph), "toolchain_marks": tuple(marks_of(graph))}


def toolchain_of(graph: OpenVINOGraph) -> str | None:
    """The tool that quantized a model, with its version; None where the file does not tell."""
    found = graph.file.settings.get("nncf/version")
    return f"nncf {found}" if found else None


def marks_of(graph: OpenVINOGraph) -> Iterator[str]:
    """What tells the tool that quantized a model."""
    yield from sorted(f"rt_info {key}" for key in graph.file.settings if key.startswith("nncf/"))


def kernels_of_session(graph: OpenVINOGraph, session: Session) -> dict[str, Kernel]:
    """How the CPU plugin computes each tensor, by the kernels of the compiled model.

    A kernel stands for all operators that were fused into it.
    """
    kinds = {
        name: Kernel.INTEGER if primitive.lower().endswith(_INTEGER_KERNELS) else Kernel.FLOAT
        for names, primitive in session.list_kernels()
        for name in names
    }
    operators = graph.file.model.get_ordered_ops()
    return {
        tensor: kinds[op.get_friendly_name()]
        for tensor, place in graph.places.items()
        if (op := operators[place.operator]).get_friendly_name() in kinds and op.get_type_name() not in _ROUNDERS
    }
