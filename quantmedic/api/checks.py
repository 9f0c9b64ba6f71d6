"""The gate as a function: a policy applied to a case, its baseline read, written and pruned."""

from dataclasses import dataclass
from datetime import date
from pathlib import Path

from pydantic import ValidationError

from quantmedic.api.cases import is_case, load_case
from quantmedic.api.judging import Diagnosis, inspect, judge
from quantmedic.api.rulebase import load_rulebase
from quantmedic.engine.case.records import STATIC, Case
from quantmedic.engine.diagnosis.inspection import Inspection
from quantmedic.engine.errors import BaselineError
from quantmedic.engine.gate.baseline import BASELINE_SCHEMA, Baseline, baseline_of, render_baseline
from quantmedic.engine.gate.policy import PolicyFile
from quantmedic.engine.gate.verdict import Circumstances, gone_findings, run_gate
from quantmedic.engine.json_text import read_json
from quantmedic.engine.rules.evaluate import evaluate
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.text import visible
from quantmedic.store.policy_file import apply_policy, find_policy, load_policy, policy_folders

#: What annotations point at where there is no policy file.
NO_POLICY = "quantmedic.toml"


def check(
    case: Case | Inspection | str | Path,
    policy: PolicyFile | str | Path | None = None,
    *,
    rules: RuleBase | None = None,
    baseline: "OpenBaseline | Case | str | Path | None" = None,
    previous: Case | None = None,
    toolchain: str | None = None,
    today: date | None = None,
    strict: bool = False,
    warn_only: bool = False,
    location: str | Path | None = None,
) -> Diagnosis:
    """Judge a case and apply a policy: ACCEPT, REGRESSION, INSUFFICIENT_DATA or ANOMALOUS, and what that rests on.

    Args:
        case: What was measured, or its file; one without data is checked as far as that goes.
        policy: What fails, or its file; without it, findings of high severity do.
        rules: Rules and thresholds in force; by default the built-in ones with the policy's choice of them.
        baseline: Findings that are known: a file of ``check --write-baseline`` or a case; by default the policy's,
            which need not be there yet.
        previous: See ``diagnose``.
        toolchain: See ``diagnose``.
        today: The day that exemptions are judged by; that of the clock by default.
        strict: Exemptions that cover nothing fail.
        warn_only: The exit code is 0 whatever the verdict.
        location: Text file that annotations point at; the policy by default.

    Returns:
        The diagnosis; ``gate`` is the verdict, ``check`` all that it rests on, ``check.exit_code`` what a command
        returns.

    Raises:
        PolicyError: The policy cannot be used.
        BaselineError: The baseline cannot be read.
        DataError: A budget names an output that the network does not have.
        CaseError: A case file cannot be read.
    """
    file = policy if isinstance(policy, PolicyFile) else load_policy(Path(policy)) if policy else PolicyFile()
    base = rules or rules_of(file)
    opened = inspect(case, base)
    diagnosis = judge(opened, previous=previous, toolchain=toolchain)
    known = baseline if isinstance(baseline, OpenBaseline) else open_baseline(baseline, file, base)
    shown = relative(file.path) if file.path is not None else None
    given = Circumstances(
        today=today or date.today(),
        baseline=known.baseline if known is not None else None,
        baseline_origin=known.origin if known is not None else "",
        baseline_missing=known is not None and known.missing,
        location=relative(Path(location)) if location is not None else (shown or NO_POLICY).rpartition("../")[2],
        policy=shown,
        strict=strict,
        warn_only=warn_only,
        static=opened.case.record.run.get("mode") == STATIC,
    )
    found = run_gate(file, base, opened.case, opened.facts, diagnosis, evaluate(base, opened.facts), given)
    return diagnosis.model_copy(update={"gate": found.verdict, "check": found})


def policy_in_force(config: Path | None) -> PolicyFile:
    """The policy that is given, else the nearest one above the current folder, else the default one.

    Raises:
        PolicyError: The policy cannot be used.
    """
    path = config if config is not None else find_policy(Path.cwd())
    return load_policy(path) if path is not None else PolicyFile()


def rules_of(policy: PolicyFile) -> RuleBase:
    """The built-in rules with those of the policy's folders, as the policy chooses and bounds them."""
    return apply_policy(load_rulebase(policy_folders(policy)), policy)


@dataclass(frozen=True)
class OpenBaseline:
    """A baseline and the name of the file that it is from; ``missing`` where the policy's is not there yet."""

    baseline: Baseline
    origin: str
    missing: bool = False


def open_baseline(source: Case | str | Path | None, policy: PolicyFile, base: RuleBase) -> OpenBaseline | None:
    """Known findings: of a baseline file, or all findings of a case under the rules in force.

    Args:
        source: File or case; that of the policy where it is None.
        policy: Its baseline need not be there yet: then nothing is known.
        base: Rules in force.

    Raises:
        BaselineError: The file cannot be read.
        CaseError: The case cannot be read.
    """
    if isinstance(source, Case):
        return OpenBaseline(case_baseline(source, base), "a case")
    own = policy.policy.check.baseline
    if source is None and own is None:
        return None
    path = Path(source) if source is not None else policy.beside(own or "")
    if source is None and not path.exists():
        return OpenBaseline(Baseline(findings=()), path.name, missing=True)
    if is_case(path):
        return OpenBaseline(case_baseline(load_case(path), base), path.name)
    return OpenBaseline(load_baseline(path), path.name)


def case_baseline(case: Case | Inspection | str | Path, rules: RuleBase | None = None) -> Baseline:
    """All findings of a case, as ``check --write-baseline`` keeps them."""
    opened = inspect(case, rules)
    return baseline_of(opened.facts, evaluate(opened.base, opened.facts))


def load_baseline(path: str | Path) -> Baseline:
    """Read a baseline file.

    Raises:
        BaselineError: It cannot be read; says what is wrong and what to do.
        LimitError: It is too large or too deep.
    """
    again = "write it again: quantmedic check CASE --write-baseline FILE"
    try:
        found = read_json(path)
        version = found.get("schema_version") if isinstance(found, dict) else None
        if isinstance(version, str) and version.partition(".")[0] != BASELINE_SCHEMA.partition(".")[0]:
            newer = f"schema {version}, this version knows {BASELINE_SCHEMA}"
            raise BaselineError("the baseline is of another version", where=[str(path), newer], help=again)
        return Baseline.model_validate(found)
    except FileNotFoundError as error:
        raise BaselineError("no such baseline", where=str(path), help=again.replace("it again", "one")) from error
    except OSError as error:
        cause = f"{path}: {error.strerror or error}"
        help = "name a file that quantmedic check CASE --write-baseline FILE has made, and that you may read"
        raise BaselineError("cannot read the baseline", where=cause, help=help) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole file"
        said = visible(first["msg"][:1].lower() + first["msg"][1:], 200)
        raise BaselineError("not a valid baseline", where=f"{path}: {place}: {said}", help=again) from error
    except ValueError as error:  # no JSON, or no text
        raise BaselineError("not a valid baseline", where=f"{path}: not valid JSON", help=again) from error


def write_baseline(baseline: Baseline, path: str | Path) -> None:
    """Write a baseline whole or not at all.

    Raises:
        OutputError: The file cannot be written.
    """
    # A check writes no file: it need not wait for jinja2 and markdown.
    from quantmedic.reports.write import place

    target = Path(path)
    place({target.name: render_baseline(baseline).encode()}, target.parent)


@dataclass(frozen=True)
class Pruned:
    """A baseline without what is gone, and how much that was."""

    baseline: Baseline
    removed: int
    not_judged: int


def prune(baseline: Baseline, case: Case | str | Path, rules: RuleBase | None = None) -> Pruned:
    """Remove findings that a case no longer has; those that it could not judge stay, and nothing is added."""
    opened = inspect(case, rules)
    renamed = baseline.renamer_for(opened.facts.layers)
    gone, not_judged = gone_findings(baseline, renamed, evaluate(opened.base, opened.facts))
    return Pruned(baseline.without(gone), len(gone), len(not_judged))


def relative(path: Path) -> str:
    """A file as reports name it: from where the command runs, and no folder's name outside of that."""
    absolute, here = path.absolute(), Path.cwd()
    if absolute.is_relative_to(here):
        return absolute.relative_to(here).as_posix()
    above = here.is_relative_to(absolute.parent)
    return "../" * len(here.relative_to(absolute.parent).parts) + path.name if above else path.name
