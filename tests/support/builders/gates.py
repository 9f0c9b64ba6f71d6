"""Diagnoses with the verdict of a gate, for whatever shows one."""

from collections.abc import Sequence
from itertools import cycle

from quantmedic.engine.contract.check_report import (
    BaselineUse,
    CheckedFinding,
    CheckReport,
    ExemptionUse,
    GateLine,
    GoneFinding,
)
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.formulas.power import SampleSizes


def regression(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis with a failed gate: one line of every status, and findings of every kind on its own causes."""
    return _with(diagnosis, _regression(diagnosis))


def accepted(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis with an ACCEPT, no policy file and no findings that count."""
    gate = GateLine(kind="findings", name="findings", status="pass", message="none of severity high or above")
    report = CheckReport(verdict="ACCEPT", exit_code=0, model=diagnosis.model.name or "?", gates=(gate,), findings=())
    return _with(diagnosis, report)


def unmeasured(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis with INSUFFICIENT_DATA, for a figure that the policy bounds was not measured."""
    message = "no task metric was measured: top1 needs labels"
    gate = GateLine(kind="accuracy", name="accuracy top1", status="not-judged", message=message, line=5)
    found = accepted(diagnosis)
    assert found.check is not None
    changes = {"verdict": "INSUFFICIENT_DATA", "exit_code": 3, "gates": (gate, *found.check.gates)}
    return _with(found, found.check.model_copy(update=changes))


def hostile_check(diagnosis: Diagnosis, names: Sequence[str]) -> Diagnosis:
    """The same verdict with these names wherever a model, a policy or a rule gives one."""
    report = _regression(diagnosis)
    text = cycle(names)
    gates = [
        GateLine(kind=kind, name=f"{name} {place}", status=status, message=next(text), line=place + 1)
        for place, name in enumerate(names)
        for kind, status in (("sqnr", "fail"), ("accuracy", "undecided"), ("gain", "anomalous"), ("coverage", "pass"))
    ]
    findings = [
        finding.model_copy(
            update={"subject": next(text), "message": next(text), "name": next(text), "fact": next(text)}
            | {"unit": next(text), "comparison": next(text)}
        )
        for finding in report.findings
    ]
    exemptions = [
        ExemptionUse(rule=name, layers=tuple(names), reason=next(text), expires=next(text), status="unused", line=3)
        for name in names
    ]
    gone = tuple(GoneFinding(rule=name, subject=name) for name in names)
    check = report.model_copy(
        update={"model": names[1], "policy": names[2], "location": next(text), "gates": tuple(gates)}
        | {"findings": tuple(findings), "exemptions": tuple(exemptions)}
        | {"baseline": BaselineUse(origin=names[0], known=1, worse=1, new=1, gone=gone)}
    )
    return _with(diagnosis, check)


def check_report(diagnosis: Diagnosis) -> CheckReport:
    """The gate's verdict that a diagnosis has."""
    assert diagnosis.check is not None
    return diagnosis.check


def with_check(diagnosis: Diagnosis, **fields: object) -> Diagnosis:
    """The diagnosis with other fields of its gate's verdict."""
    return diagnosis.model_copy(update={"check": check_report(diagnosis).model_copy(update=fields)})


def _with(diagnosis: Diagnosis, report: CheckReport) -> Diagnosis:
    return diagnosis.model_copy(update={"gate": report.verdict, "check": report})


def _regression(diagnosis: Diagnosis) -> CheckReport:
    findings = [
        CheckedFinding(
            rule=cause.rules[0],
            name=cause.cause,
            cause=cause.cause,
            severity=cause.severity,
            subject=subject,
            message=cause.message,
            fact="weight.channel_range_ratio",
            unit="ratio",
            comparison="gt",
            value=148.0 if place == 0 else 41.0,
            threshold=16.0,
            before=None if place == 0 else 22.0,
            status="new" if place == 0 else "worse" if place == 1 else "known",
            gated=place < 2 and cause.severity == "high",
            exemption=0 if place == 2 else None,
        )
        for cause in diagnosis.causes
        for place, subject in enumerate(cause.subjects)
    ]
    gates = (
        GateLine(
            kind="accuracy",
            name="accuracy top1",
            status="fail",
            message="drop 7.76 points (6.91 … 8.60), limit of the drop 1.00",
            value=7.76,
            low=6.91,
            high=8.60,
            limit=1.0,
            unit="points",
            confidence=0.95,
            samples=SampleSizes(now=5000, at_twice=3100, at_measured=90),
            mcnemar_p=1e-9,
            line=5,
        ),
        GateLine(
            kind="sqnr",
            name="sqnr boxes",
            status="pass",
            message="31.2 dB, required 20 dB",
            value=31.2,
            limit=20.0,
            unit="dB",
            line=10,
        ),
        GateLine(
            kind="agreement",
            name="agreement",
            status="undecided",
            message="98.8 % (97.9 … 99.4), required 99.0 %",
            value=98.8,
            low=97.9,
            high=99.4,
            limit=99.0,
            unit="%",
            confidence=0.95,
            samples=SampleSizes(now=1000),
            line=14,
        ),
        GateLine(
            kind="findings", name="findings", status="fail", message="2 of severity high or above", value=2, line=2
        ),
        GateLine(
            kind="coverage",
            name="coverage",
            status="not-judged",
            message="the share of quantized operators is not known",
            line=4,
        ),
    )
    exemptions = (
        ExemptionUse(
            rule="A004",
            layers=("head/*",),
            reason="swish is fixed in the accelerator, VIS-214",
            expires="2026-11-30",
            status="expires-soon",
            days=9,
            findings=1,
            line=20,
        ),
        ExemptionUse(
            rule="W009", layers=("*",), reason="old", expires="2026-01-01", status="expired", days=-314, line=25
        ),
        ExemptionUse(rule="W010", layers=("stem/*",), reason="none left", expires="never", status="unused", line=30),
    )
    return CheckReport(
        verdict="REGRESSION",
        exit_code=1,
        model=diagnosis.model.name or "?",
        policy="ci/quantmedic.toml",
        location="ci/quantmedic.toml",
        gates=gates,
        findings=tuple(findings),
        exemptions=exemptions,
        baseline=BaselineUse(
            origin="quantmedic-baseline.json",
            known=10,
            worse=1,
            new=1,
            gone=(GoneFinding(rule="W003", subject="features.9.conv"),),
        ),
    )
