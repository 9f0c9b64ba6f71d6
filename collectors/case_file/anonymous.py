"""A case that can be given away: no name, path, text or picture of its owner is left, and the statistics stay.

Names become keyed hashes. The key is the checksum of the float model: two cases of one float model hash alike, and
nobody who lacks that file can try out names. Fields say what their texts are (``Shown``); every other text counts as a
name: what is added to a case tomorrow is hidden, too.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from quantmedic.engine.case.fact_base import Shown
from quantmedic.engine.case.records import Case, CaseRecord
from quantmedic.engine.case.statistics import BUCKETS, LEVELS, SampleTable, SetStatistics, slots_of
from quantmedic.engine.case.thumbnails import Thumbnails
from quantmedic.engine.formulas.first_input import lattice_of

R = TypeVar("R", bound=BaseModel)
#: Gives the text that stands for another one.
Replace = Callable[[str], str]
#: Characters of a hidden name: collisions are out of reach of any network's names.
_LENGTH = 14
_NOTICE = (
    "this case was anonymized: names are hashes, and texts, thumbnails and the histograms of the inputs were left out"
)

_TOKEN = re.compile(r"[^\W_]+")
#: Numbers and versions, such as 17, 1.32.0, 0.1 and 2.6.0+cu124.
_NUMBERS = re.compile(r"[\s\d.,:;x/+-]*(?:\+(?:cpu|cu\d+))?")
#: A place in a network that ``engine.diagnosis.suspects`` made of what is changed, which are numbers.
_DIGEST = re.compile(r"[0-9a-f]{8}")
#: Endings of files that say what they are.
_ENDINGS = (
    *(".onnx", ".ort", ".tflite", ".xml", ".safetensors", ".gguf", ".mlpackage", ".pt", ".pth", ".pt2"),
    *(".npz", ".npy", ".csv", ".txt", ".json", ".yaml", ".yml", ".log", ".cache", ".encodings", ".table"),
)
#: What toolchains put before and behind names of tensors; rules/toolchains.yaml recognizes them by it.
_PREFIXES = ("dq_output_", "q_output_")
_SUFFIXES = ("_QuantizeLinear_Output", "_DequantizeLinear_Output", "_QuantizeInput", "_QuantizeLinear")


def _names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


#: Operators that hand values on, or shift and scale them: what they make of an input alone shows it as well.
_HANDS_ON = _names(
    "Identity Cast Reshape Flatten Squeeze Unsqueeze Transpose Pad Slice Gather Split Concat Dropout Add Sub Mul Div "
    "Neg BatchNormalization Clip"
)
#: Names of compared outputs; see `SetStatistics.comparisons`.
_COMPARED = re.compile(
    r"(?:(?:Sigmoid|Softmax) )?(?:float|quantized|output|column|operand|reference|device|stage|step)(?:\.\d{1,6})+"
)
#: Put in the place of prose, so that it stays known that something was said.
LEFT_OUT = "left out of this case"


#: Options of a run that stay: numbers, choices and words.
RUN_OPTIONS = _names(
    "samples batch_size mode step_error seed preprocessing device metric_by_default metric_options metric_reading "
    "thumbnails profile attribution python machine onnxruntime onnx numpy torch openvino ai_edge_litert"
)
#: Entries of a run that name files, or something of the model, and those that are checksums.
RUN_NAMES = frozenset({"float_model", "quantized_model", "metric_output"})
RUN_CHECKSUMS = frozenset({"float_sha256", "quantized_sha256"})


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


def _is_number(text: str) -> bool:
    """The text holds numbers and versions alone."""
    return _NUMBERS.fullmatch(text) is not None


def _affixes_of(name: str) -> tuple[str, str, str]:
    """A name as what a toolchain put before it, the rest, and what it put behind it."""
    before = next((each for each in _PREFIXES if name.startswith(each)), "")
    behind = next((each for each in _SUFFIXES if name.endswith(each)), "")
    return before, name.removeprefix(before).removesuffix(behind), behind


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
            ending = next((each for each in _ENDINGS if text.endswith(each)), "")
            self._names[text] = f"n{self._digest(text)[: _LENGTH - 1]}{ending}"
        return self._names[text]

    def _digest(self, text: str) -> str:
        content = text.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(content, key=self.key, digest_size=32).hexdigest()

    def _word(self, text: str) -> str:
        return text if _is_number(text) or self.public.is_word(text) else self.name(text)

    def _key(self, text: str) -> str:
        return text if self.public.is_key(text) else ":".join(map(self.name, text.split(":")))

    def _phrase(self, text: str) -> str:
        return text if self.public.is_phrase(text) else LEFT_OUT

    def _mark(self, text: str) -> str:
        """What a toolchain leaves in a model; names of quantizers keep what it put around them."""
        kind, _, names = text.partition(" ")
        if kind != "quantizer":
            return self._word(text)
        parts = (_affixes_of(each) for each in names.split(" > "))
        return f"{kind} {' > '.join(before + self.name(rest) + behind for before, rest, behind in parts)}"

    def _attributes(self, attributes: Mapping[str, str]) -> dict[str, str]:
        """Attributes of an operator that ONNX names, with numbers or words that it defines."""
        return {
            name: value
            for name, value in attributes.items()
            if self.public.is_word(name) and (_is_number(value) or self.public.is_word(value))
        }

    def _record(self, record: R) -> R:
        kind = type(record).__name__
        changes = {}
        for name, about in type(record).model_fields.items():
            value = getattr(record, name)
            if value is None or isinstance(value, bool | int | float):
                continue
            shown = next((each for each in about.metadata if isinstance(each, Shown)), None)
            changes[name] = self._field(kind, name, value, shown, _literal_texts(about.annotation))
        return record.model_copy(update=changes)

    def _field(self, kind: str, name: str, value: object, shown: Shown | None, choices: AbstractSet[str]) -> object:
        match kind, name:
            case "CaseRecord", "run" | "notices":
                return value
            case "LanguageFacts", "text_hashes":
                return ()
            case "OperatorRecord", "attributes" if isinstance(value, Mapping):
                return self._attributes(value)
            case "ModelFacts", "toolchain_marks" if isinstance(value, Sequence):
                return tuple(self._mark(each) for each in value)
        match shown:
            case Shown.PROSE:
                return LEFT_OUT if isinstance(value, str) else tuple(LEFT_OUT for _ in _items(value))
            case Shown.WORDS:
                return self._value(value, self._word, self._word, choices)
            case Shown.WORD_KEYS:
                return self._value(value, self.name, self._word, choices)
            case Shown.KEY:
                return self._value(value, self._key, self._key, choices)
            case Shown.PHRASE:
                return self._value(value, self._phrase, self._phrase, choices)
        return self._value(value, self.name, self.name, choices)

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


def _literal_texts(annotation: object) -> frozenset[str]:
    """Texts that a field may hold by its type."""
    inner = get_args(annotation)
    own = {each for each in inner if isinstance(each, str)}
    return frozenset(own.union(*(_literal_texts(each) for each in inner if not isinstance(each, str))))


def hide_statistics(statistics: SetStatistics, record: CaseRecord, key: bytes) -> SetStatistics:
    """The statistics of a data set as others may see them.

    Distinct values of an input stay where they are an even grid, as those of 8-bit images are: a grid shows its step
    and its ends. Others are the values of the samples themselves. Hashes of samples are hashed again: they would show
    whether a known sample was among them.
    """
    shown = inputs_of(record)
    return replace(
        statistics,
        histograms=_without(statistics.histograms, shown),
        quantized_histograms=_without(statistics.quantized_histograms, shown),
        lattice=[own if lattice_of(own) is not None else own[:0] for own in statistics.lattice],
        samples=_hide_hashes(statistics.samples, key),
        thumbnails=Thumbnails(),
        comparisons={name: own for name, own in statistics.comparisons.items() if _COMPARED.fullmatch(name)},
    )


def inputs_of(record: CaseRecord) -> frozenset[int]:
    """Tensors that hold the values of a network's inputs: these, and what is made of them without a product."""
    found = {place for place, tensor in enumerate(record.tensors) if tensor.is_input or place == record.input_tensor}
    for op in record.operators:  # in the order of execution
        read = {place for place in op.inputs if place is not None}
        if op.op_type in _HANDS_ON and read and read <= found:
            found |= {place for place in op.outputs if place is not None}
    return frozenset(found)


def _without(histograms: Mapping[int, NDArray[np.int64]], hidden: Collection[int]) -> dict[int, NDArray[np.int64]]:
    return {place: histograms[place] for place in histograms if place not in hidden}


def _hide_hashes(samples: SampleTable, key: bytes) -> SampleTable:
    """Equal samples keep equal hashes, and each stays in its slot."""
    known, first, places = np.unique(samples["hash"], return_index=True, return_inverse=True)
    digests = [hashlib.blake2b(own.tobytes(), key=key, digest_size=8).digest() for own in known]
    level = (slots_of(samples[first]) // BUCKETS).astype(np.uint64)
    rest = np.frombuffer(b"".join(digests), "<u8") // BUCKETS >> level << level
    rest |= np.where(level < LEVELS - 1, np.uint64(1) << level, np.uint64(0))
    changed = samples.copy()
    changed["hash"] = (rest * np.uint64(BUCKETS) + known % BUCKETS)[places]
    return changed
