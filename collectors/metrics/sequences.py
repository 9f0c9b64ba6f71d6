"""Metrics of sequences: error rates of characters and words, and perplexity."""

from collections.abc import Iterator, Sequence

import numpy as np

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.metrics.reading import PICK, Outputs, Reading, class_range_error, whole_labels
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.errors import DataError

#: Labels of tokens that the loss of most training frameworks leaves out.
_IGNORED = -100
#: A label that no token has.
_NO_TOKEN = -1


def error_rows(reading: Reading, outputs: Outputs, labels: Array) -> Tally:
    """Rows (edits, length of the label), in characters for ``cer`` and in words for ``wer``."""
    where, found = reading.select(outputs)
    if len(found) != len(labels) or found.ndim not in (2, 3):
        raise DataError(
            f"{reading.metric} needs class scores [samples, steps, classes] or token ids [samples, steps]",
            where=[f"output  {where}  {found.shape}", f"labels  {labels.shape}"],
            help=f"samples lie along axis 0: transpose outputs that put steps first; {PICK}",
        )
    if reading.metric == "wer":
        _require_words(reading, where, found, labels)
    sequences = _greedy(reading, where, found)
    rows = [
        (edit_distance(own, truth), len(truth))
        for own, truth in zip(_units(reading, sequences), _units(reading, _truths(reading, labels)), strict=True)
    ]
    unknown = ~np.isfinite(found.reshape(len(found), -1)).all(axis=1)
    counts = np.array(rows, np.float64).reshape(-1, 2)
    counts[unknown] = np.nan
    return Tally.of_rows(counts)


def edit_distance(first: Sequence[object], second: Sequence[object]) -> int:
    """Insertions, deletions and replacements that turn one sequence into the other (Levenshtein 1966)."""
    numbers: dict[object, int] = {}
    a, b = (np.array([numbers.setdefault(unit, len(numbers)) for unit in own], np.int64) for own in (first, second))
    places = np.arange(len(b) + 1)
    row = places
    for deleted, unit in enumerate(a, 1):
        best = np.concatenate([[deleted], np.minimum(row[:-1] + (b != unit), row[1:] + 1)])
        row = np.minimum.accumulate(best - places) + places
    return int(row[-1])


def log_likelihood_rows(reading: Reading, outputs: Outputs, labels: Array) -> Tally:
    """Rows (negative log-likelihood in nats, tokens) of the labelled tokens."""
    where, scores = reading.select(outputs)
    scores = scores[:, np.newaxis] if scores.ndim == 2 and labels.ndim == 1 else scores
    tokens = whole_labels(labels.reshape(len(labels), -1), "token ids")
    if scores.ndim != 3 or scores.shape[:2] != tokens.shape:
        raise DataError(
            "perplexity needs scores [samples, tokens, classes] and as many next tokens as labels",
            where=[f"output  {where}  {scores.shape}", f"labels  {labels.shape}"],
            help=f"label each place with the token that comes next; {PICK}",
        )
    counted = (tokens != reading.integer("ignore", _IGNORED)) & (tokens != _IGNORED)
    wrong = counted & ((tokens < 0) | (tokens >= scores.shape[2]))
    if wrong.any():
        raise class_range_error(int(tokens[wrong][0]), where, scores.shape[2])
    rows = []
    for own, names, use in zip(scores, tokens, counted, strict=True):
        logits = own[use].astype(np.float64)
        peak = logits.max(axis=1, initial=-np.inf)
        total = peak + np.log(np.exp(logits - peak[:, np.newaxis]).sum(axis=1))
        rows.append((float((total - logits[np.arange(len(logits)), names[use]]).sum()), float(use.sum())))
    return Tally.of_rows(np.array(rows, np.float64).reshape(-1, 2))


def _greedy(reading: Reading, where: str, found: Array) -> list[list[int]]:
    """Tokens of each sample: the best class of each step, repetitions and blanks left out, or the ids themselves."""
    blank = reading.integer("blank", 0)
    if found.ndim == 3:
        steps = found.argmax(axis=2)
        if blank is not None and blank >= found.shape[2]:
            raise class_range_error(blank, where, found.shape[2])
        if blank is not None and blank >= 0:
            fresh = np.concatenate([np.ones((len(steps), 1), np.bool_), steps[:, 1:] != steps[:, :-1]], axis=1)
            steps = np.where(fresh & (steps != blank), steps, _NO_TOKEN)
    else:
        steps = np.where(np.isfinite(found), found, _NO_TOKEN).astype(np.int64)
    return [list(_until_end(reading, row)) for row in steps.tolist()]


def _until_end(reading: Reading, tokens: Sequence[int]) -> Iterator[int]:
    """Tokens up to the end of the sequence, without padding."""
    end = reading.integer("end", None)
    for token in tokens:
        if token == end:
            return
        if token >= 0:
            yield token


def _truths(reading: Reading, labels: Array) -> list[list[int]] | list[str]:
    """The labelled sequences: as text, or as ids without padding."""
    if labels.dtype.kind != "U":
        ids = whole_labels(labels.reshape(len(labels), -1), "text or token ids")
        return [list(_until_end(reading, row)) for row in ids.tolist()]
    if "alphabet" not in reading.options:
        raise DataError(
            "labels are text, and the characters of the model's classes are not known",
            where=f"labels  {labels.shape}, such as {labels.reshape(-1)[:1].tolist()}",
            help="give one character per class, in their order, --metric-option alphabet='-abc ', or ids as labels",
        )
    return [str(text) for text in labels.reshape(-1)]


def _units(reading: Reading, sequences: Sequence[Sequence[int] | str]) -> list[Sequence[object]]:
    """What is counted: characters or tokens, or words."""
    alphabet = reading.text("alphabet", "")
    spelled = [_spell(own, alphabet) for own in sequences] if alphabet else list(sequences)
    if reading.metric == "cer":
        return [list(own) for own in spelled]
    space = reading.integer("space", None)
    return [own.split() if isinstance(own, str) else _words(own, space) for own in spelled]


def _spell(sequence: Sequence[int] | str, alphabet: str) -> str:
    """Text; a class without a character is one that no text has."""
    if isinstance(sequence, str):
        return sequence
    return "".join(alphabet[token] if token < len(alphabet) else "\N{REPLACEMENT CHARACTER}" for token in sequence)


def _words(tokens: Sequence[int], space: int | None) -> list[tuple[int, ...]]:
    """Tokens between spaces; where none is known, each token is a word."""
    if space is None:
        return [(token,) for token in tokens]
    found: list[list[int]] = [[]]
    for token in tokens:
        found = [*found, []] if token == space else [*found[:-1], [*found[-1], token]]
    return [tuple(word) for word in found if word]


def _require_words(reading: Reading, where: str, found: Array, labels: Array) -> None:
    """Scores of characters have no words until it is said what separates them."""
    if found.ndim == 2 or {"space", "alphabet"} & reading.options.keys():
        return
    raise DataError(
        "wer cannot tell words apart",
        where=[f"output  {where}  {found.shape}", f"labels  {labels.shape}"],
        help="give the class between words, --metric-option space=28, or one character per class, "
        "--metric-option alphabet='-abc '",
    )
