"""What configurations ask of single layers, against what the quantized model shows."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from quantmedic.collectors.data.messages import did_you_mean
from quantmedic.collectors.toolchain_files.formats import Requests
from quantmedic.engine.case.facts import AskedFacts, OverrideFacts
from quantmedic.engine.case.records import CaseRecord, OperatorRecord, TensorRecord

#: Reasons that are kept.
_SHOWN = 5
#: Names that one is compared with, at most.
_COMPARED = 10_000
#: Parts of names that are looked for, at most: each takes a pass over all names.
_PARTS = 1000
#: Types that toolchains turn into each other on the way.
_ALIKE = {"Gemm": "MatMul"}


def override_facts(record: CaseRecord, requests: Sequence[Requests], names: frozenset[str] | None) -> OverrideFacts:
    """Requests by name, and recorded bits, that have no effect; unknown where there are none.

    Args:
        record: The case of both models.
        requests: What each configuration asks for.
        names: All names of operators and tensors in both models; None where they are not known.
    """
    asked = sum(len({*own.names, *own.floats, *own.parts, *(own.only_types or ())}) for own in requests)
    asked += len(_recorded_names(record, requests))
    if not asked:
        return OverrideFacts()
    found = list(dict.fromkeys(reason for own in requests for reason in _contradictions(record, own)))
    strangers = list(dict.fromkeys(name for own in requests for name in _strangers(own, names)))
    near = _names_of_layers(record) if strangers else ()
    told = [f"{name} is no name in either model{did_you_mean(name, near)}" for name in strangers[:_SHOWN]]
    return OverrideFacts(
        asked=asked,
        without_effect=len(found) + len(strangers),
        reasons=tuple(islice((*told, *found), _SHOWN)),
    )


def asked_facts(op: OperatorRecord, record: CaseRecord, requests: Iterable[tuple[str, Requests]]) -> AskedFacts:
    """What the first configuration that names a layer asks of it.

    Args:
        op: The layer, which may have no weights.
        record: The case that it belongs to.
        requests: What each configuration asks for, with the name of its file.
    """
    index = next((i for i in op.outputs if i is not None), None)
    output = None if index is None else record.tensors[index]
    for origin, own in requests:
        in_float = bool(set(own.floats) & _names_of_operator(op)) or (op.is_compute and not _may_be_quantized(op, own))
        asked = AskedFacts(
            origin=origin,
            in_float=in_float or None,
            weight_bits=own.bits_of_weights(op.weight.name),
            bits=None if output is None else _bits_asked(output, own),
        )
        if (asked.in_float, asked.weight_bits, asked.bits) != (None, None, None):
            return asked.model_copy(update={"is_shown": _is_shown(asked, op, output)})
    return AskedFacts()


def _is_shown(asked: AskedFacts, op: OperatorRecord, output: TensorRecord | None) -> bool | None:
    """None where neither weights nor an output with a grid tell."""
    held = _weight_bits(op)
    shown = None if output is None or output.quantizer.dynamic else output.quantizer.bits
    told = [held is None] if asked.in_float and op.is_compute and op.weight.name is not None else []
    told += [asked.weight_bits == held] if None not in (asked.weight_bits, held) else []
    told += [asked.bits == shown] if None not in (asked.bits, shown) else []
    return all(told) if told else None


def _names_of_operator(op: OperatorRecord) -> set[str | None]:
    return {op.name, op.float_name, op.quantized_name}


def _may_be_quantized(op: OperatorRecord, own: Requests) -> bool:
    types = None if own.only_types is None else {_ALIKE.get(name, name) for name in own.only_types}
    return types is None or _ALIKE.get(op.op_type, op.op_type) in types


def _bits_asked(tensor: TensorRecord, own: Requests) -> int | None:
    return own.bits.get(tensor.float_name, own.bits.get(tensor.name))


def _recorded_names(record: CaseRecord, requests: Sequence[Requests]) -> set[str]:
    """Weights and activations whose bits are recorded, and not asked for."""
    tensors = {tensor.float_name for tensor in record.tensors if tensor.recorded.bits is not None}
    weights = {op.weight.name for op in record.operators if any(op.weight.name in own.weight_bits for own in requests)}
    return {name for name in tensors | weights if name and not any(name in own.names for own in requests)}


def _names_of_layers(record: CaseRecord) -> Sequence[str]:
    """Names that may have been meant, in order; none of networks in which looking for one would take long."""
    layers = (op.float_name or op.name for op in record.operators)
    found = sorted({*layers, *(tensor.float_name for tensor in record.tensors)})
    return found if len(found) <= _COMPARED else ()


def _strangers(own: Requests, names: frozenset[str] | None) -> Iterator[str]:
    """Names that match nothing."""
    if names is None:
        return
    yield from (name for name in own.names if name not in names)
    text = "\n".join(names)
    yield from (part for part in own.parts[:_PARTS] if part not in text)


def _contradictions(record: CaseRecord, own: Requests) -> Iterator[str]:
    """What was asked of a layer or tensor and is otherwise in the model."""
    floats = set(own.floats)
    for op in record.operators:
        bits = _weight_bits(op)
        if bits is not None and floats & _names_of_operator(op):
            yield f"{op.name} was to stay in float, and its weights have {bits} bits"
        elif bits is not None and not _may_be_quantized(op, own):
            yield f"{op.op_type} was not to be quantized, and the weights of {op.name} have {bits} bits"
        wanted = own.bits_of_weights(op.weight.name)
        if bits is not None and wanted not in (None, bits):
            yield f"{op.weight.name} was to have {wanted} bits, and has {bits}"
    for tensor in record.tensors:
        held = tensor.quantizer.bits
        wanted = _bits_asked(tensor, own) or tensor.recorded.bits
        if held is not None and not tensor.quantizer.dynamic and wanted not in (None, held):
            yield f"{tensor.float_name} was to have {wanted} bits, and has {held}"


def _weight_bits(op: OperatorRecord) -> int | None:
    return op.weight.quantizer.bits if op.is_compute and op.weight.name is not None else None
