"""GitHub Actions: annotations of a pull request, and the summary of a job."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from quantmedic.engine.contract.check_report import CheckReport, ExemptionUse
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.errors import OutputError
from quantmedic.engine.output_files import append_to_file
from quantmedic.engine.rules.rule import SEVERITIES
from quantmedic.reports.machines.alarms import (
    Alarm,
    Level,
    alarm_lines,
    alarms_of,
    exemption_text,
    findings_line,
    gate_level,
    gate_text,
    location,
)
from quantmedic.reports.sections.gate import CARE, check_of, exemption_state
from quantmedic.reports.text import capital, lines_with_fences, name, sentence, visible, without_links

#: Annotations of one kind that GitHub takes from one step, and findings named in one.
ANNOTATIONS_SHOWN, FINDINGS_NAMED = 10, 3
#: Bytes of a job summary: GitHub drops what a step writes beyond 1 MiB.
SUMMARY_BYTES = 900_000
SECTION = "## "


@dataclass(frozen=True)
class _Annotation:
    command: Level
    line: int
    title: str
    text: str


def annotations(diagnosis: Diagnosis) -> list[str]:
    """Workflow commands, one line each, to be printed as they are: at most ten of a kind; the tenth counts the rest.

    Gates that did not pass come first, then causes by severity, then exemptions that somebody should look at. What
    the baseline knows is a notice, whatever its severity; what is exempted is left out.

    Raises:
        QuantmedicError: The diagnosis was made without a gate.
    """
    check = check_of(diagnosis)
    alarms = sorted(alarms_of(diagnosis), key=lambda alarm: SEVERITIES.index(alarm.cause.severity))
    found = [
        *(
            _Annotation(gate_level(gate, check), gate.line, name(gate.name), sentence(gate_text(gate)))
            for gate in check.failed
        ),
        *(_cause_annotation(alarm, check) for alarm in alarms if not alarm.is_exempted),
        *_exemption_annotations(check.exemptions),
    ]
    totals = Counter(note.command for note in found)
    places: Counter[Level] = Counter()
    commands = []
    for note in found:
        places[note.command] += 1
        if places[note.command] <= ANNOTATIONS_SHOWN:
            more = totals[note.command] - ANNOTATIONS_SHOWN if places[note.command] == ANNOTATIONS_SHOWN else 0
            commands.append(_workflow_command(note, location(check), more))
    return commands


def _cause_annotation(alarm: Alarm, check: CheckReport) -> _Annotation:
    lines = [sentence(alarm.message), *alarm_lines(alarm, check, FINDINGS_NAMED)]
    command: Level = "notice" if alarm.is_known and not alarm.is_gated else alarm.level
    return _Annotation(command, findings_line(check), f"{alarm.rule} {alarm.name}", "\n".join(lines))


def _exemption_annotations(uses: Iterable[ExemptionUse]) -> Iterator[_Annotation]:
    """Those that somebody should look at."""
    for use in uses:
        if use.status in CARE:
            text = f"{capital(exemption_state(use))}: {exemption_text(use)}"
            yield _Annotation("warning", use.line, f"exemption of {name(use.rule)}", text)


def _workflow_command(note: _Annotation, file: str, more: int) -> str:
    """The command; its data and properties are escaped as the runner undoes it."""
    text = f"{note.text}\n{more} more of this kind: see the job summary" if more > 0 else note.text
    properties = f"file={_escape_property(file)},line={max(note.line, 1)},title={_escape_property(note.title)}"
    return f"::{note.command} {properties}::{_escape_data(text)}"


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(visible(text)).replace(":", "%3A").replace(",", "%2C")


def job_summary(markdown: str) -> str:
    """A report or comment as the summary of a job: without links to files beside it, at most 900 kB of UTF-8.

    What is too much is left out by whole sections from the end, and the last line says which.
    """
    head, *sections = _sections(without_links(markdown))
    if _utf8_size("".join([head, *sections])) <= SUMMARY_BYTES:
        return "".join([head, *sections])
    titles = [section.partition("\n")[0].removeprefix(SECTION).strip() for section in sections]
    kept = len(sections)
    while kept and _utf8_size("".join([head, *sections[:kept], _left_out(titles[kept:])])) > SUMMARY_BYTES:
        kept -= 1
    note = _left_out(titles[kept:])
    return _lines_within("".join([head, *sections[:kept]]), SUMMARY_BYTES - _utf8_size(note)) + note


def append_summary(path: Path, text: str) -> None:
    """Add to the summary of the running job, the file that ``GITHUB_STEP_SUMMARY`` names.

    Raises:
        OutputError: The file cannot be written.
    """
    try:
        append_to_file(path, (text if text.endswith("\n") else f"{text}\n").encode())
    except OSError as error:
        raise OutputError(
            "cannot write the job summary",
            where=f"{path.name}: {error.strerror or error}",
            help="GITHUB_STEP_SUMMARY must name a file that can be written",
        ) from error


def _sections(markdown: str) -> list[str]:
    """What stands before the first heading of the second level, and each such section; headings in code are none."""
    parts: list[list[str]] = [[]]
    for line, is_code in lines_with_fences(markdown):
        if line.startswith(SECTION) and not is_code:
            parts.append([])
        parts[-1].append(line)
    return ["".join(part) for part in parts]


def _left_out(titles: Sequence[str]) -> str:
    if not titles:
        return "\n*Shortened: the whole text is in the report.*\n"
    return f"\n*Left out, since it is too long for a job summary: {', '.join(titles)}. See the report.*\n"


def _lines_within(text: str, size: int) -> str:
    """Whole lines of a text from its beginning: a first part that is too long has no sections to leave out."""
    data = text.encode()
    return text if len(data) <= size else data[: data.rfind(b"\n", 0, size) + 1].decode()


def _utf8_size(text: str) -> int:
    return len(text.encode())
