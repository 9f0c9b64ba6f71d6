"""Hostile words of a command line, and modules whose functions return what nobody expects."""

import random
from collections.abc import Sequence

import click
from mutate_text import NUMBERS, STRINGS, times


def listed(text: str, between: str) -> tuple[str, ...]:
    """Texts that ``between`` divides."""
    return tuple(text.split(between))


_VALUES = listed(
    "0 -1 1 2 99999999999999999999 1e400 nan a=b = a,b , 1/0 0/1 3/2 @x x.npz out x=1,2 local:0 5m -5"
    " validation.mean=1,2,3 scale=255 layout=NHWC 1e9h mine: : a.b:c NHWC BGR quantized recall@0",
    " ",
)
#: Commands write where they are told to: no path leads out of the folder of the case.
_TEXTS = (*_VALUES, *(text for text in STRINGS if "/" not in text), *map(str, NUMBERS))
#: Options that take too long here, or start what a case must not.
_LEFT_OUT = ("help", "cluster", "prove", "write_fixed", "budget", "profile")


def mutate_words(words: Sequence[str], rng: random.Random) -> list[str]:
    """The command with more options, other values, and words left out, added and changed."""
    found, options = list(words), _options(words[0])
    for _ in times(rng):
        change = rng.randrange(8)
        if change == 0 and len(found) > 1:
            found.pop(rng.randrange(1, len(found)))
        elif change == 1 or not options:
            at = rng.randrange(1, len(found) + 1)
            found[at:at] = [rng.choice(_TEXTS)]
        else:
            name, is_flag, choices = rng.choice(options)
            found += [name] if is_flag else [name, rng.choice((*choices, *choices, *_VALUES) if choices else _TEXTS)]
    return [word.replace("\x00", "") for word in found]


def _options(name: str) -> list[tuple[str, bool, tuple[str, ...]]]:
    """Options of a command, whether they are flags, and what they may be."""
    from quantmedic.cli.main import cli  # after the interpreter is warm

    command = cli.get_command(click.Context(cli), name)
    return [
        (option.opts[0], option.is_flag, tuple(map(str, getattr(option.type, "choices", ()))))
        for option in (command.params if command else ())
        if isinstance(option, click.Option) and option.name not in _LEFT_OUT
    ]


_ARRAYS = listed(
    "np.zeros((2, 3, 4, 4), 'f4')|np.zeros((2, 3, 4, 4))|np.full((2, 3, 4, 4), np.nan, 'f4')"
    "|np.zeros((2, 3, 4, 4), 'u1')|np.zeros(3)|np.float32(1)|np.zeros((2, 3, 4, 4), object)|np.array(['a'])"
    "|np.broadcast_to(np.float32(1), (2, 3, 4, 4))|np.ma.masked_all((2, 3, 4, 4))|np.matrix([[1.0]])|[[1.0]]|'text'"
    "|b'x'|Array()|np.zeros((0, 3, 4, 4), 'f4')|np.zeros((10**6, 3, 4, 4), 'f4')[:2]|np.zeros((2, 4, 4, 3), 'f4')",
    "|",
)
_OTHERS = listed(
    r"None|1|float('nan')|float('inf')|10**400|True|'\x1b]0;owned\x07'|object()|{}|[]|{'x': None}|1j|type|range(3)", "|"
)
_RAISED = listed(
    r"ValueError('bad\x1b[31m\x07 value')|SystemExit(1)|SystemExit('gone')|KeyboardInterrupt()|MemoryError()|Odd()"
    "|RecursionError()|StopIteration()|BaseException('base')|GeneratorExit()|OSError(2, 'none')|ValueError()",
    "|",
)
_BODIES = listed(
    "raise {raised}|return {value}|yield {value}|yield {array}\n    yield {value}|yield {array}\n    raise {raised}"
    "|return {{'x': {array}}}|yield {{'x': {array}}}, {value}|yield {array}, {array}|return iter([{array}] * 3)"
    "|for _ in range(500):\n        yield {array}|yield ({array}, {value}, 3)|sys.exit(1)|return {array}|return data"
    "|yield {array}; os.chdir('/'); yield {array}|return {array}, {array}",
    "|",
)
_HEAD = """\
import os, sys
import numpy as np

class Odd(Exception):
    def __str__(self):
        raise ValueError("no text")

class Array:
    shape, dtype, ndim = (2, 3, 4, 4), "float32", 4
    def __array__(self, *a, **k):
        raise {raised}
    def __len__(self):
        return {length}

"""


def write_module(_: bytes, rng: random.Random) -> bytes:
    """A module whose functions return, yield and raise what nobody asked for."""

    def fill(template: str) -> str:
        value, length = rng.choice((*_ARRAYS, *_OTHERS)), rng.choice(("2", "-1", "2**70"))
        return template.format(value=value, array=rng.choice(_ARRAYS), raised=rng.choice(_RAISED), length=length)

    data, metric = fill(rng.choice(_BODIES)), fill(rng.choice(_BODIES))
    given = rng.choice(("", "", "", "x", "*a", "x=1", "a, b"))
    compared = rng.choice(("outputs, labels", "*a", "outputs", "", "outputs, labels, more", "a, b=None"))
    functions = {f"data({given})": data, f"metric({compared})": metric, "number(*given)": metric}
    return "\n".join([fill(_HEAD), *(f"def {head}:\n    {body}\n" for head, body in functions.items())]).encode()
