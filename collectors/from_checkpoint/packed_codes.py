"""Codes of few bits, packed into words of 32 bits: from the lowest bits up, or in an order of the format's own."""

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import Array

Codes = NDArray[np.uint8]

WORD = 32
#: Column that the k-th code of a word of AWQ belongs to.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
REVERSED_ORDER = (7, 6, 5, 4, 3, 2, 1, 0)


class UnreadableLayerError(Exception):
    """The tensors of a layer do not fit together; the text says why."""


def unpack_words(words: Array, bits: int, count: int) -> Codes:
    """Codes of ``bits`` each along the last axis of int32 words, the lowest bits first: ``[..., count]``.

    Raises:
        UnreadableLayerError: The words hold fewer codes.
    """
    stream = np.ascontiguousarray(words, "<i4").view(np.uint8)
    if stream.shape[-1] * 8 < count * bits:
        raise UnreadableLayerError(f"{words.shape[-1]} words hold fewer than {count} codes of {bits} bits")
    if bits == 8:
        return stream[..., :count]
    if 8 % bits == 0:
        per_byte, mask = 8 // bits, np.uint8(2**bits - 1)
        codes = np.empty((*stream.shape[:-1], stream.shape[-1] * per_byte), np.uint8)
        for k in range(per_byte):
            np.bitwise_and(stream >> np.uint8(bits * k), mask, out=codes[..., k::per_byte])
        return codes[..., :count]
    single = np.unpackbits(stream, axis=-1, bitorder="little")[..., : count * bits]
    single = single.reshape(*stream.shape[:-1], count, bits)
    values: Codes = (single << np.arange(bits, dtype=np.uint8)).sum(axis=-1, dtype=np.uint8)
    return values


def unpack_padded_words(words: Array, bits: int, count: int) -> Codes:
    """Codes of which none reaches into the next word: 32 // bits of them per word, the rest of its bits unused.

    Raises:
        UnreadableLayerError: The words hold fewer codes.
    """
    per_word = WORD // bits
    if words.shape[-1] * per_word < count:
        raise UnreadableLayerError(f"{words.shape[-1]} words hold fewer than {count} codes of {bits} bits")
    shifted = words.view(np.uint32)[..., None] >> (np.arange(per_word, dtype=np.uint32) * bits)
    codes = (shifted & np.uint32(2**bits - 1)).astype(np.uint8)
    return codes.reshape(*words.shape[:-1], -1)[..., :count]


def in_column_order(codes: Codes, order: tuple[int, ...] | None) -> Codes:
    """Codes in the order of their columns, where the k-th of each word belongs to column ``order[k]`` of it."""
    if order is None:
        return codes
    columns = np.argsort(order)
    return codes.reshape(*codes.shape[:-1], -1, len(order))[..., columns].reshape(codes.shape)
