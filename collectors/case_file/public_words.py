"""Which texts of a case say nothing about whose network it is: the words of quantmedic's own rules and of ONNX."""

import re
from collections.abc import Set as AbstractSet
from functools import cached_property

_TOKEN = re.compile(r"[^\W_]+")
#: Numbers and versions, such as 17, 1.32.0, 0.1 and 2.6.0+cu124.
_NUMBERS = re.compile(r"[\s\d.,:;x/+-]*(?:\+(?:cpu|cu\d+))?")
#: A place in a network that ``engine.diagnosis.suspects`` made of what is changed, which are numbers.
_DIGEST = re.compile(r"[0-9a-f]{8}")
#: Endings of files that say what they are.
ENDINGS = (
    *(".onnx", ".ort", ".tflite", ".xml", ".safetensors", ".gguf", ".mlpackage", ".pt", ".pth", ".pt2"),
    *(".npz", ".npy", ".csv", ".txt", ".json", ".yaml", ".yml", ".log", ".cache", ".encodings", ".table"),
)
#: What toolchains put before and behind names of tensors; rules/toolchains.yaml recognizes them by it.
_PREFIXES = ("dq_output_", "q_output_")
_SUFFIXES = ("_QuantizeLinear_Output", "_DequantizeLinear_Output", "_QuantizeInput", "_QuantizeLinear")


class PublicWords:
    """Texts that everybody has who has quantmedic and ONNX.

    Args:
        texts: Texts whose single words are public, such as those of the built-in rules.
        phrases: Texts that are public as a whole, such as titles of remedies.
    """

    def __init__(self, texts: str, phrases: AbstractSet[str] = frozenset()) -> None:
        self._texts, self._phrases = texts, {phrase.casefold() for phrase in phrases}

    @cached_property
    def _words(self) -> frozenset[str]:
        return frozenset(_TOKEN.findall(self._texts))

    def is_word(self, text: str) -> bool:
        """Every word of the text is a public one, or a number."""
        return all(token in self._words or token.isdigit() for token in _TOKEN.findall(text)) and text.isascii()

    def is_phrase(self, text: str) -> bool:
        """The text as a whole is public."""
        return text.casefold() in self._phrases

    def is_key(self, text: str) -> bool:
        """The name of a change: a kind of remedy, and what it changes as a digest of numbers."""
        return all(_DIGEST.fullmatch(part) or self.is_word(part) for part in text.split(":"))


def is_number(text: str) -> bool:
    """The text holds numbers and versions alone."""
    return _NUMBERS.fullmatch(text) is not None


def affixes_of(name: str) -> tuple[str, str, str]:
    """A name as what a toolchain put before it, the rest, and what it put behind it."""
    before = next((each for each in _PREFIXES if name.startswith(each)), "")
    behind = next((each for each in _SUFFIXES if name.endswith(each)), "")
    return before, name.removeprefix(before).removesuffix(behind), behind
