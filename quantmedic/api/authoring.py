"""The user's own rules: write a first version, check them, run their examples."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from quantmedic.api.rulebase import load_rulebase, require_own_files, rule_folder
from quantmedic.engine.case.facts import Scope, fact_paths
from quantmedic.engine.errors import OutputError, RuleError
from quantmedic.engine.output_files import write_file
from quantmedic.engine.rules.conditions import COMPARISONS
from quantmedic.engine.rules.examples import Outcome, Reason, read_page, rule_examples, run_example
from quantmedic.engine.rules.lint import Remark, lint
from quantmedic.engine.rules.load import load_rules
from quantmedic.engine.rules.rule import Rule
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.reports.text import count, field_info, number

REASONS_SHOWN = 4
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
_RULE = """\
id: {id}
name: {name}
cause: {name}
scope: {scope}
severity: medium
confidence: 0.7
when:
  all:
    - {{fact: {fact}, {op}: {limit}}}
    - {{fact: {asked}}}
message: "{words}"
remedies: [{remedy}]
---
# Facts on which the rule fires, and close ones on which it stays silent.
- fires: {{{fires}}}
- about: A close miss
  silent: {{{silent}}}
"""
_PAGE = """\
# {name} ({id})

What it is, why it hurts, what to do, and when not to.
"""


@dataclass(frozen=True)
class _Sketch:
    """What the first version of a rule asks: one number that is bad beyond a limit, and one fact beside it."""

    fact: str
    op: str
    limit: str
    bad: str
    good: str
    words: str
    remedy: str
    asked: str = "model.harmed, is: true"

    def facts(self, value: str) -> str:
        """An example in which the number has a value and the other condition holds."""
        nested = value
        for part in reversed(self.fact.split(".")[1:]):
            nested = f"{{{part}: {nested}}}"
        path, _, state = self.asked.partition(", is: ")
        head, _, rest = path.partition(".")
        other = f"{head}: {{{rest}: {state}}}" if rest else f"{head}: {state}"
        return f"{self.fact.partition('.')[0]}: {nested}, {other}"


_SKETCHES: dict[Scope, _Sketch] = {
    "model": _Sketch(
        "output_sqnr_db", "lt", "20", "9.5", "20.5", "the output keeps {output_sqnr_db:.1f} dB",
        "quantization-aware-training", "harmed, is: true",
    ),
    "dataset": _Sketch(
        "samples", "lt", "100", "64", "100", "only {samples} samples", "recalibrate-on-proper-data",
        "role, is: representative",
    ),
    "layer": _Sketch(
        "weight.rounding.sqnr_db", "lt", "25", "12.5", "25.5", "the weights keep {weight.rounding.sqnr_db:.1f} dB",
        "keep-layers-float",
    ),
    "tensor": _Sketch(
        "data.rounding.sqnr_db", "lt", "25", "12.5", "25.5", "its own grid leaves {data.rounding.sqnr_db:.1f} dB",
        "keep-layers-float",
    ),
    "operand": _Sketch(
        "joint_sqnr_db", "lt", "20", "8.5", "20.5", "operand {index} keeps {joint_sqnr_db:.1f} dB on the joint grid",
        "keep-layers-float",
    ),
    "output": _Sketch(
        "levels", "lt", "64", "21", "64.5", "the output spans {levels:.0f} levels", "keep-layers-float"
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Tested:
    """One rule and the outcomes of its examples; ``error`` is why they could not be run."""

    rule: Rule
    outcomes: tuple[Outcome, ...]
    error: RuleError | None = None

    @property
    def failed(self) -> int:
        """Examples on which the rule does something else, and one that cannot be read."""
        return sum(not outcome.passed for outcome in self.outcomes) + (self.error is not None)


def new_rule(name: str, folder: Path, *, scope: Scope = "layer") -> tuple[Path, Path]:
    """Write a small rule and its page, which pass ``lint_rules`` and ``run_examples`` as they stand.

    Args:
        name: What is wrong, in words with hyphens: ``wide-input-range``.
        folder: Where to write; made if it does not exist.
        scope: What the rule ranges over.

    Raises:
        RuleError: The name is taken or has another form.
        OutputError: The folder cannot be written.
    """
    builtin = load_rulebase()
    if not _NAME.fullmatch(name):
        words = re.findall(r"[a-z0-9]+", name.lower())
        near = f"; did you mean {'-'.join(words)!r}?" if len(words) > 1 else ""
        raise RuleError(
            f"a rule's name is two or more lower-case words with hyphens, not {name!r}{near}",
            help="name what is wrong: wide-input-range",
        )
    for rule in builtin.rules:
        if name == rule.name:
            raise RuleError(f"{rule.id} {rule.name} is a built-in rule", help="choose another name")
    code = _free_id(folder)
    sketch = _SKETCHES[scope]
    facts = {"fires": sketch.facts(sketch.bad), "silent": sketch.facts(sketch.good)}
    fields = {"id": code, "name": name, "scope": scope, **vars(sketch), **facts}
    texts = {
        folder / f"{code}.yaml": _RULE.format(**fields),
        folder / f"{code}.md": _PAGE.format(**fields),
    }
    try:
        for path, text in texts.items():
            write_file(path, text.encode())
    except OSError as error:
        where = f"{error.filename or folder}: {error.strerror or error}"
        raise OutputError("cannot write the rule", where=where, help="choose another folder with --output") from error
    rule_path, page_path = texts
    return rule_path, page_path


def _free_id(folder: Path) -> str:
    taken = {path.stem for path in folder.rglob("*") if path.suffix in (".yaml", ".md")}
    return next((code for i in range(1, 1000) if (code := f"U{i:03d}") not in taken), "")


def lint_rules(folders: Sequence[Path]) -> tuple[RuleBase, list[Rule], list[Remark]]:
    """The rule base with the rules of the folders that load, these rules alone, and what is wrong with them.

    Raises:
        RuleError: A folder does not exist or holds no rule, or its thresholds, remedies or hints cannot be read.
    """
    refused: list[RuleError] = []
    builtin = load_rulebase()
    require_own_files(folders)
    base = load_rules([rule_folder(), *folders], refused=refused)
    granted = {rule.id for rule in builtin.rules}
    own = [rule for rule in base.rules if rule.id not in granted]
    if not own and not refused:
        raise RuleError(
            "no rule was found",
            where=[str(folder) for folder in folders],
            help=f"write one with: quantmedic explain --new-rule my-rule-name --output {folders[0]}",
        )
    remarks = [Remark("error", None, error.message, error.where, error.help) for error in refused]
    return base, own, remarks + lint(base, _pages(own), builtin)


def run_examples(base: RuleBase, rules: Iterable[Rule]) -> list[Tested]:
    """Run the examples of rules."""
    return [_test_rule(rule, base) for rule in rules]


def _test_rule(rule: Rule, base: RuleBase) -> Tested:
    outcomes: list[Outcome] = []
    try:
        for example in rule_examples(rule):
            outcomes.append(run_example(rule, example, base))
    except RuleError as error:
        return Tested(rule, tuple(outcomes), error)
    return Tested(rule, tuple(outcomes))


def _page_path(rule: Rule) -> Path:
    return (rule.path or Path(rule.id)).with_suffix(".md")


def _pages(rules: Iterable[Rule]) -> dict[str, str]:
    """Pages that lie beside their rules, as written."""
    paths = {rule.id: _page_path(rule) for rule in rules}
    return {code: read_page(path) for code, path in paths.items() if path.is_file()}


def remark_lines(remark: Remark) -> list[str]:
    """One remark as the command line shows errors."""
    about = f"{remark.rule} " if remark.rule else ""
    lines = [f"{remark.level}: {about}{remark.message}", *(f"  {place}" for place in remark.where)]
    return [*lines, f"help: {remark.help}"] if remark.help else lines


def outcome_line(outcome: Outcome) -> str:
    """One example: whether the rule does what it says, and the facts that decided."""
    example = outcome.example
    decided = [_reason(reason) for reason in outcome.reasons]
    more = f" and {len(decided) - REASONS_SHOWN} more" if len(decided) > REASONS_SHOWN else ""
    why = "; ".join(decided[:REASONS_SHOWN]) + more
    if outcome.passed:
        return f"  pass  {example.kind} example {example.number}: {why}"
    does = {"fired": "fires", "not-judged": "is not judged"}.get(outcome.verdict, "is silent")
    lacks = f"it lacks {', '.join(outcome.missing)}" if outcome.verdict == "not-judged" else why
    return f"  FAIL  {example.kind} example {example.number} {does}: {lacks}  (line {example.line})"


def _reason(reason: Reason) -> str:
    condition = reason.condition
    if condition.op == "known":
        return f"{condition.fact} is {'' if reason.value is not None else 'not '}known"
    sign = COMPARISONS[condition.op]
    if condition.op == "is" and reason.holds:
        return f"{condition.fact} {sign} {_value_text(reason.value)}"
    negation = "" if reason.holds else ", not"
    return f"{condition.fact} {_value_text(reason.value)}{negation} {sign} {_value_text(reason.limit)}"


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return number(value, 4) if isinstance(value, int | float) else str(value)


def summary(rules: int, remarks: Sequence[Remark], tested: Sequence[Tested] | None = None) -> str:
    """The last line: how many rules, errors, warnings, and examples that pass."""
    errors = sum(remark.level == "error" for remark in remarks)
    parts = [count(rules, "rule"), count(errors, "error"), count(len(remarks) - errors, "warning")]
    if tested is not None:
        outcomes = [outcome for test in tested for outcome in test.outcomes]
        parts.append(f"{sum(outcome.passed for outcome in outcomes)} of {count(len(outcomes), 'example')} pass")
    return ", ".join(parts)


def fact_lines(scope: Scope | None, word: str = "") -> list[str]:
    """Facts that a rule may name, with unit and formula: those of a scope, or of all scopes by name."""
    lines = []
    for own in [scope] if scope else get_args(Scope):
        prefix = "" if scope else f"{own:8} "
        for path, field in fact_paths(own).items():
            if path.startswith("model.") and own != "model" and not word.startswith("model."):
                continue
            info = field_info(field)
            if word.lower() in f"{path} {info.description}".lower():
                lines.append(f"{prefix}{path:44} {info.unit or '':7} {info.description}")
    return lines
