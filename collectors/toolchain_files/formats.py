"""Known file formats, and which of them a file has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quantmedic.collectors.extensions import Kind, refuse_broken
from quantmedic.collectors.toolchain_files.settings_files import first_text
from quantmedic.engine.case.facts import RecordedFacts, ReportedFacts, SearchFacts, SettingsFacts
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
class RunSettings:
    """Settings of a run: from the toolchain's own configuration where it was given, else from its log.

    ``logs`` are what the toolchain printed, as text files; ``notice`` says why the log folder is not used.
    """

    settings: SettingsFacts
    search: SearchFacts
    logs: tuple[Path, ...] = ()
    notice: str | None = None


@dataclass(frozen=True)
class Format:
    """A file format; an entry point of the group ``quantmedic.formats`` gives it.

    Attributes:
        name: As a report names it, such as ``Horizon configuration``.
        toolchain: Its toolchain as reports name it, such as ``AIMET``: a title or another name of toolchains.yaml.
        recognizes: Whether a file has it, by its name and its first 64 kB as text.
        lists_all: It lists every activation that gets a grid: one that it lacks has none.
        read: Reads the file; raises ``DataError`` with file, place and next step where it is damaged.
        is_folder: It is a folder, which is recognized by its name and an empty text.
        read_run: Reads what the toolchain holds in memory, from the quantized model, its configuration and the folder
            that it logged to, of which any may be None; None: nothing.
    """

    name: str
    toolchain: str
    recognizes: Callable[[str, str], bool]
    read: Callable[[Path], Imported]
    lists_all: bool = False
    is_folder: bool = False
    read_run: Callable[[object, object, str | Path | None], RunSettings] | None = None


FORMATS: Kind[Format] = Kind("quantmedic.formats", Format)


def recognise_format(path: Path) -> Format:
    """The format of a file or folder.

    Raises:
        DataError: It cannot be read, or its format is not known.
        QuantmedicError: Nothing recognizes it, and a format that may cannot be loaded.
    """
    is_folder = path.is_dir()
    text = "" if is_folder else first_text(path)
    for each in FORMATS:
        if each.is_folder == is_folder and each.recognizes(path.name, text):
            return each
    refuse_broken(str(path), FORMATS)
    raise DataError(
        "unrecognized file format",
        where=str(path),
        help=f"known formats: {', '.join(dict.fromkeys(each.name for each in FORMATS))}",
    )
