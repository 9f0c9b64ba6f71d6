"""Which layer of the float model a name in a report means."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import onnx

from ..cases import Built
from .row import KEPT, NAMED_PLACES, Said, budget_of, causes_of

#: Operators that a toolchain runs as one with the layer in front, so that both have one range.
FUSED = frozenset({"Relu", "Clip"})


class LayerNames:
    """Layers by the names that reports use: of a node, of the values that it makes, and of its constants.

    An activation that is fused with the layer in front counts as that layer. A network input stands for itself.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        """Read the names of a float model."""
        constants = {tensor.name for tensor in model.graph.initializer}
        inputs = {each.name for each in model.graph.input} - constants
        self._layer = {name: name for name in inputs}
        readers = Counter(name for node in model.graph.node for name in node.input)
        for node in model.graph.node:
            layer = node.name or node.output[0]
            source = next(iter(node.input), "")
            if node.op_type in FUSED and readers[source] == 1 and source not in inputs:
                layer = self._layer.get(source, layer)
            for name in (node.name or layer, *node.output, *(name for name in node.input if name in constants)):
                self._layer.setdefault(name, layer)

    def of(self, names: Iterable[str]) -> tuple[str, ...]:
        """Layers in the order of the names, each once; names of data sets and outputs' columns are left out."""
        return tuple(dict.fromkeys(self._layer[name] for name in names if name in self._layer))

    def meant(self, names: Iterable[str]) -> tuple[str, ...]:
        """The same, where a name that is no layer's stays as it is."""
        return tuple(dict.fromkeys(self._layer.get(name, name) for name in names))

    def named(self, report: Mapping[str, Any]) -> tuple[str, ...]:
        """Layers of ``report.json`` in the order in which a reader meets them."""
        budget: Mapping[str, Any] = report.get("loss_budget") or {}
        subjects = [name for cause in report["causes"] for name in cause["subjects"]]
        places = [name for line in budget.get("lines", ()) for name in line["places"][:NAMED_PLACES]]
        return self.of([*subjects, *places])[:KEPT]


def said_of(report: dict[str, Any], names: LayerNames) -> Said:
    """What ``report.json`` says, of any version."""
    budget, undecided = report.get("loss_budget"), report.get("undecided")
    path, proof = report.get("loss_path") or {}, report.get("proof") or {}
    return Said(
        report["verdict"],
        causes_of(report["causes"]),
        names.named(report),
        budget_of(budget) if budget else None,
        undecided_db=undecided["gain_db"] if undecided else None,
        path=tuple((step["words"], step["share"]) for step in path.get("steps", ())),
        trials=tuple((row["trial"]["kind"], row["trial"]["gain_db"]) for row in proof.get("trials", ())),
    )


def layer_names(built: Built) -> LayerNames:
    """Names of the float model that the reader has."""
    return LayerNames(onnx.load(str(built.folder / "float.onnx"), load_external_data=False))
