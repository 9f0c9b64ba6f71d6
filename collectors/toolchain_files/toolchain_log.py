"""Logs of toolchains, read as text: patterns of the rule base say which facts a line states."""

import codecs
import json
import re
import subprocess
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from quantmedic.collectors.data.messages import missing_path_error
from quantmedic.collectors.native.child import ask_child
from quantmedic.collectors.toolchain_files.values import Fields
from quantmedic.engine.case.facts import Facts, FailureFacts, SearchFacts, SettingsFacts
from quantmedic.engine.errors import DataError
from quantmedic.engine.json_record import Record
from quantmedic.engine.reading_limits import LOG_SECONDS
from quantmedic.engine.rules.log_patterns import LogPattern

#: Bytes of one log that are read: the beginning, which states the settings, and the end, which states how it went.
MAX_BYTES = 16 << 20
#: Longer lines are cut: they hold arrays, not messages.
MAX_LINE = 2000
#: Characters of a line that a fact keeps; of a failure it is longer, and its last lines are kept.
SHOWN, FAILURE_SHOWN, LINES_SHOWN = 200, 400, 5
#: Characters at the beginning of a longer line, which name the error.
HEAD_SHOWN = 100
#: Lines between what a library printed and the traceback of the error that it led to.
NEAR = 20
#: Patterns of a user's rules that an error names.
OWN_SHOWN = 3
#: Frames of a traceback that are kept for the patterns that ask where an error arose.
FRAMES = 200

#: Where a traceback of Python begins, and the words between two errors of which one led to the other.
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\s*$")
_CHAINED = re.compile(
    r"^(During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):"
)
#: Lines that warn or inform: they did not end the run.
_HARMLESS = re.compile(r"\b\w{0,40}Warning: |\bWARN(ING)?\b|\bDEBUG\b|^[WI]\d{4} |\[[WIV]:onnxruntime")
#: What runners of jobs put in front of each line.
_STAMP = re.compile(rb"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]{0,12}Z ", re.MULTILINE)
#: A lone name such as ``KeyError: 'x'`` or ``onnxruntime….InvalidGraph: …`` behind a traceback.
_RAISED = re.compile(r"^[\w.]{0,200}(Error|Exception)(:|$)")
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]{0,200}(:|$)")
_COLOUR = re.compile(rb"\x1b\[[0-9;]{0,20}[A-Za-z]")


class _Question(Record):
    """What a process of its own is asked."""

    paths: tuple[str, ...]
    patterns: tuple[LogPattern, ...]
    own: tuple[LogPattern, ...]


class LogFacts(Record):
    """Facts of logs: of a search, of how quantization failed, and settings."""

    search: SearchFacts
    failure: FailureFacts
    settings: SettingsFacts


def read_logs(
    paths: Sequence[str | Path], patterns: Sequence[LogPattern], own: Sequence[LogPattern] = ()
) -> SearchFacts:
    """Facts of the toolchain's search in the logs; see ``read_log_facts``."""
    return read_log_facts(paths, _of_searches(patterns), _of_searches(own)).search


def _of_searches(patterns: Sequence[LogPattern]) -> list[LogPattern]:
    names = SearchFacts.model_fields.keys()
    return [pattern for pattern in patterns if names & {*pattern.sets, *re.compile(pattern.pattern).groupindex}]


def read_log_facts(
    paths: Sequence[str | Path], patterns: Sequence[LogPattern], own: Sequence[LogPattern] = ()
) -> LogFacts:
    """Facts of the logs; empty where none was given.

    Nothing in a log is executed, and what matches no pattern is ignored. A log that was read and does not complain
    about its target makes ``unreachable`` False, and one that reports no error ``failed``.

    Of several errors the last one counts, since earlier runs may stand in the same log: a traceback whose words no
    pattern knows therefore hides what was known before, unless Python says that the one led to the other, or what was
    known stands right in front of it. Lines that only say that a run has failed never hide what they follow, and what
    stands before a line about a model that was written was overcome.

    Args:
        paths: The logs.
        patterns: Expressions that end soon on every line, as those of the built-in rules do.
        own: Those of a user's rules, of which nobody knows that: a process of its own searches for them.

    Raises:
        DataError: A file cannot be read.
        LimitError: The search for the user's expressions takes too long.
    """
    contents = [_log_content(Path(path).expanduser()) for path in paths]
    return _search_apart(paths, patterns, own) if own else _facts_in(contents, patterns)


def facts_of_words(words: str, patterns: Sequence[LogPattern]) -> LogFacts:
    """What a runtime said in one line, as if it stood in a log."""
    return _facts_in([words.encode()], patterns)


def _search_apart(paths: Sequence[str | Path], patterns: Sequence[LogPattern], own: Sequence[LogPattern]) -> LogFacts:
    """What `_facts_in` finds, in a process that is killed where it takes too long."""
    places = [str(Path(path).expanduser().absolute()) for path in paths]
    question = _Question(paths=tuple(places), patterns=tuple(patterns), own=tuple(own))
    where = [*map(str, paths), *(f"pattern  {each.pattern:.200}" for each in own[:OWN_SHOWN])]
    try:
        found = ask_child(f"{__name__}:answer", _plain_bytes(question), LOG_SECONDS.in_force)
    except subprocess.TimeoutExpired:
        error = LOG_SECONDS.error_for("")
        error.where, error.help = tuple(where), f"bound the repeats of the pattern ({{1,200}}), or {error.help}"
        raise error from None
    except OSError as error:
        raise DataError(
            "the logs cannot be searched for the patterns of your rules",
            where=[*where, "the process that searches ended without an answer"],
            help="is memory or the number of processes limited? without --rules the built-in patterns are searched",
        ) from error
    return LogFacts.model_validate(json.loads(found))


def answer(question: bytes) -> bytes:
    """What the child process finds, as JSON."""
    asked = _Question.model_validate(json.loads(question))
    contents = [_log_content(Path(path)) for path in asked.paths]
    return _plain_bytes(_facts_in(contents, asked.patterns, asked.own))


def _plain_bytes(record: Record) -> bytes:
    """JSON with infinities, which ``model_dump_json`` leaves out."""
    return json.dumps(record.model_dump(mode="json")).encode()


def _facts_in(contents: Iterable[bytes], patterns: Sequence[LogPattern], own: Sequence[LogPattern] = ()) -> LogFacts:
    compiled, others = [_Compiled.of(pattern) for pattern in patterns], [_Compiled.of(pattern) for pattern in own]
    reading = _Reading()
    for content in contents:
        text = content.decode("utf-8", errors="replace")
        # A user's expression is searched in lines alone: of a whole text it could remember every character.
        reading.begin([*(pattern for pattern in compiled if pattern.anywhere.search(text)), *others])
        for line in content.splitlines():
            reading.take_line(line[:MAX_LINE].decode("utf-8", errors="replace"))
        reading.end()
    return LogFacts(
        search=SearchFacts.model_validate(reading.search),
        failure=FailureFacts.model_validate(reading.failed),
        settings=SettingsFacts.model_validate(reading.settings),
    )


class _Compiled(NamedTuple):
    """A pattern, ready to search; what matches a line of a text also matches ``anywhere`` in the text."""

    pattern: LogPattern
    expression: re.Pattern[str]
    anywhere: re.Pattern[str]
    within: re.Pattern[str] | None

    @classmethod
    def of(cls, pattern: LogPattern) -> "_Compiled":
        within = re.compile(pattern.within) if pattern.within else None
        return cls(pattern, re.compile(pattern.pattern), re.compile(pattern.pattern, re.MULTILINE), within)


@dataclass
class _Reading:
    """What was read so far.

    Attributes:
        patterns: Those that match somewhere in the file.
        specific: The failure at hand says why the run failed.
        frames: Lines of the traceback at hand, which ends with the first line that is not indented.
        margin: Number of characters that something else put in front of each line of the traceback.
        chained: The next traceback belongs to the error before it.
        number: Lines read.
        failed_at: Line of a failure outside of any traceback.
        last: The last line of the file that is not empty.
    """

    patterns: Sequence[_Compiled] = ()
    search: Fields = field(default_factory=dict)
    settings: Fields = field(default_factory=dict)
    failure: Fields = field(default_factory=dict)
    specific: bool = False
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=LINES_SHOWN))
    frames: deque[str] = field(default_factory=lambda: deque(maxlen=FRAMES))
    in_traceback: bool = False
    margin: int = 0
    chained: bool = False
    read_any: bool = False
    number: int = 0
    failed_at: int | None = None
    last: str = ""

    def begin(self, patterns: Sequence[_Compiled]) -> None:
        """Another file."""
        self.patterns, self.last = patterns, ""
        self.read_any = True
        self.in_traceback = self.chained = False
        self.failed_at = None
        self.search.setdefault("unreachable", False)

    def take_line(self, line: str) -> None:
        """Take in the next line of the file."""
        self.number += 1
        self.last = line if line.strip() else self.last
        if start := _TRACEBACK.search(line):
            self.in_traceback = True
            self.margin = start.start()
            self.chained |= self.failed_at is not None and self.number - self.failed_at <= NEAR
            self.frames.clear()
            return
        if _CHAINED.match(line):
            self.chained = True
            return
        if self.in_traceback and self.margin:
            line = self._bare(line)
        is_frame = self.in_traceback and (not line.strip() or line.startswith((" ", "\t")))
        if is_frame:
            self.frames.append(line)
        ends = self.in_traceback and not is_frame
        self._match(line, may_fail=not is_frame, unknown_error=ends and bool(_EXCEPTION.match(line)))
        if ends:
            self.in_traceback = self.chained = False

    def end(self) -> None:
        """The file is read: an error that is the last thing it says ended the run, also without a traceback."""
        if not self.failure and _RAISED.match(self.last):
            self._note_failure(LogPattern(pattern=""), {}, _excerpt(self.last, 0))

    def _bare(self, line: str) -> str:
        """A line of a traceback without what stands before each line; often only the first one has it."""
        if not self.frames and line.startswith("  File "):
            self.margin = 0
        return line[self.margin :]

    @property
    def failed(self) -> Fields:
        """The facts of ``FailureFacts``."""
        if not self.read_any:
            return {}
        if not self.failure:
            return {"failed": False}
        return {**self.failure, "failed": True, "lines": tuple(self.errors)}

    def _match(self, line: str, *, may_fail: bool, unknown_error: bool) -> None:
        """Learn what the line states; ``unknown_error``: it reports an error whatever the patterns say."""
        has_failed = False
        for pattern, expression, _, within in self.patterns:
            if pattern.fails and (has_failed or not may_fail):
                continue
            match = expression.search(line)
            if match is None or (within is not None and not any(within.search(frame) for frame in self.frames)):
                continue
            if pattern.fails and not pattern.general and _HARMLESS.search(line):
                continue
            stated = _facts_of_match(pattern, match)
            self._learn(pattern, stated, line)
            if pattern.fails:
                has_failed = True
                self.failed_at = None if self.in_traceback or pattern.general else self.number
                self._note_failure(pattern, stated, _excerpt(line, match.start()))
            elif pattern.sets.get("failed") is False and may_fail:
                self._forget_failure()
        if unknown_error and not has_failed:
            self._note_failure(LogPattern(pattern="", general=self.chained), {}, _excerpt(line, 0))

    def _forget_failure(self) -> None:
        """A model was written after all."""
        self.failure, self.specific, self.failed_at = {}, False, None
        self.errors.clear()

    def _learn(self, pattern: LogPattern, stated: Fields, line: str) -> None:
        """Facts of search and settings: the first statement stands, but of images the smallest number counts."""
        for known, facts in ((self.search, SearchFacts), (self.settings, SettingsFacts)):
            own = {name: value for name, value in stated.items() if name in facts.model_fields}
            if own and pattern.toolchain is not None:
                known.setdefault("toolchain", pattern.toolchain)
            for name, value in own.items():
                earlier = known.get(name)
                if name == "images" and isinstance(earlier, int) and isinstance(value, int):
                    known[name] = min(earlier, value)
                elif name == "unreachable":
                    known[name] = earlier or value
                else:
                    known.setdefault(name, value)
        if stated.get("unreachable") and "line" not in self.search:
            self.search["line"] = line.strip()[:SHOWN]

    def _note_failure(self, pattern: LogPattern, stated: Fields, text: str) -> None:
        """Keep the error at hand; one that says only that a run failed does not replace one that says why."""
        if text not in self.errors:
            self.errors.append(text)
        if pattern.general and self.specific:
            return
        own = {name: value for name, value in stated.items() if name in FailureFacts.model_fields}
        if pattern.general and self.failure and "kind" not in own:
            return
        self.failure = {**own, "toolchain": pattern.toolchain, "line": text}
        self.specific = not pattern.general


def _excerpt(line: str, place: int) -> str:
    """The beginning of a line, and the text from the given place on."""
    text = line.strip()
    if len(text) <= FAILURE_SHOWN:
        return text
    place -= len(line) - len(line.lstrip())
    if place < FAILURE_SHOWN // 2:
        return text[:FAILURE_SHOWN]
    return f"{text[:HEAD_SHOWN]} … {text[place:]}"[:FAILURE_SHOWN]


def _facts_of_match(pattern: LogPattern, match: re.Match[str]) -> Fields:
    """The facts that a line states."""
    stated: Fields = dict(pattern.sets)
    for name, text in match.groupdict().items():
        value = _fact_value(name, text)
        if value is not None:
            stated[name] = value
    return stated


def _fact_value(name: str, text: str | None) -> object:
    """A word of the log as the fact's type; None where it is of another type."""
    if text is None:
        return None
    holder: type[Facts] = next(
        facts for facts in (SearchFacts, FailureFacts, SettingsFacts) if name in facts.model_fields
    )
    try:
        value: object = getattr(holder.model_validate({name: text[:SHOWN]}), name)
    except ValidationError:
        return None
    return value


def _log_content(path: Path) -> bytes:
    """The text of a log in UTF-8, without colours and without what runners of jobs put in front of lines."""
    if not path.is_file():
        raise missing_path_error(path, "toolchain log", otherwise="")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES // 2)
            rest = max(path.stat().st_size - MAX_BYTES // 2, file.tell())
            rest += rest % 2  # Where the text begins if characters have two bytes.
            file.seek(rest)
            content += b"\n" * (rest > len(content)) + file.read(MAX_BYTES // 2)
    except OSError as error:
        raise DataError("toolchain log cannot be read", where=f"{path}: {error.strerror or error}") from error
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # Some shells redirect so.
        content = content.decode("utf-16", errors="replace").encode()
    if b"\0" in content[:4096]:
        raise DataError("toolchain log is not text", where=str(path), help="give the output of the tool as plain text")
    return _STAMP.sub(b"", _COLOUR.sub(b"", content.removeprefix(codecs.BOM_UTF8)))
