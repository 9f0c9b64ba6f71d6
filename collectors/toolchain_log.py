"""Logs of toolchains, read as text: patterns that the rule base holds tell which facts a line states."""

import codecs
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from quantmedic.collectors.messages import missing
from quantmedic.engine.errors import DataError
from quantmedic.engine.facts import Facts, FailureFacts, SearchFacts, SettingsFacts
from quantmedic.engine.rule import LogPattern

#: Bytes of one log that are read: the beginning, which states the settings, and the end, which states how it went.
MAX_BYTES = 16 << 20
#: Longer lines are cut: they hold arrays, not messages.
MAX_LINE = 2000
#: Characters of a line that a fact keeps; of a failure it is longer, and its last lines are kept.
SHOWN, FAILURE_SHOWN, LINES_SHOWN = 200, 400, 5
#: Lines between what a library printed and the traceback of the error that it led to.
NEAR = 20
#: Frames of a traceback that are kept for the patterns that ask where an error arose.
FRAMES = 200

#: Where Python tells what was being done, and the words between two errors of which one led to the other.
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\s*$")
_CHAINED = re.compile(
    r"^(During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):"
)
#: Lines that warn or inform: whatever they say, they did not end the run.
_HARMLESS = re.compile(r"\b\w{0,40}Warning: |\bWARN(ING)?\b|\bDEBUG\b|^[WI]\d{4} |\[[WIV]:onnxruntime")
#: A lone name such as ``KeyError: 'x'`` or ``onnxruntime….InvalidGraph: …`` behind a traceback.
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]{0,200}(:|$)")
_COLOUR = re.compile(rb"\x1b\[[0-9;]{0,20}[A-Za-z]")


class LogFacts(NamedTuple):
    """What logs tell: of a search, of how quantization failed, and of settings."""

    search: SearchFacts
    failure: FailureFacts
    settings: SettingsFacts


def read_logs(paths: Iterable[str | Path], patterns: Sequence[LogPattern]) -> SearchFacts:
    """What the logs tell of the toolchain's search; see ``read_log_facts``."""
    own = [p for p in patterns if SearchFacts.model_fields.keys() & {*p.sets, *re.compile(p.pattern).groupindex}]
    return read_log_facts(paths, own).search


def read_log_facts(paths: Iterable[str | Path], patterns: Sequence[LogPattern]) -> LogFacts:
    """What the logs tell; empty where none was given.

    Nothing in a log is executed, and what matches no pattern is ignored. A log that was read and does not complain
    about its target makes ``unreachable`` False, and one that reports no error ``failed``.

    Of several errors the last one counts, since earlier runs may stand in the same log: a traceback whose words no
    pattern knows therefore hides what was known before, unless Python says that the one led to the other, or what was
    known stands right in front of it. Lines that only say that a run has failed never hide what they follow.

    Raises:
        DataError: A file cannot be read.
    """
    reading = _Reading([_Compiled.of(pattern) for pattern in patterns])
    for path in paths:
        reading.begin()
        for line in _lines(Path(path).expanduser()):
            reading.read(line)
    return LogFacts(SearchFacts(**reading.search), FailureFacts(**reading.failed), SettingsFacts(**reading.settings))


class _Compiled(NamedTuple):
    """A pattern, ready to search."""

    pattern: LogPattern
    expression: re.Pattern[str]
    within: re.Pattern[str] | None

    @classmethod
    def of(cls, pattern: LogPattern) -> "_Compiled":
        return cls(pattern, re.compile(pattern.pattern), re.compile(pattern.within) if pattern.within else None)


@dataclass
class _Reading:
    """What was read so far.

    ``frames`` are the lines of the traceback at hand, which ends with the first line that is not indented; ``chained``
    says that the next one belongs to the error before it. ``told_at`` is the line of a failure that stood outside of
    any traceback.
    """

    patterns: Sequence[_Compiled]
    search: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    failure: dict[str, Any] = field(default_factory=dict)
    specific: bool = False
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=LINES_SHOWN))
    frames: deque[str] = field(default_factory=lambda: deque(maxlen=FRAMES))
    in_traceback: bool = False
    chained: bool = False
    read_any: bool = False
    number: int = 0
    told_at: int | None = None

    def begin(self) -> None:
        """Another file."""
        self.read_any = True
        self.in_traceback = self.chained = False
        self.told_at = None
        self.search.setdefault("unreachable", False)

    def read(self, line: str) -> None:
        """Take one line."""
        self.number += 1
        if _TRACEBACK.search(line):
            self.in_traceback = True
            self.chained |= self.told_at is not None and self.number - self.told_at <= NEAR
            self.frames.clear()
            return
        if _CHAINED.match(line):
            self.chained = True
            return
        is_frame = self.in_traceback and (not line.strip() or line.startswith((" ", "\t")))
        if is_frame:
            self.frames.append(line)
        ends = self.in_traceback and not is_frame
        self._match(line, may_fail=not is_frame, unknown_error=ends and bool(_EXCEPTION.match(line)))
        if ends:
            self.in_traceback = self.chained = False

    @property
    def failed(self) -> dict[str, Any]:
        """The facts of ``FailureFacts``."""
        if not self.read_any:
            return {}
        if not self.failure:
            return {"failed": False}
        return {**self.failure, "failed": True, "lines": tuple(self.errors)}

    def _match(self, line: str, *, may_fail: bool, unknown_error: bool) -> None:
        """Learn what the line states; ``unknown_error``: it reports an error whatever the patterns say."""
        harmless = _HARMLESS.search(line) is not None
        told = False
        for pattern, expression, within in self.patterns:
            if pattern.fails and (told or not may_fail or (harmless and not pattern.general)):
                continue
            match = expression.search(line)
            if match is None or (within is not None and not any(within.search(frame) for frame in self.frames)):
                continue
            stated = _stated(pattern, match)
            self._learn(pattern, stated, line)
            if pattern.fails:
                told = True
                self.told_at = None if self.in_traceback or pattern.general else self.number
                self._fail(pattern, stated, line)
        if unknown_error and not told:
            self._fail(LogPattern(pattern="", general=self.chained), {}, line)

    def _learn(self, pattern: LogPattern, stated: dict[str, Any], line: str) -> None:
        """Facts of search and settings: the first word stands, but of images the smallest number counts."""
        for known, facts in ((self.search, SearchFacts), (self.settings, SettingsFacts)):
            own = {name: value for name, value in stated.items() if name in facts.model_fields}
            if own and pattern.toolchain is not None:
                known.setdefault("toolchain", pattern.toolchain)
            for name, value in own.items():
                if name == "images":
                    known[name] = min(known.get(name, value), value)
                elif name == "unreachable":
                    known[name] = known.get(name) or value
                else:
                    known.setdefault(name, value)
        if stated.get("unreachable") and "line" not in self.search:
            self.search["line"] = line.strip()[:SHOWN]

    def _fail(self, pattern: LogPattern, stated: dict[str, Any], line: str) -> None:
        """The error at hand; one that says only that a run failed does not replace one that says why."""
        text = line.strip()[:FAILURE_SHOWN]
        if text not in self.errors:
            self.errors.append(text)
        if pattern.general and self.specific:
            return
        own = {name: value for name, value in stated.items() if name in FailureFacts.model_fields}
        if pattern.general and self.failure and "kind" not in own:
            return
        self.failure = {**own, "toolchain": pattern.toolchain, "line": text}
        self.specific = not pattern.general


def _stated(pattern: LogPattern, match: re.Match[str]) -> dict[str, Any]:
    """The facts that a line states."""
    stated: dict[str, Any] = {**pattern.sets}
    for name, text in match.groupdict().items():
        value = _value(name, text)
        if value is not None:
            stated[name] = value
    return stated


def _value(name: str, text: str | None) -> Any:
    """A word of the log as the fact's type; None where it is no such thing."""
    if text is None:
        return None
    holder: type[Facts] = next(
        facts for facts in (SearchFacts, FailureFacts, SettingsFacts) if name in facts.model_fields
    )
    try:
        return getattr(holder.model_validate({name: text[:SHOWN]}), name)
    except ValidationError:
        return None


def _lines(path: Path) -> Iterator[str]:
    if not path.is_file():
        raise missing(path, "toolchain log", otherwise="")
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
        raise DataError("toolchain log is not text", where=str(path), help="give what the tool printed, as plain text")
    for line in content.splitlines():
        yield _COLOUR.sub(b"", line[:MAX_LINE]).decode("utf-8", errors="replace")
