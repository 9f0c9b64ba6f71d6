"""Declared preprocessing: what is done to stored numbers and images before the network sees them.

Nothing is guessed: without a declaration the data go in as they are, and 8-bit data for a float network are refused.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import Array
from quantmedic.engine.case.facts import ROLES, Role
from quantmedic.engine.errors import DataError
from quantmedic.engine.input_files import require_regular
from quantmedic.engine.reading_limits import IMAGE_PIXELS

T = TypeVar("T")
#: How all of this is declared on the command line.
_OPTION = "--preprocess"
Layout = Literal["NCHW", "NHWC"]
ChannelOrder = Literal["RGB", "BGR"]

#: Moves the channel axis of a four-axis array out of the named layout into the other one.
TO_OTHER_LAYOUT: dict[Layout, tuple[int, int, int, int]] = {"NCHW": (0, 2, 3, 1), "NHWC": (0, 3, 1, 2)}
_IMAGE_CHANNELS = (1, 3, 4)
_PILLOW_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True)
class Preprocessing:
    """What the user declared for one data set; ``None`` means not declared, and nothing is done.

    Attributes:
        mean: Subtracted; one number, or one per channel in the order the network sees.
        std: Divided by; one number, or one per channel.
        scale: Divided by first, 255 turns 8-bit values into 0..1.
        layout: Layout of the stored arrays; they are transposed if the network takes the other one. Image files
            need none; for them it says what the network takes where the shape of its input leaves that open.
        channel_order: Order in which channels of image files are handed over; files are decoded to RGB.
        resize: Height and width to which image files are scaled, bilinear, without keeping the aspect ratio.

    Raises:
        DataError: A number is out of range, or mean and std differ in length.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    scale: float | None = None
    layout: Layout | None = None
    channel_order: ChannelOrder | None = None
    resize: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        _require("mean", self.mean, lambda values: len(values) > 0 and all(map(math.isfinite, values)), "finite")
        _require("std", self.std, lambda values: len(values) > 0 and all(map(_positive, values)), "positive")
        _require("scale", self.scale, _positive, "positive: values are divided by it")
        _require("layout", self.layout, lambda value: value in get_args(Layout), "NCHW or NHWC")
        _require("channel order", self.channel_order, lambda value: value in get_args(ChannelOrder), "RGB or BGR")
        _require("resize", self.resize, lambda size: len(size) == 2 and min(size) > 0, "a positive height and width")
        lengths = {len(values) for values in (self.mean, self.std) if values is not None and len(values) > 1}
        if len(lengths) > 1:
            raise DataError(
                "mean and std have different numbers of channels",
                where=[f"mean  {_numbers_text(self.mean)}", f"std   {_numbers_text(self.std)}"],
                help="give one number, or one number per channel",
            )

    @property
    def arithmetic(self) -> bool:
        """Whether values are changed, that is whether mean, std or scale was declared."""
        return (self.mean, self.std, self.scale) != (None, None, None)

    @property
    def words(self) -> str:
        """What was declared, as an option, with the formula; empty where nothing was."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        given = [f"{name}={_numbers_text(value)}" for name, value in values.items() if value is not None]
        option = f'--preprocess "{" ".join(given)}"' if given else ""
        return f"{option}, that is (x / scale - mean) / std" if self.arithmetic else option

    def apply(self, array: Array) -> NDArray[np.float32]:
        """Compute ``(x / scale - mean) / std`` in float32; what was not declared is left out.

        Args:
            array: ``[samples, ...]`` of any number type, left unchanged. Several means or stds run along the last
                axis if ``layout`` is NHWC, else along axis 1.

        Returns:
            float32 array of the same shape; the array itself if it is float32 and no arithmetic is declared.

        Raises:
            DataError: mean or std have another length than the channel axis.
        """
        if not self.arithmetic:
            return array.astype(np.float32, copy=False)
        result = array.astype(np.float32)
        if self.scale is not None:
            result /= np.float32(self.scale)
        if self.mean is not None:
            result -= self._per_channel("mean", self.mean, result.shape)
        if self.std is not None:
            result /= self._per_channel("std", self.std, result.shape)
        return result

    def _per_channel(self, name: str, values: tuple[float, ...], shape: tuple[int, ...]) -> NDArray[np.float32]:
        """``values`` shaped so that they run along the channel axis of an array of this shape."""
        if len(values) == 1:
            return np.asarray(values[0], np.float32)
        axis = len(shape) - 1 if self.layout == "NHWC" else 1
        if axis < 1 or axis >= len(shape) or shape[axis] != len(values):
            raise DataError(
                f"{name} has another number of channels than the data",
                where=[f"{name}  {_numbers_text(values)}", f"data  {shape}, channels along axis {axis}"],
                help=f"give one {name} or one per channel; if channels come last, pass --preprocess layout=NHWC",
            )
        return np.asarray(values, np.float32).reshape([-1 if i == axis else 1 for i in range(len(shape))])


def _require(name: str, value: T | None, valid: Callable[[T], bool], what: str) -> None:
    if value is not None and not valid(value):
        raise DataError(f"{name} must be {what}", where=f"{name}  {_numbers_text(value)}")


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _numbers_text(value: object) -> str:
    return ",".join(f"{v}" for v in value) if isinstance(value, tuple) else str(value)


def layout_of(shape: Sequence[int | None]) -> Layout | None:
    """Layout of a four-axis image tensor by its axis of 1, 3 or 4 entries; ``None`` where that does not decide it."""
    if len(shape) != 4:
        return None
    first, last = shape[1] in _IMAGE_CHANNELS, shape[3] in _IMAGE_CHANNELS
    return None if first == last else "NCHW" if first else "NHWC"


# --- options of the command line ---------------------------------------------------------------------------------


def preprocessing_by_role(given: Preprocessing | Mapping[Role, Preprocessing] | None) -> dict[Role, Preprocessing]:
    """What was declared of each data set by role; one ``Preprocessing`` is that of all.

    Raises:
        DataError: It is something else.
    """
    found = dict.fromkeys(ROLES, given) if isinstance(given, Preprocessing) else given or {}
    if (
        not isinstance(found, Mapping)
        or found.keys() - set(ROLES)
        or not all(isinstance(each, Preprocessing) for each in found.values())
    ):
        raise DataError(
            "preprocessing is neither a Preprocessing nor a mapping of data sets to them",
            where=repr(given)[:80],
            help="give quantmedic.Preprocessing(scale=255, mean=(0.5,), std=(0.5,)) for both data sets, or "
            f"{{{ROLES[0]!r}: quantmedic.Preprocessing(scale=255)}}; data sets are {' and '.join(ROLES)}",
        )
    return dict(found)


def parse_preprocessing(texts: Sequence[str]) -> dict[Role, Preprocessing]:
    """Turn texts such as ``scale=255``, or ``validation.mean=0.5 validation.std=0.2``, into a declaration per data set.

    Args:
        texts: ``[ROLE.]KEY=VALUE``, one or several in each text; keys are the fields of `Preprocessing`. A value
            without a role holds for both sets, one with a role only for its own.

    Returns:
        A `Preprocessing` for every role.

    Raises:
        DataError: A value cannot be read, is given twice, or names no key or role.
    """
    given: dict[str, dict[Role | None, object]] = {}
    for text in (part for each in texts for part in _parts(each)):
        role, name, value = _split_setting(text)
        own = given.setdefault(name, {})
        if role in own:
            raise DataError(
                f"{name} is given twice" + (f" for the {role} data" if role else ""),
                where=f"{_OPTION} {text}",
                help="to treat the two data sets differently, write "
                + " and ".join(f"{_OPTION} {each}.{name}=VALUE" for each in ROLES),
            )
        own[role] = _parse_value(name, value, text)
    return {role: _preprocessing_of(role, _values_of(role, given)) for role in ROLES}


def _parts(text: str) -> list[str]:
    """Settings that blanks separate; a blank behind a comma belongs to a value."""
    return re.sub(r",\s+", ",", text).split() or [text]


def _values_of(role: Role, given: Mapping[str, Mapping[Role | None, object]]) -> dict[str, object]:
    """Values of one data set; those that name it win over those for both."""
    return {name: own.get(role, own.get(None)) for name, own in given.items() if role in own or None in own}


def _split_setting(text: str) -> tuple[Role | None, str, str]:
    head, equals, value = text.partition("=")
    owner, dot, key = head.rpartition(".")
    name = key.strip().replace("-", "_")
    if not equals or name not in _PARSERS:
        near = get_close_matches(name, _PARSERS, 1)
        known = ", ".join(_PARSERS)
        raise DataError(
            f"unknown preprocessing {name!r}" + (f"; did you mean {near[0]}?" if near else ""),
            where=f"{_OPTION} {text}",
            help=f"write {_OPTION} [ROLE.]KEY=VALUE, such as {_OPTION} scale=255; keys are {known}",
        )
    if not dot:
        return None, name, value
    role = next((role for role in ROLES if role == owner.strip()), None)
    if role is None:
        near = get_close_matches(owner.strip(), ROLES, 1, 0.3)
        raise DataError(
            f"{owner!r} is no data set",
            where=f"{_OPTION} {text}",
            help=f"write {_OPTION} {near[0] if near else ROLES[0]}.{name}={value}; the sets are {' and '.join(ROLES)}",
        )
    return role, name, value


def _preprocessing_of(role: Role, fields: Mapping[str, Any]) -> Preprocessing:
    """The declaration of one data set; each parser gives its field the right type."""
    try:
        return Preprocessing(**fields)
    except DataError as error:
        raise DataError(f"{role} data: {error.message}", where=error.where, help=error.help) from None


def _parse_value(name: str, value: str, text: str) -> object:
    parse, example = _PARSERS[name]
    try:
        return parse(value.strip())
    except ValueError:
        raise DataError(
            f"{name} cannot be read", where=f"{_OPTION} {text}", help=f"write {_OPTION} {name}={example}"
        ) from None


def _parse_floats(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _parse_size(text: str) -> tuple[int, int]:
    sides = [int(part) for part in text.lower().replace("x", ",").split(",")]
    if len(sides) > 2:
        raise ValueError(text)
    return sides[0], sides[-1]


def _choice_parser(choices: Sequence[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.upper() not in choices:
            raise ValueError(text)
        return text.upper()

    return parse


_PARSERS: dict[str, tuple[Callable[[str], object], str]] = {
    "mean": (_parse_floats, "0.485,0.456,0.406, one number or one per channel"),
    "std": (_parse_floats, "0.229,0.224,0.225, one number or one per channel"),
    "scale": (float, "255, the number that values are divided by"),
    "layout": (_choice_parser(get_args(Layout)), "NCHW or NHWC"),
    "channel_order": (_choice_parser(get_args(ChannelOrder)), "RGB or BGR"),
    "resize": (_parse_size, "224 or 224x320, height first"),
}


# --- image files -------------------------------------------------------------------------------------------------


#: Formats by Pillow's names. Of others, whatever a file is called, Pillow would start programs: Ghostscript for one.
IMAGE_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")


def read_image(path: Path, channels: int | None, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """Decode one image file as the declaration says, before any arithmetic.

    Args:
        path: File of an 8-bit format among ``IMAGE_FORMATS``; EXIF rotation is not applied.
        channels: 1 (grey), 3 or 4 (with transparency); ``None`` means 3.
        preprocessing: Its ``resize`` and ``channel_order`` are applied.

    Returns:
        uint8 array ``[height, width, channels]``.

    Raises:
        DataError: Pillow is missing, the file cannot be decoded, or it does not hold 8-bit channels.
        LimitError: It has more pixels than a photograph.
    """
    Image = _pillow()
    mode = _PILLOW_MODES.get(3 if channels is None else channels)
    if mode is None:
        raise DataError(
            "image files have 1, 3 or 4 channels",
            where=f"model  takes {channels} channels",
            help="save the samples as an .npz with one array per model input",
        )
    try:
        require_regular(path)
        with Image.open(path, formats=IMAGE_FORMATS) as image:
            IMAGE_PIXELS.check(image.width * image.height, path)
            if image.mode.startswith(("I", "F")):
                raise DataError(
                    "image does not have 8 bits per channel",
                    where=f"{path}  {image.mode}",
                    help="convert it to 8 bits, or save the samples as an .npz",
                )
            pixels = image.convert(mode)
            if preprocessing.resize is not None:
                height, width = preprocessing.resize
                pixels = pixels.resize((width, height), Image.Resampling.BILINEAR)
            array = np.asarray(pixels)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(
            "image cannot be decoded",
            where=[str(path), f"cause  {error}"],
            help="remove the file or replace it by an intact one",
        ) from error
    array = array.reshape(*array.shape[:2], -1)
    return _reverse_channels(array) if preprocessing.channel_order == "BGR" else array


def _reverse_channels(array: Array) -> Array:
    """Colours in reverse order; transparency stays last, grey stays."""
    return np.concatenate([array[..., 2::-1], array[..., 3:]], axis=-1) if array.shape[-1] >= 3 else array


def _pillow() -> ModuleType:
    try:
        from PIL import Image  # an optional package
    except ImportError:
        raise DataError(
            "image files need Pillow, which is not installed", help="pip install 'quantmedic[images]'"
        ) from None
    return Image
