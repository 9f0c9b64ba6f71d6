"""Front ends, and which of them a model belongs to."""

from pathlib import Path

from quantmedic.collectors.extensions import Kind, extension_for
from quantmedic.collectors.measure.front_end import FrontEnd
from quantmedic.engine.errors import ModelError

#: Front ends, each by the name that its models say as ``Models.framework``.
FRONT_ENDS: Kind[FrontEnd] = Kind("quantmedic.front_ends", FrontEnd)


def front_end_named(name: str) -> FrontEnd:
    """The front end of a name, as in ``Models.framework``.

    Raises:
        LookupError: There is none.
        QuantmedicError: It cannot be loaded.
    """
    return {each.name: each for each in FRONT_ENDS.find(name)}[name]


def front_end_of(model: object) -> FrontEnd:
    """The front end that a model belongs to: a path, or an object such as a module.

    Raises:
        QuantmedicError: Nothing recognizes it, and one that may cannot be loaded.
    """
    return extension_for(FRONT_ENDS, model, source_name(model))


def front_end_of_pair(float_model: object, quantized_model: object) -> FrontEnd:
    """The front end that both models belong to.

    Raises:
        ModelError: They belong to two.
    """
    models = (float_model, quantized_model)
    if _is_path(float_model) != _is_path(quantized_model):
        raise ModelError(
            "one model is a file, the other is not",
            where=[f"float     {source_name(float_model)}", f"quantized {source_name(quantized_model)}"],
            help="give two files, or two torch modules",
        )
    # A file that is missing is named by the front end that reads the other one.
    present = [model for model in models if not _is_path(model) or Path(str(model)).exists()] or list(models)
    found = {each.name: each for each in map(front_end_of, present)}
    if len(found) == 1:
        return next(iter(found.values()))
    titles = [front_end_of(model).title for model in models]
    odd = next(each.title for each in FRONT_ENDS if each.name in found)
    raise ModelError(
        f"one model is {'an' if odd[:1] in 'AEIOU' else 'a'} {odd} file, the other is not",
        where=[f"float     {float_model}  {titles[0]}", f"quantized {quantized_model}  {titles[1]}"],
        help="give two files of one kind: the float model as the converter writes it without quantization",
    )


def source_name(model: object) -> str:
    """How messages name a model: its path, or its class."""
    return str(model) if _is_path(model) else type(model).__name__


def _is_path(model: object) -> bool:
    return isinstance(model, str | Path)
