"""The tokenizer of a checkpoint, run in a process of its own with limits on time and memory.

A ``tokenizer.json`` that is damaged makes the library, which is no Python, panic, abort or take all memory.
"""

import json
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, cast

from quantmedic.collectors.native.child import ask_child
from quantmedic.engine.errors import DataError
from quantmedic.engine.reading_limits import TEXT_BYTES, TOKENIZER_BYTES, TOKENIZER_SECONDS

#: Of a folder.
NAME = "tokenizer.json"
#: Texts of which all that the library finds is in memory.
_AT_ONCE = 256


class Encoded(NamedTuple):
    """Token ids of each text, with the special tokens that the tokenizer adds.

    ``dropout``: the share of its merges that it would leave out at random, which none were; None where it says nothing.
    """

    ids: list[list[int]]
    dropout: float | None


def encode(folder: Path, texts: Sequence[str], most: int) -> Encoded:
    """Token ids of texts, the first ``most`` of each.

    Raises:
        DataError: There is no tokenizer in the folder, its package is not installed, or it cannot be used.
        LimitError: Its file is too large, or it takes too long.
    """
    found = cast("dict[str, object]", _ask(folder, texts=list(texts), most=most))
    return Encoded(cast("list[list[int]]", found["ids"]), cast("float | None", found["dropout"]))


def decode(folder: Path, ids: Sequence[Sequence[int]]) -> list[str]:
    """Texts of token ids.

    Raises:
        DataError: See ``encode``.
        LimitError: Likewise.
    """
    return cast("list[str]", _ask(folder, ids=[*map(list, ids)]))


def _ask(folder: Path, **question: object) -> object:
    file = folder / NAME
    if not file.is_file():
        raise DataError(
            "there is no tokenizer.json beside the float model, which texts need",
            where=str(file),
            help="copy it there, or give token ids",
        )
    if find_spec("tokenizers") is None:  # comes with transformers
        raise DataError(
            "the package tokenizers is not installed, which texts need", help="pip install 'quantmedic[language]'"
        )
    TEXT_BYTES.check(file.stat().st_size, file)
    asked = json.dumps({"file": str(file.absolute()), **question}).encode()
    try:
        found = json.loads(
            ask_child(f"{__name__}:use_tokenizer", asked, TOKENIZER_SECONDS.in_force, TOKENIZER_BYTES.in_force)
        )
    except subprocess.TimeoutExpired:
        raise TOKENIZER_SECONDS.error_for(file) from None
    except OSError as error:
        bound = TOKENIZER_BYTES.amount(TOKENIZER_BYTES.in_force)
        why = f"its process ended without an answer: it crashed, or took more than {bound} ({TOKENIZER_BYTES.variable})"
        raise _unusable(file, why) from error
    if "error" in found:
        raise _unusable(file, found["error"])
    return found["found"]


def _unusable(file: Path, why: str) -> DataError:
    return DataError("the tokenizer cannot be used", where=[str(file), f"cause  {why}"], help="copy it again")


def use_tokenizer(question: bytes) -> bytes:
    """What the child process finds, as JSON."""
    try:
        return json.dumps({"found": _use_library(**json.loads(question))}).encode()
    except BaseException as error:  # a panic of the library is no Exception
        lines = str(error).splitlines() or [type(error).__name__]
        return json.dumps({"error": lines[0][:300]}).encode()


def _use_library(
    file: str, texts: list[str] | None = None, ids: list[list[int]] | None = None, most: int | None = None
) -> object:
    from tokenizers import Tokenizer  # an optional package, in this process alone

    tokenizer = Tokenizer.from_file(file)
    # Texts are cut by who asks, and nothing fills them up.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if ids is not None:
        return tokenizer.decode_batch(ids, skip_special_tokens=False)
    dropout = getattr(tokenizer.model, "dropout", None)
    if dropout is not None:
        tokenizer.model.dropout = None  # else the same text has other tokens each time
    wanted = texts or []
    parts = (tokenizer.encode_batch(wanted[k : k + _AT_ONCE]) for k in range(0, len(wanted), _AT_ONCE))
    return {"ids": [own.ids[:most] for part in parts for own in part], "dropout": dropout}
