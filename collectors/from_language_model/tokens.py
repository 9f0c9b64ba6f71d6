"""The texts that both models are run on: token ids from a file, or texts that the model's tokenizer reads."""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.errors import DataError
from quantmedic.engine.limits import TEXT_BYTES

Ids = NDArray[np.int64]
#: Tokens of a text that are used, unless another length is asked for.
LENGTH = 512
#: Parts of a text that stands alone.
_PARTS = 64
#: A text needs one token to predict and one to predict it from.
_SHORTEST = 2


def read_texts(path: Path, tokenizer: Path, vocabulary: int, *, length: int = LENGTH) -> list[Ids]:
    """Token ids of each text, at most ``length``; one that stands alone is cut into parts of as many tokens.

    Texts of fewer than two tokens are left out.

    Args:
        path: ``.npz`` or ``.npy`` with ids, ``[texts, tokens]`` or one array per text; ``.jsonl`` with a list of ids
            per line, or an object with ``input_ids`` or ``text``; any other file is text, parted by blank lines.
        tokenizer: Folder of the model, whose ``tokenizer.json`` reads texts.
        vocabulary: Ids have to be below it.
        length: Tokens that are kept of each text, from its beginning.

    Raises:
        DataError: The file cannot be read, holds no texts, or an id is beyond the vocabulary.
    """
    if not path.is_file():
        raise DataError("no such file of texts", where=str(path), help="give .jsonl, .npz, .npy or a text file")
    found = _read_arrays(path) if path.suffix in (".npz", ".npy") else _read_lines(path, tokenizer)
    if len(found) == 1:  # one long text is read as several, as others do, so that there is an interval
        found = [found[0][k : k + length] for k in range(0, len(found[0]), length)][:_PARTS]
    texts = [ids[:length] for ids in found if len(ids) >= _SHORTEST]
    if not texts:
        raise DataError("the file holds no text of two tokens or more", where=str(path), help="give some full texts")
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


def _read_lines(path: Path, tokenizer: Path) -> list[Ids]:
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


def _tokenized(texts: list[str], folder: Path) -> list[Ids]:
    """Ids of texts, with the special tokens that the tokenizer adds."""
    if not texts:
        return []
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
