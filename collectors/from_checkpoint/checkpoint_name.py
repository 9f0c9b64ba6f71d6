"""What a checkpoint is called: as its file or folder, or, where any could be called so, after what it belongs to."""

import re
from collections.abc import Iterator, Mapping, Sequence
from os.path import expanduser
from pathlib import Path

from quantmedic.collectors.from_checkpoint.safetensors_file import Checkpoint

#: Words of which names are made that tell no model.
_ANY = frozenset(
    word
    for words in (
        "checkpoint checkpoints ckpt compressed converted export exported final float gptq awq gguf hf latest main",
        "model models of out output outputs packed pytorch quant quantised quantized result results safetensors saved",
        "snapshots temp tmp weights k l m s xs xxs nl",
    )
    for word in words.split()
)
#: How many bits there are, such as ``int4``, ``w4a16``, ``fp8``, ``4bit`` and ``Q4``.
_BITS = re.compile(r"(u?int|fp|bf|nf|mx|mxfp|nvfp|float|w|i?q)?\d+(a\d+)?(bits?)?")
#: What a commit is called.
_HASH = re.compile(r"[0-9a-f]{40}")
#: What stands between owner and name in a cache of Hugging Face.
_OWNER = "--"


def name_of(quantized: Checkpoint, floats: Checkpoint) -> str:
    """The name that a report is given.

    Names such as ``quantized`` or ``model.safetensors`` say nothing: what the configuration calls the model it was
    made of is set in front, else the nearest folder above with a name of its own.
    """
    path = quantized.path if quantized.path.name else quantized.path.resolve()  # the folder that one is in
    own = path.name
    if not _is_any(path):
        return own
    base = next(_names_in(quantized.config, floats.config), None)
    if base is not None:
        return base if _HASH.fullmatch(own) else f"{base} ({own})"
    folder = _telling_folder(path)
    if folder is None:
        return own
    return folder if _HASH.fullmatch(own) else f"{folder}/{own}"


def architecture_of(config: Mapping[str, object]) -> str | None:
    """``model_type`` of the language model; None where a configuration names none."""
    text = config.get("text_config")
    own = (text.get("model_type") if isinstance(text, Mapping) else None) or config.get("model_type")
    return own if isinstance(own, str) else None


def _names_in(*configs: Mapping[str, object]) -> Iterator[str]:
    for config in configs:
        found = config.get("_name_or_path")
        if isinstance(found, str) and found.strip() and not _is_any(Path(found)):
            yield Path(found).name


def _telling_folder(path: Path) -> str | None:
    """The folder of a user is none: it tells who, and not what."""
    nearest = path.parent.resolve()
    home = Path(expanduser("~"))
    named = (each for each in (nearest, *nearest.parents) if not _is_any(each) and each != home)
    found = next(named, None)
    return None if found is None else found.name.rpartition(_OWNER)[2]


def _is_any(path: Path) -> bool:
    """All words of the name are such as any model's could have."""
    words: Sequence[str] = re.findall(r"[a-z0-9]+", path.name.casefold())
    if len(words) == 1 and (_HASH.fullmatch(words[0]) or words[0] in _ANY):
        return True
    if len(words) == 1 and words[0].isdigit():
        return False  # a number by itself may be that of a run
    return all(word in _ANY or _BITS.fullmatch(word) for word in words)
