"""A case that can be given away: no name, path, text or picture of its owner is left, and the statistics stay.

Names become keyed hashes. The key is the checksum of the float model: two cases of one float model hash alike, and
nobody who lacks that file can try out names.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TypeVar, get_args

from pydantic import BaseModel

from quantmedic.collectors.case_file.anonymous_statistics import hide_statistics
from quantmedic.collectors.case_file.hidden_fields import (
    KEYS,
    LEFT_OUT,
    PHRASES,
    PROSE,
    RUN_CHECKSUMS,
    RUN_NAMES,
    RUN_OPTIONS,
    WORD_KEYS,
    WORDS,
)
from quantmedic.collectors.case_file.public_words import ENDINGS, PublicWords, affixes_of, is_number
from quantmedic.engine.case.records import Case, CaseRecord

R = TypeVar("R", bound=BaseModel)
#: Gives the text that stands for another one.
Replace = Callable[[str], str]
#: Characters of a hidden name: collisions are out of reach of any network's names.
_LENGTH = 14
_NOTICE = (
    "this case was anonymized: names are hashes, and texts, thumbnails and the histograms of the inputs were left out"
)


def anonymize_case(case: Case, public: PublicWords) -> Case:
    """The case without names, paths, texts and pictures; what is left is judged as before."""
    hide = Hiding(_key_of(case.record), public)
    numbers = hide.numbers_key
    return replace(
        case,
        record=hide.case(case.record),
        statistics={role: hide_statistics(own, case.record, numbers) for role, own in case.statistics.items()},
        sums={
            role: [one._replace(statistics=hide_statistics(one.statistics, case.record, numbers)) for one in own]
            for role, own in case.sums.items()
        },
    )


def _key_of(record: CaseRecord) -> bytes:
    """The checksum of the float model, else of the quantized one; of a case without any, of the case."""
    known = [record.run.get(name) for name in ("float_sha256", "quantized_sha256")]
    found = next((each for each in known if isinstance(each, str) and each), None)
    return hashlib.sha256((found or record.model_dump_json()).encode("utf-8", "surrogatepass")).digest()


@dataclass
class Hiding:
    """Replaces what is private in the records of one case.

    Attributes:
        key: Of the hashes.
        public: Texts that may stay.
    """

    key: bytes
    public: PublicWords
    _names: dict[str, str] = field(default_factory=dict)

    @property
    def numbers_key(self) -> bytes:
        """Key of the hashes of samples."""
        return hashlib.blake2b(b"samples", key=self.key, digest_size=32).digest()

    def case(self, record: CaseRecord) -> CaseRecord:
        """The record of a case; its notices are prose."""
        hidden = self._record(record)
        return hidden.model_copy(update={"notices": (_NOTICE,), "run": self._run(record.run)})

    def name(self, text: str) -> str:
        """The same hash for the same name; the ending of a file stays, and so does no name at all."""
        if not text:
            return text
        if text not in self._names:
            ending = next((each for each in ENDINGS if text.endswith(each)), "")
            self._names[text] = f"n{self._digest(text)[: _LENGTH - 1]}{ending}"
        return self._names[text]

    def _digest(self, text: str) -> str:
        content = text.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(content, key=self.key, digest_size=32).hexdigest()

    def _word(self, text: str) -> str:
        return text if is_number(text) or self.public.is_word(text) else self.name(text)

    def _key(self, text: str) -> str:
        return text if self.public.is_key(text) else ":".join(map(self.name, text.split(":")))

    def _phrase(self, text: str) -> str:
        return text if self.public.is_phrase(text) else LEFT_OUT

    def _mark(self, text: str) -> str:
        """What a toolchain leaves in a model; names of quantizers keep what it put around them."""
        kind, _, names = text.partition(" ")
        if kind != "quantizer":
            return self._word(text)
        parts = (affixes_of(each) for each in names.split(" > "))
        return f"{kind} {' > '.join(before + self.name(rest) + behind for before, rest, behind in parts)}"

    def _attributes(self, attributes: Mapping[str, str]) -> dict[str, str]:
        """Attributes of an operator that ONNX names, with numbers or words that it defines."""
        return {
            name: value
            for name, value in attributes.items()
            if self.public.is_word(name) and (is_number(value) or self.public.is_word(value))
        }

    def _record(self, record: R) -> R:
        kind = type(record).__name__
        changes = {}
        for name, about in type(record).model_fields.items():
            value = getattr(record, name)
            if value is None or isinstance(value, bool | int | float):
                continue
            changes[name] = self._field(kind, name, value, _choices(about.annotation))
        return record.model_copy(update=changes)

    def _field(self, kind: str, name: str, value: object, choices: AbstractSet[str]) -> object:
        match kind, name:
            case "CaseRecord", "run" | "notices":
                return value
            case "LanguageFacts", "text_hashes":
                return ()
            case "OperatorRecord", "attributes" if isinstance(value, Mapping):
                return self._attributes(value)
            case "ModelFacts", "toolchain_marks" if isinstance(value, Sequence):
                return tuple(self._mark(each) for each in value)
        if name in PROSE.get(kind, ()):
            return LEFT_OUT if isinstance(value, str) else tuple(LEFT_OUT for _ in _items(value))
        if name in WORDS.get(kind, ()):
            return self._value(value, self._word, self._word, choices)
        if name in KEYS.get(kind, ()):
            return self._value(value, self._key, self._key, choices)
        if (kind, name) in PHRASES:
            return self._value(value, self._phrase, self._phrase, choices)
        return self._value(value, self.name, self._word if (kind, name) in WORD_KEYS else self.name, choices)

    def _value(self, value: object, text: Replace, key: Replace, choices: AbstractSet[str]) -> object:
        """A value with its texts replaced; one of the choices of a field stays."""
        match value:
            case BaseModel():
                return self._record(value)
            case str():
                return value if value in choices else text(value)
            case Mapping():
                return {
                    key(k) if isinstance(k, str) and k not in choices else k: self._value(each, text, key, choices)
                    for k, each in value.items()
                }
            case list() | tuple():
                return type(value)(self._value(each, text, key, choices) for each in value)
        return value

    def _run(self, run: Mapping[str, object]) -> dict[str, object]:
        """Options that are numbers or choices, names and checksums as hashes; whatever else is there goes."""
        found: dict[str, object] = {}
        for name, value in run.items():
            if name in RUN_NAMES and isinstance(value, str):
                found[name] = self.name(value)
            elif name in RUN_CHECKSUMS and isinstance(value, str):
                found[name] = self._digest(value)
            elif name in RUN_OPTIONS or name in RUN_NAMES | RUN_CHECKSUMS:
                found[name] = self._value(value, self._word, self._word, frozenset())
        return found


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def _choices(annotation: object) -> frozenset[str]:
    """Texts that a field may hold by its type."""
    inner = get_args(annotation)
    own = {each for each in inner if isinstance(each, str)}
    return frozenset(own.union(*(_choices(each) for each in inner if not isinstance(each, str))))
