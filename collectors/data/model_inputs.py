"""Inputs of a model: which array is meant for which, whether it fits, and its conversion to what the model takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, get_args

import numpy as np

from quantmedic.collectors.data.arrays import Array, ArrayInfo, DType, objects_refused
from quantmedic.collectors.data.labels import LABELS
from quantmedic.collectors.data.messages import aligned_rows, did_you_mean, shape_text
from quantmedic.collectors.data.preprocessing import TO_OTHER_LAYOUT, Layout, Preprocessing, layout_of
from quantmedic.engine.case.facts import Role
from quantmedic.engine.errors import DataError

T = TypeVar("T")


@dataclass(frozen=True)
class InputSpec:
    """One input of a model: ``None`` in the shape is a dynamic axis, axis 0 counts samples.

    ``whole``: the model's own input has no such axis, and takes the array of one sample.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: DType
    whole: bool = False

    def is_constant(self, shape: Sequence[int]) -> bool:
        """An array of this shape lacks the sample axis of an input that has none itself: it is that of every sample."""
        return (self.whole or len(self.shape) == 1) and shapes_agree(shape, self.shape[1:])

    def as_stored(self, shape: Sequence[int]) -> "InputSpec":
        """The input as the data show it: taken whole where they have one axis more, and the others fit."""
        if self.shape[:1] == (None,) or not shapes_agree(shape[1:], self.shape):
            return self
        return replace(self, shape=(1, *self.shape), whole=True)


def shapes_agree(a: Sequence[int | None], b: Sequence[int | None]) -> bool:
    """Two shapes may be equal, for all that is known of both: None is a side that is open."""
    return len(a) == len(b) and all(None in (x, y) or x == y for x, y in zip(a, b, strict=True))


@dataclass(frozen=True)
class Input:
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
    def of(cls, spec: InputSpec, declared: Preprocessing, is_images: bool, role: Role) -> "Input":
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
        if is_images:
            return cls(spec, declared, "NHWC", declared.layout or "NCHW", True, role)
        return cls(spec, declared, declared.layout, "NCHW", False, role)

    def check(self, found: ArrayInfo) -> None:
        """Raise `DataError` unless the array's type and shape fit."""
        self._check_kind(found)
        if 0 in found.shape or not found.shape:
            raise self._no_values(found)
        permutation = self._permutation(found.shape)
        shape = found.shape if permutation is None else tuple(found.shape[i] for i in permutation)
        if not self._fits(shape):
            raise self._shape_error(found)

    def convert(self, array: Array, origin: str) -> Array:
        """Checked samples in the model's layout and type; the same memory where nothing changes."""
        found = ArrayInfo(origin, self.spec.name, array.shape, array.dtype)
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
                    help=error.help and error.help.replace("layout=", f"{self.role}.layout="),
                ) from None
        permutation = self._permutation(array.shape)
        if permutation is not None:
            array = array.transpose(permutation)
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(array, self.spec.dtype)

    def _fits(self, shape: Sequence[int]) -> bool:
        """Whether all axes but the first agree."""
        return len(shape) == len(self.spec.shape) and shapes_agree(shape[1:], self.spec.shape[1:])

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

    def _check_kind(self, found: ArrayInfo) -> None:
        have, want = found.dtype.kind, self.spec.dtype.kind
        if found.dtype.hasobject:
            raise objects_refused(found)
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
                "pass what training used, for both sets: -p scale=255 -p mean=… -p std=…\n"
                f"(one set alone: -p {self.role}.scale=…); for a model that takes raw pixels: -p scale=1;\n"
                f"or save the preprocessed array as {self.spec.dtype}",
            )

    def _check_range(self, array: Array, found: ArrayInfo) -> None:
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

    def _type_error(self, found: ArrayInfo, what: str, help: str) -> DataError:
        model = ("model", self.spec.name, f"{shape_text(self.spec.shape)} {self.spec.dtype}")
        return DataError(f"{self.role} data {what}", where=aligned_rows(found.where, model), help=help)

    def _no_values(self, found: ArrayInfo) -> DataError:
        what = "have no sample axis" if not found.shape else "hold no samples" if not found.shape[0] else "are empty"
        return self._type_error(found, what, "axis 0 counts the samples; give at least one")

    def _shape_error(self, found: ArrayInfo) -> DataError:
        note, help = self._shape_advice(found.shape)
        model = ("model", self.spec.name, shape_text(self.spec.shape))
        lines = aligned_rows((found.file, found.name, shape_text(found.shape)), model)
        return DataError(
            f"{self.role} data do not fit the model input",
            where=[*lines, f"note: {note}"] if note else lines,
            help=help,
        )

    def _shape_advice(self, shape: tuple[int, ...]) -> tuple[str | None, str]:
        """What the shape looks like, and what to do about it."""
        want = self.spec.shape
        if self.spec.whole:
            one = shape_text((*want[1:],)).replace("N", "?")
            return "the model's input has no sample axis", f"save one array {one} per sample, or a single one for all"
        if len(shape) == len(want) - 1 and self._fits((1, *shape)):
            return "this looks like one sample without a sample axis", "save array[np.newaxis]; axis 0 counts samples"
        if len(shape) == len(want) == 4 and self.stored is None and (seen := self._layout_seen(shape)):
            axis = f"the last axis has {shape[3]}" if seen == "NHWC" else f"axis 1 has {shape[1]}"
            return f"{axis} entries: {seen}", f"pass --preprocess {self.role}.layout={seen}"
        if self.from_images and len(want) == 4:
            sides = want[2:] if (layout_of(want) or self.preferred) == "NCHW" else want[1:3]
            size = "HEIGHTxWIDTH" if None in sides else "x".join(map(str, sides))
            return None, f"pass --preprocess {self.role}.resize={size}"
        if len(shape) != len(want):
            return f"{len(shape)} axes, the model takes {len(want)}", "save one array with all samples along axis 0"
        note = f"the declared layout {self.stored} was taken into account" if self.stored else None
        return note, "preprocess the samples to the size that the model takes"

    def _layout_seen(self, shape: tuple[int, ...]) -> Layout | None:
        """The layout that four axes seem to have; None where they do not look transposed."""
        want = self.spec.shape
        known: tuple[Layout, ...] = get_args(Layout)
        fitting = [one for one in known if self._fits([shape[i] for i in TO_OTHER_LAYOUT[one]])]
        if len(fitting) == 1:
            return fitting[0]  # of square images one axis alone says nothing: it may be a side or the channels
        if shape[3] == want[1] and shape[1] != want[1]:
            return "NHWC"
        return "NCHW" if shape[1] == want[3] and shape[3] != want[3] else None


def fixed_batch(inputs: Sequence[InputSpec]) -> int | None:
    """The number of samples that the model takes at once, if it is fixed."""
    fixed = {spec.shape[0] for spec in inputs} - {None}
    if len(fixed) > 1 or 0 in fixed:
        other = max(inputs, key=lambda spec: spec.shape[0] or 0)
        raise DataError(
            "the model's inputs have different fixed first axes",
            where=aligned_rows(*[("model", spec.name, shape_text(spec.shape)) for spec in inputs]),
            help="give one array per sample for inputs without a batch axis, such as a recurrent state (of "
            f"{other.name} {shape_text((None, *other.shape))}), or export the models with the same, or a dynamic, "
            "batch axis on every input",
        )
    return fixed.pop() if fixed else None


def bind(
    arrays: Mapping[str, T], inputs: Sequence[InputSpec], origin: str, role: Role
) -> tuple[dict[str, T], T | None]:
    """Arrays by model input, and the labels; a single array fits a single input, also under another name.

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
    lines = [(origin, "missing", name + did_you_mean(name, extra)) for name in missing]
    lines += [(origin, "extra", name or "an array without a name") for name in extra]
    raise DataError(
        f"{role} data do not have one array per model input",
        where=aligned_rows(*lines),
        help=f"name the arrays after the model's inputs: {', '.join(names)}"
        + (f"; {LABELS} may be added" if LABELS not in names else ""),
    )


def _integer_range(dtype: DType) -> tuple[int, int]:
    info = np.iinfo(dtype.name)
    return int(info.min), int(info.max)
