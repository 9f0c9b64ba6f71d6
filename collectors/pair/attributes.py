"""Attributes of an operator as short texts: numbers, short lists and short strings; never weights or subgraphs."""

from collections.abc import Sequence
from typing import Any

import onnx

from quantmedic.collectors.pair.graph import Operator

#: More attributes, longer lists or longer texts are no help to a reader.
MAX_ATTRIBUTES, MAX_ENTRIES, MAX_TEXT = 16, 8, 40
_KINDS = frozenset(
    {
        onnx.AttributeProto.FLOAT,
        onnx.AttributeProto.INT,
        onnx.AttributeProto.STRING,
        onnx.AttributeProto.FLOATS,
        onnx.AttributeProto.INTS,
        onnx.AttributeProto.STRINGS,
    }
)


def readable_attributes(op: Operator) -> dict[str, str]:
    """Texts by name, as the operator has them; those that are not short are left out."""
    values = {name: onnx.helper.get_attribute_value(a) for name, a in op.attributes.items() if a.type in _KINDS}
    texts = {name: _text(value) for name, value in (values | op.hints).items() if len(name) <= MAX_TEXT}
    known = [(name, text) for name, text in texts.items() if text is not None]
    return dict(known[:MAX_ATTRIBUTES])


def _text(value: Any) -> str | None:
    """The value in a few characters; None where it takes more."""
    match value:
        case bytes():
            text = value[: MAX_TEXT + 1].decode(errors="replace")
        case str() | int():
            text = str(value)
        case float():
            text = f"{value:.6g}"
        case Sequence():
            parts = [_text(entry) for entry in value[: MAX_ENTRIES + 1]]
            text = ", ".join(part for part in parts if part is not None)
            if not parts or len(parts) > MAX_ENTRIES or None in parts:
                return None
        case _:
            return None
    return text if len(text) <= MAX_TEXT else None
