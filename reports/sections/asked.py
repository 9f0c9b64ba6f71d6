"""What the files of the toolchain ask of each layer, what the model shows, and what the device computed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.case.facts import AskedFacts, RecordedFacts, ReportedFacts
from quantmedic.engine.contract.layers import LayerRow
from quantmedic.reports.blocks import Column, Paragraph, Section, Span, make_table
from quantmedic.reports.text import NOT_MEASURED, capital, count, decibels, name, number, visible

#: Lines of the table.
ASKED_SHOWN = 30
#: Up to this factor the recorded and the deployed range are one: rounding to float32 and to whole zero points.
_SAME_RANGE = 1.02
#: Facts of which the table has more than a finding.
_OWN_FACTS = ("overrides.", "reported.", "recorded.", "coverage.", "device_layers", "device_float_share")
_FLOATS = ("float", "half", "bfloat16")
#: How to learn what the device computed.
ASK = f"{NOT_MEASURED}: --device-tensors"


@dataclass(frozen=True)
class AskedLine:
    """One layer of which a file asks something, whose output's range it records, or whose type it reports."""

    name: Annotated[str, "layer"]
    op_type: Annotated[str, "operator"]
    asked: Annotated[str, "what the files ask of it"]
    origin: Annotated[str, "files that say so"]
    shown: Annotated[str, "what the quantized model shows of the same"]
    differs: Annotated[bool | None, "the model shows something else; None where nothing of it can be compared"]
    device: Annotated[str, "what the device computed, or how to learn that"]
    departs: Annotated[bool, "the device computes in another kind of type than the model shows"]


def is_about_asked(fact: str) -> bool:
    """Whether the table has more about what a fact says."""
    return fact.startswith(_OWN_FACTS)


def asked_lines(layers: Iterable[LayerRow]) -> list[AskedLine]:
    """Those that differ first, then those with findings, then as in the network."""
    rows = [row for row in layers if row.asked or row.recorded or (row.reported and row.reported.dtype)]
    lines = [_asked_line(row) for row in sorted(rows, key=lambda row: not row.findings)]
    return sorted(lines, key=lambda line: not (line.differs or line.departs))


def asked_section(layers: Iterable[LayerRow]) -> Section | None:
    """The table; None where no file asks anything of a layer."""
    lines = asked_lines(layers)
    if not lines:
        return None
    lead = (
        "What the files ask of each layer, or record of its output, beside what the quantized model shows and what the "
        f"device computed. {capital(told_text(lines))}."
    )
    table = make_table(
        "What was asked of layers and what the model shows",
        lines[:ASKED_SHOWN],
        [
            (Column("layer", "name"), lambda line: line.name),
            (Column("operator"), lambda line: line.op_type),
            (Column("asked"), lambda line: line.asked),
            (Column("the model shows"), lambda line: Span(line.shown, "strong" if line.differs else "")),
            (Column("the device"), lambda line: Span(line.device, "strong" if line.departs else "")),
            (Column("from"), lambda line: line.origin),
        ],
    )
    more = len(lines) - ASKED_SHOWN
    left = [Paragraph(f"{more} more are in report.json.")] if more > 0 else []
    return Section("asked", "Asked and shown", "Asked", [Paragraph(lead, "lead"), table, *left])


def told_text(lines: Sequence[AskedLine]) -> str:
    """How many differ, in a phrase."""
    compared = sum(line.differs is not None for line in lines)
    differing = sum(line.differs is True for line in lines)
    told = [f"of {count(compared, 'comparable layer')}, {differing} with another setting than requested"]
    if not compared:
        told = ["no request can be compared with the model"]
    departing = sum(line.departs for line in lines)
    told += [f"the device computes {departing} in another type than the model"] if departing else []
    return ", and ".join(told)


def _asked_line(row: LayerRow) -> AskedLine:
    asked, recorded = row.asked or AskedFacts(), row.recorded or RecordedFacts()
    reported = row.reported or ReportedFacts()
    wanted = ["weights in float"] if asked.in_float else []
    shown = []
    if asked.in_float or asked.weight_bits is not None or reported.dtype is not None:
        shown.append("weights in float" if row.weight_bits is None else f"weights of {row.weight_bits} bits")
    if asked.weight_bits is not None:
        wanted.append(f"weights of {asked.weight_bits} bits")
    bits = recorded.bits if asked.bits is None else asked.bits
    if bits is not None:
        wanted.append(f"output of {bits} bits")
    if bits is not None or reported.dtype is not None:
        shown.append("output in float" if row.bits is None else f"output of {row.bits} bits")
    if recorded.low is not None and recorded.high is not None:
        wanted.append(f"range {number(recorded.low)} … {number(recorded.high)}")
        shown.append(_range_text(row, recorded, recorded.high - recorded.low))
    origins = (asked.origin, recorded.origin, reported.origin if reported.dtype else None)
    is_float = None if reported.dtype is None else reported.dtype in _FLOATS
    return AskedLine(
        name=name(row.float_name or row.name),
        op_type=visible(row.op_type, 40),
        asked=", ".join(wanted) or ("nothing" if row.recorded is None else "in the file, without figures"),
        origin=", ".join(visible(own, 120) for own in dict.fromkeys(origins) if own),
        shown=", ".join(shown) or NOT_MEASURED,
        differs=_differs(row, asked, recorded),
        device=_device_text(row, reported),
        departs=is_float is True and row.weight_bits is not None,
    )


def _differs(row: LayerRow, asked: AskedFacts, recorded: RecordedFacts) -> bool | None:
    """Whether anything that can be compared is otherwise in the model; None where nothing can."""
    found = [] if asked.is_shown is None else [not asked.is_shown]
    found += [recorded.bits != row.bits] if None not in (recorded.bits, row.bits) else []
    found += [recorded.deployed_ratio > _SAME_RANGE] if recorded.deployed_ratio is not None else []
    return any(found) if found else None


def _range_text(row: LayerRow, recorded: RecordedFacts, width: float) -> str:
    """The range of the deployed quantizer as a multiple of the recorded ``width``."""
    if recorded.deployed_ratio is None or row.scale is None or row.bits is None or not width:
        return f"range {NOT_MEASURED}"
    if recorded.deployed_ratio <= _SAME_RANGE:
        return "the same range"
    return f"a range {number(row.scale * (2**row.bits - 1) / width)} times as wide"


def _device_text(row: LayerRow, reported: ReportedFacts) -> str:
    """What was computed with, with which layers, and how far the result is off."""
    told = [] if reported.dtype is None else [f"in {visible(reported.dtype, 40)}"]
    others = [own for own in reported.fused or () if own not in (row.name, row.float_name, row.quantized_name)]
    told += [f"with {', '.join(name(own) for own in others)}"] if told and others else []
    told += [f"{reported.reformats} copies beside it"] if told and reported.reformats else []
    if row.device_sqnr_db is not None:
        told.append(f"{'departs here' if row.device_departs else 'as here'}: {decibels(row.device_sqnr_db)}")
    return ", ".join(told) or ASK
