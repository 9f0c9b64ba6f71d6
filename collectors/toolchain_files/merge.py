"""Files of a toolchain merged: into a case that was measured, or into one of their own.

The first source of a value stands; a notice names another that contradicts it. Names that match nothing in a
measured case are counted and named.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from quantmedic.collectors.data.messages import did_you_mean
from quantmedic.collectors.toolchain_files.formats import Imported, recognise_format
from quantmedic.collectors.toolchain_files.overrides import asked_facts, override_facts
from quantmedic.collectors.toolchain_files.values import Fields
from quantmedic.engine.case.facts import (
    BiasFacts,
    CoverageFacts,
    Facts,
    ModelFacts,
    QuantizerFacts,
    RecordedFacts,
    ReportedFacts,
    SettingsFacts,
    WeightFacts,
)
from quantmedic.engine.case.records import IMPORTED, Case, CaseRecord, ImportRecord, OperatorRecord, TensorRecord
from quantmedic.engine.operator_types import FUSED_FUNCTIONS, LAYOUTS, RESAMPLING, SELECTIONS
from quantmedic.engine.reading_limits import IMPORTED_LAYERS
from quantmedic.engine.version import VERSION

F = TypeVar("F", bound=Facts)
#: Facts of a tensor or layer that a file can give.
G = TypeVar("G", RecordedFacts, ReportedFacts)
R = TypeVar("R", TensorRecord, OperatorRecord)
#: Two files agree where their numbers are this close: some write few digits.
SAME = 1e-3
#: Names, values and settings that one line lists.
SHOWN = 3
_SETTINGS_SHOWN = 6
#: Parts of the names of operators with weights or a matrix product, in whatever toolchain's spelling.
_COMPUTE_WORDS = ("conv", "gemm", "matmul", "fullyconnected", "innerproduct", "dense", "linear", "lstm", "gru", "rnn")
#: Settings that are not options.
_NO_OPTION = ("toolchain", "unknown_keys", "unknown_key_count")
#: What is reported of a layer and is no figure of an error.
_PLACEMENT = frozenset({"device", "dtype", "kernel", "fused", "reformats"})
UNKNOWN_TYPE = "unknown"
#: How exporters name what a node writes, after the node.
_OUTPUT = re.compile(r"_output_\d+$|:\d+$")
#: How TensorRT calls tensors between operators that it made itself.
_UNNAMED = "(Unnamed Layer"
#: First notice of a case of files alone.
NOTICE = (
    "files of a toolchain alone were read: neither model was run, errors of layers are those that the tool reported, "
    "and rules on accuracy, activations and data are not judged"
)
#: Operators that hand values on: what they write lies on the grid of what they read.
_MOVES = (LAYOUTS | SELECTIONS | RESAMPLING) | {*("Dropout", "Cast", "Relu", "Clip", "Max", "Min", "Concat")}
#: Names that are kept.
_NAMED = 5
#: Their range is known beforehand, and toolchains set it themselves.
_BOUNDED = frozenset({"Softmax", "LogSoftmax", "Sigmoid", "HardSigmoid", "Tanh", "ArgMax"})


@dataclass(frozen=True)
class Source:
    """One file or folder that was read."""

    name: str
    format: str
    toolchain: str
    imported: Imported
    lists_all: bool = False


class _Clash(NamedTuple):
    """A value that a later file states otherwise than an earlier one."""

    what: str
    subject: str
    fact: str
    first: str
    second: str
    values: tuple[object, object]


@dataclass(frozen=True)
class _Names:
    """Places of tensors and layers of a case by every name that they go by."""

    tensors: Mapping[str, int]
    inputs: Mapping[str, int]
    layers: Mapping[str, int]
    others: frozenset[str]

    @classmethod
    def of(cls, record: CaseRecord) -> "_Names":
        tensors: dict[str, int] = {}
        for place, tensor in enumerate(record.tensors):
            for name in (tensor.name, tensor.float_name):
                tensors.setdefault(name, place)
        layers: dict[str, int] = {}
        for names in (_own_names, _part_names):
            for place, op in enumerate(record.operators):
                for name in names(op, record):
                    layers.setdefault(name, place)
        for op in record.operators:
            outputs = [i for i in op.outputs if i is not None]
            for own in _own_names(op, record) if outputs else ():
                tensors.setdefault(own, outputs[0])
        read = {place: next((i for i in op.inputs if i is not None), None) for place, op in enumerate(record.operators)}
        inputs = {name: index for name, place in layers.items() if (index := read[place]) is not None}
        constants = {name for op in record.operators for name in (op.weight.name, op.bias.name) if name}
        return cls(tensors, inputs, layers, frozenset(constants))

    def is_inside(self, name: str) -> bool:
        """The name is of this model, but is no activation: weights, biases, and tensors inside a fused layer."""
        return name in self.others or _OUTPUT.sub("", name) in self.layers


def _own_names(op: OperatorRecord, record: CaseRecord) -> Iterator[str]:
    yield from (name for name in (op.name, op.float_name, op.quantized_name) if name)


def _part_names(op: OperatorRecord, record: CaseRecord) -> Iterator[str]:
    """Names of the nodes that a layer stands for, and of what it writes: some tools call layers by these."""
    yield from op.float_nodes or ()
    for index in op.outputs:
        if index is not None:
            yield record.tensors[index].name
            yield record.tensors[index].float_name


def read_source(path: Path) -> Source:
    """One file of a toolchain, or the log folder of Sony's toolkit.

    Raises:
        DataError: It cannot be read, is damaged, or its format is not known.
        LimitError: It is too large or too deep, or names more tensors or layers than a network has.
    """
    kind = recognise_format(path)
    imported = kind.read(path)
    IMPORTED_LAYERS.check(max(map(len, (imported.tensors, imported.inputs, imported.layers))), path)
    name = path.resolve().name if kind.is_folder else path.name
    return Source(name, kind.name, kind.toolchain, imported, kind.lists_all)


def imported_case(sources: Sequence[Source]) -> Case:
    """A case of files by themselves: layers and tensors as they name them, and nothing measured.

    Args:
        sources: What was read, at least one.
    """
    types: dict[str, str] = {}
    for source in sources:
        for name, kind in source.imported.layer_types.items():
            types.setdefault(name, kind)
    files = [source.imported for source in sources]
    names = dict.fromkeys(name for own in files for name in (*own.layers, *own.layer_types, *own.inputs))
    thresholds = dict.fromkeys(name for own in files for name in own.tensors)
    if not names:  # Each tensor stands for the layer that writes it.
        names = thresholds
    inputs = dict.fromkeys(name for own in files for name in own.inputs)
    places = {name: place for place, name in enumerate(thresholds)}
    read = {name: len(places) + place for place, name in enumerate(inputs)}
    operators = tuple(_operator_record(place, name, types, read, places) for place, name in enumerate(names))
    tensors = [_tensor_record(name, types if name in names else {}) for name in thresholds]
    tensors += [_tensor_record(f"input of {name}", {}) for name in inputs]
    record = CaseRecord.of_files(
        quantmedic_version=VERSION,
        model=ModelFacts(
            name=sources[0].name,
            framework=IMPORTED,
            operators=len(operators) or None,
            compute_operators=sum(op.is_compute for op in operators) if types else None,
        ),
        tensors=tuple(tensors),
        operators=operators,
        notices=(NOTICE,),
        run={"mode": IMPORTED},
    )
    return with_sources(Case(record, {}), sources)


def _operator_record(
    place: int, name: str, types: Mapping[str, str], read: Mapping[str, int], written: Mapping[str, int]
) -> OperatorRecord:
    kind = types.get(name, UNKNOWN_TYPE)
    plain = kind.lower().replace("_", "")
    return OperatorRecord(
        index=place,
        name=name,
        float_name=name,
        quantized_name=None,
        op_type=kind,
        inputs=(read[name],) if name in read else (),
        outputs=(written[name],) if name in written else (),
        is_compute=any(word in plain for word in _COMPUTE_WORDS),
        is_last=None,
        executed_as=None,
        weight=WeightFacts(),
        bias=BiasFacts(),
    )


def _tensor_record(name: str, types: Mapping[str, str]) -> TensorRecord:
    return TensorRecord(
        name=name,
        float_name=name,
        producer=types.get(name, UNKNOWN_TYPE),
        producer_name=name if name in types else None,
        consumers=(),
        axis=None,
        channels=1,
        bucketed=False,
        is_input=False,
        quantizer=QuantizerFacts(),
    )


def with_sources(case: Case, sources: Sequence[Source], every_name: frozenset[str] | None = None) -> Case:
    """The case with what the files hold: settings, recorded thresholds and reported figures, matched by name.

    Args:
        case: Of both models, or of files alone.
        sources: What was read.
        every_name: All names of operators and tensors in both models; None where they are not known.
    """
    record = case.record
    ledger = _Ledger.of(record)
    imports = [*record.imports, *map(ledger.learn, sources)]
    operators = _with_facts(record.operators, "reported", ledger.layers)
    notices = [*record.notices, *_clash_notices(ledger.clashes), *ledger.notices]
    changes = {
        "model": record.model.model_copy(update={"settings": ledger.settings}),
        "tensors": _with_facts(record.tensors, "recorded", ledger.tensors),
        "operators": tuple(_with_biases(record, sources, operators)),
        "imports": tuple(imports),
        "notices": tuple(dict.fromkeys(notices)),
    }
    merged = record.model_copy(update=changes)
    merged = _with_coverage(merged, [source for source in sources if source.lists_all], ledger.names)
    return replace(case, record=_with_overrides(merged, sources, every_name))


def _with_biases(
    record: CaseRecord, sources: Sequence[Source], operators: Sequence[OperatorRecord]
) -> Iterator[OperatorRecord]:
    """The operators with what the files record of their biases; the first file that does stands."""
    for op in operators:
        name = op.bias.name or ""
        recorded = next((own for s in sources if (own := s.imported.parameters.get(name)) is not None), None)
        if recorded is None or recorded.bits is None:
            yield op
            continue
        absmax = op.bias.absmax
        step = recorded.scale or (None if absmax is None else absmax / (2 ** (recorded.bits - 1) - 1))
        index = next((i for i in op.outputs if i is not None), None)
        output = None if index is None else record.tensors[index].quantizer.scale
        changes = {
            "recorded_bits": recorded.bits,
            "recorded_step": step,
            "recorded_steps": step / output if step is not None and output else None,
        }
        yield op.model_copy(update={"bias": op.bias.model_copy(update=changes)})


def _with_overrides(record: CaseRecord, sources: Sequence[Source], every_name: frozenset[str] | None) -> CaseRecord:
    """The record of a model with what configurations ask of its layers, and what of that is in vain."""
    requests = [(source.name, source.imported.requests) for source in sources]
    overrides = override_facts(record, [own for _, own in requests], every_name)
    if record.model.framework == IMPORTED or overrides.asked is None:
        return record
    operators = tuple(op.model_copy(update={"asked": asked_facts(op, record, requests)}) for op in record.operators)
    model = record.model.model_copy(update={"overrides": overrides})
    return record.model_copy(update={"model": model, "operators": operators})


def _with_coverage(record: CaseRecord, sources: Sequence[Source], names: _Names) -> CaseRecord:
    """The record of a model with what files that list every activation leave out of it."""
    if record.model.framework == IMPORTED or not sources:
        return record
    strangers = {
        name
        for source in sources
        for name in source.imported.tensors
        if name not in names.tensors and not names.is_inside(name) and not name.startswith(_UNNAMED)
    }
    floats = [name for source in sources for name in source.imported.floats]
    coverage = coverage_of(record, [source.name for source in sources], floats, len(strangers))
    return record.model_copy(update={"model": record.model.model_copy(update={"coverage": coverage})})


def _with_name(name: str, notice: str) -> str:
    return notice if notice.startswith(name) else f"{name}: {notice}"


def _with_facts(records: Sequence[R], name: str, facts: Sequence[Facts]) -> tuple[R, ...]:
    return tuple(r.model_copy(update={name: f}) for r, f in zip(records, facts, strict=True))


@dataclass
class _Ledger:
    """What is known so far, and which file each setting comes from; ``alone``: of files, without models."""

    names: _Names
    settings: SettingsFacts
    tensors: list[RecordedFacts]
    layers: list[ReportedFacts]
    alone: bool
    origins: dict[str, str] = field(default_factory=dict)
    clashes: list[_Clash] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, record: CaseRecord) -> "_Ledger":
        tensors, layers = [t.recorded for t in record.tensors], [op.reported for op in record.operators]
        return cls(_Names.of(record), record.model.settings, tensors, layers, record.model.framework == IMPORTED)

    def learn(self, source: Source) -> ImportRecord:
        """Take in one file, and say what it tells."""
        self._learn_settings(source)
        imported, names = source.imported, self.names
        thresholds = self._learn_by_name(source, imported.tensors, names.tensors, self.tensors, "threshold")
        thresholds += self._learn_by_name(source, imported.inputs, names.inputs, self.tensors, "threshold")
        figures = self._learn_by_name(source, imported.layers, names.layers, self.layers, "figure")
        self._note_strangers(source)
        self.notices += [_with_name(source.name, notice) for notice in imported.notices]
        return _import_record(source, thresholds, figures)

    def _learn_settings(self, source: Source) -> None:
        own, known, unknown = source.imported.settings, self.settings, source.imported.unknown
        has_options = own != SettingsFacts() or bool(unknown)
        options = own.model_copy(update=dict.fromkeys(_NO_OPTION))
        joined, clashes = _combine(known, options)
        for name, values in clashes.items():
            first = self.origins.get(name, "what was given before")
            self.clashes.append(_Clash("setting", name, name, first, source.name, values))
        for name in options.model_fields_set:
            if getattr(options, name) is not None:
                self.origins.setdefault(name, source.name)
        if has_options:
            # A configuration without unknown keys is a finding, too.
            every = tuple(dict.fromkeys((*(known.unknown_keys or ()), *unknown)))
            joined = joined.model_copy(update={"unknown_keys": every, "unknown_key_count": len(every)})
        # A table of thresholds names the toolchain only where no model does.
        toolchain = source.toolchain if self.alone or has_options else None
        self.settings = joined.model_copy(update={"toolchain": known.toolchain or toolchain})

    def _learn_by_name(
        self, source: Source, given: Mapping[str, G], places: Mapping[str, int], known: list[G], what: str
    ) -> int:
        """Add facts by name; returns how many found their place. Of several figures of one layer the first stands."""
        found = 0
        filled: set[int] = set()
        for name, facts in given.items():
            place = places.get(name)
            if place is None:
                continue
            found += 1
            if what == "figure" and place in filled:
                continue
            filled.add(place)
            own = known[place]
            facts = facts.model_copy(update={"origin": None})
            joined, clashes = _combine(own, facts)
            if clashes:
                fact, values = next(iter(clashes.items()))
                self.clashes.append(_Clash(what, name, fact, str(own.origin), source.name, values))
                # What else is said of a threshold belongs to that threshold.
                joined = own if what == "threshold" else joined
            elif joined != own:
                origin = source.name if own.origin is None else ", ".join(dict.fromkeys((own.origin, source.name)))
                joined = joined.model_copy(update={"origin": origin})
            known[place] = joined
        return found

    def _note_strangers(self, source: Source) -> None:
        """Add a notice of the names that match nothing in the case."""
        imported, names = source.imported, self.names
        for kind, given, known in (
            ("tensor", imported.tensors, names.tensors),
            ("layer", dict.fromkeys((*imported.layers, *imported.layer_types, *imported.inputs)), names.layers),
        ):
            strangers = [name for name in given if name not in known and not names.is_inside(name)]
            if not strangers:
                continue
            if len(strangers) == len(given):
                what = f"none of its {len(given)} {kind}s is in this model; it may be of another one"
            else:
                what = f"{len(strangers)} of its {len(given)} {kind}s not found in this model"
            shown = "; ".join(f"{name}{did_you_mean(name, known)}" for name in strangers[:SHOWN])
            self.notices.append(f"{source.name}: {what}: {shown}{'; …' if len(strangers) > SHOWN else ''}")


def _combine(mine: F, theirs: F) -> tuple[F, dict[str, tuple[object, object]]]:
    """Both together, and where they differ; mine stand."""
    update: Fields = {}
    clashes: dict[str, tuple[object, object]] = {}
    for name in type(mine).model_fields:
        a, b = getattr(mine, name), getattr(theirs, name)
        if b is None:
            continue
        if a is None:
            update[name] = b
        elif not _agree(a, b):
            clashes[name] = (a, b)
    return mine.model_copy(update=update), clashes


def _agree(a: object, b: object) -> bool:
    """Two values are equal, as far as files write their digits."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_agree, a, b))
    if isinstance(a, bool) or isinstance(b, bool):
        return a == b
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=SAME, abs_tol=1e-9) or (a != a and b != b)
    return a == b


def _clash_notices(clashes: Iterable[_Clash]) -> Iterator[str]:
    """One notice per pair of files and kind of value."""
    groups: dict[tuple[str, str, str], list[_Clash]] = {}
    for clash in clashes:
        groups.setdefault((clash.what, clash.first, clash.second), []).append(clash)
    for (what, first, second), found in groups.items():
        a, b = (_setting_text(value) for value in found[0].values)
        subject = found[0].subject if what == "setting" else f"{found[0].fact} of {found[0].subject}"
        more = f", and {len(found) - 1} more {what}s differ" if len(found) > 1 else ""
        yield f"{first} and {second} contradict each other: {subject} is {a} there and {b} here{more}; {first} stands"


def _setting_text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_setting_text, value[:SHOWN])) + (", …" if len(value) > SHOWN else "") or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _import_record(source: Source, tensors: int, layers: int) -> ImportRecord:
    imported = source.imported
    options = imported.settings.model_copy(update=dict.fromkeys(_NO_OPTION)).model_dump(exclude_none=True)
    thresholds = [*imported.tensors, *imported.inputs]
    # A file that names layers with nothing but their types holds no errors.
    figures = _figures(imported.layers.values())
    requests = imported.requests.names
    texts = [f"{name} {_setting_text(value)}" for name, value in options.items()]
    parts = [
        (f"settings: {_join_texts(texts)}", bool(options)),
        (f"thresholds of {_match_count(tensors, len(thresholds), 'tensor')}", bool(thresholds)),
        (f"{', '.join(figures)} of {_match_count(layers, len(imported.layers), 'layer')}", bool(figures)),
        (f"requests for {len(requests)} named layers or tensors", bool(requests)),
    ]
    errors = set(figures) - _PLACEMENT
    lacks = {"settings": options, "thresholds": thresholds, "errors of layers": errors}
    return ImportRecord(
        file=source.name,
        format=source.format,
        toolchain=source.toolchain,
        tells=tuple(text for text, is_there in parts if is_there),
        lacks=tuple(name for name, found in lacks.items() if not found),
        unknown=imported.unknown,
    )


def _match_count(found: int, given: int, noun: str) -> str:
    plural = noun if given == 1 else f"{noun}s"
    return f"{given} {plural}" if found == given else f"{given} {plural}, {found} of them in this model"


def _figures(layers: Iterable[ReportedFacts]) -> list[str]:
    known = {name for facts in layers for name in facts.model_fields_set if getattr(facts, name) is not None}
    return [name for name in ReportedFacts.model_fields if name in known and name != "origin"]


def _join_texts(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _SETTINGS_SHOWN} more" if len(texts) > _SETTINGS_SHOWN else ""
    return ", ".join(texts[:_SETTINGS_SHOWN]) + more


def coverage_of(record: CaseRecord, files: Iterable[str], floats: Iterable[str], strangers: int) -> CoverageFacts:
    """How many activations that the quantized model rounds to a fixed grid have one in files which list all of them.

    Left out are those whose range is known beforehand, those that only hand on what has a grid, and those that only an
    activation function reads whose result has one.

    Args:
        record: The case, with the thresholds of the files.
        files: Names of the files that list all activations.
        floats: Names that they list as float.
        strangers: Names in them that match nothing in the model: as many activations may be there by another name.
    """
    named = set(floats)
    known = [t.recorded.origin is not None or bool({t.name, t.float_name} & named) for t in record.tensors]
    readers = Counter(i for op in record.operators for i in op.inputs if i is not None)
    for op in record.operators:  # In the order of the network.
        read, written = ([i for i in places if i is not None] for places in (op.inputs, op.outputs))
        if op.op_type in _MOVES and read and all(known[i] for i in read):
            for i in written:
                known[i] = True
        if op.op_type in FUSED_FUNCTIONS and len(read) == 1 == readers[read[0]] and any(known[i] for i in written):
            known[read[0]] = True
    needed = [i for i, tensor in enumerate(record.tensors) if _needs_a_grid(tensor)]
    if not needed:
        return CoverageFacts()
    lacking = tuple(record.tensors[i].float_name or record.tensors[i].name for i in needed if not known[i])
    return CoverageFacts(
        files=tuple(files),
        tensors=len(needed),
        recorded_share=1 - len(lacking) / len(needed),
        unrecorded=max(len(lacking) - strangers, 0),
        unrecorded_names=lacking[:_NAMED],
    )


def _needs_a_grid(tensor: TensorRecord) -> bool:
    rounded = tensor.quantizer.scale is not None and not tensor.quantizer.dynamic
    return rounded and tensor.producer not in _BOUNDED
