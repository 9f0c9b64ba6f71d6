"""The texts that both models are run on: token ids from a file, or texts that the model's tokenizer reads."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import NPY_MAGIC, first_bytes, npy_column, npz_columns
from quantmedic.collectors.data.progress import Announce, no_announcement
from quantmedic.collectors.from_language_model.tokenizer import encode
from quantmedic.engine.errors import DataError
from quantmedic.engine.reading_limits import ARRAY_BYTES, SAMPLES, TEXT_BYTES

Ids = NDArray[np.int64]
#: Path of a file, an array of token ids, or one array or list of them per text.
TokenSource = object
#: Tokens of a text that are used, unless another length is asked for.
LENGTH = 512
#: Parts of a text that stands alone.
_PARTS = 64
_ARRAYS = "give integers, as an array [texts, tokens] or a list with one array per text"
_ARRAY_FILES = (".npz", ".npy")
#: A text needs one token to predict and one to predict it from.
_SHORTEST = 2


def name_of_texts(source: TokenSource) -> str:
    """What a report calls the texts: their file, or that there is none."""
    return str(source) if isinstance(source, str | Path) else "token ids from Python"


def longest_text(model: object) -> int:
    """Tokens that a network takes at most, as its configuration says."""
    most = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    return most if isinstance(most, int) and most >= _SHORTEST else sys.maxsize


def read_texts(
    source: TokenSource,
    tokenizer: Path,
    vocabulary: int,
    *,
    length: int = LENGTH,
    note: Announce = no_announcement,
) -> list[Ids]:
    """Token ids of each text, at most ``length``; one that stands alone is cut into parts of as many tokens.

    Texts of fewer than two tokens are left out.

    Args:
        source: A file, or token ids as an array ``[texts, tokens]`` or one array or list per text. Files:
            ``.npz`` or ``.npy`` with ids, ``[texts, tokens]`` or one array per text; ``.jsonl`` with a list of ids
            per line, or an object with ``input_ids`` or ``text``; any other file is text, parted by blank lines.
        tokenizer: Folder of the model, whose ``tokenizer.json`` reads texts.
        vocabulary: Ids have to be below it.
        length: Tokens that are kept of each text, from its beginning.
        note: Is told what a report has to say of how texts were read.

    Raises:
        DataError: The file cannot be read, holds no texts, or an id is beyond the vocabulary.
        LimitError: The file is too large, or the tokenizer takes too long.
    """
    found, path = _read_source(source, tokenizer, length * _PARTS, note), name_of_texts(source)
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


def _read_source(source: TokenSource, tokenizer: Path, most: int, note: Announce) -> list[Ids]:
    if not isinstance(source, str | Path):
        return _ids_of_arrays(source)
    path = Path(source)
    if not path.is_file():
        raise DataError("no such file of texts", where=str(path), help="give .jsonl, .npz, .npy or a text file")
    return _read_arrays(path) if path.suffix in _ARRAY_FILES else _read_lines(path, tokenizer, most, note)


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
    """Rows of all arrays of a file, whose size is known before any is read."""
    columns = [npy_column(path)] if first_bytes(path).startswith(NPY_MAGIC) else [*npz_columns(path).values()]
    shapes = [column.info.shape for column in columns]
    if any(column.info.dtype.kind not in "iu" or len(column.info.shape) not in (1, 2) for column in columns):
        raise DataError(
            "the arrays are no token ids", where=str(path), help="save integers, [texts, tokens] or one array per text"
        )
    SAMPLES.check(sum(shape[0] if len(shape) > 1 else 1 for shape in shapes), path)
    ARRAY_BYTES.check(sum(map(prod, shapes)) * np.dtype(np.int64).itemsize, path)
    return [np.asarray(row, np.int64) for column in columns for row in np.atleast_2d(column.load())]


def _read_lines(path: Path, tokenizer: Path, most: int, note: Announce) -> list[Ids]:
    TEXT_BYTES.check(path.stat().st_size, path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            "not readable as text", where=[str(path), f"cause  {error}"], help="save it as UTF-8"
        ) from error
    SAMPLES.check(text.count("\n"), path)
    if path.suffix != ".jsonl":
        parts = [part.strip() for part in text.split("\n\n")]
        return _tokenize([part for part in parts if part], tokenizer, most, note)
    found: list[Ids | str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            found.append(_entry(line, f"{path}  line {number}"))
    words = iter(_tokenize([entry for entry in found if isinstance(entry, str)], tokenizer, most, note))
    return [next(words) if isinstance(entry, str) else entry for entry in found]


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


def _tokenize(texts: list[str], folder: Path, most: int, note: Announce) -> list[Ids]:
    """Ids of texts, with the special tokens that the tokenizer adds."""
    if not texts:
        return []
    found = encode(folder, texts, most)
    if found.dropout:
        note(
            f"the tokenizer asks for a dropout of {found.dropout:g}, which is for training: it was switched off, so "
            "that a text always has the same tokens"
        )
    return [np.array(ids, np.int64) for ids in found.ids]


def spans_of(texts: Sequence[Ids]) -> list[slice]:
    """Where the tokens of each text are among all."""
    ends = np.cumsum([len(ids) for ids in texts]).tolist()
    return [slice(end - len(ids), end) for end, ids in zip(ends, texts, strict=True)]


def groups_of(texts: Sequence[Ids], tokens: int) -> Iterator[range]:
    """Texts in a row that have no more tokens together than so many, or a single one that has more."""
    start, held = 0, 0
    for place, ids in enumerate(texts):
        if place > start and held + len(ids) > tokens:
            yield range(start, place)
            start, held = place, 0
        held += len(ids)
    yield range(start, len(texts))
