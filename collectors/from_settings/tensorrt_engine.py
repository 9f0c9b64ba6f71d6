"""Layers of a TensorRT engine, as its inspector writes them: which nodes each kernel computes, and with which type.

``IEngineInspector.get_engine_information(JSON)`` and ``trtexec --exportLayerInfo`` write an object with ``Layers``, and
``Bindings`` beside it. A layer of an engine that was built with detailed profiling verbosity is an object with name,
type, inputs, outputs, kernel and metadata; of others it is its name alone. In the documented form and that of public
files: no engine is built here.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from quantmedic.collectors.toolchain_files.formats import Format, Imported
from quantmedic.collectors.toolchain_files.settings_files import read_json
from quantmedic.collectors.toolchain_files.values import table
from quantmedic.engine.case.facts import ReportedFacts
from quantmedic.engine.errors import DataError

#: How to build an engine whose inspector says more than names.
DETAILED = "build the engine with trtexec --profilingVerbosity=detailed (ProfilingVerbosity.DETAILED)"
#: Our types by the words of ``Format/Datatype``, old and new; the first that is found stands.
_TYPES = {
    "int8": r"int8|i8",
    "fp8": r"fp8|e4m3|e5m2",
    "int4": r"int4",
    "fp4": r"fp4|e2m1",
    "bfloat16": r"bf16|bfloat16",
    "half": r"half|fp16|f16",
    "float": r"float|fp32|f32|tf32",
}
_LOW = ("int8", "fp8", "int4", "fp4")
#: Types of both operands of a kernel, as its name has them: ``_i8i8_i8i32_``, ``_f16f16_``, ``_e4m3bf16_``.
_OPERANDS = re.compile(r"_(i8|s8|u8|e4m3|e5m2|e2m1|bf16|f16|f32)(?=(?:i8|s8|u8|e4m3|e5m2|e2m1|bf16|f16|f32)_)")
#: Kinds of layers, or beginnings of the names of kernels, that compute products.
_COMPUTES = re.compile(r"conv|gemm|matmul|matrix|fully|xmma|mha", re.IGNORECASE)
#: Layers in which others are hidden: their inputs and outputs do not tell what is computed inside.
_BLOCK = "{ForeignNode["
#: Around pointwise operators that one kernel computes.
_WRAPPER = "PWN("
_COPY = re.compile(r"Reformatting CopyNode for (?:Input|Output) Tensor \d+ (?:to|from) (?P<rest>.+)")
_NODE = re.compile(r"\[ONNX Layer: (?P<name>.+)\]", re.DOTALL)
#: Between the entries of ``Metadata``, and between the parts of a name.
_ENTRIES = re.compile(r"[\x1e\x1f]|(?<=\])\s*(?=\[ONNX Layer: )")
_PARTS = re.compile(r" \+ | \|\| ")
#: Parts of names that are quantizers and not layers.
_QUANTIZER = re.compile(r"quantizelinear|_quantize_scale_node$", re.IGNORECASE)
#: Layers of one kernel that are kept.
_FUSED = 8


@dataclass(frozen=True)
class _Kernel:
    """One layer of the engine.

    Attributes:
        nodes: Names of the ONNX nodes that it computes, without quantizers.
        kind: Its ``LayerType``; empty where it is not told.
        dtype: Type that it computes with; None where that is not told.
        tactic: Name of the kernel; None where it is not told.
        copied: Whether it only moves values, for the nodes.
        hides: Whether other layers are hidden in it.
        copies: Layers that only move values for one of its nodes, at most over the nodes.
    """

    nodes: tuple[str, ...]
    kind: str = ""
    dtype: str | None = None
    tactic: str | None = None
    copied: bool = False
    hides: bool = False
    copies: int = 0

    @property
    def computes(self) -> bool:
        return _COMPUTES.search(f"{self.kind} {self.tactic or ''}") is not None

    @property
    def device(self) -> str:
        return "DLA" if "dla" in self.kind.lower() else "GPU"


def _is_engine(name: str, text: str) -> bool:
    return re.match(r'\s*\{\s*"Layers"\s*:\s*\[', text) is not None


def _read_engine(path: Path) -> Imported:
    layers = table(read_json(path)).get("Layers")
    kernels = [kernel for each in layers if (kernel := _read_kernel(each))] if isinstance(layers, list) else []
    if not any(kernel.nodes for kernel in kernels):
        raise DataError(
            "the inspector of the engine names no layers", where=str(path), help=f"{DETAILED} and export its layers"
        )
    copies = Counter(name for kernel in kernels if kernel.copied for name in kernel.nodes)
    counted = (replace(own, copies=max((copies[name] for name in own.nodes), default=0)) for own in kernels)
    found = _kernels_by_node(list(counted))
    return Imported(
        layers={name: _reported_facts(kernel) for name, kernel in found.items()},
        layer_types={name: kernel.kind for name, kernel in found.items() if kernel.kind},
        notices=tuple(_engine_notices(kernels)),
    )


def _read_kernel(layer: object) -> _Kernel | None:
    """None for what is neither a name nor a table with one."""
    if isinstance(layer, str):
        return _Kernel(_nodes_of_name(layer), copied=_COPY.search(layer) is not None, hides=_BLOCK in layer)
    own = table(layer)
    name, tactic, kind = own.get("Name"), own.get("TacticName"), own.get("LayerType")
    if not isinstance(name, str):
        return None
    metadata = own.get("Metadata")
    nodes = _nodes_of_metadata(metadata) if isinstance(metadata, str) else ()
    hides = _BLOCK in name
    copied = kind in ("Reformat", "NoOp") or _COPY.search(name) is not None
    return _Kernel(
        nodes=nodes or _nodes_of_name(name),
        kind=kind if isinstance(kind, str) else "",
        dtype=None if copied or hides else _computed_type(own),
        tactic=tactic if isinstance(tactic, str) and tactic else None,
        copied=copied,
        hides=hides,
    )


def _nodes_of_metadata(text: str) -> tuple[str, ...]:
    found = [match["name"] for entry in _ENTRIES.split(text) if (match := _NODE.fullmatch(entry.strip()))]
    return tuple(dict.fromkeys(name for name in found if not _QUANTIZER.search(name)))


def _nodes_of_name(name: str) -> tuple[str, ...]:
    """Nodes that the name of a layer is joined from: ``a + b``, ``a || b``, ``PWN(a)``, ``{ForeignNode[a...b]}``."""
    copy = _COPY.fullmatch(name)
    text = copy["rest"] if copy else name
    if _WRAPPER in text:
        text = text.replace(_WRAPPER, "").replace(")", "").replace(", ", " + ")
    found: dict[str, None] = {}
    for part in map(str.strip, _PARTS.split(text)):
        ends = part.removeprefix(_BLOCK).removesuffix("]}").partition("...")[::2] if _BLOCK in part else (part,)
        found |= dict.fromkeys(ends)
    return tuple(name for name in found if name and not _QUANTIZER.search(name))


def _computed_type(own: Mapping[str, object]) -> str | None:
    """What the first input is stored as; a kernel that reads a wider type may say that it multiplies a narrow one."""
    tactic = own.get("TacticName")
    operands = _OPERANDS.search(tactic) if isinstance(tactic, str) else None
    by_tactic = None if operands is None else _type_word(operands[1].replace("s8", "i8").replace("u8", "i8"))
    read = next(_stored_types(own.get("Inputs")), None)
    if read in _LOW or by_tactic is None:
        return read or next(_stored_types(own.get("Outputs")), None)
    return by_tactic if by_tactic in _LOW or read is None else read


def _stored_types(tensors: object) -> Iterator[str]:
    for each in tensors if isinstance(tensors, list) else []:
        text = table(each).get("Format/Datatype")
        if isinstance(text, str) and (found := _type_word(text)) is not None:
            yield found


def _type_word(text: str) -> str | None:
    return next((own for own, words in _TYPES.items() if re.search(rf"\b({words})\b", text, re.IGNORECASE)), None)


def _kernels_by_node(kernels: list[_Kernel]) -> dict[str, _Kernel]:
    """The kernel that computes each node: one that computes products before others, and moves of values last."""
    found: dict[str, _Kernel] = {}
    for kernel in sorted(kernels, key=lambda own: (own.copied, not own.computes)):
        for name in kernel.nodes:
            found.setdefault(name, kernel)
    order = dict.fromkeys(name for kernel in kernels for name in kernel.nodes)
    return {name: found[name] for name in order}


def _reported_facts(kernel: _Kernel) -> ReportedFacts:
    return ReportedFacts(
        device=kernel.device if kernel.kind and not kernel.copied else None,
        dtype=kernel.dtype,
        kernel=kernel.tactic,
        fused=None if kernel.copied else kernel.nodes[:_FUSED],
        reformats=kernel.copies,
    )


def _engine_notices(kernels: list[_Kernel]) -> Iterator[str]:
    if not any(kernel.kind for kernel in kernels):
        yield f"the file holds names of layers only, and no types: {DETAILED}"
    hidden = [kernel for kernel in kernels if kernel.hides]
    if hidden:
        ends = "...".join(hidden[0].nodes)
        yield f"blocks that do not tell their layers and types: {len(hidden)}, first {ends}; newer releases tell them"


FORMATS = (Format("TensorRT engine layers", "NVIDIA ModelOpt", _is_engine, _read_engine),)
