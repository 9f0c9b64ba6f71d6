"""Cases: read from files, written to files, and changed by one entry."""

from dataclasses import replace
from pathlib import Path

from quantmedic.collectors.measure.case_file import read_case, write_case
from quantmedic.engine.case.records import Case


def save_case(case: Case, path: str | Path) -> None:
    """Save a case to one file (zip of JSON and arrays)."""
    write_case(case, Path(path))


def load_case(*paths: str | Path) -> Case:
    """Open a case; several shards of the same models are merged as if measured in one pass.

    Raises:
        CaseError: A file cannot be read, or the shards do not belong together.
    """
    case, *shards = [read_case(Path(path)) for path in paths]
    for shard in shards:
        case = case.merge(shard)
    return case


def with_notice(case: Case, notice: str) -> Case:
    """The case with one more thing that the user should know."""
    return replace(case, record=case.record.model_copy(update={"notices": (*case.record.notices, notice)}))
