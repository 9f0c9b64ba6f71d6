"""The gate: which findings and figures fail under which policy, and the verdict that follows."""

from dataclasses import replace
from datetime import date
from typing import Any, ClassVar

from builders.comparisons import BASE, facts, judged, layer, table

from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.causes import Explained
from quantmedic.engine.contract.check_report import CheckedFinding, CheckReport, ExemptionUse, GateLine
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.gate.baseline import Baseline, baseline_of
from quantmedic.engine.gate.policy import Policy, PolicyFile
from quantmedic.engine.gate.verdict import Circumstances, Gate
from quantmedic.engine.rules.evaluate import RuleResult, evaluate
from quantmedic.engine.rules.rulebase import Threshold

TODAY = date(2026, 11, 21)
GAIN = Threshold(name="anomalous_gain", value=0.05, source="test", description="d")
RULES = BASE.model_copy(update={"thresholds": {**BASE.thresholds, "anomalous_gain": GAIN}})
SPREAD = [layer("stem", ratio=148.0), layer("head/a", ratio=41.0), layer("tail")]


def checked(
    layers: list[dict[str, Any]],
    policy: dict[str, Any] | None = None,
    *,
    samples: dict[str, Any] | None = None,
    growth: float | None = 0.01,
    model: dict[str, Any] | None = None,
    explains: dict[str, tuple[str, ...]] | None = None,
    **given: Any,
) -> CheckReport:
    found = judged(facts(layers, growth, **(model or {})), samples, base=RULES)
    file = PolicyFile(Policy.model_validate(policy or {}))
    results = evaluate(RULES, found.facts)
    found = replace(found, diagnosis=explained(found.diagnosis, results, explains or {}))
    circumstances = Circumstances(**{"today": TODAY, **given})
    return Gate(file, RULES, found.case, found.facts, found.diagnosis, results, circumstances).judge()


def explained(diagnosis: Diagnosis, results: list[RuleResult], explains: dict[str, tuple[str, ...]]) -> Diagnosis:
    """The diagnosis with all findings of some rules explained by a cause, by its name."""
    hidden = {rule for rules in explains.values() for rule in rules}
    causes = [
        cause.model_copy(
            update={
                "absorbs": tuple(
                    Explained(rule=f.rule.id, name=f.rule.name, subject=f.subject, message=f.message)
                    for result in results
                    for f in result.findings
                    if f.rule.id in explains.get(cause.cause, ())
                )
            }
        )
        for cause in diagnosis.causes
        if not hidden.intersection(cause.rules)
    ]
    return diagnosis.model_copy(update={"causes": tuple(causes)})


def baseline(layers: list[dict[str, Any]], growth: float = 0.01) -> Baseline:
    found = facts(layers, growth)
    return baseline_of(found, evaluate(RULES, found))


def gate(report: CheckReport, name: str) -> GateLine:
    return next(gate for gate in report.gates if gate.name == name)


def by_subject(report: CheckReport) -> dict[str, CheckedFinding]:
    return {finding.subject: finding for finding in report.findings}


class TestFindings:
    def test_high_severity_fails_without_a_policy(self) -> None:
        report = checked(SPREAD)
        assert (report.verdict, report.exit_code) == ("REGRESSION", 1)
        assert gate(report, "findings").message == "2 of severity high"
        found = by_subject(report)["stem"]
        assert (found.rule, found.value, found.threshold, found.comparison) == ("W001", 148.0, 16.0, "gt")
        assert (found.status, found.gated, found.before) == ("new", True, None)

    def test_nothing_fails_on_a_healthy_model(self) -> None:
        report = checked([layer("stem"), layer("tail")])
        assert (report.verdict, report.exit_code, report.failed) == ("ACCEPT", 0, ())
        assert gate(report, "findings").status == "pass"

    def test_the_policy_says_what_counts(self) -> None:
        noisy = [layer("a", rounding=12.0), layer("b")]
        for fail_on, verdict in [
            ({}, "ACCEPT"),
            ({"severity": "medium"}, "REGRESSION"),
            ({"severity": "never"}, "ACCEPT"),
            ({"severity": "never", "rules": ["A001"]}, "REGRESSION"),
            ({"severity": "never", "rules": ["noisy-tensors"]}, "REGRESSION"),
            ({"severity": "never", "rules": ["W"]}, "ACCEPT"),
        ]:
            assert checked(noisy, {"check": {"fail_on": fail_on}}).verdict == verdict, fail_on

    def test_a_rule_that_is_to_fail_and_was_not_judged_is_no_pass(self) -> None:
        for selector, verdict in {
            "W001": "INSUFFICIENT_DATA",
            "weight-spread": "INSUFFICIENT_DATA",
            "W": "ACCEPT",
        }.items():
            policy = {"check": {"fail_on": {"severity": "never", "rules": [selector]}}}
            report = checked([layer("a", ratio=None)], policy)
            assert report.verdict == verdict
            assert verdict == "ACCEPT" or "weight.channel_range_ratio" in gate(report, "findings").message
            assert checked([layer("a", ratio=None)], policy, static=True).verdict == "ACCEPT"

    def test_warn_only_changes_the_exit_code_alone(self) -> None:
        report = checked(SPREAD, warn_only=True)
        assert (report.verdict, report.exit_code, report.warn_only) == ("REGRESSION", 0, True)

    def test_models_that_cannot_be_compared_fail(self) -> None:
        report = checked([layer("a")], model={"float_is_quantized": True})
        assert report.verdict == "REGRESSION" and gate(report, "comparison").status == "fail"
        assert gate(report, "comparison").message.endswith("the float model is quantized itself")
        infinite = checked([layer("a")], model={"nonfinite_output": "both"})
        assert gate(infinite, "comparison").message.endswith("outputs of the float model hold NaN or infinity")


class TestBaseline:
    def test_known_findings_do_not_fail(self) -> None:
        report = checked([*SPREAD, layer("more", ratio=9.0)], baseline=baseline(SPREAD))
        assert report.verdict == "ACCEPT"
        assert {f.status for f in report.findings} == {"known"}
        assert report.baseline is not None and (report.baseline.known, report.baseline.new) == (2, 0)
        policy = {"check": {"fail_on": {"known": True}}}
        assert checked(SPREAD, policy, baseline=baseline(SPREAD)).verdict == "REGRESSION"
        more = checked([*SPREAD, layer("more", ratio=99.0)], baseline=baseline(SPREAD))
        assert [f.subject for f in more.findings if f.gated] == ["more"]
        assert more.baseline is not None and more.baseline.new == 1

    def test_ten_percent_or_half_a_decibel_worse_fails(self) -> None:
        for then, status in {41.0: "known", 38.0: "known", 37.0: "worse", 90.0: "known"}.items():
            known = baseline([layer("stem", ratio=then), layer("tail")])
            report = checked([layer("stem", ratio=41.0), layer("tail")], baseline=known)
            found = by_subject(report)["stem"]
            assert (found.status, found.before) == (status, then)
            assert report.verdict == ("REGRESSION" if status == "worse" else "ACCEPT")
        policy = {"check": {"fail_on": {"severity": "medium"}}}
        for then, status in {12.0: "known", 12.4: "known", 12.6: "worse", 8.0: "known"}.items():
            report = checked([layer("a", rounding=12.0)], policy, baseline=baseline([layer("a", rounding=then)]))
            assert by_subject(report)["a"].status == status, then

    def test_gone_is_told_and_does_not_fail(self) -> None:
        report = checked([layer("stem", ratio=148.0), layer("head/a"), layer("tail")], baseline=baseline(SPREAD))
        assert report.verdict == "ACCEPT" and report.baseline is not None
        assert [(g.rule, g.subject) for g in report.baseline.gone] == [("W001", "head/a")]

    def test_not_judged_is_not_gone(self) -> None:
        blind = [layer("stem", ratio=None), layer("head/a", ratio=41.0), layer("tail")]
        report = checked(blind, baseline=baseline(SPREAD))
        assert report.baseline is not None and not report.baseline.gone
        assert [(g.rule, g.subject) for g in report.baseline.not_judged] == [("W001", "stem")]

    def test_a_known_cause_hides_nothing_new(self) -> None:
        """D001 explains A001, whose layer was not noisy when the baseline was written."""
        noisy, quiet = [layer("a", rounding=12.0), layer("b")], [layer("a"), layer("b")]
        policy = {"check": {"fail_on": {"severity": "medium"}}}
        for then, verdict in ((quiet, "REGRESSION"), (noisy, "ACCEPT")):
            known = baseline(then, growth=0.3)
            report = checked(noisy, policy, growth=0.3, explains={"few-samples": ("A001",)}, baseline=known)
            assert report.verdict == verdict
        assert checked(noisy, policy, growth=0.3, explains={"few-samples": ("A001",)}).findings[0].rule == "D001"
        allowed = {**policy, **ignore(rule="D001")}
        report = checked(noisy, allowed, growth=0.3, explains={"few-samples": ("A001",)})
        assert report.verdict == "ACCEPT", "what is exempted is exempted with what follows from it"

    def test_shifted_names_are_the_same_layers(self) -> None:
        old = [layer("stem"), layer("conv_7", ratio=50.0), layer("tail")]
        new = [layer("stem"), layer("conv_9", ratio=51.0), layer("tail")]
        report = checked(new, baseline=baseline(old))
        assert by_subject(report)["conv_9"].status == "known"
        assert report.baseline is not None and report.baseline.renamed == 1 and not report.baseline.gone

    def test_budgets_have_no_baseline(self) -> None:
        policy = {"check": {"budget": [{"metric": "top1", "max_drop": 1.0}]}}
        samples = {"validation": table(300)}
        assert checked([layer("a")], policy, samples=samples, baseline=baseline([layer("a")])).verdict == "REGRESSION"


def ignore(**fields: Any) -> dict[str, Any]:
    return {"ignore": [{"rule": "W001", "reason": "known to the vendor", "expires": "never", **fields}]}


class TestExemptions:
    def test_layers_are_named_by_pattern(self) -> None:
        """Brackets are part of a name."""
        for layers, gated in [
            (["*"], []),
            (["head/*"], ["stem"]),
            (["head/?"], ["stem"]),
            (["stem", "head/a"], []),
            (["head"], ["stem", "head/a"]),
        ]:
            report = checked(SPREAD, ignore(layers=layers))
            assert [f.subject for f in report.findings if f.gated] == gated
            assert [f.subject for f in report.findings if f.exemption is None] == gated
            assert report.verdict == ("REGRESSION" if gated else "ACCEPT")
        assert checked([layer("conv[0]", ratio=50.0)], ignore(layers=["conv[0]"])).verdict == "ACCEPT"
        assert checked([layer("conv0", ratio=50.0)], ignore(layers=["conv[0]"])).verdict == "REGRESSION"

    def test_rules_are_named_like_on_the_command_line(self) -> None:
        for selector in ("W001", "W0", "weight-spread", "weights"):
            assert checked(SPREAD, ignore(rule=selector)).verdict == "ACCEPT", selector

    def test_they_expire(self) -> None:
        for expires, status, days, verdict in [
            ("never", "active", None, "ACCEPT"),
            (date(2027, 1, 1), "active", 41, "ACCEPT"),
            (date(2026, 12, 5), "expires-soon", 14, "ACCEPT"),
            (date(2026, 11, 21), "expires-soon", 0, "ACCEPT"),
            (date(2026, 11, 20), "expired", -1, "REGRESSION"),
        ]:
            report = checked(SPREAD, ignore(expires=expires))
            (use,) = report.exemptions
            assert (use.status, use.days, use.findings, report.verdict) == (status, days, 2, verdict)

    def use(self, report: CheckReport) -> ExemptionUse:
        (use,) = report.exemptions
        return use

    def test_one_that_covers_nothing_is_unused(self) -> None:
        report = checked(SPREAD, ignore(layers=["nowhere"]))
        assert self.use(report).status == "unused"
        strict = checked([layer("a")], ignore(layers=["nowhere"]), strict=True)
        assert strict.verdict == "REGRESSION" and gate(strict, "exemptions").status == "fail"
        assert checked([layer("a")], ignore(layers=["nowhere"])).verdict == "ACCEPT"

    def test_one_whose_rule_was_not_judged_is_not_unused(self) -> None:
        report = checked([layer("a", ratio=None)], ignore(), strict=True)
        assert self.use(report).status == "not-judged" and report.verdict == "ACCEPT"


class TestVerdicts:
    BUDGET: ClassVar = {"budget": [{"metric": "top1", "max_drop": 2.0}]}

    def test_a_budget_decides_by_its_interval(self) -> None:
        for right, verdict, code in [
            (400, "ACCEPT", 0),
            (399, "ACCEPT", 0),
            (393, "INSUFFICIENT_DATA", 3),
            (300, "REGRESSION", 1),
        ]:
            report = checked([layer("a")], {"check": self.BUDGET}, samples={"validation": table(right)})
            assert (report.verdict, report.exit_code) == (verdict, code), right

    def test_too_few_samples_may_pass(self) -> None:
        policy = {"check": {**self.BUDGET, "verdicts": {"insufficient_data": "pass"}}}
        report = checked([layer("a")], policy, samples={"validation": table(393)})
        assert (report.verdict, report.exit_code) == ("INSUFFICIENT_DATA", 0)
        grave = checked(SPREAD, policy, samples={"validation": table(393)})
        assert (grave.verdict, grave.exit_code) == ("REGRESSION", 1)

    def test_an_interrupted_run_is_no_pass(self) -> None:
        """Its findings are those of the samples that were read; what comes after may hold others."""
        found = judged(facts([layer("a")]), {"validation": table(400)}, base=RULES)
        sets = {role: of.model_copy(update={"complete": False}) for role, of in found.case.record.datasets.items()}
        case = Case(found.case.record.model_copy(update={"datasets": sets}), found.case.statistics)
        given = Circumstances(today=TODAY)
        results = evaluate(RULES, found.facts)
        report = Gate(PolicyFile(), RULES, case, found.facts, found.diagnosis, results, given).judge()
        assert (report.verdict, report.exit_code) == ("INSUFFICIENT_DATA", 3)
        assert gate(report, "data").message == "not read to the end: validation, 400 samples; go on with --resume"

    def gaining(self) -> dict[str, Any]:
        samples = table(400)
        samples["metric_float"][:100] = 0.0
        return {"validation": samples}

    def test_a_gain_that_is_too_good_is_anomalous_before_all_else(self) -> None:
        report = checked(SPREAD, samples=self.gaining())
        assert (report.verdict, report.exit_code) == ("ANOMALOUS", 4)
        assert gate(report, "gain").status == "anomalous"

    def test_anomalous_may_pass_but_hides_no_regression(self) -> None:
        policy = {"check": {"verdicts": {"anomalous": "pass"}}}
        report = checked([layer("a")], policy, samples=self.gaining())
        assert (report.verdict, report.exit_code) == ("ANOMALOUS", 0)
        assert checked(SPREAD, policy, samples=self.gaining()).verdict == "REGRESSION"

    def test_a_budget_without_its_figure_is_not_passed(self) -> None:
        report = checked([layer("a")], {"check": self.BUDGET})
        line = gate(report, "accuracy top1")
        assert line.status == "not-judged" and line.value is None
        assert (report.verdict, report.exit_code) == ("INSUFFICIENT_DATA", 3)


def test_coverage() -> None:
    for share, status in {1.0: "pass", 0.9: "pass", 0.89: "fail", 0.0: "fail", None: "not-judged"}.items():
        report = checked([layer("a")], {"check": {"coverage": {"min": 0.9}}}, model={"quantized_share": share})
        assert gate(report, "coverage").status == status, share


def test_names_of_budgets_are_unique() -> None:
    budgets = [
        {"metric": "sqnr_db", "min": 20.0},
        {"metric": "sqnr_db", "min": 10.0, "output": "y"},
        {"metric": "sqnr_db", "min": 30.0},
    ]
    report = checked([layer("a", 25.0)], {"check": {"budget": budgets}})
    named = {gate.name: gate.status for gate in report.gates if gate.kind == "sqnr"}
    assert named == {"sqnr": "pass", "sqnr y": "pass", "sqnr #3": "fail"}


def test_lines_of_the_policy_are_kept() -> None:
    policy = Policy.model_validate({"check": {"budget": [{"metric": "top1", "max_drop": 1.0}]}, **ignore()})
    lines = {"check": 1, "check.fail_on": 2, "check.budget.0": 5, "ignore.0": 9}
    found = judged(facts(SPREAD), {"validation": table(300)}, base=RULES)
    report = Gate(
        PolicyFile(policy, None, lines),
        RULES,
        found.case,
        found.facts,
        found.diagnosis,
        evaluate(RULES, found.facts),
        replace(Circumstances(TODAY), location="ci/quantmedic.toml"),
    ).judge()
    assert (gate(report, "accuracy top1").line, gate(report, "findings").line) == (5, 2)
    assert report.exemptions[0].line == 9 and report.location == "ci/quantmedic.toml"
