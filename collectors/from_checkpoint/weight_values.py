"""Weights of one checkpoint as numbers, whatever way they are stored: whole tensors or some rows."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from quantmedic.collectors.from_checkpoint.layers.weight_slices import slices
from quantmedic.collectors.from_checkpoint.packed.packed_layer import PackedLayer, UnreadableLayerError, restore_order
from quantmedic.collectors.from_checkpoint.safetensors_file import Checkpoint, Rows, Values
from quantmedic.engine.errors import ModelError

#: Prefixes that tools put before the names of all tensors, or leave out.
_PREFIXES = ("model.", "transformer.", "module.", "language_model.", "base_model.model.", "_orig_mod.", "model.model.")


def match_names(wanted: Collection[str], own: Iterable[str]) -> dict[str, str]:
    """Own names by the names that are wanted: as they are, or with a prefix of a tool more or less."""
    own = list(own)
    choices = [{name: name for name in own}]
    for prefix in _PREFIXES:
        choices.append({name.removeprefix(prefix): name for name in own})
        choices.append({prefix + name: name for name in own})
    return max(choices, key=lambda names: sum(name in wanted for name in names))


@dataclass(frozen=True)
class Opened(Checkpoint):
    """A checkpoint whose quantized layers are known.

    Attributes:
        layers: Those whose codes are understood, by name.
        refused: Why others cannot be read, by name.
    """

    layers: Mapping[str, PackedLayer] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def names_of_codes(self) -> list[str]:
        """What the weights of all quantized layers are called."""
        return [f"{base}.weight" if base else "weight" for base in (*self.layers, *self.refused)]

    def layer_of(self, name: str) -> PackedLayer | str | None:
        """The quantized layer whose weight has this name, or why it cannot be read; None where there is none."""
        if not name.endswith("weight"):
            return None
        base = name.removesuffix("weight").removesuffix(".")
        return self.refused.get(base) or self.layers.get(base)


@dataclass(frozen=True)
class WeightValues:
    """Tensors of a checkpoint by the names that an architecture gives them.

    Attributes:
        checkpoint: Where they are stored.
        names: Names in the checkpoint by those of the architecture.
        others: Prefixes of the names of parts whose tensors are those of another checkpoint, and these.
    """

    checkpoint: Opened
    names: Mapping[str, str]
    others: "tuple[tuple[str, ...], WeightValues] | None" = None

    def with_parts(self, prefixes: Iterable[str], others: "WeightValues") -> "WeightValues":
        """The same, but for parts of the network whose names begin so, which are those of another checkpoint."""
        return replace(self, others=(tuple(prefixes), others))

    def load(self, name: str, shape: tuple[int, ...], rows: Rows | None = None) -> Values | None:
        """Some rows of a tensor as float32 numbers; None where the checkpoint lacks it.

        Args:
            name: As the architecture calls it.
            shape: As the architecture has it; a matrix may be stored the other way round.
            rows: Of the first axis, a span or their places; all by default.

        Raises:
            ModelError: The tensor has another shape, or cannot be read.
        """
        if self.others is not None and name.startswith(self.others[0]):
            return self.others[1].load(name, shape, rows)
        own = self.names.get(name)
        if own is None:
            return None
        layer = self.checkpoint.layer_of(own)
        if isinstance(layer, str):
            raise self._unreadable(own, layer)
        stored = self.checkpoint.tensors[own].shape if layer is None else layer.shape
        span = slice(0, shape[0] if shape else 1) if rows is None else rows
        if stored == shape:
            return self._rows(own, layer, span) if shape else self.checkpoint.tensors[own].floats()
        if len(shape) == 2 and stored == shape[::-1]:
            return np.ascontiguousarray(self._rows(own, layer, slice(0, stored[0])).T[span])
        raise ModelError(
            "a tensor has another shape than config.json says",
            where=[f"file    {self.checkpoint.path}", f"tensor  {own}  {list(stored)}", f"config  {list(shape)}"],
            help="the config may be of another model: put the one beside it that the weights were saved with",
        )

    def _rows(self, name: str, layer: PackedLayer | None, rows: Rows) -> Values:
        if layer is None:
            return self.checkpoint.tensors[name].floats(rows)
        if not isinstance(rows, slice):
            return np.concatenate([self._rows(name, layer, slice(row, row + 1)) for row in rows.tolist()])
        first = rows.start // layer.unit * layer.unit
        parts = slices(rows.stop - first, layer.shape[1], layer.unit)
        try:
            found = [read_rows(layer, slice(first + part.start, first + part.stop)) for part in parts]
        except UnreadableLayerError as why:
            raise self._unreadable(name, str(why)) from why
        return np.concatenate(found)[rows.start - first :]

    def _unreadable(self, name: str, why: str) -> ModelError:
        return ModelError(
            "the weights of a layer cannot be read",
            where=[f"file   {self.checkpoint.path}", f"layer  {name}", f"cause  {why}"],
            help="--weights-only in place of --tokens compares the others without running the model",
        )


def read_rows(layer: PackedLayer, rows: slice) -> Values:
    """Some output channels as numbers, inputs in the order of the network."""
    block = layer.read(rows, layer.declared)
    return restore_order(block.values(), block.order)
