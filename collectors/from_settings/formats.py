"""Known file formats, and which of them a file has."""

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path

from quantmedic.collectors import from_settings
from quantmedic.collectors.from_settings.settings_files import first_text
from quantmedic.engine.case.facts import RecordedFacts, ReportedFacts, SettingsFacts
from quantmedic.engine.errors import DataError


@dataclass(frozen=True)
class Requests:
    """What a configuration asks for by name.

    Attributes:
        floats: Layers that are to stay in float.
        layers: Layers of which anything else is asked.
        bits: Bits of activations and weights.
        weight_bits: Bits of weights that it records as chosen. None of these names has to be there: such files may be
            written before layers are joined.
        parts: Texts of which each is a part of the name of what it is meant for.
        only_types: The only operator types that are to be quantized; None for all.
    """

    floats: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    bits: Mapping[str, int] = field(default_factory=dict)
    weight_bits: Mapping[str, int] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    only_types: tuple[str, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All names that have to be there in full, each once."""
        found = dict.fromkeys((*self.floats, *self.layers, *self.bits))
        return tuple(name for name in found if name not in self.parts)

    def bits_of_weights(self, name: str | None) -> int | None:
        """Bits of a weights tensor, whether they are asked for or recorded."""
        return self.bits.get(name or "", self.weight_bits.get(name or ""))


@dataclass(frozen=True)
class Imported:
    """What one file says, in our names, units and directions.

    Attributes:
        settings: Options in force.
        tensors: Thresholds and encodings by the name of the tensor in the file.
        inputs: Thresholds of what a layer reads first, by the name of the layer: some tools list them so.
        layers: Figures that the tool measured, by the name of the layer in the file, in its order.
        floats: Names of tensors that it lists as float, or in a way that cannot be read.
        parameters: Grids of weights and biases that have one scale, by name.
        layer_types: Operator types of these layers, where the file has them.
        requests: What it asks for by name, and bits that it records.
        unknown: Keys that the toolchain does not have, each with the nearest known one if any.
        notices: What of the file could not be used, and why.
    """

    settings: SettingsFacts = field(default_factory=SettingsFacts)
    tensors: Mapping[str, RecordedFacts] = field(default_factory=dict)
    inputs: Mapping[str, RecordedFacts] = field(default_factory=dict)
    layers: Mapping[str, ReportedFacts] = field(default_factory=dict)
    layer_types: Mapping[str, str] = field(default_factory=dict)
    floats: tuple[str, ...] = ()
    parameters: Mapping[str, RecordedFacts] = field(default_factory=dict)
    requests: Requests = field(default_factory=Requests)
    unknown: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Format:
    """A file format.

    Attributes:
        name: As a report names it, such as ``Horizon configuration``.
        toolchain: Its toolchain by the name in rules/toolchains.yaml.
        recognizes: Whether a file has it, by its name and its first 64 kB as text.
        lists_all: It lists every activation that gets a grid: one that it lacks has none.
        read: Reads the file; raises ``DataError`` with file, place and next step where it is damaged.
    """

    name: str
    toolchain: str
    recognizes: Callable[[str, str], bool]
    read: Callable[[Path], Imported]
    lists_all: bool = False


@cache
def formats() -> tuple[Format, ...]:
    """All formats, in the order of their modules' names."""
    modules = sorted(module.name for module in pkgutil.iter_modules(from_settings.__path__))
    found = [import_module(f"{from_settings.__name__}.{name}") for name in modules]
    return tuple(each for module in found for each in getattr(module, "FORMATS", ()))


def recognise_format(path: Path) -> Format:
    """The format of a file.

    Raises:
        DataError: It cannot be read, or its format is not known.
    """
    text = first_text(path)
    for each in formats():
        if each.recognizes(path.name, text):
            return each
    raise DataError(
        "unrecognized file format",
        where=str(path),
        help=f"known formats: {', '.join(dict.fromkeys(each.name for each in formats()))}",
    )
