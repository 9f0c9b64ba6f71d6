"""Data sets: read, checked against the model's inputs, and handed out in batches, never all in memory at once.

A source yields raw pieces of any size (`_Source`), an input checks and converts them (`_Input`), and a `Dataset` cuts
them into batches.
"""

import csv
import hashlib
import importlib
import math
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain, groupby
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.preprocessing import (
    TO_OTHER_LAYOUT,
    Layout,
    Preprocessing,
    layout_of,
    read_image,
)
from quantmedic.engine.errors import DataError, QuantmedicError
from quantmedic.engine.facts import Role

Array = NDArray[Any]
T = TypeVar("T")

IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
LABELS = "labels"
_NOTHING_DECLARED = Preprocessing()
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_HASH_BLOCK = 1 << 20


@dataclass(frozen=True)
class InputSpec:
    """One input of a model: ``None`` in the shape is a dynamic axis, axis 0 counts samples."""

    name: str
    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Batch:
    """Samples by input name, every array ``[samples, ...]``, and their labels if there are any."""

    inputs: dict[str, Array]
    labels: Array | None = None

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(next(iter(self.inputs.values())))

    def part(self, start: int, stop: int) -> "Batch":
        """Samples ``start`` to ``stop``, as views."""
        labels = None if self.labels is None else self.labels[start:stop]
        return Batch({name: array[start:stop] for name, array in self.inputs.items()}, labels)


def open_dataset(
    source: object,
    inputs: Sequence[InputSpec],
    *,
    preprocessing: Preprocessing = _NOTHING_DECLARED,
    labels: "str | Path | Array | None" = None,
    role: Role,
) -> "Dataset":
    """Open a data set and check as much of it as can be checked without reading it all.

    Args:
        source: Path of an ``.npz`` or ``.npy`` file or of a folder of ``.npy`` or image files; ``module:function``,
            looked up in the current directory first; an array, a mapping of input names to arrays; or a callable or
            iterable that yields batches. A batch is an array, a mapping, or a list or tuple in input order; labelled
            batches are pairs ``(inputs, labels)``. Two arrays are the two inputs if the model has two.
        inputs: The model's inputs.
        preprocessing: What the user declared for this data set.
        labels: File (``.npy``, ``.npz``, or ``.txt`` / ``.csv`` with one per line) or array; wins over the source's.
        role: Which of the two data sets this is; error messages name it.

    Returns:
        The opened data set.

    Raises:
        DataError: The data cannot be read or do not fit the model; the message names file, array and next step.
    """
    if not inputs:
        raise ValueError("a model without inputs has no data set")
    opened = _open_source(source, inputs, preprocessing, role)
    if labels is None:
        return Dataset(opened, inputs, preprocessing, None, role)
    return Dataset(opened, inputs, preprocessing, _read_labels(labels), role)


class Dataset:
    """An opened data set.

    Attributes:
        role: Which of the two sets it is.
        origin: Short name of the source, without its folder.
        samples: Number of samples in the source; ``None`` if only a full pass tells.
        labelled: Whether batches carry labels.
        notices: What the user should know although it is no error; grows while batches are read.
    """

    def __init__(
        self,
        source: "_Source",
        inputs: Sequence[InputSpec],
        preprocessing: Preprocessing,
        labels: "_Labels | None",
        role: Role,
    ):
        self.role: Role = role
        self.origin = source.origin
        self.samples = source.samples
        self.labelled = labels is not None or source.labelled
        self.notices = [*source.notices]
        self._source = source
        self._labels = labels
        self._inputs = {spec.name: _Input.of(spec, preprocessing, source, role) for spec in inputs}
        self._fixed = _fixed_batch(inputs)
        self._note_what_is_not_applied(preprocessing)
        for name, found in source.preview.items():
            self._inputs[name].check(found)
        self._check_counts()

    def batches(self, size: int, limit: int | None = None) -> Iterator[Batch]:
        """One pass over the samples, in order, converted to what the model takes.

        Args:
            size: Samples per batch; the last batch, or one before a change of shape along a dynamic axis, may be
                smaller. A model with a fixed batch axis gets batches of exactly that size.
            limit: Samples to read at most.

        Raises:
            DataError: A later sample does not fit, or there is no sample at all.
        """
        if size < 1 or (limit is not None and limit < 1):
            raise ValueError(f"size and limit must be positive: {size}, {limit}")
        size = self._fixed or size
        pieces = _limited(self._checked(size), limit)
        if self._labels is not None:
            pieces = self._with_labels(pieces, self._labels, limit)
        return self._cut_and_converted(pieces, size)

    def content_hash(self) -> str | None:
        """SHA-256 over the bytes of the source and its labels; ``None`` for functions, which have no content.

        Of a single file without a label file it is the file's own checksum.
        """
        blocks = self._source.content()
        if blocks is None:
            return None
        digest = hashlib.sha256()
        for block in chain(blocks, _array_content(LABELS, self._labels.values) if self._labels else ()):
            digest.update(block)
        return digest.hexdigest()

    def _checked(self, size: int) -> Iterator[Batch]:
        for piece in self._source.pieces(size):
            for name, array in piece.inputs.items():
                self._inputs[name].check(_Found(self.origin, piece.place or name, array.shape, array.dtype))
            yield piece

    def _with_labels(self, pieces: Iterator[Batch], labels: "_Labels", limit: int | None) -> Iterator[Batch]:
        """Labels of the separate file beside the samples; lengths are compared at the end of a full pass."""
        start = 0
        for piece in pieces:
            stop = start + piece.samples
            if stop > len(labels.values):
                raise _label_count_error(self.role, labels, self.origin, f"at least {stop}")
            yield Batch(piece.inputs, labels.values[start:stop])
            start = stop
        if start < len(labels.values) and (limit is None or start < limit):
            raise _label_count_error(self.role, labels, self.origin, str(start))

    def _cut_and_converted(self, pieces: Iterator[Batch], size: int) -> Iterator[Batch]:
        """Batches of ``size`` samples; pieces of different shape are not put into one batch."""
        yielded = dropped = 0
        for _, alike in groupby(pieces, _rows_alike):
            for batch in _cut(alike, size):
                if self._fixed in (None, batch.samples):
                    yielded += batch.samples
                    yield self._converted(batch)
                else:
                    dropped += batch.samples
        self._report_dropped(yielded, dropped)

    def _converted(self, batch: Batch) -> Batch:
        inputs = {name: port.convert(batch.inputs[name], self.origin) for name, port in self._inputs.items()}
        return Batch(inputs, batch.labels)

    def _report_dropped(self, yielded: int, dropped: int) -> None:
        if not yielded and not dropped:
            raise _no_samples(self.role, self.origin)
        if not yielded:
            raise self._too_few(dropped)
        if dropped:
            self._note(
                f"{self.role} data: {dropped} samples were left out, the model takes exactly {self._fixed} at a time"
            )

    def _note(self, text: str) -> None:
        if text not in self.notices:
            self.notices.append(text)

    def _note_what_is_not_applied(self, preprocessing: Preprocessing) -> None:
        if preprocessing.arithmetic and all(port.spec.dtype.kind != "f" for port in self._inputs.values()):
            self._note(f"{self.role} data: mean, std and scale were not applied, the model takes integers")
        if not self._source.is_images and (preprocessing.resize or preprocessing.channel_order):
            self._note(f"{self.role} data: resize and channel order were not applied, they concern image files only")
        if self._labels is not None and self._source.labelled:
            self._note(f"{self.role} data: the labels of {self._labels.where} were used, not those of {self.origin}")

    def _check_counts(self) -> None:
        if self.samples is None:
            return
        if self.samples == 0:
            raise _no_samples(self.role, self.origin)
        if self._fixed and self.samples < self._fixed:
            raise self._too_few(self.samples)
        if self._labels is not None and len(self._labels.values) != self.samples:
            raise _label_count_error(self.role, self._labels, self.origin, str(self.samples))

    def _too_few(self, samples: int) -> DataError:
        return DataError(
            f"{self.role} data have fewer samples than the model takes at once",
            where=[f"{self.origin}  {samples} samples", f"model  fixed batch of {self._fixed}"],
            help="give more samples, or export the models with a dynamic batch axis",
        )


def import_function(spec: str, what: str) -> Callable[..., Any]:
    """Import ``module:function``; the current directory comes first on the module path from then on.

    Args:
        spec: The text the user gave.
        what: What it is for, named in errors.

    Raises:
        DataError: The module fails to import or holds no such callable.
    """
    if not _FUNCTION.fullmatch(spec):
        raise DataError(f"{what} is not of the form module:function", where=spec, help="write for example loader:load")
    module_name, name = spec.split(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise DataError(
            f"the module of the {what} cannot be imported",
            where=[spec, f"cause  {type(error).__name__}: {error}"],
            help=f"run from the folder that holds the module, then try: python -c 'import {module_name}'",
        ) from error
    function: Any = getattr(module, name, None)
    if not callable(function):
        near = _did_you_mean(name, [key for key, value in vars(module).items() if callable(value)])
        raise DataError(f"the module of the {what} has no such function", where=f"{spec}{near}", help="name a function")
    imported: Callable[..., Any] = function
    return imported


# --- model inputs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Piece(Batch):
    """Samples as a source holds them, not yet checked."""

    place: str = ""
    """File or batch they come from, for error messages."""


@dataclass(frozen=True)
class _Found:
    """An array as it was found: where it stands and what it is, before a value is read."""

    file: str
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def where(self) -> tuple[str, str, str]:
        return self.file, self.name, f"{_shape_text(self.shape)} {self.dtype}"


@dataclass(frozen=True)
class _Input:
    """One model input: checks the arrays meant for it and brings them into its layout and type."""

    spec: InputSpec
    preprocessing: Preprocessing
    stored: Layout | None
    """Layout of the data as declared, or as image files have it."""
    preferred: Layout
    """Layout of the model where its shape leaves that open."""
    from_images: bool
    role: Role

    @classmethod
    def of(cls, spec: InputSpec, declared: Preprocessing, source: "_Source", role: Role) -> "_Input":
        if not spec.shape:
            raise DataError(
                "a model input has no sample axis",
                where=f"model  {spec.name}  ()",
                help="export the model with this input as a constant",
            )
        if spec.dtype.kind not in "fiub":
            raise DataError(
                "a model input takes a type that data sets cannot hold",
                where=f"model  {spec.name}  {spec.dtype}",
                help="export the model with float or integer inputs",
            )
        if source.is_images:
            return cls(spec, declared, "NHWC", declared.layout or "NCHW", True, role)
        return cls(spec, declared, declared.layout, "NCHW", False, role)

    def check(self, found: _Found) -> None:
        """Raise `DataError` unless the array's type and shape fit."""
        self._check_kind(found)
        if 0 in found.shape or not found.shape:
            raise self._no_values(found)
        permutation = self._permutation(found.shape)
        shape = found.shape if permutation is None else tuple(found.shape[i] for i in permutation)
        if not self._fits(shape):
            raise self._shape_error(found)

    def convert(self, array: Array, origin: str) -> Array:
        """Checked samples in the model's layout and type; the same memory if nothing is to do."""
        found = _Found(origin, self.spec.name, array.shape, array.dtype)
        if self.spec.dtype.kind != "f":
            self._check_range(array, found)
        elif self.preprocessing.arithmetic:
            layout = self.stored or layout_of(self.spec.shape) or layout_of(array.shape)
            try:
                array = replace(self.preprocessing, layout=layout).apply(array)
            except DataError as error:
                raise DataError(
                    f"{self.role} data: {error.message}",
                    where=["  ".join(found.where), *error.where],
                    help=error.help and error.help.replace("--layout ", f"--layout {self.role}="),
                ) from None
        permutation = self._permutation(array.shape)
        if permutation is not None:
            array = array.transpose(permutation)
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(array, self.spec.dtype)

    def _fits(self, shape: Sequence[int]) -> bool:
        """Whether all axes but the first agree."""
        pairs = zip(shape[1:], self.spec.shape[1:], strict=False)
        return len(shape) == len(self.spec.shape) and all(want in (None, have) for have, want in pairs)

    def _permutation(self, shape: Sequence[int]) -> tuple[int, ...] | None:
        """How to transpose stored arrays; ``None`` for not at all."""
        if self.stored is None or len(shape) != 4 or len(self.spec.shape) != 4:
            return None
        permutation = TO_OTHER_LAYOUT[self.stored]
        as_stored, transposed = self._fits(shape), self._fits([shape[i] for i in permutation])
        if as_stored != transposed:
            return permutation if transposed else None
        target = layout_of(self.spec.shape) or self.preferred
        return None if target == self.stored else permutation

    def _check_kind(self, found: _Found) -> None:
        have, want = found.dtype.kind, self.spec.dtype.kind
        if found.dtype.hasobject:
            raise _objects_refused(found)
        if have not in "fiub":
            raise self._type_error(found, "are not numbers", "save the array with a float or integer type")
        if have == "f" and want != "f":
            raise self._type_error(
                found, "are floats, the model takes integers", f"save the array as {self.spec.dtype}"
            )
        if have != "f" and want == "f" and not self.preprocessing.arithmetic:
            raise self._type_error(
                found,
                "are integers, the model takes floats, and no preprocessing is declared",
                f"pass --scale, --mean and --std as in training, for example --scale {self.role}=255 "
                f"(--scale {self.role}=1 hands the values over as they are), or save the preprocessed array as "
                f"{self.spec.dtype}",
            )

    def _check_range(self, array: Array, found: _Found) -> None:
        """Integers must arrive unchanged."""
        if np.can_cast(array.dtype, self.spec.dtype) or not array.size:
            return
        low, high = (0, 1) if self.spec.dtype.kind == "b" else _integer_range(self.spec.dtype)
        smallest, largest = int(array.min()), int(array.max())
        if smallest < low or largest > high:
            raise self._type_error(
                found,
                f"have values {smallest} to {largest}, which {self.spec.dtype} cannot hold",
                f"save values between {low} and {high}",
            )

    def _type_error(self, found: _Found, what: str, help: str) -> DataError:
        model = ("model", self.spec.name, f"{_shape_text(self.spec.shape)} {self.spec.dtype}")
        return DataError(f"{self.role} data {what}", where=_table(found.where, model), help=help)

    def _no_values(self, found: _Found) -> DataError:
        what = "have no sample axis" if not found.shape else "hold no samples" if not found.shape[0] else "are empty"
        return self._type_error(found, what, "axis 0 counts the samples; give at least one")

    def _shape_error(self, found: _Found) -> DataError:
        note, help = self._shape_advice(found.shape)
        model = ("model", self.spec.name, _shape_text(self.spec.shape))
        lines = _table((found.file, found.name, _shape_text(found.shape)), model)
        return DataError(
            f"{self.role} data do not fit the model input",
            where=[*lines, f"note: {note}"] if note else lines,
            help=help,
        )

    def _shape_advice(self, shape: tuple[int, ...]) -> tuple[str | None, str]:
        """What the shape looks like, and what to do about it."""
        want = self.spec.shape
        if len(shape) == len(want) - 1 and self._fits((1, *shape)):
            return "this looks like one sample without a sample axis", "save array[np.newaxis]; axis 0 counts samples"
        if len(shape) == len(want) == 4 and self.stored is None:
            if shape[3] == want[1] and shape[1] != want[1]:
                return f"the last axis has {shape[3]} entries: NHWC", f"pass --layout {self.role}=NHWC"
            if shape[1] == want[3] and shape[3] != want[3]:
                return f"axis 1 has {shape[1]} entries: NCHW", f"pass --layout {self.role}=NCHW"
        if self.from_images and len(want) == 4:
            sides = want[2:] if (layout_of(want) or self.preferred) == "NCHW" else want[1:3]
            size = "HEIGHTxWIDTH" if None in sides else "x".join(map(str, sides))
            return None, f"pass --resize {self.role}={size}"
        if len(shape) != len(want):
            return f"{len(shape)} axes, the model takes {len(want)}", "save one array with all samples along axis 0"
        note = f"the declared layout {self.stored} was taken into account" if self.stored else None
        return note, "preprocess the samples to the size that the model takes"


def _fixed_batch(inputs: Sequence[InputSpec]) -> int | None:
    """The number of samples that the model takes at once, if it is fixed."""
    fixed = {spec.shape[0] for spec in inputs} - {None}
    if len(fixed) > 1 or 0 in fixed:
        raise DataError(
            "the model's inputs have different fixed first axes",
            where=_table(*[("model", spec.name, _shape_text(spec.shape)) for spec in inputs]),
            help="export the models with the same, or a dynamic, batch axis on every input",
        )
    return fixed.pop() if fixed else None


def _integer_range(dtype: np.dtype[Any]) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


# --- cutting -----------------------------------------------------------------------------------------------------


def _limited(pieces: Iterator[Batch], limit: int | None) -> Iterator[Batch]:
    left = limit
    for piece in pieces:
        if left is None:
            yield piece
        else:
            yield piece.part(0, left)
            left -= min(left, piece.samples)
            if not left:
                return


def _rows_alike(batch: Batch) -> list[tuple[tuple[int, ...], str]]:
    """What samples of one batch have in common."""
    arrays = [*batch.inputs.values(), *(() if batch.labels is None else (batch.labels,))]
    return [(array.shape[1:], array.dtype.str) for array in arrays]


def _cut(pieces: Iterable[Batch], size: int) -> Iterator[Batch]:
    """Batches of ``size`` samples from pieces of any length; the last one may be smaller."""
    held: list[Batch] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += piece.samples
        if count < size:
            continue
        whole = _joined(held)
        full = count - count % size
        yield from (whole.part(start, start + size) for start in range(0, full, size))
        held = [whole.part(full, count)] if full < count else []
        count -= full
    if held:
        yield _joined(held)


def _joined(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    inputs = {name: np.concatenate([batch.inputs[name] for batch in batches]) for name in batches[0].inputs}
    labels = [batch.labels for batch in batches if batch.labels is not None]
    return Batch(inputs, np.concatenate(labels) if labels else None)


# --- sources -----------------------------------------------------------------------------------------------------


class _Source(Protocol):
    """Where raw samples come from, already bound to the model's input names."""

    @property
    def origin(self) -> str: ...

    @property
    def samples(self) -> int | None: ...

    @property
    def labelled(self) -> bool: ...

    @property
    def is_images(self) -> bool: ...

    @property
    def notices(self) -> Sequence[str]: ...

    @property
    def preview(self) -> Mapping[str, _Found]:
        """What is known of the arrays before reading them all."""
        ...

    def pieces(self, size: int) -> Iterator[_Piece]:
        """A new pass; pieces of about ``size`` samples where the source can choose."""
        ...

    def content(self) -> Iterator[bytes] | None:
        """All bytes, for the checksum."""
        ...


def _open_source(source: object, inputs: Sequence[InputSpec], preprocessing: Preprocessing, role: Role) -> _Source:
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        if path.is_dir():
            return _open_folder(path, inputs, preprocessing, role)
        if path.exists():
            return _ArraySource.of_file(path, inputs, role)
        if isinstance(source, str) and _FUNCTION.fullmatch(source):
            return _FunctionSource(import_function(source, f"{role} data"), source, inputs, role)
        raise _missing(path, f"{role} data")
    if isinstance(source, Mapping):
        arrays = {str(name): _as_array(value, str(name)) for name, value in source.items()}
        return _ArraySource.of_arrays(arrays, "arrays", inputs, role)
    if hasattr(source, "__array__"):
        return _ArraySource.of_arrays({"": _as_array(source, "array")}, "array", inputs, role)
    if callable(source):
        return _FunctionSource(source, getattr(source, "__name__", "function"), inputs, role)
    if isinstance(source, Iterable) and not isinstance(source, Iterator):
        batches: Iterable[Any] = source
        return _FunctionSource(lambda: batches, type(source).__name__, inputs, role)
    raise DataError(
        f"{role} data are of a kind that is not known",
        where=type(source).__name__,
        help="give a path, module:function, an array, a mapping of arrays, or a function that yields batches "
        "(the function, not the generator it returns: it is called once per pass)",
    )


def _open_folder(folder: Path, inputs: Sequence[InputSpec], preprocessing: Preprocessing, role: Role) -> _Source:
    arrays = sorted(path for path in folder.glob("*.npy") if not path.name.startswith("."))
    names = {spec.name for spec in inputs}
    samples = [path for path in arrays if path.stem != LABELS or LABELS in names]
    if samples:
        if len(inputs) > 1 or inputs[0].name in {path.stem for path in samples}:
            return _ArraySource.of_folder(folder, arrays, inputs, role)
        return _FileSource.of_arrays(folder, samples, inputs[0], role)
    images = [path for path in folder.rglob("*") if _is_image(path.relative_to(folder))]
    if images:
        return _FileSource.of_images(folder, images, inputs, preprocessing, role)
    raise DataError(
        f"{role} folder holds neither .npy files nor images",
        where=str(folder),
        help=f"put one <input>.npy per model input there ({', '.join(sorted(names))}), one .npy per sample, or images",
    )


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and not any(part.startswith((".", "__")) for part in path.parts)


class _ArraySource:
    """Whole arrays: an .npz, a folder with one .npy per input, or arrays in memory. Read slice by slice."""

    is_images = False
    notices: Sequence[str] = ()

    def __init__(
        self,
        origin: str,
        columns: Mapping[str, "_Column"],
        files: Sequence[Path],
        inputs: Sequence[InputSpec],
        role: Role,
    ):
        self.origin = origin
        self._columns, labels = _bind(columns, inputs, origin, role)
        self._files = files
        self.preview = {name: column.found for name, column in self._columns.items()}
        self.labelled = labels is not None
        self._labels = None if labels is None else _checked_labels(labels.read(), f"{origin}  {LABELS}")
        self.samples = self._common_length(role)

    @classmethod
    def of_file(cls, path: Path, inputs: Sequence[InputSpec], role: Role) -> "_ArraySource":
        start = _first_bytes(path)
        if start.startswith(b"PK"):
            return cls(path.name, _npz_columns(path), [path], inputs, role)
        if start.startswith(b"\x93NUMPY"):
            return cls(path.name, {"": _npy_column(path)}, [path], inputs, role)
        pickled = start.startswith(b"\x80")
        raise DataError(
            f"{role} data are not an .npz archive",
            where=[str(path), *(["note: a pickle, which could run any code, is never loaded"] if pickled else [])],
            help="save them with numpy.savez(path, input_name=array), or give a folder of images or .npy files",
        )

    @classmethod
    def of_folder(cls, folder: Path, paths: Sequence[Path], inputs: Sequence[InputSpec], role: Role) -> "_ArraySource":
        return cls(_folder_name(folder), {path.stem: _npy_column(path) for path in paths}, paths, inputs, role)

    @classmethod
    def of_arrays(
        cls, arrays: Mapping[str, Array], origin: str, inputs: Sequence[InputSpec], role: Role
    ) -> "_ArraySource":
        return cls(origin, {name: _memory_column(name, array) for name, array in arrays.items()}, (), inputs, role)

    def pieces(self, size: int) -> Iterator[_Piece]:
        names = list(self._columns)
        start = 0
        for blocks in zip(*(column.blocks(size) for column in self._columns.values()), strict=True):
            stop = start + len(blocks[0])
            labels = None if self._labels is None else self._labels[start:stop]
            yield _Piece(dict(zip(names, blocks, strict=True)), labels)
            start = stop

    def content(self) -> Iterator[bytes]:
        if self._files:
            return _file_content(self._files)
        columns = (_array_content(name, column.read()) for name, column in self._columns.items())
        labels = () if self._labels is None else _array_content(LABELS, self._labels)
        return chain(chain.from_iterable(columns), labels)

    def _common_length(self, role: Role) -> int:
        found = [column.found for column in self._columns.values()]
        if any(not item.shape for item in found):
            return 0
        lengths = [len(range(item.shape[0])) for item in found]
        rows = [item.where for item in found]
        if self._labels is not None:
            lengths.append(len(self._labels))
            rows.append((self.origin, LABELS, f"{_shape_text(self._labels.shape)} {self._labels.dtype}"))
        if len(set(lengths)) > 1:
            raise DataError(
                f"{role} arrays hold different numbers of samples",
                where=_table(*rows),
                help="axis 0 of every array, and the labels, count the same samples",
            )
        return lengths[0]


class _FileSource:
    """One sample per file, for models with one input: .npy files or images, read one at a time."""

    def __init__(
        self,
        folder: Path,
        paths: Sequence[Path],
        read: Callable[[Path], Array],
        spec: InputSpec,
        labels: "_Labels | None",
        is_images: bool,
        role: Role,
        notices: Sequence[str] = (),
    ):
        self.origin = _folder_name(folder)
        self.samples = len(paths)
        self.labelled = labels is not None
        self.is_images = is_images
        self.notices = notices
        if labels is not None and len(labels.values) != len(paths):
            raise _label_count_error(role, labels, self.origin, str(len(paths)))
        first = read(paths[0])
        self.preview = {spec.name: _Found(self.origin, paths[0].name, first.shape, first.dtype)}
        self._folder, self._paths, self._read, self._name = folder, paths, read, spec.name
        self._labels = None if labels is None else labels.values

    @classmethod
    def of_arrays(cls, folder: Path, paths: Sequence[Path], spec: InputSpec, role: Role) -> "_FileSource":
        def read(path: Path) -> Array:
            found = _npy_column(path)
            array = found.read()
            if array.ndim == len(spec.shape) and len(array) != 1:
                raise DataError(
                    f"{role} folder holds a file with more than one sample",
                    where=_table(found.found.where, ("model", spec.name, _shape_text(spec.shape))),
                    help=f"save one sample per file, or all samples as {spec.name}.npy",
                )
            return array if array.ndim == len(spec.shape) else array[np.newaxis]

        return cls(folder, paths, read, spec, _folder_labels(folder), False, role)

    @classmethod
    def of_images(
        cls, folder: Path, paths: Sequence[Path], inputs: Sequence[InputSpec], preprocessing: Preprocessing, role: Role
    ) -> "_FileSource":
        if len(inputs) > 1 or len(inputs[0].shape) != 4:
            raise DataError(
                "a folder of images fits only a model with one input of four axes",
                where=[str(folder), *_table(*[("model", spec.name, _shape_text(spec.shape)) for spec in inputs])],
                help="save the samples as an .npz with one array per model input",
            )
        layout = layout_of(inputs[0].shape) or preprocessing.layout or "NCHW"
        channels = inputs[0].shape[1 if layout == "NCHW" else 3]
        ordered = sorted(paths, key=lambda path: path.relative_to(folder).as_posix())
        classes, notices = _class_labels(folder, ordered, role)
        labels = _folder_labels(folder) if classes is None else _Labels(classes, "class folders")

        def read(path: Path) -> Array:
            return read_image(path, channels, preprocessing)[np.newaxis]

        return cls(folder, ordered, read, inputs[0], labels, True, role, notices)

    def pieces(self, size: int) -> Iterator[_Piece]:
        for i, path in enumerate(self._paths):
            labels = None if self._labels is None else self._labels[i : i + 1]
            yield _Piece({self._name: self._read(path)}, labels, path.name)

    def content(self) -> Iterator[bytes]:
        names = ((path.relative_to(self._folder).as_posix().encode() + b"\0", path) for path in self._paths)
        files = chain.from_iterable(chain((name,), _file_content([path])) for name, path in names)
        return files if self._labels is None else chain(files, _array_content(LABELS, self._labels))


def _folder_labels(folder: Path) -> "_Labels | None":
    path = folder / f"{LABELS}.npy"
    return _read_labels(path) if path.exists() else None


def _class_labels(folder: Path, paths: Sequence[Path], role: Role) -> tuple[Array | None, Sequence[str]]:
    """Index of each image's class folder among the sorted class folders; ``None`` for a flat folder."""
    parts = [path.relative_to(folder).parts for path in paths]
    flat = [len(part) == 1 for part in parts]
    if all(flat):
        return None, ()
    if any(flat):
        raise DataError(
            f"{role} folder holds images both beside and inside class folders",
            where=[
                str(folder),
                f"beside  {paths[flat.index(True)].name}",
                f"inside  {'/'.join(parts[flat.index(False)])}",
            ],
            help="move every image into the folder of its class, or all of them into one flat folder",
        )
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "__")))
    notices = []
    if all(name.isdecimal() for name in classes) and classes != sorted(classes, key=int):
        notices.append(
            f"{role} data: class folders are numbered in alphabetical order ({', '.join(classes[:3])}, ...), "
            "not by the numbers they are named after"
        )
    index = {name: i for i, name in enumerate(classes)}
    return np.array([index[part[0]] for part in parts], np.int64), notices


class _FunctionSource:
    """A function of the user that yields batches; called anew for every pass.

    The first batch is read when the set is opened, to check it early; the first pass goes on from there.
    """

    samples: int | None = None
    is_images = False
    notices: Sequence[str] = ()

    def __init__(self, function: Callable[[], Any], origin: str, inputs: Sequence[InputSpec], role: Role):
        self.origin = origin
        self._function, self._inputs, self._role = function, inputs, role
        self._returned: Any = None
        pieces = self._call()
        first = next(pieces)
        self._ahead: Iterator[_Piece] | None = chain((first,), pieces)
        self.labelled = first.labels is not None
        self.preview = {
            name: _Found(origin, f"{first.place}, {name}", array.shape, array.dtype)
            for name, array in first.inputs.items()
        }

    def pieces(self, size: int) -> Iterator[_Piece]:
        pieces, self._ahead = self._ahead or self._call(), None
        return pieces

    def content(self) -> None:
        return None

    def _call(self) -> Iterator[_Piece]:
        """One pass: batches that hold samples, of which there is at least one, all labelled or none."""
        labelled: bool | None = None
        for number, item in enumerate(self._items()):
            piece = self._piece(item, f"batch {number}")
            if not piece.samples:
                continue
            if labelled not in (None, piece.labels is not None):
                raise self._error("some batches have labels, others none", piece.place, "give all batches labels")
            labelled = piece.labels is not None
            yield piece
        if labelled is None:
            raise self._error("the function yielded no samples", [], "yield at least one batch")

    def _items(self) -> Iterator[Any]:
        """What the function yields; whatever it raises becomes a `DataError`."""
        try:
            returned = self._function()
            if returned is self._returned and isinstance(returned, Iterator):
                raise self._error(
                    "the function returned the iterator of an earlier call, which is used up",
                    f"{type(returned).__name__} object",
                    "make a new iterator at every call: the data are read several times",
                )
            self._returned = returned
            yield from returned
        except QuantmedicError:
            raise
        except (Exception, SystemExit) as error:
            raise self._error(
                "the function failed",
                f"cause  {type(error).__name__}: {error}",
                "it is called without arguments and must return an iterable of batches",
            ) from error

    def _piece(self, item: Any, place: str) -> _Piece:
        arrays, labels = self._parted(item, place)
        inputs, labels_inside = _bind(arrays, self._inputs, f"{self.origin} {place}", self._role)
        labels = labels_inside if labels is None else labels
        checked = None if labels is None else _checked_labels(labels, f"{self.origin}  {place}, {LABELS}")
        lengths = {array.shape[:1] for array in inputs.values()} | (set() if checked is None else {checked.shape[:1]})
        if len(lengths) > 1:
            rows = [(place, name, _shape_text(array.shape)) for name, array in inputs.items()]
            if checked is not None:
                rows.append((place, LABELS, _shape_text(checked.shape)))
            raise self._error("the arrays of a batch differ in length", _table(*rows), "axis 0 counts the same samples")
        if lengths == {()}:
            raise self._error("a batch is a single number", place, "yield arrays whose axis 0 counts samples")
        return _Piece(inputs, checked, place)

    def _parted(self, item: Any, place: str) -> tuple[dict[str, Array], Array | None]:
        """Arrays by name and labels of one yielded item."""
        count = len(self._inputs)
        if (
            isinstance(item, tuple | list)
            and len(item) == 2
            and (count == 1 or isinstance(item[0], Mapping | tuple | list))
        ):
            labels = None if item[1] is None else _as_array(item[1], f"{place}, {LABELS}")
            return self._named(item[0], place), labels
        return self._named(item, place), None

    def _named(self, item: Any, place: str) -> dict[str, Array]:
        if isinstance(item, Mapping):
            return {str(name): _as_array(value, f"{place}, {name}") for name, value in item.items()}
        values = item if isinstance(item, tuple | list) else (item,)
        if len(values) != len(self._inputs):
            names = ", ".join(spec.name for spec in self._inputs)
            raise self._error(
                f"a batch has {len(values)} arrays, the model takes {len(self._inputs)}",
                [place, f"model  {names}"],
                "yield the arrays in this order or as a dict; with labels yield (inputs, labels)",
            )
        pairs = zip(self._inputs, values, strict=True)
        return {spec.name: _as_array(value, f"{place}, {spec.name}") for spec, value in pairs}

    def _error(self, message: str, where: str | Sequence[str], help: str) -> DataError:
        lines = [where] if isinstance(where, str) else where
        return DataError(f"{self._role} data: {message}", where=[self.origin, *lines], help=help)


def _bind(
    arrays: Mapping[str, T], inputs: Sequence[InputSpec], origin: str, role: Role
) -> tuple[dict[str, T], T | None]:
    """Arrays by model input, and the labels; the only array fits the only input whatever its name.

    Raises:
        DataError: Inputs are missing or arrays are left over.
    """
    names = [spec.name for spec in inputs]
    labels = arrays.get(LABELS) if LABELS not in names else None
    others = {name: array for name, array in arrays.items() if name in names or name != LABELS}
    if len(names) == len(others) == 1:
        return {names[0]: next(iter(others.values()))}, labels
    missing = [name for name in names if name not in others]
    extra = [name for name in others if name not in names]
    if not missing and not extra:
        return {name: others[name] for name in names}, labels
    lines = [(origin, "missing", name + _did_you_mean(name, extra)) for name in missing]
    lines += [(origin, "extra", name or "an array without a name") for name in extra]
    raise DataError(
        f"{role} data do not have one array per model input",
        where=_table(*lines),
        help=f"name the arrays after the model's inputs: {', '.join(names)}"
        + (f"; {LABELS} may be added" if LABELS not in names else ""),
    )


# --- arrays in files ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Column:
    """One array, described without reading it; ``blocks`` reads it once, so many rows at a time."""

    found: _Found
    blocks: Callable[[int], Iterator[Array]]

    def read(self) -> Array:
        """The whole array."""
        return next(self.blocks(max(1, *self.found.shape[:1])), np.empty(self.found.shape, self.found.dtype))


def _memory_column(name: str, array: Array) -> _Column:
    return _Column(_Found("array", name or "unnamed", array.shape, array.dtype), lambda size: _slices(array, size))


def _slices(array: Array, size: int) -> Iterator[Array]:
    if not array.ndim:
        yield array
    else:
        yield from (array[start : start + size] for start in range(0, len(array), size))


def _npy_column(path: Path) -> _Column:
    with path.open("rb") as file:
        shape, fortran, dtype = _npy_header(file, str(path), path.stem)
        found = _Found(path.name, path.stem, shape, dtype)
        return _mapped_column(path, file.tell(), fortran, found)


def _npz_columns(path: Path) -> dict[str, _Column]:
    """Arrays of an .npz: those stored plainly are mapped, compressed ones are decompressed block by block."""
    with _damage_reported(path), zipfile.ZipFile(path) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        columns = {info.filename.removesuffix(".npy"): _member_column(path, archive, info) for info in members}
    if not columns:
        raise DataError(
            "archive holds no arrays",
            where=str(path),
            help="save it with numpy.savez(path, input_name=array)",
        )
    return columns


def _member_column(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Column:
    name = info.filename.removesuffix(".npy")
    with archive.open(info) as member:
        shape, fortran, dtype = _npy_header(member, str(path), name)
        header = member.tell()
    found = _Found(path.name, name, shape, dtype)
    if header + math.prod(shape) * dtype.itemsize != info.file_size:
        raise _damaged(path, f"{name} has another length than its header says")
    if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
        with path.open("rb") as file:
            file.seek(info.header_offset + 26)
            extra = int.from_bytes(file.read(2), "little") + int.from_bytes(file.read(2), "little")
        return _mapped_column(path, info.header_offset + 30 + extra + header, fortran, found)
    return _Column(found, lambda size: _streamed(path, info.filename, found, fortran, size))


def _mapped_column(path: Path, offset: int, fortran: bool, found: _Found) -> _Column:
    if not found.shape or 0 in found.shape:
        empty = np.empty(found.shape, found.dtype)
        return _Column(found, lambda size: _slices(empty, size))
    try:
        mapped = np.memmap(path, found.dtype, "r", offset, found.shape, "F" if fortran else "C")
    except ValueError as error:
        raise _damaged(path, error) from error
    # Copies, because rows of an archive are not aligned and a file may change under a running session.
    return _Column(found, lambda size: (np.array(block) for block in _slices(mapped, size)))


def _streamed(path: Path, member: str, found: _Found, fortran: bool, size: int) -> Iterator[Array]:
    with _damage_reported(path), zipfile.ZipFile(path) as archive, archive.open(member) as file:
        if fortran or not found.shape or 0 in found.shape:
            yield from _slices(np.lib.format.read_array(file, allow_pickle=False), size)
            return
        _npy_header(file, str(path), found.name)
        for start in range(0, found.shape[0], size):
            block = np.empty((min(size, found.shape[0] - start), *found.shape[1:]), found.dtype)
            _read_into(file, block)
            yield block


def _read_into(file: IO[bytes], block: Array) -> None:
    view = memoryview(block.reshape(-1).view(np.uint8).data)
    while view:
        data = file.read(len(view))
        if not data:
            raise EOFError("the array ends early")
        view[: len(data)] = data
        view = view[len(data) :]


def _npy_header(file: IO[bytes], path: str, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, column-major flag and type of the array that starts here.

    Raises:
        DataError: No array starts here, or it holds Python objects, which only pickle could read.
    """
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except (ValueError, TokenError) as error:
        raise DataError(
            "array cannot be read",
            where=[f"{path}  {name}", f"cause  {error}"],
            help="save it again with numpy.save or numpy.savez",
        ) from error
    if dtype.hasobject:
        raise _objects_refused(_Found(path, name, shape, dtype))
    return shape, fortran, dtype


@contextmanager
def _damage_reported(path: Path) -> Iterator[None]:
    """Context in which a damaged archive raises `DataError`."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        raise _damaged(path, error) from error
    except (NotImplementedError, RuntimeError) as error:
        raise DataError(
            "archive uses encryption or a compression that is not known",
            where=[str(path), f"cause  {error}"],
            help="save it with numpy.savez or numpy.savez_compressed",
        ) from error


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(8)
    except OSError as error:
        raise DataError(
            "file cannot be opened",
            where=[str(path), f"cause  {error.strerror}"],
            help="check that it is a file that you may read",
        ) from error


# --- labels ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Labels:
    values: Array
    where: str


def _read_labels(source: "str | Path | Array") -> _Labels:
    """Labels from a file of one of the documented kinds, or from an array."""
    if not isinstance(source, str | Path):
        return _Labels(_checked_labels(_as_array(source, LABELS), "labels array"), "labels array")
    path = Path(source).expanduser()
    if not path.is_file():
        raise _missing(path, LABELS)
    return _Labels(_checked_labels(_labels_of_file(path), str(path)), path.name)


def _labels_of_file(path: Path) -> Array:
    start = _first_bytes(path)
    if start.startswith(b"\x93NUMPY"):
        return _npy_column(path).read()
    if start.startswith(b"PK"):
        columns = _npz_columns(path)
        if LABELS not in columns and len(columns) > 1:
            raise DataError(
                "labels archive holds several arrays and none named labels",
                where=f"{path}  {', '.join(columns)}",
                help="name the array labels",
            )
        return columns.get(LABELS, next(iter(columns.values()))).read()
    if path.suffix.lower() in (".txt", ".csv"):
        return _labels_of_text(path)
    raise DataError("labels file is of a kind that is not known", where=str(path), help="give .npy, .npz, .txt or .csv")


def _labels_of_text(path: Path) -> Array:
    """One number per line; a first line of words is a heading, empty lines count for nothing."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [(line, row) for line, row in enumerate(csv.reader(file), 1) if any(cell.strip() for cell in row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError("labels file is not text", where=str(path), help="write one label per line, UTF-8") from error
    values: list[float] = []
    for position, (line, row) in enumerate(rows):
        try:
            (cell,) = row
            values.append(float(cell))
        except ValueError:
            if position or len(row) > 1:
                raise DataError(
                    "labels file does not hold one number per line",
                    where=f"{path}:{line}  {','.join(row)[:60]}",
                    help="write one label per line: a class index, or a number for mae and rmse",
                ) from None
    array = np.array(values)
    return array.astype(np.int64) if np.all(array == np.floor(array)) and np.all(np.abs(array) < 2**53) else array


def _checked_labels(labels: Array, where: str) -> Array:
    if labels.dtype.kind not in "fiub":
        raise DataError(
            "labels are not numbers",
            where=f"{where}  {labels.dtype}",
            help="give class indices, or numbers for mae and rmse",
        )
    if not labels.ndim:
        raise DataError("labels are a single number", where=f"{where}  {labels}", help="give one label per sample")
    return labels.reshape(-1) if labels.size == len(labels) else labels


# --- small helpers -----------------------------------------------------------------------------------------------


def _as_array(value: Any, where: str) -> Array:
    try:
        return np.asarray(value)
    except Exception as error:
        raise DataError(
            "value cannot be turned into an array", where=[where, f"cause  {error}"], help="give a numpy array"
        ) from error


def _file_content(paths: Iterable[Path]) -> Iterator[bytes]:
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(_HASH_BLOCK):
                yield block


def _array_content(name: str, array: Array) -> Iterator[bytes]:
    yield f"{name}\0{array.dtype.str}\0{array.shape}\0".encode()
    for block in _slices(array, max(1, _HASH_BLOCK // max(1, array[:1].nbytes))):
        yield block.tobytes()


def _folder_name(folder: Path) -> str:
    return folder.resolve().name + "/"


def _shape_text(shape: Sequence[int | None]) -> str:
    sides = ["N" if i == 0 and side is None else "?" if side is None else str(side) for i, side in enumerate(shape)]
    return f"({', '.join(sides)}{',' if len(sides) == 1 else ''})"


def _table(*rows: Sequence[str]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _did_you_mean(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, [other for other in names if other], 1)
    return f", did you mean {near[0]}?" if near else ""


def _missing(path: Path, what: str) -> DataError:
    siblings = [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else []
    near = get_close_matches(path.name, siblings, 1)
    return DataError(
        f"{what} cannot be found",
        where=str(path),
        help=f"did you mean {path.parent / near[0]}?"
        if near
        else "check the path; a function is written module:function",
    )


def _no_samples(role: Role, origin: str) -> DataError:
    return DataError(f"{role} data hold no samples", where=origin, help="give at least one sample")


def _label_count_error(role: Role, labels: _Labels, origin: str, samples: str) -> DataError:
    return DataError(
        f"{role} data have another number of labels than of samples",
        where=[f"{labels.where}  {len(labels.values)} labels", f"{origin}  {samples} samples"],
        help="give one label per sample, in the order of the samples (files: sorted by name)",
    )


def _objects_refused(found: _Found) -> DataError:
    return DataError(
        "array holds Python objects, which are refused: reading them could run any code",
        where="  ".join(found.where),
        help="save it with a numeric type; samples of different length go into one .npy file each",
    )


def _damaged(path: Path, error: object) -> DataError:
    return DataError(
        "file is damaged or was cut off",
        where=[str(path), f"cause  {error}"],
        help="copy the file again, or create it anew",
    )
