"""Where raw samples come from: arrays, files of one sample each, images, or functions."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, tee
from pathlib import Path

import numpy as np

from quantmedic.collectors.data.arrays import (
    NPY_MAGIC,
    Array,
    ArrayInfo,
    Column,
    array_content,
    as_array,
    column_marks,
    file_content,
    first_bytes,
    memory_column,
    npy_column,
    npz_columns,
    repeated_column,
    runs,
)
from quantmedic.collectors.data.batches import Piece, Selection
from quantmedic.collectors.data.functions import FUNCTION, UserFunction, failing_as, import_function, items_of
from quantmedic.collectors.data.labels import (
    LABELS,
    Labels,
    checked_labels,
    class_labels,
    folder_labels,
    label_count_error,
    yolo_labels,
)
from quantmedic.collectors.data.messages import aligned_rows, missing_path_error, shape_text
from quantmedic.collectors.data.model_inputs import InputSpec, bind
from quantmedic.collectors.data.preprocessing import Preprocessing, layout_of, read_image
from quantmedic.engine.case.facts import Role
from quantmedic.engine.errors import DataError

#: Samples by which data are told from others, where nothing states a checksum of all.
MARKS = 8
IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})


class Source(ABC):
    """Where raw samples come from, already bound to the model's input names.

    Attributes:
        origin: Its short name, without folders.
        preview: What is known of the arrays before reading them all, by input.
        samples: Number of samples; None where only a full pass tells.
        labelled: Samples have labels.
        labels: All labels; None without any, and where only a pass gives them.
        is_images: Samples are decoded from image files.
        alike: All samples are known to have one shape and type.
        notices: What the user should know.
    """

    origin: str
    preview: Mapping[str, ArrayInfo]
    samples: int | None = None
    labelled: bool = False
    labels: Labels | None = None
    is_images: bool = False
    alike: bool = False
    notices: Sequence[str] = ()

    @abstractmethod
    def pieces(self, size: int, wanted: Selection) -> Iterator[Piece]:
        """A new pass over the wanted samples, about ``size`` at a time where the source can choose.

        A source that does not know its ``samples`` cannot skip any either: it gives all of them.
        """

    def marks(self) -> Iterator[bytes] | None:
        """What tells the content from other content, without reading all of it; None where nothing does."""
        return None


def _is_labelled_batch(source: Iterable[object], inputs: Sequence[InputSpec]) -> bool:
    """A pair of the samples and their labels, and no two batches."""
    if not isinstance(source, tuple) or len(source) != 2 or len(inputs) != 1:
        return False
    shapes = [np.shape(part) for part in source if hasattr(part, "__array__")]
    return len(shapes) == 2 and 0 < len(shapes[1]) < len(shapes[0]) and shapes[0][0] == shapes[1][0]


def open_source(source: object, inputs: Sequence[InputSpec], preprocessing: Preprocessing, role: Role) -> Source:
    """The source that the user's path, array, mapping, function or iterable stands for."""
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        if path.is_dir():
            return _open_folder(path, inputs, preprocessing, role)
        if path.exists():
            return _ArraySource(path.name, _columns_of_file(path, role), inputs, role)
        if isinstance(source, str) and FUNCTION.fullmatch(source):
            return FunctionSource(import_function(source, f"{role} data"), source, inputs, role)
        raise missing_path_error(path, f"{role} data")
    if isinstance(source, Mapping):
        arrays = {str(name): as_array(value, str(name)) for name, value in source.items()}
        columns = {name: memory_column(name, array) for name, array in arrays.items()}
        return _ArraySource("arrays", columns, inputs, role)
    if hasattr(source, "__array__"):
        return _ArraySource("array", {"": memory_column("", as_array(source, "array"))}, inputs, role)
    if callable(source):
        return FunctionSource(source, getattr(source, "__name__", "function"), inputs, role)
    if isinstance(source, Iterable) and not isinstance(source, Iterator):
        batches: Iterable[object] = [source] if _is_labelled_batch(source, inputs) else source
        return FunctionSource(lambda: batches, type(source).__name__, inputs, role)
    raise DataError(
        f"unrecognized kind of {role} data",
        where=type(source).__name__,
        help="give a path, module:function, an array, a mapping of arrays, or a function that yields batches "
        "(the function, not the generator it returns: it is called once per pass)",
    )


def _columns_of_file(path: Path, role: Role) -> Mapping[str, Column]:
    """Arrays of an .npz by name, or the one of an .npy without."""
    start = first_bytes(path)
    if start.startswith(b"PK"):
        return npz_columns(path)
    if start.startswith(NPY_MAGIC):
        return {"": npy_column(path)}
    pickled = start.startswith(b"\x80")
    raise DataError(
        f"{role} data are not an .npz archive",
        where=[str(path), *(["note: a pickle, which could run any code, is never loaded"] if pickled else [])],
        help="save them with numpy.savez(path, input_name=array), or give a folder of images or .npy files",
    )


def _open_folder(folder: Path, inputs: Sequence[InputSpec], preprocessing: Preprocessing, role: Role) -> Source:
    arrays = sorted(path for path in folder.glob("*.npy") if not path.name.startswith("."))
    names = {spec.name for spec in inputs}
    samples = [path for path in arrays if path.stem != LABELS or LABELS in names]
    if samples:
        if len(inputs) > 1 or inputs[0].name in {path.stem for path in samples}:
            return _ArraySource(_folder_name(folder), {path.stem: npy_column(path) for path in arrays}, inputs, role)
        return _ArrayFiles(folder, samples, inputs[0], folder_labels(folder), role)
    images = [path for path in folder.rglob("*") if _is_image(path.relative_to(folder))]
    if images:
        return _ImageFiles(folder, images, inputs, preprocessing, role)
    raise DataError(
        f"{role} folder holds neither .npy files nor images",
        where=str(folder),
        help=f"put one <input>.npy per model input there ({', '.join(sorted(names))}), one .npy per sample, or images",
    )


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and not any(part.startswith((".", "__")) for part in path.parts)


class _ArraySource(Source):
    """Whole arrays: an .npz, a folder with one .npy per input, or arrays in memory. Read some rows at a time."""

    samples: int
    alike = True

    def __init__(self, origin: str, columns: Mapping[str, Column], inputs: Sequence[InputSpec], role: Role):
        self.origin = origin
        self._columns, labels = bind(columns, inputs, origin, role)
        self._repeat_constants(inputs)
        self.preview = {name: column.info for name, column in self._columns.items()}
        if labels is not None:
            self.labelled, self.labels = True, Labels(checked_labels(labels.load(), f"{origin}  {LABELS}"), origin)
        self.samples = self._common_length(role)

    def pieces(self, size: int, wanted: Selection) -> Iterator[Piece]:
        every, *each = tee(wanted.rows(size, self.samples), 1 + len(self._columns))
        columns = [column.blocks(rows) for column, rows in zip(self._columns.values(), each, strict=True)]
        for rows, blocks in zip(every, zip(*columns, strict=True), strict=True):
            labels = None if self.labels is None else self.labels.values[rows]
            yield Piece(dict(zip(self._columns, blocks, strict=True)), labels, rows=rows)

    def marks(self) -> Iterator[bytes]:
        rows = _marked_samples(self.samples)
        columns = (column_marks(name, column, rows) for name, column in self._columns.items())
        return chain(chain.from_iterable(columns), _label_content(self.labels))

    def _repeat_constants(self, inputs: Sequence[InputSpec]) -> None:
        """An array that is the same for all samples counts for each of them."""
        same = {s.name for s in inputs if s.name in self._columns and s.is_constant(self._columns[s.name].info.shape)}
        others = (column.info.shape for name, column in self._columns.items() if name not in same)
        lengths = [shape[0] for shape in others if shape]
        if lengths:
            self._columns = {
                name: repeated_column(column, lengths[0]) if name in same else column
                for name, column in self._columns.items()
            }

    def _common_length(self, role: Role) -> int:
        found = [column.info for column in self._columns.values()]
        if any(not item.shape for item in found):
            return 0
        lengths = [len(range(item.shape[0])) for item in found]
        rows = [item.where for item in found]
        if self.labels is not None:
            values = self.labels.values
            lengths.append(len(values))
            rows.append((self.origin, LABELS, f"{shape_text(values.shape)} {values.dtype}"))
        if len(set(lengths)) > 1:
            raise DataError(
                f"{role} arrays hold different numbers of samples",
                where=aligned_rows(*rows),
                help="axis 0 of every array, and the labels, count the same samples",
            )
        return lengths[0]


class _FileSource(Source):
    """One sample per file, for models with one input: .npy files or images, read one at a time."""

    samples: int

    def __init__(self, folder: Path, paths: Sequence[Path], spec: InputSpec, labels: Labels | None, role: Role):
        self.origin, self.samples = _folder_name(folder), len(paths)
        self.labels, self.labelled = labels, labels is not None
        if labels is not None and len(labels.values) != len(paths):
            raise label_count_error(role, labels, self.origin, str(len(paths)))
        self._folder, self._paths, self._spec, self._role = folder, paths, spec, role
        first = self._load_sample(paths[0])
        self.preview = {spec.name: ArrayInfo(self.origin, paths[0].name, first.shape, first.dtype)}

    @abstractmethod
    def _load_sample(self, path: Path) -> Array:
        """The sample of a file, ``[1, ...]``."""

    def pieces(self, size: int, wanted: Selection) -> Iterator[Piece]:
        for rows in wanted.rows(size, self.samples):
            for i in chain.from_iterable(runs(rows)):
                path, row = self._paths[i], slice(i, i + 1)
                labels = None if self.labels is None else self.labels.values[row]
                yield Piece({self._spec.name: self._load_sample(path)}, labels, rows=row, place=path.name)

    def marks(self) -> Iterator[bytes]:
        marked = file_content(self._paths[i] for i in _marked_samples(self.samples))
        return chain(map(self._name_of, self._paths), marked, _label_content(self.labels))

    def _name_of(self, path: Path) -> bytes:
        return os.fsencode(path.relative_to(self._folder).as_posix()) + b"\0"


class _ArrayFiles(_FileSource):
    """A folder with one .npy file per sample."""

    def _load_sample(self, path: Path) -> Array:
        column, spec = npy_column(path), self._spec
        array = column.load()
        if array.ndim == len(spec.shape) and len(array) != 1:
            raise DataError(
                f"{self._role} folder holds a file with more than one sample",
                where=aligned_rows(column.info.where, ("model", spec.name, shape_text(spec.shape))),
                help=f"save one sample per file, or all samples as {spec.name}.npy",
            )
        return array if array.ndim == len(spec.shape) else array[np.newaxis]


class _ImageFiles(_FileSource):
    """A folder of images, flat or with one folder per class."""

    is_images = True

    def __init__(
        self, folder: Path, paths: Sequence[Path], inputs: Sequence[InputSpec], preprocessing: Preprocessing, role: Role
    ):
        if len(inputs) > 1 or len(inputs[0].shape) != 4:
            raise DataError(
                "a folder of images fits only a model with one input of four axes",
                where=[str(folder), *aligned_rows(*[("model", spec.name, shape_text(spec.shape)) for spec in inputs])],
                help="save the samples as an .npz with one array per model input",
            )
        shape, self._preprocessing = inputs[0].shape, preprocessing
        layout = layout_of(shape) or preprocessing.layout or "NCHW"
        self._channels = shape[1 if layout == "NCHW" else 3]
        # Pixels are bytes and shapes are checked; the type of an array is written in its own file.
        self.alike = None not in shape[1:]
        ordered = sorted(paths, key=lambda path: path.relative_to(folder).as_posix())
        classes, self.notices = class_labels(folder, ordered, role)
        labels = Labels(classes, "class folders") if classes is not None else _labels_beside(folder, ordered)
        super().__init__(folder, ordered, inputs[0], labels, role)

    def _load_sample(self, path: Path) -> Array:
        return read_image(path, self._channels, self._preprocessing)[np.newaxis]


def _label_content(labels: Labels | None) -> Iterator[bytes]:
    return iter(()) if labels is None else array_content(LABELS, labels.values)


def _labels_beside(folder: Path, images: Sequence[Path]) -> Labels | None:
    """Labels of a flat folder of images: those of one file, or of a text file for each image."""
    if (found := folder_labels(folder)) is not None:
        return found
    boxes = yolo_labels(images)
    return None if boxes is None else Labels(boxes, "text files of YOLO")


def _marked_samples(samples: int) -> list[int]:
    """A few samples from the first to the last."""
    return sorted({number * (samples - 1) // (MARKS - 1) for number in range(MARKS)})


def _folder_name(folder: Path) -> str:
    return folder.resolve().name + "/"


class FunctionSource(Source):
    """A function of the user that yields batches; called anew for every pass.

    The first batch is read when the set is opened, to check it early; the first pass goes on from there.
    """

    def __init__(self, function: UserFunction, origin: str, inputs: Sequence[InputSpec], role: Role):
        self.origin = origin
        self._function, self._inputs, self._role = function, inputs, role
        self._returned: object = None
        pieces = self._call()
        first = next(pieces)
        self._ahead: Iterator[Piece] | None = chain((first,), pieces)
        self.labelled = first.labels is not None
        self.preview = {
            name: ArrayInfo(origin, f"{first.place}, {name}", array.shape, array.dtype)
            for name, array in first.inputs.items()
        }

    def pieces(self, size: int, wanted: Selection) -> Iterator[Piece]:
        pieces, self._ahead = self._ahead or self._call(), None
        return pieces

    def _call(self) -> Iterator[Piece]:
        """One pass: batches that hold samples, of which there is at least one, all labelled or none."""
        labelled: bool | None = None
        first = 0
        for number, item in enumerate(self._items()):
            piece = self._piece(item, f"batch {number}", first)
            if not piece.samples:
                continue
            first += piece.samples
            if labelled not in (None, piece.labels is not None):
                raise self._error("some batches have labels, others none", piece.place, "give all batches labels")
            labelled = piece.labels is not None
            yield piece
        if labelled is None:
            raise self._error("the function yielded no samples", [], "yield at least one batch")

    def _items(self) -> Iterator[object]:
        """The items that the function yields; an exception in it becomes a `DataError`."""
        with failing_as(self._failure):
            returned = self._function()
        if returned is self._returned and isinstance(returned, Iterator):
            raise self._error(
                "the function returned the iterator of an earlier call, which is used up",
                f"{type(returned).__name__} object",
                "make a new iterator at every call: the data are read several times",
            )
        self._returned = returned
        yield from items_of(returned, self._failure)

    def _failure(self, cause: str) -> DataError:
        help = "it is called without arguments and must return an iterable of batches"
        return self._error("the function failed", cause, help)

    def _piece(self, item: object, place: str, first: int) -> Piece:
        arrays, labels = self._split_labels(item, place)
        inputs, labels_inside = bind(arrays, self._inputs, f"{self.origin} {place}", self._role)
        inputs = _with_constants(inputs, self._inputs)
        labels = labels_inside if labels is None else labels
        checked = None if labels is None else checked_labels(labels, f"{self.origin}  {place}, {LABELS}")
        lengths = {array.shape[:1] for array in inputs.values()} | (set() if checked is None else {checked.shape[:1]})
        if len(lengths) > 1:
            rows = [(place, name, shape_text(array.shape)) for name, array in inputs.items()]
            if checked is not None:
                rows.append((place, LABELS, shape_text(checked.shape)))
            lines = aligned_rows(*rows)
            raise self._error("the arrays of a batch differ in length", lines, "axis 0 counts the same samples")
        if lengths == {()}:
            raise self._error("a batch is a single number", place, "yield arrays whose axis 0 counts samples")
        return Piece(inputs, checked, rows=slice(first, first + len(next(iter(inputs.values())))), place=place)

    def _split_labels(self, item: object, place: str) -> tuple[dict[str, Array], Array | None]:
        """Arrays by name and labels of one yielded item."""
        count = len(self._inputs)
        if (
            isinstance(item, tuple | list)
            and len(item) == 2
            and (count == 1 or isinstance(item[0], Mapping | tuple | list))
        ):
            labels = None if item[1] is None else as_array(item[1], f"{place}, {LABELS}")
            return self._arrays_by_name(item[0], place), labels
        return self._arrays_by_name(item, place), None

    def _arrays_by_name(self, item: object, place: str) -> dict[str, Array]:
        if isinstance(item, Mapping):
            return {str(name): as_array(value, f"{place}, {name}") for name, value in item.items()}
        values = item if isinstance(item, tuple | list) else (item,)
        if len(values) != len(self._inputs):
            names = ", ".join(spec.name for spec in self._inputs)
            raise self._error(
                f"a batch has {len(values)} arrays, the model takes {len(self._inputs)}",
                [place, f"model  {names}"],
                "yield the arrays in this order or as a dict; with labels yield (inputs, labels)",
            )
        pairs = zip(self._inputs, values, strict=True)
        return {spec.name: as_array(value, f"{place}, {spec.name}") for spec, value in pairs}

    def _error(self, message: str, where: str | Sequence[str], help: str) -> DataError:
        lines = [where] if isinstance(where, str) else where
        return DataError(f"{self._role} data: {message}", where=[self.origin, *lines], help=help)


def _with_constants(inputs: Mapping[str, Array], specs: Sequence[InputSpec]) -> dict[str, Array]:
    """An array for an input without sample axis, as onnxruntime's readers give it, is that of all samples."""
    same = {spec.name for spec in specs if spec.name in inputs and spec.is_constant(inputs[spec.name].shape)}
    lengths = {len(array) for name, array in inputs.items() if name not in same and array.ndim}
    if len(lengths) != 1:
        return dict(inputs)
    (length,) = lengths
    return {
        name: np.broadcast_to(array, (length, *array.shape)) if name in same else array
        for name, array in inputs.items()
    }
