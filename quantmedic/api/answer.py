"""The diagnosis as Python and notebooks get it: shown as a card, as a table, as a page, and saved."""

import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import PrivateAttr

from quantmedic.api.report import FORMATS, write_report
from quantmedic.engine.contract import diagnosis as contract
from quantmedic.engine.diagnosis.inspection import Inspection
from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.rules.rulebase import RuleBase

if TYPE_CHECKING:
    import pandas


#: Columns of the table that are looked at first.
FIRST_COLUMNS = ("name", "op_type", "validation.accumulated.sqnr_db", "degraded", "findings", "bits", "weight_bits")


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
