"""An OpenVINO IR as its two files hold it, checked before OpenVINO reads it.

The .xml file is parsed here first, without entities and without document types, and every constant must lie inside the
.bin file beside it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from xml.parsers import expat

import numpy as np

from quantmedic.collectors.data.messages import error_line
from quantmedic.collectors.native.runs import run_native
from quantmedic.engine.errors import ModelError
from quantmedic.engine.input_files import leads_out, read_bytes
from quantmedic.engine.offline import offline
from quantmedic.engine.reading_limits import DEPTH, IR_BYTES

if TYPE_CHECKING:
    import openvino

#: Versions of the format that are read; OpenVINO 2022 and later write 11.
VERSIONS = (10, 11)
_AGAIN = "write both files again with openvino.save_model, or fetch them once more"


@dataclass(frozen=True)
class IrModel:
    """An IR: two files, and what OpenVINO read of them.

    Attributes:
        path: The .xml file.
        weights: The .bin file; None where the model has no constants and there is none.
        xml: What the .xml file holds.
        content: What the .bin file holds.
        model: OpenVINO's model, which nothing here changes.
        settings: What the tools that wrote it left in ``rt_info``: values by the path of their elements, with slashes.
    """

    path: Path
    weights: Path | None
    xml: bytes = field(repr=False)
    content: bytes = field(repr=False)
    model: "openvino.Model"
    settings: Mapping[str, str]

    @property
    def files(self) -> list[Path]:
        """Its files."""
        return [self.path, *([self.weights] if self.weights is not None else [])]


def read_ir(path: Path) -> IrModel:
    """Read and check both files of a model.

    Raises:
        ModelError: A file is missing or damaged, the format is newer, OpenVINO refuses it or is not installed.
    """
    xml = _read_ir_file(path)
    scan = _scan(path, xml)
    if scan.version not in VERSIONS:
        raise ModelError(
            f"this is an OpenVINO IR of version {scan.version}; versions {VERSIONS[0]} to {VERSIONS[1]} are read",
            where=str(path),
            help="write it again with openvino.save_model of OpenVINO 2022.1 or later",
        )
    weights, content = _read_weights(path, scan)
    return IrModel(path, weights, xml, content, _load(path, xml, content), scan.settings)


def import_openvino(where: Path) -> "type[openvino.Core]":
    """The class ``openvino.Core``.

    Raises:
        ModelError: The package is not installed, or cannot be loaded.
    """
    try:
        with offline():
            from openvino import Core  # an optional package
    except ImportError as error:
        raise ModelError(
            "OpenVINO models need the package openvino", where=str(where), help="pip install 'quantmedic[openvino]'"
        ) from error
    return Core


def _read_ir_file(path: Path) -> bytes:
    try:
        return read_bytes(path, IR_BYTES)
    except OSError as error:
        raise ModelError(
            f"cannot read this model: {error.strerror or error}", where=str(path), help="check the path"
        ) from error


def _read_weights(path: Path, scan: "_Scan") -> tuple[Path | None, bytes]:
    weights = path.with_suffix(".bin")
    if not scan.needed and not weights.is_file():
        return None, b""
    if not weights.is_file():
        raise ModelError(
            "the weights of this OpenVINO model are missing",
            where=f"{weights}: no such file, and {path.name} reads {scan.needed} bytes of it",
            help=f"put {weights.name} beside {path.name}: openvino.save_model writes both",
        )
    if leads_out(weights, path.resolve().parent) and leads_out(weights, path.parent):
        raise ModelError(
            "the weights of this OpenVINO model lie outside its folder",
            where=str(weights),
            help=f"put the file itself beside {path.name}, not a link",
        )
    content = _read_ir_file(weights)
    if len(content) < scan.needed:
        raise ModelError(
            "the weights of this OpenVINO model are cut off",
            where=f"{weights}: {len(content)} bytes, and {scan.last} ends at byte {scan.needed}",
            help=_AGAIN,
        )
    return weights, content


def _load(path: Path, xml: bytes, content: bytes) -> "openvino.Model":
    core = import_openvino(path)
    from openvino import Tensor  # an optional package

    def load() -> "openvino.Model":
        numbers = np.frombuffer(content, np.uint8) if content else np.zeros(1, np.uint8)
        return core().read_model(model=xml, weights=Tensor(np.array(numbers)))

    try:
        return run_native(load, f"{path}: OpenVINO reads it")
    except ModelError:
        raise
    except (RuntimeError, ValueError, TypeError) as error:
        raise ModelError(
            "OpenVINO cannot read the model",
            where=f"{path}: {telling_line(error)}",
            help="was it written by a newer OpenVINO? pip install -U openvino, or write it again",
        ) from error


class _Damaged(Exception):
    """What the scan refuses, in words."""


@dataclass
class _Scan:
    """What is found in the .xml file: version, the end of the last constant, settings of the tools."""

    version: int = 0
    needed: int = 0
    last: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    _path: list[str] = field(default_factory=list)
    _layer: Mapping[str, str] = field(default_factory=dict)

    def open(self, name: str, attributes: dict[str, str]) -> None:
        if not self._path:
            if name != "net":
                raise _Damaged(f"its root is {name}, not net")
            self.version = _whole(attributes.get("version", ""), "version")
        self._path.append(name)
        DEPTH.check(len(self._path), "elements in elements")
        if name == "layer":
            self._layer = attributes
        elif name == "data" and "offset" in attributes and "size" in attributes:
            self._constant(attributes)
        elif "value" in attributes and "rt_info" in self._path[:2]:
            self.settings["/".join(self._path[2:])] = attributes["value"]

    def close(self, _: str) -> None:
        self._path.pop()

    def _constant(self, attributes: Mapping[str, str]) -> None:
        end = sum(_whole(attributes[key], key) for key in ("offset", "size"))
        if end > self.needed:
            self.needed, self.last = end, self._layer.get("name", "a constant")


def _whole(text: str, name: str) -> int:
    """A number that is not negative.

    Raises:
        _Damaged: It is none.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise _Damaged(f"{name} is {text[:40]!r}, not a whole number")
    return int(text)


def _scan(path: Path, xml: bytes) -> _Scan:
    """Parse the .xml file.

    Raises:
        ModelError: It is no XML, has a document type, or is no IR.
    """
    scan, parser = _Scan(), expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = scan.open, scan.close
    parser.StartDoctypeDeclHandler = _refuse("it declares a document type, which no IR does")
    parser.EntityDeclHandler = _refuse("it declares an entity, which no IR does")
    try:
        parser.Parse(xml, True)
    except (expat.ExpatError, _Damaged) as error:
        raise ModelError("this OpenVINO model is damaged", where=f"{path}: {error}", help=_AGAIN) from error
    return scan


def _refuse(why: str) -> Callable[..., None]:
    def handle(*_: object) -> None:
        raise _Damaged(why)

    return handle


def telling_line(error: BaseException) -> str:
    """What OpenVINO says, behind the lines that name its own source files."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("Exception from ")]
    return lines[0].strip()[:300] if lines else error_line(error)
