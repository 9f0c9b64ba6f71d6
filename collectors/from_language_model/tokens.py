"""The texts that both models are run on: token ids from a file, or texts that the model's tokenizer reads."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.errors import DataError
from quantmedic.engine.limits import TEXT_BYTES

Ids = NDArray[np.int64]
#: Path of a file, an array of token ids, or one array or list of them per text.
TokenSource = object
#: Tokens of a text that are used, unless another length is asked for.
LENGTH = 512
#: Parts of a text that stands alone.
_PARTS = 64
_ARRAYS = "give integers, as an array [texts, tokens] or a list with one array per text"
#: A text needs one token to predict and one to predict it from.
_SHORTEST = 2


def name_of_texts(source: TokenSource) -> str:
    """What a report calls the texts: their file, or that there is none."""
    return str(source) if isinstance(source, str | Path) else "token ids from Python"


def read_texts(source: TokenSource, tokenizer: Path | None, vocabulary: int, *, length: int = LENGTH) -> list[Ids]:
    """Token ids of each text, at most ``length``; one that stands alone is cut into parts of as many tokens.

    Texts of fewer than two tokens are left out.

    Args:
        source: A file, or token ids as an array ``[texts, tokens]`` or one array or list per text. Files:
            ``.npz`` or ``.npy`` with ids, ``[texts, tokens]`` or one array per text; ``.jsonl`` with a list of ids
            per line, or an object with ``input_ids`` or ``text``; any other file is text, parted by blank lines.
        tokenizer: Folder of the model, whose ``tokenizer.json`` reads texts; None where there is none.
        vocabulary: Ids have to be below it.
        length: Tokens that are kept of each text, from its beginning.

    Raises:
        DataError: The file cannot be read, holds no texts, or an id is beyond the vocabulary.
    """
    found, path = _read_source(source, tokenizer), name_of_texts(source)
    if len(found) == 1:  # one long text is read as several, as others do, so that there is an interval
        found = [found[0][k : k + length] for k in range(0, len(found[0]), length)][:_PARTS]
    texts = [ids[:length] for ids in found if len(ids) >= _SHORTEST]
    if not texts:
        raise DataError("the file holds no text of two tokens or more", where=path, help="give some full texts")
    for number, ids in enumerate(texts, 1):
        if (ids < 0).any():
            raise DataError(
                "a token is below 0",
                where=f"{path}  text {number}",
                help="leave out what only fills texts up (padding)",
            )
        beyond = ids[ids >= vocabulary]
        if len(beyond):
            raise DataError(
                "a token is beyond the vocabulary of the model",
                where=[f"{path}  text {number}", f"token       {beyond[0]}", f"vocabulary  {vocabulary}"],
                help="the texts were tokenized for another model: use the tokenizer of this one",
            )
    return texts


def _read_source(source: TokenSource, tokenizer: Path | None) -> list[Ids]:
    if not isinstance(source, str | Path):
        return _ids_of_arrays(source)
    path = Path(source)
    if not path.is_file():
        raise DataError("no such file of texts", where=str(path), help="give .jsonl, .npz, .npy or a text file")
    return _read_arrays(path) if path.suffix in (".npz", ".npy") else _read_lines(path, tokenizer)


def _ids_of_arrays(source: object) -> list[Ids]:
    """Token ids from Python: arrays, lists or tensors."""
    try:
        found = [np.asarray(text) for text in cast("Iterable[Any]", source)]
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError("the texts are no token ids", where=f"cause  {error}", help=_ARRAYS) from error
    if found and all(text.ndim == 0 for text in found):  # one text alone
        found = [np.asarray(found)]
    if any(text.dtype.kind not in "iu" or text.ndim != 1 for text in found):
        raise DataError("the texts are no token ids", where="token ids from Python", help=_ARRAYS)
    return [text.astype(np.int64) for text in found]


def _read_arrays(path: Path) -> list[Ids]:
    try:
        content = np.load(path, allow_pickle=False)
        arrays = [content[name] for name in content.files] if path.suffix == ".npz" else [content]
    except (OSError, ValueError, EOFError) as error:
        raise DataError("not readable as arrays", where=[str(path), f"cause  {error}"], help="save integers") from error
    if any(array.dtype.kind not in "iu" or array.ndim not in (1, 2) for array in arrays):
        raise DataError(
            "the arrays are no token ids", where=str(path), help="save integers, [texts, tokens] or one array per text"
        )
    return [np.asarray(row, np.int64) for array in arrays for row in np.atleast_2d(array)]


def _read_lines(path: Path, tokenizer: Path | None) -> list[Ids]:
    TEXT_BYTES.check(path.stat().st_size, str(path))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            "not readable as text", where=[str(path), f"cause  {error}"], help="save it as UTF-8"
        ) from error
    if path.suffix != ".jsonl":
        parts = [part.strip() for part in text.split("\n\n")]
        return _tokenized([part for part in parts if part], tokenizer)
    found: list[Ids | str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            found.append(_entry(line, f"{path}  line {number}"))
    words = _tokenized([entry for entry in found if isinstance(entry, str)], tokenizer)
    return [words.pop(0) if isinstance(entry, str) else entry for entry in found]


def _entry(line: str, where: str) -> Ids | str:
    """Ids, or a text."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            "a line is no JSON", where=[where, f"cause  {error}"], help="write one JSON value per line"
        ) from error
    if isinstance(content, dict):
        content = content.get("input_ids", content.get("text"))
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(own, int) and abs(own) < 2**31 for own in content):
        return np.array(content, np.int64)
    raise DataError(
        "a line holds neither token ids nor a text", where=where, help='write {"text": "…"} or {"input_ids": [1, 2]}'
    )


def _tokenized(texts: list[str], folder: Path | None) -> list[Ids]:
    """Ids of texts, with the special tokens that the tokenizer adds."""
    if not texts:
        return []
    if folder is None:
        raise DataError(
            "texts need the tokenizer of the model, and a module in memory has none",
            help="give token ids, or the folder of the float model in place of the module",
        )
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise DataError(
            "there is no tokenizer.json beside the float model, which texts need",
            where=str(file),
            help="copy it there, or give token ids",
        )
    try:
        from tokenizers import Tokenizer  # comes with transformers
    except ImportError as error:
        raise DataError(
            "the package tokenizers is not installed, which texts need", help="pip install 'quantmedic[language]'"
        ) from error
    try:
        reader = Tokenizer.from_file(str(file))
        return [np.array(own.ids, np.int64) for own in reader.encode_batch(texts)]
    except Exception as error:  # The library raises Exception itself.
        raise DataError(
            "the tokenizer cannot be used", where=[str(file), f"cause  {error}"], help="copy it again"
        ) from error
