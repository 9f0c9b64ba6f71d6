"""Where an axis goes when a tensor is transposed or reshaped."""

from collections.abc import Sequence


def transposed_axis(axis: int, order: Sequence[int]) -> int | None:
    """Position of an axis behind a permutation; None where the permutation does not name it."""
    return list(order).index(axis) if axis in order else None


def reshaped_axis(axis: int, before: Sequence[int | None], after: Sequence[int | None]) -> int | None:
    """Position of an axis behind a reshape; None where the reshape takes it apart or joins it with others.

    An axis is the same where it has its size, and as many elements stand before it as did.
    """
    if axis >= len(before):
        return None
    leading = _product(before[:axis])
    for position, size in enumerate(after):
        product = _product(after[:position])
        if product is None or leading is None:
            return None
        if product == leading and size is not None and size == before[axis]:
            return position
    return None


def _product(sizes: Sequence[int | None]) -> int | None:
    product = 1
    for size in sizes:
        if size is None:
            return None
        product *= size
    return product
