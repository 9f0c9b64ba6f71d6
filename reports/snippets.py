"""Remedies as text that can be copied: the names of this model's layers filled in."""

import json
import re
from collections.abc import Iterable, Sequence

from quantmedic.engine.diagnosis import CauseReport, LayerName
from quantmedic.engine.facts import ROLES
from quantmedic.reports.text import escaped

PLACEHOLDER = "[...]"
FIELD = re.compile(r"\{\{|\}\}|\{layers\}|\{tensors\}|\{group\}")
TOOLCHAIN_NAMES = {"onnxruntime": "ONNX Runtime"}
TOOLCHAIN_ALIASES = {"onnx.quantize": "onnxruntime"}


def render_snippet(code: str, layers: Iterable[str], tensors: Iterable[str], group: Iterable[str] = ()) -> str:
    """Fill ``{layers}``, ``{tensors}`` and ``{group}`` with lists of names; ``{{`` and ``}}`` are braces.

    The group is the layers and what feeds them.

    Any other brace stays as it is, so that a snippet of a user's rule cannot fail or read attributes.
    """
    lists = {"{layers}": layers, "{tensors}": tensors, "{group}": group}
    filled = {"{{": "{", "}}": "}"} | {field: name_list(names) for field, names in lists.items()}
    return FIELD.sub(lambda match: filled[match[0]], code.strip("\n"))


def name_list(names: Iterable[str]) -> str:
    """Names as a list that Python, JSON and YAML read alike; a placeholder where there are none."""
    quoted = [quote(name) for name in names]
    return f"[{', '.join(quoted)}]" if quoted else PLACEHOLDER


def quote(name: str) -> str:
    """A name as a double-quoted literal, exact, without any character that markup or terminals act upon."""
    text = json.dumps(name, ensure_ascii=False)
    return "".join(c if c.isprintable() and c not in "<>&`" else escaped(c) for c in text)


def layer_names(cause: CauseReport) -> tuple[str, ...]:
    """Names for options of a toolchain: toolchains read the float model."""
    return _names(cause.layers)


def group_names(cause: CauseReport) -> tuple[str, ...]:
    """The same with the layers that feed them."""
    return _names((*cause.layers, *cause.feeders))


def _names(layers: Iterable[LayerName]) -> tuple[str, ...]:
    names = (layer.float_name or layer.quantized_name for layer in layers)
    return tuple(name for name in names if name)


def tensor_names(cause: CauseReport) -> tuple[str, ...]:
    """Names of the tensors concerned; of a layer's output only the layer is known, and this is said."""
    known = {name for layer in cause.layers for name in (layer.float_name, layer.quantized_name)}
    outputs = tuple(f"output of {name}" for name in layer_names(cause))
    skipped = {"model", *ROLES}
    others = (s for s in cause.subjects if s not in known | skipped and not _operand_of(s, known))
    return outputs + tuple(others)


def preferred(toolchains: Sequence[str], toolchain: str | None) -> int:
    """Place of the toolchain that quantized the model among those offered, else the first."""
    wanted = _key(toolchain or "")
    wanted = TOOLCHAIN_ALIASES.get(wanted, wanted)
    for place, offered in enumerate(toolchains):
        key = _key(offered)
        if wanted and (key in wanted or wanted in key):
            return place
    return 0


def _operand_of(subject: str, layers: set[str | None]) -> bool:
    """True for ``layer[2]``, an operand of a layer in the list."""
    return subject.endswith("]") and subject.rpartition("[")[0] in layers


def _key(toolchain: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", toolchain.lower())
