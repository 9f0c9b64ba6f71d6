"""Fits the coefficients of ``rules/certainty.yaml`` on kept cases of the fault zoo, so that confidences come true.

Build and measure cases with tuning seeds first, then fit, from the repository root::

    python benchmarks/fault_zoo.py --part tuning --seed 1 --sample 80 --keep /tmp/zoo --jobs 2
    python benchmarks/fault_zoo.py --part unseen-l --seed 1 --keep /tmp/zoo --jobs 2  # and unseen-m, unseen-n
    python benchmarks/fit_certainty.py /tmp/zoo --write

Nothing is measured anew: the kept measurements are judged by the rules as they are now. The table shows confidences
from a cross-validation that leaves whole networks out, beside what the rules state by themselves. A case with a seed
for reporting is refused.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import yaml
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict
from zoo.cases import Built, Spec, build
from zoo.draw import TUNING_SEEDS
from zoo.protocol.calibration import reliability, render_reliability

import quantmedic
from quantmedic.engine.diagnosis.certainty import evidence_of
from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.rules.certainty import EVIDENCE
from quantmedic.engine.rules.rulebase import RuleBase

WRITTEN = Path(__file__).parents[1] / "rules" / "certainty.yaml"
HEADER = "# How evidence moves the confidence of a rule; written by benchmarks/fit_certainty.py, not by hand.\n"
#: Inverse strength of the penalty on large coefficients: a few hundred causes bear no more than this.
PENALTY = 0.5
FOLDS = 5


class Named(NamedTuple):
    """One cause that a report named, and whether it is a true one."""

    network: str
    evidence: dict[str, float]
    stated: float
    is_true: bool
    counts: bool


def named_causes(root: Path, base: RuleBase) -> Iterator[tuple[str, list[Named]]]:
    """The causes of every kept case below a folder, by the name of the case."""
    for record in sorted(root.rglob("case.json")):
        spec = _spec_of(record.parent.relative_to(root))
        built = build(spec, root)
        kept = (path for path in record.parent.iterdir() if path.suffix in (".case", ".proof"))
        measured = sorted(kept, key=lambda path: path.stat().st_mtime)
        if built.usable and not built.is_harmless and measured:
            yield f"{spec.seed}:{spec.name}", _named(built, measured[-1], base)


def _spec_of(folder: Path) -> Spec:
    *seeds, network, name = folder.parts
    seed = int(seeds[0].removeprefix("seed-")) if seeds else None
    if seed is not None and seed not in TUNING_SEEDS:
        raise SystemExit(f"{folder} has a seed for reporting: certainty is fitted on tuning seeds only")
    return Spec.by_name(f"{network}/{name.removeprefix('control-')}", seed)


def _named(built: Built, measured: Path, base: RuleBase) -> list[Named]:
    try:
        diagnosis = quantmedic.judge(quantmedic.load_case(measured), base)
    except QuantmedicError as error:
        print(f"left out: {built.spec.name}: {error}", file=sys.stderr)
        return []
    if diagnosis.loss_budget is None:
        return []
    rules = {rule.id: rule for rule in base.rules}
    true = {name for names in (*built.spec.expected, *built.spec.also) for name in names}
    causes = diagnosis.causes if built.spec.kinds else [cause for cause in diagnosis.causes if cause.is_serious]
    return [
        Named(
            built.spec.network,
            evidence_of(cause, diagnosis, rules),
            max(rules[name].confidence for name in cause.rules),
            cause.cause in true,
            cause.is_serious or cause is diagnosis.causes[0],
        )
        for cause in causes
    ]


def fit(found: list[Named]) -> tuple[LogisticRegression, np.ndarray]:
    """The regression, and the probabilities of each cause where its network was left out."""
    x = np.array([[each.evidence[name] for name in EVIDENCE] for each in found])
    y = np.array([each.is_true for each in found])
    groups = np.array([each.network for each in found])
    model = LogisticRegression(C=PENALTY, max_iter=2000)
    folds = GroupKFold(min(FOLDS, len(set(groups))))
    left_out = cross_val_predict(model, x, y, groups=groups, cv=folds, method="predict_proba")[:, 1]
    return model.fit(x, y), left_out


def show(title: str, found: Iterable[Named], confidence: Iterable[float]) -> None:
    """The reliability of first and serious causes."""
    pairs = [(float(c), each.is_true) for each, c in zip(found, confidence, strict=True) if each.counts]
    table = reliability(pairs)
    print("\n".join(render_reliability(title, table)) if table is not None else f"{title}: none")


def write(model: LogisticRegression, causes: int, cases: int) -> None:
    """The coefficients as the rule base reads them; those that were never seen to vary are left out."""
    weights = {name: round(float(w), 3) for name, w in zip(EVIDENCE, model.coef_[0], strict=True) if abs(w) >= 5e-4}
    content = {
        "source": f"logistic regression on {causes} causes of {cases} cases of the fault zoo, tuning seeds",
        "intercept": round(float(model.intercept_[0]), 3),
        "weights": weights,
    }
    temporary = WRITTEN.with_suffix(".partial")
    temporary.write_text(HEADER + yaml.safe_dump(content, sort_keys=False, width=110))
    temporary.replace(WRITTEN)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kept", nargs="+", type=Path, metavar="DIR", help="what fault_zoo.py kept (--keep)")
    parser.add_argument("--write", action="store_true", help=f"write {WRITTEN.name}")
    asked = parser.parse_args()
    base = quantmedic.load_rulebase()
    # A case that is kept twice is one case.
    cases = dict(case for root in asked.kept for case in named_causes(root, base))
    found = [each for causes in cases.values() for each in causes]
    if len({each.is_true for each in found}) < 2:
        raise SystemExit("these cases name no true or no false cause: keep more of them")
    model, left_out = fit(found)
    print(f"{len(cases)} cases, {len(found)} causes, {np.mean([each.is_true for each in found]):.0%} of them true")
    show("the rules by themselves", found, (each.stated for each in found))
    show("networks left out", found, left_out)
    for name, weight in zip(("intercept", *EVIDENCE), (*model.intercept_, *model.coef_[0]), strict=True):
        print(f"  {name:18s}{weight:8.3f}")
    if asked.write:
        write(model, len(found), len(cases))


if __name__ == "__main__":
    main()
