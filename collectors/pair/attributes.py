"""Attributes of an operator as short texts: numbers, short lists and short strings; never weights or subgraphs."""

from quantmedic.collectors.pair.graph import Attribute, Operator

#: Attributes of an operator, entries of a list and characters of a text that a reader is shown at most.
MAX_ATTRIBUTES, MAX_ENTRIES, MAX_TEXT = 16, 8, 40


def readable_attributes(op: Operator) -> dict[str, str]:
    """Texts by name, in the order of the operator; those that are not short are left out."""
    values = op.attributes | op.hints
    texts = {name: _short_text(value) for name, value in values.items() if len(name) <= MAX_TEXT}
    known = [(name, text) for name, text in texts.items() if text is not None]
    return dict(known[:MAX_ATTRIBUTES])


def _short_text(value: Attribute) -> str | None:
    """The value as a text of at most ``MAX_TEXT`` characters; None where it is longer."""
    match value:
        case str() | int():
            text = str(value)
        case float():
            text = f"{value:.6g}"
        case tuple() if 0 < len(value) <= MAX_ENTRIES:
            parts = [_short_text(entry) for entry in value]
            if None in parts:
                return None
            text = ", ".join(part for part in parts if part is not None)
        case _:
            return None
    return text if len(text) <= MAX_TEXT else None
