"""A measured case opened and judged, without models or data; the diagnosis, shown, saved and written as a report."""

import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import PrivateAttr

from quantmedic.api.cases import CASE_FILE, load_case, save_case
from quantmedic.api.rulebase import load_manuals, load_rulebase
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract import diagnosis as contract
from quantmedic.engine.diagnosis.assemble import Provenance, make_diagnosis
from quantmedic.engine.diagnosis.budget_lines import Attribution
from quantmedic.engine.diagnosis.harm import as_if_harmed
from quantmedic.engine.diagnosis.inspection import Inspection
from quantmedic.engine.diagnosis.loss_path import with_loss_path
from quantmedic.engine.diagnosis.prescription import prescribe
from quantmedic.engine.diagnosis.previous import previous_case, refuse_other_float
from quantmedic.engine.diagnosis.repair import facts_after
from quantmedic.engine.diagnosis.repair_runs import Simulated
from quantmedic.engine.diagnosis.second_look import SecondLook
from quantmedic.engine.diagnosis.suspects import Repairer, targets_of
from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.formulas.spreads import display_histogram
from quantmedic.engine.formulas.task_metric import sizes_to_tell
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.rules.toolchain import find_toolchain
from quantmedic.engine.version import VERSION
from quantmedic.reports.text import count

if TYPE_CHECKING:
    import pandas

#: Formats of a report where none is named.
FORMATS = ("html", "markdown", "json")
#: Columns of the table that are looked at first.
FIRST_COLUMNS = ("name", "op_type", "validation.accumulated.sqnr_db", "degraded", "findings", "bits", "weight_bits")


def inspect(case: Case | Inspection | str | Path, rules: RuleBase | None = None) -> Inspection:
    """A case, or its file, opened for looking: facts of every layer, distributions, channels, the graph.

    One that is open stays as it is, unless other rules are given: facts depend on their thresholds.
    """
    if isinstance(case, Inspection):
        if rules is None or case.base is rules:
            return case
        case = case.case
    case, base = load_case(case) if isinstance(case, str | Path) else case, rules or load_rulebase()
    return Inspection(case, derive(case, base), base)


class _Source:
    """What a diagnosis was made of. Two diagnoses that say the same are equal, whatever they were made of."""

    def __init__(self, opened: Inspection | None = None) -> None:
        self.opened = opened

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Source)

    __hash__ = None  # type: ignore[assignment]  # like the diagnosis itself


class Diagnosis(contract.Diagnosis):
    """What ``diagnose``, ``judge`` and ``check`` return: verdict, ranked causes with evidence and remedies, all facts.

    Examples:
        >>> diagnosis = quantmedic.diagnose("float.onnx", "int8.onnx", validation="val.npz")  # doctest: +SKIP
        >>> diagnosis.causes[0].message  # doctest: +SKIP
        >>> diagnosis.to_frame().sort_values("validation.accumulated.sqnr_db")  # doctest: +SKIP
        >>> diagnosis.open()  # doctest: +SKIP
    """

    _source: _Source = PrivateAttr(default_factory=_Source)

    @classmethod
    def of(cls, judged: contract.Diagnosis, opened: Inspection) -> Self:
        """The diagnosis of a case, which keeps the case for its pages and tables."""
        values = {name: getattr(judged, name) for name in type(judged).model_fields}
        found = cls.model_construct(_fields_set=set(judged.model_fields_set), **values)
        found._source = _Source(opened)
        return found

    def save(self, folder: str | Path, *, formats: Sequence[str] = FORMATS) -> Path:
        """Write the report and the case into a folder; the folder.

        Args:
            folder: Where to; made where it does not exist.
            formats: Any of html, markdown, json, png, model-explorer, metrics.

        Raises:
            OutputError: The folder cannot be written.
        """
        write_report(self, folder, formats=formats, rules=self._rules(), case=self._source.opened)
        return Path(folder)

    def open(self, folder: str | Path | None = None) -> Path:
        """Write the report, open its page in the browser, and return the page.

        Args:
            folder: Where the report is written; None: a new temporary folder.

        Raises:
            OutputError: The folder cannot be written.
        """
        page = self.save(folder or tempfile.mkdtemp(prefix="quantmedic-")) / "index.html"
        webbrowser.open(page.resolve().as_uri())
        return page

    def to_frame(self) -> "pandas.DataFrame":
        """All layers as a pandas table: one row per layer, one column per quantity that was measured.

        Columns are called as in ``layers`` of report.json, their parts joined by dots:
        ``validation.accumulated.sqnr_db``, ``weight_bits``, ``findings``. What no layer has is left out.

        Raises:
            QuantmedicError: pandas is not installed.
        """
        try:
            import pandas  # an optional package
        except ImportError:
            raise QuantmedicError(
                "tables need pandas, which is not installed", help="pip install 'quantmedic[frames]'"
            ) from None
        rows = pandas.json_normalize([row.model_dump() for row in self.layers]).dropna(axis="columns", how="all")
        first = [key for key in FIRST_COLUMNS if key in rows]
        return rows[[*first, *rows.columns.difference(first, sort=False)]]

    def __dir__(self) -> list[str]:
        """What a diagnosis holds and can do, without what pydantic adds."""
        return [*type(self).model_fields, "save", "open", "to_frame", "model_dump", "model_dump_json"]

    def _repr_html_(self) -> str:
        """A card for notebooks: nothing in it is run, and nothing loaded."""
        # Loads jinja2, which a diagnosis that nobody looks at need not wait for.
        from quantmedic.reports.page.card import render_card

        return render_card(self)

    def _rules(self) -> RuleBase | None:
        return self._source.opened.base if self._source.opened is not None else None


def write_report(
    diagnosis: contract.Diagnosis,
    folder: str | Path,
    *,
    formats: Sequence[str] = FORMATS,
    rules: RuleBase | None = None,
    case: Case | Inspection | None = None,
) -> list[tuple[Path, int]]:
    """Write the report, and the case file beside it; returns (path, bytes) of every file.

    Without the case, the page can be read but has no tools: they show what only the case knows.

    Raises:
        OutputError: The folder cannot be written.
    """
    # A check imports this module and writes no report: it need not wait for jinja2 and markdown.
    from quantmedic.reports.manual import glossary_page
    from quantmedic.reports.write import write_report as _write

    target, base = Path(folder), rules or load_rulebase()
    opened = inspect(case, base) if case is not None else None
    manuals = {**load_manuals(base), "glossary": glossary_page(base)}
    written = [(file.path, file.size) for file in _write(diagnosis, manuals, target, formats, opened)]
    if opened is not None:
        save_case(opened.case, target / CASE_FILE)
        written.append((target / CASE_FILE, (target / CASE_FILE).stat().st_size))
    return written


def judge(
    case: Case | Inspection,
    rules: RuleBase | None = None,
    *,
    previous: Case | None = None,
    toolchain: str | None = None,
) -> Diagnosis:
    """Judge a measured case; needs neither models nor data.

    Args:
        case: What was measured; opened by ``inspect``, its facts are not derived once more.
        rules: Rules and thresholds; by default those that the case was opened under, else the built-in ones.
        previous: The case before a remedy was applied, of the same float model.
        toolchain: See ``diagnose``.

    Raises:
        CaseError: The previous case is of another float model.
        RuleError: No toolchain has that name.
    """
    opened = inspect(case, rules)
    check_toolchain(toolchain, opened.base)
    case, facts = opened.case, opened.facts
    base = opened.base.for_framework(facts.model.framework)
    earlier = None
    if previous is not None:
        refuse_other_float(previous.record, case.record)
        earlier = previous_case(previous, case, derive(previous, base), judge(previous, base).causes)
    world, budget = as_if_harmed(facts), case.record.loss_budget
    simulated = Simulated.faithful(case.record.simulation, base)
    diagnosis = make_diagnosis(
        base,
        facts,
        repairs=Repairer(base, case, facts),
        repair=lambda change, outcome: facts_after(case, world, base, change, outcome),
        simulation=case.record.simulation,
        proof=case.record.proof,
        attribution=None if budget is None else Attribution(budget, case.record, lambda f: targets_of(f, case, facts)),
        hidden=lambda suspects: SecondLook(simulated, case, facts, suspects).find(),
        pairs=lambda suspects: [pair for pair, _ in simulated.find_pairs(suspects, case, facts)],
        provenance=Provenance(
            version=VERSION,
            warnings=tuple(_warnings(case)),
            imports=case.record.imports,
            run=_run_record(case),
        ),
        histogram=lambda tensor: display_histogram(case, tensor),
        sizes=lambda drop: sizes_to_tell(case, facts.model.metric, drop),
        previous=earlier,
    )
    return Diagnosis.of(with_loss_path(prescribe(diagnosis, base, toolchain), base), opened)


def check_toolchain(asked: str | None, base: RuleBase) -> None:
    """Refuse an unknown name before anything is measured."""
    if asked is not None:
        find_toolchain(asked, base.toolchains)


def _warnings(case: Case) -> list[str]:
    record = case.record
    warnings = list(record.notices)
    if record.unmatched:
        shown = ", ".join(record.unmatched[:5])
        more = f" and {len(record.unmatched) - 5} more" if len(record.unmatched) > 5 else ""
        one = len(record.unmatched) == 1
        verbs = ("has", "is") if one else ("have", "are")
        warnings.append(
            f"{count(len(record.unmatched), 'operator')} {verbs[0]} no twin in the float model and {verbs[1]} not "
            f"measured: {shown}{more}"
        )
    warnings += [
        f"the {role} data was not read to its end: {d.seen} samples"
        for role, d in record.datasets.items()
        if not d.complete
    ]
    return warnings


def _run_record(case: Case) -> dict[str, object]:
    """How the case was measured, for the report."""
    record = case.record
    data = {
        role: {
            "origin": d.origin,
            "samples": d.seen,
            "labelled": d.labelled,
            "samples_sha256": case.samples_sha256(role),
        }
        for role, d in record.datasets.items()
    }
    return {**record.run, "metric": record.metric, "data": data, "unmatched": list(record.unmatched)}
