"""Causes and gates as continuous integration shows them: one alarm each, under a name that stays from run to run."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Literal

from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.check_report import CheckedFinding, CheckReport, ExemptionUse, FindingStatus, GateLine
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.rules.rule import FAMILIES, SEVERITIES, Severity
from quantmedic.reports.sections.gate import before_text, check_of, finding_figure, reason_text
from quantmedic.reports.text import capital, name, visible

#: How loud an alarm is, as GitHub names it.
Level = Literal["error", "warning", "notice"]
LEVELS: dict[Severity, Level] = {"high": "error", "medium": "warning", "low": "notice", "info": "notice"}
FINDINGS_SHOWN = 10
MESSAGE_LIMIT = 600
STATUSES: tuple[FindingStatus, ...] = ("new", "worse", "known")


@dataclass(frozen=True)
class Alarm:
    """One cause of the diagnosis, with its findings as the gate sees them.

    Attributes:
        cause: The cause.
        rule: Id of its leading rule: of the gravest ones the first by id, so that no value changes it.
        name: Name of that rule.
        message: What is wrong, in the words of the finding that matters most.
        counted: Findings that no exemption covers: first those that count against the policy, new before known.
        exempted: Findings that an exemption covers.
    """

    cause: CauseReport
    rule: str
    name: str
    message: str
    counted: tuple[CheckedFinding, ...]
    exempted: tuple[CheckedFinding, ...]

    @property
    def family(self) -> str:
        """Family of the leading rule."""
        return FAMILIES.get(self.rule[:1], "user")

    @property
    def level(self) -> Level:
        """How loud the cause is by its severity."""
        return LEVELS[self.cause.severity]

    @property
    def is_gated(self) -> bool:
        """A finding counts against the policy."""
        return any(finding.gated for finding in self.counted)

    @property
    def is_exempted(self) -> bool:
        """Exemptions cover all that was found."""
        return bool(self.exempted) and not self.counted

    @property
    def is_known(self) -> bool:
        """The baseline holds all that counts."""
        return bool(self.counted) and all(finding.status == "known" for finding in self.counted)


def alarms_of(diagnosis: Diagnosis) -> list[Alarm]:
    """One alarm per cause, in the order of the diagnosis."""
    found: dict[str, list[CheckedFinding]] = {}
    for finding in check_of(diagnosis).findings:
        found.setdefault(finding.cause, []).append(finding)
    return [_alarm(cause, found.get(cause.cause, [])) for cause in diagnosis.causes]


def _alarm(cause: CauseReport, findings: Iterable[CheckedFinding]) -> Alarm:
    findings = sorted(findings, key=lambda f: (not f.gated, STATUSES.index(f.status)))
    counted = tuple(finding for finding in findings if finding.exemption is None)
    exempted = tuple(finding for finding in findings if finding.exemption is not None)
    lead = min(counted or exempted, key=lambda f: (SEVERITIES.index(f.severity), f.rule), default=None)
    first = cause.rules[0] if cause.rules else cause.cause
    own = [finding for finding in counted if lead is not None and finding.rule == lead.rule]
    return Alarm(
        cause=cause,
        rule=visible(lead.rule if lead is not None else first, 40),
        name=name(lead.name if lead is not None else cause.cause),
        message=visible((own[0].message if own else cause.message).strip() or cause.cause, MESSAGE_LIMIT),
        counted=counted,
        exempted=exempted,
    )


def failed_gates(check: CheckReport) -> tuple[GateLine, ...]:
    """Gates that did not pass and have no causes to speak for them: all but that of the findings."""
    return tuple(gate for gate in check.failed if gate.kind != "findings")


def gate_level(gate: GateLine, check: CheckReport) -> Level:
    """How loud a gate is that did not pass: what was not decided, or what the policy lets pass, is a warning."""
    return "warning" if gate.status in ("undecided", "not-judged") or is_let_pass(check) else "error"


def is_let_pass(check: CheckReport) -> bool:
    """The policy accepts a verdict that is not ACCEPT; ``--warn-only`` does not accept it."""
    return check.verdict != "ACCEPT" and check.exit_code == 0 and not check.warn_only


def findings_line(check: CheckReport) -> int:
    """Line of the policy that findings are judged by."""
    return next((gate.line for gate in check.gates if gate.kind == "findings"), 1)


def location(check: CheckReport) -> str:
    """The file that alarms point at; never an absolute path, which would disclose the machine."""
    path = check.location
    if PurePosixPath(path).is_absolute() or PureWindowsPath(path).is_absolute():
        path = PureWindowsPath(path).name
    return path or "quantmedic.toml"


def finding_text(finding: CheckedFinding, check: CheckReport) -> str:
    """``features.1.conv: weight.channel_range_ratio 148 > 16, worse, baseline 22``."""
    parts = [f"{name(finding.subject)}: {finding_figure(finding, whole=True)}"]
    parts += [before_text(finding)] if check.baseline is not None else []
    return ", ".join(parts)


def alarm_lines(alarm: Alarm, check: CheckReport, shown: int = FINDINGS_SHOWN) -> Iterator[str]:
    """What stands under an alarm: the findings that matter most, and the first remedy."""
    yield from (f"- {finding_text(finding, check)}" for finding in alarm.counted[:shown])
    if (more := len(alarm.counted) - shown) > 0:
        yield f"- {more} more"
    if alarm.exempted and alarm.counted:
        yield f"- {len(alarm.exempted)} exempted"
    if alarm.cause.remedies:
        yield f"help: {remedy_text(alarm)}"


def remedy_text(alarm: Alarm) -> str:
    """The first remedy: what to do, and what that changes."""
    first = alarm.cause.remedies[0]
    changes = f": {visible(first.changes, MESSAGE_LIMIT)}" if first.changes.strip() else ""
    return f"{capital(name(first.title))}{changes}"


def gate_text(gate: GateLine) -> str:
    """What a gate says of itself."""
    return visible(gate.message.strip() or gate.status, MESSAGE_LIMIT)


def exemption_text(use: ExemptionUse) -> str:
    """``A004 on head/*: swish is fixed in the accelerator, VIS-214 (until 2026-11-30)``."""
    layers = ", ".join(name(pattern) for pattern in use.layers[:FINDINGS_SHOWN])
    return f"{name(use.rule)} on {layers}: {reason_text(use, MESSAGE_LIMIT)}"
