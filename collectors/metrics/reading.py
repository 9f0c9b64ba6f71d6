"""How a built-in metric reads outputs and labels: which outputs, with which options, and what does not fit."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import Array
from quantmedic.engine.errors import DataError

#: Outputs of a model by name.
Outputs = Mapping[str, Array]
OWN = "write a metric: --metric module:function"
PICK = f"pick another output with --metric-option output=NAME, or {OWN}"

#: Orders of the four numbers of a box: corners, rows first, a corner and the sides, the centre and the sides.
BOXES = ("xyxy", "yxyx", "xywh", "cxcywh")
#: What makes scores of an output's numbers: nothing, or a function that was left to the application.
Scores = Literal["given", "sigmoid", "softmax"]
#: Where the score of "no object" stands, if anywhere: in the last column, as DETR has it; in the first one, as SSD has
#: it, where classes count on behind it from 0, or from 1 as if it were class 0 itself.
Background = Literal["none", "last", "first", "class-0"]
#: Left, top, right, bottom, class; or, as text files of YOLO have it, class, centre and sides as shares of the picture.
LabelLayout = Literal["corners", "yolo"]
#: Value of ``nms`` for none.
NO_SUPPRESSION = -1.0


def _token(text: str) -> int:
    """A token's number; -1 for ``none``."""
    return -1 if text == "none" else int(text)


def _one_of(*words: str) -> tuple[Callable[[str], object], str]:
    """What reads one of these words, and the words."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return parse, f"one of {', '.join(words)}"


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(text)
    return value


def _overlap(text: str) -> float:
    return NO_SUPPRESSION if text == "none" else _share(text)


#: Options by metric: what makes a value of the text, and what may be given, in words.
_SEQUENCE: dict[str, tuple[Callable[[str], object], str]] = {
    "blank": (_token, "the blank's class, or none for outputs that are not CTC"),
    "end": (_token, "the class that ends a sequence"),
    "space": (_token, "the class that separates words"),
    "alphabet": (str, "one character per class, in their order"),
}
_BOXES: dict[str, tuple[Callable[[str], object], str]] = {
    "boxes": _one_of(*BOXES),
    "unit": _one_of("labels", "pixels", "shares"),
    "objectness": _one_of("first", "none"),
    "scores": _one_of(*get_args(Scores)),
    "background": _one_of(*get_args(Background)),
    "nms": (_overlap, "the overlap from 0 to 1 from which on a box is suppressed, or none"),
    "confidence": (_share, "the score from 0 to 1 up to which a box is no detection"),
    "labels": _one_of(*get_args(LabelLayout)),
}
OPTIONS: Mapping[str, Mapping[str, tuple[Callable[[str], object], str]]] = {
    "map": _BOXES,
    "map50": _BOXES,
    "miou": {"ignore": (int, "the label of pixels that do not count")},
    "f1-binary": {"threshold": (float, "the score above which a sample is of class 1")},
    "cer": _SEQUENCE,
    "wer": _SEQUENCE,
    "perplexity": {"ignore": (int, "the label of tokens that do not count")},
}


@dataclass(frozen=True)
class Reading:
    """What a built-in metric was told, and what it has to say.

    Attributes:
        metric: Its name.
        output: Name of the output that it reads, or names separated by commas; None for what it finds by itself.
        options: Values of options that were given.
        notices: What the user should know of the labels although it is no error; grows while batches are read.
    """

    metric: str
    output: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notices:
            self.notices.append(text)

    def integer(self, name: str, default: int | None) -> int | None:
        """A number that was given, else the default."""
        value = self.options.get(name)
        return value if isinstance(value, int) else default

    def real(self, name: str, default: float) -> float:
        """A number that was given, else the default."""
        value = self.options.get(name)
        return float(value) if isinstance(value, int | float) else default

    def text(self, name: str, default: str) -> str:
        """A word that was given, else the default."""
        value = self.options.get(name)
        return value if isinstance(value, str) else default

    def layout(self) -> LabelLayout | None:
        """The layout of labelled boxes, where it was given."""
        return cast(LabelLayout | None, self.options.get("labels"))

    def select(self, outputs: Outputs) -> tuple[str, Array]:
        """Name and array of the one output that the metric reads: the first one by default.

        Raises:
            DataError: The model has no output of that name.
        """
        named = as_arrays(outputs)
        name = next(iter(named)) if self.output is None else self.output
        return name, named[known_output(name, named)]

    def select_several(self, outputs: Outputs) -> dict[str, Array]:
        """The outputs that were named, in the order of the names; all of them by default.

        Raises:
            DataError: The model has no output of such a name.
        """
        named = as_arrays(outputs)
        if self.output is None:
            return named
        return {name: named[known_output(name, named)] for name in map(str.strip, self.output.split(","))}


def parse_options(metric: str, given: Mapping[str, str]) -> dict[str, object]:
    """Values of the options that were given for a built-in metric.

    Raises:
        DataError: The metric has no such option, or it cannot have this value.
    """
    own = OPTIONS.get(metric, {})
    found: dict[str, object] = {}
    for name, text in given.items():
        if name not in own:
            known = ", ".join(f"{key}: {words}" for key, (_, words) in own.items())
            raise DataError(
                f"{metric} has no such option",
                where=f"--metric-option {name}={text}",
                help=f"it has {known}" if known else "leave --metric-option out",
            )
        parse, words = own[name]
        try:
            found[name] = parse(text)
        except ValueError as error:
            raise DataError(
                "value of the metric's option cannot be read",
                where=f"--metric-option {name}={text}",
                help=f"give {words}",
            ) from error
    return found


def as_arrays(outputs: Outputs) -> dict[str, Array]:
    """Outputs as arrays: runtimes return sequences and maps as other objects."""
    return {name: np.asarray(value) for name, value in outputs.items()}


def known_output(name: str, named: Mapping[str, Array]) -> str:
    """The name, where the model has an output of it.

    Raises:
        DataError: It has none.
    """
    if name not in named:
        near = get_close_matches(name, named, 1)
        raise DataError(
            "model has no such output",
            where=f"--metric-option output={name}" + (f", did you mean {near[0]}?" if near else ""),
            help=f"give one of {', '.join(named)}",
        )
    return name


def shapes_of(named: Mapping[str, Array]) -> list[str]:
    """One line per output, for messages."""
    return [f"output  {name}  {array.shape}" for name, array in named.items()]


def whole_labels(labels: Array, wanted: str) -> NDArray[np.int64]:
    """Labels as whole numbers in their shape.

    Raises:
        DataError: They are words or broken numbers; ``wanted`` says what was expected.
    """
    if labels.dtype.kind not in "fiub" or not np.array_equal(labels, np.floor(labels)):
        first = labels.reshape(-1)[:1].tolist()
        raise DataError(
            f"labels are not {wanted}", where=f"labels  {labels.shape}  {labels.dtype}, such as {first}", help=OWN
        )
    return labels.astype(np.int64)


def class_range_error(label: object, where: str, classes: int) -> DataError:
    """The error for a label that none of the classes has."""
    counted = label == classes
    return DataError(
        "label is not a class of the model",
        where=[f"label  {label}", f"output  {where}  {classes} classes"],
        help=f"give class indices from 0 to {classes - 1}"
        + (f"; labels that count from 1 to {classes} become them by labels - 1" if counted else ""),
    )
